//! timing: the cost of a memory access on an emulated machine.
//!
//! Here: the emulated machine's settings ([`config`]), the cost of an access ([`Machine`]), the guest's clock
//! ([`Timeline`]) or the waits that replace it ([`Pacer`]), the decoding of relevant instructions ([`decode()`]),
//! statistics, and the counters and samples available to the guest ([`pmu`]). Not here: QEMU, the guest, and the host's
//! clocks: time is always an argument. Read next: `machine.rs`.
#![forbid(unsafe_code)]

mod cache;
mod change;
pub mod config;
mod decode;
mod directory;
mod flight;
pub mod flow;
mod machine;
mod pace;
pub mod pmu;
mod response;
mod station;
mod stats;
mod stream;
#[cfg(test)]
mod testkit;
mod timeline;
mod tlb;
mod walk;
mod window;

pub use cache::FirstLevel;
pub use change::{Change, change};
pub use decode::{DEVICE_ACCESS_PS, Instruction, decode, may_go_back};
pub use machine::{Access, Kind, Machine, Origin, Vcpu};
pub use pace::{Pace, Pacer};
pub use stats::{
    CpuStats, DISTORTED_MOST, HostStats, LinkStats, NodeSample, NodeStats, Sample, Stats, WalkStats,
};
pub use timeline::{Jumps, Lead, Timeline};
pub use walk::GuestMemory;
