//! kernel: the interface to the live system, which no other crate accesses directly.
//!
//! Here: files below a root that stands for `/` ([`fs`]), the features of the running kernel ([`features`]), memory
//! policies and CPU affinity ([`mempolicy`], [`affinity`]), interleave weights ([`weights`]), the placement of
//! processes' memory ([`residency`], [`mapped`], [`pages`], [`process`], [`cgroup`]), DAMON and the kernel's own page migration
//! ([`damon`], [`balancing`]), the physical memory of nodes ([`ranges`]), its free ([`zones`]) and its movable part
//! ([`pageflags`]), migration ([`moving`]) and splitting ([`huge`]) of pages of other processes, starting and
//! supervising a program ([`watch`]), load latency of a node ([`chase`]), CPU time ([`cpu_time`]), counted bandwidth ([`resctrl`]), sampled
//! accesses ([`perf`]), published files ([`advice`], [`tierd`], [`claim`]), the environment of a library
//! ([`environment`]), and the journal of all system-wide writes ([`journal`]). Raw system calls are in `sys/` only. Not
//! here: interpreting the texts (crate topology) and decisions (crate policy).
//! Read next: `fs.rs`, then `journal.rs`.

pub mod advice;
pub mod affinity;
pub mod balancing;
pub mod cgroup;
pub mod chase;
pub mod claim;
pub mod clock;
pub mod cpu_time;
pub mod damon;
pub mod environment;
#[cfg(any(test, feature = "testkit"))]
pub mod fake;
pub mod features;
pub mod fs;
pub mod huge;
pub mod journal;
pub mod lease;
pub mod lock;
pub mod mapped;
pub mod meminfo;
pub mod mempolicy;
pub mod moving;
pub mod pageflags;
pub mod pages;
pub mod perf;
pub mod process;
pub mod ranges;
pub mod resctrl;
pub mod residency;
pub mod smbios;
mod sys;
pub mod tierd;
pub mod usage;
pub mod watch;
pub mod weights;
mod whole;
pub mod zones;
