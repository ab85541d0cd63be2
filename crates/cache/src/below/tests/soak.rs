//! Threads store, change, remove, flush and read, while movers work and the disk is ticked: no value is torn, another
//! key's, or older than the last acknowledged one. NEARFAR_TEST_CACHE_SOAK multiplies the length.

use std::collections::HashMap;

use super::{check_count, file, folder, open};
use crate::mover::Movers;
use crate::store::{Edit, Meta, Old, Store};
use crate::testkit::config;
use crate::tests::{value, version_of};
use crate::{Cache, Config, Making};
use std::sync::Arc;

const KEYS: u32 = 1_500;
const THREADS: u32 = 3;

struct Worker {
    cache: Arc<Cache>,
    thread: u32,
    dice: u64,
    /// Acknowledged state of this thread's keys: version and CAS number.
    mine: HashMap<u32, Option<(u32, u64)>>,
    out: Vec<u8>,
    scratch: Vec<u8>,
}

impl Worker {
    fn roll(&mut self) -> u64 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        self.dice
    }

    fn check(&mut self, key: u32, found: &[u8], cas: u64) {
        let version = version_of(key, found, &mut self.scratch);
        assert!(version.is_some(), "a torn value, or another key's");
        let own = key % THREADS == self.thread;
        let (mine, found) = (self.mine.get(&key).copied().flatten(), version.map(|one| (one, cas)));
        assert!(!own || mine == found, "{key}: {found:?}, not {mine:?}");
    }

    fn step(&mut self, step: u32) {
        let dice = self.roll();
        // Some keys are used more often, so that some are promoted from disk.
        let key = (dice >> 40) as u32 % if dice.is_multiple_of(7) { KEYS } else { KEYS / 5 };
        let (name, own) = (format!("key-{key}").into_bytes(), key % THREADS == self.thread);
        match dice % 16 {
            0..4 if own => {
                value(key, step, &mut self.scratch);
                let meta = Meta { cas: u64::from(step), ..Meta::default() };
                let meta = dice.is_multiple_of(3).then_some(&meta);
                let stored = self.cache.put(&name, &self.scratch, meta);
                let cas = meta.map_or(0, |meta| meta.cas);
                self.mine.insert(key, stored.is_ok().then_some((step, cas)));
            }
            4 if own => {
                self.cache.delete(&name);
                self.mine.insert(key, None);
            }
            5 if own => self.change(key, &name, step),
            6 if dice >> 16 & 0x7ff == 0 => {
                self.cache.flush(0);
                self.mine.clear();
            }
            _ => {
                let mut out = core::mem::take(&mut self.out);
                out.clear();
                if let Some(meta) = Store::get(&*self.cache, &name, &mut out, &mut |_, _, _| ()) {
                    self.check(key, &out, meta.cas);
                }
                self.out = out;
            }
        }
    }

    /// Replaces the value of an item, or its metadata.
    fn change(&mut self, key: u32, name: &[u8], step: u32) {
        let (mut seen, mut buffer) = (None, Vec::new());
        let touches = step.is_multiple_of(2);
        let mut decide = |old: Option<&dyn Old>, new: &mut Vec<u8>| {
            let Some(old) = old else { return Edit::Keep };
            let mut out = Vec::new();
            old.read(&mut out);
            seen = Some((out, old.meta().cas));
            if touches {
                return Edit::Set(Meta { cas: u64::from(step), ..old.meta() });
            }
            value(key, step, new);
            Edit::Put(old.meta())
        };
        let done = self.cache.edit(name, &mut buffer, &mut decide);
        match seen {
            Some((seen, cas)) => {
                self.check(key, &seen, cas);
                let version = self.mine.get(&key).copied().flatten().map_or(0, |mine| mine.0);
                let now = if touches { (version, u64::from(step)) } else { (step, cas) };
                // A failed change leaves the item as it was.
                if done.is_ok() {
                    self.mine.insert(key, Some(now));
                }
            }
            None => drop(self.mine.insert(key, None)),
        }
    }
}

fn soak(config: &Config, movers: usize, steps: u32) {
    let times = std::env::var("NEARFAR_TEST_CACHE_SOAK").ok().and_then(|text| text.parse().ok());
    let steps = steps * times.unwrap_or(1);
    let cache = Arc::new(open(config));
    let movers = Movers::start(&cache, movers).expect("threads");
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let dice = 0x9e37_79b9_7f4a_7c15_u64 + u64::from(thread);
            let (cache, mine) = (Arc::clone(&cache), HashMap::new());
            let mut worker =
                Worker { cache, thread, dice, mine, out: Vec::new(), scratch: Vec::new() };
            std::thread::spawn(move || (1..=steps).for_each(|step| worker.step(step)))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("a thread checks what it reads"));
    drop(movers);
    let counted = cache.counted();
    let disk = counted.disk.expect("it has a disk");
    assert!(disk.own.large_hits > 100 && disk.own.small_hits > 100, "{disk:?}");
    assert!(disk.promoted > 100 && disk.unwritten > 10, "{disk:?}");
    assert!(disk.own.regions_evicted > 10 && disk.own.reinserted > 0, "{disk:?}");
    assert_eq!((disk.own.checksum_errors, disk.own.read_errors), (0, 0));
    let items: u64 = counted.tiers.iter().map(|tier| tier.items).sum();
    let mut seen = 0;
    cache.each(&mut |_, _, _| {
        seen += 1;
        true
    });
    assert_eq!(seen, items, "slots in use are items");
    check_count(&cache);
}

#[test]
fn nothing_is_torn_or_stale_with_a_disk_below_memory() {
    let folder = folder();
    soak(&config(&file(&folder), 24, Making::Background), 1, 20_000);
}

#[test]
fn no_value_is_torn_or_stale_with_inline_eviction() {
    let folder = folder();
    let mut config = config(&file(&folder), 24, Making::Inline);
    let own = &mut config.disk.as_mut().expect("it has a disk").config;
    own.lanes = 2;
    soak(&config, 0, 15_000);
}

#[test]
fn nothing_is_torn_or_stale_over_two_tiers_of_memory_and_a_disk() {
    let folder = folder();
    let mut config = config(&file(&folder), 24, Making::Background);
    config.tiers.push(config.tiers[0].clone());
    soak(&config, 2, 20_000);
}
