//! Tiering on the live machine: DAMON as the pages of a [`nearfar_control::tiering::Loop`].
//!
//! [`plan`] settles which nodes are near and far, [`damon`] does what the loop asks, [`node`] knows
//! one node, [`state`] is the file that tells
//! `nearfar tier status` and `stop` of it.

pub(crate) mod damon;
pub(crate) mod node;
pub(crate) mod plan;
pub(crate) mod state;
