//! The modelled parts of a cache: memory as loom's words, slots with a free list, and the cache's steps in two tiers,
//! as in the library.

use loom::sync::Mutex;
use loom::sync::atomic::Ordering::Relaxed;
use nearfar_kernel::mempolicy::Policy;

use crate::index::{At, Entry, Hash, Hasher, Held, Index};
use crate::item::{Header, Item, Shape, Stage};
use arena::{Arena, PageSize};
use copy::Job;
use space::{SLOT, Space};

pub(crate) mod arena {
    //! Memory, with the interface of the library's arenas.

    use std::io;

    use loom::sync::atomic::AtomicU64;
    use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release};
    use nearfar_kernel::mempolicy::Policy;

    pub(crate) const WORD: usize = 8;

    #[derive(Clone, Copy)]
    pub(crate) enum PageSize {
        Base,
    }

    #[derive(Debug)]
    pub(crate) struct Arena {
        words: Vec<AtomicU64>,
        epoch: AtomicU64,
    }

    impl Arena {
        #[expect(clippy::unnecessary_wraps, reason = "as the library's")]
        pub(crate) fn new(bytes: usize, _: PageSize, _: &Policy) -> io::Result<Self> {
            let words = (0..bytes / WORD).map(|_| AtomicU64::new(0)).collect();
            Ok(Self { words, epoch: AtomicU64::new(0) })
        }
        pub(crate) fn epoch(&self) -> u64 {
            self.epoch.load(Acquire)
        }
        pub(crate) fn next_epoch(&self) {
            self.epoch.fetch_add(1, Release);
        }
        pub(crate) fn has(&self, at: usize, words: usize) -> bool {
            at < self.words.len() && words < self.words.len() - at
        }
        pub(crate) fn word(&self, at: usize) -> &AtomicU64 {
            &self.words[at]
        }
        #[expect(clippy::unused_self, reason = "as the library's")]
        pub(crate) const fn prefetch(&self, _: usize) {}
        /// Of whole words, as all keys and values are here.
        pub(crate) fn is_equal(&self, at: usize, bytes: &[u8]) -> bool {
            let (words, _) = bytes.as_chunks::<WORD>();
            words
                .iter()
                .enumerate()
                .all(|(n, word)| self.words[at + n].load(Relaxed) == u64::from_le_bytes(*word))
        }
        pub(crate) fn read(&self, at: usize, skip: usize, length: usize, out: &mut Vec<u8>) {
            for word in &self.words[at + skip / WORD..][..length / WORD] {
                out.extend(word.load(Relaxed).to_le_bytes());
            }
        }
        pub(crate) fn read_to(&self, at: usize, skip: usize, to: &mut [u8]) {
            let mut read = Vec::new();
            self.read(at, skip, to.len(), &mut read);
            to.copy_from_slice(&read);
        }
        pub(crate) fn write(&self, at: usize, parts: &[&[u8]]) {
            let all = parts.concat();
            for (n, word) in all.as_chunks::<WORD>().0.iter().enumerate() {
                self.words[at + n].store(u64::from_le_bytes(*word), Relaxed);
            }
        }
    }
}

pub(crate) mod copy {
    //! A job, copied by words.

    use loom::sync::atomic::Ordering::Relaxed;

    use super::Arena;

    #[derive(Debug)]
    pub(crate) struct Job<'a> {
        target: (&'a Arena, usize),
        source: (&'a Arena, usize),
        words: usize,
    }

    impl<'a> Job<'a> {
        pub(crate) fn new(
            target: (&'a Arena, usize),
            source: (&'a Arena, usize),
            words: usize,
        ) -> Self {
            Self { target, source, words }
        }

        pub(crate) fn by_words(&self) {
            let ((target, to), (source, from)) = (self.target, self.source);
            for n in 0..self.words {
                target.word(to + n).store(source.word(from + n).load(Relaxed), Relaxed);
            }
        }
    }
}

pub(crate) mod space {
    //! Slots of one size, and a free list.

    use super::{Arena, Header, Item, Mutex, PageSize, Policy, Relaxed, Stage, arena};
    use crate::index::Hasher;
    use crate::sizes::Cut;

    /// Words of a slot.
    pub(crate) const SLOT: usize = 5;

    #[derive(Debug)]
    pub(crate) struct State {
        pub(crate) free: usize,
        pub(crate) chunks: usize,
        list: Vec<usize>,
    }

    #[derive(Debug)]
    pub(crate) struct Space {
        pub(crate) arena: Arena,
        pub(crate) hasher: Hasher,
        pub(crate) state: Mutex<State>,
    }

    impl Space {
        pub(crate) fn new(slots: usize) -> Self {
            let bytes = (slots * SLOT + 2 * SLOT) * arena::WORD;
            let list = (0..slots).map(|slot| slot * SLOT).collect();
            Self {
                arena: Arena::new(bytes, PageSize::Base, &Policy::Default).unwrap(),
                hasher: Hasher::FIXED,
                state: Mutex::new(State { free: slots, chunks: 0, list }),
            }
        }
        pub(crate) fn item(&self, at: usize) -> Item<'_> {
            Item { arena: &self.arena, at }
        }
        #[expect(clippy::unused_self, reason = "as the library's")]
        pub(crate) const fn grow(&self, _: usize, _: &mut State) -> bool {
            false
        }
        pub(crate) fn take(&self, class: usize, state: &mut State, _: u32) -> Option<usize> {
            let at = self.take_slot(class, state)?;
            let item = self.item(at);
            item.begin(item.header().at(Stage::Held));
            Some(at)
        }
        #[expect(clippy::unused_self, reason = "as the library's")]
        pub(crate) fn take_slot(&self, _: usize, state: &mut State) -> Option<usize> {
            let at = state.list.pop()?;
            state.free -= 1;
            Some(at)
        }
        pub(crate) fn give_slot_back(&self, state: &mut State, at: usize) {
            let item = self.item(at);
            let header = item.header();
            if header.stage() != Stage::Free {
                item.begin(header.at(Stage::Free));
            }
            // The library's list runs through the slots.
            self.arena.word(at + 1).store(7, Relaxed);
            state.list.push(at);
            state.free += 1;
        }
        pub(crate) fn give_back(&self, at: usize) {
            let mut state = self.state.lock().unwrap();
            let (item, header) = (self.item(at), self.item(at).header());
            let chunks = if header.is_chained() { item.chunks(header) } else { Vec::new() };
            self.give_slot_back(&mut state, at);
            self.give_chunks_back(&mut state, &chunks);
        }
        /// One slot, or two for a chain.
        pub(crate) fn slots(&self, pieces: usize) -> Option<Vec<usize>> {
            let mut state = self.state.lock().unwrap();
            match pieces {
                1 => self.take(0, &mut state, 0).map(|at| vec![at]),
                _ => self.take_chain(Cut { class: 0, pieces }, &mut state, crate::index::Hash(0)),
            }
        }
        /// The header of a slot's next item.
        pub(crate) fn next(&self, at: usize, shape: super::Shape) -> Header {
            Header::new(self.item(at).header(), shape)
        }
    }
}

/// A key, of one word.
pub(crate) type Key = [u8; 8];

fn numbered(number: u64) -> Key {
    number.to_le_bytes()
}

/// Two keys with the same tag that begin in the same of two buckets.
pub(crate) fn keys() -> [Key; 2] {
    let mut seen = std::collections::BTreeMap::new();
    let all = (0..).map(numbered);
    for key in all {
        let hash = Hasher::FIXED.hash(&key);
        if let Some(other) = seen.insert((hash.tag(), hash.low() >> 31), key) {
            return [other, key];
        }
    }
    unreachable!("there are more keys than tags")
}

/// A value of two words that identifies its key.
pub(crate) fn value(key: &Key, version: u8) -> Vec<u8> {
    let word = (u64::from_le_bytes(*key) << 8 | u64::from(version)).to_le_bytes();
    word.repeat(2)
}

/// The same of three words, for a head and a chunk.
pub(crate) fn long(key: &Key, version: u8) -> Vec<u8> {
    value(key, version)[..8].repeat(3)
}

/// A cache of two tiers.
pub(crate) struct Cache {
    pub(crate) index: Index,
    spaces: [Space; 2],
}

const TIER_SHIFT: u32 = 43;

impl Cache {
    /// With this many slots in each tier, and an index of two buckets.
    pub(crate) fn new(slots: usize) -> Self {
        let index = Index::new(1, PageSize::Base, &Policy::Default).unwrap();
        Self { index, spaces: [Space::new(slots), Space::new(slots)] }
    }

    /// A key with two buckets, two with the first of these alone, and two with the second alone.
    pub(crate) fn crowd(&self) -> [Key; 5] {
        let hash = |key: &Key| Hasher::FIXED.hash(key);
        let buckets = |key: &Key| {
            let first = self.index.first(hash(key));
            (first, self.index.other(first, hash(key).tag()))
        };
        let of = |wanted| (0..).map(numbered).filter(move |key| buckets(key) == wanted);
        let mut both = of((0, 1));
        let (mut first, mut second) = (of((0, 0)), of((1, 1)));
        let next = |keys: &mut dyn Iterator<Item = Key>| keys.next().unwrap();
        [next(&mut both), next(&mut first), next(&mut first), next(&mut second), next(&mut second)]
    }

    fn locate(&self, place: u64) -> (&Space, usize) {
        let at = usize::try_from(place & ((1 << TIER_SHIFT) - 1)).unwrap();
        (&self.spaces[usize::try_from(place >> TIER_SHIFT).unwrap()], at)
    }

    fn find(&self, held: &Held<'_>, key: &Key) -> Option<(Entry, At)> {
        held.find(|entry| {
            let (space, at) = self.locate(entry.place());
            let header = space.item(at).header();
            header.may_be(key.len()) && space.item(at).has_key(header, key)
        })
    }

    /// `Cache::read`.
    pub(crate) fn get(&self, key: &Key) -> Option<Vec<u8>> {
        let hash = Hasher::FIXED.hash(key);
        loop {
            let found = self.index.find(hash, |entry, at| {
                let (space, word) = self.locate(entry.place());
                let item = space.item(word);
                let header = item.header();
                let is_there = || item.is_still(header) && self.index.is_there(at, entry);
                if !header.may_be(key.len()) || !item.has_key(header, key) {
                    let same = header.is_live() && is_there();
                    return (!same).then_some(None);
                }
                let mut out = Vec::new();
                item.read_value(header, &mut out);
                Some(is_there().then_some(out))
            });
            match found {
                Some(Some(value)) => return Some(value),
                Some(None) => loom::thread::yield_now(),
                None => return None,
            }
        }
    }

    /// `Cache::put`.
    fn put(&self, key: &Key, value: &[u8], pieces: usize) {
        let (hash, space) = (Hasher::FIXED.hash(key), &self.spaces[0]);
        let slots = space.slots(pieces).expect("a slot is free");
        let chained = pieces > 1;
        let shape = Shape { key: key.len(), value: value.len(), chained, ..Shape::default() };
        let (item, header) = (space.item(slots[0]), space.next(slots[0], shape));
        if chained {
            item.set_chain(header, SLOT, &slots);
        }
        item.begin(header);
        item.write(header, key, value);
        let held = self.index.lock(hash);
        let old = self.find(&held, key);
        item.publish(item.header().at(Stage::Live));
        match old {
            Some((_, at)) => held.replace(at, slots[0] as u64),
            None => assert!(held.insert(slots[0] as u64), "there is room in the index"),
        }
        drop(held);
        if let Some((entry, _)) = old {
            let (space, at) = self.locate(entry.place());
            space.give_back(at);
        }
    }

    pub(crate) fn set(&self, key: &Key, version: u8) {
        self.put(key, &value(key, version), 1);
    }

    pub(crate) fn set_chain(&self, key: &Key, version: u8) {
        self.put(key, &long(key, version), 2);
    }

    /// The item of a key in the first tier, as a policy names it: without any lock on the key.
    fn victim(&self, key: &Key) -> Option<(Hash, usize, Header)> {
        let hash = Hasher::FIXED.hash(key);
        let found = self.index.find(hash, |entry, _| {
            let (space, at) = self.locate(entry.place());
            let header = space.item(at).header();
            let is_fit = entry.place() >> TIER_SHIFT == 0 && header.may_be(key.len());
            (is_fit && space.item(at).has_key(header, key)).then_some((at, header))
        });
        found.map(|(at, header)| (hash, at, header))
    }

    /// `Cache::shift` with one item, from the first tier to the second. Whether the item was moved.
    pub(crate) fn demote(&self, key: &Key) -> bool {
        let Some((hash, at, header)) = self.victim(key) else { return false };
        let [from, to] = &self.spaces;
        let Some(slots) = to.slots(1) else { return false };
        let (item, old) = (to.item(slots[0]), from.item(at));
        let new = to.next(slots[0], header.shape());
        item.begin(new);
        let (target, source) = ((&to.arena, slots[0] + 1), (&from.arena, at + 1));
        Job::new(target, source, header.words() - 1).by_words();
        let held = self.index.try_lock(hash);
        let entry = held.as_ref().and_then(|held| Some((held, held.find_place(at as u64)?)));
        match entry.filter(|_| old.is_still(header)) {
            Some((held, entry)) => {
                item.publish(new.at(Stage::Live).with_uses_of(header));
                held.replace(entry, 1 << TIER_SHIFT | slots[0] as u64);
            }
            None => {
                drop(held);
                to.give_back(slots[0]);
                return false;
            }
        }
        drop(held);
        from.give_back(at);
        true
    }

    /// `Cache::take_out` and the steps that follow. Returns whether the item was evicted.
    pub(crate) fn evict(&self, key: &Key) -> bool {
        let Some((hash, at, _)) = self.victim(key) else { return false };
        let Some(held) = self.index.try_lock(hash) else { return false };
        let Some(entry) = held.find_place(at as u64) else { return false };
        held.remove(entry);
        drop(held);
        self.spaces[0].give_back(at);
        true
    }

    /// Stores a key in the only slot, with the last version before wrap-around, as after many uses of the slot.
    pub(crate) fn set_last_version(&self, key: &Key, version: u8) {
        self.spaces[0].arena.word(0).store(0xfffe << 48, Relaxed);
        self.set(key, version);
        assert_eq!(self.spaces[0].item(0).header().version(), 0xffff);
    }

    /// Free slots of each tier.
    pub(crate) fn free(&self) -> [usize; 2] {
        [0, 1].map(|tier: usize| self.spaces[tier].state.lock().unwrap().free)
    }
}
