//! Reading what lies on disk, and bringing it back to memory.
//!
//! [`Cache::lookup`] says what memory and index know: a value, nothing, or a [`Ticket`] with what has to be read. Whoever has
//! read it, at once or later with a [`Reader`], goes on with [`Cache::landed`]. Nothing is held in between: what has changed
//! meanwhile is noticed by the entry, by the region's stamp, and for small objects by the count of changes of the key.

use core::sync::atomic::Ordering::Relaxed;
use std::io;

use crate::cache::{Cache, Tried};
use crate::disk::{Item, Outcome, Reader, Where};
use crate::index::{Hash, hash};
use crate::item::Stage;
use crate::store::{Head, Meta};

use super::{Below, READ, SMALL, is_disk, is_same, may_be, on_disk, one};

/// An entry that leads to disk, and the stamp of the region it leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leads {
    pub(super) place: u64,
    pub(super) stamp: u64,
}

/// What has to be read from disk to know the value of a key.
#[derive(Clone, Debug)]
pub struct Ticket {
    hash: Hash,
    at: Where,
    /// The entry that led there; for a small object the count of changes.
    leads: Leads,
    /// Entries that were other keys'.
    others: Vec<Leads>,
}

impl Ticket {
    /// What to read, for [`Reader::submit`] and [`crate::disk::Disk::read`].
    #[must_use]
    pub const fn place(&self) -> Where {
        self.at
    }
}

/// What is known of a key.
#[derive(Clone, Debug)]
pub enum Lookup {
    /// The value was appended; this is what is kept besides.
    Hit(Meta),
    /// It may be on disk.
    Below(Ticket),
    /// There is none.
    Miss,
}

impl Cache {
    /// As [`crate::store::Store::get`], without reading the disk.
    pub fn lookup(&self, key: &[u8], out: &mut Vec<u8>, head: &mut Head<'_>) -> Lookup {
        let found = self.look((hash(key), key), Vec::new(), out, head);
        self.count(&found);
        self.note_reads();
        found
    }

    /// Goes on with what came of reading a ticket of this key. It may have to be read somewhere else, then.
    pub fn landed(
        &self,
        key: &[u8],
        (ticket, outcome): (Ticket, Outcome<'_>),
        out: &mut Vec<u8>,
        head: &mut Head<'_>,
    ) -> Lookup {
        let found = match &self.below {
            Some(below) => self.land(below, key, (ticket, outcome), (out, head)),
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
        self.below.as_ref().map(|below| below.disk.reader(depth)).transpose()
    }

    fn count(&self, found: &Lookup) {
        match found {
            Lookup::Hit(_) => self.reads.hit(),
            Lookup::Miss => self.reads.miss(),
            Lookup::Below(_) => {}
        }
    }

    /// Reads a key that memory does not have, and waits for the disk.
    #[cold]
    pub(crate) fn read_below(
        &self,
        below: &Below,
        key: &[u8],
        out: &mut Vec<u8>,
        head: &mut Head<'_>,
    ) -> Option<Meta> {
        let mut found = self.look((hash(key), key), Vec::new(), out, head);
        while let Lookup::Below(ticket) = found {
            let at = ticket.at;
            found = below.disk.read(at, key, |outcome| {
                self.land(below, key, (ticket, outcome), (&mut *out, &mut *head))
            });
        }
        self.count(&found);
        self.tick_if_due();
        if let Lookup::Hit(meta) = found { Some(meta) } else { None }
    }

    /// Looks in memory, and what entries say of the disk. `others` are entries that are known to be other keys'.
    fn look(
        &self,
        (hash, key): (Hash, &[u8]),
        others: Vec<Leads>,
        out: &mut Vec<u8>,
        head: &mut Head<'_>,
    ) -> Lookup {
        let start = out.len();
        loop {
            let (changes, mut leads) = (self.below.as_ref().map(|below| below.changes(hash)), None);
            let tried = self.index.find(hash, |entry, at| {
                if !is_disk(entry.place()) {
                    return self.try_read(key, (entry, at), out, head);
                }
                leads = leads.or_else(|| self.leads(hash, entry.place(), &others));
                None
            });
            match tried {
                Some(Tried::Read(meta)) => return Lookup::Hit(meta),
                Some(Tried::Expired) => return Lookup::Miss,
                Some(Tried::Again) => {
                    out.truncate(start);
                    core::hint::spin_loop();
                    continue;
                }
                None => {}
            }
            let Some(below) = &self.below else { return Lookup::Miss };
            if let Some((place, leads)) =
                leads.and_then(|leads: Leads| Some((on_disk(leads.place)?, leads)))
            {
                return Lookup::Below(Ticket { hash, at: Where::Large(place), leads, others });
            }
            if below.changes.is_empty() || !below.disk.may_hold_small(hash.0, key) {
                return Lookup::Miss;
            }
            let leads = Leads { place: SMALL, stamp: changes.unwrap_or(0) };
            return Lookup::Below(Ticket { hash, at: Where::Small(hash.0), leads, others });
        }
    }

    /// Where an entry leads, if it may be this key's and is none of those.
    pub(super) fn leads(&self, hash: Hash, place: u64, others: &[Leads]) -> Option<Leads> {
        let disk = &self.below.as_ref()?.disk;
        let at = on_disk(place).filter(|_| may_be(place, hash))?;
        let leads = Leads { place, stamp: disk.stamp(at).unwrap_or(0) };
        let known = |other: &Leads| is_same(other.place, place) && other.stamp == leads.stamp;
        (!others.iter().any(known)).then_some(leads)
    }

    fn land(
        &self,
        below: &Below,
        key: &[u8],
        (mut ticket, outcome): (Ticket, Outcome<'_>),
        (out, head): (&mut Vec<u8>, &mut Head<'_>),
    ) -> Lookup {
        let hash = ticket.hash;
        match outcome {
            Outcome::Found(Item { meta, value }) => {
                let meta = below.off_disk(&meta);
                if meta.is_over(self.now.load(Relaxed)) {
                    self.drop_entry(hash, ticket.leads.place);
                    return Lookup::Miss;
                }
                let was_read = ticket.leads.place & READ != 0;
                let meta = Meta { fetched: meta.fetched || was_read, ..meta };
                head(&meta, value.len(), out);
                out.extend_from_slice(value);
                self.note_use(below, &ticket, (key, value), &meta);
                return Lookup::Hit(meta);
            }
            Outcome::Other => ticket.others.push(ticket.leads),
            // It was stored anew while it was read, and has gone down again perhaps.
            Outcome::Nothing if ticket.leads.place == SMALL => {
                if below.changes(hash) == ticket.leads.stamp {
                    return Lookup::Miss;
                }
            }
            Outcome::Nothing => self.drop_entry(hash, ticket.leads.place),
        }
        self.look((hash, key), ticket.others, out, head)
    }

    /// Drops an entry that leads to disk, if it does so still: nothing is there any more.
    pub(super) fn drop_entry(&self, hash: Hash, place: u64) {
        if !is_disk(place) || place == SMALL {
            return;
        }
        let held = self.index.lock(hash);
        let found = held.find(|entry| is_same(entry.place(), place));
        if let Some((_, at)) = found {
            held.remove(at);
        }
        drop(held);
        self.discard(found.map(|(entry, _)| entry.place()));
    }

    /// What was read a second time comes to memory, also what was read the first time if there is room to spare.
    fn note_use(&self, below: &Below, ticket: &Ticket, item: (&[u8], &[u8]), meta: &Meta) {
        let place = ticket.leads.place;
        if place & READ != 0 || self.spaces[0].unused_slabs() > 0 {
            self.lift(below, ticket, item, meta);
            return;
        }
        self.index.find(ticket.hash, |entry, at| {
            (entry.place() == place).then(|| self.index.hint(at, entry, place | READ))
        });
    }

    /// Brings an object to memory, if nothing was stored under its key meanwhile.
    fn lift(&self, below: &Below, ticket: &Ticket, (key, value): (&[u8], &[u8]), meta: &Meta) {
        let Ticket { hash, at, leads, .. } = *ticket;
        let copy = match at {
            Where::Large(place) => below.copy_of(place),
            Where::Small(_) => Some(SMALL),
        };
        let meta = Meta { accessed: self.now.load(Relaxed), fetched: true, ..*meta };
        let is_plain = Meta { accessed: 0, fetched: false, ..meta } == Meta::default();
        let kept = if is_plain { None } else { Some(&meta) };
        let Ok(new) = self.write(hash, (key, value), (kept, copy)) else { return };
        let (_, space, word) = self.locate(new);
        let (item, class) = (space.item(word), space.class_in_use(word));
        let header = item.header();
        let held = self.index.lock(hash);
        let is_lifted = !self.are_moves_barred() && {
            let live = header.at(Stage::Live).with_one_use();
            match at {
                Where::Large(place) => {
                    let found = held.find(|entry| is_same(entry.place(), leads.place));
                    let still = below.disk.stamp(place) == Some(leads.stamp);
                    found.filter(|_| still).is_some_and(|(_, at)| {
                        item.publish(live);
                        held.replace(at, new);
                        below.counted.items.fetch_sub(1, Relaxed);
                        true
                    })
                }
                Where::Small(_) => {
                    let still = below.changes(hash) == leads.stamp;
                    still && self.find(&held, key).is_none() && {
                        item.publish(live);
                        held.insert(new)
                    }
                }
            }
        };
        drop(held);
        // It may have gone by now, and its slab be another class's.
        let mut state = class.lock();
        state.counts.stored -= 1;
        state.counts.promoted += u64::from(is_lifted);
        drop(state);
        if is_lifted {
            one(&below.counted.promoted);
        } else {
            self.free(Some(new));
        }
    }
}
