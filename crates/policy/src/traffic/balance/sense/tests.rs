//! Load estimates on two tiers: averages, changes, fluctuating loads and the length of phases.

use nearfar_topology::{BytesPerSecond, Nanoseconds};
use proptest::prelude::*;

use super::*;
use crate::traffic::testkit::{observed, two_tiers};

/// Outstanding lines of the program.
const OURS: f64 = 128.0;
const SECOND_NS: u64 = 1_000_000_000;

/// Records `count` readings with these lines of others on near memory; returns the number of changes detected.
fn senses_after(senses: &mut Senses, count: usize, others: f64) -> usize {
    let machine = two_tiers(135);
    let seen = observed(&machine, OURS, 0.7, [others, 0.0]);
    (0..count).filter(|_| senses.take_in(&machine, &seen)).count()
}

/// An estimate of one queue with these lines of others and 10 of ours, without noise, and these earlier phases: lines,
/// seconds, whether it is the first.
fn remembering(others: f64, phases: &[(f64, u64, bool)]) -> Senses {
    let phase = |(others, seconds, first): &(f64, u64, bool)| Phase {
        foreign: vec![*others],
        length_ns: seconds * SECOND_NS,
        first: *first,
    };
    Senses {
        lines: vec![others, 10.0],
        noise: [vec![0.0; 2], vec![0.0; 2]],
        phases: phases.iter().map(phase).collect(),
        queues: 1,
        ..Senses::default()
    }
}

#[test]
fn outstanding_lines_of_the_program_and_of_others_are_inferred_from_latency_and_own_traffic() {
    for others in [222.0, 444.0, 666.0] {
        let mut senses = Senses::default();
        assert_eq!(senses_after(&mut senses, 1, others), 1, "the first reading is a change");
        let foreign = senses.foreign();
        assert!((foreign[0] / others - 1.0).abs() < 0.03, "{foreign:?} for {others}");
        assert!(foreign[1] < 5.0, "{foreign:?}");
        assert!((senses.own()[0] / OURS - 1.0).abs() < 0.01, "{:?}", senses.own());
    }
}

#[test]
fn the_fifth_deviating_reading_in_a_row_is_a_change_and_the_estimate_restarts_with_those_five() {
    let mut senses = Senses::default();
    senses_after(&mut senses, 100, 0.0);
    assert_eq!(senses_after(&mut senses, 4, 666.0), 0);
    assert!(senses.foreign()[0] < 60.0, "not averaged yet: {:?}", senses.foreign());
    assert_eq!(senses_after(&mut senses, 1, 666.0), 1);
    assert!((senses.foreign()[0] - 666.0).abs() < 20.0, "{:?}", senses.foreign());
    assert_eq!(senses.age_ns, 0);
}

#[test]
fn four_deviating_readings_followed_by_an_ordinary_one_are_a_transient() {
    let mut senses = Senses::default();
    senses_after(&mut senses, 100, 0.0);
    for _ in 0..10 {
        assert_eq!(senses_after(&mut senses, 4, 666.0) + senses_after(&mut senses, 40, 0.0), 0);
    }
    assert!(senses.before().is_none());
}

#[test]
fn loads_that_alternate_too_fast_for_a_change_become_two_scenes() {
    let mut senses = Senses::default();
    senses_after(&mut senses, 10, 333.0);
    assert_eq!(senses.scenes().len(), 1, "steady loads are one");
    for _ in 0..30 {
        let changes = senses_after(&mut senses, 2, 0.0) + senses_after(&mut senses, 2, 666.0);
        assert_eq!(changes, 0, "deviations to both sides are no change");
    }
    let scenes = senses.scenes();
    let [calm, busy] = scenes.as_slice() else { panic!("{scenes:?}") };
    assert!(calm.foreign[0] < 60.0 && (busy.foreign[0] - 666.0).abs() < 20.0, "{scenes:?}");
    assert!((calm.weight - 20.0).abs() < 1e-9 && (busy.weight - 20.0).abs() < 1e-9, "{scenes:?}");
}

#[test]
fn a_change_of_own_demand_is_tracked_but_is_not_a_load_change() {
    let machine = two_tiers(135);
    let mut senses = Senses::default();
    let seen = |ours| observed(&machine, ours, 0.7, [222.0, 0.0]);
    for _ in 0..51 {
        senses.take_in(&machine, &seen(128.0));
    }
    let changes = (0..20).filter(|_| senses.take_in(&machine, &seen(32.0))).count();
    assert_eq!((changes, senses.age_ns), (0, 7 * SECOND_NS));
    assert!((senses.own()[0] - 32.0).abs() < 1.0, "{:?}", senses.own());
}

#[test]
fn without_latency_an_estimate_does_not_begin_and_without_own_traffic_it_restarts() {
    let machine = two_tiers(135);
    let mut senses = Senses::default();
    senses_after(&mut senses, 10, 222.0);
    let (before, age) = (senses.foreign(), senses.age_ns);
    let mut seen = observed(&machine, OURS, 0.7, [666.0, 0.0]);
    seen.latency = vec![vec![None; 2]];
    let mut blind = Senses::default();
    assert!(!blind.take_in(&machine, &seen) && blind.is_blind(&machine));
    seen.own = None;
    seen.elapsed = Nanoseconds(0);
    assert!(senses.take_in(&machine, &seen), "without own traffic the estimate restarts");
    assert_eq!(senses.foreign(), []);
    senses_after(&mut senses, 10, 222.0);
    assert_eq!((senses.foreign(), senses.age_ns), (before, age));
}

#[test]
fn others_never_have_negative_lines_and_own_demand_is_never_zero() {
    let machine = two_tiers(135);
    let mut seen = observed(&machine, OURS, 0.7, [0.0, 0.0]);
    // Latencies below those of the idle machine, and more own traffic than they allow.
    seen.latency = vec![vec![Some(Nanoseconds(50)), Some(Nanoseconds(0))]];
    let mut senses = Senses::default();
    senses.take_in(&machine, &seen);
    assert_eq!(senses.foreign(), [0.0, 0.0]);
    seen.own = Some(vec![vec![BytesPerSecond(0); 2]]);
    let mut idle = Senses::default();
    idle.take_in(&machine, &seen);
    assert!(idle.own()[0] > 0.0 && senses.own()[0] > idle.own()[0]);
}

#[test]
fn a_phase_length_is_predicted_from_similar_phases_all_or_the_horizon() {
    let phases = [(0.0, 100, true), (200.0, 10, false), (210.0, 20, false), (0.0, 40, false)];
    let senses = remembering(0.0, &phases);
    let expected = |others: f64| senses.expected_ns(&[others], 30 * SECOND_NS) / 1e9;
    // The beginning of the first phase was not observed, so its length is not counted.
    for (others, seconds) in [(205.0, 15.0), (0.0, 40.0), (1_000.0, 70.0 / 3.0)] {
        assert!((expected(others) - seconds).abs() < 1e-9, "{others}: {}", expected(others));
    }
    let new = remembering(0.0, &phases[..1]);
    assert!((new.expected_ns(&[0.0], 30 * SECOND_NS) / 30e9 - 1.0).abs() < 1e-9);
}

#[test]
fn the_phase_before_is_the_longest_that_differs_by_more_than_a_third() {
    let phases = [(0.0, 100, true), (200.0, 10, false), (210.0, 20, false), (300.0, 5, false)];
    let before =
        |others| remembering(others, &phases).before().map(|phase| phase.length_ns / SECOND_NS);
    assert_eq!(before(0.0), Some(20));
    assert_eq!(before(205.0), Some(100));
    // 35 % of 300 is 105: 200 lines count as the same load, 190 do not.
    assert_eq!(remembering(200.0, &phases[3..]).before().map(|phase| phase.length_ns), None);
    assert!(remembering(190.0, &phases[3..]).before().is_some());
}

#[test]
fn eight_phases_are_remembered_and_the_oldest_is_forgotten() {
    let mut senses = Senses::default();
    senses_after(&mut senses, 20, 0.0);
    for change in 1..=12 {
        let others = if change % 2 == 1 { 666.0 } else { 0.0 };
        assert_eq!(senses_after(&mut senses, 20, others), 1);
        assert_eq!(senses.phases.len(), change.min(PHASES_MAX));
        assert_eq!(senses.phases[0].first, change <= PHASES_MAX);
    }
    // The five deviating readings belong to the phase that ends: each lasted 20 readings of a tenth of a second.
    assert!(senses.phases.iter().all(|phase| phase.length_ns == 2 * SECOND_NS));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn the_square_of_a_root_is_its_argument(square in 1e-6_f64..1e12) {
        prop_assert!((root(square) * root(square) / square - 1.0).abs() < 1e-9, "{square}: {}", root(square));
    }

    #[test]
    fn constant_loads_are_never_a_change_at_any_placement(near in 1_u32..100, others in prop::array::uniform2(0_u32..700)) {
        let machine = two_tiers(135);
        let seen = observed(&machine, OURS, f64::from(near) / 100.0, others.map(f64::from));
        let mut senses = Senses::default();
        prop_assert!(senses.take_in(&machine, &seen));
        for _ in 0..30 {
            prop_assert!(!senses.take_in(&machine, &seen));
        }
        prop_assert_eq!(senses.scenes().len(), 1);
    }
}
