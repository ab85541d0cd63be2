//! Files that were cut or changed anywhere: opened or refused, and what is found is what was stored.

use std::fs;

use super::super::*;
use super::testkit::*;
use proptest::prelude::*;

/// A closed tier of 60 large and 100 small objects, some of each in two versions.
fn made() -> (tempfile::TempDir, Vec<u8>) {
    let (folder, index) = (folder(), Index::default());
    let (disk, _) = Disk::open(&file(&folder), &config(), &mut |_| {}).unwrap();
    for number in (0..60).chain(0..20) {
        let version = 1 + u64::from(index.place(number).is_some());
        assert!(store(&disk, &index, number, version, usize::try_from(number * 50).unwrap()));
        disk.tick(1, &index);
    }
    for (number, version) in
        (0..100).map(|number| (number, 1)).chain((0..20).map(|number| (number, 2)))
    {
        while store_small(&disk, number, version, 60) == Err(Refused::Busy) {
            disk.tick(1, &index);
        }
    }
    disk.close().unwrap();
    drop(disk);
    let bytes = fs::read(file(&folder)).unwrap();
    (folder, bytes)
}

/// What can be found must be of its key, and no older than it may be.
fn check(folder: &tempfile::TempDir) -> Option<(usize, usize)> {
    let index = Index::default();
    let opened = Disk::open(&file(folder), &config(), &mut index.recover());
    let (disk, _) = match opened {
        Ok(opened) => opened,
        Err(
            Error::Foreign { .. }
            | Error::Damaged { .. }
            | Error::Version { .. }
            | Error::Geometry { .. },
        ) => return None,
        Err(error) => panic!("{error}"),
    };
    let large = (0..60)
        .filter_map(|number| load(&disk, &index, number))
        .filter(|version| (1..=2).contains(version));
    let large = large.count();
    let small = (0..100).filter_map(|number| {
        let version = load_small(&disk, number)?;
        assert_eq!(version, if number < 20 { 2 } else { 1 });
        Some(())
    });
    let small = small.count();
    // It goes on.
    for number in 0..300 {
        assert!(store(&disk, &index, number, 3, 3000));
        disk.tick(1, &index);
    }
    assert_eq!(load(&disk, &index, 299), Some(3));
    Some((large, small))
}

#[test]
fn what_is_whole_is_found_whole() {
    let (folder, _) = made();
    assert_eq!(check(&folder), Some((60, 100)));
}

#[test]
fn one_damaged_object_is_one_miss() {
    let (folder, mut bytes) = made();
    let key = b"key-40";
    let at = bytes.windows(6).rposition(|found| found == key).expect("a large object's key");
    bytes[at + 20] ^= 4;
    fs::write(file(&folder), &bytes).unwrap();
    assert_eq!(check(&folder), Some((59, 100)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn wherever_bytes_are_changed_nothing_wrong_is_found(
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
    fn wherever_the_file_is_cut_nothing_wrong_is_found(at in any::<prop::sample::Index>()) {
        let (folder, bytes) = made();
        let at = at.index(bytes.len());
        fs::write(file(&folder), &bytes[..at]).unwrap();
        let found = check(&folder);
        prop_assert!(at < 2 * BLOCK || found.is_some());
    }
}
