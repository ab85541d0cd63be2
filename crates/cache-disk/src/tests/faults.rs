//! A failing device: results are misses, errors are counted, and parts that fail repeatedly are retired.

use std::sync::Arc;

use super::super::locks::lock;
use super::super::*;
use super::testkit::*;
use proptest::prelude::*;

fn open(folder: &tempfile::TempDir, config: &Config) -> (Arc<Faulty>, Disk) {
    let faulty = Faulty::new(&file(folder));
    let device: Arc<dyn Device> = faulty.clone();
    let disk = Disk::open_on(&device, &file(folder), config, &mut |_| {}).expect("a new file").0;
    (faulty, disk)
}

/// Fails requests for the regions.
fn of_regions(asked: Asked) -> bool {
    asked.at >= REGIONS_AT
}

#[test]
fn an_unreadable_region_causes_misses_and_is_retired_at_the_next_tick() {
    let (folder, index) = (folder(), Index::default());
    let (faulty, disk) = open(&folder, &config());
    (0..30).for_each(|number| assert!(store(&disk, &index, number, 1, 3000)));
    disk.flush();
    let before = disk.stats();
    for fault in [Fault::Error, Fault::Short, Fault::Flip] {
        faulty.by(move |asked| if asked.is_read { fault } else { Fault::None });
        assert_eq!(load(&disk, &index, 0), None);
    }
    faulty.by(|_| Fault::None);
    let stats = disk.stats();
    assert_eq!((stats.read_errors, stats.checksum_errors), (2, 1));
    assert_eq!(load(&disk, &index, 0), Some(1), "three errors are not known before the tick");
    disk.tick(1, &index);
    assert_eq!(index.place(0), None);
    assert_eq!(index.place(29).map(|_| load(&disk, &index, 29)), Some(Some(1)));
    let stats = disk.stats();
    assert_eq!((stats.regions_retired, stats.regions_used), (1, before.regions_used - 1));
}

#[test]
fn objects_of_an_unwritable_region_are_reported_gone_one_by_one() {
    let (folder, index) = (folder(), Index::default());
    let (faulty, disk) = open(&folder, &config());
    faulty.by(|asked| if asked.is_read || !of_regions(asked) { Fault::None } else { Fault::Error });
    (0..8).for_each(|number| assert!(store(&disk, &index, number, 1, 3000)));
    assert!(!disk.flush());
    (0..8).for_each(|number| {
        assert_eq!(load(&disk, &index, number), Some(1), "from the buffer still")
    });
    disk.tick(1, &index);
    assert_eq!(lock(&index.gone).len(), 8);
    assert!((0..8).all(|number| load(&disk, &index, number).is_none()));
    let stats = disk.stats();
    assert_eq!((stats.write_errors, stats.regions_retired), (3, 1));
    assert!(disk.close().is_ok(), "nothing is left to be written");
    faulty.by(|_| Fault::None);
}

#[test]
fn failed_writes_are_retried() {
    let (folder, index) = (folder(), Index::default());
    let (faulty, disk) = open(&folder, &config());
    for fault in [Fault::Error, Fault::Short] {
        let mut left = 2;
        faulty.by(move |asked| {
            left -= i32::from(!asked.is_read && asked.len >= 2 * BLOCK);
            if left >= 0 && !asked.is_read && asked.len >= 2 * BLOCK { fault } else { Fault::None }
        });
        (0..10).for_each(|number| assert!(store(&disk, &index, number, 1, 3000)));
        assert!(disk.flush());
        (0..10).for_each(|number| assert_eq!(load(&disk, &index, number), Some(1)));
    }
    assert_eq!(disk.stats().regions_retired, 0);
    assert!(disk.stats().write_errors >= 3);
}

#[test]
fn removals_outlive_the_region_they_were_noted_in() {
    let (folder, index) = (folder(), Index::default());
    let (faulty, disk) = open(&folder, &config());
    (0..5).for_each(|number| assert!(store(&disk, &index, number, 1, 3000)));
    disk.flush();
    disk.forget(index.remove(0).unwrap());
    faulty.by(|asked| if asked.is_read || !of_regions(asked) { Fault::None } else { Fault::Error });
    assert!(!disk.flush());
    faulty.by(|_| Fault::None);
    disk.tick(1, &index);
    assert!(disk.flush());
    drop((disk, faulty));
    let index = Index::default();
    let (disk, _) = Disk::open(&file(&folder), &config(), &mut index.recover()).unwrap();
    let found: Vec<bool> = (0..5).map(|number| load(&disk, &index, number).is_some()).collect();
    assert_eq!(found, [false, true, true, true, true]);
}

#[test]
fn removals_survive_the_retirement_of_the_region_that_records_them() {
    let (folder, index) = (folder(), Index::default());
    let (faulty, disk) = open(&folder, &config());
    (0..5).for_each(|number| assert!(store(&disk, &index, number, 1, 3000)));
    disk.flush();
    disk.forget(index.remove(0).unwrap());
    assert!(store(&disk, &index, 9, 1, 3000));
    disk.flush();
    faulty.by(|asked| if asked.is_read { Fault::Error } else { Fault::None });
    (0..3).for_each(|_| assert_eq!(load(&disk, &index, 9), None));
    faulty.by(|_| Fault::None);
    disk.tick(1, &index);
    assert_eq!(disk.stats().regions_retired, 1);
    assert!(disk.flush());
    drop((disk, faulty));
    let index = Index::default();
    let (disk, _) = Disk::open(&file(&folder), &config(), &mut index.recover()).unwrap();
    assert!(load(&disk, &index, 0).is_none() && load(&disk, &index, 1).is_some());
}

#[test]
fn an_unreadable_footer_list_drops_the_index_entries_of_its_region() {
    let (folder, index) = (folder(), Index::default());
    let (faulty, disk) = open(&folder, &config());
    faulty.by(|asked| if asked.is_read && asked.len == BLOCK { Fault::Flip } else { Fault::None });
    for number in 0..400 {
        assert!(store(&disk, &index, number, 1, 3000));
        disk.tick(1, &index);
    }
    let stats = disk.stats();
    assert!(stats.regions_lost > 5 && stats.regions_lost == stats.regions_evicted);
    assert!(index.place(0).is_none() && lock(&index.places).len() < 300);
    assert_eq!(load(&disk, &index, 399), Some(1));
}

#[test]
fn a_set_that_can_not_be_written_is_no_longer_used() {
    let folder = folder();
    let (faulty, disk) = open(&folder, &config());
    store_small(&disk, 1, 1, 100).unwrap();
    disk.flush();
    store_small(&disk, 1, 2, 100).unwrap();
    faulty.by(|asked| if asked.is_read { Fault::None } else { Fault::Error });
    disk.flush();
    faulty.by(|_| Fault::None);
    assert_eq!(load_small(&disk, 1), None, "the old value must not come back");
    assert_eq!(store_small(&disk, 1, 3, 100), Err(Refused::Unavailable));
    let stats = disk.stats();
    assert_eq!((stats.sets_retired, stats.write_errors), (1, 3));
}

#[test]
fn an_unreadable_set_causes_a_miss_and_is_rewritten() {
    let folder = folder();
    let (faulty, disk) = open(&folder, &config());
    store_small(&disk, 1, 1, 100).unwrap();
    disk.flush();
    for fault in [Fault::Flip, Fault::Error] {
        faulty.by(move |asked| if asked.is_read { fault } else { Fault::None });
        assert_eq!(load_small(&disk, 1), None);
    }
    assert_eq!((disk.stats().checksum_errors, disk.stats().read_errors), (1, 1));
    store_small(&disk, 1, 2, 100).unwrap();
    disk.flush();
    faulty.by(|_| Fault::None);
    assert_eq!(load_small(&disk, 1), Some(2));
}

#[test]
fn a_device_that_refuses_writes_for_a_while_costs_one_region() {
    let (folder, index) = (folder(), Index::default());
    let (faulty, disk) = open(&folder, &config());
    for number in 0..400 {
        assert!(store(&disk, &index, number, 1, 3000));
        disk.tick(1, &index);
    }
    // Too few regions are free now.
    (400..430).for_each(|number| assert!(store(&disk, &index, number, 1, 3000)));
    disk.flush();
    let (total, used) = (disk.stats().regions_total, disk.stats().regions_used);
    faulty.by(|asked| if asked.is_read { Fault::None } else { Fault::Error });
    for _ in 0..5 {
        disk.tick(1, &index);
    }
    assert_eq!(disk.stats().regions_used, used - 1);
    faulty.by(|_| Fault::None);
    disk.tick(1, &index);
    let stats = disk.stats();
    assert_eq!(stats.regions_free + stats.regions_used, total, "{stats:?}");
    assert!(store(&disk, &index, 430, 1, 3000));
}

#[test]
fn removals_that_exceed_the_write_rate_discard_their_sets() {
    let folder = folder();
    let (_, disk) = open(&folder, &config());
    for number in 0..400 {
        let _ = store_small(&disk, number, 1, 100);
        disk.tick(1, &Index::default());
    }
    disk.flush();
    let found = (0..400).filter(|number| load_small(&disk, *number).is_some()).count();
    assert!(found > 100, "{found}");
    (0..4000).for_each(|number| disk.remove_small(hash(&key(number)), &key(number)));
    let stats = disk.stats();
    assert!(stats.small_waiting_bytes <= 3 * config().small_waiting as u64, "{stats:?}");
    assert!((0..400).all(|number| load_small(&disk, number).is_none()));
    disk.close().unwrap();
    drop(disk);
    let (_, disk) = open(&folder, &config());
    assert!((0..400).all(|number| load_small(&disk, number).is_none()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn device_faults_never_return_stale_or_foreign_values(
        seed in any::<u64>(),
        share in 2..40_u64,
        keep in 0..4_u64,
    ) {
        let (folder, index) = (folder(), Index { keep, ..Index::default() });
        let (faulty, disk) = open(&folder, &config());
        faulty.by_chance(seed, share);
        let (mut large, mut small) = ([0; 60], [0; 100]);
        for version in 1..400_u64 {
            let number = hash(&version.to_le_bytes());
            let (one, other) = (number % 60, number % 100);
            // If nothing can be stored, nothing is found.
            if store(&disk, &index, one, version, usize::try_from(number % 7000).unwrap()) {
                large[usize::try_from(one).unwrap()] = version;
            }
            disk.tick(1, &index);
            if store_small(&disk, other, version, 200).is_ok() {
                small[usize::try_from(other).unwrap()] = version;
            }
            let look = (number >> 20) % 60;
            let found = load(&disk, &index, look);
            prop_assert!(found.is_none() || found == Some(large[usize::try_from(look).unwrap()]));
            let found = load_small(&disk, look);
            prop_assert!(found.is_none() || found == Some(small[usize::try_from(look).unwrap()]));
        }
        // It ends, however much fails.
        disk.flush();
    }
}
