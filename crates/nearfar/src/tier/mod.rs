//! Tiering on the live machine: DAMON as the pages of a [`nearfar_control::tiering::Loop`] for each boundary between tiers.
//!
//! [`plan`] settles which nodes are of which tier, [`damon`] does what the loops ask, [`node`] knows one node, [`schemes`] what
//! its kdamond is told, [`spread`] who gives and who takes pages where a tier has several nodes; [`state`] is the file that
//! tells `nearfar tier status` and `stop` of it.

pub(crate) mod damon;
pub(crate) mod node;
pub(crate) mod plan;
mod schemes;
mod spread;
pub(crate) mod state;
