//! Reports: results as text, as JSON, as one HTML page and as a picture (SVG).
//!
//! - [`access`]: access records: heatmaps, working sets, temperatures, residency.
//! - [`model`]: the document of `nearfar demo`, also the description of a machine in benchmarks; [`text`], [`page`] and
//!   [`picture`] show it. [`words`] formats figures, [`views`] turns them into rows of charts.
//! - [`chart`], [`lines`], [`sheet`], [`document`], [`style`]: charts, pictures and pages for other crates' results.
//!
//! This crate runs no benchmarks and knows none: benchmarks bring their own documents and pages (crate bench).
#![forbid(unsafe_code)]

pub mod access;
pub mod chart;
pub mod document;
pub mod drawing;
pub mod lines;
pub mod model;
pub mod page;
pub mod picture;
#[cfg(any(test, feature = "testkit"))]
pub mod sample;
pub mod sheet;
pub mod style;
pub mod text;
pub mod views;
pub mod words;
