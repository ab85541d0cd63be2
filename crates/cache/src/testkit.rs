//! For tests of the cache and of its users: small caches, and the moves that they need at a certain time.

use std::path::Path;
use std::sync::Arc;

use nearfar_kernel::mempolicy::Policy;

use crate::copy::Copying;
use crate::disk::{self, Access, AfterCrash, Device};
use crate::evict::Eviction;
use crate::{Cache, Config, DiskTier, Making, PageSize, Tier};

/// A kibibyte.
pub const KB: u64 = 1 << 10;

/// Tiers of these sizes, with small slabs.
#[must_use]
pub fn tiers(bytes: &[u64], eviction: Eviction, making: Making) -> Config {
    let tier = |bytes: &u64| Tier { bytes: *bytes, policy: Policy::Default, eviction };
    Config {
        tiers: bytes.iter().map(tier).collect(),
        disk: None,
        items: Some(20_000),
        slab: Some(64 << 10),
        item_max: None,
        pages: PageSize::Base,
        making,
        copying: Copying::Cpu,
    }
}

/// 256 KiB of memory over this many regions of 32 KiB and 256 sets; every object is admitted.
#[must_use]
pub fn config(path: &Path, regions: u64, making: Making) -> Config {
    // System calls are complete when they return, so that nothing depends on the speed of the device.
    let access = if making == Making::Inline { Access::Plain } else { Access::Auto };
    let own = disk::Config {
        access,
        bytes: (288 << 10) + (1 << 20) + regions * (32 << 10),
        region_bytes: 32 << 10,
        small_bytes: 1 << 20,
        small_max: 400,
        small_waiting: 64 << 10,
        least_hits: 0,
        writing: 8,
        free_regions: 6,
        ghosts: 1024,
        reinsert_percent: 25,
        after_crash: AfterCrash::Keep,
        ..disk::Config::default()
    };
    let below = DiskTier { path: path.to_path_buf(), config: own, clock_zero: 1000 };
    Config { disk: Some(below), ..tiers(&[256 * KB], Eviction::S3Fifo, making) }
}

/// A cache with a disk tier on this device; the path of [`Config::disk`] is only what errors call it.
///
/// # Panics
/// If it can't be opened.
#[must_use]
pub fn on_device(config: &Config, device: &Arc<dyn Device>) -> Cache {
    Cache::with_device(config, Some(device)).expect("a small cache on the test's device")
}

/// Has all items leave memory.
///
/// # Panics
/// If some stay.
pub fn push_down(cache: &Cache) {
    let mut key = Vec::new();
    for tier in 0..cache.contents().spaces().len() {
        for class in 0..cache.contents().sizes().count() {
            while cache.placement().make_room(tier, class, &mut key) {
                cache.tick_disk();
            }
        }
    }
    let items: u64 = cache.counted().tiers.iter().map(|tier| tier.items).sum();
    assert_eq!(items, 0, "left in memory");
}

/// Has the disk tier write all that is waiting.
pub fn flush(cache: &Cache) {
    while cache.contents().below().is_some_and(|below| !below.disk.flush()) {
        cache.tick_disk();
    }
}
