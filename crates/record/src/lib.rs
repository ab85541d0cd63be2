//! record: memory accesses over time, as a file and as statistics.
//!
//! Here: the content of a record ([`Record`]), the file `nearfar.record/1` ([`mod@format`], [`Writer`], [`read()`]),
//! import of damo's JSON ([`damo`]), and pure reductions of a record to the content of reports ([`reduce`]). Not here:
//! monitoring of accesses (crate kernel), the layout of reports (crate report), clocks. This crate opens no file except
//! the one it is asked to create, and trusts no input: damage is a [`Finding`] beside the part before it. Read next:
//! `model.rs` for the types, `format.rs` for the bytes.
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
#[cfg(any(fuzzing, test))]
pub use read::fuzz;
pub use read::{BYTES_MAX, Finding, NotARecord, read};
pub use write::Writer;
