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
