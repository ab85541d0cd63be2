//! Slab reassignment: takes a slab from one class for another; its items are demoted to the next tier, or evicted from
//! the last.
//!
//! This happens if a class that needs a slot has no evictable items of its own, and periodically, one slab at a time,
//! while a reassignment is worthwhile (`crate::slab_balance`). The class with the least cost gives, and of its slabs the least
//! read one. No slot of that slab is allocated meanwhile, and the class is locked only for a few items at a time. One
//! thread at a time does this per tier; others that need a slab wait for it. Of two classes that are locked together,
//! the one in the faster tier is locked first.

use core::cmp::Reverse;

use crate::contents::Contents;
use crate::slab_balance::choose;
use crate::space::{Space, State, Victim};

use super::shift::Shift;
use super::sink::{Sink, Went};
use super::{Own, Placement};

/// Number of classes that are tried, and of slabs in each, for a class without slabs.
const TRIED: usize = 3;
/// Slots emptied before the class is unlocked.
const AT_ONCE: usize = 64;

/// Slab reassignment in one tier.
#[derive(Clone, Copy)]
pub(super) struct SlabRebalance<'a> {
    placement: &'a Placement,
    tier: usize,
    space: &'a Space,
    /// The stripe of this thread.
    own: Option<Own<'a>>,
}

impl<'a> SlabRebalance<'a> {
    pub(super) fn new(placement: &'a Placement, tier: usize) -> Self {
        Self { placement, tier, space: placement.contents.space(tier), own: None }
    }

    /// The same for a thread that may hold a stripe.
    pub(super) fn by(self, own: Option<Own<'a>>) -> Self {
        Self { own, ..self }
    }

    /// Takes a slab from a class of a tier with little cost, for another that needs one.
    pub(super) fn take_for(self, class: usize, key: &mut Vec<u8>) -> bool {
        let loads = self.space.loads();
        let others = loads.iter().enumerate().filter(|(number, _)| *number != class);
        let mut rich: Vec<_> = others
            .filter(|(_, load)| load.slabs > 0)
            .map(|(number, load)| (load.cost(), Reverse(load.slabs), number))
            .collect();
        rich.sort_unstable();
        rich.into_iter().take(TRIED).any(|(_, _, number)| self.take_from(number, key))
    }

    /// Moves a slab from one class to another if that is due and worthwhile.
    pub(super) fn run_if_due(self, key: &mut Vec<u8>) {
        let space = self.space;
        if !space.take_turn() {
            return;
        }
        let chosen = if space.unused_slabs() > 0 { None } else { choose(&space.loads()) };
        if let Some((from, to)) = chosen
            && self.take_from(from, key)
        {
            let mut state = space.class(to).lock();
            space.deal(to, &mut state);
        }
        space.cool();
    }

    /// Empties a slab of a class. If one fails, tries others: an item stays if its stripe is held, for example by a
    /// thread that stores another in its place.
    fn take_from(self, class: usize, key: &mut Vec<u8>) -> bool {
        let space = self.space;
        let one = space.emptying.lock();
        let mut slabs: Vec<_> = {
            let state = space.class(class).lock();
            let mut slabs: Vec<_> = state.slabs().collect();
            let first = state.used % slabs.len().max(1);
            slabs.rotate_left(first);
            slabs
        };
        slabs.sort_by_key(|(_, slab)| space.heat(*slab));
        let done = slabs.into_iter().take(TRIED).any(|slab| self.empty(class, slab, key));
        drop(one);
        done
    }

    /// Demotes or evicts all items of a slab, a few at a time, then releases the slab.
    fn empty(self, class: usize, (place, slab): (usize, u32), key: &mut Vec<u8>) -> bool {
        let space = self.space;
        let mut state = space.class(class).lock();
        if !space.retire(class, &mut state, (place, slab)) {
            return false;
        }
        let mut slots = space.slots_of(class, slab).peekable();
        while slots.peek().is_some() {
            // Of a chunk the hash is that of its head's key, and as the class is locked the head stays where it is.
            let owner = |at| {
                let (at, header, hash) = space.owner(at, key)?;
                Some(Victim { at, slot: space.slot_of(at), class, header, hash })
            };
            let mut items: Vec<_> = slots.by_ref().take(AT_ONCE).filter_map(owner).collect();
            // Several chunks here may be of one item.
            items.sort_unstable_by_key(|item| item.at);
            items.dedup_by_key(|item| item.at);
            self.turn_out(&items, &mut state, key);
            drop(state);
            state = space.class(class).lock();
        }
        space.release(class, &mut state, place)
    }

    /// Has items go, if they can.
    fn turn_out(self, items: &[Victim], state: &mut State, key: &mut Vec<u8>) {
        let Self { placement, tier, space, own } = self;
        let contents = &placement.contents;
        let moved = if tier + 1 < contents.spaces().len() {
            Shift::new(placement, (tier, tier + 1)).all(items, key)
        } else {
            vec![false; items.len()]
        };
        for (Victim { at, header, hash, .. }, moved) in items.iter().copied().zip(moved) {
            let went = match contents.below() {
                _ if moved => Went::Down,
                Some(below) => Sink::new(placement, below).one((tier, at), header, key),
                None if contents.take_out(hash, Contents::place(tier, at)) => Went::Away,
                None => Went::Nowhere,
            };
            let place = Contents::place(tier, at);
            let went = match own {
                Some(own) if went == Went::Nowhere && own.take_out(hash, place) => {
                    contents.forget_copy(&space.item(at));
                    Went::Away
                }
                _ => went,
            };
            if went != Went::Nowhere {
                let last = contents.last((tier, at), header);
                space.remove(state, at);
                match went {
                    Went::Down => state.counts.demoted += 1,
                    _ => state.counts.lost(&last),
                }
            }
        }
    }
}
