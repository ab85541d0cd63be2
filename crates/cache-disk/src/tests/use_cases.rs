//! Use cases of the tier: eviction, reinsertion, expiry, admission, amplification, many reads at once.

use core::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, poll};

use super::super::locks::lock;
use super::super::*;
use super::testkit::*;
use crate::Meta;

fn open(folder: &tempfile::TempDir, config: &Config) -> Disk {
    Disk::open(&file(folder), config, &mut |_| {}).expect("a new file").0
}

#[test]
fn a_full_tier_evicts_its_oldest_regions_and_notifies_the_index() {
    let (folder, index) = (folder(), Index::default());
    let disk = open(&folder, &config());
    for number in 0..1000 {
        assert!(store(&disk, &index, number, number, 3000));
        disk.tick(1, &index);
    }
    let held: Vec<u64> = (0..1000).filter(|number| index.place(*number).is_some()).collect();
    assert!(held.len() > 200 && held.len() < 320, "{}", held.len());
    assert_eq!(held, (1000 - held.len() as u64..1000).collect::<Vec<_>>(), "the newest are there");
    held.iter().for_each(|number| assert_eq!(load(&disk, &index, *number), Some(*number)));
    let stats = disk.stats();
    assert_eq!(stats.evicted, 1000 - held.len() as u64);
    assert!(stats.regions_free >= 2 && stats.regions_lost == 0);
    assert!(lock(&index.gone).is_empty());
}

#[test]
fn evicted_objects_do_not_reappear_after_a_crash() {
    let (folder, index) = (folder(), Index::default());
    let disk = open(&folder, &config());
    for number in 0..500 {
        assert!(store(&disk, &index, number, number, 3000));
        disk.tick(1, &index);
    }
    drop(disk);
    let found = Index::default();
    drop(Disk::open(&file(&folder), &config(), &mut found.recover()).unwrap());
    let before = lock(&index.places).clone();
    let after = lock(&found.places).clone();
    assert!(after.len() > 100);
    assert!(after.iter().all(|(hash, place)| before.get(hash) == Some(place)));
}

#[test]
fn objects_that_the_index_keeps_are_reinserted() {
    let (folder, index) = (folder(), Index { keep: 7, ..Index::default() });
    let disk = open(&folder, &config());
    for number in 0..2000 {
        assert!(store(&disk, &index, number, number, 900));
        disk.tick(1, &index);
    }
    let kept = |number: &u64| hash(&key(*number)).is_multiple_of(7);
    let first: Vec<u64> = (0..200).filter(kept).collect();
    assert!(first.len() > 10);
    first.iter().for_each(|number| assert_eq!(load(&disk, &index, *number), Some(*number)));
    assert!((0..200).filter(|number| !kept(number)).all(|number| index.place(number).is_none()));
    assert!(disk.stats().reinserted >= first.len() as u64);
    drop(disk);
    let index = Index::default();
    let (disk, _) = Disk::open(&file(&folder), &config(), &mut index.recover()).unwrap();
    assert!(first.iter().filter(|number| load(&disk, &index, **number).is_some()).count() > 5);
}

#[test]
fn objects_removed_during_reinsertion_do_not_reappear() {
    struct Fickle(Index);
    impl Keeper for Fickle {
        fn evicted(&self, _: u64, _: Place) -> Fate {
            Fate::Keep
        }
        fn moved(&self, _: u64, _: Place, _: Place) -> bool {
            false
        }
        fn gone(&self, _: u64, _: Place) {}
        fn lost(&self, _: Places) {}
    }
    let (folder, index) = (folder(), Fickle(Index::default()));
    let disk = open(&folder, &config());
    for number in 0..1000 {
        assert!(store(&disk, &index.0, number, number, 3000));
        disk.tick(1, &index);
    }
    assert!(disk.stats().reinserted > 100);
    disk.flush();
    drop(disk);
    let found = Index::default();
    let (disk, _) = Disk::open(&file(&folder), &config(), &mut found.recover()).unwrap();
    assert!((0..500).all(|number| load(&disk, &found, number).is_none()));
    assert!((900..1000).any(|number| load(&disk, &found, number).is_some()));
}

#[test]
fn the_log_has_low_write_amplification() {
    let folder = folder();
    let config =
        Config { bytes: 16 << 20, region_bytes: 1 << 20, small_bytes: 0, ..Config::default() };
    for len in [1500, 4096, 100_000] {
        let index = Index::default();
        let disk = open(&folder, &config);
        let mut number = 0;
        while disk.stats().large_bytes_device < 24 << 20 {
            number += 1;
            assert!(store(&disk, &index, number % 1000, number, len));
            disk.tick(1, &index);
        }
        let ratio = disk.stats().large_amplification();
        println!("values of {len} bytes: {ratio} thousandths");
        assert!(ratio > 900 && ratio <= 1100, "{len}: {ratio}");
        assert!(disk.largest_small() == 0 && disk.get_small(1, b"k", &mut Vec::new()).is_none());
        drop(disk);
        std::fs::remove_file(file(&folder)).unwrap();
    }
}

#[test]
fn one_set_write_stores_several_small_objects() {
    let folder = folder();
    let index = Index::default();
    let disk = open(&folder, &Config { small_waiting: 64 << 10, ..config() });
    for number in 0..3000 {
        while store_small(&disk, number, number, 100) == Err(Refused::Busy) {
            disk.tick(1, &index);
        }
    }
    disk.flush();
    let stats = disk.stats();
    assert!(stats.small_appended >= 4 * stats.sets_written, "{stats:?}");
    println!("sets: {} thousandths", stats.small_amplification());
    let found = (0..3000).filter(|number| load_small(&disk, *number) == Some(*number)).count();
    assert!(found > 1200, "{found} of some 64 * 4080 / 140");
    assert!(found as u64 + stats.small_evicted == 3000, "{found}");
}

#[test]
fn a_dropped_update_does_not_restore_the_replaced_value() {
    let (folder, index) = (folder(), Index::default());
    let disk = open(&folder, &Config { small_least: 5, ..config() });
    store_small(&disk, 0, 1, 100).unwrap();
    disk.flush();
    let mut number = 0;
    while disk.stats().small_dropped == 0 {
        // Many bytes wait for few sets, so that the other sets are not worth writing.
        number += 1;
        let _ = store_small(&disk, number, number, 100);
        let _ = store_small(&disk, 0, 2, 100);
        disk.tick(1, &index);
        assert_eq!(load_small(&disk, 0), Some(2));
        assert!(number < 100_000, "something is dropped in the end");
    }
}

#[test]
fn oversized_objects_are_rejected_with_the_limit() {
    let (folder, index) = (folder(), Index::default());
    let disk = open(&folder, &config());
    let limit = disk.largest();
    let object = |key| Object { hash: 1, key, meta: Meta::default() };
    let whole = vec![1; limit - 1];
    let place = disk.append(&object(b"k"), &[&whole]).unwrap();
    assert!(disk.get(place, b"k", &mut Vec::new()).is_some());
    let refused = disk.append(&object(b"ke"), &[&whole]);
    assert_eq!(refused, Err(Refused::TooLarge { bytes: limit + 1, limit }));
    let refused = disk.append(&object(&[0; 70_000]), &[]);
    assert!(matches!(refused, Err(Refused::TooLarge { .. })));
    assert!(matches!(
        disk.append_small(&object(b"k"), &[&[0; 600]]),
        Err(Refused::TooLarge { .. })
    ));
    assert!(matches!(disk.append_small(&object(&[0; 256]), &[]), Err(Refused::TooLarge { .. })));
    let given_up = disk.append_with(&object(b"gone"), 100, &mut |_| false);
    assert_eq!(given_up, Err(Refused::Abandoned));
    assert!(store(&disk, &index, 5, 5, 100));
    assert_eq!(load(&disk, &index, 5), Some(5));
}

#[test]
fn an_empty_value_and_an_empty_key_are_objects_like_others() {
    let folder = folder();
    let disk = open(&folder, &config());
    let object = Object { hash: 3, key: b"", meta: Meta { stale: true, ..Meta::default() } };
    let place = disk.append(&object, &[]).unwrap();
    disk.append_small(&object, &[]).unwrap();
    for flush in [false, true] {
        assert!(!flush || disk.flush());
        let mut out = Vec::from(*b"before");
        assert_eq!(disk.get(place, b"", &mut out), Some(object.meta));
        assert_eq!(disk.get_small(3, b"", &mut out), Some(object.meta));
        assert_eq!(out, b"before");
        assert_eq!(disk.get(place, b"other", &mut out), None);
    }
}

#[test]
fn unallocated_places_return_no_object() {
    let folder = folder();
    let disk = open(&folder, &config());
    for bits in [0, 1, 511, 512, (1 << 37) - 1, (1 << 40) - 1] {
        let place = Place::from_bits(bits).unwrap();
        assert_eq!(disk.get(place, b"key", &mut Vec::new()), None);
    }
}

#[test]
fn the_write_budget_is_spent_by_writes_and_refilled_over_time() {
    let (folder, index) = (folder(), Index::default());
    let disk = open(&folder, &Config { budget_per_day: 24 << 20, least_hits: 0, ..config() });
    disk.tick(1, &index);
    let offer = |number: u64| Offer { hash: hash(&key(number)), bytes: 8000, hits: 9 };
    let stored = (0..1000)
        .take_while(|number| disk.admit(&offer(*number)) && store(&disk, &index, *number, 1, 8000));
    let stored = stored.count();
    assert!((90..=135).contains(&stored), "{stored} of 1 MiB");
    assert_eq!(disk.stats().budget_left, 0);
    disk.tick(1801, &index);
    assert!(disk.admit(&offer(1)));
    assert_eq!(disk.stats().refused_budget, 1);
}

#[test]
fn expired_objects_leave_their_set_first() {
    let folder = folder();
    let index = Index::default();
    let disk = open(&folder, &config());
    let meta = Meta { expires: 50, ..Meta::default() };
    disk.append_small(&Object { hash: 1, key: b"a", meta }, &[b"old"]).unwrap();
    disk.flush();
    assert_eq!(disk.get_small(1, b"a", &mut Vec::new()), Some(meta));
    disk.tick(50, &index);
    disk.append_small(&Object { hash: 1, key: b"b", meta: Meta::default() }, &[b"new"]).unwrap();
    disk.flush();
    assert_eq!(disk.get_small(1, b"a", &mut Vec::new()), None);
    assert!(disk.may_hold_small(1, b"b"));
}

#[test]
fn concurrent_reads_return_the_same_as_sequential_reads() {
    for access in [Access::Auto, Access::Plain] {
        let (folder, index) = (folder(), Index::default());
        let disk = open(&folder, &Config { access, ..config() });
        for number in 0..60 {
            let len = usize::try_from(number * number * 7).unwrap();
            assert!(store(&disk, &index, number, number, len));
            store_small(&disk, 1000 + number, number, 50).unwrap();
        }
        disk.flush();
        assert!(store(&disk, &index, 60, 60, 500));
        let mut reader = disk.reader(32).unwrap();
        let mut found = std::collections::BTreeMap::new();
        let mut asks = (0..=60).chain(1000..1060).chain(2000..2010).peekable();
        let mut rounds = 0;
        while found.len() < 131 {
            while let Some(number) = asks.peek().copied() {
                let at = match index.place(number) {
                    Some(place) => Where::Large(place),
                    None => Where::Small(hash(&key(number))),
                };
                if reader.submit(number, at, &key(number)).is_err() {
                    break;
                }
                asks.next();
            }
            // Without waiting, then by the descriptor.
            reader.kick().unwrap();
            let mut each = |number: u64, outcome: Outcome<'_>| {
                let version = outcome.item().map(|item| version_of(number, item.value).unwrap());
                assert_eq!(found.insert(number, version), None, "told once");
            };
            let told = reader.poll(Wait::No, &mut each).unwrap();
            if told == 0 {
                let ready = reader.ready();
                poll(&mut [PollFd::new(&ready, PollFlags::IN)], None).unwrap();
            }
            rounds += 1;
            assert!(rounds < 10_000, "it comes to an end");
        }
        assert_eq!(reader.under_way(), 0);
        for (number, version) in found {
            let expected = match number {
                0..=60 => Some(number),
                1000..1060 => Some(number - 1000),
                _ => None,
            };
            // Small values contain their key, too.
            assert_eq!(version, expected, "{number}");
        }
        let stats = disk.stats();
        assert!(stats.large_hits_memory >= 1 && stats.small_filtered > 0, "{stats:?}");
    }
}

#[test]
fn a_value_larger_than_the_first_read_takes_a_second_one() {
    let (folder, index) = (folder(), Index::default());
    let config = Config { bytes: 16 << 20, region_bytes: 1 << 20, small_bytes: 0, ..config() };
    let disk = open(&folder, &config);
    assert!(store(&disk, &index, 1, 1, 900_000));
    disk.flush();
    assert_eq!(load(&disk, &index, 1), Some(1));
    let mut reader = disk.reader(1).unwrap();
    reader.submit(9, Where::Large(index.place(1).unwrap()), &key(1)).unwrap();
    let full = reader.submit(9, Where::Large(index.place(1).unwrap()), &key(1)).unwrap_err();
    assert_eq!(full, Full { depth: 1 });
    let mut version = None;
    let mut each = |_, outcome: Outcome<'_>| version = version_of(1, outcome.item().unwrap().value);
    assert_eq!(reader.poll(Wait::ForOne, &mut each).unwrap(), 1);
    assert_eq!(version, Some(1));
    assert_eq!(disk.stats().large_second_reads, 2);
}

#[test]
fn an_index_entry_takes_forty_bits_and_tables_little_more() {
    let config =
        Config { bytes: 1 << 30, small_bytes: 256 << 20, ghosts: 1024, ..Config::default() };
    let folder = folder();
    let disk = open(&folder, &config);
    let stats = disk.stats();
    // Filters and sums of 65536 sets, 20 bytes each; 16 bytes a region; 4 a ghost.
    assert!(stats.table_bytes < 20 * 65_536 + 47 * 16 + 4096 + 64, "{}", stats.table_bytes);
    assert_eq!(PLACE_BITS, 40);
}

#[test]
fn clearing_during_an_eviction_is_not_reported_as_corruption() {
    /// An index that clears the tier while the first region is evicted, and asks to keep each object.
    struct Forgetful<'a>(&'a Disk, AtomicBool);
    impl Keeper for Forgetful<'_> {
        fn evicted(&self, _: u64, _: Place) -> Fate {
            if !self.1.swap(true, Ordering::Relaxed) {
                self.0.clear().unwrap();
            }
            Fate::Keep
        }
        fn moved(&self, _: u64, _: Place, _: Place) -> bool {
            panic!("nothing may be stored again after all was forgotten")
        }
        fn gone(&self, _: u64, _: Place) {}
        fn lost(&self, _: Places) {}
    }
    let (folder, index) = (folder(), Index::default());
    let disk = open(&folder, &config());
    let keeper = Forgetful(&disk, AtomicBool::new(false));
    for number in 0..1000 {
        let _ = store(&disk, &index, number, number, 3000);
        disk.tick(1, &keeper);
        if keeper.1.load(Ordering::Relaxed) {
            break;
        }
    }
    let stats = disk.stats();
    assert_eq!((stats.regions_evicted, stats.reinserted, stats.checksum_errors), (1, 0, 0));
}
