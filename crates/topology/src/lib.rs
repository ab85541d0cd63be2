//! topology: what a machine's memory is.
//!
//! Here: the vocabulary and its units ([`units`], [`mix`]), memory kinds ([`kind`]), node sets ([`nodeset`]), a machine's
//! sysfs and procfs as plain text ([`tree`]), and the [`Topology`] read from it ([`machine`], [`read`]), whose
//! [`Topology::fingerprint`] tells machines apart.
//! Not here: how the text was obtained (crate kernel), what to do with it (crate policy). This crate has no I/O, no
//! clock and no unsafe code, and reading can't fail: it gives a value and a list of [`Finding`]s.
//! Read next: `machine.rs` for the types, `read.rs` for how sysfs becomes them, `infer.rs` for how kinds are known.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod cxl;
mod fingerprint;
mod infer;
pub mod kind;
pub mod machine;
pub mod mix;
pub mod nodeset;
pub mod read;
#[cfg(test)]
mod recorded;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
mod tiers;
pub mod tree;
pub mod units;

pub use kind::{KnownBy, MemoryKind, UnknownKind};
pub use machine::{
    Attributes, CxlDevice, CxlRegion, Dax, Finding, Initiator, Node, Tier, Topology,
};
pub use mix::{Mix, MixError};
pub use nodeset::{NodeExpr, NodeSet, NodeSetError};
pub use read::Overrides;
pub use tree::Tree;
pub use units::{BasisPoints, Bytes, BytesPerSecond, CpuId, Nanoseconds, NodeId};
