//! Who takes a slab from a class for another: its items go, to the next tier or out of the last.
//!
//! That is done where a class that needs a slot has no items of its own that could go, and a slab at a time while slabs stand
//! better elsewhere (`balance.rs`). Of classes the one goes first that loses least, of its slabs the one read least.
//! Nobody is given slots of that slab meanwhile, and the class is locked for some items at a time only; one thread at a time does
//! this in a tier, and who needs a slab, too, waits for it. Of two classes that are locked at once, one is in a faster tier, and
//! it is locked first.

use core::cmp::Reverse;
use core::sync::atomic::Ordering::Relaxed;
use std::sync::PoisonError;

use crate::balance::choose;
use crate::below::Went;
use crate::cache::Cache;
use crate::space::{State, Victim};

/// Classes that are tried, and slabs of each, where a class that has none is to be given one.
const ROBBED: usize = 3;
/// Slots that are emptied before the class is unlocked for others.
const AT_ONCE: usize = 64;

impl Cache {
    /// Takes a slab from a class of a tier that loses little by it, for another that needs one.
    pub(crate) fn rob(&self, tier: usize, class: usize, key: &mut Vec<u8>) -> bool {
        let loads = self.spaces[tier].loads();
        let others = loads.iter().enumerate().filter(|(number, _)| *number != class);
        let mut rich: Vec<_> = others
            .filter(|(_, load)| load.slabs > 0)
            .map(|(number, load)| (load.cost(), Reverse(load.slabs), number))
            .collect();
        rich.sort_unstable();
        rich.into_iter().take(ROBBED).any(|(_, _, number)| self.rob_class(tier, number, key))
    }

    /// Gives a slab of one class to another where that is due, and worth it.
    pub(crate) fn deal_out(&self, tier: usize, key: &mut Vec<u8>) {
        let space = &self.spaces[tier];
        if !space.take_turn() {
            return;
        }
        let chosen = if space.unused_slabs() > 0 { None } else { choose(&space.loads()) };
        if let Some((from, to)) = chosen
            && self.rob_class(tier, from, key)
        {
            let mut state = space.class(to).lock();
            space.dealt.fetch_add(u64::from(space.grow(to, &mut state)), Relaxed);
        }
        space.cool();
    }

    /// Empties a slab of a class; another, where that can't be: an item whose stripe somebody holds, as who stores another in its
    /// place does, stays.
    fn rob_class(&self, tier: usize, class: usize, key: &mut Vec<u8>) -> bool {
        let space = &self.spaces[tier];
        let one = space.emptying.lock().unwrap_or_else(PoisonError::into_inner);
        let mut slabs: Vec<_> = {
            let state = space.class(class).lock();
            let mut slabs: Vec<_> = state.slabs().collect();
            let first = state.used % slabs.len().max(1);
            slabs.rotate_left(first);
            slabs
        };
        slabs.sort_by_key(|(_, slab)| space.heat[*slab as usize].load(Relaxed));
        let done = slabs.into_iter().take(ROBBED).any(|slab| self.empty((tier, class), slab, key));
        drop(one);
        done
    }

    /// Has all items of a slab go, some at a time, and then the slab.
    fn empty(
        &self,
        (tier, class): (usize, usize),
        (place, slab): (usize, u32),
        key: &mut Vec<u8>,
    ) -> bool {
        let space = &self.spaces[tier];
        let mut state = space.class(class).lock();
        if !space.retire(class, &mut state, (place, slab)) {
            return false;
        }
        let mut slots = space.slots_of(class, slab).peekable();
        while slots.peek().is_some() {
            for at in slots.by_ref().take(AT_ONCE) {
                self.turn_out((tier, class), at, &mut state, key);
            }
            drop(state);
            state = space.class(class).lock();
        }
        space.release(class, &mut state, place)
    }

    /// Has the item go that a slot is of, if it can.
    fn turn_out(
        &self,
        (tier, class): (usize, usize),
        at: usize,
        state: &mut State,
        key: &mut Vec<u8>,
    ) {
        let space = &self.spaces[tier];
        // Of a chunk the hash is that of its head's key, and as the class is locked the head stays where it is.
        let Some((at, header, hash)) = space.owner(at, key) else { return };
        let victim = Victim { at, slot: space.slot_of(at), header, hash };
        let has_next = tier + 1 < self.spaces.len();
        let went = match &self.below {
            _ if has_next && self.shift((tier, tier + 1), class, &victim, key) => Went::Down,
            Some(below) => self.sink_one(below, (tier, at), header, key),
            None if self.take_out(hash, Self::place(tier, at)) => Went::Away,
            None => Went::Nowhere,
        };
        if went != Went::Nowhere {
            let over = self.over((tier, at), header);
            space.remove(state, at);
            match went {
                Went::Down => state.counts.demoted += 1,
                _ => state.counts.lost(over),
            }
        }
    }
}
