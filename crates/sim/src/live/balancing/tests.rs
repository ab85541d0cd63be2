//! The loop's ports on readings of an idle machine: page numbers, the rate, lost readings, reported moves.

use nearfar_control::balancing::Wanted;
use nearfar_policy::traffic::balance::Decision;
use proptest::prelude::*;

use super::*;
use crate::live::testkit::{node, pages, readings, tiers};
use crate::machine::{Builder, Machine, Route};
use crate::pages::Pages;

#[test]
fn a_mismatch_is_the_only_verdict_that_is_a_failure() {
    let with = |verdict| Decided::Balance {
        decision: Box::new(Decision {
            verdict,
            shifts: Vec::new(),
            weights: Vec::new(),
            costs: Vec::new(),
            foreign: Vec::new(),
            confidence: BasisPoints(10_000),
        }),
        wanted: Wanted::default(),
    };
    assert!(is_mismatch(Some(&with(Verdict::Mismatch))));
    for other in [Verdict::Quiet, Verdict::Stale, Verdict::Settled { gain: BasisPoints(0) }] {
        assert!(!is_mismatch(Some(&with(other))));
    }
    assert!(!is_mismatch(None));
}

const MIB: u64 = 1 << 20;

/// A mover over two nodes of 64 GiB, with a counter for the first alone.
fn mover(machine: &Machine, pages: &Pages, rate_gbps: f64) -> Mover {
    let readings = Readings { rate_gbps, ..readings(machine, pages) };
    let mut mover = Mover::new(&readings, vec![true, false]);
    mover.see(&readings);
    mover
}

fn two() -> Machine {
    tiers(&[64 << 30, 64 << 30])
}

/// A request to move the loop's page of this number from node 0 to node 1.
fn request(number: u64, huge: bool) -> Move {
    let page = Page { process: WORKLOAD, number };
    Move { page, huge, from: Some(NodeId(0)), to: NodeId(1) }
}

const SECOND: u64 = 1_000_000_000;

proptest! {
    #[test]
    fn every_piece_of_a_page_maps_back_to_its_index(units in 1u64..40, is_huge in any::<bool>(), page in 0u32..100, piece in 0u64..40) {
        // Pages of small ones or of huge ones.
        let bytes = units * if is_huge { HUGE } else { PAGE };
        let (machine, pages) = (two(), pages(&[0; 100], bytes));
        let mover = mover(&machine, &pages, 1.0);
        let (found, huge) = mover.page(page, piece % mover.pieces);
        prop_assert_eq!(mover.index(found), Some(page));
        prop_assert_eq!(huge, bytes.is_multiple_of(HUGE));
        prop_assert_eq!(mover.unit * mover.pieces, bytes);
        let beyond = mover.page(100, 0).0;
        prop_assert_eq!(mover.index(beyond), None);
    }

    #[test]
    fn huge_pages_grouped_into_one_page_move_the_requested_bytes(pieces in 1u64..9, asked in 0u64..60) {
        let (machine, pages) = (two(), pages(&[0; 60], pieces * HUGE));
        let mut mover = mover(&machine, &pages, 1_000.0);
        mover.ask((0..asked).map(|at| request(at * pieces * PIECES, true)).collect());
        mover.work(Nanoseconds(SECOND));
        prop_assert_eq!(mover.acts.len() as u64, asked / pieces);
        // The others are reported as not moved, at the next call.
        let reported = mover.work(Nanoseconds(SECOND));
        let refused = reported.iter().filter(|of| !of.moved && of.on == Some(NodeId(0))).count() as u64;
        prop_assert_eq!(refused, asked);
    }
}

#[test]
fn moves_are_rate_limited_with_a_burst_of_at_most_a_second() {
    let (machine, pages) = (two(), pages(&[0; 100], PAGE));
    // Ten pages and a half in a second.
    let mut mover = mover(&machine, &pages, 10.5 * 4_096.0 / 1e9);
    mover.ask((0..40).map(|page| request(page, false)).collect());
    let mut handed = Vec::new();
    for seconds in [0, 1, 2, 12] {
        mover.work(Nanoseconds(seconds * SECOND));
        handed.push(mover.acts.len());
    }
    // The halves are kept until there is a whole page; ten seconds allow as much as one.
    assert_eq!(handed, [0, 10, 20, 30]);
    assert_eq!((mover.waiting(), mover.next()), (10, Some(Nanoseconds(1))));
    mover.forget();
    assert_eq!(mover.waiting(), 0);
}

#[test]
fn a_huge_page_takes_two_mebibytes_of_the_rate() {
    let (machine, mut pages) = (two(), pages(&[0; 2_048], PAGE));
    pages.huge.fill(true);
    let mut mover = mover(&machine, &pages, 5e6 / 1e9);
    mover.ask((0..4).map(|at| request(at * PIECES, true)).collect());
    mover.work(Nanoseconds(SECOND));
    assert_eq!(mover.acts, [0, 512].map(|page| Act::Move { page, to: 1 }), "4 MiB are below 5 MB");
}

#[test]
fn a_request_for_a_page_no_longer_on_its_source_is_not_executed() {
    let (machine, pages) = (two(), pages(&[0, 1], PAGE));
    let mut mover = mover(&machine, &pages, 1.0);
    mover.ask(vec![request(1, false), request(99, false)]);
    assert_eq!(mover.work(Nanoseconds(SECOND)), []);
    assert!(mover.acts.is_empty());
    let placed = Placed { asked: request(1, false), on: Some(NodeId(1)), moved: false };
    assert_eq!(mover.work(Nanoseconds(SECOND)), [placed], "there is no page 99");
    assert_eq!(mover.next(), None);
}

#[test]
fn moves_are_reported_once_the_simulator_has_carried_them_out() {
    let (machine, before) = (two(), pages(&[0, 0, 0], PAGE));
    let mut mover = mover(&machine, &before, 1.0);
    let asked = [0, 1, 2].map(|page| request(page, false));
    mover.ask(asked.to_vec());
    mover.work(Nanoseconds(SECOND));
    // The first has moved, the second failed, the third waits.
    let after = pages(&[1, 0, 0], PAGE);
    mover.see(&Readings { waiting: 1, ..readings(&machine, &after) });
    let placed = |at: usize, on, moved| Placed { asked: asked[at], on: Some(NodeId(on)), moved };
    assert_eq!(mover.work(Nanoseconds(SECOND)), [placed(0, 1, true), placed(1, 0, false)]);
    mover.see(&readings(&machine, &pages(&[1, 0, 1], PAGE)));
    assert_eq!(mover.work(Nanoseconds(SECOND)), [placed(2, 1, true)]);
}

#[test]
fn only_huge_pages_made_of_small_pages_are_split() {
    let (machine, mut small) = (two(), pages(&[0; 1_024], PAGE));
    small.huge[1] = true;
    let mut of_small = mover(&machine, &small, 1.0);
    let page = |number| Page { process: WORKLOAD, number };
    let split = [5, 600, 9_999].map(|number| of_small.split(page(number)));
    assert_eq!((split, of_small.acts), ([false, true, false], vec![Act::Split { page: 600 }]));
    let large = pages(&[0; 4], 16 * MIB);
    assert!(!mover(&machine, &large, 1.0).split(page(0)), "it stands for eight huge pages");
}

/// Two nodes with CPUs.
fn with_cpus() -> Machine {
    let mut of = Builder::tiers("two", 2.0, vec![(100.0, node(1 << 30)), (160.0, node(1 << 30))]);
    (of.cpu_nodes, of.routes) = (vec![0, 1], vec![vec![Route::default(); 2]; 2]);
    of.latency_ns.push(vec![160.0, 100.0]);
    of.build().unwrap()
}

#[test]
fn a_reading_scales_counted_lines_to_the_cells_that_were_lost() {
    let (machine, pages) = (with_cpus(), pages(&[0, 1], PAGE));
    let mut seen = readings(&machine, &pages);
    seen.own_per_us = vec![vec![Some(3.0), None], vec![Some(0.6), Some(1.5)]];
    seen.controllers_per_us = vec![Some(5.0), Some(7.0)];
    seen.loaded_ns = vec![vec![Some(150.4), None], vec![Some(160.6), Some(99.5)]];
    seen.samples = [(0, false), (1, true), (1, false)]
        .map(|(page, write)| crate::live::Sample { page, row: 1, write })
        .to_vec();
    let mut mover = mover(&machine, &pages, 1.0);
    let found = mover.reading(&seen);
    // 10 ms are 10,000 us; three of four cells are known, so each is a third larger.
    assert_eq!(found.accesses, Some(vec![vec![40_000, 0], vec![8_000, 20_000]]));
    assert_eq!(
        found.served,
        [Some(50_000), None],
        "the second node has no counter of all its lines"
    );
    let ns = |ns| Some(Nanoseconds(ns));
    assert_eq!(found.latency, [vec![ns(150), None], vec![ns(161), ns(100)]]);
    assert_eq!(found.reads, Reads::Lines { reads: 2, writes: 1 });
    assert_eq!(found.elapsed, Nanoseconds(10_000_000));
    assert!(found.samples.iter().all(|of| of.cpu == 1 && !of.huge));
    assert_eq!(found.samples[1].node, NodeId(1));
    seen.own_per_us = vec![vec![None; 2]; 2];
    assert_eq!(mover.reading(&seen).accesses, None);
}

#[test]
fn a_reading_without_a_latency_keeps_the_previous_one() {
    let reading = |latency: [Option<u64>; 2], lines| Reading {
        elapsed: Nanoseconds(10),
        coverage: BasisPoints(10_000),
        accesses: Some(vec![vec![lines]]),
        latency: vec![latency.map(|ns| ns.map(Nanoseconds)).to_vec()],
        ..Reading::default()
    };
    let mut seen = Reading::default();
    append(&mut seen, reading([Some(100), Some(200)], 4));
    append(&mut seen, reading([None, Some(250)], 5));
    assert_eq!(seen.latency, [vec![Some(Nanoseconds(100)), Some(Nanoseconds(250))]]);
    assert_eq!((seen.elapsed, seen.accesses), (Nanoseconds(20), Some(vec![vec![9]])));
}
