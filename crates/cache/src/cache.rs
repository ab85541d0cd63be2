//! The cache: items by key, over tiers of memory and one on disk.
//!
//! Its parts: the index and the items (`contents.rs`, which has the rules of reading and writing), their place
//! (`placement/`), reads (`read.rs`, `on_disk/`), promotion (`promotions.rs`), expiry (`expire.rs`). Changes that depend
//! on the present item: `edit.rs`.

use std::io;
use std::sync::Arc;

use crate::arena::WORD;
use crate::below::Below;
use crate::config::{Config, Error};
use crate::contents::Contents;
use crate::copy::Copier;
use crate::disk::{Device, Outcome, Reader, Ticked};
use crate::expire::Expirer;
use crate::figures;
use crate::item::{EXTRA, HEADER};
use crate::on_disk::{DiskReads, Entries, Found, Lookup, Ticket, claim, settle};
use crate::placement::{Effort, Placement};
use crate::promotions::Promotions;
use crate::read::{Reading, Tried};
use crate::stats::{Reads, Stats};
use crate::store::{Head, Meta, Old, Refused};

/// A cache. Shared by reference among threads.
#[derive(Debug)]
pub struct Cache {
    placement: Placement,
    promotions: Promotions,
    expirer: Expirer,
    reads: Reads,
}

impl Cache {
    /// An empty cache.
    ///
    /// # Errors
    /// An invalid configuration, unavailable memory, or a disk that can't be opened.
    pub fn new(config: &Config) -> Result<Self, Error> {
        Self::with_device(config, None)
    }

    /// The same with a copier of the caller's, instead of [`Config::copying`].
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_copier(config: &Config, copier: Arc<dyn Copier>) -> Result<Self, Error> {
        Self::with(config, None, Some(copier))
    }

    /// Like [`Self::new`], with `device` in place of the disk's file.
    pub(crate) fn with_device(
        config: &Config,
        device: Option<&Arc<dyn Device>>,
    ) -> Result<Self, Error> {
        Self::with(config, device, None)
    }

    fn with(
        config: &Config,
        device: Option<&Arc<dyn Device>>,
        copier: Option<Arc<dyn Copier>>,
    ) -> Result<Self, Error> {
        let slab = config.check()?;
        let copier = copier.map_or_else(|| config.copying.open(), Ok)?;
        let contents = Contents::new(config, slab, device)?;
        let largest = config.largest(contents.sizes().largest() * WORD - HEADER - EXTRA);
        let mut tiers = config.tiers.iter();
        Ok(Self {
            placement: Placement::new(contents, config.making, copier, largest),
            promotions: Promotions::new(tiers.any(|tier| tier.eviction.make().wants_reads())),
            expirer: Expirer::default(),
            reads: Reads::default(),
        })
    }

    /// Maximum bytes of key and value together.
    #[must_use]
    pub const fn largest(&self) -> usize {
        self.placement.largest()
    }

    /// The index and the items.
    #[inline]
    pub(crate) const fn contents(&self) -> &Contents {
        self.placement.contents()
    }

    /// How items are placed.
    #[inline]
    pub(crate) const fn placement(&self) -> &Placement {
        &self.placement
    }

    #[inline]
    const fn reading(&self) -> Reading<'_> {
        Reading::new(self.contents(), &self.promotions, &self.reads)
    }

    const fn disk_reads(&self) -> DiskReads<'_> {
        DiskReads::new(self.reading(), &self.placement)
    }

    /// Appends the value of a key to `out`; false if there is no item.
    #[inline]
    pub fn get(&self, key: &[u8], out: &mut Vec<u8>) -> bool {
        self.read(key, out, &mut |_, _, _| ()).is_some()
    }

    /// As [`crate::store::Store::get`].
    #[inline]
    pub(crate) fn read<H>(&self, key: &[u8], out: &mut Vec<u8>, head: &mut H) -> Option<Meta>
    where
        H: FnMut(&Meta, usize, &mut Vec<u8>) + ?Sized,
    {
        let (contents, reading) = (self.contents(), self.reading());
        let hash = contents.hasher().hash(key);
        let start = out.len();
        loop {
            let tried = contents
                .index()
                .find(hash, |entry, at| reading.try_read(key, (entry, at), out, head));
            match tried {
                Some(Tried::Read(meta)) => {
                    self.reads.hit();
                    self.promotions.report_if_many(contents);
                    return Some(meta);
                }
                Some(Tried::Again) => {
                    out.truncate(start);
                    core::hint::spin_loop();
                }
                Some(Tried::Expired) => break,
                None => match contents.below() {
                    None => break,
                    Some(below) => {
                        let head = &mut |meta: &Meta, len, out: &mut Vec<u8>| head(meta, len, out);
                        return self.read_below(below, key, out, head);
                    }
                },
            }
        }
        self.reads.miss();
        None
    }

    /// Reads a key that is not in memory; blocks on the disk.
    #[cold]
    fn read_below(
        &self,
        below: &Below,
        key: &[u8],
        out: &mut Vec<u8>,
        head: &mut Head<'_>,
    ) -> Option<Meta> {
        let found = self.disk_reads().read(below, key, out, head);
        self.count(&found);
        self.tick_if_due();
        if let Lookup::Hit(meta) = found { Some(meta) } else { None }
    }

    fn count(&self, found: &Lookup) {
        match found {
            Lookup::Hit(_) => self.reads.hit(),
            Lookup::Miss => self.reads.miss(),
            Lookup::Below(_) => {}
        }
    }

    /// As [`crate::store::Store::get`], without reading the disk.
    pub fn lookup(&self, key: &[u8], out: &mut Vec<u8>, head: &mut Head<'_>) -> Lookup {
        let found = self.disk_reads().look(key, out, head);
        self.count(&found);
        self.promotions.report_if_many(self.contents());
        found
    }

    /// Continues after the read of a ticket of this key. The result may be another ticket.
    pub fn landed(
        &self,
        key: &[u8],
        (ticket, outcome): (Ticket, Outcome<'_>),
        out: &mut Vec<u8>,
        head: &mut Head<'_>,
    ) -> Lookup {
        let found = match self.contents().below() {
            Some(below) => self.disk_reads().land(below, key, (ticket, outcome), (out, head)),
            None => Lookup::Miss,
        };
        self.count(&found);
        self.tick_if_due();
        found
    }

    /// A reader of up to `depth` objects on disk at once, for one thread. `None` if the cache has no disk.
    ///
    /// # Errors
    /// If the system has no more queues.
    pub fn reader(&self, depth: usize) -> io::Result<Option<Reader>> {
        self.contents().below().map(|below| below.disk.reader(depth)).transpose()
    }

    /// Stores a value under a key, replacing any previous one.
    ///
    /// # Errors
    /// The item is too large, or there is no memory for it. The key then has no item.
    pub fn set(&self, key: &[u8], value: &[u8]) -> Result<(), Refused> {
        self.put(key, value, None)
    }

    /// As [`Self::set`], with metadata.
    ///
    /// # Errors
    /// As [`Self::set`].
    pub fn put(&self, key: &[u8], value: &[u8], meta: Option<&Meta>) -> Result<(), Refused> {
        let contents = self.contents();
        let hash = contents.hasher().hash(key);
        contents.index().prefetch(hash);
        let new = self.placement.write(hash, (key, value), (meta, None), Effort::Full(None));
        let held = contents.index().lock(hash);
        let (mut old, mut more) = (contents.find(&held, key), Vec::new());
        if old.is_none() && contents.below().is_some() {
            old = claim(&held, &mut more);
        }
        let gone = match new {
            Ok(new) => contents.exchange(&held, old, new),
            Err(_) => Contents::remove_held(&held, old),
        };
        contents.changed(&held, key);
        drop(held);
        contents.discard(gone);
        more.into_iter().for_each(|place| contents.discard(Some(place)));
        self.tick_if_due();
        new.map(|_| ())
    }

    /// Removes a key; false if it had no item.
    pub fn delete(&self, key: &[u8]) -> bool {
        let contents = self.contents();
        let (held, found) = settle(contents, contents.hasher().hash(key), key);
        let Some(Found { at, there }) = found else {
            // A small object on disk that could not be read now must not reappear.
            contents.changed(&held, key);
            return false;
        };
        let expired = there.meta().is_over(contents.now());
        let gone = Contents::remove_held(&held, at);
        contents.changed(&held, key);
        drop(held);
        contents.discard(gone);
        !expired
    }

    /// Ticks the disk tier, blocking, unless another thread does. For programs without
    /// [`Movers`](crate::mover::Movers).
    pub fn tick_disk(&self) -> Ticked {
        let contents = self.contents();
        let tick = |below| Below::tick(below, contents.now(), &Entries::new(contents, below));
        contents.below().map_or_else(Ticked::default, tick)
    }

    /// The same where storing threads make room, if a tick is due. No stripe may be held.
    #[inline]
    pub(crate) fn tick_if_due(&self) {
        if let Some(below) = self.contents().below()
            && self.placement.is_inline()
            && below.take_due()
        {
            self.tick_disk();
        }
    }

    /// Writes pending objects to disk and closes it cleanly. Nothing is demoted to it any more, and later changes and
    /// removals are lost when it is reopened. Dropping the cache does the same, without reporting errors.
    ///
    /// # Errors
    /// Failed writes: the disk then counts as not closed, and can be closed again.
    pub fn close(&self) -> io::Result<()> {
        self.contents().below().map_or(Ok(()), Below::close)
    }

    /// Removes all expired items at once; returns their number.
    pub fn expire(&self) -> u64 {
        let now = self.contents().now();
        self.contents().drop_items(&|meta| meta.is_over(now))
    }

    /// Continues the walk over all items in memory and removes expired ones: a few thousand slots, or fewer if this
    /// second's budget ([`SLOTS_PER_SECOND`](crate::SLOTS_PER_SECOND)) is used up or another thread walks. Returns the
    /// number of removed items. Movers call this.
    pub fn expire_some(&self) -> usize {
        self.expirer.expire_some(self.contents())
    }

    /// One round of a mover: promotes candidates, frees slots where too few are free, and ticks the disk. Returns how
    /// many items it moved in memory.
    pub fn step(&self) -> usize {
        let moved = self.step_in_memory();
        self.tick_disk();
        moved
    }

    pub(crate) fn step_in_memory(&self) -> usize {
        self.promotions.promote(&self.placement) + self.placement.keep_free()
    }

    /// The counters.
    #[must_use]
    pub fn counted(&self) -> Stats {
        let (contents, (hits, misses)) = (self.contents(), self.reads.sum());
        Stats {
            hits,
            misses,
            crowded: contents.crowded(),
            tiers: contents.spaces().iter().map(figures::tier).collect(),
            disk: contents.below().map(figures::on_disk),
            checked: self.expirer.checked(),
        }
    }

    /// Notes that the item at a place should be promoted.
    #[cfg(test)]
    pub(crate) fn request_promotion(&self, place: u64) {
        self.promotions.request(place);
    }
}
