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
