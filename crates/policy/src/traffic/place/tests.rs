//! Laws of placement: invariants of every best placement, and known cases.

use alloc::vec;
use alloc::vec::Vec;

use nearfar_topology::BytesPerSecond;
use proptest::prelude::*;

use super::*;
use crate::traffic::model::{Carries, Path, Queue, Waits};
use crate::traffic::testkit::{alike, far_tier, near_tier, two_tiers};

fn demand(lines: &[u32], foreign: &[u32]) -> Demand {
    Demand {
        lines: lines.to_vec(),
        reads: BasisPoints(10_000),
        foreign: foreign.to_vec(),
        ..Demand::default()
    }
}

/// Tiers with these latencies in nanoseconds and bandwidths in GB/s.
fn tiers(tiers: &[(u64, u64)]) -> Machine {
    let tier = |(ns, gb): &(u64, u64)| {
        (Nanoseconds(*ns), Queue { capacity: BytesPerSecond(gb * 1_000_000_000), ..near_tier() })
    };
    Machine::tiers(&tiers.iter().map(tier).collect::<Vec<_>>()).unwrap()
}

#[test]
fn an_idle_machine_gives_all_weight_to_near_memory() {
    for far in [135, 148, 168, 192] {
        assert_eq!(weights(&two_tiers(far), &demand(&[0], &[])), [PARTS, 0]);
        assert_eq!(weights(&two_tiers(far), &demand(&[4], &[])), [PARTS, 0]);
    }
    assert_eq!(weights(&tiers(&[(110, 50), (90, 50), (250, 25)]), &demand(&[1], &[])), [0, 64, 0]);
}

#[test]
fn a_symmetric_machine_is_used_evenly() {
    assert_eq!(weights(&alike(4), &demand(&[13; 4], &[])), [16; 4]);
    assert_eq!(weights(&alike(2), &demand(&[13; 2], &[])), [32; 2]);
}

#[test]
fn saturated_nodes_are_weighted_by_their_bandwidths() {
    let found = weights(&tiers(&[(100, 75), (250, 25)]), &demand(&[4000], &[]));
    assert!(found[0].abs_diff(48) <= 1, "{found:?}");
}

#[test]
fn memory_used_by_one_node_stays_there_until_the_node_is_busy() {
    assert_eq!(weights(&alike(4), &demand(&[0, 2, 0, 0], &[])), [0, 64, 0, 0]);
    let busy = weights(&alike(4), &demand(&[0, 60, 0, 0], &[]));
    assert!(busy[1] >= busy[0] && busy.iter().all(|parts| *parts > 8), "{busy:?}");
}

#[test]
fn separate_read_and_write_lanes_make_weights_depend_on_the_mix() {
    // One queue for near memory; a lane each way for far memory.
    let lane = |carries| Queue { carries, ..far_tier() };
    let queues = [near_tier(), lane(Carries::Reads), lane(Carries::Writes)];
    let path = |ns, through: &[usize]| Path { idle: Nanoseconds(ns), through: through.to_vec() };
    let machine = Machine::new(&queues, &[vec![path(70, &[0]), path(200, &[1, 2])]]).unwrap();
    let far = |reads| {
        let demand = Demand { reads: BasisPoints(reads), ..demand(&[3000], &[]) };
        weights(&machine, &demand)[1]
    };
    assert!(far(5_000) > far(6_667) && far(6_667) > far(10_000));
}

#[test]
fn the_optimum_is_past_equal_latencies() {
    let machine = two_tiers(135);
    let (loops, scene) = demand(&[128], &[222, 0]).loops(&machine);
    let spots = [Spot { by: vec![1.0], least: vec![0.067, 0.083], most: vec![0.917, 0.933] }];
    let problem = Problem { machine: &machine, loops: &loops, spots: &spots, scenes: &[scene] };
    let (best, value) = problem.best(&vec![vec![0.917, 0.083]]);
    assert!((best[0][0] - 0.34).abs() < 0.05 && (value - 0.973).abs() < 0.002, "{best:?} {value}");
    let costs = &problem.costs(&best)[0].1;
    assert!((costs[0] / costs[1] - 1.0).abs() < 0.06, "marginal costs meet: {costs:?}");
}

#[test]
fn the_marginal_cost_of_a_line_rises_with_demand() {
    let machine = two_tiers(135);
    let at = [BasisPoints(9_000), BasisPoints(1_000)];
    let idle = costs(&machine, &demand(&[1], &[]), &at);
    assert_eq!(idle, [Nanoseconds(70), Nanoseconds(135)]);
    let busy = costs(&machine, &demand(&[128], &[666, 0]), &at);
    assert!(busy[0] > busy[1], "{busy:?}");
}

#[test]
fn pages_are_promoted_while_they_fit_and_repay_and_near_memory_costs_less() {
    let heat = [(900, 2), (10, 100), (100, 4), (50, 8)];
    let heat = heat.map(|(per_mib, mib)| Heat { per_mib, bytes: Bytes(mib << 20) });
    let terms = Terms {
        near: Nanoseconds(70),
        far: Nanoseconds(170),
        move_mib: Nanoseconds(1_000),
        horizon: Nanoseconds(10_000_000_000),
        room: Bytes(14 << 20),
    };
    assert_eq!(promotion(&terms, &heat), Promotion::AtLeast(50));
    assert_eq!(
        promotion(&Terms { room: Bytes(13 << 20), ..terms }, &heat),
        Promotion::AtLeast(100)
    );
    // 2 x 100 us over 100 ns x 10 s: 200 accesses a second.
    let dear = Terms { move_mib: Nanoseconds(100_000), ..terms };
    assert_eq!(promotion(&dear, &heat), Promotion::AtLeast(200));
    assert_eq!(promotion(&Terms { near: Nanoseconds(170), ..terms }, &heat), Promotion::None);
    assert_eq!(promotion(&Terms { near: Nanoseconds(171), ..terms }, &heat), Promotion::Reverse);
    assert_eq!(promotion(&Terms { room: Bytes(0), ..terms }, &heat), Promotion::AtLeast(u64::MAX));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn weights_add_up_to_the_parts_and_are_deterministic(
        nodes in prop::collection::vec((50_u64..400, 5_u64..300), 1..5),
        lines in 0_u32..2000,
        foreign in prop::collection::vec(0_u32..500, 0..5),
    ) {
        let (machine, demand) = (tiers(&nodes), demand(&[lines], &foreign));
        let found = weights(&machine, &demand);
        prop_assert_eq!(found.iter().map(|parts| u32::from(*parts)).sum::<u32>(), u32::from(PARTS));
        prop_assert_eq!(found.len(), nodes.len());
        prop_assert_eq!(found, weights(&machine, &demand));
    }

    #[test]
    fn scaling_all_latencies_changes_nothing(
        near in 50_u64..150, far in 151_u64..400, lines in 1_u32..800, foreign in 0_u32..500,
    ) {
        let scaled = |by: u64| {
            let tier = |ns: u64, queue: Queue| {
                let capacity = BytesPerSecond(queue.capacity.0 / by);
                let Waits::Formula { ps, power_percent } = queue.waits else { unreachable!() };
                let waits = Waits::Formula { ps: ps * u32::try_from(by).unwrap(), power_percent };
                (Nanoseconds(ns * by), Queue { capacity, waits, ..queue })
            };
            let machine = Machine::tiers(&[tier(near, near_tier()), tier(far, far_tier())]).unwrap();
            weights(&machine, &demand(&[lines], &[foreign]))
        };
        prop_assert_eq!(scaled(1), scaled(4));
    }

    #[test]
    fn more_bandwidth_never_lowers_a_share(
        near in 40_u64..200, far in 20_u64..150, more in 1_u64..100, lines in 50_u32..1500, foreign in 0_u32..400,
    ) {
        let share = |far| weights(&tiers(&[(80, near), (180, far)]), &demand(&[lines], &[foreign]))[1];
        // The resolution of the search is one part.
        prop_assert!(share(far + more) + 1 >= share(far));
    }

    #[test]
    fn removing_a_node_still_gives_complete_weights(
        nodes in prop::collection::vec((50_u64..400, 5_u64..300), 2..5),
        lines in 1_u32..2000,
        gone in any::<prop::sample::Index>(),
    ) {
        let mut rest = nodes;
        rest.remove(gone.index(rest.len()));
        let found = weights(&tiers(&rest), &demand(&[lines], &[]));
        prop_assert_eq!(found.len(), rest.len());
        prop_assert_eq!(found.iter().map(|parts| u32::from(*parts)).sum::<u32>(), u32::from(PARTS));
    }

    #[test]
    fn a_fitted_placement_is_within_bounds_and_adds_up_to_one(
        wish in prop::collection::vec(0.0_f64..1.0, 3),
        least in prop::collection::vec(0.0_f64..0.3, 3),
        most in prop::collection::vec(0.34_f64..1.0, 3),
    ) {
        let spot = Spot { by: vec![1.0], least: least.clone(), most: most.clone() };
        let found = spot.fit(&wish).unwrap();
        prop_assert!((found.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        for ((at, least), most) in found.iter().zip(least).zip(most) {
            prop_assert!(*at >= least - 1e-9 && *at <= most + 1e-9);
        }
        let none = Spot { by: vec![1.0], least: vec![0.0; 3], most: vec![0.3; 3] };
        prop_assert!(none.fit(&wish).is_none());
    }
}
