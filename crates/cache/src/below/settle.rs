//! What there is of a key, for who is about to change it: with its stripe held, and read from disk if it lies there.
//!
//! The disk is not read while a stripe is held. So one looks, gives the stripe back, reads, and looks again: what was read
//! counts if the entry, and the region it leads to, are the same, or for small objects if no change was counted.

use crate::cache::Cache;
use crate::disk::{Outcome, Where};
use crate::index::{At, Entry, Hash, Held};
use crate::item::Header;
use crate::store::{Meta, Old};

use super::fetch::Leads;
use super::{Below, SMALL, is_same, on_disk};

/// An object as it was read from disk.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    meta: Meta,
    value: Vec<u8>,
}

/// An item whose stripe is held.
pub(crate) enum There<'a> {
    /// In memory.
    Memory(&'a Cache, Entry, Header),
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
            Self::Memory(cache, entry, header) => cache.item(entry.place()).meta(*header),
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
            Self::Memory(cache, entry, header) => {
                cache.item(entry.place()).read_value(*header, out)
            }
            Self::Below(kept) => out.extend_from_slice(&kept.value),
        }
    }
}

/// What is known of a key that memory does not have.
enum Known {
    /// There is nothing.
    Nothing,
    /// It is what was read, and has this entry.
    Read(Option<(Entry, At)>),
    /// That has to be read.
    Ask(Where, Leads),
}

impl Cache {
    /// Takes the stripe of a key, and finds what there is of it.
    pub(crate) fn settle(&self, hash: Hash, key: &[u8]) -> (Held<'_>, Option<Found<'_>>) {
        let (mut others, mut read) = (Vec::new(), None);
        loop {
            let held = self.index.lock(hash);
            if let Some((entry, at)) = self.find(&held, key) {
                let there = There::Memory(self, entry, self.item(entry.place()).header());
                return (held, Some(Found { at: Some((entry, at)), there }));
            }
            let Some(below) = &self.below else { return (held, None) };
            let known = self.known(below, (&held, key), &others, read.as_ref());
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
                Outcome::Nothing => self.drop_entry(hash, leads.place),
                Outcome::Other => others.push(leads),
            });
        }
    }

    fn known(
        &self,
        below: &Below,
        (held, key): (&Held<'_>, &[u8]),
        others: &[Leads],
        read: Option<&(Leads, Option<Kept>)>,
    ) -> Known {
        let hash = held.hash();
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
        if below.changes.is_empty() {
            Known::Nothing
        } else if was_read(leads).is_some() {
            Known::Read(None)
        } else if below.disk.may_hold_small(hash.0, key) {
            Known::Ask(Where::Small(hash.0), leads)
        } else {
            Known::Nothing
        }
    }

    /// The entries on disk that may be those of a key, whose stripe is held and that memory does not have: the first one, to be
    /// replaced; the others are taken away, and their places added to `gone`.
    pub(crate) fn claim(&self, held: &Held<'_>, gone: &mut Vec<u64>) -> Option<(Entry, At)> {
        let hash = held.hash();
        let mut first = None;
        while let Some((entry, at)) = held.find(|entry| {
            super::may_be(entry.place(), hash)
                && first
                    .is_none_or(|(first, _): (Entry, At)| !is_same(first.place(), entry.place()))
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
}
