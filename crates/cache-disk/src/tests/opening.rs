//! Devices and configurations that are opened, and those that are refused.

use std::fs;

use super::super::*;
use super::testkit::*;

fn open(path: &std::path::Path, config: &Config) -> Result<(Disk, Opened), Error> {
    Disk::open(path, config, &mut |_| {})
}

#[test]
fn other_sizes_are_refused_by_name() {
    let folder = folder();
    let path = file(&folder);
    drop(open(&path, &config()).unwrap());
    let others = [
        (Config { region_bytes: 16 << 10, ..config() }, "region_bytes 32768"),
        (Config { bytes: config().bytes + 4096, ..config() }, "bytes 1540096"),
        (Config { small_bytes: 8 << 10, ..config() }, "small_bytes 262144"),
    ];
    for (config, part) in others {
        let error = open(&path, &config).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains("--disk-format"), "{error}");
    }
    assert!(open(&path, &config()).is_ok());
    let other = Config { small_bytes: 8 << 10, format: true, ..config() };
    assert!(open(&path, &other).unwrap().1.is_new);
}

#[test]
fn an_unknown_version_is_distinguished_from_damaged_superblocks() {
    let folder = folder();
    let path = file(&folder);
    drop(open(&path, &config()).unwrap());
    let whole = fs::read(&path).unwrap();
    let mut other = whole.clone();
    for at in [0, BLOCK] {
        other[at + 12] = 9;
        let sum = crc32c::crc32c(&other[at + 12..at + 80]).to_le_bytes();
        other[at + 8..at + 12].copy_from_slice(&sum);
    }
    fs::write(&path, &other).unwrap();
    let error = open(&path, &config()).unwrap_err();
    assert!(matches!(error, Error::Version { found: 9, .. }), "{error}");
    let mut damaged = whole.clone();
    damaged[40] ^= 1;
    fs::write(&path, &damaged).unwrap();
    assert!(open(&path, &config()).is_ok(), "one of two is enough");
    let mut damaged = whole;
    (damaged[40], damaged[BLOCK + 40]) = (damaged[40] ^ 1, damaged[BLOCK + 40] ^ 1);
    fs::write(&path, &damaged).unwrap();
    let error = open(&path, &Config { format: true, ..config() }).unwrap_err().to_string();
    assert!(error.contains("a cache of nearfar that is damaged at byte 0"), "{error}");
}

#[test]
fn a_tier_can_be_opened_only_once_at_a_time() {
    let folder = folder();
    let path = file(&folder);
    let disk = open(&path, &config()).unwrap();
    assert!(matches!(open(&path, &config()), Err(Error::InUse { .. })));
    drop(disk);
    assert!(open(&path, &config()).is_ok());
}

#[test]
fn insufficient_disk_space_leaves_no_file() {
    let folder = folder();
    let path = file(&folder);
    let huge = Config { bytes: 4 << 40, ..Config::default() };
    let error = open(&path, &huge).unwrap_err();
    assert!(matches!(error, Error::Full { bytes, .. } if bytes == 4 << 40), "{error}");
    assert!(!path.exists(), "a file that was made for it goes again");
    assert!(open(&path, &config()).is_ok());
}

#[test]
fn after_a_crash_objects_are_kept_or_discarded_as_configured() {
    for (after_crash, closes, found) in [
        (AfterCrash::Keep, false, true),
        (AfterCrash::Discard, false, false),
        (AfterCrash::Discard, true, true),
    ] {
        let (folder, index) = (folder(), Index::default());
        let config = Config { after_crash, ..config() };
        let (disk, _) = open(&file(&folder), &config).unwrap();
        assert!(store(&disk, &index, 1, 5, 100));
        store_small(&disk, 2, 6, 100).unwrap();
        assert!(disk.flush());
        if closes {
            disk.close().unwrap();
            assert_eq!(store_small(&disk, 3, 6, 100), Err(Refused::Closed));
            assert!(!store(&disk, &index, 3, 6, 100));
        }
        drop(disk);
        let index = Index::default();
        let (disk, opened) = Disk::open(&file(&folder), &config, &mut index.recover()).unwrap();
        assert_eq!((opened.discarded, opened.objects > 0), (!found, found));
        assert_eq!(load(&disk, &index, 1), found.then_some(5));
        assert_eq!(load_small(&disk, 2), found.then_some(6));
    }
}

#[test]
fn flushed_removals_and_replacements_survive_a_crash() {
    let (folder, index) = (folder(), Index::default());
    let (disk, _) = open(&file(&folder), &config()).unwrap();
    for number in 0..30 {
        assert!(store(&disk, &index, number, 1, 3000));
    }
    disk.flush();
    (0..10).for_each(|number| disk.forget(index.remove(number).unwrap()));
    for number in 10..20 {
        assert!(store(&disk, &index, number, 2, 3000));
    }
    disk.flush();
    drop(disk);
    let index = Index::default();
    let (disk, opened) = Disk::open(&file(&folder), &config(), &mut index.recover()).unwrap();
    assert_eq!(opened.objects, 20);
    for number in 0..30 {
        let expected = [None, Some(2), Some(1)][usize::try_from(number / 10).unwrap()];
        assert_eq!(load(&disk, &index, number), expected, "{number}");
    }
}

#[test]
fn the_device_access_method_is_reported() {
    let folder = folder();
    let plain = Config { access: Access::Plain, ..config() };
    let (disk, _) = open(&file(&folder), &plain).unwrap();
    assert!(disk.how().starts_with("plain calls, "), "{}", disk.how());
    drop(disk);
    let (disk, _) = open(&file(&folder), &config()).unwrap();
    println!("{}", disk.how());
    assert!(disk.how().contains(" in steps of "), "{}", disk.how());
}
