//! Closing writes every removal, despite any obstacle, or fails and leaves the tier open.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::super::locks::lock;
use super::super::*;
use super::testkit::*;

fn config() -> Config {
    Config { after_crash: AfterCrash::Discard, least_hits: 0, ..super::testkit::config() }
}

/// Appends without ticks until it is refused. With `waits` it waits for buffers and fills all regions, otherwise all buffers.
fn fill(disk: &Disk, waits: bool) -> Vec<(u64, Place)> {
    let mut stored = Vec::new();
    for number in 0..10_000 {
        let (key, value) = (key(number), value(number, 1, 3000));
        let object = Object { hash: hash(&key), key: &key, meta: meta(1) };
        let mut tries = if waits { 1000 } else { 0 };
        let place = loop {
            match disk.append(&object, &[&value]) {
                Ok(place) => break place,
                Err(_) if tries == 0 => return stored,
                Err(_) => {
                    tries -= 1;
                    disk.wait_for_buffer();
                }
            }
        };
        stored.push((number, place));
    }
    panic!("10000 objects are more than the regions hold");
}

/// Forgets the last `count` objects.
fn forget(disk: &Disk, stored: &[(u64, Place)], count: usize) -> BTreeSet<u64> {
    let last = stored.iter().rev().take(count);
    last.map(|(number, place)| {
        disk.forget(*place);
        hash(&key(*number))
    })
    .collect()
}

/// Hashes found when it is opened again.
fn found(path: &Path) -> (BTreeSet<u64>, Opened) {
    let mut found = BTreeSet::new();
    let (_, opened) = Disk::open(path, &config(), &mut |one| {
        found.insert(one.hash);
    })
    .unwrap();
    (found, opened)
}

#[test]
fn removals_made_while_all_regions_are_full_survive_a_close() {
    for access in [Access::Auto, Access::Plain] {
        let folder = folder();
        let config = Config { access, ..config() };
        let (disk, _) = Disk::open(&file(&folder), &config, &mut |_| {}).unwrap();
        let stored = fill(&disk, true);
        assert_eq!(disk.stats().regions_free, 0);
        let gone = forget(&disk, &stored, 50);
        disk.close().unwrap();
        drop(disk);
        let (found, opened) = found(&file(&folder));
        assert!(opened.was_closed && !opened.discarded && found.len() > 100, "{opened:?}");
        assert_eq!(found.intersection(&gone).count(), 0);
    }
}

/// On a device that is slower than its callers.
#[test]
fn removals_made_while_all_buffers_are_being_written_survive_a_close() {
    let folder = folder();
    let faulty = Faulty::new(&file(&folder));
    let device: Arc<dyn Device> = faulty.clone();
    let (disk, _) = Disk::open_on(&device, &file(&folder), &config(), &mut |_| {}).unwrap();
    faulty.stall(usize::MAX);
    let stored = fill(&disk, false);
    assert!(disk.stats().regions_free > 20);
    let gone = forget(&disk, &stored, stored.len() / 2);
    faulty.stall(100);
    disk.close().unwrap();
    drop((disk, device, faulty));
    let (found, opened) = found(&file(&folder));
    assert!(opened.was_closed && found.len() == stored.len() - gone.len(), "{opened:?}");
    assert_eq!(found.intersection(&gone).count(), 0);
}

#[test]
fn more_removals_than_one_region_holds_are_all_written() {
    let folder = folder();
    let config = Config { region_bytes: 16 << 10, ..config() };
    let (disk, _) = Disk::open(&file(&folder), &config, &mut |_| {}).unwrap();
    let mut gone = BTreeSet::new();
    for round in 0..2 {
        let mut stored = Vec::new();
        for number in 0..4000 {
            let key = key(number + round * 10_000);
            let object = Object { hash: hash(&key), key: &key, meta: meta(1) };
            while let Err(Refused::Busy) =
                disk.append(&object, &[]).map(|place| stored.push((object.hash, place)))
            {
                disk.wait_for_buffer();
                if disk.stats().regions_free == 0 {
                    break;
                }
            }
        }
        for (hash, place) in stored {
            disk.forget(place);
            gone.insert(hash);
        }
    }
    assert!(gone.len() > 3000, "{}", gone.len());
    disk.close().unwrap();
    drop(disk);
    let mut back = 0;
    Disk::open(&file(&folder), &config, &mut |one| back += u64::from(gone.contains(&one.hash)))
        .unwrap();
    assert_eq!(back, 0);
}

#[test]
fn any_failed_write_fails_close_and_no_removed_object_reappears() {
    let mut failed = 0;
    for written in 0.. {
        let (folder, index) = (folder(), Index::default());
        let faulty = Faulty::new(&file(&folder));
        let device: Arc<dyn Device> = faulty.clone();
        let open = |found: &mut dyn FnMut(&Recovered)| {
            Disk::open_on(&device, &file(&folder), &config(), found).unwrap()
        };
        let (disk, _) = open(&mut |_| {});
        (0..20).for_each(|number| assert!(store(&disk, &index, number, 1, 3000)));
        store_small(&disk, 99, 1, 60).unwrap();
        assert!(disk.flush());
        disk.remove_small(hash(&key(99)), &key(99));
        (0..5).for_each(|number| disk.forget(index.remove(number).unwrap()));
        let mut left = written;
        faulty.by(move |asked| {
            left -= i32::from(!asked.is_read);
            if asked.is_read || left >= 0 { Fault::None } else { Fault::Error }
        });
        let closed = disk.close();
        faulty.by(|_| Fault::None);
        // As if the process had ended at that moment.
        let mut found = BTreeSet::new();
        let (again, opened) = open(&mut |one| found.extend([one.hash]));
        assert!((0..5).all(|number| !found.contains(&hash(&key(number)))), "{written}");
        assert_eq!(load_small(&again, 99), None, "{written}");
        if closed.is_ok() {
            assert!(opened.was_closed && found.len() == 15);
            break;
        }
        failed += 1;
    }
    assert!(failed >= 5, "a list, a set, the table, two superblocks: {failed}");
}

#[test]
fn a_tier_that_could_not_be_closed_can_be_closed_later() {
    let (folder, index) = (folder(), Index::default());
    let faulty = Faulty::new(&file(&folder));
    let device: Arc<dyn Device> = faulty.clone();
    let (disk, _) = Disk::open_on(&device, &file(&folder), &config(), &mut |_| {}).unwrap();
    (0..20).for_each(|number| assert!(store(&disk, &index, number, 1, 3000)));
    assert!(disk.flush());
    disk.forget(index.remove(3).unwrap());
    faulty.by(|asked| if asked.is_read { Fault::None } else { Fault::Error });
    assert!(disk.close().is_err());
    faulty.by(|_| Fault::None);
    assert!(store(&disk, &index, 30, 1, 3000), "it takes objects again");
    disk.close().unwrap();
    assert_eq!(lock(&index.places).len(), 20);
    drop((disk, device, faulty));
    let (found, opened) = found(&file(&folder));
    assert!(opened.was_closed);
    assert!(!found.contains(&hash(&key(3))) && found.contains(&hash(&key(30))));
}
