//! Changes that depend on the present item: the cache as a [`Store`].
//!
//! An edit holds the stripe of its key from lookup to change. Metadata changes in place, under a new version of the
//! item, so that concurrent readers retry; an item without room for metadata is rewritten, as is one on disk.

use std::sync::Arc;

use crate::arena::WORD;
use crate::cache::Cache;
use crate::contents::Contents;
use crate::fetcher::Fetcher;
use crate::figures;
use crate::index::{At, Entry, Held};
use crate::item::{Header, Stage};
use crate::on_disk::{Found, There, settle};
use crate::placement::{Effort, Own};
use crate::store::{Class, Decide, Edit, Fetch, Head, Meta, Old, Refused, Store};

/// Sets the metadata of an item that has room for it and has no copy on disk.
fn set_meta(there: &There<'_>, meta: &Meta) -> bool {
    let There::Memory(contents, entry, header) = *there else { return false };
    let item = contents.item(entry.place());
    if !header.has_extra() || header.has_copy() {
        return *meta == there.meta();
    }
    let new = Header::new(header, header.shape());
    // Only the read counts may have changed concurrently.
    if item.change(header, |_| new).is_none() {
        return false;
    }
    item.begin(new);
    item.set_meta(new, meta);
    item.publish(new.at(Stage::Live).with_hints_of(header));
    true
}

impl Cache {
    /// Writes an item under a key whose stripe is held and that has this entry; returns the replaced place.
    fn put_held(
        &self,
        (held, old): (&Held<'_>, Option<(Entry, At)>),
        (key, value): (&[u8], &[u8]),
        meta: &Meta,
    ) -> Result<Option<u64>, Refused> {
        let own = Own { held, edited: old.map(|(entry, _)| entry.place()) };
        let effort = Effort::Full(Some(own));
        let new = self.placement().write(held.hash(), (key, value), (Some(meta), None), effort)?;
        Ok(self.contents().exchange(held, old, new))
    }
}

impl Store for Cache {
    fn now(&self) -> u32 {
        self.contents().now()
    }

    fn set_now(&self, second: u32) {
        self.contents().set_now(second);
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
        let contents = self.contents();
        let (held, mut found) = settle(contents, contents.hasher().hash(key), key);
        let mut gone = None;
        // While all items are being removed, none is carried over to a place where they have been removed already.
        let is_gone = |found: &mut Found<'_>| {
            found.there.meta().is_over(self.now()) || contents.are_moves_barred()
        };
        if let Some(Found { at, .. }) = found.take_if(is_gone) {
            gone = Contents::remove_held(&held, at);
            contents.changed(&held, key);
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
            Edit::Remove => Contents::remove_held(&held, old),
            Edit::Put(meta) => put(value, &meta),
            Edit::Set(meta) => match &there {
                Some(there) if !set_meta(there, &meta) => {
                    value.clear();
                    there.read(value);
                    put(value, &meta)
                }
                _ => None,
            },
        };
        if edit != Edit::Keep && done.is_ok() {
            contents.changed(&held, key);
        }
        drop(held);
        contents.discard(gone);
        contents.discard(freed);
        self.tick_if_due();
        done
    }

    fn set(&self, key: &[u8], value: &[u8], meta: &Meta) -> Result<(), Refused> {
        self.put(key, value, Some(meta))
    }

    fn flush(&self, at: u32) {
        self.contents().flush(at);
    }

    fn each(&self, each: &mut dyn FnMut(&[u8], &Meta, usize) -> bool) {
        let (contents, mut key) = (self.contents(), Vec::new());
        contents.for_each_item(&mut |tier, at| {
            let item = contents.space(tier).item(at);
            let header = item.header();
            let hash = item.hash(header, &mut key, contents.hasher());
            let meta = item.meta(header);
            // The slab may have been reassigned to another class: a value may then look like an item.
            let place = Contents::place(tier, at);
            let leads = |entry: Entry, _| (entry.place() == place).then_some(());
            let whole = item.is_still(header) && contents.index().find(hash, leads).is_some();
            !whole || meta.is_over(self.now()) || each(&key, &meta, header.value())
        });
    }

    fn resize(&self, bytes: u64) -> bool {
        let spaces = self.contents().spaces();
        let all: u64 = spaces
            .iter()
            .map(|space| (space.slab_count() * space.slab_words() * WORD) as u64)
            .sum();
        if bytes == 0 || bytes > all {
            return false;
        }
        for space in spaces {
            let keep = (space.slab_count() as u128 * u128::from(bytes)).div_ceil(u128::from(all));
            space.keep_back(
                space.slab_count()
                    - usize::try_from(keep).unwrap_or(usize::MAX).min(space.slab_count()),
            );
        }
        true
    }

    fn classes(&self, each: &mut dyn FnMut(usize, &Class)) {
        for number in 0..self.contents().sizes().count() {
            let class = figures::class(self.contents(), number);
            if class.slabs > 0 {
                each(number + 1, &class);
            }
        }
    }

    fn class_of(&self, key: usize, value: usize) -> usize {
        self.contents().sizes().class_of_item(key, value) + 1
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
        each("evicted_unfetched", sum(|tier| tier.counts.evicted_unfetched));
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
