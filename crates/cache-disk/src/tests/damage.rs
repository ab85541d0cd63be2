//! Truncated or modified files: opened or refused, and objects found were stored.

use std::fs;

use super::super::*;
use super::testkit::*;
use proptest::prelude::*;

/// A closed tier of 60 large and 100 small objects, the first 20 of each in two versions, the next 10 of each removed.
fn made() -> (tempfile::TempDir, Vec<u8>) {
    let (folder, index) = (folder(), Index::default());
    let (disk, _) = Disk::open(&file(&folder), &config(), &mut |_| {}).unwrap();
    for number in (0..60).chain(0..20) {
        let before = index.place(number);
        let version = 1 + u64::from(before.is_some());
        assert!(store(&disk, &index, number, version, usize::try_from(number * 50).unwrap()));
        before.into_iter().for_each(|place| disk.forget(place));
        disk.tick(1, &index);
    }
    for (number, version) in
        (0..100).map(|number| (number, 1)).chain((0..20).map(|number| (number, 2)))
    {
        while store_small(&disk, number, version, 60) == Err(Refused::Busy) {
            disk.tick(1, &index);
        }
    }
    for number in 20..30 {
        disk.forget(index.remove(number).unwrap());
        disk.remove_small(hash(&key(number)), &key(number));
    }
    disk.close().unwrap();
    drop(disk);
    let bytes = fs::read(file(&folder)).unwrap();
    (folder, bytes)
}

/// Every value found must be its key's latest.
fn check(folder: &tempfile::TempDir) -> Option<(usize, usize)> {
    let index = Index::default();
    let opened = Disk::open(&file(folder), &config(), &mut index.recover());
    let (disk, _) = match opened {
        Ok(opened) => opened,
        Err(
            Error::Foreign { .. }
            | Error::Unformatted { .. }
            | Error::Version { .. }
            | Error::Geometry { .. },
        ) => return None,
        Err(error) => panic!("{error}"),
    };
    let newest = |number: u64, found: Option<u64>| {
        let version = found?;
        assert!(!(20..30).contains(&number), "{number} was removed, and has version {version}");
        assert_eq!(version, if number < 20 { 2 } else { 1 }, "{number}");
        Some(version)
    };
    let large = (0..60).filter_map(|number| newest(number, load(&disk, &index, number))).count();
    let small = (0..100).filter_map(|number| newest(number, load_small(&disk, number))).count();
    // The tier continues to work.
    for number in 0..300 {
        assert!(store(&disk, &index, number, 3, 3000));
        disk.tick(1, &index);
    }
    assert_eq!(load(&disk, &index, 299), Some(3));
    Some((large, small))
}

#[test]
fn an_undamaged_file_keeps_all_objects() {
    let (folder, _) = made();
    assert_eq!(check(&folder), Some((50, 90)));
}

#[test]
fn one_damaged_object_is_one_miss() {
    let (folder, mut bytes) = made();
    let key = b"key-40";
    let at = bytes.windows(6).rposition(|found| found == key).expect("a large object's key");
    bytes[at + 20] ^= 4;
    fs::write(file(&folder), &bytes).unwrap();
    assert_eq!(check(&folder), Some((49, 90)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn changed_bytes_never_return_a_replaced_or_removed_value(
        places in proptest::collection::vec((any::<prop::sample::Index>(), 1..=255_u8, 1..5000_usize), 1..12),
    ) {
        let (folder, mut bytes) = made();
        for (at, flip, len) in places {
            let at = at.index(bytes.len());
            bytes.iter_mut().skip(at).take(len).for_each(|byte| *byte ^= flip);
        }
        fs::write(file(&folder), &bytes).unwrap();
        check(&folder);
    }

    #[test]
    fn a_truncated_file_never_returns_a_wrong_value(at in any::<prop::sample::Index>()) {
        let (folder, bytes) = made();
        let at = at.index(bytes.len());
        fs::write(file(&folder), &bytes[..at]).unwrap();
        let found = check(&folder);
        prop_assert!(at < 2 * BLOCK || found.is_some());
    }
}

#[test]
fn a_damaged_footer_drops_the_older_regions_and_keeps_the_newer() {
    let (folder, whole) = made();
    let magic = b"nfregion";
    let footers: Vec<usize> = (0..whole.len()).step_by(BLOCK).collect();
    let footers: Vec<usize> =
        footers.into_iter().filter(|at| whole[*at..].starts_with(magic)).collect();
    assert!(footers.len() >= 4, "{footers:?}");
    let mut found = Vec::new();
    for at in footers {
        let mut bytes = whole.clone();
        bytes[at + 16] ^= 1;
        fs::write(file(&folder), &bytes).unwrap();
        found.push(check(&folder).expect("a cache still").0);
    }
    // Of the newest region no object is left, of the oldest all except its own.
    assert!(found.windows(2).all(|two| two[0] >= two[1]), "{found:?}");
    assert!(found[0] > 10 && found.last() == Some(&0), "{found:?}");
}

#[test]
fn a_stale_set_is_detected_after_a_lost_write() {
    let folder = folder();
    let open = || Disk::open(&file(&folder), &config(), &mut |_| {}).unwrap().0;
    let disk = open();
    (0..100).for_each(|number| store_small(&disk, number, 1, 60).unwrap());
    disk.close().unwrap();
    drop(disk);
    let before = fs::read(file(&folder)).unwrap();
    let disk = open();
    for number in 0..100 {
        if number < 50 {
            store_small(&disk, number, 2, 60).unwrap();
        } else {
            disk.remove_small(hash(&key(number)), &key(number));
        }
    }
    disk.close().unwrap();
    drop(disk);
    // The device lost the last write of every set.
    let mut bytes = fs::read(file(&folder)).unwrap();
    let sets = (260 << 10)..(516 << 10);
    assert_ne!(bytes[sets.clone()], before[sets.clone()]);
    bytes[sets.clone()].copy_from_slice(&before[sets]);
    fs::write(file(&folder), &bytes).unwrap();
    let disk = open();
    assert!((0..100).all(|number| load_small(&disk, number).is_none()));
}

#[test]
fn a_damaged_superblock_does_not_undo_a_clear() {
    for damaged in [0, BLOCK] {
        let (folder, index) = (folder(), Index::default());
        let (disk, _) = Disk::open(&file(&folder), &config(), &mut |_| {}).unwrap();
        (0..20).for_each(|number| assert!(store(&disk, &index, number, 1, 3000)));
        store_small(&disk, 99, 1, 60).unwrap();
        assert!(disk.flush());
        disk.clear().unwrap();
        drop(disk);
        let mut bytes = fs::read(file(&folder)).unwrap();
        bytes[damaged + 24] ^= 1;
        fs::write(file(&folder), &bytes).unwrap();
        let index = Index::default();
        let (disk, opened) = Disk::open(&file(&folder), &config(), &mut index.recover()).unwrap();
        assert_eq!((opened.is_new, opened.objects, load_small(&disk, 99)), (false, 0, None));
    }
}
