//! An embedded cache: its operations, their errors, its clock, closing, and children of fork.

use super::*;
use crate::DiskTier;
use crate::disk;
use crate::store::Refused;

fn cache(movers: usize) -> LocalCache {
    LocalCache::open(&Config::of_bytes(8 << 20), movers).unwrap()
}

fn value(cache: &LocalCache, key: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    cache.get(key, &mut out).unwrap().map(|_| out)
}

const PLAIN: With = With { flags: 0, ttl: 0 };

#[test]
fn each_store_keeps_flags_and_assigns_a_new_cas_number() {
    let cache = cache(1);
    let first = cache.set(b"a", b"one", With { flags: 5, ttl: 100 }).unwrap();
    let mut out = b"before ".to_vec();
    let about = cache.get(b"a", &mut out).unwrap().unwrap();
    assert_eq!(out, b"before one");
    assert!((99..=100).contains(&about.ttl), "{about:?}");
    assert_eq!(About { ttl: 0, ..about }, About { length: 3, flags: 5, ttl: 0, cas: first });
    let second = cache.set(b"a", b"two", PLAIN).unwrap();
    assert_ne!(first, second);
    assert_eq!(cache.cas(b"a", b"three", PLAIN, first), Err(Failure::Exists));
    assert_eq!(cache.cas(b"b", b"three", PLAIN, first), Err(Failure::Absent));
    cache.cas(b"a", b"three", PLAIN, second).unwrap();
    assert_eq!(value(&cache, b"a").unwrap(), b"three");
}

#[test]
fn add_replace_and_append_depend_on_the_existing_item() {
    let cache = cache(0);
    assert_eq!(cache.replace(b"a", b"x", PLAIN), Err(Failure::Absent));
    assert_eq!(cache.append(b"a", b"x"), Err(Failure::Absent));
    cache.add(b"a", b"b", With { flags: 9, ttl: 50 }).unwrap();
    assert_eq!(cache.add(b"a", b"x", PLAIN), Err(Failure::Exists));
    cache.append(b"a", b"cd").unwrap();
    cache.prepend(b"a", b"123").unwrap();
    let mut out = Vec::new();
    let about = cache.get(b"a", &mut out).unwrap().unwrap();
    assert_eq!((out.as_slice(), about.flags), (&b"123bcd"[..], 9));
    assert!(about.ttl > 40, "{about:?}");
    let much = vec![0; cache.largest() - 3];
    let refused = cache.append(b"a", &much).unwrap_err();
    assert!(matches!(refused, Failure::Refused(Refused::TooLarge { .. })), "{refused}");
    assert_eq!(value(&cache, b"a").unwrap(), b"123bcd");
    cache.replace(b"a", b"", PLAIN).unwrap();
    assert_eq!(value(&cache, b"a").unwrap(), b"");
}

#[test]
fn incr_and_decr_update_decimal_values() {
    let cache = cache(0);
    assert_eq!(cache.incr(b"n", 1), Err(Failure::Absent));
    cache.set(b"n", b"9  ", With { flags: 3, ttl: 0 }).unwrap();
    assert_eq!((cache.incr(b"n", 1), cache.decr(b"n", 30)), (Ok(10), Ok(0)));
    assert_eq!(cache.incr(b"n", u64::MAX), Ok(u64::MAX));
    assert_eq!(cache.incr(b"n", 2), Ok(1));
    assert_eq!(cache.get(b"n", &mut Vec::new()).unwrap().unwrap().flags, 3);
    for wrong in [&b"x"[..], b"", b"-1", b"+1", b"99999999999999999999", &[b'1'; 30]] {
        cache.set(b"n", wrong, PLAIN).unwrap();
        assert_eq!(cache.incr(b"n", 1), Err(Failure::NoNumber), "{wrong:?}");
        assert_eq!(value(&cache, b"n").unwrap(), wrong);
    }
}

#[test]
fn items_expire_and_touch_changes_their_ttl() {
    let cache = cache(1);
    for key in [b"a", b"b", b"c"] {
        cache.set(key, b"x", With { flags: 0, ttl: 50 }).unwrap();
    }
    assert_eq!((cache.touch(b"b", 500), cache.touch(b"c", 0)), (Ok(true), Ok(true)));
    assert_eq!(cache.touch(b"d", 1), Ok(false));
    // The clock of the cache is only ever set forwards.
    cache.cache.set_now(100);
    let there: Vec<_> = [b"a", b"b", b"c"].iter().map(|key| cache.has(*key).unwrap()).collect();
    assert_eq!(there, [false, true, true]);
    assert_eq!(cache.get(b"c", &mut Vec::new()).unwrap().unwrap().ttl, 0);
    assert_eq!(cache.delete(b"a"), Ok(false));
}

#[test]
fn deleted_and_flushed_items_are_missed_and_only_reads_are_counted() {
    let cache = cache(1);
    cache.set(b"a", b"x", PLAIN).unwrap();
    cache.set(b"b", b"x", PLAIN).unwrap();
    assert_eq!((cache.delete(b"a"), cache.delete(b"a")), (Ok(true), Ok(false)));
    assert_eq!((cache.has(b"a"), cache.has(b"b")), (Ok(false), Ok(true)));
    assert_eq!((value(&cache, b"a"), value(&cache, b"b")), (None, Some(b"x".to_vec())));
    cache.flush().unwrap();
    assert_eq!(value(&cache, b"b"), None);
    let stats = cache.stats().unwrap();
    let figure = |wanted: &str| stats.iter().find(|(name, _)| name == wanted).unwrap().1;
    assert_eq!([figure("get_hits"), figure("get_misses"), figure("curr_items")], [1, 2, 0]);
    assert_eq!(cache.counted().unwrap().hits, 1);
}

#[test]
fn invalid_keys_and_oversized_values_are_rejected() {
    let cache = cache(0);
    for key in [&b""[..], &[b'k'; 251]] {
        assert_eq!(cache.set(key, b"", PLAIN), Err(Failure::Key(key.len())));
        assert_eq!(cache.get(key, &mut Vec::new()), Err(Failure::Key(key.len())));
    }
    cache.set(b"a", b"old", PLAIN).unwrap();
    let refused = cache.set(b"a", &vec![0; cache.largest()], PLAIN).unwrap_err();
    assert!(matches!(refused, Failure::Refused(Refused::TooLarge { .. })), "{refused}");
    assert_eq!(value(&cache, b"a"), None, "what was there is outdated");
    assert_eq!(refused.errno(), rustix::io::Errno::MSGSIZE.raw_os_error());
}

#[test]
fn concurrent_increments_are_all_counted() {
    let cache = cache(1);
    cache.set(b"n", b"0", PLAIN).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..500).for_each(|_| assert!(cache.incr(b"n", 1).is_ok())));
        }
    });
    assert_eq!(value(&cache, b"n").unwrap(), b"1500");
}

#[test]
fn a_closed_cache_rejects_calls_and_keeps_its_disk_items() {
    let dir = tempfile::tempdir().unwrap();
    let sizes = disk::Config {
        bytes: 16 << 20,
        region_bytes: 256 << 10,
        small_bytes: 1 << 20,
        least_hits: 0,
        ..disk::Config::default()
    };
    let mut config = Config::of_bytes(2 << 20);
    config.disk = Some(DiskTier { path: dir.path().join("below"), config: sizes, clock_zero: 0 });
    let cache = LocalCache::open(&config, 1).unwrap();
    let (bytes, with) = (vec![7; 4000], With { flags: 1, ttl: 1000 });
    let keys: Vec<_> = (0..1500).map(|number| format!("key-{number}")).collect();
    let mut last = 0;
    for key in &keys {
        last = cache.set(key.as_bytes(), &bytes, with).unwrap();
    }
    assert!(!cache.is_closed());
    cache.close().unwrap();
    cache.close().unwrap();
    assert!(cache.is_closed());
    assert_eq!(cache.get(b"key-1", &mut Vec::new()), Err(Failure::Closed));
    assert_eq!(cache.flush(), Err(Failure::Closed));
    drop(cache);

    let cache = LocalCache::open(&config, 1).unwrap();
    let mut out = Vec::new();
    let found = keys.iter().filter_map(|key| {
        out.clear();
        let about = cache.get(key.as_bytes(), &mut out).unwrap()?;
        assert_eq!((out.as_slice(), about.flags), (bytes.as_slice(), 1));
        // The wall clock may have been set a little meanwhile.
        assert!((1..=1001).contains(&about.ttl), "{about:?}");
        Some(about.cas)
    });
    let found: Vec<_> = found.collect();
    // Items that arrive faster than the disk accepts them are evicted.
    assert!(found.len() > 50, "{} of {}", found.len(), keys.len());
    assert!(found.iter().all(|cas| *cas <= last));
    assert!(cache.set(b"new", b"", PLAIN).unwrap() > last);
}

#[test]
fn ownership_is_detected_by_a_page_that_the_kernel_wipes_on_fork() {
    // A child of fork may do little in Rust; its use of a cache is tested from C and from Python.
    let owner = Owner::new().unwrap();
    assert!(owner.is_here());
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut flags = smaps.lines().filter_map(|line| line.strip_prefix("VmFlags:"));
    let is_wiped = flags.any(|flags| flags.split_whitespace().any(|flag| flag == "wf"));
    assert!(is_wiped, "no mapping is wiped on fork");
}
