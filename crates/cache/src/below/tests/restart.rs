//! Closing and reopening: reads return the values stored last, and removed items stay removed.

use std::collections::HashMap;

use super::*;

#[test]
fn items_on_disk_survive_a_reopen() {
    let folder = folder();
    let config = config(&file(&folder), 100, Making::Inline);
    let cache = open(&config);
    for number in 0..200 {
        put(&cache, number, 5, if number % 2 == 0 { 3000 } else { 200 });
    }
    push_down(&cache);
    let items = cache.counted().disk.expect("it has a disk").items;
    cache.close().expect("nothing fails here");
    // After closing: evicted items are lost, and items on disk can still be read.
    push_down(&cache);
    assert!((0..200).all(|number| get(&cache, number) == Some(5)));
    drop(cache);
    let cache = open(&config);
    let disk = cache.counted().disk.expect("it has a disk");
    assert_eq!((disk.recovered, disk.items), (items, items));
    (0..200).for_each(|number| assert_eq!(get(&cache, number), Some(5), "{number}"));
    check_count(&cache);
}

#[test]
fn replaced_and_removed_items_do_not_reappear_after_many_reopens() {
    let folder = folder();
    let config = config(&file(&folder), 60, Making::Inline);
    let mut map: HashMap<u64, u64> = HashMap::new();
    let (mut dice, mut version, mut found) = (7_u64, 0, 0);
    for _ in 0..12 {
        let cache = open(&config);
        for _ in 0..400 {
            dice = dice.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            version += 1;
            let number = (dice >> 40) % 60;
            match dice >> 33 & 7 {
                0 => {
                    cache.delete(&key(number));
                    map.remove(&number);
                }
                1 | 2 => {
                    put(&cache, number, version, 50 + (dice >> 20 & 0xfff) as usize);
                    map.insert(number, version);
                }
                3 => (0..10).for_each(|n| put(&cache, 10_000 + version * 10 + n, 1, 2500)),
                _ => {
                    let version = get(&cache, number);
                    assert!(version.is_none() || version == map.get(&number).copied());
                    found += u64::from(version.is_some());
                }
            }
        }
        for number in 0..60 {
            let version = get(&cache, number);
            assert!(version.is_none() || version == map.get(&number).copied(), "{number}");
        }
        cache.close().expect("nothing fails here");
    }
    assert!(found > 500, "{found}");
}

#[test]
fn promoted_items_changed_in_memory_do_not_revert_after_a_restart() {
    let folder = folder();
    let config = config(&file(&folder), 100, Making::Inline);
    let cache = open(&config);
    for number in 0..20 {
        put(&cache, number, 5, if number % 2 == 0 { 3000 } else { 200 });
    }
    push_down(&cache);
    (0..2).for_each(|_| (0..20).for_each(|number| assert_eq!(get(&cache, number), Some(5))));
    assert_eq!(cache.counted().disk.expect("it has a disk").promoted, 20);
    (0..5).for_each(|number| assert!(cache.delete(&key(number))));
    (5..10).for_each(|number| put(&cache, number, 6, 500));
    drop(cache);
    let cache = open(&config);
    // Items only in memory are lost with it, those also on disk are not.
    (0..10).for_each(|number| assert_eq!(get(&cache, number), None, "{number}"));
    (10..20).for_each(|number| assert_eq!(get(&cache, number), Some(5), "{number}"));
}

#[test]
fn times_of_expiry_hold_when_the_clock_begins_anew() {
    let folder = folder();
    let mut config = config(&file(&folder), 100, Making::Inline);
    let cache = open(&config);
    for number in 0..20 {
        let expires = if number < 10 { 50 } else { 500 };
        let len = if number % 2 == 0 { 3000 } else { 200 };
        let value = value(number, 5, len);
        cache.put(&key(number), &value, Some(&meta(5, expires))).expect("there is room");
    }
    push_down(&cache);
    drop(cache);
    // A hundred seconds later.
    config.disk.as_mut().expect("it has a disk").clock_zero += 100;
    let cache = open(&config);
    (0..10).for_each(|number| assert_eq!(get(&cache, number), None));
    (10..20).for_each(|number| assert_eq!(get(&cache, number), Some(5)));
    cache.set_now(399);
    (10..20).for_each(|number| assert_eq!(get(&cache, number), Some(5)));
    cache.set_now(400);
    (10..20).for_each(|number| assert_eq!(get(&cache, number), None));
}

#[test]
fn an_undersized_index_recovers_as_many_items_as_fit() {
    let folder = folder();
    let mut config = config(&file(&folder), 100, Making::Inline);
    let cache = open(&config);
    (0..400).for_each(|number| put(&cache, number, 5, 1000));
    drop(cache);
    config.items = Some(100);
    let cache = open(&config);
    let disk = cache.counted().disk.expect("it has a disk");
    assert!(disk.items < disk.recovered && disk.items > 50, "{disk:?}");
    let found = (0..400).filter(|number| get(&cache, *number).is_some()).count() as u64;
    assert!(found > 0 && found <= disk.items);
    check_count(&cache);
}

#[test]
fn with_discard_only_cleanly_closed_items_are_recovered() {
    let folder = folder();
    let mut config = config(&file(&folder), 100, Making::Inline);
    config.disk.as_mut().expect("it has a disk").config.after_crash = AfterCrash::Discard;
    let cache = open(&config);
    (0..100).for_each(|number| put(&cache, number, 5, 3000));
    drop(cache);
    let cache = open(&config);
    assert!(cache.counted().disk.expect("it has a disk").recovered > 10);
}
