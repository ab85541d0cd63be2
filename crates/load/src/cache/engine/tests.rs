//! Runs over the cache itself, over a store without eviction, and over faulty stores whose faults must be detected.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::requests::Spacing;
use nearfar_cache::evict::Eviction;
use nearfar_cache::mover::Movers;
use nearfar_cache::store::{Decide, Head, Old};
use nearfar_cache::{Config, Making, Tier};

use super::*;
use crate::cache::plan::{Length, Loop, Plan};
use crate::cache::results::Found;
use crate::cache::run::run;
use crate::cache::sample::{of, plan};
use crate::cache::spec::{Shape, Workload};
use crate::cache::tally::{Kind, Trouble};

/// A store that keeps all items up to a size.
#[derive(Default)]
struct Kept {
    items: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
    second: AtomicU32,
    item_max: usize,
    /// One read in this many has a byte changed; 0 is none.
    spoilt: usize,
    reads: Mutex<usize>,
}

struct Item<'a>(&'a [u8]);

impl Old for Item<'_> {
    fn meta(&self) -> Meta {
        Meta::default()
    }
    fn len(&self) -> usize {
        self.0.len()
    }
    fn read(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.0);
    }
}

impl Store for Kept {
    fn now(&self) -> u32 {
        self.second.load(Ordering::Relaxed)
    }
    fn set_now(&self, second: u32) {
        self.second.store(second, Ordering::Relaxed);
    }
    fn get(&self, key: &[u8], out: &mut Vec<u8>, head: &mut Head<'_>) -> Option<Meta> {
        let items = self.items.lock().unwrap();
        let value = items.get(key)?;
        head(&Meta::default(), value.len(), out);
        out.extend_from_slice(value);
        let mut reads = self.reads.lock().unwrap();
        *reads += 1;
        if self.spoilt > 0 && reads.is_multiple_of(self.spoilt) {
            *out.last_mut()? ^= 1;
        }
        Some(Meta::default())
    }
    fn edit(
        &self,
        key: &[u8],
        value: &mut Vec<u8>,
        decide: &mut Decide<'_>,
    ) -> Result<(), Refused> {
        let mut items = self.items.lock().unwrap();
        let old = items.get(key).map(|value| Item(value));
        match decide(old.as_ref().map(|item| item as &dyn Old), value) {
            Edit::Put(_) if value.len() > self.item_max => {
                items.remove(key);
                return Err(Refused::TooLarge { bytes: value.len(), limit: self.item_max });
            }
            Edit::Put(_) => drop(items.insert(key.into(), value.clone())),
            Edit::Remove => drop(items.remove(key)),
            Edit::Keep | Edit::Set(_) => {}
        }
        Ok(())
    }
    fn flush(&self, _: u32) {
        self.items.lock().unwrap().clear();
    }
    fn each(&self, _: &mut dyn FnMut(&[u8], &Meta, usize) -> bool) {}
    fn resize(&self, _: u64) -> bool {
        false
    }
    fn stats(&self, each: &mut dyn FnMut(&str, u64)) {
        each("curr_items", self.items.lock().unwrap().len() as u64);
    }
}

impl Engine for Kept {
    fn keep(&self, key: &[u8], value: &[u8]) -> Result<(), Refused> {
        Store::set(self, key, value, &Meta::default())
    }
}

fn kept() -> Kept {
    Kept { item_max: 1 << 20, ..Kept::default() }
}

fn ran(plan: Plan, engine: &dyn Engine) -> Found {
    let plan = plan.checked().unwrap();
    let subject = InProcess { name: "kept".into(), engine, resident_before: resident("self") };
    run(&plan, &subject).unwrap()
}

#[test]
fn a_miss_stores_the_key_and_each_request_is_counted_once() {
    let store = kept();
    let found = ran(plan("zipf:0.99", None, 20_000), &store);
    let items = store.items.lock().unwrap().len() as u64;
    assert_eq!(found.operations, 20_000);
    let (gets, hits) = of(&found, Kind::Get);
    let (fills, filled) = of(&found, Kind::Fill);
    assert_eq!((gets, gets - hits, fills), (20_000, fills, filled));
    // Two workers may miss the same key at once.
    assert!(fills >= items && fills < items + 50, "{fills} {items}");
    assert!(found.hit_ratio.unwrap() > 0.9 && found.is_right());
    assert_eq!(found.read_bytes, hits * 64);
    assert_eq!(found.memory_after.figures["curr_items"], items);
    assert!(found.memory_after.resident_bytes.is_some());
    let latency = found.kinds[0].latency.as_ref().unwrap();
    assert!(latency.timed >= 20_000 / 16 && latency.p50_ns <= latency.max_ns);
}

#[test]
fn the_cache_returns_no_wrong_value_during_eviction_with_one_and_two_tiers() {
    let policy = nearfar_kernel::mempolicy::Policy::Default;
    for (tiers, making) in [(1, Making::Inline), (2, Making::Inline), (2, Making::Background)] {
        let tier = |eviction| Tier { bytes: 1 << 20, policy: policy.clone(), eviction };
        let all = Eviction::ALL.iter().take(tiers).map(|(_, of)| tier(*of)).collect();
        let cache = Cache::new(&Config { tiers: all, making, ..Config::of_bytes(0) }).unwrap();
        let cache = Arc::new(cache);
        let movers = Movers::start(&cache, usize::from(making == Making::Background)).unwrap();
        let mut plan = plan("zipf:0.6", None, 30_000);
        let (value_bytes, mix) = ("40-90".parse().ok(), "90:8:2".parse().ok());
        let shape = Shape { keys: Some(40_000), value_bytes, mix, ..Shape::default() };
        plan.workload = Workload::load(&plan.spec, shape, 1).unwrap();
        let found = ran(plan, &*cache);
        drop(movers);
        assert_eq!((found.wrong.count, found.errors.count, found.operations), (0, 0, 30_000));
        assert_eq!(found.refused, Trouble::default());
        let left = if tiers == 1 { "evictions" } else { "tier_0_demoted" };
        let left = found.memory_after.figures[left];
        assert!(found.hit_ratio.unwrap() > 0.2 && left > 100, "{left}");
    }
}

#[test]
fn an_item_expires_after_its_time_to_live() {
    let cache = Cache::new(&Config::of_bytes(2 << 20)).unwrap();
    let door = &mut Door { engine: &cache, none: Vec::new() };
    let subject = InProcess { name: "cache".into(), engine: &cache, resident_before: None };
    subject.second(0);
    door.set(b"short", b"1", 1).unwrap();
    door.set(b"long", b"2", 0).unwrap();
    let mut out = Vec::new();
    assert!(door.get(b"short", &mut out) && door.get(b"long", &mut out));
    subject.second(2);
    assert!(!door.get(b"short", &mut out) && door.get(b"long", &mut out));
    assert!(door.delete(b"long") && !door.delete(b"long") && !door.get(b"long", &mut out));
    assert_eq!(out, b"122");
}

#[test]
fn one_thread_with_the_same_seed_reproduces_the_result() {
    let once = || {
        let found = ran(Plan { threads: 1, ..plan("zipf:1.1", Some("80:15:5"), 5000) }, &kept());
        found.kinds.iter().map(|of| (of.kind, of.operations, of.found)).collect::<Vec<_>>()
    };
    assert_eq!(once(), once());
}

#[test]
fn after_a_preload_each_read_is_a_hit() {
    let mut plan = plan("uniform", Some("90:10"), 2000);
    plan.besides.preload = true;
    let store = kept();
    let found = ran(plan, &store);
    assert_eq!((found.hit_ratio, of(&found, Kind::Fill)), (Some(1.0), (0, 0)));
    assert_eq!(store.items.lock().unwrap().len(), 1000);
}

#[test]
fn a_corrupted_value_is_counted_as_wrong() {
    let store = Kept { spoilt: 10, ..kept() };
    let found = ran(plan("zipf:1", None, 4000), &store);
    let spoilt = *store.reads.lock().unwrap() as u64 / 10;
    assert_eq!(found.wrong.count, spoilt);
    assert!(spoilt > 300 && !found.is_right());
    assert!(found.wrong.first.unwrap().starts_with("64 bytes under key"));
}

#[test]
fn refused_stores_are_counted_apart_from_errors() {
    let store = Kept { item_max: 63, ..kept() };
    let found = ran(plan("zipf:1", None, 100), &store);
    assert_eq!((found.refused.count, found.errors.count, found.hit_ratio), (100, 0, Some(0.0)));
    assert_eq!(found.written_bytes, 0);
}

#[test]
fn a_trace_is_replayed_to_its_end_and_an_invalid_line_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("trace.csv");
    let replay = |text: &str, store: &Kept| {
        std::fs::write(&file, text).unwrap();
        let plan = plan(&format!("trace:{}", file.display()), None, u64::MAX);
        let subject = InProcess { name: "kept".into(), engine: store, resident_before: None };
        run(&plan, &subject)
    };
    let store = kept();
    let found = replay(
        "key,op,op_count,size\na,GET,2,10\nb,GET,1,0\nb,SET,1,7\nb,GET,3,7\na,DELETE,1,0\na,GET,1,0\n",
        &store,
    )
    .unwrap();
    assert_eq!((of(&found, Kind::Get), of(&found, Kind::Fill)), ((7, 4), (1, 1)));
    assert_eq!((of(&found, Kind::Set), of(&found, Kind::Delete)), ((1, 1), (1, 1)));
    assert_eq!(store.items.lock().unwrap().keys().collect::<Vec<_>>(), [&b"b".to_vec()]);
    let error = format!("{:#}", replay("key,op,size\na,SET,1\na,SOT,1\n", &kept()).unwrap_err());
    assert!(error.contains("trace.csv: line 3: operation \"SOT\""), "{error}");
}

#[test]
fn in_an_open_loop_latency_counts_from_the_time_a_request_was_due() {
    let mut plan = plan("uniform", None, 1_000_000);
    plan.pace = Loop::Open(20_000.0, Spacing::Poisson);
    plan.length = Length { seconds: Some(0.2), warm_up: 0.05, operations: None };
    let found = ran(plan, &kept());
    let timed: u64 = found.kinds.iter().filter_map(|of| Some(of.latency.as_ref()?.timed)).sum();
    let all: u64 = found.kinds.iter().map(|of| of.operations).sum();
    assert_eq!(timed, all);
    // Requests that could not start in time are reported as well.
    let due = found.operations + found.overdue;
    assert!((3500..4500).contains(&due), "{due}");
    assert_eq!(found.load.arrivals.as_deref(), Some("poisson"));
}

#[test]
fn overdue_requests_are_counted_for_a_slow_store() {
    let mut plan = plan("uniform", None, 1_000_000);
    plan.pace = Loop::Open(1e8, Spacing::Constant);
    plan.length = Length { seconds: Some(0.05), warm_up: 0.0, operations: None };
    let found = ran(plan, &kept());
    assert!(found.overdue > found.operations, "{} {}", found.overdue, found.operations);
    assert!(found.kinds[0].latency.as_ref().unwrap().max_ns > 10_000_000);
}
