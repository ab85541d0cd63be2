//! Finds the item of a key for a change: with its stripe held, and read from disk if it is there.
//!
//! The disk is not read while a stripe is held. So the stripe is taken to look up the key, released for the read, and
//! taken again: the read is valid if the entry and its region are unchanged, or for small objects if no change was
//! counted.

use crate::below::{SMALL, is_same, may_be, on_disk};
use crate::contents::Contents;
use crate::disk::{Outcome, Where};
use crate::index::{At, Entry, Hash, Held};
use crate::item::Header;
use crate::store::{Meta, Old};

use super::{Entries, Leads};

/// An object as read from disk.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    meta: Meta,
    value: Vec<u8>,
}

/// An item whose stripe is held.
pub(crate) enum There<'a> {
    /// In memory.
    Memory(&'a Contents, Entry, Header),
    /// On disk.
    Below(Kept),
}

/// An item whose stripe is held, and its entry; a small object on disk has none.
pub(crate) struct Found<'a> {
    pub(crate) at: Option<(Entry, At)>,
    pub(crate) there: There<'a>,
}

impl Old for There<'_> {
    fn meta(&self) -> Meta {
        match self {
            Self::Memory(contents, entry, header) => contents.item(entry.place()).meta(*header),
            Self::Below(kept) => kept.meta,
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Memory(_, _, header) => header.value(),
            Self::Below(kept) => kept.value.len(),
        }
    }

    fn read(&self, out: &mut Vec<u8>) {
        match self {
            Self::Memory(contents, entry, header) => {
                contents.item(entry.place()).read_value(*header, out)
            }
            Self::Below(kept) => out.extend_from_slice(&kept.value),
        }
    }
}

/// State of a key that is not in memory.
enum Known {
    /// There is no item.
    Nothing,
    /// The object read is valid, and has this entry.
    Read(Option<(Entry, At)>),
    /// This place must be read.
    Ask(Where, Leads),
}

/// Takes the stripe of a key, and finds its item.
pub(crate) fn settle<'a>(
    contents: &'a Contents,
    hash: Hash,
    key: &[u8],
) -> (Held<'a>, Option<Found<'a>>) {
    let (mut others, mut read) = (Vec::new(), None);
    loop {
        let held = contents.index().lock(hash);
        if let Some((entry, at)) = contents.find(&held, key) {
            let there = There::Memory(contents, entry, contents.item(entry.place()).header());
            return (held, Some(Found { at: Some((entry, at)), there }));
        }
        let Some(below) = contents.below() else { return (held, None) };
        let entries = Entries::new(contents, below);
        let known = entries.known((&held, key), &others, read.as_ref());
        let (at, leads) = match known {
            Known::Ask(at, leads) => (at, leads),
            Known::Nothing => return (held, None),
            Known::Read(at) => {
                let kept = read.and_then(|(_, kept): (Leads, Option<Kept>)| kept);
                let found = kept.map(|kept| Found { at, there: There::Below(kept) });
                return (held, found);
            }
        };
        drop(held);
        below.disk.read(at, key, |outcome| match outcome {
            Outcome::Found(item) => {
                let meta = below.off_disk(&item.meta);
                read = Some((leads, Some(Kept { meta, value: item.value.to_vec() })));
            }
            Outcome::Nothing if leads.place == SMALL => read = Some((leads, None)),
            Outcome::Nothing => entries.drop_entry(hash, leads.place),
            Outcome::Other => others.push(leads),
        });
    }
}

impl Entries<'_> {
    fn known(
        self,
        (held, key): (&Held<'_>, &[u8]),
        others: &[Leads],
        read: Option<&(Leads, Option<Kept>)>,
    ) -> Known {
        let (hash, below) = (held.hash(), self.below);
        let was_read = |leads: Leads| {
            read.filter(|(read, _)| is_same(read.place, leads.place) && read.stamp == leads.stamp)
        };
        let mut found = None;
        let entry = held.find(|entry| {
            found = self.leads(hash, entry.place(), others);
            found.is_some()
        });
        if let (Some(leads), Some(entry)) = (found, entry)
            && let Some(at) = on_disk(leads.place)
        {
            return match was_read(leads) {
                Some(_) => Known::Read(Some(entry)),
                None => Known::Ask(Where::Large(at), leads),
            };
        }
        let leads = Leads { place: SMALL, stamp: below.changes(hash) };
        if !below.has_small() {
            Known::Nothing
        } else if was_read(leads).is_some() {
            Known::Read(None)
        } else if below.disk.may_hold_small(hash.0, key) {
            Known::Ask(Where::Small(hash.0), leads)
        } else {
            Known::Nothing
        }
    }
}

/// The entries for the disk that may belong to a key whose stripe is held and which is not in memory: returns the
/// first, to be replaced; removes the others and adds their places to `gone`.
pub(crate) fn claim(held: &Held<'_>, gone: &mut Vec<u64>) -> Option<(Entry, At)> {
    let hash = held.hash();
    let mut first = None;
    while let Some((entry, at)) = held.find(|entry| {
        may_be(entry.place(), hash)
            && first.is_none_or(|(first, _): (Entry, At)| !is_same(first.place(), entry.place()))
    }) {
        if first.is_none() {
            first = Some((entry, at));
        } else {
            held.remove(at);
            gone.push(entry.place());
        }
    }
    first
}
