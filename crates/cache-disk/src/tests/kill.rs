//! Killed at any moment: objects found afterwards were stored, have the right key, and are not older than the last
//! flush.
//!
//! The test starts itself as a child that stores, removes, ticks and flushes, and prints each completed step. After a
//! random number of steps it is killed. Steps follow from their number, so both processes know them. Twenty rounds, or
//! NEARFAR_TEST_CACHE_ENDS.

use std::collections::HashMap;
use std::io::{Write, stdout};

use super::super::*;
use super::testkit::*;

const KEYS: u64 = 150;
const CHILD: &str = "tests::kill::child";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Store(u64),
    Remove(u64),
    Flush,
}

/// Even keys are large objects, odd ones small.
fn step(number: u64) -> Step {
    let draw = hash(&number.to_le_bytes());
    let key = (draw >> 32) % KEYS;
    match draw % 100 {
        0 => Step::Flush,
        1..20 => Step::Remove(key),
        _ => Step::Store(key),
    }
}

fn length(key: u64, number: u64) -> usize {
    usize::try_from(hash(&number.to_le_bytes()) >> 8).unwrap()
        % if key.is_multiple_of(2) { 6000 } else { 400 }
}

fn config() -> Config {
    Config { lanes: 2, ..super::testkit::config() }
}

/// Not a test by itself: the child process of the test below.
#[test]
fn child() {
    let Some((path, first)) = of_parent() else { return };
    let index = Index::default();
    let (disk, _) = Disk::open(&path, &config(), &mut index.recover()).unwrap();
    let mut out = stdout().lock();
    for number in first.. {
        match step(number) {
            Step::Flush => assert!(disk.flush()),
            Step::Remove(key_number) => {
                let key = key(key_number);
                if let Some(place) = index.remove(key_number) {
                    disk.forget(place);
                }
                disk.remove_small(hash(&key), &key);
            }
            Step::Store(key) if key.is_multiple_of(2) => {
                assert!(store(&disk, &index, key, number, length(key, number)));
            }
            Step::Store(key) => {
                while store_small(&disk, key, number, length(key, number)) == Err(Refused::Busy) {
                    disk.tick(1, &index);
                }
            }
        }
        disk.tick(1, &index);
        // The parent may have stopped reading.
        if writeln!(out, "step {number}").and_then(|()| out.flush()).is_err() {
            return;
        }
    }
}

/// Versions found of all keys.
fn found(path: &std::path::Path) -> (HashMap<u64, u64>, Opened) {
    let index = Index::default();
    let (disk, opened) = Disk::open(path, &config(), &mut index.recover()).unwrap();
    let of = |key: u64| {
        if key.is_multiple_of(2) { load(&disk, &index, key) } else { load_small(&disk, key) }
    };
    let found = (0..KEYS).filter_map(|key| Some((key, of(key)?))).collect();
    assert_eq!(disk.stats().checksum_errors, 0);
    (found, opened)
}

#[test]
fn a_killed_process_loses_no_flushed_change_and_yields_no_foreign_value() {
    let rounds = std::env::var("NEARFAR_TEST_CACHE_ENDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(20);
    let folder = folder();
    let path = file(&folder);
    let (mut before, mut first, mut all) = (HashMap::new(), 1, 0);
    for round in 0..rounds {
        let steps = hash(&[1, round]) % 250;
        let last = kill_after(CHILD, &path, first, steps);
        let (now, opened) = found(&path);
        assert!(!opened.was_closed);
        let flush = (first..=last).filter(|number| step(*number) == Step::Flush).max().unwrap_or(0);
        // The certain versions, and the possible ones: a step may be done without having been printed.
        for number in first..=flush {
            match step(number) {
                Step::Store(key) => drop(before.insert(key, number)),
                Step::Remove(key) => drop(before.remove(&key)),
                Step::Flush => {}
            }
        }
        for (key, version) in &now {
            let later = *version > flush && *version >= first && *version <= last + 1;
            let stored = later && step(*version) == Step::Store(*key);
            assert!(
                before.get(key) == Some(version) || stored,
                "round {round}: key {key} has version {version}, flushed {:?} by {flush}, steps {first} to {last}",
                before.get(key)
            );
        }
        println!(
            "round {round}: killed after {} steps, {} objects found",
            last + 1 - first,
            now.len()
        );
        all += now.len();
        (before, first) = (now, last + 2);
    }
    assert!(all > 10 * usize::from(rounds), "{all} objects found in {rounds} rounds");
}
