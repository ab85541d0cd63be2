//! Changes that hang on what is there: the cache as a [`Store`].
//!
//! An edit holds the stripe of its key from the look to the change. What is kept besides a value changes in place, under
//! another version of the item, so that who reads meanwhile reads again; an item that has no room for that is written anew, as
//! is one that lies on disk.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::Arc;

use crate::arena::WORD;
use crate::below::{Fetcher, Found, There};
use crate::cache::Cache;
use crate::index::{At, Entry, Held, hash};
use crate::item::{Header, Stage};
use crate::mover::for_each_item;
use crate::store::{Class, Decide, Edit, Fetch, Head, Meta, Old, Refused, Store};

impl Cache {
    /// Sets what is kept besides the value of an item that has room for that, and does not lie on disk as well.
    fn set_meta(&self, there: &There<'_>, meta: &Meta) -> bool {
        let There::Memory(_, entry, header) = *there else { return false };
        let item = self.item(entry.place());
        if !header.has_extra() || header.has_copy() {
            return *meta == there.meta();
        }
        let new = Header::new(header, header.shape());
        // A policy may set how often it was read meanwhile, no more.
        if item.change(header, |_| new).is_none() {
            return false;
        }
        item.begin(new);
        item.set_meta(new, meta);
        item.publish(new.at(Stage::Live).with_hints_of(header));
        true
    }

    /// Writes an item under a key whose stripe is held and that has this entry; gives the place that is no more.
    fn put_held(
        &self,
        (held, old): (&Held<'_>, Option<(Entry, At)>),
        (key, value): (&[u8], &[u8]),
        meta: &Meta,
    ) -> Result<Option<u64>, Refused> {
        let new = self.write(held.hash(), (key, value), (Some(meta), None))?;
        Ok(self.exchange(held, old, new))
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

    fn fetch(self: Arc<Self>, depth: usize) -> Option<Box<dyn Fetch>> {
        Fetcher::new(self, depth).map(|fetcher| -> Box<dyn Fetch> { Box::new(fetcher) })
    }

    fn edit(
        &self,
        key: &[u8],
        value: &mut Vec<u8>,
        decide: &mut Decide<'_>,
    ) -> Result<(), Refused> {
        let (held, mut found) = self.settle(hash(key), key);
        let mut gone = None;
        let expired = |found: &mut Found<'_>| found.there.meta().is_over(self.now());
        if let Some(Found { at, .. }) = found.take_if(expired) {
            gone = Self::remove_held(&held, at);
            self.changed(&held, key);
        }
        let (old, there) = match found {
            Some(Found { at, there }) => (at, Some(there)),
            None => (None, None),
        };
        let edit = decide(there.as_ref().map(|there| -> &dyn Old { there }), value);
        let mut done = Ok(());
        let mut put = |value: &[u8], meta: &Meta| {
            self.put_held((&held, old), (key, value), meta).unwrap_or_else(|refused| {
                done = Err(refused);
                None
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
        if edit != Edit::Keep && done.is_ok() {
            self.changed(&held, key);
        }
        drop(held);
        self.discard(gone);
        self.discard(freed);
        self.tick_if_due();
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

    fn classes(&self, each: &mut dyn FnMut(usize, &Class)) {
        for number in 0..self.sizes.count() {
            let class = self.class(number);
            if class.slabs > 0 {
                each(number + 1, &class);
            }
        }
    }

    fn stats(&self, each: &mut dyn FnMut(&str, u64)) {
        let stats = self.counted();
        each("get_hits", stats.hits);
        each("get_misses", stats.misses);
        each("index_crowded", stats.crowded);
        let sum = |of: fn(&crate::TierStats) -> u64| stats.tiers.iter().map(of).sum();
        each("bytes", sum(|tier| tier.used));
        let (disk, evicted) = (stats.disk.as_ref(), |tier: &crate::TierStats| tier.counts.evicted);
        each("curr_items", sum(|tier| tier.items) + disk.map_or(0, |disk| disk.items));
        each("limit_maxbytes", sum(|tier| tier.bytes));
        each("evictions", sum(evicted) + disk.map_or(0, |disk| disk.evicted));
        each("total_items", sum(|tier| tier.counts.stored));
        each("reclaimed", sum(|tier| tier.counts.expired - tier.counts.reaped));
        each("expired_unfetched", sum(|tier| tier.counts.unfetched));
        each("crawler_reclaimed", sum(|tier| tier.counts.reaped));
        each("crawler_items_checked", stats.checked);
        for (number, tier) in stats.tiers.iter().enumerate() {
            each(&format!("tier_{number}_bytes"), tier.used);
            each(&format!("tier_{number}_limit_bytes"), tier.bytes);
            each(&format!("tier_{number}_items"), tier.items);
            each(&format!("tier_{number}_demoted"), tier.counts.demoted);
            each(&format!("tier_{number}_promoted"), tier.counts.promoted);
            each(&format!("tier_{number}_evictions"), tier.counts.evicted);
            each(&format!("tier_{number}_slabs_dealt"), tier.dealt);
        }
        if let Some(disk) = disk {
            let number = stats.tiers.len();
            each(&format!("tier_{number}_bytes"), disk.used);
            each(&format!("tier_{number}_limit_bytes"), disk.bytes);
            each(&format!("tier_{number}_items"), disk.items);
            each(&format!("tier_{number}_promoted"), disk.promoted);
            each(&format!("tier_{number}_evictions"), disk.evicted);
            disk.each(each);
        }
    }
}
