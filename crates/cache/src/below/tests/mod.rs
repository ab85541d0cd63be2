//! The cache with a disk tier: small sizes, so that items are demoted, promoted and evicted all the time.
#![expect(
    clippy::cast_possible_truncation,
    reason = "numbers are small, or a part of them is what is wanted"
)]

mod between;
mod chains;
mod faults;
mod kill;
mod model;
mod restart;
mod soak;
mod use_cases;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::{AfterCrash, Device};
use crate::evict::Eviction;
use crate::store::{Meta, Store};
use crate::testkit::{KB, config, push_down, tiers};
use crate::{Cache, Config, Making};

pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder for the test")
}

pub(crate) fn file(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("cache")
}

pub(crate) fn open(config: &Config) -> Cache {
    Cache::new(config).expect("a small cache on a file of the test")
}

fn open_on(config: &Config, device: &Arc<dyn Device>) -> Cache {
    crate::testkit::on_device(config, device)
}

pub(crate) fn key(number: u64) -> Vec<u8> {
    format!("key-{number}").into_bytes()
}

/// Bytes that contain key and version.
fn value(number: u64, version: u64, len: usize) -> Vec<u8> {
    let word = number << 28 | version;
    let mut out = word.to_le_bytes().to_vec();
    out.extend((8..len.max(8)).map(|at| word.rotate_left(at as u32 * 7).to_le_bytes()[at % 5]));
    out
}

/// The version of a value, if it is whole and this key's.
fn version_of(number: u64, found: &[u8]) -> Option<u64> {
    let word = u64::from_le_bytes(found.get(..8)?.try_into().ok()?);
    let version = word & 0xfff_ffff;
    (found == value(number, version, found.len())).then_some(version)
}

pub(crate) fn meta(version: u64, expires: u32) -> Meta {
    Meta { flags: version as u32, cas: version, expires, ..Meta::default() }
}

/// Stores a version of a key.
pub(crate) fn put(cache: &Cache, number: u64, version: u64, len: usize) {
    let value = value(number, version, len);
    cache.put(&key(number), &value, Some(&meta(version, 0))).expect("there is room");
}

/// The version found; its metadata must match.
pub(crate) fn get(cache: &Cache, number: u64) -> Option<u64> {
    let (mut out, mut length) = (Vec::new(), 0);
    let found = Store::get(cache, &key(number), &mut out, &mut |_, len, _| length = len)?;
    assert_eq!(out.len(), length);
    let version = version_of(number, &out).expect("a whole value of this key");
    assert_eq!((found.flags, found.cas), (version as u32, version));
    Some(version)
}

/// Checks that the number of entries for the disk equals their count.
fn check_count(cache: &Cache) {
    let below = cache.contents().below().expect("it has a disk");
    let counted = below.counted.items.load(core::sync::atomic::Ordering::Relaxed);
    assert_eq!(
        cache.contents().index().sweep(super::is_disk),
        counted,
        "entries that lead to disk"
    );
}
