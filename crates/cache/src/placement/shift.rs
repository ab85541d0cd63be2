//! Moves a batch of items from one memory tier to another.
//!
//! A batch goes through four steps:
//! 1. each item gets free slots of the other tier, marked as being written in their header. That may evict or demote
//!    others, and slabs may change their class;
//! 2. the header of each item is read again, because a slab that changes its class ends the arena's epoch, and
//!    invalidates all headers read before;
//! 3. one call of the cache's [`Copier`](crate::copy::Copier) copies all items;
//! 4. an item with the same header as in step 2 is published, and its entry in the index exchanged: readers find either
//!    the old or the new one, complete. An item that was edited meanwhile, or has its stripe of the index locked, stays
//!    in place, and its new slots are freed.
//!
//! No lock is held while items are copied, except by the emptying of a slab (`slab_rebalance.rs`).

use core::ops::Range;

use crate::arena::WORD;
use crate::chain::Chain;
use crate::contents::Contents;
use crate::copy::{Job, Outcome};
use crate::index::Hash;
use crate::item::{Header, Stage};
use crate::sizes::Cut;
use crate::space::{Space, Victim};

use super::Placement;

/// Slots reserved for an item: the word of the first one, and the header there.
type Slots = (usize, Header);

/// An item that is being copied.
struct Moving<'a> {
    victim: &'a Victim,
    /// Its header just before the copy.
    header: Header,
    slots: Slots,
    /// Its jobs among those of the batch.
    jobs: Range<usize>,
}

/// Moves from one tier of memory to another.
#[derive(Clone, Copy)]
pub(super) struct Shift<'a> {
    placement: &'a Placement,
    tiers: (usize, usize),
    source: &'a Space,
    target: &'a Space,
}

impl<'a> Shift<'a> {
    pub(super) fn new(placement: &'a Placement, tiers: (usize, usize)) -> Self {
        let contents = &placement.contents;
        let (source, target) = (contents.space(tiers.0), contents.space(tiers.1));
        Self { placement, tiers, source, target }
    }

    /// Moves items to another tier, and has their keys lead there; returns for each whether it moved. The old slots of those that
    /// moved are the caller's to give back.
    pub(super) fn all(self, items: &[Victim], key: &mut Vec<u8>) -> Vec<bool> {
        let mut moved = Vec::with_capacity(items.len());
        for batch in items.chunks(self.placement.copier.at_once()) {
            let slots: Vec<_> = batch.iter().map(|victim| self.slots_for(victim, key)).collect();
            let (mut jobs, mut outcomes) = (Vec::with_capacity(batch.len()), Vec::new());
            let prepare =
                |(victim, slots): (_, Option<Slots>)| self.prepare(victim, slots?, &mut jobs);
            let prepared: Vec<_> = batch.iter().zip(slots).map(prepare).collect();
            self.placement.copier.copy(&jobs, &mut outcomes);
            moved.extend(prepared.into_iter().map(|moving| {
                moving.is_some_and(|moving| {
                    let outcomes = &outcomes[moving.jobs.clone()];
                    // A slot that a device may write late is never used again.
                    !outcomes.contains(&Outcome::Unfinished) && self.publish(&moving)
                })
            }));
        }
        moved
    }

    /// Gives an item slots of another tier.
    fn slots_for(self, victim: &Victim, key: &mut Vec<u8>) -> Option<Slots> {
        if victim.header.is_chained() {
            return self.slots_for_chain(victim, key);
        }
        let (Self { placement, tiers: (from, to), .. }, Victim { class, hash, header, .. }) =
            (self, *victim);
        let at = self.slot(class, hash).or_else(|| {
            // Demotions may evict items of the slower tier.
            let may_push = from < to
                && (placement.make_room(to, class, key) || placement.take_slab(to, class, key));
            if may_push { self.slot(class, hash) } else { None }
        })?;
        let item = self.target.item(at);
        let new = Header::new(item.header(), header.shape());
        item.begin(new);
        Some((at, new))
    }

    /// The same for a chain. It may have changed, so that it can't be moved. That many free slots are rare: other items are
    /// evicted for it in both directions; upwards only chains of its size.
    fn slots_for_chain(self, victim: &Victim, key: &mut Vec<u8>) -> Option<Slots> {
        let Self { placement, tiers: (from, to), .. } = self;
        let old = self.source.item(victim.at);
        let Chain { pieces, slot, .. } = old.chain(victim.header)?;
        let cut = Cut { class: victim.class, slot, pieces };
        let words = placement.contents.sizes().words(victim.class);
        if slot != words || cut.slot * pieces * WORD > 2 * placement.largest {
            return None;
        }
        let slots = if from < to {
            placement.chain_in(to, cut, victim.hash, key)?
        } else {
            placement.chain_for_own(to, cut, victim.hash, key)?
        };
        let item = self.target.item(slots[0]);
        let new = Header::new(item.header(), victim.header.shape());
        item.begin(new);
        item.set_chain(new, slot, &slots);
        Some((slots[0], new))
    }

    /// Adds the jobs that copy an item to its slots; frees these if it has changed.
    fn prepare<'v>(
        self,
        victim: &'v Victim,
        slots: Slots,
        jobs: &mut Vec<Job<'a>>,
    ) -> Option<Moving<'v>> {
        let Self { source, target, .. } = self;
        let (old, (at, new)) = (source.item(victim.at), slots);
        let (header, first) = (old.header(), jobs.len());
        let is_alike = header.has_word_of(victim.header);
        let is_whole = if !is_alike {
            false
        } else if header.is_chained() {
            target.item(at).chain_jobs(new, &old, header, jobs)
        } else {
            let places = ((&target.arena, at + 1), (&source.arena, victim.at + 1));
            jobs.push(Job::new(places.0, places.1, header.words() - 1));
            true
        };
        if !is_whole {
            jobs.truncate(first);
            self.give_back(at);
            return None;
        }
        Some(Moving { victim, header, slots, jobs: first..jobs.len() })
    }

    /// Has the key of an item that was copied lead to the copy, if the item is the same as before.
    fn publish(self, moving: &Moving<'_>) -> bool {
        let Self { placement: Placement { contents, .. }, tiers: (from, to), .. } = self;
        let Moving { victim: Victim { at: old_at, hash, .. }, header, slots: (at, new), .. } =
            *moving;
        let (item, old) = (self.target.item(at), self.source.item(*old_at));
        if new.has_extra() {
            item.set_meta(new, &old.meta(header));
        }
        let held = contents.index().try_lock(*hash);
        let place = Contents::place(from, *old_at);
        let entry = held.as_ref().and_then(|held| Some((held, held.find_place(place)?)));
        match entry.filter(|_| !contents.are_moves_barred() && old.is_still(header)) {
            Some((held, entry)) => {
                item.publish(new.at(Stage::Live).with_uses_of(header));
                held.replace(entry, Contents::place(to, at));
                true
            }
            None => {
                drop(held);
                self.give_back(at);
                false
            }
        }
    }

    /// Frees slots of the target that were not used.
    fn give_back(self, at: usize) {
        self.placement.contents.free(Some(Contents::place(self.tiers.1, at)));
    }

    /// A slot that is free in the target.
    fn slot(self, class: usize, hash: Hash) -> Option<usize> {
        self.target.take(class, &mut self.target.class(class).lock(), hash.low())
    }
}
