//! Inputs and outputs of the tiering controller: goals, sides, scans, decisions and their reasons.

use nearfar_topology::{BasisPoints, Bytes, BytesPerSecond, Nanoseconds};

use super::{SECOND_NS, Tiering};

/// Goals and limits. All have a default except traffic, which depends on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Goals {
    /// The share of near memory to keep free for allocations.
    pub headroom: BasisPoints,
    /// Maximal migration rate, promotion and demotion together.
    pub traffic: BytesPerSecond,
    /// The share of one CPU that scans and migration may use.
    pub cpu: BasisPoints,
    /// The shortest and the longest window.
    pub window: (Nanoseconds, Nanoseconds),
}

impl Goals {
    /// The usual goals at this migration rate: 2 % headroom, 5 % of a CPU, windows of 50 ms to 2 s. CPUs cache
    /// translations and set accessed bits only on a page table walk, so a shorter window finds nothing.
    #[must_use]
    pub const fn with_traffic(traffic: BytesPerSecond) -> Self {
        Self {
            headroom: BasisPoints(200),
            traffic,
            cpu: BasisPoints(500),
            window: (Nanoseconds(SECOND_NS / 20), Nanoseconds(2 * SECOND_NS)),
        }
    }
}

impl Tiering {
    /// Continues with other goals; learned state is kept as far as they allow.
    pub fn set_goals(&mut self, goals: Goals) {
        self.goals = goals;
        let (least, most) = (goals.window.0.0.max(1), goals.window.1.0);
        self.window_ns = self.window_ns.clamp(least, most.max(least));
    }
}

/// One side of the boundary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierUsage {
    /// Its total memory.
    pub total: Bytes,
    /// Free memory.
    pub free: Bytes,
}

impl TierUsage {
    pub(super) fn taken(self) -> u64 {
        self.total.0.saturating_sub(self.free.0)
    }
}

/// Parameters of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// Time from the pass that clears accessed bits to the one that counts them.
    pub window: Nanoseconds,
    /// Near pages are judged by age: their accessed bits are kept until demotion reaches them, in the cyclic order of
    /// their addresses. Pages referenced since the previous round stay near. Accessed bits are cleared and counted only
    /// for the pages that demotion has just passed, of which no age is lost: a sample.
    pub by_age: bool,
}

/// Count of the second pass of a scan, and migration since the previous scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scanned {
    /// Pages scanned.
    pub at: Bytes,
    /// Of these, referenced.
    pub used: Bytes,
    /// Migrated from here to the other side since the previous scan.
    pub moved: Bytes,
}

/// Input of a step: the result of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// Time since the previous scan.
    pub elapsed: Nanoseconds,
    /// CPU time spent since the last scan.
    pub cpu: Nanoseconds,
    /// The part of it between scans: sampling and background migration of the machine, polling of the loop.
    pub idle_cpu: Nanoseconds,
    /// The faster tier.
    pub near: TierUsage,
    /// The slower tier.
    pub far: TierUsage,
    /// Scan of near memory, and bytes demoted.
    pub near_scan: Scanned,
    /// Scan of far memory, and bytes promoted.
    pub far_scan: Scanned,
}

impl Observation {
    /// Whether both sides were counted, near memory mostly and not just a sample.
    pub(super) fn both(&self) -> bool {
        self.sampled() && self.near_scan.at.0 >= self.near.taken() / 2
    }

    /// Whether at least some pages of both sides were counted.
    pub(super) fn sampled(&self) -> bool {
        self.near_scan.at.0 > 0 && self.far_scan.at.0 > 0
    }
}

/// The next actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Referenced far pages to promote, after demotion.
    pub promote: Bytes,
    /// Window in which they must be referenced.
    pub promote_window: Nanoseconds,
    /// Unreferenced near pages to demote: headroom for allocations, and memory for the promotion.
    pub demote: Bytes,
    /// Whether near pages are demoted by age.
    pub by_age: bool,
    /// Least time without reference of a demoted page.
    pub idle: Nanoseconds,
    /// Interval from the start of this scan to the start of the next; at least one window.
    pub period: Nanoseconds,
    /// Reason, for display.
    pub reason: Reason,
}

/// Limits to hold between scans, so that near memory is full but allocations succeed. They cause no scan; pages are
/// migrated as encountered, referenced or not since they were last visited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackgroundMigration {
    /// While less near memory is free, unreferenced pages are demoted.
    pub free_least: Bytes,
    /// While more is free, referenced pages are promoted; `None` if far memory holds nothing worth promoting.
    pub free_most: Option<Bytes>,
    /// Attempted migration rate in each direction.
    pub rate: BytesPerSecond,
    /// The share of one CPU that each direction may use.
    pub cpu: BasisPoints,
}

/// Reason of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The search for the window is in progress.
    Seeks,
    /// No far pages are referenced.
    Fits,
    /// Referenced far pages are promoted to free near memory.
    Fills,
    /// Referenced far pages are exchanged for unreferenced near pages.
    Exchange,
    /// Near memory has almost nothing free, and no cold page to demote.
    NoRoom,
    /// Near memory holds the hottest pages; few pages migrate.
    Settled,
    /// The exchange has not made near pages the more referenced ones; tiering backs off.
    NoGain {
        /// Time until the next trial.
        again_in: Nanoseconds,
    },
}

impl Reason {
    /// The word for JSON output.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Seeks => "seeks",
            Self::Fits => "fits",
            Self::Fills => "fills",
            Self::Exchange => "exchange",
            Self::NoRoom => "no_room",
            Self::Settled => "settled",
            Self::NoGain { .. } => "no_gain",
        }
    }
}

/// The current estimate, for display.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Size of the pages referenced within a window, near and far.
    pub hot: Bytes,
    /// Share of near pages referenced.
    pub near_used: BasisPoints,
    /// Share of far pages referenced.
    pub far_used: BasisPoints,
    /// The window.
    pub window: Nanoseconds,
}

/// `value * by / of`, saturating; `of` 0 counts as 1.
#[must_use]
pub fn scale(value: u64, by: u64, of: u64) -> u64 {
    let scaled = u128::from(value) * u128::from(by) / u128::from(of.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn side(total: u64, free: u64) -> TierUsage {
        TierUsage { total: Bytes(total), free: Bytes(free) }
    }

    #[test]
    fn scans_count_near_memory_only_if_they_cover_at_least_half_of_it() {
        let counted = |near: u64, far: u64| {
            let scan = |at| Scanned { at: Bytes(at), ..Scanned::default() };
            let seen = Observation {
                near: side(120, 20),
                near_scan: scan(near),
                far_scan: scan(far),
                ..Observation::default()
            };
            (seen.sampled(), seen.both())
        };
        assert_eq!([counted(50, 1), counted(49, 1)], [(true, true), (true, false)]);
        assert_eq!([counted(50, 0), counted(0, 1)], [(false, false), (false, false)]);
    }

    #[test]
    fn free_memory_above_the_total_counts_as_zero_used() {
        assert_eq!([side(5, 2).taken(), side(2, 5).taken()], [3, 0]);
    }

    #[test]
    fn background_migration_keeps_between_a_half_and_one_and_a_half_of_the_headroom_free() {
        let upkeep = |mib: u64, far_used: Option<u64>| {
            let mut tiering = Tiering::new(Goals::with_traffic(BytesPerSecond(mib * MIB)));
            tiering.far_used = far_used;
            let near = side(10_000 * MIB, 0);
            tiering.background_migration(&Observation { near, ..Observation::default() })
        };
        // The headroom is 2 % of 10,000 MiB; 0.5 % of far pages are worth promoting.
        let found = upkeep(512, Some(50));
        assert_eq!(found.free_least, Bytes(100 * MIB));
        assert_eq!(found.free_most, Some(Bytes(300 * MIB)));
        assert_eq!(found.rate, BytesPerSecond(200 * MIB), "no more than the headroom");
        assert_eq!(upkeep(300, Some(50)).rate, BytesPerSecond(150 * MIB), "half of the traffic");
        assert_eq!([upkeep(512, Some(49)), upkeep(512, None)].map(|of| of.free_most), [None; 2]);
    }

    #[test]
    fn each_reason_has_a_distinct_word() {
        let rests = Reason::NoGain { again_in: Nanoseconds(1) };
        let all = [
            Reason::Seeks,
            Reason::Fits,
            Reason::Fills,
            Reason::Exchange,
            Reason::NoRoom,
            Reason::Settled,
        ];
        let words: alloc::collections::BTreeSet<_> =
            all.into_iter().chain([rests]).map(Reason::word).collect();
        assert_eq!(words.len(), 7);
    }

    proptest! {
        #[test]
        fn scaling_rounds_down_saturates_and_takes_a_divisor_of_zero_as_one(value in any::<u64>(), by in any::<u64>(), of in any::<u64>()) {
            let found = u128::from(scale(value, by, of));
            let (product, of) = (u128::from(value) * u128::from(by), u128::from(of.max(1)));
            let exact = found * of <= product && product - found * of < of;
            prop_assert!(exact || found == u128::from(u64::MAX) && product / of > found);
        }
    }
}
