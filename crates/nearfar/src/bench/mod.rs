//! bench: what the project promises about bandwidth, measured as ratios within one run.
//!
//! [`stream`] is the program under test; [`bandwidth`] runs it under every candidate, in rounds; [`verdict`] holds the
//! results against the thresholds. Not here: the command line (`cli/bench.rs`).

pub(crate) mod bandwidth;
pub(crate) mod stream;
pub(crate) mod verdict;
