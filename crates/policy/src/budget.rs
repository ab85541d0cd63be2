//! Budgets of near memory: how much a group of processes may have at most, and is to have at least.
//!
//! A budget is enforced after allocation: pages are allocated by the programs' own policies, mostly near, and a keeper
//! demotes the excess. It aims one in a hundred below the limit, and further below by the growth that it expects
//! within a period, at most another one in a hundred. So a group stays within 2 % of its limit while it allocates no
//! more than 2 % of it between two steps. If far more than that is unused, pages are promoted, up to a mark below
//! the one at which demotion begins: growth and demotion between the two marks cannot turn into thrashing.
//!
//! `min` is a floor of demotion by this keeper and a claim to promotion; it reserves no memory: others that fill near
//! memory are not moved for it.
//!
//! Not here: the choice of pages, and pages that can't be migrated.

use nearfar_topology::{Bytes, Nanoseconds};

use crate::tiering::scale;

/// Distance of the aim from the limit, and maximum reserve for growth, as parts of the limit.
const AIM_PART: u64 = 100;
/// Demotion begins this much above the aim, promotion this much below, as parts of the limit.
const BAND_PART: u64 = 200;
/// A huge page: the most by which a migration may exceed the bytes wanted.
const HUGE: u64 = 2 << 20;
const SECOND_NS: u64 = 1_000_000_000;

/// A budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// Maximum near memory; `None` for no limit.
    max: Option<Bytes>,
    /// Near memory up to which pages are promoted if there are far ones.
    min: Bytes,
}

/// Reasons why a budget is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetError {
    /// Neither limit is given.
    Empty,
    /// The minimum is above the maximum.
    MinAboveMax {
        /// The minimum.
        min: Bytes,
        /// The maximum.
        max: Bytes,
    },
    /// Maxima below [`Budget::MAX_LEAST`] cannot be kept within 2 %: pages may be huge.
    TooSmall {
        /// The maximum.
        max: Bytes,
    },
    /// A limit above all near memory limits nothing.
    AboveCapacity {
        /// The limit.
        limit: Bytes,
        /// All near memory.
        capacity: Bytes,
    },
}

impl core::fmt::Display for BudgetError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Empty => write!(f, "a budget needs near-max, near-min, or both"),
            Self::MinAboveMax { min, max } => {
                write!(f, "near-min {min} is above near-max {max}; lower it, or raise near-max")
            }
            Self::TooSmall { max } => write!(
                f,
                "near-max {max} is too small to be kept; the smallest is {}",
                Budget::MAX_LEAST
            ),
            Self::AboveCapacity { limit, capacity } => write!(
                f,
                "{limit} is more than all near memory of this machine, {capacity}; choose a smaller budget"
            ),
        }
    }
}

impl core::error::Error for BudgetError {}

impl Budget {
    /// The smallest maximum.
    pub const MAX_LEAST: Bytes = Bytes(16 << 20);

    /// A budget on a machine with `capacity` bytes of near memory.
    ///
    /// # Errors
    /// [`BudgetError`].
    pub fn new(
        max: Option<Bytes>,
        min: Option<Bytes>,
        capacity: Bytes,
    ) -> Result<Self, BudgetError> {
        if max.is_none() && min.is_none() {
            return Err(BudgetError::Empty);
        }
        if let Some(max) = max.filter(|max| *max < Self::MAX_LEAST) {
            return Err(BudgetError::TooSmall { max });
        }
        if let (Some(max), Some(min)) = (max, min)
            && min > max
        {
            return Err(BudgetError::MinAboveMax { min, max });
        }
        match max.into_iter().chain(min).find(|limit| *limit > capacity) {
            Some(limit) => Err(BudgetError::AboveCapacity { limit, capacity }),
            None => Ok(Self { max, min: min.unwrap_or_default() }),
        }
    }

    /// The maximum.
    #[must_use]
    pub const fn max(&self) -> Option<Bytes> {
        self.max
    }

    /// The minimum; 0 if there is none.
    #[must_use]
    pub const fn min(&self) -> Bytes {
        self.min
    }
}

/// Memory of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// In near memory.
    pub near: Bytes,
    /// In far memory.
    pub far: Bytes,
}

/// Bytes to migrate now; at most one of both is above zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    /// From near to far memory.
    pub demote: Bytes,
    /// From far to near memory.
    pub promote: Bytes,
}

/// Keeps the budget of one group.
#[derive(Clone, Debug)]
pub struct Keeper {
    budget: Budget,
    /// Near memory at the last step, after the migration that it caused.
    before: Option<Bytes>,
    /// Growth that was seen, in bytes per second; decays by an eighth a step.
    growth: u64,
}

impl Keeper {
    /// A keeper before its first step.
    #[must_use]
    pub const fn new(budget: Budget) -> Self {
        Self { budget, before: None, growth: 0 }
    }

    /// The budget.
    #[must_use]
    pub const fn budget(&self) -> Budget {
        self.budget
    }

    /// Replaces the budget; the observed growth is kept.
    pub const fn set_budget(&mut self, budget: Budget) {
        self.budget = budget;
    }

    /// Decides the migration for this usage, `elapsed` after the last step; the next one is due in as much.
    pub fn step(&mut self, usage: Usage, elapsed: Nanoseconds) -> Moves {
        self.learn(usage.near.0, elapsed.0);
        let min = self.budget.min.0;
        let Some(max) = self.budget.max else {
            let promote = min.saturating_sub(usage.near.0).min(usage.far.0);
            return Moves { promote: Bytes(promote), ..Moves::default() };
        };
        let expected = scale(self.growth, elapsed.0, SECOND_NS);
        let reserve = expected.min(max.0 / AIM_PART);
        let band = max.0 / BAND_PART;
        let aim = (max.0 - max.0 / AIM_PART - reserve).max(min.min(max.0 - band));
        let over = usage.near.0.saturating_sub(aim);
        let under = aim.saturating_sub(band).saturating_sub(usage.near.0);
        if over > band {
            return Moves { demote: Bytes(over), ..Moves::default() };
        }
        // What is expected to be allocated soon is not taken up before.
        let promote = under.saturating_sub(band.saturating_add(HUGE)).saturating_sub(expected);
        Moves { promote: Bytes(promote.min(usage.far.0)), ..Moves::default() }
    }

    /// Records the bytes that migration since the last step has moved.
    pub const fn moved(&mut self, demoted: Bytes, promoted: Bytes) {
        if let Some(before) = self.before {
            let near = before.0.saturating_sub(demoted.0).saturating_add(promoted.0);
            self.before = Some(Bytes(near));
        }
    }

    fn learn(&mut self, near: u64, elapsed: u64) {
        let grown = self.before.map_or(0, |before| near.saturating_sub(before.0));
        let rate = scale(grown, SECOND_NS, elapsed);
        self.growth = rate.max(self.growth - self.growth.div_ceil(8));
        self.before = Some(Bytes(near));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString as _;

    const MIB: u64 = 1 << 20;
    const TICK: Nanoseconds = Nanoseconds(SECOND_NS / 10);
    const CAPACITY: Bytes = Bytes(4096 * MIB);

    fn keeper(max: u64, min: u64) -> Keeper {
        let budget = Budget::new(Some(Bytes(max * MIB)), Some(Bytes(min * MIB)), CAPACITY);
        Keeper::new(budget.unwrap())
    }

    fn usage(near: u64, far: u64) -> Usage {
        Usage { near: Bytes(near * MIB), far: Bytes(far * MIB) }
    }

    #[test]
    fn usage_above_the_maximum_is_demoted_to_just_below_it() {
        let mut keeper = keeper(1000, 0);
        let moves = keeper.step(usage(1500, 0), TICK);
        assert_eq!(moves, Moves { demote: Bytes(510 * MIB), promote: Bytes(0) });
        keeper.moved(moves.demote, Bytes(0));
        assert_eq!(keeper.step(usage(990, 510), TICK), Moves::default(), "and stays there");
    }

    #[test]
    fn unused_budget_is_filled_from_far_memory() {
        let mut keeper = keeper(1000, 0);
        let moves = keeper.step(usage(500, 800), TICK);
        assert_eq!(moves, Moves { promote: Bytes(478 * MIB), demote: Bytes(0) });
        keeper.moved(Bytes(0), moves.promote);
        assert_eq!(keeper.step(usage(978, 322), TICK), Moves::default(), "and that is enough");
    }

    #[test]
    fn demotion_anticipates_growth_and_keeps_usage_within_the_maximum() {
        let mut keeper = keeper(1000, 0);
        let mut near = 980;
        let mut most = 0;
        for _ in 0..100 {
            near += 8;
            most = most.max(near);
            let moves = keeper.step(usage(near, 5000), TICK);
            near -= moves.demote.0 / MIB;
            keeper.moved(moves.demote, moves.promote);
            assert_eq!(moves.promote, Bytes(0));
        }
        assert!(most <= 1000, "{most}");
    }

    #[test]
    fn promotion_reserves_expected_growth_which_decays_by_an_eighth_a_step() {
        let mut keeper = keeper(1000, 0);
        let mut promotes = |near: u64, far| {
            let moves = keeper.step(Usage { near: Bytes(near), far: Bytes(far) }, TICK);
            keeper.moved(moves.demote, moves.promote);
            moves.promote.0
        };
        // Nothing is in far memory yet; then 80 MiB more are allocated in a tick.
        assert_eq!(promotes(500 * MIB, 0), 0);
        // Of the aim of 980 MiB 400 are left: less two bands of 5, a huge page, and the 80 expected.
        let first = promotes(580 * MIB, 9000 * MIB);
        assert_eq!(first, 308 * MIB);
        // 92 left, less 12, and 70 expected.
        let second = promotes(580 * MIB + first, 8000 * MIB);
        assert_eq!(second / MIB, 10);
        // 82 left, less 12, and 61.25 expected.
        let third = promotes(580 * MIB + first + second, 8000 * MIB);
        assert_eq!(third * 4 / MIB, 35);
    }

    #[test]
    fn a_minimum_near_the_maximum_raises_the_demotion_target() {
        for min in [995, 1000] {
            let demotes = |near| keeper(1000, min).step(usage(near, 0), TICK).demote.0 / MIB;
            assert_eq!([demotes(1000), demotes(1001), demotes(1100)], [0, 6, 105], "{min}");
        }
        let demotes = |near| keeper(1000, 900).step(usage(near, 0), TICK).demote.0 / MIB;
        assert_eq!([demotes(995), demotes(996)], [0, 6], "a minimum below the aim does not matter");
    }

    #[test]
    fn a_minimum_alone_promotes_and_demotes_nothing() {
        let budget = Budget::new(None, Some(Bytes(300 * MIB)), CAPACITY).unwrap();
        let mut keeper = Keeper::new(budget);
        assert_eq!(keeper.step(usage(100, 150), TICK).promote, Bytes(150 * MIB));
        assert_eq!(keeper.step(usage(3000, 150), TICK), Moves::default());
    }

    #[test]
    fn invalid_budgets_are_rejected_with_the_reason() {
        let budget = |max: Option<u64>, min: Option<u64>| {
            let mib = |limit: u64| Bytes(limit * MIB);
            Budget::new(max.map(mib), min.map(mib), CAPACITY).unwrap_err().to_string()
        };
        assert!(budget(None, None).contains("needs near-max"));
        assert!(
            budget(Some(100), Some(200)).contains("near-min 200 MiB is above near-max 100 MiB")
        );
        assert!(budget(Some(5000), None).contains("more than all near memory"));
        assert!(budget(Some(1), None).contains("the smallest is 16 MiB"));
    }
}
