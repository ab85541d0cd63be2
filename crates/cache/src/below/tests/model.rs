//! The cache against a map, step by step: a read returns the value stored last, and unless something had to be evicted
//! every item is found.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::mover::Movers;
use crate::store::{Edit, Old};

#[derive(Clone, Debug)]
enum Step {
    Put { number: u64, len: usize, ttl: u32 },
    Delete { number: u64 },
    Get { number: u64 },
    Append { number: u64 },
    Touch { number: u64, ttl: u32 },
    Remake { number: u64, len: usize },
    Look { number: u64 },
    Others { first: u64, len: usize },
    Round,
    Reap,
    Second,
    Flush,
}

fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![8..380_usize, 400..1500_usize, 2000..9000_usize]
}

fn step() -> impl Strategy<Value = Step> {
    let number = || 0..40_u64;
    prop_oneof![
        30 => (number(), lengths(), 0..40_u32).prop_map(|(number, len, ttl)| Step::Put { number, len, ttl }),
        10 => number().prop_map(|number| Step::Delete { number }),
        40 => number().prop_map(|number| Step::Get { number }),
        10 => number().prop_map(|number| Step::Append { number }),
        10 => (number(), 0..40_u32).prop_map(|(number, ttl)| Step::Touch { number, ttl }),
        10 => (number(), lengths()).prop_map(|(number, len)| Step::Remake { number, len }),
        5 => number().prop_map(|number| Step::Look { number }),
        40 => (1000..4000_u64, lengths()).prop_map(|(first, len)| Step::Others { first, len }),
        10 => Just(Step::Round),
        5 => Just(Step::Reap),
        10 => Just(Step::Second),
        1 => Just(Step::Flush),
    ]
}

/// Expected contents: value and metadata.
type Map = HashMap<u64, (Vec<u8>, Meta)>;

struct Pair<'a> {
    cache: &'a Cache,
    map: Map,
    version: u64,
    now: u32,
    /// Nothing is evicted: all items in the map must be found.
    is_strict: bool,
}

/// Small times to live mean no expiry.
fn expires(now: u32, ttl: u32) -> u32 {
    if ttl < 20 { 0 } else { now + ttl - 19 }
}

impl Pair<'_> {
    fn expected(&self, number: u64) -> Option<&(Vec<u8>, Meta)> {
        self.map.get(&number).filter(|(_, meta)| !meta.is_over(self.now))
    }

    fn check(&self, number: u64, found: Option<(Vec<u8>, Meta)>) {
        let expected = self.expected(number);
        let Some((value, meta)) = found else {
            assert!(!self.is_strict || expected.is_none(), "{number} is lost");
            return;
        };
        let (wanted, kept) = expected.expect("what is not in the map is not found");
        assert!(value == *wanted, "{number}: not what was stored last");
        let part = |meta: &Meta| (meta.flags, meta.cas, meta.expires);
        assert_eq!(part(&meta), part(kept), "{number}");
    }

    fn get(&self, number: u64) {
        let mut out = Vec::new();
        let meta = Store::get(self.cache, &key(number), &mut out, &mut |_, _, _| ());
        self.check(number, meta.map(|meta| (out, meta)));
    }

    /// Edits an item; applies the same change to the map.
    fn edit(&mut self, number: u64, change: &mut dyn FnMut(&mut Vec<u8>, &mut Meta) -> Edit) {
        let (mut found, mut left) = (None, None);
        let mut decide = |old: Option<&dyn Old>, buffer: &mut Vec<u8>| {
            let Some(old) = old else { return Edit::Keep };
            let (mut value, mut meta) = (Vec::new(), old.meta());
            old.read(&mut value);
            assert_eq!(value.len(), old.len());
            found = Some((value.clone(), meta));
            let edit = change(&mut value, &mut meta);
            buffer.clone_from(&value);
            left = Some((value, meta));
            edit
        };
        self.cache.edit(&key(number), &mut Vec::new(), &mut decide).expect("there is room");
        self.check(number, found);
        match left {
            Some(left) => drop(self.map.insert(number, left)),
            None => drop(self.map.remove(&number)),
        }
    }

    fn step(&mut self, step: &Step) {
        self.version += 1;
        let version = self.version;
        match *step {
            Step::Put { number, len, ttl } => {
                let meta = meta(version, expires(self.now, ttl));
                let value = value(number, version, len);
                let kept = (!meta.cas.is_multiple_of(3)).then_some(&meta);
                self.cache.put(&key(number), &value, kept).expect("there is room");
                self.map.insert(number, (value, kept.copied().unwrap_or_default()));
            }
            Step::Delete { number } => {
                let was_there = self.cache.delete(&key(number));
                let expected = self.expected(number).is_some();
                assert!(was_there == expected || (!self.is_strict && expected), "{number}");
                self.map.remove(&number);
            }
            Step::Get { number } => self.get(number),
            Step::Append { number } => self.edit(number, &mut |value, meta| {
                value.extend(version.to_le_bytes());
                meta.cas = version;
                Edit::Put(*meta)
            }),
            Step::Touch { number, ttl } => {
                let expires = expires(self.now, ttl);
                self.edit(number, &mut |_, meta| {
                    (meta.expires, meta.cas) = (expires, version);
                    Edit::Set(*meta)
                });
            }
            Step::Remake { number, len } => self.edit(number, &mut |old, meta| {
                *old = value(number, version, len);
                meta.flags = 9;
                Edit::Put(*meta)
            }),
            Step::Look { number } => self.edit(number, &mut |_, _| Edit::Keep),
            Step::Others { first, len } => {
                for number in first..first + 30 {
                    let value = value(number, 1, len);
                    self.cache.put(&key(number), &value, None).expect("there is room");
                }
            }
            Step::Round => drop(self.cache.step()),
            Step::Reap => drop(self.cache.expire_some()),
            Step::Second => {
                self.now += 1;
                self.cache.set_now(self.now);
            }
            Step::Flush => {
                self.cache.flush(0);
                self.map.clear();
            }
        }
    }
}

fn run(steps: &[Step], regions: u64, making: Making) {
    let folder = folder();
    let config = config(&file(&folder), regions, making);
    let cache = Arc::new(open(&config));
    let movers = (making == Making::Background).then(|| Movers::start(&cache, 1).expect("threads"));
    let mut pair = Pair { cache: &cache, map: Map::new(), version: 0, now: 1, is_strict: true };
    for step in steps {
        let counted = cache.counted();
        let disk = counted.disk.expect("it has a disk");
        let lost = disk.refused + disk.evicted + disk.own.small_evicted + counted.crowded;
        pair.is_strict &= lost == 0 && making == Making::Inline;
        pair.step(step);
    }
    pair.is_strict = false;
    (0..40).for_each(|number| pair.get(number));
    drop(movers);
    let own = cache.counted().disk.expect("it has a disk").own;
    assert_eq!((own.checksum_errors, own.read_errors, own.write_errors), (0, 0, 0));
    check_count(&cache);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn a_cache_with_ample_disk_behaves_like_a_map(steps in proptest::collection::vec(step(), 1..300)) {
        run(&steps, 600, Making::Inline);
    }

    #[test]
    fn a_small_disk_returns_the_latest_value_or_a_miss(
        steps in proptest::collection::vec(step(), 1..300)
    ) {
        run(&steps, 16, Making::Inline);
    }

    #[test]
    fn with_movers_a_read_returns_the_latest_value_or_a_miss(
        steps in proptest::collection::vec(step(), 1..300)
    ) {
        run(&steps, 40, Making::Background);
    }
}
