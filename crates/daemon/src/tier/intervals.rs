//! Intervals of DAMON's sampling and of passes.

use nearfar_kernel::damon::spec::{Bounds, Intervals};
use nearfar_policy::tiering::segments::SEGMENTS;
use nearfar_topology::Nanoseconds;

/// DAMON's own sampling does not judge pages, so few regions are enough; but intervals of schemes are whole samples,
/// and Linux 6.12 processes commands at the end of an aggregation.
pub(super) const INTERVALS: Intervals =
    Intervals { sample_us: 10_000, aggr_us: 20_000, update_us: 60_000_000 };
/// At least one DAMON region per segment; the low maximum keeps DAMON from splitting further.
pub(super) const REGIONS: Bounds = Bounds { min: SEGMENTS as u64, max: 20 };
/// Interval between clearing passes if the window needs a second command. The last pass may precede that command by as
/// much; a shorter interval costs more CPU time.
pub(super) const FORGET_EVERY: Nanoseconds = Nanoseconds(150_000_000);
/// A pass at this interval ends, and its results are read, before the next one.
pub(super) const ONCE: Nanoseconds = Nanoseconds(400_000_000);
