//! Carries out acts as the rate allows, and determines their traffic and cost.
//!
//! A move reads its page from its node and writes it to the target; a copy does the same. Pages that move in the same
//! epoch share flushes of address translations, one for each 2 MiB, as the kernel batches them. Splitting moves
//! nothing and costs a flush; joining copies all pieces to the node of the new page, as the kernel does, and costs a
//! flush.

use super::number::real;
use super::{Act, World};
use crate::flow::Move;
use crate::pages::PIECES;

/// Bytes per flush.
const FLUSH_BYTES: u64 = 2 << 20;

/// Results of an epoch.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) moves: Vec<Move>,
    pub(super) bytes: u64,
    pub(super) refused: u32,
    pub(super) flushes: f64,
    /// Whether any page has changed.
    pub(super) changed: bool,
}

/// Carries out waiting acts, as far as the rate allows.
pub(super) fn out(world: &mut World<'_>) -> Done {
    let seconds = f64::from(world.settings.epoch_ms) / 1000.0;
    let mut done = Done::default();
    let an_epoch = world.settings.rate_gbps * 1e9 * seconds;
    let next = world.waiting.front().map_or(0.0, |act| bytes_of(world, *act));
    // The unused allowance is kept, up to the bytes of the next act.
    world.allowed = (world.allowed + an_epoch).min(an_epoch + next);
    let mut parts = 0.0;
    while let Some(act) = world.waiting.front().copied() {
        let bytes = bytes_of(world, act);
        if world.allowed < bytes {
            break;
        }
        world.waiting.pop_front();
        if world.settings.refused > 0.0 && world.rng.unit() < world.settings.refused {
            done.refused += 1;
            continue;
        }
        let moved = match act {
            Act::Move { page, to } => go(world, (page as usize, usize::from(to)), &mut done),
            Act::Copy { page, to } => copy(world, (page as usize, usize::from(to)), &mut done),
            Act::Split { page } => split(world, page as usize, &mut done),
            Act::Join { page } => join(world, page as usize, &mut done),
        };
        world.allowed -= real(moved);
        done.bytes += moved;
        parts += real(moved) / real(FLUSH_BYTES);
    }
    done.flushes += parts.ceil();
    let ns = seconds * 1e9;
    done.moves.iter_mut().for_each(|of| of.gbps /= ns);
    done
}

/// Bytes that an act takes from the rate.
fn bytes_of(world: &World<'_>, act: Act) -> f64 {
    let pages = &world.pages;
    let whole = pages.whole(act.page() as usize).len() as u64;
    real(match act {
        Act::Move { .. } | Act::Copy { .. } => whole * pages.page_bytes,
        Act::Split { .. } => 0,
        Act::Join { .. } => PIECES as u64 * pages.page_bytes,
    })
}

/// Counts a transfer; until the end of the epoch its rate holds bytes.
fn load(done: &mut Done, (from, to): (usize, usize), bytes: u64) {
    match done.moves.iter_mut().find(|of| (of.from, of.to) == (from, to)) {
        Some(of) => of.gbps += real(bytes),
        None => done.moves.push(Move { from, to, gbps: real(bytes) }),
    }
    done.changed = true;
}

/// Takes memory of a node; returns whether it was free.
fn take(world: &mut World<'_>, node: usize, bytes: u64, done: &mut Done) -> bool {
    let there = world.free[node] >= i128::from(bytes);
    if there {
        world.free[node] -= i128::from(bytes);
    } else {
        done.refused += 1;
    }
    there
}

fn go(world: &mut World<'_>, (page, to): (usize, usize), done: &mut Done) -> u64 {
    let whole = world.pages.whole(page);
    let from = usize::from(world.pages.node[page]);
    let bytes = whole.len() as u64 * world.pages.page_bytes;
    if from == to || !take(world, to, bytes, done) {
        return 0;
    }
    world.free[from] += i128::from(bytes);
    for page in whole {
        world.give_up_copies(page);
        world.pages.put(page, to);
    }
    load(done, (from, to), bytes);
    bytes
}

fn copy(world: &mut World<'_>, (page, to): (usize, usize), done: &mut Done) -> u64 {
    let from = usize::from(world.pages.node[page]);
    let has = from == to || world.pages.copies[page] >> to & 1 == 1;
    // Huge pages are not replicated: a controller must split them first.
    let bytes = world.pages.page_bytes;
    if has || world.pages.is_huge(page) || !take(world, to, bytes, done) {
        return 0;
    }
    world.pages.copies[page] |= 1 << to;
    load(done, (from, to), bytes);
    bytes
}

fn split(world: &mut World<'_>, page: usize, done: &mut Done) -> u64 {
    if world.pages.is_huge(page) {
        world.pages.huge[page / PIECES] = false;
        done.flushes += 1.0;
        done.changed = true;
    }
    0
}

fn join(world: &mut World<'_>, page: usize, done: &mut Done) -> u64 {
    let (place, to) = (page / PIECES, usize::from(world.pages.node[page]));
    if world.pages.is_huge(page) || place >= world.pages.huge.len() {
        return 0;
    }
    let all = place * PIECES..(place + 1) * PIECES;
    let (bytes, piece) = (PIECES as u64 * world.pages.page_bytes, world.pages.page_bytes);
    // The new page is allocated before the old ones are freed.
    if !take(world, to, bytes, done) {
        return 0;
    }
    for page in all {
        let from = usize::from(world.pages.node[page]);
        world.give_up_copies(page);
        world.free[from] += i128::from(piece);
        world.pages.put(page, to);
        load(done, (from, to), piece);
    }
    world.pages.huge[place] = true;
    done.flushes += 1.0;
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::Settings;
    use crate::live::testkit::{pages, tiers};
    use crate::machine::Machine;
    use crate::pages::Pages;
    use crate::workload::{Region, Worker, Workload};

    const PAGE: u64 = 4096;

    /// Two nodes with memory for this many pages each.
    fn machine(room: u64) -> Machine {
        tiers(&[room * PAGE; 2])
    }

    /// A world with these pages; the rate allows `epoch_bytes` in an epoch of 10 ms.
    fn world<'a>(machine: &'a Machine, pages: Pages, epoch_bytes: f64) -> World<'a> {
        let region = Region {
            name: "all".into(),
            pages: u32::try_from(pages.count()).unwrap(),
            hot_pages: 0,
            hot_share: 0.0,
            touched_by: vec![1.0],
            reads: 1.0,
        };
        let workload = Workload {
            name: "carried".into(),
            about: String::new(),
            page_bytes: PAGE,
            regions: vec![region],
            workers: vec![Worker { row: 0, lines: 1.0, think_ns: 0.0, uses: vec![1.0] }],
            antagonists: Vec::new(),
            huge: false,
            stripe: 0,
            walk_ns: 0.0,
        };
        let settings = Settings { rate_gbps: epoch_bytes / 1e7, ..Settings::default() };
        World::new(machine, &workload, pages, settings)
    }

    /// The results of an epoch in which these acts are added.
    fn epoch(world: &mut World<'_>, acts: impl IntoIterator<Item = Act>) -> Done {
        world.waiting.extend(acts);
        out(world)
    }

    fn moves(pages: u32) -> impl Iterator<Item = Act> {
        (0..pages).map(|page| Act::Move { page, to: 1 })
    }

    #[test]
    fn pages_that_move_in_an_epoch_share_a_flush_for_each_two_mebibytes() {
        let machine = machine(4_096);
        for (count, flushes) in [(0, 0.0), (1, 1.0), (512, 1.0), (513, 2.0), (1_025, 3.0)] {
            let done = epoch(&mut world(&machine, pages(&[0; 2_000], PAGE), 1e9), moves(count));
            assert!((done.flushes - flushes).abs() < 1e-9, "{count}: {done:?}");
            assert_eq!(done.bytes, u64::from(count) * PAGE);
        }
    }

    #[test]
    fn the_traffic_of_an_epoch_is_its_bytes_over_its_length_by_direction() {
        let machine = machine(4_096);
        let mut world = world(&machine, pages(&[0, 0, 0, 1], PAGE), 1e9);
        let both = moves(3).chain([Act::Move { page: 3, to: 0 }]);
        let done = epoch(&mut world, both);
        // 4096 bytes in 10^7 ns.
        let each = 4_096.0 / 1e7;
        let found: Vec<(usize, usize)> = done.moves.iter().map(|of| (of.from, of.to)).collect();
        assert_eq!(found, [(0, 1), (1, 0)]);
        assert!((done.moves[0].gbps - 3.0 * each).abs() < 1e-12, "{done:?}");
        assert!((done.moves[1].gbps - each).abs() < 1e-12, "{done:?}");
    }

    #[test]
    fn unused_bytes_accumulate_only_while_an_action_is_pending() {
        let machine = machine(4_096);
        let mut world = world(&machine, pages(&[0; 4], PAGE), 1_000.0);
        (0..50).for_each(|_| assert_eq!(epoch(&mut world, []).bytes, 0));
        // 1000 bytes are left of the last epoch, and 1000 more come in each: 4096 are there in the fourth.
        let mut bytes = vec![epoch(&mut world, moves(2)).bytes];
        bytes.extend((0..8).map(|_| epoch(&mut world, []).bytes));
        // The first page leaves 904 bytes.
        assert_eq!(bytes, [0, 0, 0, PAGE, 0, 0, 0, PAGE, 0]);
    }

    #[test]
    fn a_failed_action_is_dropped_and_leaves_its_bytes_to_the_next() {
        let machine = machine(3);
        let mut world = world(&machine, pages(&[0, 0, 1, 1], PAGE), 4_096.0);
        // One page is free on node 1; the second of three does not fit.
        world.free[1] = i128::from(PAGE);
        let done = epoch(&mut world, moves(2).chain([Act::Move { page: 2, to: 0 }]));
        assert_eq!((done.bytes, done.refused, world.waiting.len()), (PAGE, 0, 2));
        let done = epoch(&mut world, []);
        assert_eq!((done.bytes, done.refused), (PAGE, 1), "page 2 moves in place of page 1");
        assert_eq!(world.pages.node, [1, 0, 0, 1]);
        assert!(world.waiting.is_empty());
    }

    #[test]
    fn joining_copies_every_piece_to_the_node_of_the_named_one() {
        let machine = machine(2_000);
        let on: Vec<u16> = (0..600).map(|page| u16::from(page % 2 == 0)).collect();
        let mut world = world(&machine, pages(&on, PAGE), 1e9);
        let done = epoch(&mut world, [Act::Join { page: 511 }]);
        assert!(world.pages.is_huge(0) && world.pages.node[..512].iter().all(|node| *node == 0));
        assert_eq!(done.bytes, 512 * PAGE);
        // One flush for the page itself, one for its 2 MiB.
        assert!((done.flushes - 2.0).abs() < 1e-9, "{done:?}");
        let half = 256.0 * 4_096.0 / 1e7;
        assert!(done.moves.iter().all(|of| of.to == 0 && (of.gbps - half).abs() < 1e-9));
        // 44 of the last 88 pages stay on each node.
        let free = [2_000 - 512 - 44, 2_000 - 44].map(|pages: i128| pages * i128::from(PAGE));
        assert_eq!(world.free, free);
        assert_eq!(epoch(&mut world, [Act::Join { page: 0 }]).bytes, 0, "it is joined already");
        assert_eq!(
            epoch(&mut world, [Act::Join { page: 599 }]).bytes,
            0,
            "no room for a huge page there"
        );
    }

    #[test]
    fn a_huge_page_is_allocated_before_the_small_ones_are_freed() {
        // 700 pages on the node, 512 of which are to be joined: 188 are free.
        let machine = machine(700);
        let mut world = world(&machine, pages(&[0; 512], PAGE), 1e9);
        let before = world.pages.clone();
        let done = epoch(&mut world, [Act::Join { page: 0 }]);
        assert_eq!((done.bytes, done.refused, done.changed), (0, 1, false));
        assert_eq!(world.pages, before);
    }

    #[test]
    fn only_small_pages_are_copied_and_each_node_has_one_copy() {
        let machine = machine(2_000);
        let mut of = pages(&[0; 1_024], PAGE);
        of.huge[0] = true;
        let mut world = world(&machine, of, 1e9);
        let copy = |page| Act::Copy { page, to: 1 };
        let done =
            epoch(&mut world, [copy(5), copy(600), copy(600), Act::Copy { page: 601, to: 0 }]);
        assert_eq!(
            (done.bytes, done.refused),
            (PAGE, 0),
            "the huge page and the second copy take nothing"
        );
        assert_eq!(epoch(&mut world, [Act::Split { page: 9 }, copy(5)]).bytes, PAGE);
        assert_eq!((world.pages.copies[5], world.pages.copies[600]), (0b10, 0b10));
    }

    #[test]
    fn splitting_costs_a_flush_once_and_moves_nothing() {
        let machine = machine(2_000);
        let mut of = pages(&[0; 512], PAGE);
        of.huge[0] = true;
        // Without a rate: a split takes none of it.
        let mut world = world(&machine, of, 0.0);
        let found = [0, 1].map(|_| epoch(&mut world, [Act::Split { page: 300 }]));
        assert!((found[0].flushes - 1.0).abs() < 1e-9 && found[0].changed && found[0].bytes == 0);
        assert!(found[1].flushes.abs() < 1e-9 && !found[1].changed, "{found:?}");
    }
}
