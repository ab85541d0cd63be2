//! Allocation of a slot for a new item: a free one, or one freed by demotion or eviction.
//!
//! Items of the same class are demoted or evicted first, in any tier; then a slab of other classes is reassigned
//! (`slab_rebalance.rs`). A chain needs many slots of one class at once: while the class has fewer slots than that, slabs of other
//! classes are reassigned first, whatever they contain; afterwards its own items are evicted.
//!
//! Slots freed this way are free for all threads. An allocation that has lost them to others several times evicts items
//! and takes their slots without unlocking the class in between ([`Placement::insist`]). So an item is refused only if
//! nothing can be evicted for it: its class has no items, and no other class has a slab to give. An edit holds its
//! stripe meanwhile, and evicts the items of that stripe itself, since nobody else can; except the one that it edits.

use std::time::Duration;

use nearfar_kernel::clock::sleep;

use crate::config::Making;
use crate::contents::Contents;
use crate::index::{Hash, Held};
use crate::item::KEY_MAX;
use crate::sizes::Cut;
use crate::space::State;

use super::{BATCH, Placement};

/// Number of retries, as other threads may take the freed slots.
const ATTEMPTS: usize = 4;
/// Number of rounds in which all evictable items, or emptied slabs, may be in the hands of other threads: each of two edits may
/// need the item that the other edits.
const ROUNDS: u32 = 1000;
/// Rounds after which a thread sleeps between two, because the others may be waiting for a CPU.
const YIELDS: u32 = 16;
const PAUSE: Duration = Duration::from_micros(50);

/// What an allocation may do if other threads take the slots that it frees.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Effort<'a> {
    /// Give up: the item is elsewhere, too.
    Modest,
    /// Evict until it has a slot.
    Full(Option<Own<'a>>),
}

/// The stripe that an allocating thread holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Own<'a> {
    pub(crate) held: &'a Held<'a>,
    /// The place of the item that is edited.
    pub(crate) edited: Option<u64>,
}

impl Own<'_> {
    /// Removes the entry of an item of this stripe, unless it is the edited one.
    pub(super) fn take_out(self, hash: Hash, place: u64) -> bool {
        self.edited != Some(place) && self.held.remove_other(hash, place)
    }
}

/// Waits between two rounds.
fn pause(round: u32) {
    if round < YIELDS {
        std::thread::yield_now();
    } else {
        sleep(PAUSE);
    }
}

impl Placement {
    /// Allocates a slot for an item of this class; returns its tier and word.
    pub(super) fn allocate(
        &self,
        class: usize,
        hash: Hash,
        effort: Effort<'_>,
    ) -> Option<(usize, usize)> {
        let take = |tier: usize| {
            let found =
                self.take(tier, class, &mut self.contents.space(tier).class(class).lock(), hash);
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
        match effort {
            Effort::Modest => None,
            Effort::Full(own) => self.insist(class, hash, own, &mut key),
        }
    }

    /// Takes a free slot, and counts its item as stored.
    fn take(&self, tier: usize, class: usize, state: &mut State, hash: Hash) -> Option<usize> {
        let at = self.contents.space(tier).take(class, state, hash.low())?;
        state.counts.stored += 1;
        Some(at)
    }

    /// Evicts items of a class and takes one of their slots, in the slowest tier that has any; or a slot of a slab of
    /// other classes.
    fn insist(
        &self,
        class: usize,
        hash: Hash,
        own: Option<Own<'_>>,
        key: &mut Vec<u8>,
    ) -> Option<(usize, usize)> {
        let tiers = self.contents.spaces().len();
        for round in 0..ROUNDS {
            for tier in (0..tiers).rev() {
                let mut state = self.contents.space(tier).class(class).lock();
                let free = |state: &mut State| self.take(tier, class, state, hash);
                let found = free(&mut state).or_else(|| {
                    (self.evict((tier, class), &mut state, own, key) > 0)
                        .then(|| free(&mut state))
                        .flatten()
                });
                if let Some(at) = found {
                    return Some((tier, at));
                }
            }
            // Where this fails although no item is left, other threads have the slabs, between two classes.
            let _ = (0..tiers).any(|tier| self.take_slab_with(tier, class, own, key));
            pause(round);
        }
        None
    }

    /// Allocates the slots of a chain in one tier; returns the tier and the words at which they begin.
    pub(super) fn allocate_chain(
        &self,
        cut: Cut,
        hash: Hash,
        effort: Effort<'_>,
    ) -> Option<(usize, Vec<usize>)> {
        let mut key = Vec::with_capacity(KEY_MAX);
        let mut tiers = 0..self.contents.spaces().len();
        let mut found = tiers
            .find_map(|tier| self.chain_in(tier, cut, hash, &mut key).map(|slots| (tier, slots)));
        if let (None, Effort::Full(own)) = (&found, effort) {
            found = self.insist_on_chain(cut, hash, own, &mut key);
        }
        if let Some((tier, _)) = found {
            self.contents.space(tier).class(cut.class).lock().counts.stored += 1;
        }
        found
    }

    /// As [`Self::insist`], for all slots of a chain.
    fn insist_on_chain(
        &self,
        cut: Cut,
        hash: Hash,
        own: Option<Own<'_>>,
        key: &mut Vec<u8>,
    ) -> Option<(usize, Vec<usize>)> {
        let has_place = |tier: &usize| self.contents.space(*tier).has_place_for(cut);
        let tiers: Vec<usize> = (0..self.contents.spaces().len()).rev().filter(has_place).collect();
        for round in 0..ROUNDS * u32::from(!tiers.is_empty()) {
            for tier in tiers.iter().copied() {
                let space = self.contents.space(tier);
                let mut state = space.class(cut.class).lock();
                loop {
                    if let Some(slots) = space.take_chain(cut, &mut state, hash) {
                        return Some((tier, slots));
                    }
                    if self.evict((tier, cut.class), &mut state, own, key) == 0 {
                        break;
                    }
                }
                let has_so_many = state.used + state.free >= cut.pieces;
                drop(state);
                if !has_so_many {
                    self.take_slab_with(tier, cut.class, own, key);
                }
            }
            pause(round);
        }
        None
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

    /// Evicts a batch of items: not even to disk.
    pub(super) fn evict(
        &self,
        (tier, class): (usize, usize),
        state: &mut State,
        own: Option<Own<'_>>,
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
                let place = Contents::place(tier, victim.at);
                if self.contents.take_out(victim.hash, place)
                    || own.is_some_and(|own| own.take_out(victim.hash, place))
                {
                    self.contents.forget_copy(&space.item(victim.at));
                    state.policy.evicted(victim.slot, victim.hash.low());
                    let last = self.contents.last((tier, victim.at), victim.header);
                    space.let_go(class, state, &victim);
                    state.counts.lost(&last);
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
