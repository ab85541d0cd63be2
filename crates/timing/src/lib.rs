//! timing: what a memory access costs on a machine that is not there.
//!
//! Here: the emulated machine's settings ([`config`]). Not here: QEMU, the guest, wall-clock time.
//! Read next: `config.rs`.
#![forbid(unsafe_code)]

pub mod config;
#[cfg(test)]
mod testkit;
