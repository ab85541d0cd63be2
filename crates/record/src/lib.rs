//! record: who accessed which memory when, as a file and as figures.
//!
//! Here: what a record holds ([`Record`]), the file `nearfar.record/1` ([`mod@format`], [`Writer`], [`read()`]), damo's
//! JSON as a record ([`damo`]), and pure reductions of a record to what a report shows ([`reduce`]).
//! Not here: how accesses are seen (crate kernel), how reports look (the binary), clocks. This crate opens no file but
//! the one it is told to create, and trusts none it reads: damage is a [`Finding`] beside what stands before it.
//! Read next: `model.rs` for the types, `format.rs` for the bytes.
#![forbid(unsafe_code)]

mod codec;
pub mod damo;
pub mod format;
mod model;
mod read;
pub mod reduce;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
mod write;

pub use model::{
    Access, Ending, Header, Intervals, Moved, Node, Note, Operations, Pair, Process, Range, Record,
    Region, Residency, Resident, Snapshot, Target,
};
pub use read::{BYTES_MAX, Finding, NotARecord, read};
pub use write::Writer;
