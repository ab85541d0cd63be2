//! The whole cache, killed at any moment: items found afterwards are whole, have the right key, and were stored.
//!
//! The test starts itself as a child that stores, removes and reads with movers in the background, and prints each
//! completed step. After some number of steps it is killed, and its disk opened here. Eight rounds, or
//! NEARFAR_TEST_CACHE_ENDS.

use std::io::{Write, stdout};

use super::*;
use crate::disk::testkit::{kill_after, of_parent};
use crate::mover::Movers;

const KEYS: u64 = 400;
const CHILD: &str = "below::tests::kill::child";

fn draw(number: u64) -> u64 {
    rapidhash::v3::rapidhash_v3(&number.to_le_bytes())
}

/// The key of a step, and whether it is removed.
fn step(number: u64) -> (u64, bool) {
    let draw = draw(number);
    ((draw >> 32) % KEYS, draw.is_multiple_of(10))
}

/// Not a test by itself: the child process of the test below.
#[test]
fn child() {
    let Some((path, first)) = of_parent() else { return };
    let cache = Arc::new(open(&config(&path, 60, Making::Background)));
    let _movers = Movers::start(&cache, 1).unwrap();
    let mut out = stdout().lock();
    for number in first.. {
        let (key_number, removes) = step(number);
        if removes {
            cache.delete(&key(key_number));
        } else {
            put(&cache, key_number, number, (draw(number) >> 10) as usize % 4000);
        }
        let look = draw(number + 7) % KEYS;
        get(&cache, look);
        // The parent may have stopped reading.
        if writeln!(out, "step {number}").and_then(|()| out.flush()).is_err() {
            return;
        }
    }
}

#[test]
fn a_killed_process_leaves_only_untorn_stored_values() {
    let rounds: u64 = std::env::var("NEARFAR_TEST_CACHE_ENDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(8);
    let folder = folder();
    let path = file(&folder);
    let (mut first, mut all) = (1, 0);
    for round in 0..rounds {
        let last = kill_after(CHILD, &path, first, 300 + draw(round) % 1500);
        let cache = open(&config(&path, 60, Making::Inline));
        assert!(!cache.contents().below().unwrap().opened.was_closed);
        for number in 0..KEYS {
            // `get` checks that it is whole, of this key, with its metadata.
            let Some(version) = get(&cache, number) else { continue };
            // The last step may have been done, and not printed.
            assert!(version <= last + 1 && step(version) == (number, false), "{number} {version}");
            all += 1;
        }
        let own = cache.counted().disk.unwrap().own;
        assert_eq!((own.checksum_errors, own.read_errors), (0, 0));
        first = last + 2;
    }
    assert!(all > rounds * 20, "{all} found in {rounds} rounds");
    // With `discard`, older values are impossible: after a crash nothing is recovered.
    let last = kill_after(CHILD, &path, first, 500);
    let mut config = config(&path, 60, Making::Inline);
    config.disk.as_mut().unwrap().config.after_crash = AfterCrash::Discard;
    let cache = open(&config);
    assert!(cache.contents().below().unwrap().opened.discarded && last >= first);
    assert!((0..KEYS).all(|number| get(&cache, number).is_none()));
}
