//! kernel: the only door to the live system.
//!
//! Here: reading and writing files below a root that stands for `/`, and reading such a root into a
//! [`nearfar_topology::Tree`] ([`fs`]).
//! Not here: what the text means (crate topology) and what to do about it (crate policy).
//! Read next: `fs.rs`.

#[cfg(any(test, feature = "testkit"))]
pub mod fake;
pub mod fs;
pub mod journal;
