//! Studies: the oracle loses to no share, a policy that moves nothing changes nothing, seeds decide, and invalid machines are
//! refused.

use nearfar_sim::Policy;
use nearfar_sim::Unable;
use nearfar_sim::live::{Settings, Still};
use nearfar_sim::published::colloid;
use nearfar_sim::studies::adversaries::{self, Adversary};
use nearfar_sim::studies::tiers::{PHASES, Phase, Row, oracle, rows, study};
use proptest::prelude::*;

use crate::machines::close;

/// The adversaries with one of these words in their description.
fn named(words: &[&str]) -> Vec<Adversary> {
    let mut all = adversaries::all();
    all.retain(|of| words.iter().any(|word| of.what.contains(word)));
    all
}

#[test]
fn every_adversary_has_a_unique_description_and_a_known_latency() {
    let all = adversaries::all();
    let mut names: Vec<_> = all.iter().map(|of| (&of.what, of.far_ns.to_bits())).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all.len());
    let is_known = |of: &Adversary| colloid::FAR_NS.iter().any(|ns| close(*ns, of.far_ns, 1e-12));
    assert!(all.iter().all(is_known));
}

#[test]
fn a_static_policy_is_unaffected_by_every_kind_of_adversary() {
    let these =
        named(&["half of 0.2 s", "every 2 s", "lost", "20 %", "refused", "two controllers"]);
    assert!(these.len() >= 20, "{}", these.len());
    for policy in [Policy::FirstTouch, Policy::Interleave] {
        let stood = adversaries::stand(policy, &these, 1, &Settings::default()).unwrap();
        assert_eq!(stood.len(), these.len());
        for (of, found) in these.iter().zip(stood) {
            assert!(close(found.of_off, 1.0, 1e-12), "{}: {found:?}", of.what);
            assert!(found.moved_gbps <= 0.0 && found.churn <= 0.0, "{}: {found:?}", of.what);
        }
    }
}

#[test]
fn a_run_against_an_adversary_is_the_same_for_a_seed() {
    let these = named(&["lost", "refused"]);
    let run = |seed| {
        let settings = Settings { seed, ..Settings::default() };
        adversaries::stand(Policy::Colloid, &these, 2, &settings).unwrap()
    };
    let found = run(3);
    assert_eq!(found, run(3));
    assert_ne!(found, run(4));
}

#[test]
fn migration_under_contention_stays_within_its_rate() {
    let these =
        named(&["half of 0.5 s", "lost, contention 3", "two controllers at once, contention 3"]);
    let settings = Settings { rate_gbps: 0.5, ..Settings::default() };
    let stood = adversaries::stand(Policy::Colloid, &these, 2, &settings).unwrap();
    assert!(stood.iter().any(|of| of.moved_gbps > 0.0), "{stood:?}");
    assert!(stood.iter().all(|of| of.moved_gbps <= 0.5 + 1e-9), "{stood:?}");
}

#[test]
fn rows_cover_each_policy_and_latency_and_none_beats_the_oracle() {
    let policies = [Policy::FirstTouch, Policy::Oracle];
    let found = rows(&policies, 1, &Settings::default()).unwrap();
    assert_eq!(found.len(), policies.len() * colloid::FAR_NS.len());
    for (at, row) in found.iter().enumerate() {
        let far_ns = colloid::FAR_NS[at / policies.len()];
        assert!(close(row.far_ns, far_ns, 1e-12) && row.policy == policies[at % policies.len()]);
        assert_eq!(row.phases.len(), PHASES.len());
        for (phase, contention) in row.phases.iter().zip(PHASES) {
            assert!(close(phase.contention, contention, 1e-12), "{phase:?}");
            assert!(phase.moved_bytes == 0 && phase.of_oracle() <= 1.0 + 1e-3, "{phase:?}");
        }
    }
}

#[test]
fn a_study_of_an_invalid_machine_is_rejected_with_the_value() {
    for far_ns in [f64::NAN, -1.0, 1e9] {
        let error = study(far_ns, 1, &Settings::default(), &mut Still).unwrap_err();
        assert!(matches!(&error, Unable::Machine(refused) if refused.what == "latency in ns"));
        assert!(error.to_string().contains("out of bounds"), "{error}");
    }
}

#[test]
fn churn_is_relative_to_throughput_and_zero_without_it() {
    let phase = |gbps, churn_gbps| Phase {
        contention: 0.0,
        gbps,
        oracle_gbps: 40.0,
        whole_gbps: gbps,
        moved_bytes: 0,
        churn_gbps,
    };
    assert!(close(phase(40.0, 10.0).churn(), 0.25, 1e-12));
    assert!(phase(0.0, 10.0).churn() <= 0.0);
}

#[test]
fn the_ratio_to_the_oracle_covers_the_whole_run() {
    let phase = |whole_gbps, gbps, oracle_gbps| Phase {
        contention: 0.0,
        gbps,
        oracle_gbps,
        whole_gbps,
        moved_bytes: 0,
        churn_gbps: 0.0,
    };
    let phases = vec![phase(20.0, 40.0, 40.0), phase(10.0, 30.0, 40.0)];
    assert!(close(phases[1].of_oracle(), 0.75, 1e-12));
    let row = Row { far_ns: 135.0, policy: Policy::Balanced, phases };
    assert!(close(row.whole_of_oracle(), 30.0 / 80.0, 1e-12));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn no_near_share_beats_the_oracle(far in 0usize..4, load in 0.0f64..3.0, near in 0.0f64..=1.0) {
        let machine = colloid::machine(colloid::FAR_NS[far]).unwrap();
        let (share, per_ns) = oracle(&machine, load);
        prop_assert!((0.0..=colloid::NEAR_MOST).contains(&share));
        let other = colloid::flow(&machine, load, near * colloid::NEAR_MOST).served[0].per_ns;
        // It tries shares in steps of a hundred and twentieth.
        prop_assert!(other <= per_ns * 1.005, "{other} at {near}, {per_ns} at {share}");
    }

    #[test]
    fn the_oracle_never_gains_by_contention(far in 0usize..4, load in 0.0f64..3.0, more in 0.0f64..2.0) {
        let machine = colloid::machine(colloid::FAR_NS[far]).unwrap();
        prop_assert!(oracle(&machine, load + more).1 <= oracle(&machine, load).1 * (1.0 + 1e-9));
    }
}
