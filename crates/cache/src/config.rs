//! Configuration of a cache.

use std::io;
use std::path::PathBuf;

use nearfar_kernel::mempolicy::Policy;

use crate::arena::PageSize;
use crate::copy::{Copying, NoDsa};
use crate::disk;
use crate::evict::Eviction;
use crate::item::{KEY_MAX, VALUE_MAX};

/// Assumed bytes of an item, if the number of items is not given.
const ITEM_GUESS: u64 = 100;
/// Assumed bytes of a large object on disk, likewise.
const DISK_ITEM_GUESS: u64 = 4000;
/// An item takes at most one part in this many of each tier.
const ITEM_SHARE: u64 = 4;
/// Maximum number of tiers of memory.
pub(crate) const TIERS_MAX: usize = 4;

/// A tier of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tier {
    /// Bytes for items, in whole slabs.
    pub bytes: u64,
    /// Memory policy for its pages.
    pub policy: Policy,
    /// Eviction policy.
    pub eviction: Eviction,
}

/// The threads that make room in a full tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Making {
    /// The thread that stores an item.
    #[default]
    Inline,
    /// [`crate::mover::Movers`], in the background; a thread that finds no room nevertheless stores in a slower tier.
    Background,
}

/// A tier on disk, below those of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskTier {
    /// File or block device; a missing file is created.
    pub path: PathBuf,
    /// Its size, its parts, the daily write limit, admission, and recovery after a crash.
    pub config: disk::Config,
    /// The Unix second at which the cache's clock is 0. Times of expiry are Unix seconds on disk, so that they stay
    /// valid when it is reopened. 0 if the clock counts Unix seconds itself, or nothing expires.
    pub clock_zero: u32,
}

/// Configuration of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Tiers, fastest first; one to four.
    pub tiers: Vec<Tier>,
    /// A tier on disk below them.
    pub disk: Option<DiskTier>,
    /// Number of items that the index has room for, including the large objects on disk; `None`: one per hundred bytes
    /// of the tiers, and one per four thousand of the disk.
    pub items: Option<u64>,
    /// Bytes of a slab, a power of two from 64 KiB to 64 MiB; `None`: by the tiers' size, up to 2 MiB. An item longer
    /// than a quarter of a slab takes several slots.
    pub slab: Option<usize>,
    /// Maximum bytes of key and value of an item; `None`: a quarter of the smallest tier, at most a value of 16 MiB
    /// less one byte.
    pub item_max: Option<usize>,
    /// Pages of items and index.
    pub pages: PageSize,
    /// The threads that make room.
    pub making: Making,
    /// Which copier moves items between tiers of memory.
    pub copying: Copying,
}

/// A size in the largest unit of which it is a multiple.
fn kib(bytes: u64) -> String {
    let unit = if bytes == 0 { 0 } else { bytes.trailing_zeros().min(49) / 10 };
    let name = ["bytes", "KiB", "MiB", "GiB", "TiB"][unit as usize];
    format!("{} {name}", bytes >> (10 * unit))
}

/// Reasons why a cache can't be created.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Too few or too many tiers.
    #[error("a cache has 1 to {TIERS_MAX} tiers of memory, not {0}")]
    Tiers(usize),
    /// A tier with room for no item.
    #[error(
        "tier {tier} has {}, less than {}: give it more", kib(*bytes), kib(4 * *slab as u64)
    )]
    Small {
        /// Index of the tier.
        tier: usize,
        /// Its bytes.
        bytes: u64,
        /// Bytes of a slab.
        slab: usize,
    },
    /// A tier too large to be addressed.
    #[error("tier {tier} has {}, more than the 8 TiB that can be addressed", kib(*bytes))]
    Large {
        /// Index of the tier.
        tier: usize,
        /// Its bytes.
        bytes: u64,
    },
    /// An invalid slab length.
    #[error("a slab of {0} bytes: it must be a power of two from 64 KiB to 64 MiB")]
    Slab(usize),
    /// Items larger than a tier has room for.
    #[error(
        "items of {} are more than a quarter of tier {tier}, which has {}: give it more, or name a smaller limit",
        kib(*item_max as u64), kib(*bytes)
    )]
    Items {
        /// Requested maximum bytes of an item.
        item_max: usize,
        /// Index of the tier.
        tier: usize,
        /// Its bytes.
        bytes: u64,
    },
    /// Memory that the kernel refused.
    #[error("memory for {what}, {bytes} bytes")]
    Memory {
        /// The purpose of the memory.
        what: String,
        /// Requested bytes.
        bytes: u64,
        /// The cause.
        source: io::Error,
    },
    /// No DSA, where that is to copy.
    #[error(transparent)]
    Copying(#[from] NoDsa),
    /// The disk.
    #[error(transparent)]
    Disk(#[from] disk::Error),
}

impl Config {
    /// One tier, of ordinary memory.
    #[must_use]
    pub fn of_bytes(bytes: u64) -> Self {
        let tier = Tier { bytes, policy: Policy::Default, eviction: Eviction::default() };
        Self {
            tiers: vec![tier],
            disk: None,
            items: None,
            slab: None,
            item_max: None,
            pages: PageSize::default(),
            making: Making::default(),
            copying: Copying::default(),
        }
    }

    /// Bytes of all tiers of memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.tiers.iter().map(|tier| tier.bytes).sum()
    }

    /// A quarter of the smallest tier: the largest item that [`Self::item_max`] may allow.
    #[must_use]
    pub fn item_share(&self) -> usize {
        let smallest = self.tiers.iter().map(|tier| tier.bytes).min().unwrap_or(0);
        usize::try_from(smallest / ITEM_SHARE).unwrap_or(usize::MAX)
    }

    /// Maximum bytes of key and value, if an item of one slot has at most `single`.
    pub(crate) fn largest(&self, single: usize) -> usize {
        self.item_share()
            .max(single)
            .min(self.item_max.unwrap_or(usize::MAX))
            .min(VALUE_MAX + KEY_MAX)
    }

    pub(crate) fn item_count(&self) -> usize {
        let disk = self
            .disk
            .as_ref()
            .map_or(0, |disk| disk.config.bytes.saturating_sub(disk.config.small_bytes));
        let items = self.items.unwrap_or(self.bytes() / ITEM_GUESS + disk / DISK_ITEM_GUESS);
        usize::try_from(items).unwrap_or(usize::MAX)
    }

    /// Checks the configuration and returns the slab length.
    ///
    /// # Errors
    /// An invalid setting; unavailable memory is not detected here.
    pub fn check(&self) -> Result<usize, Error> {
        if self.tiers.is_empty() || self.tiers.len() > TIERS_MAX {
            return Err(Error::Tiers(self.tiers.len()));
        }
        let smallest = self.tiers.iter().map(|tier| tier.bytes).min().unwrap_or(0);
        let smallest = usize::try_from(smallest).unwrap_or(usize::MAX);
        // Limits that leave enough slabs to distribute over sizes, and enough slots per slab.
        let guess = (smallest / 512).clamp(128 << 10, 2 << 20).min((smallest / 64).max(64 << 10));
        let slab = self.slab.unwrap_or_else(|| 1 << guess.ilog2());
        if !slab.is_power_of_two() || !(64 << 10..=64 << 20).contains(&slab) {
            return Err(Error::Slab(slab));
        }
        for (tier, one) in self.tiers.iter().enumerate() {
            if one.bytes < 4 * slab as u64 {
                return Err(Error::Small { tier, bytes: one.bytes, slab });
            }
            if one.bytes >= 8 << 40 {
                return Err(Error::Large { tier, bytes: one.bytes });
            }
            if let Some(item_max) = self.item_max
                && item_max as u64 > one.bytes / ITEM_SHARE
            {
                return Err(Error::Items { item_max, tier, bytes: one.bytes });
            }
        }
        Ok(slab)
    }
}
