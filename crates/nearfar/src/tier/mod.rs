//! Tiering on the live machine: DAMON as the pages of a [`nearfar_control::tiering::Loop`] for each boundary between tiers.
//!
//! [`service`] is the process that does it. [`options`] is what can be set and [`change`] how it is changed while it runs,
//! [`plan`] settles which nodes are of which tier, [`scope`] whose memory it is about, [`damon`] does what the loops ask, [`node`]
//! knows one node, [`way`] where its pages may go, [`age`] goes round near memory where age decides, [`reading`] reads its
//! memory, [`schemes`] is what its kdamond is told, [`spread`] who gives and who takes pages where a tier has several nodes;
//! [`state`] is the file that tells `nearfar tier status` and `stop` of it, [`log`] a record of it.

mod age;
pub(crate) mod change;
pub(crate) mod damon;
pub(crate) mod log;
pub(crate) mod node;
pub(crate) mod options;
pub(crate) mod plan;
mod reading;
pub(crate) mod schemes;
pub(crate) mod scope;
pub(crate) mod service;
mod spread;
pub(crate) mod state;
mod way;
