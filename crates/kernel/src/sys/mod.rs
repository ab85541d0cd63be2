//! Raw system calls, and nothing else: each function is one call with checked arguments. Safe to call, all of them.
//!
//! The modules above them ([`crate::mempolicy`], [`crate::watch`]) give them types and error texts, and test them.

pub(crate) mod mempolicy;
pub(crate) mod signals;
