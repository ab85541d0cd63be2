//! Carrefour: each sampled page is decided on once, by its samples alone, and stays if it is well placed.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_policy::traffic::carrefour::{
    Action, Carrefour, Config, Decision, Draw, Executed, Hold, Sampling,
};
use nearfar_policy::traffic::{Memory, Page, Process, Reads, Round, Sample, Table};
use nearfar_topology::{BasisPoints, Bytes, Nanoseconds, NodeId};
use proptest::prelude::*;

const NODES: usize = 4;

/// A busy second on four nodes with three quarters of memory free.
fn round(cells: &[u64], modified: u64) -> Round {
    let memory = |node| Memory { node: NodeId(node), total: Bytes(4 << 30), free: Bytes(3 << 30) };
    Round {
        elapsed: Nanoseconds(1_000_000_000),
        coverage: BasisPoints(10_000),
        nodes: (0..).map(memory).take(NODES).collect(),
        accesses: cells
            .chunks(NODES)
            .map(|row| row.iter().map(|cell| cell * 1_000_000).collect())
            .collect(),
        reads: Reads::Fills { all: 100, modified },
        threads: Vec::new(),
    }
}

fn any_round() -> impl Strategy<Value = Round> {
    (prop::collection::vec(0u64..200, NODES * NODES), 0u64..12)
        .prop_map(|(cells, modified)| round(&cells, modified))
}

fn any_table() -> impl Strategy<Value = Table> {
    let sample = (0u64..300, 0..NODES, 0u8..10).prop_map(|(number, cpu, write)| Sample {
        page: Page { process: Process(1), number },
        // A page is on one node, for all requesters.
        node: NodeId(u16::try_from(number % 4).unwrap()),
        huge: false,
        cpu,
        write: write == 0,
    });
    prop::collection::vec(sample, 0..600).prop_map(|samples| {
        let mut table = Table::new(30_000, NODES);
        samples.into_iter().for_each(|sample| table.add(sample));
        table
    })
}

/// Few replicas are enough here.
fn config() -> Config {
    Config { replicas_first: 5, ..Config::default() }
}

fn step(round: &Round, table: &Table) -> Decision {
    Carrefour::new(config()).step(round, table)
}

fn page_of(action: &Action) -> Page {
    match action {
        Action::Move { page, .. } | Action::Replicate { page, .. } | Action::Split { page } => {
            *page
        }
    }
}

/// The target of each page that moves.
fn moves(decision: &Decision) -> BTreeMap<Page, NodeId> {
    let going = |(action, _): &(Action, _)| match action {
        Action::Move { page, to } => Some((*page, *to)),
        _ => None,
    };
    decision.actions.iter().filter_map(going).collect()
}

fn acted(table: &mut Table, decision: &Decision) {
    moves(decision).into_iter().for_each(|(page, to)| table.placed(page, 1, to));
}

proptest! {
    #[test]
    fn every_sampled_page_gets_one_action_or_a_reason_for_none(round in any_round(), table in any_table()) {
        let decision = step(&round, &table);
        let pages: BTreeSet<Page> = decision.actions.iter().map(|(action, _)| page_of(action)).collect();
        prop_assert_eq!(pages.len(), decision.actions.len());
        let left: u64 = decision.left.iter().map(|(_, pages)| pages).sum();
        if decision.hold.is_none() {
            prop_assert_eq!(pages.len() as u64 + left, table.pages().len() as u64);
        }
    }

    #[test]
    fn nothing_is_done_on_hold_or_with_all_mechanisms_off(round in any_round(), table in any_table()) {
        let decision = step(&round, &table);
        prop_assert!(decision.hold.is_none() || decision.actions.is_empty());
        prop_assert_eq!(decision.hold == Some(Hold::NothingOn) || decision.hold == Some(Hold::NotBusy), !decision.gates.any());
    }

    #[test]
    fn no_page_goes_to_the_node_it_is_on(round in any_round(), table in any_table()) {
        for (page, to) in moves(&step(&round, &table)) {
            prop_assert_ne!(table.pages()[&page].node, to);
        }
    }

    #[test]
    fn a_page_of_one_node_goes_to_that_node_or_nowhere(round in any_round(), table in any_table()) {
        for (page, to) in moves(&step(&round, &table)) {
            if let Some(lone) = table.pages()[&page].lone() {
                prop_assert_eq!(usize::from(to.0), lone);
            }
        }
    }

    #[test]
    fn only_pages_read_by_several_nodes_and_never_written_are_replicated(round in any_round(), table in any_table()) {
        let decision = step(&round, &table);
        for (action, _) in &decision.actions {
            if let Action::Replicate { page, on } = action {
                let one = &table.pages()[page];
                prop_assert!(decision.gates.replicate && one.writes == 0 && on.len() >= 2);
                prop_assert!(on.iter().all(|node| one.by[usize::from(node.0)] > 0));
            }
        }
    }

    #[test]
    fn a_sampled_write_to_every_page_prevents_all_replication(round in any_round(), table in any_table()) {
        let mut written = table.clone();
        for (page, one) in table.pages() {
            written.add(Sample { page: *page, node: one.node, huge: false, cpu: 0, write: true });
        }
        let replicates = |(action, _): &(Action, _)| matches!(action, Action::Replicate { .. });
        prop_assert!(!step(&round, &written).actions.iter().any(replicates));
    }

    #[test]
    fn no_page_is_moved_to_nodes_without_memory_or_free_memory(round in any_round(), table in any_table(), node in 0..NODES, is_full in any::<bool>()) {
        let mut round = round;
        match is_full {
            true => round.nodes[node].free = Bytes(0),
            false => (round.nodes[node].total, round.nodes[node].free) = (Bytes(0), Bytes(0)),
        }
        let decision = step(&round, &table);
        let away: u64 = decision.actions.iter().filter(|(action, _)| usize::from(table.pages()[&page_of(action)].node.0) == node).count() as u64;
        let there = moves(&decision).values().filter(|to| usize::from(to.0) == node).count() as u64;
        // A page that leaves frees memory for one that arrives.
        prop_assert!(there <= away);
    }

    #[test]
    fn pages_that_moved_as_decided_are_not_moved_again(round in any_round(), table in any_table()) {
        let mut table = table;
        let mut one = Carrefour::new(config());
        let first = one.step(&round, &table);
        acted(&mut table, &first);
        prop_assert_eq!(moves(&one.step(&round, &table)), BTreeMap::new());
    }

    #[test]
    fn renaming_the_nodes_renames_the_decision(round in any_round(), table in any_table(), names in Just([5u16, 70, 200, 1023]).prop_shuffle()) {
        let plain = step(&round, &table);
        let mut renamed = round;
        renamed.nodes.iter_mut().zip(names).for_each(|(memory, name)| memory.node = NodeId(name));
        let mut other = table.clone();
        table.pages().iter().for_each(|(page, one)| other.placed(*page, 1, NodeId(names[usize::from(one.node.0)])));
        let found = step(&renamed, &other);
        let expected: BTreeMap<Page, NodeId> =
            moves(&plain).into_iter().map(|(page, to)| (page, NodeId(names[usize::from(to.0)]))).collect();
        prop_assert_eq!(moves(&found), expected);
        prop_assert_eq!((found.left, found.gates), (plain.left, plain.gates));
    }

    #[test]
    fn scaling_time_and_accesses_of_a_round_changes_no_decision(round in any_round(), table in any_table(), times in 1u64..20) {
        let mut longer = round.clone();
        longer.elapsed.0 *= times;
        longer.accesses.iter_mut().flatten().for_each(|cell| *cell *= times);
        prop_assert_eq!(step(&longer, &table), step(&round, &table));
    }

    #[test]
    fn a_page_moves_at_most_the_configured_number_of_times(round in any_round(), table in any_table(), most in 1u32..4, seed in any::<u64>()) {
        let config = Config { moves_per_page: most, draw: Draw::Anew { seed }, ..config() };
        let (mut one, mut table) = (Carrefour::new(config), table);
        let mut moved: BTreeMap<Page, u32> = BTreeMap::new();
        for _ in 0..12 {
            let decision = one.step(&round, &table);
            moves(&decision).into_keys().for_each(|page| *moved.entry(page).or_default() += 1);
            acted(&mut table, &decision);
        }
        prop_assert!(moved.values().all(|moves| *moves <= most));
    }

    #[test]
    fn the_same_seed_gives_the_same_decisions_in_every_round(table in any_table(), seed in any::<u64>()) {
        let config = || Config { draw: Draw::Anew { seed }, ..config() };
        let round = round(&[97, 1, 1, 1].repeat(4), 9);
        let (mut one, mut other) = (Carrefour::new(config()), Carrefour::new(config()));
        for _ in 0..3 {
            prop_assert_eq!(one.step(&round, &table), other.step(&round, &table));
        }
    }

    #[test]
    fn sampling_is_dense_only_after_a_round_that_did_enough(moves in 0u64..30, replicas in 0u64..30) {
        let mut one = Carrefour::new(config());
        one.executed(Executed { moves, replicas });
        let dense = moves + replicas >= config().executed_few;
        prop_assert_eq!(one.sampling(), if dense { Sampling::Dense } else { Sampling::Sparse });
        let (large, small) = config().pages_max;
        prop_assert_eq!(one.pages_max(), if dense { large } else { small });
    }
}

#[test]
fn a_busy_unbalanced_machine_uses_all_mechanisms() {
    let mut table = Table::new(30_000, NODES);
    for (number, cpus) in [(0, vec![1, 1]), (1, vec![0, 2]), (2, vec![0, 3])] {
        for copy in 0..10 {
            let page = Page { process: Process(1), number: number + 10 * copy };
            let sample =
                |cpu| Sample { page, node: NodeId(0), huge: false, cpu, write: number == 2 };
            cpus.iter().for_each(|cpu| table.add(sample(*cpu)));
        }
    }
    let decision = step(&round(&[97, 1, 1, 1].repeat(4), 3), &table);
    assert!(decision.gates.replicate && decision.gates.interleave && decision.gates.relocate);
    let of = |number: u64| {
        decision
            .actions
            .iter()
            .filter(|(action, _)| page_of(action).number % 10 == number)
            .collect::<Vec<_>>()
    };
    assert!(of(0).iter().all(|(action, _)| matches!(action, Action::Move { to: NodeId(1), .. })));
    assert!(of(1).iter().all(|(action, _)| matches!(action, Action::Replicate { .. })));
    assert_eq!((of(0).len(), of(1).len()), (10, 10), "{decision:?}");
    assert!(of(2).len() > 5, "97 % of pages on the busy node are drawn: {decision:?}");
}
