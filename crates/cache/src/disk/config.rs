//! How large the parts of the tier are, and where they lie on the device.
//!
//! ```text
//! 0         two superblocks of 4 KiB
//! 8 KiB     sets of 4 KiB for small objects, if any
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

/// How the device is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// By io_uring, where the kernel lets us, else by plain calls.
    #[default]
    Auto,
    /// By plain calls only; those who submit wait until it is done.
    Plain,
}

/// What is taken over from a tier that was not closed in good order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recover {
    /// Everything whose region was written. Removals and changes of the last moments are not known then: an older value of a
    /// key may come back. For callers that can do with it, or that check values by other means.
    #[default]
    Always,
    /// Nothing: only a tier that was closed in good order is taken over.
    Closed,
}

/// How the tier is made. All sizes are bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The file or device in all.
    pub bytes: u64,
    /// A region for large objects: what is written, and evicted, at once. A multiple of 4 KiB, at most 1 GiB.
    pub region_bytes: usize,
    /// What of `bytes` is for small objects; 0 is none.
    pub small_bytes: u64,
    /// Key and value of a small object have at most so many bytes; at most 2048.
    pub small_max: usize,
    /// Memory in which small objects wait for others of their set.
    pub small_waiting: usize,
    /// Sets for which fewer objects than this wait are not written; their objects are dropped when memory is needed, unless they
    /// replace what the set holds. With 1 nothing is dropped.
    pub small_least: u16,
    /// Regions that are filled at the same time, each by those keys whose hash says so. At least 1.
    pub lanes: usize,
    /// Regions that may be on their way to the device; each takes `region_bytes` of memory, as does each lane. At least 1.
    pub writing: usize,
    /// A tick evicts until so many regions are free. At least 1.
    pub free_regions: usize,
    /// Of a region that is evicted, so many percent may be put in again, if the index keeps it: that is written once more. At
    /// most 50.
    pub reinsert_percent: u8,
    /// A region or set with so many errors is no longer used. At least 1.
    pub errors_max: u32,
    /// Bytes that may be written to the device in 24 hours; 0 is no limit.
    pub budget_per_day: u64,
    /// How often an object must have been used to be admitted while there is plenty of budget.
    pub least_hits: u32,
    /// Keys that are remembered after they were refused; asked for again, they count as used. Rounded up to a power of two.
    pub ghosts: usize,
    /// How the device is asked.
    pub access: Access,
    /// What is taken over after a crash.
    pub recover: Recover,
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
            recover: Recover::Always,
        }
    }
}

/// Where the parts lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) bytes: u64,
    pub(super) region_bytes: usize,
    pub(super) regions: u32,
    pub(super) regions_at: u64,
    pub(super) sets: u32,
}

/// Where sets begin.
pub(super) const SETS_AT: u64 = 2 * BLOCK as u64;

impl Geometry {
    pub(super) fn new(config: &Config) -> Result<Self, Error> {
        check(config)?;
        let sets = config.small_bytes / wide(BLOCK);
        let align = REGIONS_ALIGN.min(wide(config.region_bytes));
        let regions_at = (SETS_AT + sets * wide(BLOCK)).next_multiple_of(align);
        let left = config.bytes.saturating_sub(regions_at);
        let regions = left / wide(config.region_bytes);
        let least = config.lanes + config.writing + config.free_regions + 1;
        if regions < wide(least) {
            let need = regions_at + wide(least) * wide(config.region_bytes);
            return Err(Error::Config(format!(
                "bytes = {} leaves {regions} regions, needed are {least} (lanes + writing + free_regions + 1): configure {need} \
                 bytes, or smaller regions",
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
            sets: narrow(size(sets)),
        })
    }

    /// Where a region begins on the device.
    pub(super) fn region_at(&self, region: u32) -> u64 {
        self.regions_at + u64::from(region) * wide(self.region_bytes)
    }

    /// Units of a region.
    pub(super) fn units(&self) -> u64 {
        wide(self.region_bytes / UNIT)
    }
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
    fn parts_lie_one_after_another_and_the_defaults_hold() {
        let found = Geometry::new(&small()).unwrap();
        assert_eq!((found.sets, found.regions_at), (256, (1 << 20) + (64 << 10)));
        assert_eq!(found.regions, 47);
        assert!(found.region_at(found.regions) <= found.bytes);
        assert!(Geometry::new(&Config::default()).is_ok());
    }

    #[test]
    fn what_can_not_be_is_named_with_its_value() {
        let wrong = [
            (Config { region_bytes: 5000, ..small() }, "region_bytes = 5000"),
            (Config { bytes: 1 << 19, ..small() }, "more than bytes"),
            (Config { bytes: 1 << 20, small_bytes: 0, region_bytes: 1 << 20, ..small() }, "leaves"),
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
