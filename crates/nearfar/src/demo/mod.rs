//! demo: unmodified programs under each placement, and what came of it.
//!
//! Here: what is run and how ([`here`]): the bandwidth kernels ([`kernels`]) and the servers ([`servers`]), every one
//! through the front door `nearfar run`, as command lines a user can repeat ([`mod@line`]). Where this machine has one tier
//! only, the same runs in the lab ([`guest`]). Not here: how results are shown (`report/`).

pub(crate) mod clients;
pub(crate) mod guest;
pub(crate) mod here;
pub(crate) mod kept;
pub(crate) mod kernels;
pub(crate) mod line;
pub(crate) mod machine;
pub(crate) mod placements;
pub(crate) mod process;
pub(crate) mod progress;
pub(crate) mod servers;
