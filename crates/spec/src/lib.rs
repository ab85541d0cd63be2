//! spec: memory kinds and heap configurations written as text, and their resolution on a machine.
//!
//! Here: [`spec`] is a kind ("far;limit=4g"), [`region`] a replicated region, [`conf`] a heap's configuration
//! (`NEARFAR_CONF`), [`smdk`] SMDK's (`CXLMALLOC_CONF`), [`check()`] verifies that a machine can provide a program's heap. Not here: allocation (crate
//! alloc), so that a program which only checks a configuration does not link an allocator, which takes memory as soon
//! as the program starts. Read next: `spec.rs`.

mod check;
pub mod conf;
pub mod region;
pub mod smdk;
pub mod spec;

pub use check::{HeapError, check};
