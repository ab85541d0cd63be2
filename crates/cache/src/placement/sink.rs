//! Demotion from memory to disk.
//!
//! Eviction victims of the last memory tier are offered to the disk, and written if admitted: the value is copied
//! directly from its slab into the device's buffer. Then the entry is changed to lead to disk, if the item is
//! unchanged, by the same protocol as moves between memory tiers. Items promoted from disk and unchanged since are not
//! written again. Items not admitted, or without a buffer, are evicted. The class is not locked while items are
//! written. Movers wait for buffers before they begin.

use crate::below::{Below, SMALL, one, place_of};
use crate::config::Making;
use crate::contents::Contents;
use crate::disk::{Object, Offer, Refused};
use crate::index::Hash;
use crate::item::{Header, Item};
use crate::space::Victim;

use super::{BATCH, Placement};

/// Number of waits for a buffer, where storing threads make room.
const ATTEMPTS: usize = 3;

/// The result of a demotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Went {
    /// Not moved: the item was in use or changed.
    Nowhere,
    /// Written to disk.
    Down,
    /// Evicted.
    Away,
}

/// An item that should leave memory.
#[derive(Clone, Copy)]
struct Leaving<'a> {
    item: Item<'a>,
    header: Header,
    place: u64,
    hash: Hash,
    key: &'a [u8],
}

/// Demotion of items of the last tier of memory.
#[derive(Clone, Copy)]
pub(super) struct Sink<'a> {
    placement: &'a Placement,
    contents: &'a Contents,
    below: &'a Below,
}

impl<'a> Sink<'a> {
    pub(super) fn new(placement: &'a Placement, below: &'a Below) -> Self {
        Self { placement, contents: &placement.contents, below }
    }

    /// Demotes or evicts a batch of items of a class; returns the number of slots freed.
    pub(super) fn batch(self, (tier, class): (usize, usize), key: &mut Vec<u8>) -> usize {
        let Self { contents, below, .. } = self;
        let space = contents.space(tier);
        let mut victims: [Option<Victim>; BATCH] = [None; BATCH];
        let mut state = space.class(class).lock();
        for number in 0..Placement::batch(&state) {
            // With few items, the policy may choose one again.
            let is_new = |victim: &Victim| {
                victims[..number].iter().flatten().all(|other| other.at != victim.at)
            };
            let Some(victim) = space.victim(class, &mut state, key).filter(is_new) else { break };
            contents.index().prefetch(victim.hash);
            state.goes_away(&victim);
            victims[number] = Some(victim);
        }
        drop(state);
        let victims = victims.map(|victim| {
            victim.map(|victim| (victim, self.one((tier, victim.at), victim.header, key)))
        });
        let mut gone = 0;
        let mut state = space.class(class).lock();
        for (victim, went) in victims.into_iter().flatten() {
            if went == Went::Nowhere {
                state.stays(&victim);
                state.counts.contended += 1;
                continue;
            }
            state.policy.evicted(victim.slot, victim.hash.low());
            let last = contents.last((tier, victim.at), victim.header);
            space.let_go(class, &mut state, &victim);
            match went {
                Went::Down => state.counts.demoted += 1,
                _ => state.counts.lost(&last),
            }
            gone += 1;
        }
        space.press(&mut state);
        drop(state);
        if below.disk.is_due() {
            below.call();
        }
        gone
    }

    /// Demotes or evicts an item. The caller frees its slot if it went.
    pub(super) fn one(self, (tier, at): (usize, usize), header: Header, key: &mut Vec<u8>) -> Went {
        let Self { contents, below, .. } = self;
        let item = contents.space(tier).item(at);
        key.clear();
        item.read_key(header, key);
        let (hash, place) = (contents.hasher().hash(key), Contents::place(tier, at));
        let leaving = Leaving { item, header, place, hash, key };
        let (meta, copy) = (item.meta(header), item.copy(header));
        if !item.is_still(header) {
            return Went::Nowhere;
        }
        if meta.is_over(contents.now()) || contents.are_moves_barred() {
            return self.leave(leaving, None, Went::Away);
        }
        if let Some(copy) = copy {
            let at = below.copy_at(copy).map(|at| place_of(hash, at));
            if at.is_some() || copy == SMALL && below.disk.may_hold_small(hash.0, key) {
                let went = self.leave(leaving, at, Went::Down);
                if went == Went::Down {
                    one(&below.counted.unwritten);
                }
                return went;
            }
        }
        let bytes = key.len() + header.value();
        let hits = u32::try_from(header.uses()).unwrap_or(u32::MAX);
        if !below.disk.admit(&Offer { hash: hash.0, bytes, hits }) {
            one(&below.counted.refused);
            return self.leave(leaving, None, Went::Away);
        }
        let object = Object { hash: hash.0, key, meta: below.to_disk(&meta) };
        if bytes <= below.disk.largest_small() {
            self.small(leaving, &object)
        } else {
            self.large(leaving, &object)
        }
    }

    /// Changes or removes an item's entry, unless its stripe is held or it has changed.
    fn leave(self, leaving: Leaving<'_>, to: Option<u64>, went: Went) -> Went {
        let Some(held) = self.contents.index().try_lock(leaving.hash) else { return Went::Nowhere };
        let Some(at) = held.find_place(leaving.place) else { return Went::Nowhere };
        if !leaving.item.is_still(leaving.header) {
            return Went::Nowhere;
        }
        match to {
            Some(_) if self.contents.are_moves_barred() => return Went::Nowhere,
            Some(to) => {
                held.replace(at, to);
                one(&self.below.counted.items);
            }
            None => held.remove(at),
        }
        went
    }

    fn large(self, leaving: Leaving<'_>, object: &Object<'_>) -> Went {
        let below = self.below;
        let Leaving { item, header, hash, .. } = leaving;
        let append = || {
            below.disk.append_with(object, header.value(), &mut |to| {
                item.copy_value(header, to);
                item.is_still(header)
            })
        };
        let mut appended = append();
        for _ in 0..ATTEMPTS {
            if appended != Err(Refused::Busy) || self.placement.making == Making::Background {
                break;
            }
            below.disk.wait_for_buffer();
            appended = append();
        }
        match appended {
            Ok(at) => {
                let went = self.leave(leaving, Some(place_of(hash, at)), Went::Down);
                if went == Went::Down {
                    one(&below.counted.written);
                } else {
                    below.disk.forget(at);
                }
                went
            }
            Err(Refused::Abandoned) => Went::Nowhere,
            Err(_) => {
                // A region that failed to be written keeps its buffer until a tick.
                below.call();
                one(&below.counted.refused);
                self.leave(leaving, None, Went::Away)
            }
        }
    }

    /// Small objects change only under the stripe, as no entry identifies the newest.
    fn small(self, leaving: Leaving<'_>, object: &Object<'_>) -> Went {
        let Self { contents, below, .. } = self;
        let Leaving { item, header, place, hash, key } = leaving;
        let mut value = Vec::with_capacity(header.value() + 8);
        item.read_value(header, &mut value);
        let Some(held) = contents.index().try_lock(hash) else { return Went::Nowhere };
        let Some(at) = held.find_place(place) else { return Went::Nowhere };
        if !item.is_still(header) || contents.are_moves_barred() {
            return Went::Nowhere;
        }
        let _change = below.change(hash);
        let is_written = below.disk.append_small(object, &[&value]).is_ok();
        if !is_written {
            // No entry would hide an older one.
            below.disk.remove_small(hash.0, key);
        }
        held.remove(at);
        one(if is_written { &below.counted.written } else { &below.counted.refused });
        if is_written { Went::Down } else { Went::Away }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::below::tests::{file, folder};
    use crate::below::tests::{get, key, meta, open, put};
    use crate::index::hash;
    use crate::store::{Edit, Old, Store};
    use crate::testkit::config;

    #[test]
    fn an_item_changed_during_its_demotion_stays_in_memory() {
        let folder = folder();
        let cache = open(&config(&file(&folder), 30, Making::Inline));
        put(&cache, 1, 5, 3000);
        let (key, mut place) = (key(1), None);
        cache.contents().for_each_item(&mut |tier, at| {
            place = Some(Contents::place(tier, at));
            true
        });
        let place = place.expect("it is in memory");
        let item = cache.contents().item(place);
        let below = cache.contents().below().expect("it has a disk");
        let sink = Sink::new(cache.placement(), below);
        let leaving = Leaving { item, header: item.header(), place, hash: hash(&key), key: &key };
        let touch = &mut |_: Option<&dyn Old>, _: &mut Vec<u8>| Edit::Set(meta(6, 0));
        cache.edit(&key, &mut Vec::new(), touch).expect("in place");
        assert_eq!(sink.leave(leaving, None, Went::Away), Went::Nowhere);
        assert_eq!(sink.leave(leaving, Some(crate::below::DISK), Went::Down), Went::Nowhere);
        let leaving = Leaving { header: item.header(), ..leaving };
        assert_eq!(sink.leave(leaving, None, Went::Away), Went::Away);
        cache.contents().free(Some(place));
        assert_eq!(get(&cache, 1), None);
    }
}
