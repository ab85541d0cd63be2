//! The advisor: loads are judged against the lowest one seen, for any order of nodes.

use nearfar_policy::advisor::{Advisor, Known, Look, SHARE, pace};
use nearfar_policy::interleave::{FULL, PARTS};
use nearfar_topology::{BasisPoints, BytesPerSecond, Nanoseconds, NodeId};
use proptest::prelude::*;

fn known(node: u16, idle: Option<u64>) -> Known {
    Known { node: NodeId(node), idle: idle.map(Nanoseconds), read: None, write: None }
}

fn look(load: u64) -> Look {
    Look { load: Nanoseconds(load), free: BasisPoints(5_000), used: None, strayed: false }
}

fn loads() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(20u64..2_000, 1..40)
}

proptest! {
    #[test]
    fn loaded_latency_is_never_below_idle_latency(stated in prop::option::of(Just(100u64)), loads in prop::collection::vec(20u64..300, 1..12)) {
        let mut one = Advisor::new(&[known(0, stated)]);
        for load in loads {
            one.step(&[look(load)]);
            let said = one.advice()[0];
            prop_assert!(said.load >= said.idle && said.pressure >= 100, "{said:?}");
        }
    }

    #[test]
    fn idle_latency_is_the_lowest_sample_or_the_firmware_latency(stated in prop::option::of(50u64..400), loads in loads()) {
        let mut one = Advisor::new(&[known(0, stated)]);
        let mut least = u64::MAX;
        for load in loads {
            one.step(&[look(load)]);
            least = least.min(load);
            let idle = one.advice()[0].idle.0;
            prop_assert!(idle >= least || Some(idle) == stated);
            match stated {
                None => prop_assert_eq!(idle, least),
                Some(stated) => prop_assert!(idle <= stated * 3 / 2 && idle >= stated * 2 / 3 - 1, "{idle} of {stated}"),
            }
        }
    }

    #[test]
    fn nodes_are_evaluated_independently(a in loads(), b in loads()) {
        let looks = || a.iter().zip(&b);
        let mut both = Advisor::new(&[known(0, Some(100)), known(1, None)]);
        looks().for_each(|(a, b)| both.step(&[look(*a), look(*b)]));
        let [mut first, mut second] = [Advisor::new(&[known(0, Some(100))]), Advisor::new(&[known(1, None)])];
        looks().for_each(|(a, b)| (first.step(&[look(*a)]), second.step(&[look(*b)])).0);
        for (one, apart) in both.advice().iter().zip([first.advice()[0], second.advice()[0]]) {
            prop_assert_eq!((one.idle, one.load, one.pressure), (apart.idle, apart.load, apart.pressure));
        }
    }

    #[test]
    fn advice_is_ordered_by_node_id_for_any_order_of_distance(ids in prop::collection::btree_set(0u16..1024, 1..8).prop_map(Vec::from_iter).prop_shuffle(), steps in 1usize..10) {
        let nodes: Vec<Known> = ids.iter().map(|id| known(*id, Some(100))).collect();
        let mut one = Advisor::new(&nodes);
        (0..steps).for_each(|_| one.step(&vec![look(120); nodes.len()]));
        let said: Vec<u16> = one.advice().iter().map(|advice| advice.node.0).collect();
        prop_assert!(said.is_sorted());
        prop_assert_eq!(said.len(), ids.len());
        prop_assert_eq!(one.advice().iter().map(|advice| advice.weight).sum::<u8>(), PARTS);
    }

    #[test]
    fn a_node_without_samples_gets_no_advice(nodes in 1u16..6, seen in 0usize..6) {
        let all: Vec<Known> = (0..nodes).map(|id| known(id, None)).collect();
        let mut one = Advisor::new(&all);
        one.step(&vec![look(100); seen.min(all.len())]);
        prop_assert_eq!(one.advice().len(), seen.min(all.len()));
        prop_assert!(one.has_bandwidth(NodeId(9)) && one.has_room(NodeId(9)));
    }

    #[test]
    fn free_capacity_is_that_of_the_latest_sample(shares in prop::collection::vec(0u32..=10_000, 1..10)) {
        let mut one = Advisor::new(&[known(4, None)]);
        for share in shares {
            one.step(&[Look { free: BasisPoints(share), ..look(100) }]);
            prop_assert_eq!(one.has_room(NodeId(4)), share >= FULL.0);
            prop_assert_eq!(one.advice()[0].free.0, share);
        }
    }

    #[test]
    fn a_node_is_busy_at_nine_tenths_of_its_bandwidth(most in 10u64..1 << 40, used in 0u64..1 << 40) {
        let node = Known { read: Some(BytesPerSecond(most)), ..known(0, Some(100)) };
        let mut one = Advisor::new(&[node]);
        one.step(&[Look { used: Some(BytesPerSecond(used)), ..look(100) }]);
        let nine_tenths = u128::from(used) * 10 >= u128::from(most) * 9;
        prop_assert_eq!(one.has_bandwidth(NodeId(0)), !nine_tenths);
    }

    #[test]
    fn a_higher_sampling_cost_never_shortens_the_interval(asked in 0u64..1 << 40, cpu in 0u64..1 << 40, more in 0u64..1 << 40, looks in 1u64..1 << 20) {
        let wait = |cpu| pace(Nanoseconds(asked), Nanoseconds(cpu), looks).0;
        prop_assert!(wait(cpu) >= asked && wait(cpu + more) >= wait(cpu));
        prop_assert!(wait(cpu) == asked || wait(cpu) <= cpu / looks * SHARE);
    }
}
