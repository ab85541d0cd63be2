//! bench: what the project promises about bandwidth, measured as ratios within one run.
//!
//! [`stream`] is the program under test; [`bandwidth`] runs it under every candidate, in rounds; [`verdict`] holds the
//! results against the thresholds. [`workload`] runs real programs larger than near memory, for what tiering does;
//! [`tiering`] runs those under one tiering system after the other
//! (docs/bench-tiering.md), and [`tiering_cost`] simulates what ours costs on a large machine. [`heap`] runs one program under
//! one heap after the other, [`balance`] programs of several nodes under one placement or manager of traffic after the other. [`kept`] reads results that
//! were kept. Not here: the command line (`cli/bench.rs`).

pub(crate) mod balance;
pub(crate) mod bandwidth;
pub(crate) mod heap;
pub(crate) mod kept;
pub(crate) mod stream;
pub(crate) mod tiering;
pub(crate) mod tiering_cost;
pub(crate) mod verdict;
pub(crate) mod workload;
