//! Leaving memory for the disk.
//!
//! What the policy of the last memory tier has go is offered to the disk, and written if it is worth that: the value goes straight
//! from its slab into the buffer that the device is given. Then the entry leads to disk, if the item is the same still, by
//! the discipline by which items move between memory tiers. What came from disk and has not changed is not written again. What
//! is not let in, or finds no buffer, is gone. The class is not locked while items are written. Movers wait for buffers before
//! they begin.

use core::sync::atomic::Ordering::Relaxed;

use crate::cache::{BATCH, Cache};
use crate::config::Making;
use crate::disk::{Object, Offer, Refused};
use crate::index::{Hash, hash};
use crate::item::{Header, Item};
use crate::space::Victim;

use super::{Below, SMALL, one, place_of};

/// Waits for a buffer, where who stores makes room.
const ATTEMPTS: usize = 3;

/// What became of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Went {
    /// Somebody had it, or changed it.
    Nowhere,
    /// To the disk.
    Down,
    /// It is gone.
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

impl Cache {
    /// Has a batch of items of a class leave memory; gives how many slots that freed.
    pub(crate) fn sink(
        &self,
        below: &Below,
        (tier, class): (usize, usize),
        key: &mut Vec<u8>,
    ) -> usize {
        let space = &self.spaces[tier];
        let mut victims: [Option<Victim>; BATCH] = [None; BATCH];
        let mut state = space.class(class).lock();
        for number in 0..Self::batch(&state) {
            // Of a few items the policy may name one again.
            let is_new = |victim: &Victim| {
                victims[..number].iter().flatten().all(|other| other.at != victim.at)
            };
            let Some(victim) = space.victim(class, &mut state, key).filter(is_new) else { break };
            self.index.prefetch(victim.hash);
            victims[number] = Some(victim);
        }
        drop(state);
        let victims = victims.map(|victim| {
            victim
                .map(|victim| (victim, self.sink_one(below, (tier, victim.at), victim.header, key)))
        });
        let mut gone = 0;
        let mut state = space.class(class).lock();
        for (victim, went) in victims.into_iter().flatten() {
            if went == Went::Nowhere {
                // Unless it went another way, and its slot is another's: then the policy was told.
                if space.item(victim.at).is_still(victim.header) {
                    state.policy.kept(victim.slot);
                }
                state.counts.contended += 1;
                continue;
            }
            state.policy.evicted(victim.slot, victim.hash.low());
            let over = self.over((tier, victim.at), victim.header);
            space.let_go(class, &mut state, &victim);
            match went {
                Went::Down => state.counts.demoted += 1,
                _ => state.counts.lost(over),
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

    /// Has an item leave memory. Where it went, its slot is the caller's to give back.
    pub(crate) fn sink_one(
        &self,
        below: &Below,
        (tier, at): (usize, usize),
        header: Header,
        key: &mut Vec<u8>,
    ) -> Went {
        let item = self.spaces[tier].item(at);
        key.clear();
        item.read_key(header, key);
        let (hash, place) = (hash(key), Self::place(tier, at));
        let leaving = Leaving { item, header, place, hash, key };
        let (meta, copy) = (item.meta(header), item.copy(header));
        if !item.is_still(header) {
            return Went::Nowhere;
        }
        if meta.is_over(self.now.load(Relaxed)) || self.are_moves_barred() {
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
            self.sink_small(below, leaving, &object)
        } else {
            self.sink_large(below, leaving, &object)
        }
    }

    /// Has an item's entry lead elsewhere, or nowhere, unless somebody holds its stripe or has changed it.
    fn leave(&self, leaving: Leaving<'_>, to: Option<u64>, went: Went) -> Went {
        let Some(held) = self.index.try_lock(leaving.hash) else { return Went::Nowhere };
        let Some(at) = held.find_place(leaving.place) else { return Went::Nowhere };
        if !leaving.item.is_still(leaving.header) {
            return Went::Nowhere;
        }
        match to {
            Some(_) if self.are_moves_barred() => return Went::Nowhere,
            Some(to) => {
                held.replace(at, to);
                self.below.iter().for_each(|below| one(&below.counted.items));
            }
            None => held.remove(at),
        }
        went
    }

    fn sink_large(&self, below: &Below, leaving: Leaving<'_>, object: &Object<'_>) -> Went {
        let Leaving { item, header, hash, .. } = leaving;
        let append = || {
            below.disk.append_with(object, header.value(), &mut |to| {
                item.copy_value(header, to);
                item.is_still(header)
            })
        };
        let mut appended = append();
        for _ in 0..ATTEMPTS {
            if appended != Err(Refused::Busy) || self.making == Making::Background {
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
                // What failed to be written has its buffer until a tick.
                below.call();
                one(&below.counted.refused);
                self.leave(leaving, None, Went::Away)
            }
        }
    }

    /// What small objects there are is changed with the stripe held only, as no entry says which is the newest.
    fn sink_small(&self, below: &Below, leaving: Leaving<'_>, object: &Object<'_>) -> Went {
        let Leaving { item, header, place, hash, key } = leaving;
        let mut value = Vec::with_capacity(header.value() + 8);
        item.read_value(header, &mut value);
        let Some(held) = self.index.try_lock(hash) else { return Went::Nowhere };
        let Some(at) = held.find_place(place) else { return Went::Nowhere };
        if !item.is_still(header) || self.are_moves_barred() {
            return Went::Nowhere;
        }
        below.count_change(hash);
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
    use super::super::tests::{config, get, key, meta, open, put};
    use super::*;
    use crate::disk::tests::testkit::{file, folder};
    use crate::index::hash;
    use crate::store::{Edit, Old, Store};

    #[test]
    fn an_item_that_was_changed_while_it_was_written_stays() {
        let folder = folder();
        let cache = open(&config(&file(&folder), 30, Making::Inline));
        put(&cache, 1, 5, 3000);
        let (key, mut place) = (key(1), None);
        crate::mover::for_each_item(&cache, &mut |tier, at| {
            place = Some(Cache::place(tier, at));
            true
        });
        let place = place.expect("it is in memory");
        let item = cache.item(place);
        let leaving = Leaving { item, header: item.header(), place, hash: hash(&key), key: &key };
        let touch = &mut |_: Option<&dyn Old>, _: &mut Vec<u8>| Edit::Set(meta(6, 0));
        cache.edit(&key, &mut Vec::new(), touch).expect("in place");
        assert_eq!(cache.leave(leaving, None, Went::Away), Went::Nowhere);
        assert_eq!(cache.leave(leaving, Some(super::super::DISK), Went::Down), Went::Nowhere);
        let leaving = Leaving { header: item.header(), ..leaving };
        assert_eq!(cache.leave(leaving, None, Went::Away), Went::Away);
        cache.free(Some(place));
        assert_eq!(get(&cache, 1), None);
    }
}
