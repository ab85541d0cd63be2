//! timing: what a memory access costs on a machine that is not there.
//!
//! Here: the emulated machine's settings ([`config`]), the cost of an access ([`Machine`]), the guest's clock
//! ([`Timeline`]) or the waits that stand for it ([`Pacer`]), the instructions that matter ([`decode()`]), statistics, and the
//! counters and samples that the guest itself may ask for ([`pmu`]).
//! Not here: QEMU, the guest, any clock of the host: time is always an argument. Read next: `machine.rs`.
#![forbid(unsafe_code)]

mod cache;
pub mod config;
mod decode;
mod machine;
mod pace;
pub mod pmu;
mod station;
mod stats;
mod stream;
#[cfg(test)]
mod testkit;
mod timeline;
mod window;

pub use cache::FirstLevel;
pub use decode::{DEVICE_ACCESS_PS, Instruction, decode, may_go_back};
pub use machine::{Access, Kind, Machine, Vcpu};
pub use pace::{Pace, Pacer};
pub use stats::{CpuStats, LinkStats, NodeSample, NodeStats, Sample, Stats};
pub use timeline::{Lead, Timeline};
