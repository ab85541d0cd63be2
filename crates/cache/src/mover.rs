//! Who moves items between tiers, ahead of need.
//!
//! A mover keeps some slots of each class free in each tier, so that who stores an item finds one: below 2 % it demotes, up
//! to 5 %. What is read twice in a slower tier is wished for in a faster one, and goes there if there is room without anybody
//! having to leave. An item is copied where nobody looks, then its entry is exchanged if it is the same still: readers find
//! the one or the other, whole.

mod threads;

#[cfg(feature = "serve")]
pub(crate) use threads::said;
pub use threads::{Failed, Movers};

use core::sync::atomic::Ordering::Relaxed;

use crate::arena::WORD;
use crate::cache::{BATCH, Cache};
use crate::chain::Chain;
use crate::index::Hash;
use crate::item::{Header, KEY_MAX, Stage};
use crate::sizes::Cut;
use crate::space::Victim;
use crate::store::Meta;

/// Slots of a class that are kept free, in percent: below the first more are freed, up to the second.
const FREE_LOW: usize = 2;
const FREE_HIGH: usize = 5;

impl Cache {
    /// Demotes a batch of a class's items; gives how many slots that freed.
    pub(crate) fn demote(&self, tier: usize, class: usize, key: &mut Vec<u8>) -> usize {
        let space = &self.spaces[tier];
        let mut state = space.class(class).lock();
        let batch = Self::batch(&state);
        let mut victims = Vec::with_capacity(batch);
        while victims.len() < batch {
            let Some(victim) = space.victim(class, &mut state, key) else { break };
            state.policy.kept(victim.slot);
            victims.push(victim);
        }
        drop(state);
        let tried = victims.len();
        victims.retain(|victim| self.shift((tier, tier + 1), class, victim, key));
        let mut state = space.class(class).lock();
        for victim in &victims {
            state.policy.removed(victim.slot);
            space.let_go(class, &mut state, victim);
        }
        space.press(&mut state);
        state.counts.demoted += victims.len() as u64;
        state.counts.contended += (tried - victims.len()) as u64;
        victims.len()
    }

    /// Copies an item to another tier and has its key lead there; the old slots are the caller's to give back then.
    pub(crate) fn shift(
        &self,
        (from, to): (usize, usize),
        class: usize,
        what: &Victim,
        key: &mut Vec<u8>,
    ) -> bool {
        let header = what.header;
        let copied = if header.is_chained() {
            self.copy_chain((from, to), class, what, key)
        } else {
            self.copy_item((from, to), class, what, key)
        };
        let Some((at, new, is_whole)) = copied else { return false };
        let (item, old) = (self.spaces[to].item(at), self.spaces[from].item(what.at));
        if new.has_extra() {
            item.set_meta(new, &old.meta(header));
        }
        let held = self.index.try_lock(what.hash);
        let place = Self::place(from, what.at);
        let entry = held.as_ref().and_then(|held| Some((held, held.find_place(place)?)));
        let may_move = is_whole && !self.are_moves_barred();
        match entry.filter(|_| may_move && old.is_still(header)) {
            Some((held, entry)) => {
                item.publish(new.at(Stage::Live).with_uses_of(header));
                held.replace(entry, Self::place(to, at));
                true
            }
            None => {
                drop(held);
                self.free(Some(Self::place(to, at)));
                false
            }
        }
    }

    /// Copies an item to a free slot of another tier; gives its word, its header there, and that it is whole.
    fn copy_item(
        &self,
        (from, to): (usize, usize),
        class: usize,
        what: &Victim,
        key: &mut Vec<u8>,
    ) -> Option<(usize, Header, bool)> {
        let at = self.slot_in(to, class, what.hash).or_else(|| {
            // Who goes down may have others leave for it.
            let may_push =
                from < to && (self.make_room(to, class, key) || self.rob(to, class, key));
            if may_push { self.slot_in(to, class, what.hash) } else { None }
        })?;
        let (source, target) = (&self.spaces[from], &self.spaces[to]);
        let item = target.item(at);
        let new = Header::new(item.header(), what.header.shape());
        item.begin(new);
        target.arena.copy_from(at + 1, &source.arena, what.at + 1, what.header.words() - 1);
        Some((at, new, true))
    }

    /// The same with a chain, which may have changed by now so that it can't be whole. So many free slots there hardly ever are:
    /// others leave for it, whichever way it goes; upwards only such as are of its size.
    fn copy_chain(
        &self,
        (from, to): (usize, usize),
        class: usize,
        what: &Victim,
        key: &mut Vec<u8>,
    ) -> Option<(usize, Header, bool)> {
        let old = self.spaces[from].item(what.at);
        let Chain { pieces, slot, .. } = old.chain(what.header)?;
        let cut = Cut { class, slot, pieces };
        if slot != self.sizes.words(class) || cut.slot * pieces * WORD > 2 * self.largest() {
            return None;
        }
        let slots = if from < to {
            self.chain_in(to, cut, what.hash, key)?
        } else {
            self.chain_for_own(to, cut, what.hash, key)?
        };
        let item = self.spaces[to].item(slots[0]);
        let new = Header::new(item.header(), what.header.shape());
        item.begin(new);
        item.set_chain(new, slot, &slots);
        Some((slots[0], new, item.copy_chain_from(new, &old, what.header)))
    }

    /// A slot that is free in a tier.
    fn slot_in(&self, tier: usize, class: usize, hash: Hash) -> Option<usize> {
        let space = &self.spaces[tier];
        space.take(class, &mut space.class(class).lock(), hash.low())
    }

    /// Brings items that are wished for to the next faster tier, where there is room; gives how many.
    fn promote(&self) -> usize {
        let mut key = Vec::with_capacity(KEY_MAX);
        let mut count = 0;
        for place in self.wishes.take() {
            let (tier, space, at) = self.locate(place);
            let item = space.item(at);
            let header = item.header();
            if tier == 0 || !header.is_live() {
                continue;
            }
            let what = Victim { at, slot: 0, header, hash: item.hash(header, &mut key) };
            let words = match item.chain(header).filter(|_| header.is_chained()) {
                Some(chain) => chain.slot,
                None => header.words(),
            };
            let class = self.sizes.class(words);
            if class == self.sizes.count() || !item.is_still(header) {
                continue;
            }
            if self.shift((tier, tier - 1), class, &what, &mut key) {
                self.spaces[tier - 1].class(class).lock().counts.promoted += 1;
                self.free(Some(place));
                count += 1;
            }
        }
        count
    }

    /// Takes out everything that is there now.
    pub(crate) fn remove_all(&self) {
        self.without_moves(|| {
            self.drop_items(&|_| true);
            self.clear_disk();
        });
    }

    /// Takes out all that has expired, at once; gives how many items that were.
    pub fn reap(&self) -> u64 {
        let now = self.now.load(Relaxed);
        self.drop_items(&|meta| meta.is_over(now))
    }

    fn drop_items(&self, goes: &dyn Fn(&Meta) -> bool) -> u64 {
        let (mut key, mut count) = (Vec::with_capacity(KEY_MAX), 0);
        for_each_item(self, &mut |tier, at| {
            let space = &self.spaces[tier];
            let item = space.item(at);
            let header = item.header();
            if !header.is_live() || !goes(&item.meta(header)) {
                return true;
            }
            let hash = item.hash(header, &mut key);
            let place = Self::place(tier, at);
            let held = self.index.lock(hash);
            let found = held.find_place(place).filter(|_| item.is_still(header));
            if let Some(entry) = found {
                held.remove(entry);
            }
            drop(held);
            if found.is_some() {
                let mut state = space.class_in_use(at).lock();
                space.remove(&mut state, at);
                state.counts.expired += 1;
                count += 1;
            }
            true
        });
        count
    }

    /// Tells policies what was read.
    fn tell_reads(&self) {
        let mut key = Vec::with_capacity(KEY_MAX);
        for place in self.read_notes.take() {
            let (_, space, at) = self.locate(place);
            let item = space.item(at);
            let header = item.header();
            if !header.is_live() {
                continue;
            }
            let hash = item.hash(header, &mut key);
            // The item may go, and its slab to another class, until the lock is had.
            let Some(class) = space.class_of(at) else { continue };
            let mut state = space.class(class).lock();
            if space.class_of(at) == Some(class) && item.is_still(header) {
                state.policy.read(space.slot_of(at), hash.low());
            }
        }
    }

    /// As [`Self::tell_reads`], where enough have come together.
    #[inline]
    pub(crate) fn tell_reads_if_many(&self) {
        if self.read_notes.is_full() {
            self.tell_reads();
        }
    }

    /// One round of a mover: promotes what is wished for, frees slots where too few are, and has the disk do what is due. Gives
    /// how many items it moved in memory.
    pub fn step(&self) -> usize {
        let moved = self.step_in_memory();
        self.tick_disk();
        moved
    }

    fn step_in_memory(&self) -> usize {
        let mut moved = self.promote();
        let mut key = Vec::with_capacity(KEY_MAX);
        for tier in 0..self.spaces.len() {
            let space = &self.spaces[tier];
            if space.excess() > 0 && self.rob(tier, self.sizes.count(), &mut key) {
                space.settle();
                moved += 1;
            }
            if space.unused_slabs() > 0 {
                continue;
            }
            if let Some(below) = self.below.as_ref().filter(|_| tier + 1 == self.spaces.len()) {
                below.disk.wait_for_buffer();
            }
            for class in 0..self.sizes.count() {
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
}

/// Calls `each` with tier and word of every slot that holds an item, until it says false. Classes are locked one after
/// another, and only to see which slots they have.
pub(crate) fn for_each_item(cache: &Cache, each: &mut dyn FnMut(usize, usize) -> bool) {
    for (tier, space) in cache.spaces.iter().enumerate() {
        for class in 0..cache.sizes.count() {
            let mut slots = Vec::new();
            {
                let state = space.class(class).lock();
                slots.extend(state.slabs().flat_map(|(_, slab)| space.slots_of(class, slab)));
            }
            let live = slots.into_iter().filter(|at| space.item(*at).header().is_live());
            for at in live {
                if !each(tier, at) {
                    return;
                }
            }
        }
    }
}
