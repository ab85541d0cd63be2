//! The cache with a disk below its memory: small sizes, so that items go down, come back and are evicted all the time.
#![expect(
    clippy::cast_possible_truncation,
    reason = "numbers are small, or a part of them is what is wanted"
)]

mod between;
mod chains;
mod faults;
mod kill;
mod model;
#[cfg(feature = "serve")]
mod pipelines;
mod restart;
mod soak;
mod use_cases;

use std::path::Path;
use std::sync::Arc;

use crate::disk::tests::testkit::{file, folder};
use crate::disk::{self, Access, Device};
use crate::evict::Eviction;
use crate::store::{Meta, Store};
use crate::tests::{KB, tiers};
use crate::{Cache, Config, DiskTier, Making};

/// 256 KiB of memory over so many regions of 32 KiB and 256 sets; everything is let in.
pub(crate) fn config(path: &Path, regions: u64, making: Making) -> Config {
    // Plain calls are done when they return, so that nothing hangs on how fast the device is.
    let access = if making == Making::Inline { Access::Plain } else { Access::Auto };
    let own = disk::Config {
        access,
        bytes: (8 << 10) + (1 << 20) + (24 << 10) + regions * (32 << 10),
        region_bytes: 32 << 10,
        small_bytes: 1 << 20,
        small_max: 400,
        small_waiting: 64 << 10,
        least_hits: 0,
        writing: 8,
        free_regions: 6,
        ghosts: 1024,
        reinsert_percent: 25,
        ..disk::Config::default()
    };
    let below = DiskTier { path: path.to_path_buf(), config: own, clock_zero: 1000 };
    Config { disk: Some(below), ..tiers(&[256 * KB], Eviction::S3Fifo, making) }
}

pub(super) fn open(config: &Config) -> Cache {
    Cache::new(config).expect("a small cache on a file of the test")
}

fn open_on(config: &Config, device: &Arc<dyn Device>) -> Cache {
    Cache::with_device(config, Some(device)).expect("a small cache on the test's device")
}

pub(super) fn key(number: u64) -> Vec<u8> {
    format!("key-{number}").into_bytes()
}

/// Bytes that tell key and version.
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

pub(super) fn meta(version: u64, expires: u32) -> Meta {
    Meta { flags: version as u32, cas: version, expires, ..Meta::default() }
}

/// Stores a version of a key.
pub(super) fn put(cache: &Cache, number: u64, version: u64, len: usize) {
    let value = value(number, version, len);
    cache.put(&key(number), &value, Some(&meta(version, 0))).expect("there is room");
}

/// The version that is found; what is kept besides must be its own.
pub(super) fn get(cache: &Cache, number: u64) -> Option<u64> {
    let (mut out, mut length) = (Vec::new(), 0);
    let found = Store::get(cache, &key(number), &mut out, &mut |_, len, _| length = len)?;
    assert_eq!(out.len(), length);
    let version = version_of(number, &out).expect("a whole value of this key");
    assert_eq!((found.flags, found.cas), (version as u32, version));
    Some(version)
}

/// Has all items leave memory.
pub(crate) fn push_down(cache: &Cache) {
    let mut key = Vec::new();
    for tier in 0..cache.spaces.len() {
        for class in 0..cache.sizes.count() {
            while cache.make_room(tier, class, &mut key) {
                cache.tick_disk();
            }
        }
    }
    let items: u64 = cache.counted().tiers.iter().map(|tier| tier.items).sum();
    assert_eq!(items, 0, "left in memory");
}

/// Entries that lead to disk are as many as are counted.
fn check_count(cache: &Cache) {
    let below = cache.below.as_ref().expect("it has a disk");
    let counted = below.counted.items.load(core::sync::atomic::Ordering::Relaxed);
    assert_eq!(cache.index.sweep(super::is_disk), counted, "entries that lead to disk");
}
