//! Helpers for tests of the tier: a small index and values that identify themselves.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Mutex;

use super::super::locks::lock;
pub(super) use super::super::testkit::*;
use super::super::words::low32;
use super::super::*;
use crate::Meta;

/// Start of its regions.
pub(super) const REGIONS_AT: u64 = 544 << 10;

/// A tier of 30 regions of 32 KiB and 64 sets.
pub(super) fn config() -> Config {
    Config {
        bytes: REGIONS_AT + 30 * (32 << 10),
        region_bytes: 32 << 10,
        small_bytes: 256 << 10,
        small_max: 600,
        small_waiting: 16 << 10,
        ghosts: 64,
        reinsert_percent: 25,
        after_crash: AfterCrash::Keep,
        ..Config::default()
    }
}

pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder for the test")
}

pub(crate) fn file(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("cache")
}

pub(super) fn hash(key: &[u8]) -> u64 {
    rapidhash::v3::rapidhash_v3(key)
}

pub(super) fn key(number: u64) -> Vec<u8> {
    format!("key-{number}").into_bytes()
}

/// Bytes that follow from key and version.
pub(super) fn value(number: u64, version: u64, len: usize) -> Vec<u8> {
    let mut state = hash(&[number.to_le_bytes(), version.to_le_bytes()].concat());
    let mut out = version.to_le_bytes().to_vec();
    while out.len() < len {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        out.extend((state >> 32).to_le_bytes());
    }
    out.truncate(len.max(8));
    out
}

/// The version of a value, if it is one of this key.
pub(super) fn version_of(number: u64, found: &[u8]) -> Option<u64> {
    let version = u64::from_le_bytes(found.get(..8)?.try_into().ok()?);
    (value(number, version, found.len()) == found).then_some(version)
}

pub(super) fn meta(version: u64) -> Meta {
    Meta { flags: low32(version), cas: version, accessed: 1, ..Meta::default() }
}

/// An index as a map, with a record of callbacks. Objects whose hash is a multiple of `keep` are kept.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) places: Mutex<HashMap<u64, Place>>,
    pub(super) keep: u64,
    pub(super) gone: Mutex<Vec<u64>>,
}

impl Index {
    pub(super) fn place(&self, number: u64) -> Option<Place> {
        lock(&self.places).get(&hash(&key(number))).copied()
    }

    pub(super) fn remove(&self, number: u64) -> Option<Place> {
        lock(&self.places).remove(&hash(&key(number)))
    }

    pub(super) fn recover(&self) -> impl FnMut(&Recovered) {
        |found| assert_eq!(lock(&self.places).insert(found.hash, found.place), None, "told once")
    }
}

impl Keeper for Index {
    fn evicted(&self, hash: u64, place: Place) -> Fate {
        let mut places = lock(&self.places);
        if places.get(&hash) != Some(&place) {
            return Fate::Gone;
        }
        if self.keep > 0 && hash.is_multiple_of(self.keep) {
            return Fate::Keep;
        }
        places.remove(&hash);
        Fate::Gone
    }

    fn moved(&self, hash: u64, from: Place, to: Place) -> bool {
        let mut places = lock(&self.places);
        let is_there = places.get(&hash) == Some(&from);
        if is_there {
            places.insert(hash, to);
        }
        is_there
    }

    fn gone(&self, hash: u64, place: Place) {
        lock(&self.gone).push(hash);
        let mut places = lock(&self.places);
        if places.get(&hash) == Some(&place) {
            places.remove(&hash);
        }
    }

    fn lost(&self, range: Places) {
        lock(&self.places).retain(|_, place| !range.contains(*place));
    }
}

/// Stores a version of a key, and the place of it; ticks if there is no room.
pub(super) fn store(disk: &Disk, index: &Index, number: u64, version: u64, len: usize) -> bool {
    let key = key(number);
    let value = value(number, version, len);
    let object = Object { hash: hash(&key), key: &key, meta: meta(version) };
    // Each tick waits for the device for 10 ms at most: a minute, for one that is slow.
    for _ in 0..6000 {
        // Held because an eviction between append and insertion would miss the place.
        let mut places = lock(&index.places);
        match disk.append(&object, &[&value[..4], &value[4..]]) {
            Ok(place) => {
                places.insert(object.hash, place);
                return true;
            }
            Err(Refused::Busy) => {
                drop(places);
                disk.tick(1, index);
            }
            Err(_) => return false,
        }
    }
    false
}

/// The version of a large object, as the index has it.
pub(super) fn load(disk: &Disk, index: &Index, number: u64) -> Option<u64> {
    let mut out = Vec::new();
    let found = disk.get(index.place(number)?, &key(number), &mut out)?;
    let version = version_of(number, &out).expect("a value of this key");
    assert_eq!(found, meta(version));
    Some(version)
}

pub(super) fn store_small(
    disk: &Disk,
    number: u64,
    version: u64,
    len: usize,
) -> Result<(), Refused> {
    let key = key(number);
    let object = Object { hash: hash(&key), key: &key, meta: meta(version) };
    disk.append_small(&object, &[&value(number, version, len)])
}

pub(super) fn load_small(disk: &Disk, number: u64) -> Option<u64> {
    let (key, mut out) = (key(number), Vec::new());
    let found = disk.get_small(hash(&key), &key, &mut out)?;
    let version = version_of(number, &out).expect("a value of this key");
    assert_eq!(found, meta(version));
    Some(version)
}
