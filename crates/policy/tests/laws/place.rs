//! Placement by prices: weights, costs and promotion agree with a queueing machine.

use nearfar_policy::traffic::model::{Carries, Machine, Queue, Waits};
use nearfar_policy::traffic::place::{
    Demand, Heat, PARTS, Promotion, Terms, costs, promotion, weights,
};
use nearfar_topology::{BasisPoints, Bytes, BytesPerSecond, Nanoseconds};
use proptest::prelude::*;

const GB: u64 = 1_000_000_000;

fn queue(gbps: u64) -> Queue {
    Queue {
        capacity: BytesPerSecond(gbps * GB),
        waits: Waits::Formula { ps: 2_660, power_percent: 245 },
        carries: Carries::All,
    }
}

/// Tiers of these idle latencies and bandwidths in GB/s, seen from one CPU node.
fn tiers(tiers: &[(u64, u64)]) -> Machine {
    let tier = |(ns, gbps): &(u64, u64)| (Nanoseconds(*ns), queue(*gbps));
    Machine::tiers(&tiers.iter().map(tier).collect::<Vec<_>>()).unwrap()
}

fn demand(lines: u32, foreign: &[u32]) -> Demand {
    Demand {
        lines: vec![lines],
        think: Nanoseconds(0),
        reads: BasisPoints(10_000),
        foreign: foreign.to_vec(),
    }
}

/// Two to four tiers whose latencies are at least a fifth apart.
fn distinct_tiers() -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec((0u64..20, 20u64..200), 2..5).prop_map(|steps| {
        let mut latency = 60;
        let mut tier = |(more, gbps): (u64, u64)| {
            latency += latency / 5 + more;
            (latency, gbps)
        };
        steps.into_iter().map(&mut tier).collect()
    })
}

fn heat() -> impl Strategy<Value = Vec<Heat>> {
    let one =
        (0u64..8, 1u64..64).prop_map(|(per_mib, mib)| Heat { per_mib, bytes: Bytes(mib << 20) });
    prop::collection::vec(one, 0..10)
}

fn terms() -> impl Strategy<Value = Terms> {
    (50u64..300, 50u64..500, 0u64..1_000, 1u64..100_000_000_000, 0u64..256).prop_map(
        |(near, far, move_mib, horizon, mib)| Terms {
            near: Nanoseconds(near),
            far: Nanoseconds(far),
            move_mib: Nanoseconds(move_mib),
            horizon: Nanoseconds(horizon),
            room: Bytes(mib << 20),
        },
    )
}

/// The least heat that is promoted; the largest number if nothing is promoted.
fn threshold(terms: &Terms, heat: &[Heat]) -> u64 {
    match promotion(terms, heat) {
        Promotion::AtLeast(least) => least,
        Promotion::None | Promotion::Reverse => u64::MAX,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn minimal_demand_is_placed_on_the_nearest_node_in_any_order(nodes in distinct_tiers().prop_shuffle()) {
        let nearest = (0..nodes.len()).min_by_key(|at| nodes[*at].0).unwrap();
        prop_assert_eq!(weights(&tiers(&nodes), &demand(1, &[]))[nearest], PARTS);
    }

    #[test]
    fn renumbering_the_nodes_renumbers_the_weights(nodes in distinct_tiers(), lines in 1u32..1_500) {
        let forward = weights(&tiers(&nodes), &demand(lines, &[]));
        let mut backward = weights(&tiers(&nodes.iter().rev().copied().collect::<Vec<_>>()), &demand(lines, &[]));
        backward.reverse();
        for (one, other) in forward.iter().zip(&backward) {
            // The search is not finer than this.
            prop_assert!(one.abs_diff(*other) <= 4, "{forward:?} {backward:?}");
        }
    }

    #[test]
    fn foreign_load_on_a_node_never_raises_its_weight(near in 40u64..200, far in 20u64..150, lines in 50u32..1_000, others in 0u32..500, more in 1u32..500) {
        let machine = tiers(&[(80, near), (180, far)]);
        for node in 0..2 {
            let taken = |lines_of_others: u32| {
                let mut foreign = [0, 0];
                foreign[node] = lines_of_others;
                weights(&machine, &demand(lines, &foreign))[node]
            };
            prop_assert!(taken(others + more) <= taken(others) + 1);
        }
    }

    #[test]
    fn lower_idle_latency_never_loses_share(far_ns in 120u64..400, less in 1u64..40, gbps in 20u64..150, lines in 50u32..1_000) {
        let share = |ns| weights(&tiers(&[(80, 100), (ns, gbps)]), &demand(lines, &[]))[1];
        prop_assert!(share(far_ns - less) + 1 >= share(far_ns));
    }

    #[test]
    fn equal_nodes_get_weights_within_one_part(nodes in 2usize..5, lines in 200u32..3_000) {
        let found = weights(&tiers(&vec![(100, 50); nodes]), &demand(lines, &[]));
        let (least, most) = (found.iter().min().unwrap(), found.iter().max().unwrap());
        prop_assert!(most - least <= 1, "{found:?}");
    }

    #[test]
    fn the_marginal_cost_of_a_line_is_at_least_idle_latency(nodes in distinct_tiers(), lines in 0u32..2_000) {
        let even = vec![BasisPoints(10_000 / u32::try_from(nodes.len()).unwrap()); nodes.len()];
        let found = costs(&tiers(&nodes), &demand(lines, &[]), &even);
        prop_assert_eq!(found.len(), nodes.len());
        prop_assert!(found.iter().zip(&nodes).all(|(cost, (idle, _))| cost.0 >= *idle), "{found:?}");
    }

    #[test]
    fn the_marginal_cost_of_a_line_never_falls_with_demand(nodes in distinct_tiers(), lines in 1u32..1_500, more in 1u32..500) {
        let machine = tiers(&nodes);
        let even = vec![BasisPoints(10_000 / u32::try_from(nodes.len()).unwrap()); nodes.len()];
        let (now, then) = (costs(&machine, &demand(lines, &[]), &even), costs(&machine, &demand(lines + more, &[]), &even));
        prop_assert!(now.iter().zip(&then).all(|(now, then)| then.0 + 1 >= now.0), "{now:?} {then:?}");
    }

    #[test]
    fn think_time_lowers_the_marginal_cost_of_a_line(lines in 50u32..1_500, think in 1u64..1_000) {
        let machine = tiers(&[(80, 100), (180, 50)]);
        let at = [BasisPoints(7_000), BasisPoints(3_000)];
        let busy = costs(&machine, &demand(lines, &[]), &at);
        let lazy = Demand { think: Nanoseconds(think), ..demand(lines, &[]) };
        let idle = costs(&machine, &lazy, &at);
        prop_assert!(busy.iter().zip(&idle).all(|(busy, idle)| idle.0 <= busy.0 + 1), "{busy:?} {idle:?}");
    }

    #[test]
    fn marginal_costs_cross_within_two_parts_of_the_weights(near in 40u64..200, far in 20u64..150, far_ns in 100u64..300, lines in 20u32..1_000) {
        let (machine, demand) = (tiers(&[(80, near), (far_ns, far)]), demand(lines, &[]));
        let found = weights(&machine, &demand);
        let costs_at = |near: u32| {
            let at = [BasisPoints(near * 10_000 / 64), BasisPoints(10_000 - near * 10_000 / 64)];
            costs(&machine, &demand, &at)
        };
        let near = u32::from(found[0]);
        if near >= 2 {
            let less = costs_at(near - 2);
            prop_assert!(less[0] <= less[1], "far memory is not cheaper after that: {less:?} at {found:?}");
        }
        if near <= 62 {
            let more = costs_at(near + 2);
            prop_assert!(more[0] >= more[1], "near memory is not cheaper after that: {more:?} at {found:?}");
        }
    }

    #[test]
    fn promoted_pages_fit_near_memory(terms in terms(), heat in heat()) {
        let least = threshold(&terms, &heat);
        let promoted: u64 = heat.iter().filter(|class| class.per_mib >= least).map(|class| class.bytes.0).sum();
        prop_assert!(promoted <= terms.room.0, "{} MiB from {least} on", promoted >> 20);
    }

    #[test]
    fn promoted_pages_repay_their_migration_twice(terms in terms(), heat in heat()) {
        let least = threshold(&terms, &heat);
        for class in heat.iter().filter(|class| class.per_mib >= least) {
            let saved = u128::from(class.per_mib) * u128::from(terms.far.0 - terms.near.0) * u128::from(terms.horizon.0);
            prop_assert!(saved >= 2 * u128::from(terms.move_mib.0) * u128::from(GB));
        }
    }

    #[test]
    fn more_free_memory_and_cheaper_moves_never_raise_the_threshold(terms in terms(), heat in heat(), mib in 0u64..512, less in 0u64..1_000_000) {
        let roomy = Terms { room: Bytes(terms.room.0 + (mib << 20)), ..terms };
        prop_assert!(threshold(&roomy, &heat) <= threshold(&terms, &heat));
        let cheap = Terms { move_mib: Nanoseconds(terms.move_mib.0.saturating_sub(less)), ..terms };
        prop_assert!(threshold(&cheap, &heat) <= threshold(&terms, &heat));
    }

    #[test]
    fn the_order_of_heat_classes_does_not_matter(terms in terms(), heat in heat()) {
        let mut turned = heat.clone();
        turned.reverse();
        prop_assert_eq!(promotion(&terms, &heat), promotion(&terms, &turned));
    }

    #[test]
    fn nothing_is_promoted_to_memory_with_equal_or_higher_cost(terms in terms(), heat in heat()) {
        let found = promotion(&terms, &heat);
        prop_assert_eq!(found == Promotion::Reverse, terms.near > terms.far);
        prop_assert_eq!(found == Promotion::None, terms.near == terms.far);
    }
}

#[test]
fn classes_of_the_same_heat_go_together_or_not_at_all() {
    let terms = Terms {
        near: Nanoseconds(70),
        far: Nanoseconds(170),
        move_mib: Nanoseconds(0),
        horizon: Nanoseconds(10 * GB),
        room: Bytes(40 << 20),
    };
    let heat = [(10, 30), (10, 60)].map(|(per_mib, mib)| Heat { per_mib, bytes: Bytes(mib << 20) });
    assert_eq!(promotion(&terms, &heat), Promotion::AtLeast(u64::MAX));
    assert_eq!(promotion(&Terms { room: Bytes(90 << 20), ..terms }, &heat), Promotion::AtLeast(10));
}
