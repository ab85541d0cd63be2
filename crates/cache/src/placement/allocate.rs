//! Allocation of a slot for a new item: a free one, or one freed by demotion or eviction.
//!
//! Items of the same class are demoted or evicted first, in any tier; then a slab of other classes is reassigned
//! (`slab_rebalance.rs`). A chain needs many slots of one class at once: while the class has fewer slots than that, slabs of other
//! classes are reassigned first, whatever they contain; afterwards its own items are evicted.

use crate::config::Making;
use crate::contents::Contents;
use crate::index::Hash;
use crate::item::KEY_MAX;
use crate::sizes::Cut;
use crate::space::State;

use super::{BATCH, Placement};

/// Number of retries, as other threads may take the freed slots.
const ATTEMPTS: usize = 4;

impl Placement {
    /// Allocates a slot for an item of this class; returns its tier and word.
    pub(super) fn allocate(&self, class: usize, hash: Hash) -> Option<(usize, usize)> {
        let take = |tier: usize| {
            let space = self.contents.space(tier);
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
            if let Some(found) = (1..self.contents.spaces().len()).find_map(take) {
                return Some(found);
            }
        }
        let mut key = Vec::with_capacity(KEY_MAX);
        for _ in 0..ATTEMPTS {
            for (makes, tier) in [Self::make_room, Self::take_slab]
                .into_iter()
                .flat_map(|makes| (0..self.contents.spaces().len()).map(move |tier| (makes, tier)))
            {
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
            // Items held by other threads can't be evicted; those threads may be waiting for a CPU.
            std::thread::yield_now();
        }
        None
    }

    /// Allocates the slots of a chain in one tier; returns the tier and the words at which they begin.
    pub(super) fn allocate_chain(&self, cut: Cut, hash: Hash) -> Option<(usize, Vec<usize>)> {
        let mut key = Vec::with_capacity(KEY_MAX);
        (0..self.contents.spaces().len()).find_map(|tier| {
            let slots = self.chain_in(tier, cut, hash, &mut key)?;
            self.contents.space(tier).class(cut.class).lock().counts.stored += 1;
            Some((tier, slots))
        })
    }

    /// Allocates the slots of a chain in a tier, with demotions or evictions if necessary.
    pub(super) fn chain_in(
        &self,
        tier: usize,
        cut: Cut,
        hash: Hash,
        key: &mut Vec<u8>,
    ) -> Option<Vec<usize>> {
        let (space, class) = (self.contents.space(tier), cut.class);
        for _ in 0..cut.pieces + ATTEMPTS {
            let mut state = space.class(class).lock();
            let slots = space.take_chain(cut, &mut state, hash);
            let has_so_many = state.used + state.free >= cut.pieces;
            drop(state);
            if slots.is_some() {
                return slots;
            }
            let ways = if has_so_many {
                [Self::make_room, Self::take_slab]
            } else {
                [Self::take_slab, Self::make_room]
            };
            if !ways.iter().any(|makes| makes(self, tier, class, key)) {
                break;
            }
        }
        space.take_chain(cut, &mut space.class(class).lock(), hash)
    }

    /// Allocates the slots of a chain in a tier where its class has room for at least two such chains; other items of
    /// the class are evicted if necessary.
    pub(super) fn chain_for_own(
        &self,
        tier: usize,
        cut: Cut,
        hash: Hash,
        key: &mut Vec<u8>,
    ) -> Option<Vec<usize>> {
        let class = self.contents.space(tier).class(cut.class);
        for _ in 0..=cut.pieces {
            let mut state = class.lock();
            let slots = self.contents.space(tier).take_chain(cut, &mut state, hash);
            let has_room_for_two = state.used + state.free >= 2 * cut.pieces;
            drop(state);
            if slots.is_some() || !has_room_for_two || !self.make_room(tier, cut.class, key) {
                return slots;
            }
        }
        None
    }

    /// Evicts a batch of items.
    pub(super) fn evict(
        &self,
        tier: usize,
        class: usize,
        state: &mut State,
        key: &mut Vec<u8>,
    ) -> usize {
        let space = self.contents.space(tier);
        let (batch, mut gone) = (Self::batch(state), 0);
        for _ in 0..ATTEMPTS {
            // All together, so that the cache misses on their index lines overlap.
            let mut victims = [None; BATCH];
            for one in &mut victims[gone..batch] {
                *one = space.victim(class, state, key);
                match one {
                    Some(victim) => self.contents.index().prefetch(victim.hash),
                    None => break,
                }
            }
            for victim in victims.into_iter().flatten() {
                if self.contents.take_out(victim.hash, Contents::place(tier, victim.at)) {
                    state.policy.evicted(victim.slot, victim.hash.low());
                    let over = self.contents.over((tier, victim.at), victim.header);
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
}
