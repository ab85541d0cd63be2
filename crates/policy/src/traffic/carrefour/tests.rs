//! Carrefour's rules, one by one, as published.

use alloc::vec;
use alloc::vec::Vec;

use nearfar_topology::{Bytes, NodeId};
use proptest::prelude::*;

use super::*;
use crate::traffic::{Memory, Sample, Thread};

/// Four nodes with a quarter of memory in use, one second, 97 % reads, and these accesses by CPU node in rows, in
/// millions.
fn round(rows: [[u64; 4]; 4]) -> Round {
    let memory = |node| Memory { node: NodeId(node), total: Bytes(4 << 30), free: Bytes(3 << 30) };
    Round {
        elapsed: Nanoseconds(1_000_000_000),
        coverage: BasisPoints(10_000),
        nodes: (0..4).map(memory).collect(),
        accesses: rows.iter().map(|row| row.iter().map(|n| n * 1_000_000).collect()).collect(),
        reads: Reads::Fills { all: 100, modified: 3 },
        threads: vec![],
    }
}

/// Streamcluster by first touch: every node reads memory of which 97 % is on node 0.
fn streamcluster() -> Round {
    round([[97, 1, 1, 1]; 4])
}

fn written(mut round: Round) -> Round {
    round.reads = Reads::Fills { all: 100, modified: 6 };
    round
}

const fn page(number: u64) -> Page {
    Page { process: Process(1), number }
}

/// A sample of a small page on node 0.
const fn read(number: u64, cpu: usize) -> Sample {
    Sample { page: page(number), node: NodeId(0), huge: false, cpu, write: false }
}

fn table(samples: impl IntoIterator<Item = Sample>) -> Table {
    let mut table = Table::new(30_000, 4);
    samples.into_iter().for_each(|sample| table.add(sample));
    table
}

fn shared(numbers: core::ops::Range<u64>) -> Table {
    table(numbers.flat_map(|number| (0..4).map(move |cpu| read(number, cpu))))
}

fn step(round: &Round, table: &Table) -> Decision {
    Carrefour::new(Config::default()).step(round, table)
}

fn left(decision: &Decision, why: Left) -> u64 {
    decision.left.iter().find(|(left, _)| *left == why).map_or(0, |(_, pages)| *pages)
}

#[test]
fn below_50_accesses_a_microsecond_no_page_moves_and_gates_stay() {
    let mut one = Carrefour::new(Config::default());
    one.step(&written(streamcluster()), &table([]));
    let mut idle = round([[12, 0, 0, 0]; 4]);
    let decision = one.step(&idle, &shared(0..1000));
    assert_eq!((decision.hold, decision.actions.len()), (Some(Hold::NotBusy), 0));
    assert!(decision.gates.interleave, "as it was");
    assert_eq!(one.sampling(), Sampling::Sparse);
    idle.accesses[0][0] += 2_000_000;
    assert_eq!(one.step(&idle, &shared(0..1000)).hold, None, "50 are enough");
}

#[test]
fn gates_open_at_the_published_thresholds() {
    let gates = |round: &Round| step(round, &table([])).gates;
    let all = Gates { replicate: true, interleave: true, relocate: true };
    assert_eq!(gates(&streamcluster()), all);
    // 95 % reads are enough, 94 % are not.
    let mut one = streamcluster();
    one.reads = Reads::Fills { all: 100, modified: 5 };
    assert!(gates(&one).replicate);
    assert!(!gates(&written(streamcluster())).replicate);
    one.reads = Reads::Lines { reads: 90, writes: 10 };
    assert!(gates(&one).replicate);
    one.reads = Reads::Lines { reads: 89, writes: 11 };
    assert!(!gates(&one).replicate);
    one.reads = Reads::Unknown;
    assert!(!gates(&one).replicate);
    // More than a quarter of memory in use.
    let mut one = streamcluster();
    one.nodes[0].free = Bytes((3 << 30) - 1_000_000_000);
    assert!(!gates(&one).replicate);
    // 80 % local is enough, and a third uneven is not too much.
    let local = round([[80, 0, 20, 0], [0, 80, 0, 20], [20, 0, 80, 0], [0, 20, 0, 80]]);
    assert_eq!(gates(&written(local)), Gates::default());
    let uneven = round([[35, 20, 20, 25]; 4]);
    assert!(!gates(&uneven).interleave, "sample deviation of 28 %");
    let local = round([[400, 0, 0, 0], [0; 4], [0; 4], [0; 4]]);
    assert_eq!(gates(&written(local)), Gates::default(), "all local, however uneven");
}

#[test]
fn pages_read_by_several_nodes_are_replicated_from_500_candidates_on() {
    let even = || round([[25; 4]; 4]);
    let mut one = Carrefour::new(Config::default());
    let few = one.step(&even(), &shared(0..499));
    assert_eq!((few.actions.len(), left(&few, Left::TooFewToReplicate)), (0, 499));
    let enough = one.step(&even(), &shared(0..500));
    assert_eq!(enough.actions.len(), 500);
    let on = (0..4).map(NodeId).collect();
    assert_eq!(
        enough.actions[0],
        (Action::Replicate { page: page(0), on }, Why::Read { nodes: 4 })
    );
    // After the first replica one page is enough; before, it is not.
    assert_eq!(one.step(&even(), &shared(0..1)).actions.len(), 0);
    one.executed(Executed { moves: 0, replicas: 500 });
    assert_eq!(one.step(&even(), &shared(0..1)).actions.len(), 1);
}

#[test]
fn one_sampled_write_prevents_replication_of_a_page() {
    let mut one = Carrefour::new(Config { replicas_first: 1, ..Config::default() });
    let mut samples: Vec<_> = (0..4).map(|cpu| read(1, cpu)).collect();
    samples[3].write = true;
    let decision = one.step(&streamcluster(), &table(samples));
    let replicas =
        decision.actions.iter().filter(|(action, _)| matches!(action, Action::Replicate { .. }));
    assert_eq!(replicas.count(), 0);
}

#[test]
fn interleaving_moves_pages_off_a_node_in_proportion_to_its_share() {
    let decision = step(&written(streamcluster()), &shared(0..20_000));
    let mut to = [0_u64; 4];
    for (action, why) in &decision.actions {
        let Action::Move { to: node, .. } = action else { panic!("{action:?}") };
        to[usize::from(node.0)] += 1;
        assert_eq!(*why, Why::Spread { share: BasisPoints(9_700) });
    }
    assert_eq!(to[0], 0);
    // 97 % are drawn; node 0 is drawn again for 3 of 300 of them, the others for 99 each.
    for there in &to[1..] {
        assert!(there.abs_diff(6_402) < 200, "{to:?}");
    }
    assert!(left(&decision, Left::NotDrawn).abs_diff(600) < 100);
    assert!(left(&decision, Left::OwnDrawn).abs_diff(194) < 60);
}

#[test]
fn an_interleaved_page_stays_unless_random_draws_are_configured() {
    let moves_again = |draw| {
        let mut one = Carrefour::new(Config { draw, ..Config::default() });
        let (round, mut pages) = (written(streamcluster()), shared(0..2_000));
        for _ in 0..2 {
            let decision = one.step(&round, &pages);
            let mut samples = Vec::new();
            for number in 0..2_000 {
                let moved = decision.actions.iter().find_map(|(action, _)| match action {
                    Action::Move { page, to } if page.number == number => Some(*to),
                    _ => None,
                });
                let node = moved.unwrap_or(pages.pages()[&page(number)].node);
                samples.extend((0..4).map(|cpu| Sample { node, ..read(number, cpu) }));
            }
            pages = table(samples);
        }
        one.step(&round, &pages).actions.len()
    };
    assert_eq!(moves_again(Draw::ByPage), 0);
    let by_chance = moves_again(Draw::Anew { seed: 1 });
    assert!(by_chance > 20, "{by_chance}");
    assert_eq!(by_chance, moves_again(Draw::Anew { seed: 1 }), "the same for a seed");
}

#[test]
fn a_page_of_one_node_is_moved_after_two_samples_or_one_if_interleaving() {
    let elsewhere = written(round([[25; 4]; 4]));
    let once = step(&elsewhere, &table([read(1, 2)]));
    assert_eq!((once.actions.len(), left(&once, Left::TooFewSamples)), (0, 1));
    let twice = step(&elsewhere, &table([read(1, 2), read(1, 2)]));
    let action = Action::Move { page: page(1), to: NodeId(2) };
    assert_eq!(twice.actions, [(action.clone(), Why::Lone { samples: 2 })]);
    let once = step(&written(streamcluster()), &table([read(1, 2)]));
    assert_eq!(once.actions, [(action, Why::Lone { samples: 1 })]);
    let local = step(&elsewhere, &table([read(1, 0), read(1, 0)]));
    assert_eq!(left(&local, Left::Local), 1);
}

#[test]
fn a_page_is_not_moved_to_a_node_without_free_memory() {
    let mut full = written(round([[25; 4]; 4]));
    full.nodes[2].free = Bytes(4096);
    let two = table([read(1, 2), read(1, 2), read(2, 2), read(2, 2)]);
    let decision = step(&full, &two);
    assert_eq!((decision.actions.len(), left(&decision, Left::NoRoom)), (1, 1));
}

#[test]
fn few_moves_make_sampling_sparse_and_its_table_smaller() {
    let mut one = Carrefour::new(Config::default());
    assert_eq!((one.sampling(), one.pages_max()), (Sampling::Dense, 30_000));
    one.executed(Executed { moves: 5, replicas: 4 });
    assert_eq!((one.sampling(), one.pages_max()), (Sampling::Sparse, 10_000));
    one.executed(Executed { moves: 5, replicas: 5 });
    assert_eq!(one.sampling(), Sampling::Dense);
}

#[test]
fn processes_that_write_or_have_no_counters_get_no_replicas() {
    let by_process = Some(ByProcess::default());
    let config = Config { by_process, replicas_first: 1, ..Config::default() };
    let mut busy = round([[25; 4]; 4]);
    let thread = |process, cpu, modified| Thread {
        process: Process(process),
        cpu: BasisPoints(cpu),
        fills: 100,
        modified,
    };
    // Process 1 only reads; a thread of 2 writes; the writer of 3 hardly runs; 4 does not exist.
    busy.threads =
        vec![thread(1, 5000, 5), thread(2, 5000, 0), thread(2, 5000, 6), thread(3, 5000, 0)];
    busy.threads.push(thread(3, 999, 50));
    let pages = (1..=4).flat_map(|process| {
        (0..4).map(move |cpu| Sample {
            page: Page { process: Process(process), number: 1 },
            ..read(1, cpu)
        })
    });
    let pages = table(pages);
    let mut one = Carrefour::new(config);
    let decision = one.step(&busy, &pages);
    let replicated: Vec<u32> = decision
        .actions
        .iter()
        .map(|(action, _)| match action {
            Action::Replicate { page, .. } => page.process.0,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(replicated, [1, 3]);
    busy.coverage = BasisPoints(1_499);
    assert_eq!(one.step(&busy, &pages).hold, Some(Hold::Coverage(BasisPoints(1_499))));
}

#[test]
fn without_the_extension_a_huge_page_is_split_before_its_pieces_move() {
    let huge = |number, cpu| Sample { huge: true, ..read(number, cpu) };
    let samples = [huge(513, 1), huge(513, 1), huge(600, 2), huge(600, 2)];
    let decision = step(&written(round([[25; 4]; 4])), &table(samples));
    let actions: Vec<_> = decision.actions.iter().map(|(action, _)| action.clone()).collect();
    assert_eq!(
        actions,
        [
            Action::Split { page: page(512) },
            Action::Move { page: page(513), to: NodeId(1) },
            Action::Move { page: page(600), to: NodeId(2) },
        ]
    );
}

/// Huge pages `0..pages`, of each of which every node uses different pieces.
fn falsely_shared(pages: u64) -> Table {
    table((0..pages).flat_map(|whole| {
        (0..4_usize)
            .map(move |cpu| Sample { huge: true, ..read(whole * 512 + 1 + cpu as u64, cpu) })
    }))
}

fn splits(decision: &Decision) -> usize {
    decision.actions.iter().filter(|(action, _)| matches!(action, Action::Split { .. })).count()
}

#[test]
fn falsely_shared_huge_pages_are_split_in_the_second_round_to_request_it() {
    let mut one = Carrefour::new(Config::with_huge_pages());
    let (even, pages) = (written(round([[25; 4]; 4])), falsely_shared(100));
    let first = one.step(&even, &pages);
    let locality = first.locality.unwrap();
    let split = BasisPoints(10_000);
    assert_eq!(locality, Locality { now: BasisPoints(2_500), whole: BasisPoints(2_500), split });
    assert_eq!(splits(&first), 0);
    let second = one.step(&even, &pages);
    assert_eq!(splits(&second), 100);
    let gain = BasisPoints(7_500);
    assert_eq!(second.actions[0].1, Why::FalselyShared { gain });
}

#[test]
fn splitting_takes_three_per_cent_of_a_round() {
    let mut one = Carrefour::new(Config::with_huge_pages());
    let (even, pages) = (written(round([[25; 4]; 4])), falsely_shared(400));
    one.step(&even, &pages);
    let second = one.step(&even, &pages);
    assert_eq!((splits(&second), left(&second, Left::NoTimeToSplit)), (300, 100));
}

#[test]
fn a_hot_shared_huge_page_is_split_at_once_and_interleaved() {
    let hot = (0..7).flat_map(|_| (0..4).map(|cpu| Sample { huge: true, ..read(512, cpu) }));
    let rest = (0..373).map(|number| Sample { node: NodeId(1), ..read(5120 + number, 1) });
    let decision = Carrefour::new(Config::with_huge_pages())
        .step(&written(round([[25; 4]; 4])), &table(hot.chain(rest)));
    let share = BasisPoints(698);
    assert_eq!(decision.actions[0], (Action::Split { page: page(512) }, Why::Hot { share }));
    let gone = decision.actions.iter().filter(|(_, why)| *why == Why::Hot { share }).count();
    assert_eq!(gone, 1 + 384, "of 512 pieces a quarter stays");
}

#[test]
fn a_huge_page_moves_once() {
    let mut one = Carrefour::new(Config::with_huge_pages());
    let pages = table((0..2).map(|_| Sample { huge: true, ..read(512, 3) }));
    let uneven = written(streamcluster());
    let first = one.step(&uneven, &pages);
    assert_eq!(first.actions[0].0, Action::Move { page: page(512), to: NodeId(3) });
    // The action was effective, so that the next round is not skipped.
    let second = one.step(&written(round([[80, 10, 5, 5]; 4])), &pages);
    assert_eq!((second.effect, left(&second, Left::MovedOften)), (Some(Effect::Worth), 1));
}

#[test]
fn an_ineffective_action_is_followed_by_a_pause_and_longer_rounds() {
    let mut one = Carrefour::new(Config::with_huge_pages());
    let pages = |node| table((0..9).map(move |n| Sample { node, ..read(n, 3) }));
    let uneven = written(streamcluster());
    assert!(!one.step(&uneven, &pages(NodeId(0))).actions.is_empty());
    let after = one.step(&uneven, &pages(NodeId(0)));
    assert_eq!((after.effect, after.hold), (Some(Effect::None), Some(Hold::NotWorthIt)));
    assert_eq!(after.period, Nanoseconds(5_000_000_000));
    let again = one.step(&uneven, &pages(NodeId(0)));
    assert_eq!((again.hold, again.period), (None, Nanoseconds(5_000_000_000)));
    // Three times the share is local now.
    let better = one.step(&written(round([[75, 25, 0, 0]; 4])), &table([]));
    assert_eq!((better.effect, better.period), (Some(Effect::Worth), Nanoseconds(1_000_000_000)));
}

#[test]
fn high_page_walk_or_fault_cost_enables_joining_huge_pages() {
    let joins = |walks, faults| {
        let lost = Translation { walks: BasisPoints(walks), faults: BasisPoints(faults) };
        let mut one = Carrefour::new(Config::with_huge_pages());
        one.step_with(&streamcluster(), &table([]), lost).join
    };
    assert!(!joins(500, 499));
    assert!(joins(501, 0) && joins(0, 500));
}

proptest! {
    #[test]
    fn decisions_are_deterministic_and_stay_within_free_memory(
        cells in prop::collection::vec(prop::collection::vec(0_u64..1 << 40, 0..6), 0..6),
        samples in prop::collection::vec((0_u64..3000, 0_u16..6, 0_usize..6, any::<bool>(), any::<bool>()), 0..200),
        free in 0_u64..1 << 23,
        huge in any::<bool>(),
    ) {
        let mut one = streamcluster();
        one.accesses = cells;
        one.nodes.iter_mut().for_each(|node| node.free = Bytes(free));
        let samples = samples.into_iter().map(|(number, node, cpu, write, huge)| Sample {
            node: NodeId(node), huge, write, ..read(number, cpu)
        });
        let pages = table(samples);
        let config = if huge { Config::with_huge_pages() } else { Config::default() };
        let (mut a, mut b) = (Carrefour::new(config.clone()), Carrefour::new(config));
        for _ in 0..3 {
            let decision = a.step(&one, &pages);
            prop_assert_eq!(&decision, &b.step(&one, &pages));
            for node in 0..4 {
                let there = |action: &Action| matches!(action, Action::Move { to, .. } if to.0 == node);
                let came = decision.actions.iter().filter(|(action, _)| there(action)).count() as u64;
                let gone = decision.actions.len() as u64;
                prop_assert!(came <= free / 4096 + gone * 512);
            }
        }
    }
}
