//! Laws of address selection: ranges lie in the node's memory, passes go round, yields correct the next range.

use nearfar_policy::tiering::clock_hand::ClockHand;
use nearfar_policy::tiering::clock_hand::PAGE;
use nearfar_policy::tiering::segments::{Direction, SEGMENTS, TieredNode};
use nearfar_topology::{AddrRange, BasisPoints, NodeId};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

/// One to four address ranges with holes between them.
fn ranges() -> impl Strategy<Value = Vec<AddrRange>> {
    prop::collection::vec((1u64..64, 1u64..64), 1..5).prop_map(|parts| {
        let mut at = 0;
        let range = |(hole, size): (u64, u64)| {
            let start = at + hole * MIB;
            at = start + size * MIB;
            AddrRange { start, end: at }
        };
        parts.into_iter().map(range).collect()
    })
}

/// A node that was scanned once: of each segment this share (per cent) was referenced.
fn scanned(ranges: &[AddrRange], shares: &[u64]) -> TieredNode {
    let mut node = TieredNode::new(NodeId(1), 1, Vec::new(), ranges);
    let part = node.span() / SEGMENTS as u64;
    for (segment, share) in node.segments_mut().iter_mut().zip(shares) {
        segment.count(part, part * share / 100);
    }
    node
}

fn shares() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(prop_oneof![Just(0u64), 0u64..=100], SEGMENTS)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_pass_stays_within_the_addresses_of_its_node(
        ranges in ranges(), shares in shares(), wanted in 1u64..1 << 36, is_up: bool,
    ) {
        let mut node = scanned(&ranges, &shares);
        let direction = if is_up { Direction::Up } else { Direction::Down };
        for _ in 0..8 {
            let taken = node.span();
            let Some(range) = node.next(direction, wanted, taken, (1, 1)) else { break };
            prop_assert!(!range.is_empty(), "{range:?}");
            prop_assert!(range.start >= ranges[0].start && range.end <= ranges[ranges.len() - 1].end);
            prop_assert!(ranges.iter().any(|one| one.start <= range.start && range.start < one.end));
            prop_assert!(ranges.iter().any(|one| one.start < range.end && range.end <= one.end));
        }
    }

    #[test]
    fn nothing_is_promoted_if_no_page_was_referenced(ranges in ranges(), wanted in 1u64..1 << 36) {
        let mut node = scanned(&ranges, &[0; SEGMENTS]);
        let taken = node.span();
        prop_assert_eq!(node.next(Direction::Up, wanted, taken, (1, 1)), None);
    }

    #[test]
    fn nothing_is_demoted_if_all_pages_are_referenced(ranges in ranges(), wanted in 1u64..1 << 36) {
        let mut node = scanned(&ranges, &[100; SEGMENTS]);
        let taken = node.span() / SEGMENTS as u64 * SEGMENTS as u64 / 2;
        prop_assert_eq!(node.next(Direction::Down, wanted, taken, (1, 1)), None);
    }

    #[test]
    fn passes_continue_behind_each_other_until_the_segment_is_covered(share in 20u64..=100) {
        let range = AddrRange { start: 0, end: 256 * MIB };
        let mut shares = [0; SEGMENTS];
        shares[3] = share;
        let mut node = scanned(&[range], &shares);
        let mut end = 48 * MIB;
        while end < 64 * MIB {
            let range = node.next(Direction::Up, MIB, 256 * MIB, (1, 1)).unwrap();
            prop_assert_eq!(range.start, end, "no gap and no overlap");
            end = range.end;
        }
        prop_assert_eq!(end, 64 * MIB);
        let again = node.next(Direction::Up, MIB, 256 * MIB, (1, 1)).unwrap();
        prop_assert_eq!(again.start, 48 * MIB);
    }

    #[test]
    fn a_pass_that_migrates_less_than_expected_makes_the_next_one_longer(part in 1u64..4) {
        let mut node = scanned(&[AddrRange { start: 0, end: 256 * MIB }], &[50; SEGMENTS]);
        let length = |node: &mut TieredNode| {
            node.next(Direction::Up, MIB, 256 * MIB, (1, 1)).unwrap().len()
        };
        let first = length(&mut node);
        node.learn_outcome(MIB / 4 * part);
        let longer = length(&mut node);
        prop_assert!(longer > first && longer <= 4 * first, "{first} {longer}");
        node.learn_outcome(8 * MIB);
        prop_assert!(length(&mut node) < longer, "and one that migrates more a shorter one");
    }

    #[test]
    fn regions_cover_the_memory_once_and_end_where_segments_do(ranges in ranges()) {
        let node = TieredNode::new(NodeId(0), 0, Vec::new(), &ranges);
        let regions = node.regions();
        prop_assert_eq!(regions.iter().map(|one| one.len()).sum::<u64>(), node.span());
        prop_assert!(regions.windows(2).all(|two| two[0].end <= two[1].start));
        let within = |one: &AddrRange| ranges.iter().any(|all| all.start <= one.start && one.end <= all.end);
        prop_assert!(regions.iter().all(within));
        for segment in node.addresses().filter(|one| !one.is_empty()) {
            prop_assert!(regions.iter().any(|one| one.start == segment.start), "{segment:?}");
        }
    }

    #[test]
    fn new_addresses_discard_counts_and_keep_the_node(ranges in ranges(), shares in shares()) {
        let mut node = scanned(&ranges, &shares);
        node.set_ranges(&ranges[..1]);
        prop_assert_eq!((node.used(), node.span(), node.covered()), (0, ranges[0].len(), None));
        prop_assert_eq!(node.node, NodeId(1));
    }

    #[test]
    fn a_segment_that_can_not_be_migrated_is_never_chosen_for_demotion(stuck in 0usize..SEGMENTS) {
        let mut node = scanned(&[AddrRange { start: 0, end: 256 * MIB }], &[50; SEGMENTS]);
        let movable: Vec<BasisPoints> =
            (0..SEGMENTS).map(|at| BasisPoints(if at == stuck { 0 } else { 10_000 })).collect();
        node.learn_movable(&movable);
        let range = node.next(Direction::Down, MIB, 256 * MIB, (1, 1)).unwrap();
        let segment = usize::try_from(range.start / (16 * MIB)).unwrap();
        prop_assert_ne!(segment, stuck);
    }

    #[test]
    fn the_hand_covers_all_memory_once_a_revolution(
        span in 1u64..4096, wants in prop::collection::vec(1u64..512, 1..64),
    ) {
        let (span, mut hand, mut at) = (span * PAGE, ClockHand::NEW, 0);
        for wanted in wants {
            let (from, to) = hand.next(wanted * PAGE, span).unwrap();
            prop_assert_eq!(from, if at < span { at } else { 0 });
            prop_assert!(to > from && to <= span);
            hand.learn(to - from);
            at = to;
        }
    }

    #[test]
    fn the_hand_goes_no_further_than_eight_times_the_demand_and_a_remainder(
        moved in prop::collection::vec(0u64..64, 1..20), wanted in 1u64..64,
    ) {
        let (span, mut hand) = (1u64 << 40, ClockHand::NEW);
        for moved in moved {
            let (from, to) = hand.next(wanted * PAGE, span).unwrap();
            prop_assert!(to - from <= 8 * wanted * PAGE, "{from} {to}");
            hand.learn(moved * PAGE);
        }
    }
}
