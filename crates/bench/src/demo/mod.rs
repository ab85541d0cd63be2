//! demo: unmodified programs under each placement, and their results.
//!
//! This module runs them ([`here`]): the bandwidth kernels ([`kernels`]) and the servers ([`servers`]), all through
//! `nearfar run`, as command lines that a user can repeat ([`mod@line`]). On a machine with only one tier, the same
//! runs in the lab ([`guest`]). Not here: the presentation of results (crate report).

pub(crate) mod beside;
pub mod clients;
pub mod guest;
pub mod here;
pub mod kernels;
pub mod line;
pub mod machine;
pub mod placements;
pub mod process;
pub mod saved;
pub mod servers;
