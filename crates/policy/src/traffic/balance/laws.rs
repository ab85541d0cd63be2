//! Steps of the controller by hand-computed figures: directions, gains, the interval and the rate of decisions, undoing.
//!
//! Each test calls one step on observations of two tiers that do not react to it, so that figures can be checked by
//! hand. Not here: the closed loop on a machine that reacts (`tests.rs`), and that of four nodes (`four_nodes.rs`).

use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::traffic::testkit::{observed, two_tiers};

const TICK: Nanoseconds = Nanoseconds(100_000_000);

fn controller() -> Balance {
    Balance::new(Config::default(), two_tiers(135))
}

/// All memory is near, where others have 666 lines outstanding.
fn crowded() -> Observation {
    observed(&two_tiers(135), 128.0, 1.0, [666.0, 0.0])
}

/// The verdicts of `count` decisions on an unchanging observation.
fn verdicts(balance: &mut Balance, seen: &Observation, count: usize) -> Vec<Verdict> {
    let mut found = Vec::new();
    while found.len() < count {
        let verdict = balance.step(seen).verdict;
        if verdict != Verdict::Sensing {
            found.push(verdict);
        }
    }
    found
}

#[test]
fn the_gain_of_the_busy_node_that_gains_most_counts_up_to_the_average_times_the_nodes() {
    let gain = |now: &[f64], then: &[f64]| {
        let mean = then.iter().sum::<f64>() / now.iter().sum::<f64>() - 1.0;
        waited_for((now, then), mean)
    };
    let cases: [(&[f64], &[f64], f64); 5] = [
        (&[1.0, 1.0], &[1.1, 1.3], 0.3),
        // A node with less than half of the average demand does not count.
        (&[1.0, 1.0, 0.1], &[1.0, 1.2, 0.4], 0.5 / 2.1),
        // One node doubles at the cost of the other: 2.5 % on average, 5 % at most.
        (&[1.0, 1.0], &[2.0, 0.05], 0.05),
        (&[1.0], &[1.2], 0.2),
        (&[1.0, 1.0], &[1.5, 0.3], 0.0),
    ];
    for (now, then, right) in cases {
        assert!((gain(now, then) - right).abs() < 1e-9, "{now:?} {then:?}: {}", gain(now, then));
    }
}

#[test]
fn the_direction_is_that_of_the_largest_shift_of_all_regions() {
    let at = vec![vec![0.5, 0.5, 0.0], vec![0.2, 0.8, 0.0]];
    let to = vec![vec![0.7, 0.3, 0.0], vec![0.2, 0.3, 0.5]];
    assert_eq!(main_shift(&at, &to), Some((1, 1, 2)));
    assert_eq!(main_shift(&to, &at), Some((1, 2, 1)));
    assert_eq!(main_shift(&at, &at), None);
}

#[test]
fn decisions_back_off_without_gain_and_resume_after_a_load_change() {
    let machine = two_tiers(135);
    let calm = observed(&machine, 16.0, 1.0, [0.0, 0.0]);
    let mut balance = controller();
    let mut intervals = Vec::new();
    let mut since = 0;
    while intervals.len() < 6 {
        since += 1;
        let decision = balance.step(&calm);
        if decision.verdict != Verdict::Sensing {
            assert!(matches!(decision.verdict, Verdict::Settled { .. }), "{decision:?}");
            assert_eq!(balance.is_settled(), intervals.len() >= 2);
            intervals.push(since);
            since = 0;
        }
    }
    assert_eq!(intervals, [5, 10, 20, 40, 40, 40], "tenths of a second");
    let busy = observed(&machine, 16.0, 1.0, [666.0, 0.0]);
    let changed = (1..=5).position(|_| {
        balance.step(&busy);
        balance.loads_changed()
    });
    assert_eq!((changed, balance.is_settled(), balance.is_due(TICK)), (Some(4), false, true));
}

#[test]
fn a_direction_is_reversed_at_the_third_consecutive_request() {
    let mut balance = controller();
    balance.step(&crowded());
    // The last move was from far to near memory, and loads have not changed since.
    balance.direction = Some((0, 1, 0));
    let found = verdicts(&mut balance, &crowded(), 3);
    assert_eq!(found[..2], [1, 2].map(|wished| Verdict::Reversing { wished }));
    assert!(matches!(found[2], Verdict::Moving { .. }), "{found:?}");
    assert_eq!((balance.direction, balance.wished), (Some((0, 0, 1)), 0));
}

#[test]
fn a_move_in_the_same_direction_or_of_another_region_is_no_reversal() {
    for direction in [(0, 0, 1), (1, 1, 0)] {
        let mut balance = controller();
        balance.step(&crowded());
        balance.direction = Some(direction);
        let found = verdicts(&mut balance, &crowded(), 1);
        assert!(matches!(found[..], [Verdict::Moving { .. }]), "{direction:?}: {found:?}");
    }
}

#[test]
fn a_gain_that_cannot_repay_the_migration_is_not_pursued() {
    let mut seen = crowded();
    seen.room = vec![Bytes(u64::MAX); 2];
    let mut found = |bytes: u64| {
        seen.regions[0].bytes = Bytes(bytes);
        verdicts(&mut controller(), &seen, 1)[0]
    };
    // At about 0.4 lines per ns now and 0.9 then, 30 s repay 15e9 lines: twice 2 x 240e9 bytes.
    assert!(matches!(found(4_000_000_000), Verdict::Moving { .. }));
    let Verdict::NotRepaid { gain, bytes } = found(4_000_000_000_000) else {
        panic!("{:?}", found(4_000_000_000_000))
    };
    assert_eq!(gain, BasisPoints(10_000), "more than doubled, and shown as that");
    assert!((2_000_000_000_000..=4_000_000_000_000).contains(&bytes.0), "{bytes}");
}

#[test]
fn migration_takes_a_quarter_of_the_spare_bandwidth_or_more_for_a_large_gain() {
    let (balance, seen) = (controller(), observed(&two_tiers(135), 128.0, 0.5, [0.0; 2]));
    let part = |used: [f64; 2], gain| balance.rate_part(&balance.view(&seen, 1), &used, gain);
    // 4 % of near memory's 145 GB/s are free: 1.45 of 2 GB/s.
    assert!((part([0.96, 0.5], 0.0) - 0.725).abs() < 1e-6, "{}", part([0.96, 0.5], 0.0));
    assert!((part([0.999, 0.5], 0.0) - 0.1).abs() < 1e-9, "a tenth at least");
    assert!((part([0.999, 0.5], 0.05) - 0.5).abs() < 1e-9, "half for a gain of 5 %");
    assert!((part([0.999, 0.5], 3.0) - 1.0).abs() < 1e-9 && part([0.0; 2], 0.0) >= 1.0);
    let unused = observed(&two_tiers(135), 128.0, 0.0, [0.0; 2]);
    let view = balance.view(&unused, 1);
    assert!(balance.rate_part(&view, &[0.999, 0.0], 0.0) >= 1.0, "a node without own memory");
}

#[test]
fn placement_and_free_memory_bound_the_share_of_each_node() {
    let mut seen = observed(&two_tiers(135), 128.0, 0.25, [0.0; 2]);
    (seen.room, seen.regions[0].most[1]) = (vec![Bytes(1_000_000_000); 2], BasisPoints(8_000));
    // Shares that do not add up to one are scaled: 1 to 3.
    seen.regions[0].at = vec![BasisPoints(1_250), BasisPoints(3_750)];
    let balance = controller();
    let view = balance.view(&seen, 1);
    assert_eq!(view.at, [[0.25, 0.75]]);
    // 1 GB of free memory is a quarter of the region; the limit of far memory is lower than its room.
    assert_eq!(view.spots[0].most, [0.5, 0.8]);
    seen.regions[0].at = vec![BasisPoints(0); 2];
    assert_eq!(balance.view(&seen, 1).at, [[0.5, 0.5]], "unknown placement counts as even");
}

#[test]
fn undoing_a_migration_restores_the_placement_within_its_bounds() {
    let balance = controller();
    let mut seen = observed(&two_tiers(135), 128.0, 0.4, [0.0; 2]);
    let verdict = |seen: &Observation, back: &Placement| {
        let off = Off { back: back.clone(), done: BTreeSet::new() };
        let (decision, _) = balance.undo(&balance.view(seen, 500_000_000), off);
        (decision.verdict, decision.shifts.first().map(|shift| (shift.from, shift.to)))
    };
    let back = vec![vec![0.9, 0.1]];
    assert_eq!(verdict(&seen, &back), (Verdict::Undoing, Some((1, 0))));
    assert_eq!(verdict(&seen, &vec![vec![0.4, 0.6]]), (Verdict::Off, None));
    assert_eq!(verdict(&seen, &Vec::new()), (Verdict::Off, None), "other regions than before");
    seen.regions[0].most[0] = BasisPoints(4_000);
    assert_eq!(verdict(&seen, &back), (Verdict::Off, None), "no more memory may be near");
}

#[test]
fn undoing_never_reverses_its_direction_and_then_stops() {
    let balance = controller();
    let seen = |shares: [f64; 2]| {
        let mut seen = observed(&two_tiers(135), 128.0, shares[0], [0.0; 2]);
        seen.regions.push(seen.regions[0].clone());
        let at = |near: f64| [near, 1.0 - near].map(basis_points).to_vec();
        (seen.regions[0].at, seen.regions[1].at) = (at(shares[0]), at(shares[1]));
        seen
    };
    let mut off = Off { back: vec![vec![0.9, 0.1], vec![0.2, 0.8]], done: BTreeSet::new() };
    let mut step = |shares: [f64; 2]| -> Vec<(usize, usize, usize)> {
        let (decision, now) =
            balance.undo(&balance.view(&seen(shares), 500_000_000), std::mem::take(&mut off));
        off = now;
        decision.shifts.iter().map(|shift| (shift.region, shift.from, shift.to)).collect()
    };
    assert_eq!(step([0.5, 0.5]), [(0, 1, 0), (1, 0, 1)]);
    assert_eq!(step([0.92, 0.4]), [(1, 0, 1)], "the first region is back, the second is not");
    assert_eq!(step([0.88, 0.3]), [(0, 1, 0), (1, 0, 1)]);
    assert_eq!(step([0.93, 0.19]), []);
    assert_eq!(step([0.5, 0.5]), [], "it stays");
}

proptest! {
    #[test]
    fn the_widest_pair_has_the_most_to_give_and_the_most_to_receive(apart in prop::collection::vec(-1.0_f64..1.0, 0..8)) {
        match widest(&apart) {
            Some((from, to)) => {
                prop_assert!(apart[from] < 0.0 && apart[to] > 0.0);
                prop_assert!(apart.iter().all(|one| apart[from] <= *one && *one <= apart[to]));
            }
            None => prop_assert!(apart.iter().all(|one| *one > -1e-5) || apart.iter().all(|one| *one < 1e-5)),
        }
    }

    #[test]
    fn shifts_neither_create_nor_lose_accesses(
        at in prop::collection::vec(prop::collection::vec(0.0_f64..1.0, 3), 1..4),
        shifts in prop::collection::vec((any::<prop::sample::Index>(), 0_usize..3, 0_usize..3, 0_u32..10_000), 0..8),
    ) {
        let shift = |(region, from, to, share): &(prop::sample::Index, usize, usize, u32)| Shift {
            region: region.index(at.len()), from: *from, to: *to, share: BasisPoints(*share), bytes: Bytes(0),
        };
        let found = after(&at, &shifts.iter().map(shift).collect::<Vec<_>>());
        for (before, after) in at.iter().zip(&found) {
            prop_assert!((before.iter().sum::<f64>() - after.iter().sum::<f64>()).abs() < 1e-9);
        }
    }

    #[test]
    fn planned_moves_approach_the_target_and_never_overshoot(
        at in 0_u32..=10_000, to in 0_u32..=10_000, part in 0.1_f64..1.0, step in 0.125_f64..4.0,
    ) {
        let (at, to) = (f64::from(at) / 1e4, f64::from(to) / 1e4);
        let seen = observed(&two_tiers(135), 128.0, at, [0.0; 2]);
        let balance = controller();
        let view = balance.view(&seen, 500_000_000);
        let target = vec![vec![to, 1.0 - to]];
        let shifts = balance.shifts(&view, &target, (part, step));
        let now = after(&view.at, &shifts)[0][0];
        // Shares are rounded to basis points.
        prop_assert!((at.min(to) - 1e-4..=at.max(to) + 1e-4).contains(&now), "{at} to {to}: {now}");
        let allowed = (2e9 * part * 0.5 / 4e9).min(0.1 * step).min((at - to).abs());
        prop_assert!(((now - at).abs() - allowed).abs() < 2e-4, "{at} to {to}: {now}, {allowed}");
    }
}
