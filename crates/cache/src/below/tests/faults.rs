//! A failing disk: results are misses, never older values and never another key's.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::disk::testkit::{Asked, Fault, Faulty};

fn open_faulty(folder: &tempfile::TempDir, regions: u64) -> (Arc<Faulty>, Cache) {
    let faulty = Faulty::new(&file(folder));
    let device: Arc<dyn Device> = faulty.clone();
    let cache = open_on(&config(&file(folder), regions, Making::Inline), &device);
    (faulty, cache)
}

#[test]
fn an_unreadable_item_is_a_miss_and_can_be_stored_again() {
    let folder = folder();
    let (faulty, cache) = open_faulty(&folder, 100);
    for number in 0..40 {
        put(&cache, number, 5, if number % 2 == 0 { 3000 } else { 200 });
    }
    push_down(&cache);
    cache.contents().below().expect("it has a disk").disk.flush();
    let (faults, mut misses) = ([Fault::Error, Fault::Short, Fault::Flip], 0);
    for (number, fault) in (0..6).zip(faults.into_iter().cycle()) {
        faulty.by(move |asked: Asked| if asked.is_read { fault } else { Fault::None });
        // The flipped bits may be another object's.
        let found = get(&cache, number);
        assert!(found.is_none() || found == Some(5));
        faulty.by(|_| Fault::None);
        if number % 2 == 0 && found.is_none() {
            assert_eq!(get(&cache, number), None, "an entry that leads to nothing is dropped");
        }
        misses += u64::from(found.is_none());
    }
    assert!(misses >= 4, "{misses}");
    put(&cache, 0, 6, 3000);
    assert_eq!((get(&cache, 0), get(&cache, 30)), (Some(6), Some(5)));
    check_count(&cache);
}

#[test]
fn an_unwritable_item_is_a_miss() {
    let folder = folder();
    let (faulty, cache) = open_faulty(&folder, 40);
    faulty.by(|asked: Asked| if asked.is_read { Fault::None } else { Fault::Error });
    for number in 0..600 {
        put(&cache, number, 5, if number % 2 == 0 { 3000 } else { 200 });
        let back = number / 2;
        assert!(get(&cache, back).is_none_or(|version| version == 5));
    }
    let own = cache.counted().disk.expect("it has a disk").own;
    assert!(own.write_errors > 10 && own.regions_retired > 2, "{own:?}");
    // Memory continues to work.
    put(&cache, 1, 6, 3000);
    assert_eq!(get(&cache, 1), Some(6));
    check_count(&cache);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn disk_faults_never_return_stale_or_foreign_items(
        seed in any::<u64>(),
        share in 2..40_u64,
    ) {
        let folder = folder();
        let (faulty, cache) = open_faulty(&folder, 24);
        faulty.by_chance(seed, share);
        let mut map = HashMap::new();
        for version in 1..1500_u64 {
            let dice = rapidhash::v3::rapidhash_v3(&(seed ^ version).to_le_bytes());
            let number = dice % 300;
            match dice >> 20 & 7 {
                0 => {
                    cache.delete(&key(number));
                    map.remove(&number);
                }
                1..5 => {
                    put(&cache, number, version, (dice >> 30) as usize % 3000);
                    map.insert(number, version);
                }
                _ => {
                    let found = get(&cache, number);
                    prop_assert!(found.is_none() || found == map.get(&number).copied());
                }
            }
        }
        check_count(&cache);
    }
}
