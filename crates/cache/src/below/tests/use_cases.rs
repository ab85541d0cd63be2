//! Use cases of the disk tier.

use super::*;
use crate::disk::{Outcome, Wait};
use crate::store::{Edit, Old};
use crate::{Lookup, Ticket};

/// Fills memory, which otherwise has spare room.
fn fill(cache: &Cache) {
    (0..80).for_each(|number| put(cache, 100_000 + number, 1, 3000));
    assert_eq!(cache.contents().space(0).unused_slabs(), 0);
}

fn disk_stats(cache: &Cache) -> crate::DiskStats {
    cache.counted().disk.expect("it has a disk")
}

#[test]
fn large_and_small_items_evicted_from_memory_are_found_on_disk() {
    let folder = folder();
    let cache = open(&config(&file(&folder), 100, Making::Inline));
    for number in 0..300 {
        put(&cache, number, number, if number % 2 == 0 { 3000 } else { 200 });
    }
    push_down(&cache);
    let stats = disk_stats(&cache);
    assert_eq!((stats.written, stats.items), (300, 150));
    (0..300).for_each(|number| assert_eq!(get(&cache, number), Some(number), "{number}"));
    let stats = disk_stats(&cache);
    assert_eq!((stats.own.removals, stats.own.large_appended), (0, 150), "each once");
    assert!(stats.own.large_hits > 100 && stats.own.small_hits > 100, "{stats:?}");
    assert_eq!((cache.counted().hits, cache.counted().misses), (300, 0));
    assert_eq!(get(&cache, 999), None);
    assert_eq!(cache.counted().misses, 1);
    check_count(&cache);
}

#[test]
fn a_cache_of_several_memory_tiers_has_the_disk_below_the_last() {
    let folder = folder();
    let one = config(&file(&folder), 100, Making::Inline);
    let tiers = [one.tiers.clone(), one.tiers.clone()].concat();
    let cache = open(&Config { tiers, ..one });
    (0..400).for_each(|number| put(&cache, number, 7, 3000));
    (0..400).for_each(|number| assert_eq!(get(&cache, number), Some(7), "{number}"));
    let counted = cache.counted();
    assert!(counted.tiers[0].counts.demoted > 100 && counted.tiers[1].counts.demoted > 100);
    check_count(&cache);
}

#[test]
fn reread_items_are_promoted_and_demoted_without_a_rewrite() {
    let folder = folder();
    let cache = open(&config(&file(&folder), 100, Making::Inline));
    for number in 0..20 {
        put(&cache, number, 5, if number < 10 { 3000 } else { 300 });
    }
    push_down(&cache);
    assert_eq!(disk_stats(&cache).promoted, 0);
    fill(&cache);
    for _ in 0..3 {
        (0..20).for_each(|number| assert_eq!(get(&cache, number), Some(5)));
    }
    let up = disk_stats(&cache);
    assert_eq!((up.promoted, up.unwritten), (20, 0));
    let read = up.own.large_hits + up.own.small_hits;
    assert_eq!(read, 10 * 2 + 10, "the third time, and of small ones the second, from memory");
    push_down(&cache);
    let down = disk_stats(&cache);
    assert!(down.unwritten >= 20, "{down:?}");
    (0..20).for_each(|number| assert_eq!(get(&cache, number), Some(5)));
    check_count(&cache);
}

#[test]
fn expired_items_are_reaped_from_memory_and_missed_on_disk() {
    let folder = folder();
    let cache = open(&config(&file(&folder), 100, Making::Inline));
    for number in 0..40 {
        let (len, expires) = ([200, 3000][number as usize % 2], [0, 9][number as usize / 20]);
        let value = value(number, 5, len);
        cache.put(&key(number), &value, Some(&meta(5, expires))).expect("there is room");
    }
    push_down(&cache);
    // Some are promoted, and are on disk as well.
    let mut items = 0;
    while items == 0 {
        (15..25).for_each(|number| assert_eq!(get(&cache, number), Some(5)));
        items = cache.counted().tiers[0].items;
    }
    assert_eq!(cache.expire_some(), 0);
    cache.set_now(9);
    let reaped = cache.expire_some() as u64;
    let counted = cache.counted().tiers[0].clone();
    assert!(reaped > 0 && reaped <= 5, "{reaped}");
    assert_eq!((counted.items, counted.counts.reaped), (items - reaped, reaped));
    for number in 0..40 {
        assert_eq!(get(&cache, number), (number < 20).then_some(5), "{number}");
    }
    check_count(&cache);
}

#[test]
fn items_on_disk_are_edited_like_items_in_memory() {
    let folder = folder();
    let cache = open(&config(&file(&folder), 100, Making::Inline));
    for (first, len) in [(0, 3000), (100, 200)] {
        (first..first + 8).for_each(|number| put(&cache, number, 5, len));
        push_down(&cache);
        // A decision sees value and metadata, and may change nothing.
        let mut seen = None;
        let mut decide = |old: Option<&dyn Old>, _: &mut Vec<u8>| {
            let old = old.expect("it is on disk");
            let mut value = Vec::new();
            old.read(&mut value);
            seen = Some((version_of(first, &value), old.meta().cas, old.len()));
            Edit::Keep
        };
        cache.edit(&key(first), &mut Vec::new(), &mut decide).expect("nothing is stored");
        assert_eq!(seen, Some((Some(5), 5, len)));
        assert_eq!(get(&cache, first), Some(5));
        // A new value, new metadata, a removal.
        let mut new = value(first + 1, 6, 500);
        let put = &mut |old: Option<&dyn Old>, _: &mut Vec<u8>| {
            assert!(old.is_some());
            Edit::Put(meta(6, 0))
        };
        cache.edit(&key(first + 1), &mut new, put).expect("there is room");
        let set = &mut |old: Option<&dyn Old>, _: &mut Vec<u8>| {
            Edit::Set(Meta { expires: 50, ..old.expect("it is on disk").meta() })
        };
        cache.edit(&key(first + 2), &mut Vec::new(), set).expect("there is room");
        let remove = &mut |old: Option<&dyn Old>, _: &mut Vec<u8>| {
            assert!(old.is_some());
            Edit::Remove
        };
        cache.edit(&key(first + 3), &mut Vec::new(), remove).expect("nothing is stored");
        assert!(cache.delete(&key(first + 4)) && !cache.delete(&key(first + 4)));
        super::put(&cache, first + 5, 6, len);
        let expected = [Some(5), Some(6), Some(5), None, None, Some(6), Some(5)];
        for down in [false, true] {
            for (number, version) in (first..).zip(expected) {
                assert_eq!(get(&cache, number), version, "{number} {down}");
            }
            push_down(&cache);
        }
        cache.set_now(50);
        assert_eq!((get(&cache, first + 2), get(&cache, first)), (None, Some(5)));
        assert!(!cache.delete(&key(first + 2)));
        cache.set_now(1);
    }
    check_count(&cache);
}

#[test]
fn a_promoted_item_changed_in_memory_never_reverts() {
    let folder = folder();
    let cache = open(&config(&file(&folder), 100, Making::Inline));
    for number in 0..10 {
        put(&cache, number, 5, if number % 2 == 0 { 3000 } else { 300 });
    }
    push_down(&cache);
    (0..3).for_each(|_| (0..10).for_each(|number| assert_eq!(get(&cache, number), Some(5))));
    for number in 0..10 {
        let touch = &mut |old: Option<&dyn Old>, _: &mut Vec<u8>| {
            Edit::Set(Meta { expires: 90, ..old.expect("it is in memory").meta() })
        };
        cache.edit(&key(number), &mut Vec::new(), touch).expect("there is room");
    }
    push_down(&cache);
    cache.set_now(89);
    (0..10).for_each(|number| assert_eq!(get(&cache, number), Some(5)));
    cache.set_now(90);
    (0..10).for_each(|number| assert_eq!(get(&cache, number), None));
}

#[test]
fn a_flush_leaves_nothing_on_disk_either() {
    let folder = folder();
    let path = file(&folder);
    let cache = open(&config(&path, 100, Making::Inline));
    for number in 0..100 {
        put(&cache, number, 5, if number % 2 == 0 { 3000 } else { 200 });
    }
    push_down(&cache);
    assert_eq!(get(&cache, 1), Some(5));
    cache.flush(0);
    (0..100).for_each(|number| assert_eq!(get(&cache, number), None, "{number}"));
    assert_eq!(disk_stats(&cache).items, 0);
    put(&cache, 3, 6, 3000);
    cache.flush(10);
    put(&cache, 4, 6, 200);
    push_down(&cache);
    assert_eq!((get(&cache, 3), get(&cache, 4)), (Some(6), Some(6)));
    cache.set_now(10);
    assert_eq!((get(&cache, 3), get(&cache, 4)), (None, None));
    drop(cache);
    let cache = open(&config(&path, 100, Making::Inline));
    (0..100).for_each(|number| assert_eq!(get(&cache, number), None, "{number}"));
}

#[test]
fn items_read_since_they_were_written_outlive_their_region() {
    let folder = folder();
    let cache = open(&config(&file(&folder), 30, Making::Inline));
    (0..8).for_each(|number| put(&cache, number, 5, 3000));
    push_down(&cache);
    fill(&cache);
    // Most of a region can be reinserted.
    for round in 0..4 {
        (0..2).for_each(|number| assert_eq!(get(&cache, number), Some(5), "{round}"));
        (0..230).for_each(|number| put(&cache, 10_000 + round * 1000 + number, 1, 3000));
    }
    let stats = disk_stats(&cache);
    assert!(stats.own.regions_evicted > 60 && stats.own.reinserted >= 6, "{stats:?}");
    assert_eq!(stats.promoted, 0);
    assert!((2..8).all(|number| get(&cache, number).is_none()), "what nobody read is gone");
    check_count(&cache);
}

#[test]
fn batch_lookups_defer_disk_reads_and_complete_them_later() {
    let folder = folder();
    let cache = open(&config(&file(&folder), 100, Making::Inline));
    for number in 0..60 {
        put(&cache, number, 5, if number % 3 == 0 { 200 } else { 3000 });
    }
    push_down(&cache);
    put(&cache, 60, 5, 100);
    let mut reader = cache.reader(64).expect("a queue").expect("it has a disk");
    let mut tickets: Vec<Option<Ticket>> = Vec::new();
    for number in 0..62 {
        let mut out = Vec::new();
        let found = cache.lookup(&key(number), &mut out, &mut |_, _, _| ());
        match found {
            Lookup::Below(ticket) => {
                reader.submit(number, ticket.place(), &key(number)).expect("it is deep enough");
                tickets.push(Some(ticket));
                continue;
            }
            Lookup::Hit(_) => assert_eq!((number, version_of(60, &out)), (60, Some(5))),
            Lookup::Miss => assert_eq!(number, 61),
        }
        tickets.push(None);
    }
    // Replaced and removed before they are read: the new value is found, the removed one is not.
    put(&cache, 3, 6, 200);
    put(&cache, 4, 6, 3000);
    assert!(cache.delete(&key(6)) && cache.delete(&key(7)));
    let mut found = std::collections::HashMap::new();
    while reader.under_way() > 0 {
        let mut each = |number: u64, outcome: Outcome<'_>| {
            let ticket = tickets[number as usize].take().expect("told once");
            let mut out = Vec::new();
            let landed = cache.landed(&key(number), (ticket, outcome), &mut out, &mut |_, _, _| ());
            assert!(!matches!(landed, Lookup::Below(_)));
            found.insert(number, version_of(number, &out));
        };
        reader.poll(Wait::ForOne, &mut each).expect("nothing fails here");
    }
    assert!(found.len() > 50);
    for (number, version) in found {
        let is_known = match number {
            // These reads had begun before.
            3 | 4 => version == Some(5) || version == Some(6),
            6 | 7 => version == Some(5) || version.is_none(),
            _ => version == Some(5),
        };
        assert!(is_known, "{number} {version:?}");
    }
    assert_eq!((get(&cache, 3), get(&cache, 4)), (Some(6), Some(6)));
    assert_eq!((get(&cache, 6), get(&cache, 7)), (None, None));
    assert_eq!(get(&cache, 8), Some(5));
    check_count(&cache);
}

#[test]
fn statistics_include_memory_tiers_and_the_disk() {
    let folder = folder();
    let cache = open(&config(&file(&folder), 100, Making::Inline));
    (0..100).for_each(|number| put(&cache, number, 5, 3000));
    let mut figures = std::collections::HashMap::new();
    Store::stats(&cache, &mut |name, number| {
        assert_eq!(figures.insert(name.to_owned(), number), None, "{name} twice");
    });
    let items = figures["tier_0_items"] + figures["tier_1_items"];
    assert_eq!((figures["curr_items"], items), (100, 100));
    assert_eq!(figures["limit_maxbytes"], 256 * KB);
    assert!(figures["bytes"] <= 256 * KB, "of memory alone");
    assert!(figures["tier_1_bytes"] <= figures["tier_1_limit_bytes"]);
    assert_eq!(figures["disk_written"], figures["disk_large_appended"]);
    assert_eq!(figures["evictions"], 0);
}

#[test]
fn only_items_with_enough_hits_are_admitted_if_configured() {
    let folder = folder();
    let mut config = config(&file(&folder), 100, Making::Inline);
    config.disk.as_mut().expect("it has a disk").config.least_hits = 2;
    let cache = open(&config);
    for number in 0..200 {
        put(&cache, number, 5, 3000);
        (0..2).for_each(|_| assert_eq!(get(&cache, number), Some(5)));
        put(&cache, 1000 + number, 1, 3000);
    }
    let stats = disk_stats(&cache);
    assert!(stats.own.refused_use > 100 && stats.written > 50, "{stats:?}");
    let found = |from: u64| (from..from + 100).filter(|number| get(&cache, *number).is_some());
    assert_eq!((found(0).count(), found(1000).count()), (100, 0));
    assert!(cache.counted().tiers[0].counts.evicted > 100);
}

#[test]
fn a_disk_that_cannot_be_opened_is_reported() {
    let folder = folder();
    let path = file(&folder);
    std::fs::write(&path, b"somebody's letter").expect("a file of the test");
    let refused = Cache::new(&config(&path, 100, Making::Inline)).expect_err("it is not ours");
    assert!(refused.to_string().contains("unknown data"), "{refused}");
    assert_eq!(std::fs::read(&path).expect("it is there"), b"somebody's letter");
}
