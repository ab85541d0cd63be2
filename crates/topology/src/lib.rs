//! topology: the memory of a machine.
//!
//! Here: the vocabulary and its units ([`units`], [`mix`]), memory kinds ([`kind`]), node sets ([`nodeset`], as text [`node_expr`]), a
//! machine's sysfs and procfs as plain text ([`tree`]), and the [`Topology`] read from it ([`machine`], [`read`]),
//! whose [`Topology::fingerprint`] identifies a machine; measured loaded latency ([`curve`]); the [`median()`] of measurements. Not here: obtaining the text (crate kernel) and decisions
//! based on it (crate policy). This crate has no I/O, no clock and no unsafe code, and reading can't fail: it returns a
//! value and a list of [`Finding`]s. Read next: `machine.rs` for the types, `read.rs` for parsing sysfs, `infer.rs` for
//! the kinds.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod curve;
mod cxl;
mod fingerprint;
mod infer;
mod kernel_tiers;
pub mod kind;
pub mod machine;
pub mod measured;
mod median;
pub mod mix;
pub mod node_expr;
pub mod nodeset;
mod range;
pub mod read;
mod reader;
#[cfg(test)]
mod recorded;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
mod tiers;
pub mod tree;
pub mod units;
mod view;

pub use curve::{Curve, CurveError, Curves};
pub use kind::{KnownBy, MemoryKind, UnknownKind};
pub use machine::{
    Attributes, Controller, CxlDecoder, CxlDevice, CxlRegion, Dax, Failures, Finding, Initiator,
    Measured, Node, SideCache, Tier, Topology,
};
pub use median::median;
pub use mix::{Mix, MixError};
pub use node_expr::{NodeExpr, NodeSetError};
pub use nodeset::{CpuList, NodeSet};
pub use range::AddrRange;
pub use read::Overrides;
pub use tree::Tree;
pub use units::{BasisPoints, Bytes, BytesPerSecond, CpuId, Nanoseconds, NodeId, SizeError};
pub use view::View;
