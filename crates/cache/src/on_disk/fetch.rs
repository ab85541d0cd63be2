//! Reads of objects on disk, and their promotion to memory.
//!
//! [`Cache::lookup`](crate::Cache::lookup) answers from memory and index: a value, a miss, or a [`Ticket`] for a read from disk. The caller
//! reads it, at once or later with a [`Reader`](crate::disk::Reader), and continues with [`Cache::landed`](crate::Cache::landed). No lock is held in between:
//! concurrent changes are detected by the entry, by the region's stamp, and for small objects by the count of changes
//! of the key.

use core::sync::atomic::Ordering::Relaxed;

use crate::below::{Below, READ, SMALL, is_disk, is_same, on_disk, one};
use crate::disk::{Item, Outcome, Where};
use crate::index::Hash;
use crate::item::Stage;
use crate::placement::{Effort, Placement};
use crate::read::{Reading, Tried};
use crate::store::{Head, Meta};

use super::{Entries, Leads};

/// A read from disk that is needed for the value of a key.
#[derive(Clone, Debug)]
pub struct Ticket {
    hash: Hash,
    at: Where,
    /// The entry; for a small object the count of changes.
    leads: Leads,
    /// Entries found to belong to other keys.
    others: Vec<Leads>,
}

impl Ticket {
    /// The place, for [`Reader::submit`](crate::disk::Reader::submit) and [`crate::disk::Disk::read`].
    #[must_use]
    pub const fn place(&self) -> Where {
        self.at
    }
}

/// The result of a lookup.
#[derive(Clone, Debug)]
pub enum Lookup {
    /// The value was appended; this is its metadata.
    Hit(Meta),
    /// The value may be on disk.
    Below(Ticket),
    /// There is no item.
    Miss,
}

/// Reads of items that may be on disk.
#[derive(Clone, Copy)]
pub(crate) struct DiskReads<'a> {
    reading: Reading<'a>,
    placement: &'a Placement,
}

impl<'a> DiskReads<'a> {
    pub(crate) const fn new(reading: Reading<'a>, placement: &'a Placement) -> Self {
        Self { reading, placement }
    }

    /// Looks for a key in memory, and for entries that lead to disk.
    pub(crate) fn look(self, key: &[u8], out: &mut Vec<u8>, head: &mut Head<'_>) -> Lookup {
        let hash = self.placement.contents().hasher().hash(key);
        self.look_beside((hash, key), Vec::new(), out, head)
    }

    /// Reads a key; blocks on the disk.
    pub(crate) fn read(
        self,
        below: &Below,
        key: &[u8],
        out: &mut Vec<u8>,
        head: &mut Head<'_>,
    ) -> Lookup {
        let mut found = self.look(key, out, head);
        while let Lookup::Below(ticket) = found {
            let at = ticket.at;
            found = below.disk.read(at, key, |outcome| {
                self.land(below, key, (ticket, outcome), (&mut *out, &mut *head))
            });
        }
        found
    }

    /// The same. `others` are entries known to belong to other keys.
    fn look_beside(
        self,
        (hash, key): (Hash, &[u8]),
        others: Vec<Leads>,
        out: &mut Vec<u8>,
        head: &mut Head<'_>,
    ) -> Lookup {
        let contents = self.placement.contents();
        let below = contents.below();
        let start = out.len();
        loop {
            let (changes, mut leads) = (below.map(|below| below.changes(hash)), None);
            let tried = contents.index().find(hash, |entry, at| {
                if !is_disk(entry.place()) {
                    return self.reading.try_read(key, (entry, at), out, head);
                }
                leads = leads
                    .or_else(|| Entries::new(contents, below?).leads(hash, entry.place(), &others));
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
            let Some(below) = below else { return Lookup::Miss };
            if let Some((place, leads)) =
                leads.and_then(|leads: Leads| Some((on_disk(leads.place)?, leads)))
            {
                return Lookup::Below(Ticket { hash, at: Where::Large(place), leads, others });
            }
            if !below.has_small() || !below.disk.may_hold_small(hash.0, key) {
                return Lookup::Miss;
            }
            let leads = Leads { place: SMALL, stamp: changes.unwrap_or(0) };
            return Lookup::Below(Ticket { hash, at: Where::Small(hash.0), leads, others });
        }
    }

    /// Continues after the read of a ticket of this key.
    pub(crate) fn land(
        self,
        below: &Below,
        key: &[u8],
        (mut ticket, outcome): (Ticket, Outcome<'_>),
        (out, head): (&mut Vec<u8>, &mut Head<'_>),
    ) -> Lookup {
        let (hash, contents) = (ticket.hash, self.placement.contents());
        let entries = Entries::new(contents, below);
        match outcome {
            Outcome::Found(Item { meta, value }) => {
                let meta = below.off_disk(&meta);
                if meta.is_over(contents.now()) {
                    entries.drop_entry(hash, ticket.leads.place);
                    return Lookup::Miss;
                }
                let was_read = ticket.leads.was_read();
                let meta = Meta { fetched: meta.fetched || was_read, ..meta };
                head(&meta, value.len(), out);
                out.extend_from_slice(value);
                self.note_use(below, &ticket, (key, value), &meta);
                return Lookup::Hit(meta);
            }
            Outcome::Other => ticket.others.push(ticket.leads),
            // The object was stored again during the read, and has perhaps been demoted again.
            Outcome::Nothing if ticket.leads.place == SMALL => {
                if below.changes(hash) == ticket.leads.stamp {
                    return Lookup::Miss;
                }
            }
            Outcome::Nothing => entries.drop_entry(hash, ticket.leads.place),
        }
        self.look_beside((hash, key), ticket.others, out, head)
    }

    /// Promotes an object at its second read, or at its first if there is spare room.
    fn note_use(self, below: &Below, ticket: &Ticket, item: (&[u8], &[u8]), meta: &Meta) {
        let (place, contents) = (ticket.leads.place, self.placement.contents());
        if ticket.leads.was_read() || contents.space(0).unused_slabs() > 0 {
            self.lift(below, ticket, item, meta);
            return;
        }
        contents.index().find(ticket.hash, |entry, at| {
            (entry.place() == place).then(|| contents.index().hint(at, entry, place | READ))
        });
    }

    /// Promotes an object to memory, unless the key was stored meanwhile.
    fn lift(self, below: &Below, ticket: &Ticket, (key, value): (&[u8], &[u8]), meta: &Meta) {
        let Ticket { hash, at, leads, .. } = *ticket;
        let contents = self.placement.contents();
        let copy = match at {
            Where::Large(place) => below.copy_of(place),
            Where::Small(_) => Some(SMALL),
        };
        let meta = Meta { accessed: contents.now(), fetched: true, ..*meta };
        let is_plain = Meta { accessed: 0, fetched: false, ..meta } == Meta::default();
        let kept = if is_plain { None } else { Some(&meta) };
        let new = self.placement.write(hash, (key, value), (kept, copy), Effort::Modest);
        let Ok(new) = new else { return };
        let (_, space, word) = contents.locate(new);
        let (item, class) = (space.item(word), space.class_in_use(word));
        let header = item.header();
        let held = contents.index().lock(hash);
        let is_lifted = !contents.are_moves_barred() && {
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
                    still && contents.find(&held, key).is_none() && {
                        item.publish(live);
                        held.insert(new)
                    }
                }
            }
        };
        drop(held);
        // It may be gone by now, and its slab another class's.
        let mut state = class.lock();
        state.counts.stored -= 1;
        state.counts.promoted += u64::from(is_lifted);
        drop(state);
        if is_lifted {
            one(&below.counted.promoted);
        } else {
            contents.free(Some(new));
        }
    }
}
