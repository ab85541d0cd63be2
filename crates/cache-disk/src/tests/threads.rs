//! Several threads store, read and tick concurrently: objects found belong to their key, and are not older than known.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread;

use super::super::*;
use super::testkit::*;

const KEYS: u64 = 64;

fn run(config: &Config) {
    let (folder, index) = (folder(), Index { keep: 5, ..Index::default() });
    let disk = Disk::open(&file(&folder), config, &mut |_| {}).expect("a new file").0;
    let over = AtomicBool::new(false);
    // The last stored version, at least; each key has one writer.
    let known: Vec<[AtomicU64; 2]> =
        (0..KEYS).map(|_| [AtomicU64::new(0), AtomicU64::new(0)]).collect();
    let write = |first: u64| {
        for version in 1..600_u64 {
            let number = (version * 7 % (KEYS / 2)) * 2 + first;
            let known = &known[usize::try_from(number).unwrap()];
            assert!(store(
                &disk,
                &index,
                number,
                version,
                2000 + usize::try_from(version).unwrap()
            ));
            known[0].store(version, Release);
            while store_small(&disk, number, version, 300) == Err(Refused::Busy) {
                thread::yield_now();
            }
            known[1].store(version, Release);
        }
    };
    let read = || {
        let (mut hits, mut round) = (0, 0);
        while !over.load(Relaxed) {
            round += 1;
            let number = round % KEYS;
            let least =
                known[usize::try_from(number).unwrap()].each_ref().map(|known| known.load(Acquire));
            if let Some(found) = load_small(&disk, number) {
                assert!(found >= least[1], "{found} {least:?}");
                hits += 1;
            }
            // It may be replaced between index and read: then the result is a miss, or a newer version.
            if let Some(found) = load(&disk, &index, number) {
                assert!(found >= least[0], "{found} {least:?}");
                hits += 1;
            }
        }
        hits
    };
    thread::scope(|scope| {
        let writers = [0, 1].map(|first| scope.spawn(move || write(first)));
        let readers = [scope.spawn(read), scope.spawn(read)];
        let ticker = scope.spawn(|| {
            while !over.load(Relaxed) {
                disk.tick(1, &index);
                thread::yield_now();
            }
        });
        let ended = writers.map(|writer| writer.join().is_ok());
        over.store(true, Relaxed);
        assert_eq!(ended, [true, true]);
        assert!(
            readers.map(|reader| reader.join().expect("readers end")).iter().all(|hits| *hits > 0)
        );
        ticker.join().expect("the ticker ends");
    });
    assert!(disk.flush());
    for number in 0..KEYS {
        let known = &known[usize::try_from(number).unwrap()];
        assert_eq!(load(&disk, &index, number).is_some(), index.place(number).is_some());
        assert!(load_small(&disk, number).is_none_or(|found| found == known[1].load(Relaxed)));
    }
    let stats = disk.stats();
    assert_eq!((stats.read_errors, stats.write_errors, stats.regions_lost), (0, 0, 0));
    assert!(stats.regions_evicted > 30);
}

#[test]
fn threads_see_only_the_values_of_their_keys() {
    run(&Config { lanes: 2, ..config() });
}

#[test]
fn threads_see_only_their_values_with_plain_calls_and_one_lane() {
    run(&Config { access: Access::Plain, writing: 1, ..config() });
}
