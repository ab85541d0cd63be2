//! Adaptive interleaving: parts move one pace at a time, away from busy and full nodes, and come to rest.

use nearfar_policy::interleave::{FULL, Interleave, PARTS, Place, Rule, SATURATED, Seen, next};
use nearfar_topology::{BasisPoints, BytesPerSecond, Nanoseconds};
use proptest::prelude::*;

const RULES: [Rule; 3] = [Rule::Saturation, Rule::Order, Rule::Weighted];
/// Steps in which any change that is to come has come.
const SETTLES: usize = 400;

fn any_rule() -> impl Strategy<Value = Rule> {
    prop::sample::select(RULES.to_vec())
}

/// Nodes nearest first: each slower and with less bandwidth than the one before.
fn places(nodes: usize) -> Vec<Place> {
    let place = |at: u64| Place {
        idle: Nanoseconds(100 + 60 * at),
        bandwidth: Some(BytesPerSecond((200 - 20 * at) * 1_000_000_000)),
    };
    (0..).take(nodes).map(place).collect()
}

/// Loads in per cent of idle, with half of memory free and nothing placed.
fn seen(places: &[Place], percents: &[u64]) -> Vec<Seen> {
    let one = |(place, percent): (&Place, &u64)| Seen {
        load: Nanoseconds(place.idle.0 * percent / 100),
        free: BasisPoints(5_000),
        placed: 0,
    };
    places.iter().zip(percents).map(one).collect()
}

fn any_loads() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(100u64..600, 1..5)
}

proptest! {
    #[test]
    fn an_idle_machine_keeps_all_weight_on_near_memory(rule in any_rule(), pace in 1u8..=PARTS, nodes in 1usize..5, steps in 1usize..50) {
        let places = places(nodes);
        let mut one = Interleave::new(rule, pace, places.clone());
        (0..steps).for_each(|_| one.step(&seen(&places, &vec![100; nodes])));
        prop_assert_eq!(one.weights()[0], PARTS);
    }

    #[test]
    fn a_step_moves_at_most_the_pace_between_two_nodes(rule in any_rule(), pace in 1u8..=PARTS, looks in prop::collection::vec(prop::collection::vec(100u64..600, 4), 1..40)) {
        let places = places(4);
        let mut one = Interleave::new(rule, pace, places.clone());
        for look in looks {
            let before = one.weights().to_vec();
            one.step(&seen(&places, &look));
            let changes: Vec<i16> =
                before.iter().zip(one.weights()).map(|(was, is)| i16::from(*is) - i16::from(*was)).collect();
            let gained: i16 = changes.iter().filter(|change| **change > 0).sum();
            prop_assert!(gained <= i16::from(pace), "{changes:?}");
            prop_assert_eq!(changes.iter().sum::<i16>(), 0);
            prop_assert!(changes.iter().filter(|change| **change != 0).count() <= 2);
        }
    }

    #[test]
    fn a_saturated_node_never_gains_weight(rule in any_rule(), loads in any_loads(), steps in 1usize..60) {
        let places = places(loads.len());
        let mut one = Interleave::new(rule, 1, places.clone());
        for _ in 0..steps {
            let before = one.weights().to_vec();
            one.step(&seen(&places, &loads));
            for (at, percent) in loads.iter().enumerate() {
                prop_assert!(*percent < SATURATED || one.weights()[at] <= before[at]);
            }
        }
    }

    #[test]
    fn a_full_node_gets_no_weight_and_loses_its_own_to_other_nodes(rule in any_rule(), loads in any_loads(), full in any::<prop::sample::Index>()) {
        let places = places(loads.len());
        let full = full.index(loads.len());
        let mut look = seen(&places, &loads);
        look[full].free = BasisPoints(FULL.0 - 1);
        let mut one = Interleave::new(rule, 1, places);
        for _ in 0..SETTLES {
            let before = one.weights()[full];
            one.step(&look);
            prop_assert!(one.weights()[full] <= before);
        }
        prop_assert!(loads.len() == 1 || one.weights()[full] == 0);
    }

    #[test]
    fn weights_do_not_change_if_all_nodes_are_full(rule in any_rule(), loads in any_loads(), steps in 1usize..40) {
        let places = places(loads.len());
        let mut look = seen(&places, &loads);
        look.iter_mut().for_each(|seen| seen.free = BasisPoints(0));
        let mut one = Interleave::new(rule, 4, places);
        (0..steps).for_each(|_| one.step(&look));
        prop_assert_eq!(one.weights()[0], PARTS);
    }

    #[test]
    fn weights_converge_under_a_constant_load(rule in any_rule(), loads in any_loads(), pace in 1u8..=PARTS) {
        let places = places(loads.len());
        let look = seen(&places, &loads);
        let mut one = Interleave::new(rule, pace, places);
        (0..SETTLES).for_each(|_| one.step(&look));
        let rest = one.weights().to_vec();
        for _ in 0..20 {
            one.step(&look);
            prop_assert_eq!(one.weights(), &rest);
        }
    }

    #[test]
    fn a_single_node_has_all_weight_at_any_load(rule in any_rule(), loads in prop::collection::vec((any::<u64>(), 0u32..=10_000), 1..20)) {
        let mut one = Interleave::new(rule, 1, places(1));
        for (load, share) in loads {
            one.step(&[Seen { load: Nanoseconds(load), free: BasisPoints(share), placed: load }]);
            prop_assert_eq!(one.weights(), &[PARTS]);
        }
    }

    #[test]
    fn saturation_fills_the_nearest_node_that_has_bandwidth_left(loads in any_loads()) {
        let places = places(loads.len());
        let look = seen(&places, &loads);
        let mut one = Interleave::new(Rule::Saturation, 1, places);
        (0..SETTLES).for_each(|_| one.step(&look));
        if let Some(nearest) = loads.iter().position(|percent| *percent < SATURATED) {
            prop_assert_eq!(one.weights()[nearest], PARTS, "{:?}", one.weights());
        }
    }

    #[test]
    fn new_memory_stays_within_one_piece_a_node_of_its_weights(parts in prop::collection::vec(0u8..=16, 1..5), pieces in 1u64..400) {
        let sum: u64 = parts.iter().map(|part| u64::from(*part)).sum();
        prop_assume!(sum > 0);
        let mut placed = vec![0u64; parts.len()];
        for _ in 0..pieces {
            let to = next(&parts, &placed);
            prop_assert!(parts[to] > 0, "a node without weight gets nothing");
            placed[to] += 1 << 21;
        }
        for (part, placed) in parts.iter().zip(&placed) {
            let fair = pieces as f64 * f64::from(*part) / sum as f64;
            prop_assert!(((placed >> 21) as f64 - fair).abs() <= parts.len() as f64, "{parts:?} {placed}");
        }
    }

    #[test]
    fn a_node_above_its_weight_gets_nothing_until_the_others_catch_up(parts in prop::collection::vec(1u8..=16, 2..5), ahead in any::<prop::sample::Index>()) {
        let ahead = ahead.index(parts.len());
        let mut placed = vec![0u64; parts.len()];
        placed[ahead] = 100 * u64::from(parts[ahead]);
        prop_assert_ne!(next(&parts, &placed), ahead);
    }
}

#[test]
fn a_node_with_unknown_idle_latency_is_never_saturated() {
    for rule in [Rule::Saturation, Rule::Order] {
        let mut unknown = places(2);
        unknown[0].idle = Nanoseconds(0);
        let mut one = Interleave::new(rule, 1, unknown.clone());
        let look = [
            Seen { load: Nanoseconds(100_000), free: BasisPoints(5_000), placed: 0 },
            seen(&unknown, &[100, 100])[1],
        ];
        (0..SETTLES).for_each(|_| one.step(&look));
        assert_eq!(one.weights(), [PARTS, 0], "{rule:?}");
    }
}
