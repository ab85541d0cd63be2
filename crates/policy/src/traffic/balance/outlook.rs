//! Choice of the target under changing loads: follow the loads, or keep one placement that is best on average.
//!
//! Memory migrates slowly. Following loads that change faster is futile: memory would be in migration all the time, and
//! in the wrong place for half of it. So two strategies are compared over one phase of the present loads and one of the
//! previous: *following*, which reaches the best placement of each phase, but late, and *staying* at the one placement
//! that is best over both. The length of phases is observed; a phase that lasts longer than expected is expected to
//! last as long again.

use alloc::vec::Vec;

use super::sense::Senses;
use super::{Config, Observation};
use crate::traffic::number::real;
use crate::traffic::place::{Placement, Problem, Scene};

/// Time until a change is detected and decided on.
const DELAY_NS: f64 = 1e9;
/// Following must be better by this factor.
const FOLLOW_GAINS: f64 = 1.000_5;
/// A phase that exceeds its expected length by this factor is of another kind.
const LONGER: f64 = 1.25;

/// The target placement.
#[derive(Clone, Debug)]
pub(super) struct Goal {
    pub(super) to: Placement,
    /// The loads of others for which it is best.
    pub(super) scenes: Vec<Scene>,
    /// How long it applies, in nanoseconds.
    pub(super) lasts_ns: f64,
}

/// The target, given the present placement `at`.
pub(super) fn goal(
    problem: Problem<'_>,
    (config, senses): (&Config, &Senses),
    seen: &Observation,
    at: &Placement,
) -> Goal {
    let now = problem.scenes.to_vec();
    let age = real(senses.age_ns);
    let (best, value) = problem.best(at);
    let Some(before) = senses.before() else {
        return Goal { to: best, scenes: now, lasts_ns: age.max(real(config.horizon.0)) };
    };
    let expected = senses.expected_ns(&senses.foreign(), config.horizon.0);
    let lasts = if age > expected * LONGER { age } else { expected };
    let lasted = senses.expected_ns(&before.foreign, config.horizon.0);
    let then = [Scene { foreign: before.foreign.clone(), weight: 1.0 }];
    let others = Problem { scenes: &then, ..problem };
    let (other, other_value) = others.best(at);
    let mut scenes: Vec<Scene> = now.clone();
    let all: f64 = now.iter().map(|scene| scene.weight).sum();
    scenes.iter_mut().for_each(|scene| scene.weight *= lasts / all.max(1e-12));
    scenes.push(Scene { foreign: before.foreign.clone(), weight: lasted });
    let both = Problem { scenes: &scenes, ..problem };
    // The optimum for both may be far from here.
    let starts = [at, &best, &other].map(|start| both.best(start));
    let (middle, staying) =
        starts.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((at.clone(), 0.0));
    let way = way_ns(config, seen, (&best, &other));
    let phase = |length: f64, there: f64, elsewhere: f64| {
        let late = if length > way + DELAY_NS { way / 2.0 + DELAY_NS } else { length };
        length * there - late * (there - elsewhere)
    };
    let following = (phase(lasts, value, problem.value(&other))
        + phase(lasted, other_value, others.value(&best)))
        / (lasts + lasted);
    if following > staying * FOLLOW_GAINS {
        Goal { to: best, scenes: now, lasts_ns: lasts }
    } else {
        Goal { to: middle, scenes, lasts_ns: real(config.horizon.0).max(lasts + lasted) }
    }
}

/// The bytes that differ between two placements, and the largest share of a region that does.
pub(super) fn apart(seen: &Observation, (a, b): (&Placement, &Placement)) -> (f64, f64) {
    let mut all = (0.0, 0.0_f64);
    for ((region, a), b) in seen.regions.iter().zip(a).zip(b) {
        let share = a.iter().zip(b).map(|(a, b)| (a - b).abs()).sum::<f64>() / 2.0;
        all = (all.0 + share * real(region.bytes.0), all.1.max(share));
    }
    all
}

/// Duration of the migration between two placements.
pub(super) fn way_ns(
    config: &Config,
    seen: &Observation,
    between: (&Placement, &Placement),
) -> f64 {
    let (bytes, share) = apart(seen, between);
    let by_rate = bytes / real(config.rate.0.max(1)) * 1e9;
    let by_trust = share * 1e4 / f64::from(config.trust.0.max(1)) * real(config.period.0);
    by_rate.max(by_trust)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use nearfar_topology::{BasisPoints, Bytes};

    use crate::traffic::balance::Region;
    use crate::traffic::model::{Loops, Machine};
    use crate::traffic::place::Spot;
    use crate::traffic::testkit::{observed, two_tiers};

    const OURS: f64 = 128.0;

    /// The target after phases of these loads of others on near memory, each with a number of readings of a tenth of a
    /// second; and the best near shares for the last two.
    fn target(phases: &[(f64, usize)]) -> (Goal, [f64; 2]) {
        let machine = two_tiers(135);
        let mut senses = Senses::default();
        let seen = |others| observed(&machine, OURS, 0.5, [others, 0.0]);
        let mut last = [0.0; 2];
        for (others, readings) in phases {
            let seen = seen(*others);
            (0..*readings).for_each(|_| _ = senses.take_in(&machine, &seen));
            last = [last[1], *others];
        }
        let loops = Loops { lines: senses.own(), think: vec![0.0], reads: 1.0 };
        let spots = [Spot { by: vec![1.0], least: vec![0.0; 2], most: vec![1.0; 2] }];
        let (at, scenes) = (vec![vec![0.5, 0.5]], senses.scenes());
        let problem = Problem { machine: &machine, loops: &loops, spots: &spots, scenes: &scenes };
        let best = last.map(|others| {
            let scenes = [Scene { foreign: vec![others, 0.0], weight: 1.0 }];
            Problem { scenes: &scenes, ..problem }.best(&at).0[0][0]
        });
        (goal(problem, (&Config::default(), &senses), &seen(last[1]), &at), best)
    }

    fn near(goal: &Goal) -> f64 {
        goal.to[0][0]
    }

    #[test]
    fn without_an_earlier_phase_the_target_is_best_for_the_present_loads() {
        for others in [0.0, 222.0, 666.0] {
            let (goal, [_, best]) = target(&[(others, 50)]);
            assert!((near(&goal) - best).abs() < 0.02, "{goal:?}, best {best}");
            assert!((goal.lasts_ns / 30e9 - 1.0).abs() < 1e-9, "the horizon: {}", goal.lasts_ns);
        }
        // Loads that have lasted for longer than the horizon are expected to last as long again.
        let (goal, _) = target(&[(222.0, 401)]);
        assert!((goal.lasts_ns / 40e9 - 1.0).abs() < 1e-9, "{}", goal.lasts_ns);
    }

    #[test]
    fn phases_much_longer_than_the_migration_are_followed() {
        let (calm, busy) = ((0.0, 1200), (666.0, 1200));
        for phases in [[calm, busy, calm, busy], [busy, calm, busy, calm]] {
            let (goal, [other, best]) = target(&phases);
            assert!((best - other).abs() > 0.5, "loads with different targets: {best} and {other}");
            assert!((near(&goal) - best).abs() < 0.02, "{goal:?}, best {best}");
            assert_eq!(goal.scenes.len(), 1);
            assert!((goal.lasts_ns / 120e9 - 1.0).abs() < 0.01, "{}", goal.lasts_ns);
        }
    }

    #[test]
    fn phases_shorter_than_the_migration_have_one_target_that_is_the_same_in_each_of_them() {
        let (calm, busy) = ((0.0, 10), (666.0, 10));
        let during = |mut phases: Vec<(f64, usize)>| {
            phases.push(phases[phases.len() - 2]);
            let (goal, best) = target(&phases);
            assert_eq!(goal.scenes.len(), 2, "{goal:?}");
            (near(&goal), best)
        };
        let cycle = [calm, busy].repeat(6);
        let ((first, best), (second, _)) = (during(cycle.clone()), during(cycle[..11].to_vec()));
        assert!((first - second).abs() < 0.06, "{first} and {second}");
        assert!(best.iter().any(|best| (first - best).abs() > 0.1), "{first} between {best:?}");
    }

    #[test]
    fn a_phase_that_outlasts_its_expectation_is_expected_to_double() {
        let lasts = |readings: usize| {
            let phases = [(0.0, 400), (666.0, 400), (0.0, 400), (666.0, readings)];
            target(&phases).0.lasts_ns / 1e9
        };
        assert!((lasts(100) - 40.0).abs() < 1e-6, "{}", lasts(100));
        assert!((lasts(490) - 40.0).abs() < 1e-6, "{}", lasts(490));
        // The first five readings of a phase are needed to detect it and count as the phase before.
        assert!((lasts(605) - 60.0).abs() < 1e-6, "{}", lasts(605));
    }

    fn regions(bytes: &[u64]) -> Observation {
        let region = |bytes: &u64| Region { bytes: Bytes(*bytes), ..Region::default() };
        Observation { regions: bytes.iter().map(region).collect(), ..Observation::default() }
    }

    #[test]
    fn the_distance_of_placements_is_the_bytes_of_the_differing_shares() {
        let seen = regions(&[1_000, 3_000]);
        let one = vec![vec![0.7, 0.3], vec![1.0, 0.0]];
        let other = vec![vec![0.5, 0.5], vec![0.9, 0.1]];
        for (bytes, share) in [apart(&seen, (&one, &other)), apart(&seen, (&other, &one))] {
            assert!((bytes - 500.0).abs() < 1e-9, "0.2 of 1000 and 0.1 of 3000: {bytes}");
            assert!((share - 0.2).abs() < 1e-9, "{share}");
        }
        let (bytes, share) = apart(&seen, (&one, &one));
        assert!(bytes.abs() < 1e-9 && share.abs() < 1e-9);
    }

    #[test]
    fn a_migration_takes_as_long_as_the_rate_or_the_steps_by_trust_require() {
        let (near, even) = (vec![vec![1.0, 0.0]], vec![vec![0.5, 0.5]]);
        let config = Config { trust: BasisPoints(1_000), ..Config::default() };
        let seconds = |bytes| way_ns(&config, &regions(&[bytes]), (&near, &even)) / 1e9;
        // Five steps of a tenth, half a second each; 10 GB at 2 GB/s.
        assert!((seconds(1_000_000) - 2.5).abs() < 1e-9, "{}", seconds(1_000_000));
        assert!((seconds(20_000_000_000) - 5.0).abs() < 1e-9, "{}", seconds(20_000_000_000));
    }

    #[test]
    fn a_target_is_within_the_bounds_of_its_region() {
        let machine: Machine = two_tiers(135);
        let seen = observed(&machine, OURS, 0.5, [0.0, 0.0]);
        let mut senses = Senses::default();
        (0..20).for_each(|_| _ = senses.take_in(&machine, &seen));
        let loops = Loops { lines: senses.own(), think: vec![0.0], reads: 1.0 };
        let spots = [Spot { by: vec![1.0], least: vec![0.0, 0.4], most: vec![1.0; 2] }];
        let (at, scenes) = (vec![vec![0.5, 0.5]], senses.scenes());
        let problem = Problem { machine: &machine, loops: &loops, spots: &spots, scenes: &scenes };
        let goal = goal(problem, (&Config::default(), &senses), &seen, &at);
        assert!(
            (near(&goal) - 0.6).abs() < 1e-6,
            "near memory is faster, up to its bound: {goal:?}"
        );
    }
}
