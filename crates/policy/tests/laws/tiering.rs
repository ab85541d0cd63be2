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
    fn promotion_never_exceeds_free_near_memory_plus_demotion(scenes in scenes()) {
        for (seen, decision) in decided(goals(), &scenes) {
            prop_assert!(decision.promote.0 <= seen.near.free.0 + decision.demote.0, "{decision:?}");
        }
    }

    #[test]
    fn demotion_never_exceeds_free_far_memory(scenes in scenes()) {
        for (seen, decision) in decided(goals(), &scenes) {
            prop_assert!(decision.demote <= seen.far.free, "{decision:?}");
        }
    }

    #[test]
    fn promotion_is_at_most_the_hot_far_and_demotion_the_cold_near_bytes(scenes in scenes()) {
        for (seen, decision) in decided(goals(), &scenes) {
            let (near, far) = (seen.near_scan, seen.far_scan);
            // Shares are kept in basis points.
            prop_assert!(decision.promote.0 <= far.used.0 + far.at.0 / 10_000, "{decision:?}");
            prop_assert!(decision.demote.0 <= near.at.0 - near.used.0 + near.at.0 / 10_000, "{decision:?}");
        }
    }

    #[test]
    fn promotion_and_demotion_together_stay_within_the_traffic_limit(mib in 1u64..4_096, scenes in scenes()) {
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
    fn nothing_is_promoted_if_no_far_page_is_referenced(scenes in scenes()) {
        let cold: Vec<Scene> = scenes.into_iter().map(|scene| Scene { far_used: 0, ..scene }).collect();
        for (_, decision) in decided(goals(), &cold) {
            prop_assert_eq!((decision.promote, decision.reason), (Bytes(0), Reason::Fits));
        }
    }

    #[test]
    fn nothing_is_demoted_if_headroom_is_free_and_nothing_is_promoted(scenes in scenes(), headroom in 0u32..5_000) {
        let goals = Goals { headroom: BasisPoints(headroom), ..goals() };
        for (seen, decision) in decided(goals, &scenes) {
            let kept = u128::from(seen.near.total.0) * u128::from(headroom) / 10_000;
            if decision.promote == Bytes(0) && u128::from(seen.near.free.0) >= kept {
                prop_assert_eq!(decision.demote, Bytes(0));
            }
        }
    }

    #[test]
    fn windows_and_periods_stay_within_bounds_and_consistent(scenes in scenes()) {
        let (least, most) = goals().window;
        for (_, decision) in decided(goals(), &scenes) {
            prop_assert!(decision.promote_window <= most && decision.promote_window.0 >= 1);
            prop_assert!(decision.idle >= decision.promote_window);
            prop_assert!(decision.period >= least && decision.period.0 <= 6 * 3_600 * SECOND);
        }
    }

    #[test]
    fn changed_goals_apply_from_the_next_scan(scenes in scenes(), least in 1u64..SECOND, more in 0u64..10 * SECOND) {
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
    fn a_clone_makes_the_same_decisions(scenes in scenes(), more in scenes()) {
        let mut one = Tiering::new(goals());
        tell(&mut one, &scenes);
        let mut copy = one.clone();
        for scene in more {
            prop_assert_eq!(one.step(&scene.look()), copy.step(&scene.look()));
            prop_assert_eq!(one.scan(), copy.scan());
        }
    }

    #[test]
    fn the_estimated_hot_set_is_at_most_the_scanned_memory(scenes in scenes()) {
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
    fn background_migration_keeps_its_free_memory_limits_and_rate_in_bounds(scenes in scenes(), mib in 1u64..4_096) {
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
    fn relief_is_at_most_the_missing_headroom_and_free_far_memory(scenes in scenes(), since in 0u64..5 * SECOND) {
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
    fn scans_exceed_their_cpu_limit_by_at_most_a_minute_of_it_and_one_scan(
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
    fn cpu_time_between_scans_leaves_scans_an_eighth_of_the_allowance(
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
    fn no_scan_is_due_without_far_pages_and_with_headroom((total, free) in side(), far in 0u64..1 << 20) {
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
fn nothing_is_migrated_while_no_far_page_is_referenced() {
    for (_, decision) in decided(goals(), &[pair(5_000, 0); 100]) {
        assert_eq!((decision.promote, decision.demote), (Bytes(0), Bytes(0)));
    }
}

#[test]
fn scans_back_off_without_gain_and_resume_when_hot_far_pages_appear() {
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
fn trials_without_gain_back_off_for_longer_each_time() {
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
fn nothing_is_demoted_to_full_far_memory_and_promotion_continues() {
    let full = Scene { far: (32_768, 0), near: (8_192, 2_048), ..pair(5_000, 5_000) };
    for (_, decision) in decided(goals(), &[full; 20]) {
        assert_eq!(decision.demote, Bytes(0));
        assert!(decision.promote > Bytes(0) || decision.reason != Reason::Fills, "{decision:?}");
    }
}
