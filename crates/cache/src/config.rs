//! How a cache is to be.

use std::io;
use std::path::PathBuf;

use nearfar_kernel::mempolicy::Policy;

use crate::arena::PageSize;
use crate::disk;
use crate::evict::Eviction;
use crate::item::{KEY_MAX, VALUE_MAX};

/// Bytes of an item, where nobody says how many items there will be.
const ITEM_GUESS: u64 = 100;
/// Bytes of a large object on disk, likewise.
const DISK_ITEM_GUESS: u64 = 4000;
/// An item has one part in so many of each tier at most.
const ITEM_SHARE: u64 = 4;
/// Most tiers of memory.
pub(crate) const TIERS_MAX: usize = 4;

/// A tier of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tier {
    /// Bytes for items, in whole slabs.
    pub bytes: u64,
    /// Where that memory comes from.
    pub policy: Policy,
    /// What goes first.
    pub eviction: Eviction,
}

/// Who makes room in a tier that is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Making {
    /// Whoever stores an item.
    #[default]
    Inline,
    /// [`crate::mover::Movers`], ahead of need; who finds no room all the same stores in a slower tier.
    Background,
}

/// A tier on disk, below those of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskTier {
    /// The file or block device; a file is made if there is none.
    pub path: PathBuf,
    /// Its size, its parts, what may be written a day, what is let in, and what is taken over after a crash.
    pub config: disk::Config,
    /// The Unix second in which the cache's clock stands at 0. Times of expiry are Unix seconds on disk, so that they hold when
    /// it is opened again. 0 if the clock tells Unix seconds itself, or nothing expires.
    pub clock_zero: u32,
}

/// How a cache is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Tiers, fastest first; one to four.
    pub tiers: Vec<Tier>,
    /// A tier on disk below them.
    pub disk: Option<DiskTier>,
    /// Items the index has room for, those on disk included that are not among the small ones; none: one for each hundred bytes
    /// of the tiers, and for each four thousand of the disk.
    pub items: Option<u64>,
    /// Bytes of a slab, a power of two from 64 KiB to 64 MiB; none: by the tiers' size, up to 2 MiB. An item that is longer than a
    /// quarter of it has several slots.
    pub slab: Option<usize>,
    /// The most bytes that key and value of an item may have; none: a quarter of the smallest tier, and no more than a value
    /// of 16 MiB less one byte.
    pub item_max: Option<usize>,
    /// Pages of items and index.
    pub pages: PageSize,
    /// Who makes room.
    pub making: Making,
}

/// Why a cache can't be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Too few or too many tiers.
    #[error("a cache has 1 to {TIERS_MAX} tiers of memory, not {0}")]
    Tiers(usize),
    /// A tier that holds nothing.
    #[error(
        "tier {tier} has {bytes} bytes, less than four slabs of {slab}: give it more, or name a smaller slab"
    )]
    Small {
        /// Which tier.
        tier: usize,
        /// Its bytes.
        bytes: u64,
        /// Bytes of a slab.
        slab: usize,
    },
    /// A tier that can't be addressed.
    #[error("tier {tier} has {bytes} bytes, more than the 8 TiB that can be addressed")]
    Large {
        /// Which tier.
        tier: usize,
        /// Its bytes.
        bytes: u64,
    },
    /// Slabs of an odd length.
    #[error("a slab of {0} bytes: it must be a power of two from 64 KiB to 64 MiB")]
    Slab(usize),
    /// Items larger than a tier has room for.
    #[error(
        "items of {item_max} bytes are more than a quarter of tier {tier}, which has {bytes}: give it more, or name a smaller limit"
    )]
    Items {
        /// The most an item may have.
        item_max: usize,
        /// Which tier.
        tier: usize,
        /// Its bytes.
        bytes: u64,
    },
    /// Memory that is refused.
    #[error("memory for {what}, {bytes} bytes")]
    Memory {
        /// What for.
        what: String,
        /// How much.
        bytes: u64,
        /// Why.
        source: io::Error,
    },
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
        }
    }

    /// Bytes of all tiers of memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.tiers.iter().map(|tier| tier.bytes).sum()
    }

    /// The most bytes key and value may have, where an item of one slot has `single` at most.
    pub(crate) fn largest(&self, single: usize) -> usize {
        let smallest = self.tiers.iter().map(|tier| tier.bytes).min().unwrap_or(0);
        let share = usize::try_from(smallest / ITEM_SHARE).unwrap_or(usize::MAX);
        share.max(single).min(self.item_max.unwrap_or(usize::MAX)).min(VALUE_MAX + KEY_MAX)
    }

    pub(crate) fn item_count(&self) -> usize {
        let disk = self
            .disk
            .as_ref()
            .map_or(0, |disk| disk.config.bytes.saturating_sub(disk.config.small_bytes));
        let items = self.items.unwrap_or(self.bytes() / ITEM_GUESS + disk / DISK_ITEM_GUESS);
        usize::try_from(items).unwrap_or(usize::MAX)
    }

    /// Checks it all, and gives the length of slabs.
    ///
    /// # Errors
    /// What is wrong, but for memory that can't be had.
    pub fn check(&self) -> Result<usize, Error> {
        if self.tiers.is_empty() || self.tiers.len() > TIERS_MAX {
            return Err(Error::Tiers(self.tiers.len()));
        }
        let smallest = self.tiers.iter().map(|tier| tier.bytes).min().unwrap_or(0);
        let smallest = usize::try_from(smallest).unwrap_or(usize::MAX);
        // So that sizes have slabs enough to share, and slabs slots enough.
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
