//! report: a demo's result as JSON, as a table, as a page and as a picture; access records alike in [`access`],
//! comparisons of tiering systems in [`tiering`], of heaps in [`heap`], of traffic management in [`balance`],
//! loads on caches in [`cache`], what was simulated in [`sim`].
//!
//! Start at [`model`] (what was found). [`words`] puts figures into words, [`views`] turns them into rows of charts,
//! [`chart`] draws those. [`text`], [`page`] and [`picture`] are the three doors.

pub(crate) mod access;
pub(crate) mod balance;
pub(crate) mod cache;
pub(crate) mod chart;
mod document;
pub(crate) mod heap;
mod lines;
pub(crate) mod model;
pub(crate) mod page;
pub(crate) mod picture;
mod sheet;
pub(crate) mod sim;
pub(crate) mod text;
pub(crate) mod tiering;
pub(crate) mod views;
pub(crate) mod words;

#[cfg(test)]
pub(crate) mod sample;
