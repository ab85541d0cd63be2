//! Policies on their intended workloads: skewed reads, a single scan over much data, and any order of calls.
#![expect(clippy::cast_possible_truncation, reason = "numbers are small")]

use std::cell::RefCell;
use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{Evict, Eviction, Items, Look};

/// Slots, each with the key in it and how often that was read.
#[derive(Debug)]
struct Slots(RefCell<Vec<Option<(u32, u8)>>>);

fn spread(key: u32) -> u32 {
    key.wrapping_mul(0x9e37_79b1).rotate_left(13) ^ 0x55aa_1234
}

impl Items for Slots {
    fn slots(&self) -> u32 {
        self.0.borrow().len() as u32
    }

    fn look(&self, slot: u32) -> Look {
        match self.0.borrow()[slot as usize] {
            Some((_, reads)) => Look::Item(reads),
            None => Look::Vacant,
        }
    }

    fn set_reads(&self, slot: u32, reads: u8) {
        if let Some((_, there)) = &mut self.0.borrow_mut()[slot as usize] {
            *there = reads;
        }
    }

    fn hash(&self, slot: u32) -> u32 {
        self.0.borrow()[slot as usize].map_or(0, |(key, _)| spread(key))
    }
}

/// A cache of keys alone.
struct Keys {
    policy: Box<dyn Evict>,
    slots: Slots,
    of: BTreeMap<u32, u32>,
    free: Vec<u32>,
}

impl Keys {
    fn new(policy: Eviction, slots: u32) -> Self {
        let all = (0..slots).map(|_| None).collect();
        Self {
            policy: policy.make(),
            slots: Slots(RefCell::new(all)),
            of: BTreeMap::new(),
            free: (0..slots).collect(),
        }
    }

    /// Reads a key, and stores it if it is not there; whether it was.
    fn ask(&mut self, key: u32) -> bool {
        if let Some(slot) = self.of.get(&key) {
            if let Some((_, reads)) = &mut self.slots.0.borrow_mut()[*slot as usize] {
                *reads = (*reads + 1).min(3);
            }
            self.policy.read(*slot, spread(key));
            return true;
        }
        if self.free.is_empty() {
            let slot = self.policy.victim(&self.slots).expect("all slots are full, so one can go");
            let (gone, _) =
                self.slots.0.borrow_mut()[slot as usize].take().expect("a victim is an item");
            self.policy.evicted(slot, spread(gone));
            self.of.remove(&gone);
            self.free.push(slot);
        }
        let slot = self.free.pop().expect("one is free");
        self.slots.0.borrow_mut()[slot as usize] = Some((key, 0));
        self.of.insert(key, slot);
        self.policy.stored(slot, spread(key));
        false
    }

    fn drop_key(&mut self, key: u32) {
        if let Some(slot) = self.of.remove(&key) {
            self.slots.0.borrow_mut()[slot as usize] = None;
            self.policy.removed(slot);
            self.free.push(slot);
        }
    }
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}

/// The hit ratio in percent, with nine tenths of reads on a tenth of 20,000 keys, in a cache for 2,000.
fn skewed(policy: Eviction) -> u64 {
    let (mut keys, mut dice) = (Keys::new(policy, 2_000), Dice(88_172_645_463_325_252));
    let mut hits = 0;
    for step in 0..200_000 {
        let key = if dice.below(10) < 9 { dice.below(2_000) } else { 2_000 + dice.below(18_000) };
        let hit = keys.ask(u32::try_from(key).expect("keys are few"));
        hits += u64::from(hit && step >= 100_000);
    }
    hits / 1_000
}

#[test]
fn frequently_read_items_stay_cached() {
    for (name, policy) in Eviction::ALL {
        // With random eviction of a slot for every tenth key the hit ratio is a tenth; with FIFO, 69 %.
        let found = skewed(policy);
        assert!(found >= 70, "{name} finds {found} %");
    }
}

#[test]
fn a_scan_does_not_evict_frequently_read_items() {
    // SIEVE is left out: its authors state that it is not resistant to scans.
    for (name, policy) in Eviction::ALL.into_iter().filter(|(_, policy)| *policy != Eviction::Sieve)
    {
        let (mut keys, mut dice) = (Keys::new(policy, 1_000), Dice(12_345_678_901));
        for _ in 0..50_000 {
            keys.ask(u32::try_from(dice.below(500)).expect("keys are few"));
        }
        for key in 10_000..12_000 {
            keys.ask(key);
        }
        let left = (0..500).filter(|key| keys.of.contains_key(key)).count();
        assert!(left >= 400, "{name} has {left} of 500");
    }
}

#[test]
fn a_new_item_in_a_freed_slot_is_not_the_oldest() {
    for policy in [Eviction::S3Fifo, Eviction::Sieve, Eviction::Lru] {
        let mut keys = Keys::new(policy, 8);
        (0..8).for_each(|key| assert!(!keys.ask(key)));
        keys.drop_key(7);
        keys.drop_key(0);
        keys.ask(100);
        keys.ask(101);
        (200..203).for_each(|key| assert!(!keys.ask(key)));
        assert!(
            keys.of.contains_key(&100) && keys.of.contains_key(&101),
            "{policy:?}: {:?}",
            keys.of
        );
    }
}

proptest! {
    #[test]
    fn victims_are_items_and_slots_are_not_lost(steps in proptest::collection::vec((0..60_u32, 0..6_u8), 1..600)) {
        for (name, policy) in Eviction::ALL {
            let mut keys = Keys::new(policy, 16);
            for (key, what) in &steps {
                if *what == 0 { keys.drop_key(*key) } else { keys.ask(*key); }
                prop_assert_eq!(keys.of.len() + keys.free.len(), 16, "{}", name);
            }
        }
    }
}
