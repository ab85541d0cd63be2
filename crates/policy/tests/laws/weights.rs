//! Interleave weights: as short as the tolerance allows, blind to node numbers, and honest about slow nodes.

use std::collections::BTreeMap;

use nearfar_policy::weights::{ROUND_MAX, TOLERANCE, Unweighable, Weights, weights, worthwhile};
use nearfar_topology::{BasisPoints, BytesPerSecond, NodeId};
use proptest::prelude::*;

type Bandwidths = BTreeMap<NodeId, BytesPerSecond>;

fn nodes(bandwidths: &[u64]) -> Bandwidths {
    (0..).map(NodeId).zip(bandwidths.iter().copied().map(BytesPerSecond)).collect()
}

fn given(pages: &[u8]) -> Weights {
    Weights::new((0..).map(NodeId).zip(pages.iter().copied()).collect()).unwrap()
}

fn some_nodes() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(1u64..100_000, 1..7)
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

proptest! {
    #[test]
    fn renumbering_the_nodes_changes_neither_round_nor_loss(b in some_nodes(), ids in prop::collection::btree_set(0u16..1024, 7)) {
        let plain = nodes(&b);
        let renumbered: Bandwidths =
            ids.into_iter().rev().map(NodeId).zip(b.iter().rev().copied().map(BytesPerSecond)).collect();
        match (weights(&plain, TOLERANCE), weights(&renumbered, TOLERANCE)) {
            (Ok(one), Ok(other)) => {
                prop_assert_eq!(one.round(), other.round());
                prop_assert_eq!(one.loss(&plain), other.loss(&renumbered));
            }
            (one, other) => prop_assert_eq!(one.is_ok(), other.is_ok()),
        }
    }

    #[test]
    fn a_tighter_tolerance_gives_no_shorter_round_and_no_greater_loss(b in some_nodes(), loose in 0u32..2_000, less in 0u32..2_000) {
        let machine = nodes(&b);
        let tight = BasisPoints(loose.saturating_sub(less));
        if let (Ok(loose), Ok(tight)) = (weights(&machine, BasisPoints(loose)), weights(&machine, tight)) {
            prop_assert!(tight.round() >= loose.round());
            prop_assert!(tight.loss(&machine) <= loose.loss(&machine));
        }
    }

    #[test]
    fn no_subset_of_nodes_beats_the_worthwhile_aggregate(b in prop::collection::vec(1u64..5000, 1..5)) {
        let all = nodes(&b);
        let (found, _) = worthwhile(&all, BasisPoints(0)).unwrap();
        let found = found.aggregate(&all).unwrap();
        for mask in 1_u32..1 << b.len() {
            let some: BTreeMap<_, _> = all.iter().filter(|(id, _)| mask >> id.0 & 1 == 1).map(|(id, b)| (*id, *b)).collect();
            if let Ok(other) = weights(&some, BasisPoints(0)) {
                prop_assert!(other.aggregate(&some).unwrap() <= found, "{:?}", other);
            }
        }
    }

    #[test]
    fn worthwhile_nodes_are_never_slower_than_a_single_node(b in prop::collection::vec(1u64..1_000_000, 1..7)) {
        let all = nodes(&b);
        let (found, _) = worthwhile(&all, TOLERANCE).unwrap();
        prop_assert!(found.aggregate(&all).unwrap().0 >= *b.iter().max().unwrap());
    }

    #[test]
    fn an_unlimited_tolerance_gives_one_page_to_every_node(b in some_nodes()) {
        let (least, most) = (b.iter().min().unwrap(), b.iter().max().unwrap());
        prop_assume!(least * b.len() as u64 >= *most);
        let found = weights(&nodes(&b), BasisPoints(10_000)).unwrap();
        prop_assert_eq!(found, Weights::even((0..).map(NodeId).take(b.len())).unwrap());
    }

    #[test]
    fn bandwidths_in_a_small_integer_ratio_give_exact_weights(pages in prop::collection::vec(1u8..12, 1..6), unit in 1u64..1 << 40) {
        let machine = nodes(&pages.iter().map(|pages| u64::from(*pages) * unit).collect::<Vec<_>>());
        let found = weights(&machine, BasisPoints(0)).unwrap();
        let divisor = pages.iter().fold(0, |divisor, pages| gcd(u32::from(*pages), divisor));
        let lowest = pages.iter().map(|pages| *pages / u8::try_from(divisor).unwrap());
        prop_assert_eq!(&found, &given(&lowest.collect::<Vec<_>>()));
        prop_assert_eq!(found.loss(&machine), Some(BasisPoints(0)));
    }

    #[test]
    fn the_loss_is_the_shortfall_from_the_ideal_aggregate(b in some_nodes(), w in prop::collection::vec(1u8..=255, 7)) {
        let (machine, given) = (nodes(&b), given(&w[..b.len()]));
        let ideal = u128::from(b.iter().sum::<u64>());
        let reached = u128::from(given.aggregate(&machine).unwrap().0);
        let kept = u128::from(10_000 - given.loss(&machine).unwrap().0);
        prop_assert!(reached * 10_000 <= (kept + 1) * ideal, "the loss is rounded up, by one at most");
        prop_assert!((reached + 1) * 10_000 >= kept * ideal);
    }

    #[test]
    fn only_weights_proportional_to_bandwidths_have_no_loss(b in some_nodes(), w in prop::collection::vec(1u8..=255, 7)) {
        let (machine, given) = (nodes(&b), given(&w[..b.len()]));
        let proportional = (1..b.len()).all(|at| b[at] * u64::from(w[0]) == b[0] * u64::from(w[at]));
        prop_assert_eq!(given.loss(&machine) == Some(BasisPoints(0)), proportional);
    }

    #[test]
    fn repeating_the_round_changes_neither_aggregate_nor_loss(b in some_nodes(), w in prop::collection::vec(1u8..60, 7), times in 1u8..5) {
        let machine = nodes(&b);
        let once = given(&w[..b.len()]);
        let often = given(&w[..b.len()].iter().map(|pages| pages * times).collect::<Vec<_>>());
        prop_assert_eq!(once.aggregate(&machine), often.aggregate(&machine));
        prop_assert_eq!(once.loss(&machine), often.loss(&machine));
    }

    #[test]
    fn a_node_without_bandwidth_has_no_aggregate_and_no_loss(w in prop::collection::vec(1u8..=255, 2..6)) {
        let (given, fewer) = (given(&w), nodes(&vec![5; w.len() - 1]));
        prop_assert_eq!(given.aggregate(&fewer), None);
        prop_assert_eq!(given.loss(&fewer), None);
    }

    #[test]
    fn the_round_is_the_sum_and_get_agrees_with_iter(w in prop::collection::vec(1u8..=255, 1..9)) {
        let given = given(&w);
        prop_assert_eq!(given.round(), w.iter().map(|pages| u32::from(*pages)).sum::<u32>());
        prop_assert!(given.iter().all(|(node, pages)| given.get(node) == Some(pages)));
        prop_assert_eq!(given.get(NodeId(u16::try_from(w.len()).unwrap())), None);
        let text: Vec<String> = w.iter().map(ToString::to_string).collect();
        prop_assert_eq!(given.to_string(), text.join(":"));
    }

    #[test]
    fn worthwhile_partitions_the_nodes_and_excludes_the_slowest(b in prop::collection::vec(1u64..1_000_000, 1..7)) {
        let machine = nodes(&b);
        let (kept, left_out) = worthwhile(&machine, TOLERANCE).unwrap();
        prop_assert_eq!(kept.iter().len() + left_out.len(), b.len());
        let slowest_kept = kept.iter().map(|(node, _)| machine[&node]).min();
        for error in &left_out {
            let Unweighable::Hinders { node, bandwidth, with, without } = error else { panic!("{error}") };
            prop_assert_eq!(kept.get(*node), None);
            prop_assert!(Some(*bandwidth) <= slowest_kept && with < without, "{error}");
        }
    }

    #[test]
    fn weights_of_the_worthwhile_nodes_equal_those_returned(b in prop::collection::vec(1u64..1_000_000, 1..7)) {
        let machine = nodes(&b);
        let (kept, _) = worthwhile(&machine, TOLERANCE).unwrap();
        let rest: Bandwidths = kept.iter().map(|(node, _)| (node, machine[&node])).collect();
        prop_assert_eq!(weights(&rest, TOLERANCE), Ok(kept));
    }

    #[test]
    fn weights_and_worthwhile_reject_an_unmeasured_node(b in some_nodes(), at in any::<prop::sample::Index>()) {
        let mut b = b;
        let at = at.index(b.len());
        b[at] = 0;
        let error = Unweighable::Unmeasured { node: NodeId(u16::try_from(at).unwrap()) };
        prop_assert_eq!(weights(&nodes(&b), TOLERANCE), Err(error.clone()));
        prop_assert_eq!(worthwhile(&nodes(&b), TOLERANCE), Err(error));
    }
}

#[test]
fn up_to_64_equal_nodes_get_one_page_each() {
    let most = usize::try_from(ROUND_MAX).unwrap();
    for count in [1, 2, most - 1, most] {
        let found = weights(&nodes(&vec![7; count]), BasisPoints(0)).unwrap();
        assert!(found.iter().all(|(_, pages)| pages == 1), "{found}");
    }
    let error = weights(&nodes(&vec![7; most + 1]), BasisPoints(0)).unwrap_err();
    assert!(error.to_string().contains("65") && error.to_string().contains("64"), "{error}");
}

#[test]
fn a_reported_machine_with_hbm_excludes_its_persistent_memory() {
    let machine = nodes(&[1000, 1000, 10_000, 10_000, 100, 100, 100].map(|gb| gb * 1_000_000_000));
    let (found, left_out) = worthwhile(&machine, TOLERANCE).unwrap();
    assert!(found.aggregate(&machine).unwrap().0 >= 21_000 * 1_000_000_000, "{found}");
    assert_eq!(left_out.len(), 3);
}
