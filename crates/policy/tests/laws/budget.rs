//! Laws of budgets: for any usage, limit and growth.

use nearfar_policy::budget::{Budget, BudgetError, Keeper, Moves, Usage};
use nearfar_topology::{Bytes, Nanoseconds};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const CAPACITY: Bytes = Bytes(1 << 40);

fn budget() -> impl Strategy<Value = Budget> {
    (16u64..100_000, 0u64..=100).prop_map(|(max, part)| {
        let max = Bytes(max * MIB);
        Budget::new(Some(max), Some(Bytes(max.0 / 100 * part)), CAPACITY).unwrap()
    })
}

fn any_usage() -> impl Strategy<Value = Usage> {
    (0u64..200_000, 0u64..200_000)
        .prop_map(|(near, far)| Usage { near: Bytes(near * MIB), far: Bytes(far * MIB) })
}

proptest! {
    #[test]
    fn a_step_moves_at_most_the_usage_and_in_one_direction_only(
        budget in budget(), usages in prop::collection::vec((any_usage(), 1u64..10_000_000_000), 1..20),
    ) {
        let mut keeper = Keeper::new(budget);
        for (usage, elapsed) in usages {
            let Moves { demote, promote } = keeper.step(usage, Nanoseconds(elapsed));
            prop_assert!(demote <= usage.near && promote <= usage.far);
            prop_assert!(demote.0 == 0 || promote.0 == 0);
            keeper.moved(demote, promote);
        }
    }

    #[test]
    fn after_a_step_usage_is_below_the_limit_and_demotion_stops_within_two_per_cent_of_it(
        budget in budget(), usage in any_usage(), elapsed in 1u64..10_000_000_000,
    ) {
        let mut keeper = Keeper::new(budget);
        let moves = keeper.step(usage, Nanoseconds(elapsed));
        let after = usage.near.0 - moves.demote.0 + moves.promote.0;
        let max = budget.max().unwrap().0;
        prop_assert!(after <= max.max(budget.min().0));
        prop_assert!(moves.demote.0 == 0 || after >= max - max / 50 - 1);
        prop_assert!(moves.demote.0 == 0 || after >= budget.min().0.min(max - max / 200));
    }

    #[test]
    fn a_completed_migration_needs_no_further_moves(budget in budget(), usage in any_usage()) {
        let mut keeper = Keeper::new(budget);
        let tick = Nanoseconds(100_000_000);
        let moves = keeper.step(usage, tick);
        keeper.moved(moves.demote, moves.promote);
        let after = Usage {
            near: Bytes(usage.near.0 - moves.demote.0 + moves.promote.0),
            far: Bytes(usage.far.0 + moves.demote.0 - moves.promote.0),
        };
        prop_assert_eq!(keeper.step(after, tick), Moves::default());
    }

    #[test]
    fn load_that_grows_by_half_a_per_cent_a_step_never_passes_the_limit(
        budget in budget(), steps in prop::collection::vec(0u64..=100, 1..60),
    ) {
        let max = budget.max().unwrap().0;
        let (mut keeper, mut near) = (Keeper::new(budget), max / 2);
        for part in steps {
            near += max / 200 * part / 100;
            prop_assert!(near <= max.max(budget.min().0 + max / 100), "{near} of {max}");
            let moves = keeper.step(Usage { near: Bytes(near), far: Bytes(0) }, Nanoseconds(100_000_000));
            near -= moves.demote.0;
            keeper.moved(moves.demote, moves.promote);
        }
    }

    #[test]
    fn a_budget_is_accepted_exactly_within_its_bounds(max in 0u64..64, min in 0u64..64, capacity in 0u64..64) {
        let [max, min, capacity] = [max, min, capacity].map(|mib| Bytes(mib * MIB));
        let found = Budget::new(Some(max), Some(min), capacity);
        let expected = if max < Budget::MAX_LEAST {
            Err(BudgetError::TooSmall { max })
        } else if min > max {
            Err(BudgetError::MinAboveMax { min, max })
        } else if max > capacity {
            Err(BudgetError::AboveCapacity { limit: max, capacity })
        } else {
            Ok((Some(max), min))
        };
        prop_assert_eq!(found.map(|budget| (budget.max(), budget.min())), expected);
    }

    #[test]
    fn a_minimum_alone_is_bounded_by_the_capacity_and_never_demotes(
        min in 1u64..4096, capacity in 1u64..4096, usages in prop::collection::vec(any_usage(), 1..10),
    ) {
        let [min, capacity] = [min, capacity].map(|mib| Bytes(mib * MIB));
        let Ok(budget) = Budget::new(None, Some(min), capacity) else {
            prop_assert!(min > capacity);
            return Ok(());
        };
        prop_assert!(min <= capacity && budget.max().is_none());
        let mut keeper = Keeper::new(budget);
        for usage in usages {
            let Moves { demote, promote } = keeper.step(usage, Nanoseconds(100_000_000));
            prop_assert_eq!(demote, Bytes(0));
            let missing = min.0.saturating_sub(usage.near.0);
            prop_assert_eq!(promote.0, missing.min(usage.far.0));
        }
    }

    #[test]
    fn a_lower_maximum_never_demotes_less(budget in budget(), usage in any_usage(), part in 1u64..=100) {
        let max = budget.max().unwrap().0;
        let lower = (max / 100 * part).max(Budget::MAX_LEAST.0);
        let lower = Budget::new(Some(Bytes(lower)), None, CAPACITY).unwrap();
        let high = Budget::new(budget.max(), None, CAPACITY).unwrap();
        let demoted = |budget| Keeper::new(budget).step(usage, Nanoseconds(100_000_000)).demote;
        prop_assert!(demoted(lower) >= demoted(high));
    }

    #[test]
    fn a_changed_budget_is_kept_from_the_next_step_on(budget in budget(), other in budget(), usage in any_usage()) {
        let mut changed = Keeper::new(budget);
        changed.set_budget(other);
        prop_assert_eq!(changed.budget(), other);
        let tick = Nanoseconds(100_000_000);
        prop_assert_eq!(changed.step(usage, tick), Keeper::new(other).step(usage, tick));
    }
}
