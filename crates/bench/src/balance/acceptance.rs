//! Acceptance thresholds, as ratios of throughput within one run.
//!
//! Both policies must reach them, with balancing's default sensors; only `balanced` where memory of nodes without CPUs
//! is to be used.

use serde::{Deserialize, Serialize};

use super::results::{Found, Tried};
use super::rows::{Kind, Program};

/// Least ratio to the best static placement.
const OF_THE_BEST: f64 = 0.97;
/// Least ratio to the default placement (first touch).
const OF_DEFAULT: f64 = 0.98;
/// The same where there is nothing to decide.
const UNDECIDED: f64 = 0.99;
/// Least ratio to filling near memory first, where that is saturated; where it is not, [`OF_DEFAULT`] applies.
const CONTENDED: f64 = 1.2;
const UNCONTENDED: f64 = 0.98;
/// The geometric mean over programs must exceed each peer's by this ratio.
const AHEAD: f64 = 1.0;
/// The peers.
const PEERS: [Kind; 3] = [Kind::FirstTouch, Kind::Interleave, Kind::NumaBalancing];

/// The kind of a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum What {
    /// To the best static row of a program.
    OfTheBest,
    /// To first touch of a program.
    OfDefault,
    /// To the program without balancing, where there is nothing to decide.
    Undecided,
    /// To first touch, which fills near memory first.
    NearFirst,
    /// Geometric mean over programs, to a peer.
    Ahead,
}

/// A ratio and its threshold.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Check {
    /// The kind of ratio.
    pub(crate) what: What,
    /// The policy.
    pub(crate) policy: Kind,
    /// The program; `None` for means over all.
    pub(crate) program: Option<Program>,
    /// The row it is relative to.
    pub(crate) to: Option<Kind>,
    /// The measured ratio; `None` if a row did not run.
    pub(crate) ratio: Option<f64>,
    /// The threshold; means must exceed it.
    pub(crate) at_least: f64,
    /// Whether it was reached.
    pub(crate) reached: bool,
}

/// All checks of the requested rows.
pub(crate) fn checks(found: &Found) -> Vec<Check> {
    let has =
        |kind: Kind| move |tried: &&Tried| tried.rows.iter().any(|ran| ran.row == kind.into());
    let mut all = Vec::new();
    for policy in [Kind::Carrefour, Kind::Balanced] {
        let tried: Vec<&Tried> = found.programs.iter().filter(has(policy)).collect();
        all.extend(tried.iter().flat_map(|tried| of_program(tried, policy)));
        let decided: Vec<&Tried> =
            tried.into_iter().filter(|tried| tried.program.is_one_of_many()).collect();
        for peer in PEERS {
            // A mean needs several programs.
            if decided.len() > 1 && decided.iter().any(|tried| has(peer)(tried)) {
                all.push(mean(&decided, policy, peer));
            }
        }
    }
    all
}

fn of_program(tried: &Tried, policy: Kind) -> Vec<Check> {
    let rate = tried.rate(policy);
    let check = |what, to: Option<(Kind, f64)>, at_least: f64| {
        let ratio = rate.zip(to).map(|(rate, (_, to))| rate / to);
        Check {
            what,
            policy,
            program: Some(tried.program),
            to: to.map(|(kind, _)| kind),
            ratio,
            at_least,
            reached: ratio.is_some_and(|ratio| ratio >= at_least),
        }
    };
    let default = tried.rate(Kind::FirstTouch).map(|rate| (Kind::FirstTouch, rate));
    let best = tried.best_static().map(|(row, rate)| (row.kind, rate));
    let best = || check(What::OfTheBest, best, OF_THE_BEST);
    match tried.program {
        Program::Settled => vec![check(What::Undecided, default, UNDECIDED)],
        Program::Contended | Program::Uncontended if policy != Kind::Balanced => Vec::new(),
        Program::Contended => vec![best(), check(What::NearFirst, default, CONTENDED)],
        Program::Uncontended => vec![best(), check(What::NearFirst, default, UNCONTENDED)],
        _ => vec![best(), check(What::OfDefault, default, OF_DEFAULT)],
    }
}

#[expect(clippy::cast_precision_loss, reason = "a handful of programs")]
fn mean(decided: &[&Tried], policy: Kind, peer: Kind) -> Check {
    let ratios: Option<Vec<f64>> =
        decided.iter().map(|tried| Some(tried.rate(policy)? / tried.rate(peer)?)).collect();
    let mean = |ratios: Vec<f64>| {
        let logarithms: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
        (logarithms / ratios.len() as f64).exp()
    };
    let ratio = ratios.map(mean);
    Check {
        what: What::Ahead,
        policy,
        program: None,
        to: Some(peer),
        ratio,
        at_least: AHEAD,
        reached: ratio.is_some_and(|ratio| ratio > AHEAD),
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::Shape;
    use super::super::sample::{found, found_of, set};
    use super::*;

    fn missed(found: &Found) -> Vec<(What, Kind, Option<Program>, Option<Kind>)> {
        let missed = checks(found).into_iter().filter(|check| !check.reached);
        missed.map(|of| (of.what, of.policy, of.program, of.to)).collect()
    }

    #[test]
    fn both_policies_are_checked_against_every_threshold() {
        let found = found();
        // Five programs with two checks, one with one, three means.
        assert_eq!(checks(&found).len(), 2 * (5 * 2 + 1 + 3));
        assert_eq!(missed(&found), []);
    }

    #[test]
    fn each_threshold_can_fail() {
        let jacobi = Some(Program::Jacobi);
        let mut best = found();
        set(&mut best, Program::Jacobi, Kind::Local, 203.0);
        assert_eq!(
            missed(&best),
            [Kind::Carrefour, Kind::Balanced].map(|policy| (
                What::OfTheBest,
                policy,
                jacobi,
                Some(Kind::Local)
            ))
        );
        let mut worse = found();
        let statics = |kind: &Kind| kind.is_static() && kind.fits(Shape::FourNodes);
        for kind in Kind::ALL.into_iter().filter(statics) {
            set(&mut worse, Program::Kmeans, kind, 100.0);
        }
        set(&mut worse, Program::Kmeans, Kind::Balanced, 97.5);
        let default =
            (What::OfDefault, Kind::Balanced, Some(Program::Kmeans), Some(Kind::FirstTouch));
        assert_eq!(missed(&worse), [default]);
        let mut costs = found();
        set(&mut costs, Program::Settled, Kind::Carrefour, 98.9);
        let undecided =
            (What::Undecided, Kind::Carrefour, Some(Program::Settled), Some(Kind::FirstTouch));
        assert_eq!(missed(&costs), [undecided]);
        let mut behind = found();
        for program in Program::ALL.into_iter().filter(|program| program.is_one_of_many()) {
            set(&mut behind, program, Kind::NumaBalancing, 205.0);
        }
        assert_eq!(
            missed(&behind),
            [Kind::Carrefour, Kind::Balanced].map(|policy| (
                What::Ahead,
                policy,
                None,
                Some(Kind::NumaBalancing)
            ))
        );
    }

    #[test]
    fn a_missing_row_fails_every_check_that_needs_it() {
        let mut found = found();
        let rows = &mut found.programs[0].rows;
        rows.iter_mut().find(|ran| ran.row.kind == Kind::Balanced).unwrap().runs.clear();
        let missed = missed(&found);
        assert_eq!(missed.len(), 2 + 3, "{missed:?}");
        assert!(missed.iter().all(|of| of.1 == Kind::Balanced));
    }

    #[test]
    fn contended_near_memory_must_gain_and_uncontended_must_not_lose() {
        let mut found = found_of(&[Program::Contended, Program::Uncontended]);
        assert_eq!(checks(&found).len(), 2 * 2, "of one policy");
        assert_eq!(missed(&found), []);
        set(&mut found, Program::Contended, Kind::FirstTouch, 163.0);
        set(&mut found, Program::Uncontended, Kind::FirstTouch, 200.0);
        let near_first =
            |program| (What::NearFirst, Kind::Balanced, Some(program), Some(Kind::FirstTouch));
        assert_eq!(
            missed(&found),
            [near_first(Program::Contended), near_first(Program::Uncontended)]
        );
    }

    #[test]
    fn one_program_has_no_geometric_mean() {
        let mut found = found();
        found.programs.truncate(1);
        assert_eq!(checks(&found).len(), 2 * 2);
    }
}
