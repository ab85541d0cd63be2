//! Changes that hang on what is there: the cache as a [`Store`].
//!
//! An edit holds the stripe of its key from the look to the change. What is kept besides a value changes in place, under
//! another version of the item, so that who reads meanwhile reads again; an item that has no room for that is written anew.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use crate::arena::WORD;
use crate::cache::Cache;
use crate::index::{At, Entry, Held, hash};
use crate::item::{Header, Stage};
use crate::mover::for_each_item;
use crate::store::{Decide, Edit, Head, Meta, Old, Refused, Store};

/// An item whose stripe is held.
struct There<'a> {
    cache: &'a Cache,
    entry: Entry,
    header: Header,
}

impl Old for There<'_> {
    fn meta(&self) -> Meta {
        self.cache.item(self.entry).meta(self.header)
    }

    fn len(&self) -> usize {
        self.header.value()
    }

    fn read(&self, out: &mut Vec<u8>) {
        self.cache.item(self.entry).read_value(self.header, out);
    }
}

impl Cache {
    /// Sets what is kept besides the value of an item that has room for that.
    fn set_meta(&self, there: &There<'_>, meta: &Meta) -> bool {
        let item = self.item(there.entry);
        if !there.header.has_extra() {
            return *meta == there.meta();
        }
        let header = there.header;
        let new = Header::new(header, header.shape());
        // A policy may set how often it was read meanwhile, no more.
        if item.change(header, |_| new).is_none() {
            return false;
        }
        item.begin(new);
        item.set_meta(new, meta);
        item.publish(new.at(Stage::Live).with_reads(header.reads()));
        true
    }

    /// Writes an item under a key whose stripe is held; gives the place to free.
    fn put_held(
        &self,
        held: &Held<'_>,
        key: &[u8],
        value: &[u8],
        meta: &Meta,
    ) -> Result<Option<u64>, Refused> {
        let new = self.write(hash(key), (key, value), Some(meta))?;
        Ok(self.exchange(held, key, new))
    }

    fn remove_held(held: &Held<'_>, old: Option<(Entry, At)>) -> Option<u64> {
        old.map(|(entry, at)| {
            held.remove(at);
            entry.place()
        })
    }
}

impl Store for Cache {
    fn now(&self) -> u32 {
        self.now.load(Relaxed)
    }

    fn set_now(&self, second: u32) {
        self.now.store(second, Relaxed);
        let at = self.flush_at.load(Relaxed);
        let due = at != 0 && at <= second;
        if due && self.flush_at.compare_exchange(at, 0, AcqRel, Relaxed).is_ok() {
            self.remove_all();
        }
    }

    fn get(&self, key: &[u8], out: &mut Vec<u8>, head: &mut Head<'_>) -> Option<Meta> {
        self.read(key, out, head)
    }

    fn edit(
        &self,
        key: &[u8],
        value: &mut Vec<u8>,
        decide: &mut Decide<'_>,
    ) -> Result<(), Refused> {
        let held = self.index.lock(hash(key));
        let mut old = self.find(&held, key);
        let mut gone = None;
        if old.is_some_and(|(entry, _)| self.has_expired(entry)) {
            gone = Self::remove_held(&held, old.take());
        }
        let there =
            old.map(|(entry, _)| There { cache: self, entry, header: self.item(entry).header() });
        let edit = decide(there.as_ref().map(|there| -> &dyn Old { there }), value);
        let mut done = Ok(());
        let mut put = |value: &[u8], meta: &Meta| {
            self.put_held(&held, key, value, meta).unwrap_or_else(|refused| {
                done = Err(refused);
                Self::remove_held(&held, old)
            })
        };
        let freed = match edit {
            Edit::Keep => None,
            Edit::Remove => Self::remove_held(&held, old),
            Edit::Put(meta) => put(value, &meta),
            Edit::Set(meta) => match &there {
                Some(there) if !self.set_meta(there, &meta) => {
                    value.clear();
                    there.read(value);
                    put(value, &meta)
                }
                _ => None,
            },
        };
        drop(held);
        self.free(gone);
        self.free(freed);
        done
    }

    fn set(&self, key: &[u8], value: &[u8], meta: &Meta) -> Result<(), Refused> {
        self.put(key, value, Some(meta))
    }

    fn flush(&self, at: u32) {
        if at == 0 || at <= self.now() {
            self.flush_at.store(0, Relaxed);
            self.remove_all();
        } else {
            self.flush_at.store(at, Relaxed);
        }
    }

    fn each(&self, each: &mut dyn FnMut(&[u8], &Meta, usize) -> bool) {
        let mut key = Vec::new();
        for_each_item(self, &mut |tier, at| {
            let item = self.spaces[tier].item(at);
            let header = item.header();
            let hash = item.hash(header, &mut key);
            let meta = item.meta(header);
            // A slab may have gone to another class meanwhile: then a value may look like an item.
            let place = Self::place(tier, at);
            let leads = |entry: Entry, _| (entry.place() == place).then_some(());
            let whole = item.is_still(header) && self.index.find(hash, leads).is_some();
            !whole || meta.is_over(self.now()) || each(&key, &meta, header.value())
        });
    }

    fn resize(&self, bytes: u64) -> bool {
        let all: u64 = self
            .spaces
            .iter()
            .map(|space| (space.slab_count() * space.slab_words() * WORD) as u64)
            .sum();
        if bytes == 0 || bytes > all {
            return false;
        }
        for space in &self.spaces {
            let keep = (space.slab_count() as u128 * u128::from(bytes)).div_ceil(u128::from(all));
            space.keep_back(
                space.slab_count()
                    - usize::try_from(keep).unwrap_or(usize::MAX).min(space.slab_count()),
            );
        }
        true
    }

    fn stats(&self, each: &mut dyn FnMut(&str, u64)) {
        let stats = self.counted();
        each("get_hits", stats.hits);
        each("get_misses", stats.misses);
        each("index_crowded", stats.crowded);
        let sum = |of: fn(&crate::TierStats) -> u64| stats.tiers.iter().map(of).sum();
        each("bytes", sum(|tier| tier.used));
        each("curr_items", sum(|tier| tier.items));
        each("limit_maxbytes", sum(|tier| tier.bytes));
        each("evictions", sum(|tier| tier.counts.evicted));
        each("total_items", sum(|tier| tier.counts.stored));
        for (number, tier) in stats.tiers.iter().enumerate() {
            each(&format!("tier_{number}_bytes"), tier.used);
            each(&format!("tier_{number}_limit_bytes"), tier.bytes);
            each(&format!("tier_{number}_items"), tier.items);
            each(&format!("tier_{number}_demoted"), tier.counts.demoted);
            each(&format!("tier_{number}_promoted"), tier.counts.promoted);
            each(&format!("tier_{number}_evictions"), tier.counts.evicted);
        }
    }
}
