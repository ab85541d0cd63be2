//! spec: memory kinds and heap configurations in words, and what they come to on a machine.
//!
//! Here: [`spec`] is a kind ("far;limit=4g"), [`region`] a replicated region, [`conf`] a heap's configuration (`NEARFAR_CONF`),
//! [`check()`] says whether a program's heap can be what is asked for.
//! Not here: allocation (crate alloc). Apart from that so that who only asks does not carry an allocator along, which takes
//! memory as soon as a program begins.
//! Read next: `spec.rs`.

mod check;
pub mod conf;
pub mod region;
pub mod spec;

pub use check::{HeapError, check};
