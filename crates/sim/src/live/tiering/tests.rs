//! The loop at work on a small machine, and its memory on readings of an idle one: slots, accessed bits, CPU time.

use super::super::{Settings, World};
use proptest::prelude::*;

use super::*;
use crate::live::testkit;
use crate::machine::Machine;
use crate::pages::Pages;
use crate::published::colloid;
use crate::workload::{self, Workload};

/// Colloid's machine and workload, smaller: 0.5 GiB of 2.5 are hot, 1 GiB fits near memory.
fn hot_set() -> (Machine, Workload) {
    let large = colloid::machine(135.0).unwrap();
    let mut workload = workload::find("hot-set", &large).unwrap();
    workload.page_bytes = 64 << 10;
    workload.regions[0].pages = 8 << 10;
    workload.regions[1].pages = 32 << 10;
    // Hot pages are accessed every 18 ms, cold ones every 640: a window of 50 ms tells them apart.
    workload.workers[0].lines = colloid::LINES / 160.0;
    let mut smaller = (*large).clone();
    smaller.nodes[0].size = Bytes(1 << 30);
    smaller.nodes[1].size = Bytes(4 << 30);
    (smaller.build().unwrap(), workload)
}

fn settings() -> Settings {
    Settings { tick_epochs: 1, rate_gbps: 1.0, ..Settings::default() }
}

/// The share of accesses that near memory serves.
fn near(pages: &Pages, workload: &Workload) -> f64 {
    let uses = |page: usize| workload.workers[0].uses[usize::from(pages.region[page])];
    (0..pages.count())
        .filter(|page| pages.node[*page] == 0)
        .map(|page| pages.heat[page] * uses(page))
        .sum()
}

fn run(world: &mut World<'_>, tiering: &mut Tiering, seconds: u32) -> u64 {
    (0..seconds * 100).map(|_| world.step(tiering).unwrap().moved_bytes).sum()
}

#[test]
fn a_far_hot_set_is_promoted_again_after_it_moves() {
    let (machine, workload) = hot_set();
    let mut pages = Pages::of(&workload, 1);
    pages.interleave(&[1, 2], &machine);
    let mut world = World::new(&machine, &workload, pages, settings());
    let mut tiering = Tiering::default();
    assert!(near(world.pages(), &workload) < 0.5);
    run(&mut world, &mut tiering, 300);
    let found = near(world.pages(), &workload);
    assert!(found > 0.8, "{found}");
    world.rotate(world.pages().count() / 2);
    let lost = near(world.pages(), &workload);
    run(&mut world, &mut tiering, 300);
    let again = near(world.pages(), &workload);
    assert!(lost < 0.6 && again > 0.75, "{lost} {again}");
}

#[test]
fn once_the_hot_set_is_near_few_pages_move() {
    let (machine, workload) = hot_set();
    let mut pages = Pages::of(&workload, 1);
    pages.first_touch(&workload, &machine);
    let mut world = World::new(&machine, &workload, pages, settings());
    let mut tiering = Tiering::default();
    run(&mut world, &mut tiering, 60);
    let moved = run(&mut world, &mut tiering, 60);
    assert!(moved < 256 << 20, "{moved} bytes in a minute");
    assert!(near(world.pages(), &workload) > 0.85);
}

#[test]
fn a_slot_holds_one_page_and_each_page_has_a_slot_of_its_node() {
    let (machine, workload) = hot_set();
    let mut pages = Pages::of(&workload, 3);
    pages.interleave(&[1, 1], &machine);
    let mut world = World::new(&machine, &workload, pages, settings());
    let mut tiering = Tiering::default();
    run(&mut world, &mut tiering, 20);
    let (_, memory) = tiering.at_work.as_ref().unwrap();
    for (page, (node, slot)) in (0u32..).zip(&memory.of) {
        assert_eq!(memory.slots[*node][*slot as usize], Some(page));
    }
    let full: usize = memory.slots.iter().flatten().filter(|slot| slot.is_some()).count();
    assert_eq!(full, memory.of.len());
}

const MS: u64 = 1_000_000;
/// A page of the tests below; it has 16 accessed bits.
const PAGE: u64 = 64 << 10;

/// Two nodes with slots for 8 and for 16 pages.
fn two() -> Machine {
    testkit::tiers(&[8 * PAGE, 16 * PAGE])
}

/// Readings at `now_ms`, with pages on these nodes and accesses to each since the beginning.
fn at<'a>(
    machine: &'a Machine,
    pages: &'a Pages,
    accesses: &'a [f64],
    now_ms: u64,
) -> Readings<'a> {
    Readings { now_ms, accesses, ..testkit::readings(machine, pages) }
}

#[test]
fn pages_take_the_lowest_free_slot_and_vacated_slots_are_reused() {
    let (machine, before, after) =
        (two(), testkit::pages(&[0, 1, 0], PAGE), testkit::pages(&[1, 0, 0], PAGE));
    let mut memory = Memory::new(&at(&machine, &before, &[0.0; 3], 0));
    assert_eq!(memory.of, [(0, 0), (1, 0), (0, 1)]);
    memory.see(&at(&machine, &after, &[0.0; 3], 0));
    assert_eq!(memory.of, [(1, 1), (0, 0), (0, 1)]);
    assert_eq!(memory.slots[1][..2], [None, Some(0)]);
    assert_eq!(memory.moved, [PAGE, PAGE]);
    // For each page 16 bits of 5 us, and 65,536 bytes at 10 a nanosecond.
    assert_eq!(memory.cpu, Nanoseconds(2 * (16 * 5_000 + 6_553)));
}

#[test]
fn an_accessed_bit_is_set_with_the_probability_of_one_access_at_least() {
    let (machine, pages) = (two(), testkit::pages(&[0; 3], PAGE));
    let mut memory = Memory::new(&at(&machine, &pages, &[0.0; 3], 0));
    // Each of 16 bits: no access on average, one, many.
    memory.see(&at(&machine, &pages, &[0.0, 16.0, 1e9], 0));
    let found = [0, 1, 2].map(|page| memory.referenced(page));
    for (found, expected) in found.iter().zip([0.0, 1.0 - (-1.0f64).exp(), 1.0]) {
        assert!((found - expected).abs() < 1e-12, "{found} {expected}");
    }
    memory.clear(AddrRange { start: 0, end: 2 * PAGE }, 0);
    assert!(memory.referenced(1).abs() < 1e-12 && memory.referenced(2) > 0.99);
    // Two slots of 16 bits.
    assert_eq!(memory.cpu, Nanoseconds(2 * 16 * 40));
}

#[test]
fn a_range_covers_every_slot_that_it_touches_and_none_beyond_the_node() {
    let (machine, pages) = (two(), testkit::pages(&[0; 3], PAGE));
    let memory = Memory::new(&at(&machine, &pages, &[0.0; 3], 0));
    let within = |start, end, node| memory.within(AddrRange { start, end }, node);
    assert_eq!(within(PAGE, 2 * PAGE + 1, 0), 1..3);
    assert_eq!(within(0, u64::MAX / 2, 0), 0..8);
    assert_eq!(within(10 * PAGE, 20 * PAGE, 1), 10..16);
}

#[test]
fn a_scan_counts_the_pages_of_both_nodes_and_clears_their_bits() {
    let (machine, pages) = (two(), testkit::pages(&[0, 0, 1], PAGE));
    let mut memory = Memory::new(&at(&machine, &pages, &[0.0; 3], 0));
    let look = Scan { window: Nanoseconds(50 * MS), by_age: false };
    assert_eq!(memory.clear_accessed(look), Ok(Nanoseconds(50 * MS)));
    memory.see(&at(&machine, &pages, &[1e9, 0.0, 1e9], 50));
    let counts = [0, 1].map(|_| {
        memory.scan(look).unwrap();
        memory.count().unwrap()
    });
    let scanned = |pages, used| Scanned {
        at: Bytes(pages * PAGE),
        used: Bytes(used * PAGE),
        moved: Bytes(0),
    };
    assert_eq!((counts[0].near_scan, counts[0].far_scan), (scanned(2, 1), scanned(1, 1)));
    // Nothing was accessed between the two scans.
    assert_eq!((counts[1].near_scan, counts[1].far_scan), (scanned(4, 1), scanned(2, 1)));
    // Three passes over 24 slots of 16 bits.
    assert_eq!(counts[1].cpu, Nanoseconds(3 * 24 * 16 * 40));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_scan_counts_every_page_once_for_any_node_size(near in 1u16..80, far in 1u16..80, free in 0u64..40) {
        let machine = testkit::tiers(&[(u64::from(near) + free) * PAGE, (u64::from(far) + free) * PAGE]);
        let on: Vec<u16> = (0..near + far).map(|page| u16::from(page >= near)).collect();
        let (pages, accesses) = (testkit::pages(&on, PAGE), vec![1e9; on.len()]);
        let mut memory = Memory::new(&at(&machine, &pages, &accesses, 0));
        memory.see(&at(&machine, &pages, &accesses, 0));
        memory.scan(Scan { window: Nanoseconds(MS), by_age: false }).unwrap();
        let found = memory.count().unwrap();
        for (scanned, pages) in [(found.near_scan, near), (found.far_scan, far)] {
            let bytes = Bytes(u64::from(pages) * PAGE);
            prop_assert_eq!((scanned.at, scanned.used), (bytes, bytes));
        }
    }
}

#[test]
fn scans_by_age_do_not_clear_accessed_bits_of_near_pages() {
    let (machine, pages) = (two(), testkit::pages(&[0, 1], PAGE));
    let mut memory = Memory::new(&at(&machine, &pages, &[0.0; 2], 0));
    memory.see(&at(&machine, &pages, &[1e9, 1e9], 0));
    let look = Scan { window: Nanoseconds(50 * MS), by_age: true };
    memory.clear_accessed(look).unwrap();
    assert!(memory.referenced(0) > 0.99 && memory.referenced(1).abs() < 1e-12);
}

#[test]
fn a_due_pass_demotes_idle_near_and_promotes_referenced_far_pages() {
    let (machine, pages) = (two(), testkit::pages(&[0, 0, 1, 1], PAGE));
    let accesses = [1e9, 0.0, 1e9, 0.0];
    let mut memory = Memory::new(&at(&machine, &pages, &[0.0; 4], 0));
    let within = AddrRange { start: 0, end: 8 * PAGE };
    let pass = |near, clear_at: Option<u64>| Pass {
        at: Nanoseconds(100 * MS),
        near,
        within,
        clear_at: clear_at.map(|ms| Nanoseconds(ms * MS)),
    };
    memory.passes = vec![pass(true, None), pass(false, None)];
    memory.see(&at(&machine, &pages, &accesses, 99));
    memory.run_passes();
    assert_eq!((memory.acts.len(), memory.passes.len()), (0, 2), "not due");
    memory.see(&at(&machine, &pages, &accesses, 100));
    memory.run_passes();
    assert_eq!(memory.acts, [Act::Move { page: 1, to: 1 }, Act::Move { page: 2, to: 0 }]);
    assert!(memory.passes.is_empty());
    // A pass that clears bits first finds only later accesses: none.
    memory.acts.clear();
    memory.passes = vec![pass(true, Some(100))];
    memory.see(&at(&machine, &pages, &accesses.map(|of| 2.0 * of), 100));
    memory.run_passes();
    assert_eq!(memory.acts, [0, 1].map(|page| Act::Move { page, to: 1 }));
}
