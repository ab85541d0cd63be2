//! Huge pages by hand-computed figures: locality estimates, effects at their thresholds, the wish to split and its time.

use alloc::vec;
use alloc::vec::Vec;

use nearfar_topology::{Bytes, Nanoseconds, NodeId};

use super::*;
use crate::traffic::carrefour::{Carrefour, Config, Gates};
use crate::traffic::{Memory, Process, Reads, Round, Sample};

const fn page(number: u64) -> Page {
    Page { process: Process(1), number }
}

/// A sample of a piece of a huge page on node 0.
const fn sample(number: u64, cpu: usize) -> Sample {
    Sample { page: page(number), node: NodeId(0), huge: true, cpu, write: true }
}

fn table(samples: impl IntoIterator<Item = Sample>) -> Table {
    let mut table = Table::new(30_000, 16);
    samples.into_iter().for_each(|sample| table.add(sample));
    table
}

/// Four nodes, the last without memory; a busy second with even traffic.
fn round() -> Round {
    let mut round = wide(4);
    (round.nodes[3].total, round.nodes[3].free) = (Bytes(0), Bytes(0));
    round
}

/// The same second on a machine with these nodes, all with memory.
fn wide(nodes: u16) -> Round {
    let memory = |node| Memory { node: NodeId(node), total: Bytes(4 << 30), free: Bytes(1 << 30) };
    let all = usize::from(nodes);
    Round {
        elapsed: Nanoseconds(1_000_000_000),
        coverage: BasisPoints(10_000),
        nodes: (0..nodes).map(memory).collect(),
        accesses: vec![vec![25_000_000; all]; all],
        reads: Reads::Fills { all: 100, modified: 50 },
        threads: Vec::new(),
    }
}

fn estimate(table: &Table, replicate: bool) -> [u32; 3] {
    let (config, round) = (Config::with_huge_pages(), round());
    let gates = Gates { replicate, ..Gates::default() };
    let pages = Pages::new(&config, &round, gates, 1);
    let Locality { now, whole, split } = locality(table, &table.whole_pages(), &pages);
    [now.0, whole.0, split.0]
}

#[test]
fn a_shared_page_is_local_for_one_access_in_the_number_of_memory_nodes() {
    // Node 0 makes one of four accesses; the pieces have one user each; three nodes have memory.
    let shared = table((0..4).map(|cpu| sample(512 + cpu as u64, cpu)));
    assert_eq!(estimate(&shared, false), [2_500, 2_500, 10_000], "1 of 4, and 4 / 3 rounded down");
    // Six accesses of two nodes to one piece: splitting gains nothing, moving neither.
    let piece = table((0..6).map(|at| sample(512, at % 2)));
    assert_eq!(estimate(&piece, false), [5_000, 3_333, 3_333]);
    let lone = table((0..5).map(|_| sample(512, 2)));
    assert_eq!(estimate(&lone, false), [0, 10_000, 10_000], "moved whole to node 2");
    assert_eq!(estimate(&table([]), false), [0, 0, 0]);
}

#[test]
fn a_page_to_replicate_is_local_to_all_its_readers() {
    let read = (0..4).map(|cpu| Sample { write: false, ..sample(512, cpu) });
    let written = (0..4).map(|cpu| sample(1024, cpu));
    let both = table(read.chain(written));
    assert_eq!(estimate(&both, false), [2_500, 2_500, 2_500], "8 / 3 is 2 of 8");
    assert_eq!(estimate(&both, true), [2_500, 6_250, 6_250], "4 and 4 / 3, of 8");
}

#[test]
fn an_action_is_judged_by_the_published_thresholds() {
    let huge = Huge::default();
    let metrics = |local, imbalance| Metrics {
        local: BasisPoints(local),
        imbalance: BasisPoints(imbalance),
        ..Metrics::default()
    };
    let after = |local, imbalance| effect(&huge, metrics(5_000, 6_000), metrics(local, imbalance));
    assert_eq!([after(5_500, 6_000), after(5_499, 6_000)], [Effect::Worth, Effect::None]);
    assert_eq!([after(5_000, 5_400), after(5_000, 5_401)], [Effect::Worth, Effect::None]);
    assert_eq!([after(4_750, 6_000), after(4_749, 6_000)], [Effect::None, Effect::Harm]);
    assert_eq!(after(4_000, 0), Effect::Harm, "however even the traffic is now");
    assert_eq!(after(4_750, 5_400), Effect::Worth, "a twentieth less local is no harm");
    assert_eq!(effect(&huge, metrics(0, 0), metrics(1, 0)), Effect::Worth);
}

/// Huge pages of which each of these nodes uses a piece of its own.
fn falsely_shared(pages: u64, nodes: usize) -> Table {
    let piece = |whole: u64| move |cpu| sample(whole * 512 + cpu as u64, cpu);
    table((0..pages).flat_map(|whole| (0..nodes).map(piece(whole))))
}

fn splits(decision: &Decision) -> usize {
    decision.actions.iter().filter(|(action, _)| matches!(action, Action::Split { .. })).count()
}

#[test]
fn a_round_that_requests_no_split_resets_the_round_count() {
    let mut one = Carrefour::new(Config::with_huge_pages());
    let (shared, local) = (falsely_shared(50, 3), table((0..100).map(|n| sample(n, 0))));
    let rounds =
        [&shared, &local, &shared, &shared].map(|table| splits(&one.step(&round(), table)));
    assert_eq!(rounds, [0, 0, 0, 50]);
}

#[test]
fn shared_pages_are_not_split_while_moving_pages_whole_gains_as_much() {
    let mut one = Carrefour::new(Config::with_huge_pages());
    // Half of the samples are of pages that node 2 alone uses: moving them makes 53 % local, from 5 %.
    let moved = (0..400).map(|at| sample(51_200 + at * 512, 2));
    let shared = (0..100).flat_map(|at| (0..4).map(move |cpu| sample(at * 512 + cpu as u64, cpu)));
    let both = table(moved.chain(shared));
    for _ in 0..3 {
        let decision = one.step(&round(), &both);
        assert_eq!(splits(&decision), 0);
        let locality = decision.locality.unwrap();
        assert!(locality.split.0 > locality.whole.0 + 500, "{locality:?}");
    }
}

#[test]
fn samples_with_too_few_local_accesses_request_no_split() {
    let splits_if = |local_least| {
        let huge = Huge { local_least: BasisPoints(local_least), ..Huge::default() };
        let mut one = Carrefour::new(Config { huge: Some(huge), ..Config::with_huge_pages() });
        // One of sixteen samples of each page is local, and would be after moving it whole.
        let shared = falsely_shared(20, 16);
        let first = one.step(&wide(16), &shared).locality.unwrap();
        assert_eq!([first.now, first.whole, first.split], [625, 625, 10_000].map(BasisPoints));
        splits(&one.step(&wide(16), &shared))
    };
    assert_eq!([splits_if(1_000), splits_if(626), splits_if(625)], [0, 0, 20]);
}

#[test]
fn longer_rounds_have_time_for_more_splits() {
    let splits = |takes, period| {
        let huge = Huge { split_takes: Nanoseconds(takes), ..Huge::default() };
        let period = Nanoseconds(period);
        let config = Config { huge: Some(huge), period, ..Config::with_huge_pages() };
        let mut one = Carrefour::new(config);
        let shared = falsely_shared(200, 3);
        one.step(&round(), &shared);
        splits(&one.step(&round(), &shared))
    };
    // 3 % of a fifth of a second are 6 ms.
    assert_eq!(splits(100_000, 200_000_000), 60);
    assert_eq!(splits(100_000, 400_000_000), 120);
    assert_eq!(splits(50_000, 400_000_000), 200, "all");
    assert_eq!(splits(7_000_000, 200_000_000), 0);
}
