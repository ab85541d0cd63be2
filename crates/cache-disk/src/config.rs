//! Configuration of the disk tier, and its layout on the device.
//!
//! ```text
//! 0         two superblocks of 4 KiB
//! 8 KiB     zeros: formatting the device for another use leaves a label here, so that it is not taken for a cache any more
//! 256 KiB   the table of regions and sets, written by a clean close: `table.rs`
//! then      sets of 4 KiB for small objects, if any
//! then      regions for large objects, from a multiple of 1 MiB (or of the region, if that is smaller)
//! ```

use super::buffer::BLOCK;
use super::error::Error;
use super::place::{REACH, UNIT};
use super::words::{narrow, size, wide};

const MIB: usize = 1 << 20;
const GIB: u64 = 1 << 30;
/// Regions begin at a multiple of this.
const REGIONS_ALIGN: u64 = 1 << 20;

/// Interface to the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// io_uring if the kernel permits it, else system calls.
    #[default]
    Auto,
    /// System calls only; submitting threads wait for completion.
    Plain,
}

/// Whether the objects of a tier that was not closed cleanly are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterCrash {
    /// They are discarded: the last removals and replacements were not written, so any of them may be outdated.
    #[default]
    Discard,
    /// Written objects are kept. Values that were removed or replaced since the last flush may reappear; after a power failure,
    /// or if the device failed, older values too, but none from before the last `clear`.
    Keep,
}

/// Configuration of the disk tier. All sizes are bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Total bytes of the file or device.
    pub bytes: u64,
    /// A region for large objects: the unit of writing and eviction. A multiple of 4 KiB, at most 1 GiB.
    pub region_bytes: usize,
    /// Part of `bytes` for small objects; 0: none.
    pub small_bytes: u64,
    /// Maximum bytes of key and value of a small object; at most 2048.
    pub small_max: usize,
    /// Memory in which small objects wait for others of their set.
    pub small_waiting: usize,
    /// Sets with fewer waiting objects than this are not written; their objects are dropped when memory is needed,
    /// unless they replace others in the set. With 1 nothing is dropped.
    pub small_least: u16,
    /// Regions that are filled concurrently; a key's hash selects one. At least 1.
    pub lanes: usize,
    /// Regions that may be in flight to the device; each takes `region_bytes` of memory, as does each lane. At least 1.
    pub writing: usize,
    /// Number of free regions that a tick's eviction restores. At least 1.
    pub free_regions: usize,
    /// Maximum share of an evicted region that is reinserted, in percent, for objects that the index keeps; they are
    /// written once more. At most 50.
    pub reinsert_percent: u8,
    /// A region or set with this many errors is retired. At least 1.
    pub errors_max: u32,
    /// Maximum bytes written to the device in 24 hours; 0: no limit.
    pub budget_per_day: u64,
    /// Least uses of an admitted object while the budget is ample.
    pub least_hits: u32,
    /// Number of remembered keys that were refused; they count as used when offered again. Rounded up to a power of
    /// two.
    pub ghosts: usize,
    /// Interface to the device.
    pub access: Access,
    /// Whether objects found after a crash are used.
    pub after_crash: AfterCrash,
    /// Whether a device or a non-empty file may be overwritten if it has no cache, or one of other sizes. It is refused
    /// nevertheless if its first or last MiB holds foreign data.
    pub format: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            bytes: 16 * GIB,
            region_bytes: 16 * MIB,
            small_bytes: GIB,
            small_max: 1024,
            small_waiting: 16 * MIB,
            small_least: 1,
            lanes: 1,
            writing: 2,
            free_regions: 2,
            reinsert_percent: 7,
            errors_max: 3,
            budget_per_day: 0,
            least_hits: 1,
            ghosts: 1 << 16,
            access: Access::Auto,
            after_crash: AfterCrash::Discard,
            format: false,
        }
    }
}

/// Layout on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) bytes: u64,
    pub(super) region_bytes: usize,
    pub(super) regions: u32,
    pub(super) regions_at: u64,
    pub(super) sets_at: u64,
    pub(super) sets: u32,
}

/// Start of the table: beyond the labels of other formats.
pub(super) const TABLE_AT: u64 = 256 << 10;

/// Bytes of a region in the table, and of a set.
pub(super) const REGION: usize = 12;
pub(super) const SET: usize = 4;

/// Bytes of a table of `regions` regions and `sets` sets.
pub(super) const fn table_bytes(regions: u64, sets: u64) -> u64 {
    (regions * wide(REGION) + sets * wide(SET)).next_multiple_of(wide(BLOCK))
}

impl Geometry {
    pub(super) fn new(config: &Config) -> Result<Self, Error> {
        check(config)?;
        let sets = config.small_bytes / wide(BLOCK);
        let (sets_at, regions_at) = starts(config.bytes, sets, wide(config.region_bytes));
        let left = config.bytes.saturating_sub(regions_at);
        let regions = left / wide(config.region_bytes);
        if regions < least_regions(config) {
            let (region, least) = (config.region_bytes >> 10, least_bytes(config) / wide(MIB));
            return Err(Error::Config(format!(
                "a disk of {} bytes is too small: with regions of {region} KiB the smallest has {least} MiB",
                config.bytes
            )));
        }
        if left > REACH {
            return Err(Error::Config(format!(
                "{left} bytes for large objects, places reach {REACH}: use several tiers"
            )));
        }
        Ok(Self {
            bytes: config.bytes,
            region_bytes: config.region_bytes,
            regions: narrow(size(regions)),
            regions_at,
            sets_at,
            sets: narrow(size(sets)),
        })
    }

    /// Address of a region on the device.
    pub(super) fn region_at(&self, region: u32) -> u64 {
        self.regions_at + u64::from(region) * wide(self.region_bytes)
    }

    /// Units per region.
    pub(super) fn units(&self) -> u64 {
        wide(self.region_bytes / UNIT)
    }
}

/// Starts of the sets and of the regions on a device of `bytes`, with this number of sets and bytes of a region.
fn starts(bytes: u64, sets: u64, region: u64) -> (u64, u64) {
    let sets_at = TABLE_AT + table_bytes(bytes / region, sets);
    (sets_at, (sets_at + sets * wide(BLOCK)).next_multiple_of(REGIONS_ALIGN.min(region)))
}

fn least_regions(config: &Config) -> u64 {
    wide(config.lanes + config.writing + config.free_regions + 1)
}

/// The smallest size, in whole MiB, with the same share for small objects.
fn least_bytes(config: &Config) -> u64 {
    let region = wide(config.region_bytes);
    let regions = least_regions(config) * region;
    // The share was rounded down to whole sets.
    let small = u128::from(config.small_bytes + wide(BLOCK) - 1);
    let is_enough = |bytes: &u64| {
        let small = small * u128::from(*bytes) / u128::from(config.bytes.max(1));
        let sets = u64::try_from(small).unwrap_or(u64::MAX).min(*bytes) / wide(BLOCK);
        starts(*bytes, sets, region).1.saturating_add(regions) <= *bytes
    };
    let first = regions.next_multiple_of(wide(MIB));
    (0..1 << 16).map(|more| first + more * wide(MIB)).find(is_enough).unwrap_or(u64::MAX)
}

fn check(config: &Config) -> Result<(), Error> {
    let region = config.region_bytes;
    let found = if region < 4 * BLOCK || wide(region) > GIB || !region.is_multiple_of(BLOCK) {
        format!("region_bytes = {region}, must be a multiple of 4096 from 16384 to 1 GiB")
    } else if config.small_max > 2048 {
        format!("small_max = {}, at most 2048", config.small_max)
    } else if config.small_bytes / wide(BLOCK) > u64::from(u32::MAX) {
        format!("small_bytes = {}, at most 16 TiB", config.small_bytes)
    } else if config.small_bytes > config.bytes {
        format!("small_bytes = {}, more than bytes = {}", config.small_bytes, config.bytes)
    } else if config.lanes == 0 || config.writing == 0 || config.free_regions == 0 {
        String::from("lanes, writing and free_regions must be at least 1")
    } else if config.lanes > 1024 || config.writing > 1024 || config.free_regions > 1 << 20 {
        String::from("lanes and writing may be 1024 at most, free_regions 1048576")
    } else if config.errors_max == 0 || config.small_least == 0 {
        String::from("errors_max and small_least must be at least 1")
    } else if config.reinsert_percent > 50 {
        format!("reinsert_percent = {}, at most 50", config.reinsert_percent)
    } else if config.ghosts > 1 << 28 {
        format!("ghosts = {}, at most 268435456", config.ghosts)
    } else {
        return Ok(());
    };
    Err(Error::Config(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Config {
        Config { bytes: 4 << 20, region_bytes: 64 << 10, small_bytes: 1 << 20, ..Config::default() }
    }

    #[test]
    fn parts_of_the_disk_are_contiguous_and_the_defaults_are_valid() {
        let found = Geometry::new(&small()).unwrap();
        assert_eq!((found.sets, found.regions_at), (256, (1 << 20) + (320 << 10)));
        assert_eq!(found.regions, 43);
        assert!(found.region_at(found.regions) <= found.bytes);
        assert!(Geometry::new(&Config::default()).is_ok());
    }

    #[test]
    fn the_reported_minimum_size_is_sufficient_and_necessary() {
        for (region_bytes, parts) in [(16 * MIB, 16), (16 * MIB, 2), (64 << 10, 16), (256 << 20, 3)]
        {
            let of = |bytes: u64| Config {
                bytes,
                small_bytes: bytes / parts / wide(BLOCK) * wide(BLOCK),
                region_bytes,
                ..Config::default()
            };
            let least = least_bytes(&of(64 << 20));
            assert!(Geometry::new(&of(least)).is_ok(), "{region_bytes}, {parts}: {least}");
            let less = least.saturating_sub(2 * wide(MIB));
            assert!(Geometry::new(&of(less)).is_err(), "{region_bytes}, {parts}: {less}");
            assert!(Geometry::new(&of(least_bytes(&of(5 << 20)))).is_ok());
        }
    }

    #[test]
    fn invalid_settings_are_reported_with_their_values() {
        let wrong = [
            (Config { region_bytes: 5000, ..small() }, "region_bytes = 5000"),
            (Config { bytes: 1 << 19, ..small() }, "more than bytes"),
            (
                Config { bytes: 1 << 20, small_bytes: 0, region_bytes: 1 << 20, ..small() },
                "the smallest has 7 MiB",
            ),
            (Config { lanes: 0, ..small() }, "lanes"),
            (Config { small_max: 4000, ..small() }, "small_max = 4000"),
            (Config { errors_max: 0, ..small() }, "errors_max"),
            (Config { reinsert_percent: 51, ..small() }, "reinsert_percent = 51"),
            (Config { bytes: REACH * 2, region_bytes: 1 << 30, ..small() }, "places reach"),
        ];
        for (config, part) in wrong {
            let text = Geometry::new(&config).unwrap_err().to_string();
            assert!(text.contains(part), "{text}");
        }
    }
}
