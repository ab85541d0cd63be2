//! The slots of one memory tier: slabs of equal length, each cut into the slots of one size class.
//!
//! A class has a list of its free slots, threaded through them, an eviction policy, and a lock over both. Slabs come
//! from the tier's stock while it has any; afterwards a class that needs room evicts its own items, or gets a slab of
//! another class (`placement/slab_rebalance.rs`, `slab_balance.rs`). Slots of a class are numbered over its slabs, in the order it got them:
//! policies use these numbers.
#![expect(
    clippy::cast_possible_truncation,
    reason = "fields of a word have fewer bits, and slots are numbered by 32"
)]

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};
use std::io;

use nearfar_kernel::mempolicy::Policy;

use crate::arena::{Arena, PageSize, WORD};
use crate::evict::{Evict, Eviction};
use crate::index::{Hash, Hasher};
use crate::item::{Header, Item, REACH, Stage};
use crate::order::{Locked, Ordered, Rank};
use crate::sizes::{Cut, Sizes};
use crate::slab_balance::Recent;
use crate::stats::Counts;

mod load;
mod view;

use view::View;

/// Offset that means no slot.
const NONE: usize = usize::MAX;
/// Owner of an unowned slab.
const FREE_SLAB: u64 = u64::MAX;

/// The state of a class, under its lock.
#[derive(Debug)]
pub(crate) struct State {
    /// The first free slot, by its word.
    free_list: usize,
    pub(crate) free: usize,
    /// Slots in use, by items or by pending writes.
    pub(crate) used: usize,
    /// The chunks among them.
    pub(crate) chunks: usize,
    /// The slabs by their position in the numbering of slots; `None` where one was given away.
    slabs: Vec<Option<u32>>,
    /// The slab that is being emptied.
    leaving: Option<u32>,
    /// Slots of the newest slab that were never used: the first number, and their count.
    fresh: (usize, usize),
    pub(crate) policy: Box<dyn Evict>,
    /// Slots of victims that are written to disk, without the lock; those freed meanwhile leave.
    away: Vec<u32>,
    pub(crate) counts: Counts,
    /// Recent evictions.
    pub(crate) recent: Recent,
}

/// A size class in one tier.
#[derive(Debug)]
pub(crate) struct Class {
    words: usize,
    per_slab: usize,
    state: Ordered<State>,
}

impl State {
    /// Notes that the lock is given up before the fate of a victim is decided.
    pub(crate) fn goes_away(&mut self, victim: &Victim) {
        self.away.push(victim.slot);
    }

    /// Notifies the policy that a victim stays, unless its slot was freed meanwhile: then the policy was notified.
    pub(crate) fn stays(&mut self, victim: &Victim) {
        if let Some(at) = self.away.iter().position(|slot| *slot == victim.slot) {
            self.away.swap_remove(at);
            self.policy.kept(victim.slot);
        }
    }

    /// The slab at a position in the numbering; `Some(None)` if it was given away, `None` beyond the last position.
    pub(crate) fn slab(&self, place: usize) -> Option<Option<u32>> {
        self.slabs.get(place).copied()
    }

    /// The slabs, with their positions in the numbering.
    pub(crate) fn slabs(&self) -> impl Iterator<Item = (usize, u32)> {
        self.slabs.iter().enumerate().filter_map(|(place, slab)| Some((place, (*slab)?)))
    }
}

impl Class {
    pub(crate) fn lock(&self) -> Locked<'_, State> {
        self.state.lock()
    }

    pub(crate) const fn words(&self) -> usize {
        self.words
    }

    pub(crate) const fn per_slab(&self) -> usize {
        self.per_slab
    }
}

/// The slots of a tier.
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) arena: Arena,
    slab_words: usize,
    pub(crate) hasher: Hasher,
    classes: Vec<Class>,
    /// Unowned slabs, and the number that may still be given out.
    stock: Ordered<Stock>,
    /// The owner of each slab: class 32, position among its slabs 32.
    owners: Vec<AtomicU64>,
    /// Recent reads of the items of each slab (`slab_balance.rs`).
    heat: Vec<AtomicU32>,
    /// Words of evicted slots since the last slab reassignment.
    pressure: AtomicU64,
    /// Held by a thread that empties a slab.
    pub(crate) emptying: Ordered<()>,
    /// Number of reassigned slabs.
    dealt: AtomicU64,
}

#[derive(Debug)]
struct Stock {
    free: Vec<u32>,
    /// Slabs that stay unused, because the tier was shrunk.
    kept_back: usize,
}

/// An eviction victim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Victim {
    pub(crate) at: usize,
    pub(crate) slot: u32,
    pub(crate) class: usize,
    pub(crate) header: Header,
    pub(crate) hash: Hash,
}

impl Space {
    /// A tier of this many bytes, by its number.
    ///
    /// # Errors
    /// The kernel's, if the memory is unavailable.
    pub(crate) fn new(
        bytes: usize,
        slab: usize,
        (tier, sizes, hasher): (usize, &Sizes, Hasher),
        eviction: Eviction,
        (pages, policy): (PageSize, &Policy),
    ) -> io::Result<Self> {
        let count = (bytes / slab).max(1);
        let slab_words = slab / WORD;
        // Additional address space, which takes no memory: arbitrary words may look like the header of a long item.
        let arena = Arena::new(count * slab + REACH, pages, policy)?;
        let class = |class: usize| Class {
            words: sizes.words(class),
            per_slab: slab_words / sizes.words(class),
            state: Ordered::new(
                Rank::class(tier),
                State {
                    free_list: NONE,
                    free: 0,
                    used: 0,
                    chunks: 0,
                    slabs: Vec::new(),
                    leaving: None,
                    fresh: (0, 0),
                    policy: eviction.make(),
                    away: Vec::new(),
                    counts: Counts::default(),
                    recent: Recent::default(),
                },
            ),
        };
        let highest = u32::try_from(count).unwrap_or(u32::MAX);
        Ok(Self {
            arena,
            slab_words,
            hasher,
            classes: (0..sizes.count()).map(class).collect(),
            stock: Ordered::new(
                Rank::STOCK,
                Stock { free: (0..highest).rev().collect(), kept_back: 0 },
            ),
            owners: (0..count).map(|_| AtomicU64::new(FREE_SLAB)).collect(),
            heat: (0..count).map(|_| AtomicU32::new(0)).collect(),
            pressure: AtomicU64::new(0),
            emptying: Ordered::new(Rank::emptying(tier), ()),
            dealt: AtomicU64::new(0),
        })
    }

    pub(crate) fn class(&self, class: usize) -> &Class {
        &self.classes[class]
    }

    pub(crate) fn classes(&self) -> impl ExactSizeIterator<Item = &Class> {
        self.classes.iter()
    }

    /// Words of a slab.
    pub(crate) const fn slab_words(&self) -> usize {
        self.slab_words
    }

    pub(crate) fn item(&self, at: usize) -> Item<'_> {
        Item { arena: &self.arena, at }
    }

    /// The class of the slot at a word, if any. It is stable while the item is in use or the class is locked.
    pub(crate) fn class_of(&self, at: usize) -> Option<usize> {
        let owner = self.owners[at / self.slab_words].load(Relaxed);
        (owner != FREE_SLAB).then_some((owner >> 32) as usize)
    }

    /// The class of a slot that is in use.
    pub(crate) fn class_in_use(&self, at: usize) -> &Class {
        let class = self.class_of(at).expect("a slab goes only when none of its slots is in use");
        &self.classes[class]
    }

    /// The number of the slot at a word.
    pub(crate) fn slot_of(&self, at: usize) -> u32 {
        let owner = self.owners[at / self.slab_words].load(Relaxed);
        let class = &self.classes[(owner >> 32) as usize];
        let slab = (owner & 0xffff_ffff) as usize;
        (slab * class.per_slab + at % self.slab_words / class.words) as u32
    }

    /// The word at which the slot with this number begins.
    fn word_of(&self, class: &Class, slabs: &[Option<u32>], slot: u32) -> Option<usize> {
        let slab = slabs.get(slot as usize / class.per_slab).copied().flatten()?;
        Some(slab as usize * self.slab_words + slot as usize % class.per_slab * class.words)
    }

    fn stock(&self) -> Locked<'_, Stock> {
        self.stock.lock()
    }

    /// Number of slabs in the stock.
    pub(crate) fn unused_slabs(&self) -> usize {
        let stock = self.stock();
        stock.free.len().saturating_sub(stock.kept_back)
    }

    /// Total number of slabs.
    pub(crate) fn slab_count(&self) -> usize {
        self.owners.len()
    }

    /// Maximum number of slabs in use.
    pub(crate) fn slab_limit(&self) -> usize {
        self.owners.len() - self.stock().kept_back
    }

    /// Takes a free slot without evicting: held, under no key. The caller writes it before it is published.
    #[inline]
    pub(crate) fn take(&self, class: usize, state: &mut State, hash: u32) -> Option<usize> {
        let at = self.take_slot(class, state)?;
        let item = self.item(at);
        item.begin(item.header().at(Stage::Held));
        state.policy.stored(self.slot_of(at), hash);
        state.recent.came(hash);
        Some(at)
    }

    /// Takes a free slot without notifying the policy.
    #[inline]
    pub(crate) fn take_slot(&self, class: usize, state: &mut State) -> Option<usize> {
        let at = self.take_free(state).or_else(|| self.take_fresh(class, state))?;
        state.used += 1;
        Some(at)
    }

    fn take_free(&self, state: &mut State) -> Option<usize> {
        let at = state.free_list;
        if at == NONE {
            return None;
        }
        state.free_list = self.arena.word(at + 1).load(Relaxed) as usize;
        state.free -= 1;
        Some(at)
    }

    fn take_fresh(&self, number: usize, state: &mut State) -> Option<usize> {
        if state.fresh.1 == 0 && !self.grow(number, state) {
            return None;
        }
        let slot = u32::try_from(state.fresh.0).ok()?;
        let at = self.word_of(&self.classes[number], &state.slabs, slot)?;
        state.fresh = (state.fresh.0 + 1, state.fresh.1 - 1);
        state.free -= 1;
        Some(at)
    }

    /// Gives a class a slab of the stock, if there is one.
    pub(crate) fn grow(&self, number: usize, state: &mut State) -> bool {
        let mut stock = self.stock();
        if stock.free.len() <= stock.kept_back {
            return false;
        }
        let per_slab = self.classes[number].per_slab;
        let place = state.slabs.iter().position(Option::is_none).unwrap_or(state.slabs.len());
        // Slots are numbered by 32 bits. With more memory of a class than that, its items replace each other.
        if u32::try_from((place + 1) * per_slab).is_err() {
            return false;
        }
        let Some(slab) = stock.free.pop() else { return false };
        drop(stock);
        if place == state.slabs.len() {
            state.slabs.push(None);
        }
        state.slabs[place] = Some(slab);
        self.owners[slab as usize].store((number as u64) << 32 | place as u64, Relaxed);
        self.heat[slab as usize].store(0, Relaxed);
        let is_next = state.fresh.1 == 0;
        // Remains of other sizes must not be mistaken for items.
        for at in self.slots_of(number, slab) {
            let item = self.item(at);
            item.begin(item.header().at(Stage::Free));
            if !is_next {
                self.link(state, at);
            }
        }
        // Versions continue from arbitrary contents of these words.
        self.arena.next_epoch();
        if is_next {
            state.fresh = (place * per_slab, per_slab);
        }
        state.free += per_slab;
        true
    }

    /// Frees the slots of an item that no entry leads to.
    pub(crate) fn give_back(&self, state: &mut State, at: usize) {
        let item = self.item(at);
        let header = item.header();
        if header.is_chained() {
            let chunks = item.chunks(header);
            self.give_slot_back(state, at);
            return self.give_chunks_back(state, &chunks);
        }
        self.give_slot_back(state, at);
    }

    /// Frees the slots of an evicted item, and records the eviction.
    pub(crate) fn let_go(&self, class: usize, state: &mut State, victim: &Victim) {
        let used = state.used;
        self.give_back(state, victim.at);
        let Class { per_slab, words, .. } = self.classes[class];
        let slots = used - state.used;
        state.recent.went(victim.hash.low(), slots, (per_slab, words));
    }

    /// Frees a slot.
    #[inline]
    pub(crate) fn give_slot_back(&self, state: &mut State, at: usize) {
        let item = self.item(at);
        let header = item.header();
        if header.stage() != Stage::Free {
            // Before any other change here.
            item.begin(header.at(Stage::Free));
        }
        state.used -= 1;
        if !state.away.is_empty() {
            let slot = self.slot_of(at);
            state.away.retain(|away| *away != slot);
        }
        if state.leaving.is_some_and(|slab| slab as usize == at / self.slab_words) {
            return;
        }
        self.link(state, at);
        state.free += 1;
    }

    /// Removes an item that is in use, for a reason other than the policy.
    pub(crate) fn remove(&self, state: &mut State, at: usize) {
        state.policy.removed(self.slot_of(at));
        self.give_back(state, at);
    }

    /// The policy's eviction victim, if there is one.
    pub(crate) fn victim(
        &self,
        number: usize,
        state: &mut State,
        key: &mut Vec<u8>,
    ) -> Option<Victim> {
        let class = &self.classes[number];
        let slot = state.policy.victim(&View { space: self, class, slabs: &state.slabs })?;
        let at = self.word_of(class, &state.slabs, slot)?;
        let item = self.item(at);
        let header = item.header();
        let hash = item.hash(header, key, &self.hasher);
        let victim = Victim { at, slot, class: number, header, hash };
        if header.is_live() && item.is_still(header) {
            return Some(victim);
        }
        state.policy.kept(slot);
        None
    }

    /// The words at which the slots of one of a class's slabs begin.
    pub(crate) fn slots_of(&self, class: usize, slab: u32) -> impl Iterator<Item = usize> + use<> {
        let Class { words, per_slab, .. } = self.classes[class];
        let from = slab as usize * self.slab_words;
        (0..per_slab).map(move |slot| from + slot * words)
    }

    /// Stops allocation from a slab until [`Self::release`]: its free slots leave the list, and freed ones stay out of
    /// it. False if it is not the class's slab at this position.
    pub(crate) fn retire(
        &self,
        class: usize,
        state: &mut State,
        (place, slab): (usize, u32),
    ) -> bool {
        if state.slabs.get(place) != Some(&Some(slab)) || state.leaving.is_some() {
            return false;
        }
        let (mut at, mut kept) = (state.free_list, Vec::new());
        while at != NONE {
            if at / self.slab_words == slab as usize {
                state.free -= 1;
            } else {
                kept.push(at);
            }
            at = self.arena.word(at + 1).load(Relaxed) as usize;
        }
        state.free_list = NONE;
        kept.into_iter().rev().for_each(|at| self.link(state, at));
        if state.fresh.1 > 0 && state.fresh.0 / self.classes[class].per_slab == place {
            state.free -= state.fresh.1;
            state.fresh = (0, 0);
        }
        state.leaving = Some(slab);
        true
    }

    /// Returns a retired slab to the stock; or to its class, if a slot of it is in use.
    pub(crate) fn release(&self, class: usize, state: &mut State, place: usize) -> bool {
        let Some(slab) = state.leaving.take() else { return false };
        let is_free = |at: &usize| self.item(*at).header().stage() == Stage::Free;
        let free: Vec<usize> = self.slots_of(class, slab).filter(is_free).collect();
        if free.len() < self.classes[class].per_slab {
            state.free += free.len();
            free.into_iter().for_each(|at| self.link(state, at));
            return false;
        }
        state.slabs[place] = None;
        self.owners[slab as usize].store(FREE_SLAB, Relaxed);
        let mut stock = self.stock();
        stock.free.push(slab);
        if stock.free.len() <= stock.kept_back {
            self.arena.discard(slab as usize * self.slab_words, self.slab_words);
        }
        true
    }

    /// Puts a slot into the free list.
    #[inline]
    fn link(&self, state: &mut State, at: usize) {
        self.arena.word(at + 1).store(state.free_list as u64, Relaxed);
        state.free_list = at;
    }

    /// Limits the slabs in use; those beyond are freed gradually.
    pub(crate) fn keep_back(&self, slabs: usize) {
        self.stock().kept_back = slabs.min(self.owners.len() - 1);
        self.settle();
    }

    /// Whether a chain fits if the tier has nothing else.
    pub(crate) fn has_place_for(&self, cut: Cut) -> bool {
        self.slab_limit() * self.classes[cut.class].per_slab >= cut.pieces
    }

    /// Returns the memory of slabs that stay unused to the kernel.
    fn settle(&self) {
        let stock = self.stock();
        let spare = stock.free.len().min(stock.kept_back);
        for slab in &stock.free[..spare] {
            self.arena.discard(*slab as usize * self.slab_words, self.slab_words);
        }
    }

    /// Number of slabs in use beyond the limit.
    pub(crate) fn excess(&self) -> usize {
        let stock = self.stock();
        stock.kept_back.saturating_sub(stock.free.len())
    }
}
