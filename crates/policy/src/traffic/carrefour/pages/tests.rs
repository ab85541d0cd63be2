//! Decisions on single pages: free memory is accounted for move by move, and draws follow the shares of nodes.

use alloc::vec::Vec;

use nearfar_topology::Bytes;
use proptest::prelude::*;

use super::*;
use crate::traffic::carrefour::Huge;
use crate::traffic::{Memory, Process};

const BOTH: Gates = Gates { replicate: false, interleave: true, relocate: true };

/// Nodes with this free memory in pages (`None`: without memory) and these shares of all accesses.
fn round(free: &[Option<u64>], accesses: &[u64]) -> Round {
    let memory = |(node, free): (u16, &Option<u64>)| Memory {
        node: NodeId(node),
        total: Bytes(if free.is_some() { 1 << 40 } else { 0 }),
        free: Bytes(free.unwrap_or(0) * PAGE),
    };
    Round {
        nodes: (0..).zip(free).map(memory).collect(),
        accesses: vec![accesses.to_vec()],
        ..Round::default()
    }
}

const fn page(number: u64) -> Page {
    Page { process: Process(1), number }
}

/// A page on `node` with these samples by CPU node.
fn sampled(node: u16, by: &[u32]) -> Sampled {
    Sampled { node: NodeId(node), huge: false, by: by.to_vec(), writes: 1 }
}

fn moves(pages: &Pages<'_>) -> Vec<(u64, u16)> {
    let one = |(action, _): &(Action, Why)| match action {
        Action::Move { page, to } => Some((page.number, to.0)),
        _ => None,
    };
    pages.actions.iter().filter_map(one).collect()
}

#[test]
fn a_move_frees_memory_on_its_source_for_the_moves_that_follow() {
    let (config, round) = (Config::default(), round(&[Some(0), Some(1)], &[1, 1]));
    let mut pages = Pages::new(&config, &round, BOTH, 1);
    let to = |cpu| if cpu == 0 { sampled(1, &[2, 0]) } else { sampled(0, &[0, 2]) };
    pages.decide(page(1), &to(0));
    assert_eq!(pages.left[&Left::NoRoom], 1, "node 0 is full");
    for (number, cpu) in [(2, 1), (3, 0), (4, 1), (5, 1)] {
        pages.decide(page(number), &to(cpu));
    }
    assert_eq!(moves(&pages), [(2, 1), (3, 0), (4, 1)]);
    assert_eq!(pages.left[&Left::NoRoom], 2, "and node 1 is full at the end");
}

#[test]
fn a_huge_page_moved_whole_needs_free_memory_for_all_its_pieces() {
    let fits = |free, huge: Option<Huge>| {
        let (config, round) =
            (Config { huge, ..Config::default() }, round(&[Some(0), Some(free)], &[1, 1]));
        let mut pages = Pages::new(&config, &round, BOTH, 1);
        pages.decide(page(512), &Sampled { huge: true, ..sampled(0, &[0, 2]) });
        moves(&pages).len()
    };
    assert_eq!([fits(511, Some(Huge::default())), fits(512, Some(Huge::default()))], [0, 1]);
    assert_eq!([fits(0, None), fits(1, None)], [0, 1], "without the extension one piece moves");
}

#[test]
fn replicas_need_free_memory_on_every_reader_but_the_holder() {
    let config = Config::default();
    let gates = Gates { replicate: true, ..BOTH };
    let replicas = |free: &[Option<u64>], count: u64| {
        let round = round(free, &[1, 1, 1]);
        let mut pages = Pages::new(&config, &round, gates, 1);
        pages.replicas = true;
        for number in 0..count {
            pages.decide(page(number), &Sampled { writes: 0, ..sampled(0, &[1, 1, 1]) });
        }
        let free: Vec<u64> = pages.nodes.iter().map(|place| place.free / PAGE).collect();
        (pages.actions.len(), free)
    };
    assert_eq!(replicas(&[Some(0), Some(5), Some(3)], 9), (3, [0, 2, 0].to_vec()));
    assert_eq!(replicas(&[Some(9), Some(5), Some(0)], 9), (0, [9, 5, 0].to_vec()));
}

#[test]
fn a_page_of_one_node_is_skipped_for_the_first_reason_that_applies() {
    let config = Config::default();
    let round = round(&[Some(9), Some(9)], &[1, 1]);
    let left = |gates, node, samples| {
        let mut pages = Pages::new(&config, &round, gates, 1);
        pages.decide(page(1), &sampled(node, &[0, samples]));
        (moves(&pages).len(), pages.left.keys().next().copied())
    };
    let (none, relocate) = (Gates::default(), Gates { relocate: true, ..Gates::default() });
    let interleave = Gates { interleave: true, ..Gates::default() };
    assert_eq!(left(none, 1, 9), (0, Some(Left::Local)));
    assert_eq!(left(none, 0, 1), (0, Some(Left::RelocationOff)));
    assert_eq!(left(relocate, 0, 1), (0, Some(Left::TooFewSamples)));
    assert_eq!(left(relocate, 0, 2), (1, None));
    assert_eq!(left(interleave, 0, 1), (1, None));
}

#[test]
fn destinations_are_drawn_with_weights_of_100_per_cent_less_their_shares_and_never_without_memory()
{
    let (config, round) = (
        Config::default(),
        round(&[Some(1 << 30), None, Some(1 << 30), Some(1 << 30)], &[60, 10, 30, 0]),
    );
    let pages = Pages::new(&config, &round, BOTH, 1);
    let mut drawn = [0_u32; 4];
    (0..17_000).for_each(|number| drawn[pages.draw(page(number)).unwrap()] += 1);
    // Weights of 40, 70 and 100.
    for (found, right) in drawn.iter().zip([3_238_u32, 0, 5_667, 8_095]) {
        assert!(found.abs_diff(right) < 250, "{drawn:?}");
    }
    assert_eq!(drawn[1], 0);
    let none = self::round(&[None, None], &[1, 1]);
    assert_eq!(Pages::new(&config, &none, BOTH, 1).draw(page(1)), None);
}

#[test]
fn a_shared_page_leaves_its_node_with_the_probability_of_its_share() {
    let stays = |share: u64| {
        let (config, round) =
            (Config::default(), round(&[Some(1 << 30), Some(1 << 30)], &[share, 100 - share]));
        let mut pages = Pages::new(&config, &round, BOTH, 1);
        (0..10_000).for_each(|number| pages.decide(page(number), &sampled(0, &[1, 1])));
        pages.left.get(&Left::NotDrawn).copied().unwrap_or(0)
    };
    assert_eq!([stays(100), stays(0)], [0, 10_000]);
    assert!(stays(80).abs_diff(2_000) < 200 && stays(30).abs_diff(7_000) < 200, "{}", stays(80));
}

#[test]
fn pieces_of_a_hot_page_are_interleaved_over_the_nodes_with_memory() {
    let (config, round) =
        (Config::with_huge_pages(), round(&[Some(512), None, Some(512), Some(100)], &[1; 4]));
    let mut pages = Pages::new(&config, &round, BOTH, 1);
    let hot = Sampled { huge: true, ..sampled(0, &[9, 9, 9, 9]) };
    pages.split_and_spread(page(1024), &hot, Why::ForPieces);
    assert_eq!(pages.actions[0].0, Action::Split { page: page(1024) });
    let went = moves(&pages);
    assert_eq!(went[..4], [(1025, 2), (1026, 3), (1028, 2), (1029, 3)], "every third stays");
    let to = |node| went.iter().filter(|(_, to)| *to == node).count();
    // 512 pieces over three nodes: 171 each for the first two; the last has room for 100 of 170.
    assert_eq!([to(2), to(3), to(0) + to(1)], [171, 100, 0]);
    assert_eq!(pages.left[&Left::NoRoom], 70);
}

#[test]
fn one_split_precedes_all_moves_of_pieces_of_the_same_huge_page() {
    let (config, round) = (Config::default(), round(&[Some(0), Some(99)], &[1, 1]));
    let mut pages = Pages::new(&config, &round, BOTH, 1);
    for number in [513, 514, 1023, 1024, 2000] {
        pages.decide(page(number), &Sampled { huge: true, ..sampled(0, &[0, 2]) });
    }
    let splits: Vec<(usize, u64)> = pages
        .actions
        .iter()
        .enumerate()
        .filter_map(|(at, (action, _))| match action {
            Action::Split { page } => Some((at, page.number)),
            _ => None,
        })
        .collect();
    assert_eq!(splits, [(0, 512), (4, 1024), (6, 1536)]);
    assert_eq!(pages.actions.len(), 3 + 5);
}

proptest! {
    #[test]
    fn a_scaled_hash_is_below_its_limit_and_monotonic(hash in any::<u64>(), more in any::<u64>(), of in 1_u64..) {
        let one = part(hash, of);
        prop_assert!(one < of);
        prop_assert!(part(hash.saturating_add(more), of) >= one);
        prop_assert_eq!(part(hash, 0), 0);
    }

    #[test]
    fn moves_and_replicas_keep_the_sum_of_free_and_taken_memory(
        free in prop::collection::vec(prop::option::of(0_u64..40), 2..5),
        pages_of in prop::collection::vec((0_u16..5, prop::array::uniform5(0_u32..3), any::<bool>()), 1..80),
        replicate in any::<bool>(),
    ) {
        let config = Config { samples_least: 1, ..Config::default() };
        let round = round(&free, &vec![1; free.len()]);
        let mut pages = Pages::new(&config, &round, Gates { replicate, ..BOTH }, 1);
        pages.replicas = true;
        for (number, (node, by, write)) in (0..).zip(&pages_of) {
            pages.decide(page(number), &Sampled { writes: u32::from(*write), ..sampled(*node, &by[..free.len()]) });
        }
        let node_of = |of: &Page| pages_of[usize::try_from(of.number).unwrap()].0;
        for (node, place) in (0_u16..).zip(&pages.nodes) {
            let (mut came, mut went) = (0, 0);
            for (action, _) in &pages.actions {
                match action {
                    Action::Move { page, to } => {
                        came += u64::from(to.0 == node);
                        went += u64::from(node_of(page) == node);
                    }
                    Action::Replicate { page, on } => came += u64::from(on.contains(&NodeId(node)) && node_of(page) != node),
                    Action::Split { .. } => {}
                }
            }
            let before = free[usize::from(node)].unwrap_or(0);
            prop_assert_eq!(place.free / PAGE + came, before + went, "node {}", node);
        }
    }
}
