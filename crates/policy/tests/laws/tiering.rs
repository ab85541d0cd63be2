//! Tiering: decisions fit the free memory, goals are kept, and nothing moves without a gain.

use nearfar_policy::tiering::{Decision, Goals, Observation, Reason, Scanned, TierUsage, Tiering};
use nearfar_topology::{BasisPoints, Bytes, BytesPerSecond, Nanoseconds};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;

fn goals() -> Goals {
    Goals::with_traffic(BytesPerSecond(512 * MIB))
}

/// A scan of both sides. Sizes in MiB, shares in basis points of the memory in use.
#[derive(Clone, Copy, Debug)]
struct Scene {
    near: (u64, u64),
    far: (u64, u64),
    near_used: u64,
    far_used: u64,
    elapsed: u64,
}

impl Scene {
    fn look(self) -> Observation {
        let side = |(total, free): (u64, u64)| TierUsage {
            total: Bytes(total * MIB),
            free: Bytes(free * MIB),
        };
        let looked = |(total, free): (u64, u64), used: u64| {
            let at = (total - free) * MIB;
            Scanned { at: Bytes(at), used: Bytes(at / 10_000 * used), moved: Bytes(0) }
        };
        Observation {
            elapsed: Nanoseconds(self.elapsed),
            cpu: Nanoseconds(self.elapsed / 100),
            idle_cpu: Nanoseconds(0),
            near: side(self.near),
            far: side(self.far),
            near_scan: looked(self.near, self.near_used),
            far_scan: looked(self.far, self.far_used),
        }
    }
}

fn side() -> impl Strategy<Value = (u64, u64)> {
    (64u64..65_536, 0u64..=100).prop_map(|(total, free)| (total, total * free / 100))
}

fn any_scene() -> impl Strategy<Value = Scene> {
    (side(), side(), 0u64..=10_000, 0u64..=10_000, SECOND / 20..10 * SECOND).prop_map(
        |(near, far, near_used, far_used, elapsed)| Scene {
            near,
            far,
            near_used,
            far_used,
            elapsed,
        },
    )
}

fn scenes() -> impl Strategy<Value = Vec<Scene>> {
    prop::collection::vec(any_scene(), 1..20)
}

/// Observations of a controller by scene, and its decisions. The next observation reports each as carried out.
fn decided(goals: Goals, scenes: &[Scene]) -> Vec<(Observation, Decision)> {
    let mut tiering = Tiering::new(goals);
    let mut moved = (Bytes(0), Bytes(0));
    let mut step = |scene: &Scene| {
        let mut seen = scene.look();
        (seen.near_scan.moved, seen.far_scan.moved) = moved;
        let decision = tiering.step(&seen);
        moved = (decision.demote, decision.promote);
        (seen, decision)
    };
    scenes.iter().map(&mut step).collect()
}

/// Passes each scene to a controller.
fn tell(tiering: &mut Tiering, scenes: &[Scene]) {
    for scene in scenes {
        tiering.step(&scene.look());
    }
}

proptest! {
    #[test]
    fn what_is_promoted_finds_room_once_demotion_is_done(scenes in scenes()) {
        for (seen, decision) in decided(goals(), &scenes) {
            prop_assert!(decision.promote.0 <= seen.near.free.0 + decision.demote.0, "{decision:?}");
        }
    }

    #[test]
    fn what_is_demoted_finds_room_in_far_memory(scenes in scenes()) {
        for (seen, decision) in decided(goals(), &scenes) {
            prop_assert!(decision.demote <= seen.far.free, "{decision:?}");
        }
    }

    #[test]
    fn no_more_is_promoted_than_was_found_used_and_no_more_demoted_than_was_found_unused(scenes in scenes()) {
        for (seen, decision) in decided(goals(), &scenes) {
            let (near, far) = (seen.near_scan, seen.far_scan);
            // Shares are kept in basis points.
            prop_assert!(decision.promote.0 <= far.used.0 + far.at.0 / 10_000, "{decision:?}");
            prop_assert!(decision.demote.0 <= near.at.0 - near.used.0 + near.at.0 / 10_000, "{decision:?}");
        }
    }

    #[test]
    fn both_ways_together_keep_to_the_traffic_that_is_allowed(mib in 1u64..4_096, scenes in scenes()) {
        let goals = Goals::with_traffic(BytesPerSecond(mib * MIB));
        let (mut moved, mut time) = (0u128, 0u128);
        for (seen, decision) in decided(goals, &scenes) {
            time += u128::from(seen.elapsed.0);
            moved += u128::from(decision.promote.0 + decision.demote.0);
            // Unused traffic is kept for a second.
            let allowed = u128::from(mib * MIB) * (time + u128::from(SECOND)) / u128::from(SECOND);
            prop_assert!(moved <= allowed, "{moved} of {allowed}");
        }
    }

    #[test]
    fn nothing_is_promoted_where_far_memory_is_unused(scenes in scenes()) {
        let cold: Vec<Scene> = scenes.into_iter().map(|scene| Scene { far_used: 0, ..scene }).collect();
        for (_, decision) in decided(goals(), &cold) {
            prop_assert_eq!((decision.promote, decision.reason), (Bytes(0), Reason::Fits));
        }
    }

    #[test]
    fn nothing_is_demoted_where_near_memory_has_its_headroom_and_nothing_comes(scenes in scenes(), headroom in 0u32..5_000) {
        let goals = Goals { headroom: BasisPoints(headroom), ..goals() };
        for (seen, decision) in decided(goals, &scenes) {
            let kept = u128::from(seen.near.total.0) * u128::from(headroom) / 10_000;
            if decision.promote == Bytes(0) && u128::from(seen.near.free.0) >= kept {
                prop_assert_eq!(decision.demote, Bytes(0));
            }
        }
    }

    #[test]
    fn windows_and_periods_fit_each_other(scenes in scenes()) {
        let (least, most) = goals().window;
        for (_, decision) in decided(goals(), &scenes) {
            prop_assert!(decision.promote_window <= most && decision.promote_window.0 >= 1);
            prop_assert!(decision.idle >= decision.promote_window);
            prop_assert!(decision.period >= least && decision.period.0 <= 6 * 3_600 * SECOND);
        }
    }

    #[test]
    fn other_goals_hold_from_the_next_look_on(scenes in scenes(), least in 1u64..SECOND, more in 0u64..10 * SECOND) {
        let mut tiering = Tiering::new(goals());
        tell(&mut tiering, &scenes);
        let window = (Nanoseconds(least), Nanoseconds(least + more));
        tiering.set_goals(Goals { window, ..goals() });
        for scene in scenes {
            let found = tiering.scan().window;
            prop_assert!(found >= window.0 && found <= window.1, "{found}");
            tiering.step(&scene.look());
        }
    }

    #[test]
    fn the_same_is_decided_alike_by_a_copy(scenes in scenes(), more in scenes()) {
        let mut one = Tiering::new(goals());
        tell(&mut one, &scenes);
        let mut copy = one.clone();
        for scene in more {
            prop_assert_eq!(one.step(&scene.look()), copy.step(&scene.look()));
            prop_assert_eq!(one.scan(), copy.scan());
        }
    }

    #[test]
    fn the_hot_set_is_no_more_than_what_is_taken(scenes in scenes()) {
        let mut tiering = Tiering::new(goals());
        for scene in scenes {
            let seen = scene.look();
            tiering.step(&seen);
            let estimate = tiering.estimate(&seen);
            let taken = seen.near_scan.at.0 + seen.far_scan.at.0;
            prop_assert!(estimate.hot.0 <= taken);
            prop_assert!(estimate.near_used.0 <= 10_000 && estimate.far_used.0 <= 10_000);
            prop_assert_eq!(estimate.window, tiering.scan().window);
        }
    }

    #[test]
    fn upkeep_leaves_room_between_filling_and_emptying(scenes in scenes(), mib in 1u64..4_096) {
        let goals = Goals::with_traffic(BytesPerSecond(mib * MIB));
        let mut tiering = Tiering::new(goals);
        // A far tier without pages says nothing: the share of the last scan that sampled any stays.
        let mut far_used = 0;
        for scene in scenes {
            let seen = scene.look();
            tiering.step(&seen);
            if seen.far_scan.at.0 > 0 {
                far_used = scene.far_used;
            }
            let upkeep = tiering.background_migration(&seen);
            prop_assert!(upkeep.free_most.is_none_or(|most| most >= upkeep.free_least));
            prop_assert!(upkeep.rate.0 <= mib * MIB / 2, "each way has half of the traffic");
            prop_assert!(far_used >= 50 || upkeep.free_most.is_none());
        }
    }

    #[test]
    fn relief_is_no_more_than_what_is_short_and_what_far_memory_takes(scenes in scenes(), since in 0u64..5 * SECOND) {
        let mut tiering = Tiering::new(goals());
        for scene in scenes {
            let seen = scene.look();
            tiering.step(&seen);
            let relief = tiering.relief(seen.near, seen.far, Nanoseconds(since));
            let headroom = seen.near.total.0 / 50;
            prop_assert!(relief.0 <= headroom.saturating_sub(seen.near.free.0) && relief <= seen.far.free);
            prop_assert!(since >= SECOND || relief == Bytes(0), "a decision has a second to work");
        }
    }

    #[test]
    fn scans_use_no_more_cpu_time_than_allowed_beyond_a_minute_of_it_and_one_scan(
        scenes in scenes(), cost in SECOND / 1_000..5 * SECOND, percent in 1u64..50,
    ) {
        let cpu = BasisPoints(u32::try_from(percent * 100).unwrap());
        let mut tiering = Tiering::new(Goals { cpu, ..goals() });
        let (mut used, mut passed, mut elapsed) = (0, 0, SECOND);
        for scene in scenes.iter().cycle().take(200) {
            let seen = Observation { cpu: Nanoseconds(cost), elapsed: Nanoseconds(elapsed), ..scene.look() };
            (used, passed) = (used + cost, passed + elapsed);
            elapsed = tiering.step(&seen).period.0;
            // A scan's time is allowed once it has passed; each figure is rounded to a nanosecond.
            let allowed = (passed + 60 * SECOND) / 100 * percent;
            prop_assert!(used <= allowed + cost + 1_000, "{used} of {allowed} after {passed}");
        }
    }

    #[test]
    fn cpu_time_between_scans_leaves_them_an_eighth_of_what_is_allowed_at_least(
        scene in any_scene(), cost in SECOND / 1_000..5 * SECOND, percent in 1u64..50, idle_percent in 0u64..100,
    ) {
        let cpu = BasisPoints(u32::try_from(percent * 100).unwrap());
        let mut tiering = Tiering::new(Goals { cpu, ..goals() });
        let mut elapsed = SECOND;
        for _ in 0..200 {
            let idle_cpu = Nanoseconds(elapsed / 100 * idle_percent);
            let cpu = Nanoseconds(cost + idle_cpu.0);
            let seen = Observation { cpu, idle_cpu, elapsed: Nanoseconds(elapsed), ..scene.look() };
            elapsed = tiering.step(&seen).period.0;
            // A scan, and what may be owed for earlier ones: a minute of all that is allowed.
            let owed = cost + 60 * SECOND / 100 * percent;
            prop_assert!(elapsed <= (owed * 100 / percent * 8).max(60 * SECOND), "{elapsed}");
        }
    }

    #[test]
    fn without_far_pages_and_with_headroom_there_is_nothing_to_look_for((total, free) in side(), far in 0u64..1 << 20) {
        let tiering = Tiering::new(goals());
        let near = TierUsage { total: Bytes(total * MIB), free: Bytes(free * MIB) };
        let empty = TierUsage { total: Bytes(far * MIB), free: Bytes(far * MIB) };
        let used = TierUsage { total: Bytes((far + 1) * MIB), free: Bytes(far * MIB) };
        prop_assert_eq!(tiering.is_scan_due(near, empty), near.free.0 < near.total.0 / 50);
        prop_assert!(tiering.is_scan_due(near, used));
    }
}

/// A machine of 8 GiB near and 32 GiB far memory, near full, with these referenced shares.
fn pair(near_used: u64, far_used: u64) -> Scene {
    Scene { near: (8_192, 200), far: (32_768, 24_576), near_used, far_used, elapsed: SECOND }
}

#[test]
fn where_all_that_is_used_is_near_nothing_moves_for_as_long_as_that_lasts() {
    for (_, decision) in decided(goals(), &[pair(5_000, 0); 100]) {
        assert_eq!((decision.promote, decision.demote), (Bytes(0), Bytes(0)));
    }
}

#[test]
fn looks_get_rarer_while_nothing_is_to_be_gained_and_come_soon_when_that_ends() {
    let calm = [pair(5_000, 0); 40];
    let then = [pair(5_000, 9_000)];
    let periods: Vec<u64> = decided(goals(), &[&calm[..], &then[..]].concat())
        .iter()
        .map(|(_, d)| d.period.0)
        .collect();
    assert!(periods[39] > 4 * periods[1], "{periods:?}");
    assert!(periods[40] < periods[39], "{periods:?}");
}

#[test]
fn a_trial_that_brings_nothing_ends_in_a_rest_and_each_rest_is_longer() {
    let mut rests = Vec::new();
    let mut before = false;
    for (_, decision) in decided(goals(), &vec![pair(5_000, 5_000); 3_000]) {
        match decision.reason {
            Reason::NoGain { again_in } if !before => {
                (before, ()) = (true, rests.push(again_in.0 / SECOND));
            }
            Reason::NoGain { .. } => {}
            _ => before = false,
        }
    }
    assert!(rests.len() >= 3, "{rests:?}");
    assert!(rests.windows(2).all(|pair| pair[1] >= pair[0]) && rests[2] > rests[0], "{rests:?}");
}

#[test]
fn a_full_far_memory_takes_nothing_and_what_is_hot_there_still_fills_room() {
    let full = Scene { far: (32_768, 0), near: (8_192, 2_048), ..pair(5_000, 5_000) };
    for (_, decision) in decided(goals(), &[full; 20]) {
        assert_eq!(decision.demote, Bytes(0));
        assert!(decision.promote > Bytes(0) || decision.reason != Reason::Fills, "{decision:?}");
    }
}
