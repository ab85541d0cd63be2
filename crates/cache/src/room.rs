//! Room for an item that is to be stored: a free slot, or one that others leave for it.
//!
//! Others of its size go first, in any tier; then a slab of other sizes (`rob.rs`). A chain needs many slots of one class at once:
//! there slabs of others go first while the class has not even so many, whatever is in them; from then on its own items go.

use crate::cache::{BATCH, Cache};
use crate::config::Making;
use crate::index::Hash;
use crate::item::KEY_MAX;
use crate::sizes::Cut;
use crate::space::State;

/// Others may take the room that was made; so often it is made again.
const ATTEMPTS: usize = 4;
/// A batch is no more than one in so many of a class's items.
const SHARE: usize = 16;

impl Cache {
    /// A slot for an item of this class: its tier and word.
    pub(crate) fn room(&self, class: usize, hash: Hash) -> Option<(usize, usize)> {
        let take = |tier: usize| {
            let space = &self.spaces[tier];
            let mut state = space.class(class).lock();
            let found = space.take(class, &mut state, hash.low());
            state.counts.stored += u64::from(found.is_some());
            found.map(|at| (tier, at))
        };
        if let Some(found) = take(0) {
            return Some(found);
        }
        if self.making == Making::Background {
            self.call_movers();
            if let Some(found) = (1..self.spaces.len()).find_map(take) {
                return Some(found);
            }
        }
        let mut key = Vec::with_capacity(KEY_MAX);
        for makes in [Self::make_room, Self::rob] {
            for tier in 0..self.spaces.len() {
                for _ in 0..ATTEMPTS {
                    let made = makes(self, tier, class, &mut key);
                    if let Some(found) = take(tier) {
                        return Some(found);
                    }
                    if !made {
                        break;
                    }
                }
            }
        }
        None
    }

    /// Slots for a chain, in one tier: that tier, and the words they begin at.
    pub(crate) fn room_for_chain(&self, cut: Cut, hash: Hash) -> Option<(usize, Vec<usize>)> {
        let mut key = Vec::with_capacity(KEY_MAX);
        (0..self.spaces.len()).find_map(|tier| {
            let slots = self.chain_in(tier, cut, hash, &mut key)?;
            self.spaces[tier].class(cut.class).lock().counts.stored += 1;
            Some((tier, slots))
        })
    }

    /// Slots for a chain in a tier, where others leave if need be.
    pub(crate) fn chain_in(
        &self,
        tier: usize,
        cut: Cut,
        hash: Hash,
        key: &mut Vec<u8>,
    ) -> Option<Vec<usize>> {
        let (space, class) = (&self.spaces[tier], cut.class);
        for _ in 0..cut.pieces + ATTEMPTS {
            let mut state = space.class(class).lock();
            let slots = space.take_chain(cut, &mut state, hash);
            let has_so_many = state.used + state.free >= cut.pieces;
            drop(state);
            if slots.is_some() {
                return slots;
            }
            let ways = if has_so_many {
                [Self::make_room, Self::rob]
            } else {
                [Self::rob, Self::make_room]
            };
            if !ways.iter().any(|makes| makes(self, tier, class, key)) {
                break;
            }
        }
        space.take_chain(cut, &mut space.class(class).lock(), hash)
    }

    /// Slots for a chain in a tier where its class has room for two such at least; others of the class leave if need be.
    pub(crate) fn chain_for_own(
        &self,
        tier: usize,
        cut: Cut,
        hash: Hash,
        key: &mut Vec<u8>,
    ) -> Option<Vec<usize>> {
        let class = self.spaces[tier].class(cut.class);
        for _ in 0..=cut.pieces {
            let mut state = class.lock();
            let slots = self.spaces[tier].take_chain(cut, &mut state, hash);
            let has_room_for_two = state.used + state.free >= 2 * cut.pieces;
            drop(state);
            if slots.is_some() || !has_room_for_two || !self.make_room(tier, cut.class, key) {
                return slots;
            }
        }
        None
    }

    /// Tells movers that there is no room.
    pub(crate) fn call_movers(&self) {
        let (wanted, bell) = &self.wanted;
        if let Ok(mut wanted) = wanted.try_lock()
            && !*wanted
        {
            *wanted = true;
            bell.notify_all();
        }
    }

    /// Frees slots of a class: its items go to the next tier, or out of the last.
    pub(crate) fn make_room(&self, tier: usize, class: usize, key: &mut Vec<u8>) -> bool {
        let gone = if tier + 1 < self.spaces.len() {
            self.demote(tier, class, key)
        } else if let Some(below) = &self.below {
            self.sink(below, (tier, class), key)
        } else {
            let mut state = self.spaces[tier].class(class).lock();
            self.evict(tier, class, &mut state, key)
        };
        self.deal_out(tier, key);
        gone > 0
    }

    /// How many items of a class go at once, at most.
    pub(crate) fn batch(state: &State) -> usize {
        ((state.used - state.chunks) / SHARE).clamp(1, BATCH)
    }

    /// Has a batch of items go for good.
    fn evict(&self, tier: usize, class: usize, state: &mut State, key: &mut Vec<u8>) -> usize {
        let space = &self.spaces[tier];
        let (batch, mut gone) = (Self::batch(state), 0);
        for _ in 0..ATTEMPTS {
            // All at once, so that their lines of the index are under way together.
            let mut victims = [None; BATCH];
            for one in &mut victims[gone..batch] {
                *one = space.victim(class, state, key);
                match one {
                    Some(victim) => self.index.prefetch(victim.hash),
                    None => break,
                }
            }
            for victim in victims.into_iter().flatten() {
                if self.take_out(victim.hash, Self::place(tier, victim.at)) {
                    state.policy.evicted(victim.slot, victim.hash.low());
                    let over = self.over((tier, victim.at), victim.header);
                    space.let_go(class, state, &victim);
                    state.counts.lost(over);
                    gone += 1;
                } else {
                    state.policy.kept(victim.slot);
                    state.counts.contended += 1;
                }
            }
            if gone == batch {
                break;
            }
        }
        space.press(state);
        gone
    }

    /// Takes an entry out of the index, unless somebody holds its stripe, or it has gone.
    pub(crate) fn take_out(&self, hash: Hash, place: u64) -> bool {
        let Some(held) = self.index.try_lock(hash) else { return false };
        let Some(at) = held.find_place(place) else { return false };
        held.remove(at);
        true
    }
}
