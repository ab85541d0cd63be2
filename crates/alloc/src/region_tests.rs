//! Regions with all copies on node 0, so that the tests run on any machine: against a model, and with concurrent
//! threads.
#![expect(unsafe_code, reason = "regions are read and written")]

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nearfar_topology::NodeId;
use proptest::prelude::*;

use crate::granule::Rule;
use crate::region::{OutOfRegion, Region};
use crate::shared::{Layout, Shared};

const COPIES: usize = 3;

fn region(size: usize, granule: usize, rule: Rule) -> Region {
    let nodes = [NodeId(0); COPIES];
    let memory = Shared::new(Layout::new(size, granule, COPIES).unwrap(), &nodes).unwrap();
    let (granule_bits, text) = (granule.trailing_zeros(), String::from("test"));
    Region { memory, size, granule_bits, rule, text, nodes: nodes.into(), here: Vec::new() }
}

fn read(
    region: &Region,
    copy: usize,
    offset: usize,
    length: usize,
) -> Result<Vec<u8>, OutOfRegion> {
    let mut into = vec![0xee; length];
    // SAFETY: room for as many.
    unsafe { region.read_by(copy, offset, into.as_mut_ptr() as usize, length) }.map(|()| into)
}

fn write(region: &Region, offset: usize, from: &[u8]) -> Result<(), OutOfRegion> {
    // SAFETY: as many bytes.
    unsafe { region.write(offset, from.as_ptr() as usize, from.len()) }
}

fn view(region: &Region, copy: usize) -> &[u8] {
    // SAFETY: mapped as long as the region is, and no thread writes.
    unsafe { core::slice::from_raw_parts(region.memory.view(copy) as *const u8, region.size) }
}

/// An operation on a region.
#[derive(Clone, Debug)]
enum Step {
    Write(usize, Vec<u8>),
    Read(usize, usize, usize),
    Sync,
}

fn step(size: usize) -> impl Strategy<Value = Step> {
    // Some reach beyond the end.
    let write = (0..size + 9, prop::collection::vec(any::<u8>(), 0..700))
        .prop_map(|(offset, bytes)| Step::Write(offset, bytes));
    let read = (0..COPIES, 0..size + 9, 0..1500_usize)
        .prop_map(|(copy, offset, length)| Step::Read(copy, offset, length));
    prop_oneof![3 => write, 6 => read, 1 => Just(Step::Sync)]
}

proptest! {
    #[test]
    fn every_copy_returns_the_written_data_after_any_sequence_of_calls(
        size in 1..5000_usize,
        granule_bits in 8..13_u32,
        collapses_most in 1..4_u64,
        is_eager in any::<bool>(),
        steps in prop::collection::vec(step(5000), 1..60),
    ) {
        let rule = Rule { quiet_ms: if is_eager { 0 } else { 86_400_000 }, collapses_most };
        let region = region(size, 1 << granule_bits, rule);
        let (mut model, mut touched) = (vec![0_u8; size], 0);
        let granules = size.div_ceil(1 << granule_bits) as u64;
        for step in steps {
            match step {
                Step::Write(offset, bytes) => {
                    let wrote = write(&region, offset, &bytes);
                    prop_assert_eq!(wrote.is_ok(), offset + bytes.len() <= size);
                    if wrote.is_ok() && !bytes.is_empty() {
                        let end = offset + bytes.len();
                        model[offset..end].copy_from_slice(&bytes);
                        touched += ((end - 1) >> granule_bits) as u64 - (offset >> granule_bits) as u64 + 1;
                    }
                }
                Step::Read(copy, offset, length) => match read(&region, copy, offset, length) {
                    Ok(found) => prop_assert_eq!(&found, &model[offset..offset + length]),
                    Err(error) => {
                        prop_assert!(offset + length > size);
                        prop_assert_eq!(error, OutOfRegion { offset, length, size });
                    }
                },
                Step::Sync => {
                    region.sync();
                    for copy in 0..COPIES {
                        prop_assert_eq!(view(&region, copy), model.as_slice());
                    }
                }
            }
        }
        for copy in 0..COPIES {
            prop_assert_eq!(&read(&region, copy, 0, size).unwrap(), &model);
        }
        let stats = region.stats();
        prop_assert_eq!(stats.writes, touched);
        prop_assert!(stats.collapses <= touched.min(granules * (collapses_most)));
        prop_assert!(stats.settled <= granules);
        prop_assert!(stats.settled * collapses_most <= stats.collapses);
    }
}

#[test]
fn readers_copy_after_a_quiet_time_and_sync_copies_at_once() {
    // A quiet time that does not elapse in this test.
    let slow = region(10_000, 4096, Rule { quiet_ms: 86_400_000, collapses_most: 2 });
    write(&slow, 4000, &[7; 200]).unwrap();
    assert_eq!(read(&slow, 1, 4000, 200).unwrap(), [7; 200]);
    assert_eq!(slow.stats().copies, 0, "read at home");
    slow.sync();
    assert_eq!(slow.stats().copies, 2 * 2, "two granules for two others");
    slow.sync();
    assert_eq!(slow.stats().copies, 4, "nothing new");
    for _ in 0..3 {
        write(&slow, 0, &[8]).unwrap();
        assert_eq!(read(&slow, 2, 0, 1).unwrap(), [8]);
        slow.sync();
    }
    // Two collapses; at the third write there was no readable copy.
    let stats = slow.stats();
    assert_eq!((stats.writes, stats.collapses, stats.settled), (2 + 3, 2, 1));
    let quick = region(10_000, 4096, Rule { quiet_ms: 0, collapses_most: u64::MAX });
    write(&quick, 0, &[7; 10_000]).unwrap();
    for (copy, copies) in [(0, 0), (1, 3), (1, 3), (2, 6)] {
        assert_eq!(read(&quick, copy, 0, 10_000).unwrap(), [7; 10_000]);
        assert_eq!(quick.stats().copies, copies);
    }
}

/// Writers fill granules with increasing numbers, each in its own pattern; readers go from copy to copy.
#[test]
fn concurrent_readers_see_untorn_granules_in_increasing_order() {
    const GRANULE: usize = 512;
    const GRANULES: usize = 4;
    for rule in
        [Rule { quiet_ms: 0, collapses_most: u64::MAX }, Rule { quiet_ms: 1, collapses_most: 50 }]
    {
        let region = region(GRANULE * GRANULES, GRANULE, rule);
        let next: [AtomicU64; GRANULES] = [const { AtomicU64::new(0) }; GRANULES];
        // The highest value a thread has seen for certain, shared by all.
        let told: [AtomicU64; GRANULES] = [const { AtomicU64::new(0) }; GRANULES];
        let ended = AtomicBool::new(false);
        let whole = |copy: usize, granule: usize| {
            let found = read(&region, copy, granule * GRANULE, GRANULE).unwrap();
            let words: Vec<u64> =
                found.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
            assert!(words.iter().all(|word| *word == words[0]), "torn: {words:?}");
            words[0]
        };
        std::thread::scope(|scope| {
            for reader in 0..3 {
                let (told, ended, whole) = (&told, &ended, &whole);
                scope.spawn(move || {
                    let mut turn = reader;
                    while !ended.load(Ordering::Relaxed) {
                        turn += 1;
                        let granule = turn % GRANULES;
                        let least = told[granule].load(Ordering::Acquire);
                        let seen = whole(turn / GRANULES % COPIES, granule);
                        assert!(seen >= least, "granule {granule}: {seen} after {least}");
                        told[granule].fetch_max(seen, Ordering::AcqRel);
                    }
                });
            }
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    region.sync();
                    std::thread::yield_now();
                }
            });
            // One writer per granule, so that numbers increase.
            let writers: Vec<_> = (0..2)
                .map(|writer| {
                    let (region, next) = (&region, &next);
                    scope.spawn(move || {
                        for turn in 0..6000_usize {
                            let granule = 2 * (turn / 3 % 2) + writer;
                            let number = next[granule].fetch_add(1, Ordering::Relaxed) + 1;
                            let bytes = number.to_le_bytes().repeat(GRANULE / 8);
                            write(region, granule * GRANULE, &bytes).unwrap();
                        }
                    })
                })
                .collect();
            let done: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            ended.store(true, Ordering::Relaxed);
            assert!(done.iter().all(Result::is_ok));
        });
        region.sync();
        for (granule, last) in next.iter().enumerate() {
            let last = last.load(Ordering::Relaxed);
            assert!((0..COPIES).all(|copy| whole(copy, granule) == last));
            assert!((0..COPIES).all(|copy| {
                view(&region, copy)[granule * GRANULE..][..8] == last.to_le_bytes()
            }));
        }
        assert_eq!(region.stats().writes, 12_000);
    }
}
