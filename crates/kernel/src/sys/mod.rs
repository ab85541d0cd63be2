//! Raw system calls and raw memory only, with safe interfaces.
//!
//! The modules above them ([`crate::mempolicy`], [`crate::watch`], [`crate::advice`], [`crate::perf`]) give them types
//! and error texts, and test them.

pub(crate) mod auxv;
pub(crate) mod clock;
pub(crate) mod mempolicy;
pub(crate) mod mount;
pub(crate) mod perf;
pub(crate) mod process;
pub(crate) mod remote;
pub(crate) mod shared;
pub(crate) mod signals;
