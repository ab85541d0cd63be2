//! kernel: the only door to the live system.
//!
//! Here: files below a root that stands for `/` ([`fs`]), what this kernel can do ([`features`]), memory policies and
//! CPU affinity ([`mempolicy`], [`affinity`]), weights ([`weights`]), where processes' memory lies ([`residency`],
//! [`pages`], [`process`], [`cgroup`]), DAMON and what else moves pages ([`damon`], [`balancing`]), which physical memory a
//! node has ([`ranges`]), what of it is free for pages ([`zones`]) and what can be moved ([`pageflags`]), pages
//! of other processes moved ([`moving`]), split ([`huge`]) and given policies ([`shared_memory`]), starting a program and
//! watching over it ([`watch`]), how long a load takes on a node now ([`chase`]), bandwidth that is counted
//! ([`resctrl`]), accesses that are seen one by one ([`perf`]), what is published of that ([`advice`], [`tierd`], [`claim`]),
//! and the journal through which everything system-wide is written ([`journal`]). Raw calls are in `sys/` alone.
//! Not here: what the text means (crate topology) and what to do about it (crate policy).
//! Read next: `fs.rs`, then `journal.rs`.

pub mod advice;
pub mod affinity;
pub mod balancing;
pub mod cgroup;
pub mod chase;
pub mod claim;
pub mod damon;
#[cfg(any(test, feature = "testkit"))]
pub mod fake;
pub mod features;
pub mod fs;
pub mod huge;
pub mod journal;
pub mod lease;
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
pub mod shared_memory;
mod sys;
pub mod tierd;
pub mod watch;
pub mod weights;
pub mod zones;
