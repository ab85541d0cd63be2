//! Items on disk: reads and promotion (`fetch.rs`), lookup for a change (`settle.rs`), and the disk's callbacks
//! (`keep.rs`). Demotion is in `placement/sink.rs`; the encoding of entries in `below/`.

mod fetch;
mod keep;
mod settle;

use crate::below::{Below, READ, SMALL, is_disk, is_same, may_be, on_disk};
use crate::contents::Contents;
use crate::index::Hash;

pub(crate) use fetch::DiskReads;
pub use fetch::{Lookup, Ticket};
pub(crate) use settle::{Found, There, claim, settle};

/// An entry that leads to disk, and the stamp of its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Leads {
    place: u64,
    stamp: u64,
}

impl Leads {
    /// Whether the object was read since it was written.
    const fn was_read(self) -> bool {
        self.place & READ != 0
    }
}

/// The entries that lead to disk.
#[derive(Clone, Copy)]
pub(crate) struct Entries<'a> {
    contents: &'a Contents,
    below: &'a Below,
}

impl<'a> Entries<'a> {
    pub(crate) const fn new(contents: &'a Contents, below: &'a Below) -> Self {
        Self { contents, below }
    }

    /// The entry and stamp of a place, if it may be this key's and is not in `others`.
    fn leads(self, hash: Hash, place: u64, others: &[Leads]) -> Option<Leads> {
        let at = on_disk(place).filter(|_| may_be(place, hash))?;
        let leads = Leads { place, stamp: self.below.disk.stamp(at).unwrap_or(0) };
        let known = |other: &Leads| is_same(other.place, place) && other.stamp == leads.stamp;
        (!others.iter().any(known)).then_some(leads)
    }

    /// Removes an entry that leads to disk, if it still does: the object is gone.
    fn drop_entry(self, hash: Hash, place: u64) {
        if !is_disk(place) || place == SMALL {
            return;
        }
        let held = self.contents.index().lock(hash);
        let found = held.find(|entry| is_same(entry.place(), place));
        if let Some((_, at)) = found {
            held.remove(at);
        }
        drop(held);
        self.contents.discard(found.map(|(entry, _)| entry.place()));
    }
}
