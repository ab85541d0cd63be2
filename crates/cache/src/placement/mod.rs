//! Placement: gives items slots, moves them between tiers, and makes room.
//!
//! Slots for new items: `allocate.rs`; moves of batches between memory tiers: `shift.rs`; demotion to disk: `sink.rs`;
//! slabs that change their class: `slab_rebalance.rs`. These need each other: a demotion may need room in the slower
//! tier. This file has their shared state, and the demotion of a batch.

mod allocate;
mod shift;
mod sink;
mod slab_rebalance;

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::arena::WORD;
use crate::config::Making;
use crate::contents::Contents;
use crate::copy::Copier;
use crate::index::Hash;
use crate::item::{Header, KEY_MAX, Shape, VALUE_MAX, size};
use crate::space::{State, Victim};
use crate::store::{Meta, Refused};
pub(crate) use allocate::{Effort, Own};
use shift::Shift;
use sink::Sink;
use slab_rebalance::SlabRebalance;

/// Items evicted together where room is made.
pub(crate) const BATCH: usize = 16;
/// A batch is at most one in this many of a class's items.
const SHARE: usize = 16;
/// Slots of a class that are kept free, in percent: below the first more are freed, up to the second.
const FREE_LOW: usize = 2;
const FREE_HIGH: usize = 5;

/// The contents of a cache, and how items are placed there.
#[derive(Debug)]
pub(crate) struct Placement {
    contents: Contents,
    making: Making,
    /// Copies items between tiers.
    copier: Arc<dyn Copier>,
    /// Bytes key and value may have.
    largest: usize,
    /// Whether a thread found no room.
    wanted: (Mutex<bool>, Condvar),
}

impl Placement {
    pub(crate) fn new(
        contents: Contents,
        making: Making,
        copier: Arc<dyn Copier>,
        largest: usize,
    ) -> Self {
        Self { contents, making, copier, largest, wanted: (Mutex::new(false), Condvar::new()) }
    }

    /// The index and the items.
    #[inline]
    pub(crate) const fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Maximum bytes of key and value together.
    pub(crate) const fn largest(&self) -> usize {
        self.largest
    }

    /// Whether threads that store items make room for them.
    #[inline]
    pub(crate) fn is_inline(&self) -> bool {
        self.making == Making::Inline
    }

    /// Writes an item into a slot that no entry leads to yet, with its place on disk, if any; returns its place.
    pub(crate) fn write(
        &self,
        hash: Hash,
        (key, value): (&[u8], &[u8]),
        (meta, copy): (Option<&Meta>, Option<u64>),
        effort: Effort<'_>,
    ) -> Result<u64, Refused> {
        let sizes = self.contents.sizes();
        let more = if copy.is_some() { WORD } else { 0 };
        let bytes = size(key.len(), value.len(), meta.is_some()) + more;
        let class = sizes.class(bytes.div_ceil(WORD));
        let too_large =
            || Refused::TooLarge { bytes: key.len() + value.len(), limit: self.largest };
        let is_one = key.is_empty() || key.len() > KEY_MAX || value.len() > VALUE_MAX;
        if is_one || key.len() + value.len() > self.largest {
            return Err(too_large());
        }
        let (extra, copied) = (meta.is_some(), copy.is_some());
        let chained = class == sizes.count();
        let shape = Shape { key: key.len(), value: value.len(), extra, copy: copied, chained };
        let (tier, at, header) = if chained {
            let header = Header::new(Header::ZERO, shape);
            let cut = sizes.cut(header.before_slots() + 1, value.len());
            let cut = cut.ok_or_else(too_large)?;
            let found = self.allocate_chain(cut, hash, effort);
            let (tier, slots) = found.ok_or(Refused::NoMemory { bytes })?;
            let item = self.contents.space(tier).item(slots[0]);
            let header = Header::new(item.header(), shape);
            item.set_chain(header, cut.slot, &slots);
            (tier, slots[0], header)
        } else {
            let found = self.allocate(class, hash, effort);
            let (tier, at) = found.ok_or(Refused::NoMemory { bytes })?;
            (tier, at, Header::new(self.contents.space(tier).item(at).header(), shape))
        };
        let item = self.contents.space(tier).item(at);
        item.begin(header);
        if let Some(meta) = meta {
            item.set_meta(header, meta);
        }
        item.write(header, key, value);
        if let Some(copy) = copy {
            item.set_copy(header, copy);
        }
        Ok(Contents::place(tier, at))
    }

    /// Notifies movers that there is no room.
    pub(crate) fn call_movers(&self) {
        let (wanted, bell) = &self.wanted;
        if let Ok(mut wanted) = wanted.try_lock()
            && !*wanted
        {
            *wanted = true;
            bell.notify_all();
        }
    }

    /// Waits until a thread finds no room, or for `pause`.
    pub(crate) fn wait_for_call(&self, pause: Duration) {
        let (wanted, bell) = &self.wanted;
        let lock = wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut lock, _) = bell
            .wait_timeout_while(lock, pause, |wanted| !*wanted)
            .unwrap_or_else(PoisonError::into_inner);
        *lock = false;
    }

    /// Frees slots of a class: its items are demoted to the next tier, or evicted from the last.
    pub(crate) fn make_room(&self, tier: usize, class: usize, key: &mut Vec<u8>) -> bool {
        let gone = if tier + 1 < self.contents.spaces().len() {
            self.demote(tier, class, key)
        } else if let Some(below) = self.contents.below() {
            Sink::new(self, below).batch((tier, class), key)
        } else {
            let mut state = self.contents.space(tier).class(class).lock();
            self.evict((tier, class), &mut state, None, key)
        };
        SlabRebalance::new(self, tier).run_if_due(key);
        gone > 0
    }

    /// Takes a slab from a class of a tier with little cost, for another that needs one.
    pub(crate) fn take_slab(&self, tier: usize, class: usize, key: &mut Vec<u8>) -> bool {
        self.take_slab_with(tier, class, None, key)
    }

    /// As [`Self::take_slab`], by a thread that may hold a stripe.
    fn take_slab_with(
        &self,
        tier: usize,
        class: usize,
        own: Option<Own<'_>>,
        key: &mut Vec<u8>,
    ) -> bool {
        SlabRebalance::new(self, tier).by(own).take_for(class, key)
    }

    /// Demotes a batch of a class's items; returns how many.
    pub(crate) fn demote(&self, tier: usize, class: usize, key: &mut Vec<u8>) -> usize {
        let space = self.contents.space(tier);
        let mut state = space.class(class).lock();
        let batch = Self::batch(&state);
        let mut victims = Vec::with_capacity(batch);
        while victims.len() < batch {
            let Some(victim) = space.victim(class, &mut state, key) else { break };
            state.policy.kept(victim.slot);
            self.contents.index().prefetch(victim.hash);
            victims.push(victim);
        }
        drop(state);
        let moved = Shift::new(self, (tier, tier + 1)).all(&victims, key);
        let mut state = space.class(class).lock();
        let mut count = 0;
        for (victim, _) in victims.iter().zip(&moved).filter(|(_, moved)| **moved) {
            state.policy.removed(victim.slot);
            space.let_go(class, &mut state, victim);
            count += 1;
        }
        space.press(&mut state);
        state.counts.demoted += count as u64;
        state.counts.contended += (victims.len() - count) as u64;
        count
    }

    /// Moves items of a tier to the next faster one; returns for each whether it moved. The slots they had are free.
    pub(crate) fn promote(&self, tier: usize, items: &[Victim], key: &mut Vec<u8>) -> usize {
        let moved = Shift::new(self, (tier, tier - 1)).all(items, key);
        let mut count = 0;
        for (item, _) in items.iter().zip(moved).filter(|(_, moved)| *moved) {
            self.contents.space(tier - 1).class(item.class).lock().counts.promoted += 1;
            self.contents.free(Some(Contents::place(tier, item.at)));
            count += 1;
        }
        count
    }

    /// Takes a slab from the classes of a tier that has more in use than its limit; whether one was taken.
    fn shrink(&self, tier: usize, key: &mut Vec<u8>) -> bool {
        self.contents.space(tier).excess() > 0
            && self.take_slab(tier, self.contents.sizes().count(), key)
    }

    /// The same for all tiers, where no mover frees slots.
    pub(crate) fn keep_to_limits(&self) {
        let mut key = Vec::with_capacity(KEY_MAX);
        (0..self.contents.spaces().len()).for_each(|tier| while self.shrink(tier, &mut key) {});
    }

    /// Frees slots where too few are free; returns the number of items moved, or slabs.
    pub(crate) fn keep_free(&self) -> usize {
        let (contents, mut moved) = (&self.contents, 0);
        let mut key = Vec::with_capacity(KEY_MAX);
        for (tier, space) in contents.spaces().iter().enumerate() {
            moved += usize::from(self.shrink(tier, &mut key));
            if space.unused_slabs() > 0 {
                continue;
            }
            if let Some(below) = contents.below().filter(|_| tier + 1 == contents.spaces().len()) {
                below.disk.wait_for_buffer();
            }
            for class in 0..contents.sizes().count() {
                let wanted = |percent: usize| {
                    let state = space.class(class).lock();
                    (state.used * percent / 100).max(1).saturating_sub(state.free)
                        * usize::from(state.used > 0)
                };
                if wanted(FREE_LOW) == 0 {
                    continue;
                }
                let mut rounds = wanted(FREE_HIGH).div_ceil(BATCH);
                while rounds > 0 && self.make_room(tier, class, &mut key) {
                    moved += BATCH;
                    rounds -= 1;
                }
            }
        }
        moved
    }

    /// Maximum number of items of a class that are evicted together.
    fn batch(state: &State) -> usize {
        ((state.used - state.chunks) / SHARE).clamp(1, BATCH)
    }
}
