//! nearfar's benchmarks and its demo: programs under one placement, tiering system or traffic manager after another, compared
//! within one run, in the lab or on the host.
//!
//! - [`bandwidth`] runs [`stream`] under every placement; [`verdict`] compares the results with the promised thresholds.
//! - [`tiering`] runs the programs of [`workload`] under one tiering system after another (docs/bench-tiering.md);
//!   [`tiering_cost`] simulates the cost of nearfar's on a large machine.
//! - [`heap`] compares heaps, [`balance`] traffic management on several sockets; [`mod@vm`] measures the
//!   memory of a virtual machine.
//! - [`demo`] is `nearfar demo`; [`simulate`] makes the simulator's machines from the lab's machine files.
//! - [`pages`] shows results as text, pages and pictures, with crate report's charts. [`saved`] reads saved results.
//!
//! [`cli`] is the command line of `nearfar-bench`.
#![forbid(unsafe_code)]

pub mod balance;
pub mod bandwidth;
pub mod cli;
pub mod demo;
#[cfg(fuzzing)]
pub mod fuzz;
pub mod heap;
pub mod pages;
pub mod saved;
pub mod simulate;
pub mod stream;
pub mod tiering;
pub mod tiering_cost;
pub mod verdict;
pub mod vm;
pub mod workload;
