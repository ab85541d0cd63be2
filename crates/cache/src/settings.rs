//! A cache configured by text, for callers that are not Rust: names and values as the options of `nearfar cache serve`.
//!
//! ```text
//! memory            [KIND=]SIZE, once per tier, fastest first: near=4g, 64m, 0=64m           64m
//!                   (a size without a unit is MiB)
//! eviction          s3-fifo, sieve, lru, w-tinylfu                                           s3-fifo
//! movers            threads that make room ahead of need, 0 to 64; 0: who stores makes it     1
//! copy              cpu, dsa, auto: what copies items between tiers of memory                 cpu
//! items             items the index has room for                       one for 100 bytes of memory
//! item-max          bytes of the largest item, 1k to 16m        a quarter of the smallest tier, up to 16m
//! disk              PATH=SIZE: a file (created if missing) or a block device                 none
//! disk-format       yes, no: overwrite a file or device without a cache or other known data  no
//! disk-small        share of it for objects of at most 1 KiB                          a sixteenth
//! disk-writes       maximum bytes written to it in 24 hours; 0: no limit                     0
//! disk-reads        reads before an item is demoted to it, 0 to 3         0, or 1 with disk-writes
//! disk-after-crash  discard, keep (values removed or replaced at last may reappear)          discard
//! ```

use std::io;

use nearfar_kernel::affinity;
use nearfar_kernel::fs::{self, FsError, RootFs};
use nearfar_spec::spec::{SpecError, size};
use nearfar_topology::{Bytes, NodeSetError, Overrides};
use rustix::io::Errno;

use crate::config::{self, Config, Tier};
use crate::copy::Copying;
use crate::disk::{self, AfterCrash};
use crate::evict::Eviction;
use crate::local::{LocalCache, OpenError};
use crate::tiers::{self, DiskExpr, Memory, MemoryExpr, TierError};

/// memcached's `-m`.
const MEMORY: MemoryExpr = MemoryExpr { kind: None, bytes: Bytes(64 << 20) };
/// Range of the maximum bytes of an item.
const ITEM_MAX: std::ops::RangeInclusive<u64> = 1 << 10..=16 << 20;

/// Settings of a cache, as parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    memory: Vec<MemoryExpr>,
    eviction: Eviction,
    movers: usize,
    copying: Copying,
    items: Option<u64>,
    item_max: Option<Bytes>,
    disk: Option<DiskExpr>,
    disk_small: Option<Bytes>,
    disk_writes: Bytes,
    disk_reads: Option<u32>,
    disk_after_crash: AfterCrash,
    disk_format: bool,
}

/// Reasons why settings are refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// An unknown setting.
    #[error("`{name}` is no setting of a cache; there are {}", Settings::NAMES.join(", "))]
    Name {
        /// The name given.
        name: String,
    },
    /// An invalid value.
    #[error("{name} `{value}`: {why}")]
    Value {
        /// The setting.
        name: &'static str,
        /// The value given.
        value: String,
        /// The valid values.
        why: String,
    },
    /// An invalid or unavailable memory kind.
    #[error("memory {0}")]
    Memory(#[from] TierError),
    /// The system does not show its nodes.
    #[error("memory nodes can't be read: {0}")]
    Machine(#[from] FsError),
    /// The cache can't be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl SettingsError {
    /// The corresponding errno.
    #[must_use]
    pub fn errno(&self) -> i32 {
        let of = |error: &io::Error| error.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
        let errno = match self {
            Self::Memory(TierError::Full { .. }) => Errno::NOMEM,
            Self::Memory(TierError::Kind {
                source:
                    SpecError::Nodes(NodeSetError::Absent { .. } | NodeSetError::NoSuchNodes { .. })
                    | SpecError::Unstated { .. },
                ..
            }) => Errno::NODEV,
            Self::Machine(_) => Errno::NOSYS,
            Self::Open(OpenError::Cache(config::Error::Copying(_))) => Errno::NODEV,
            Self::Open(OpenError::Movers { source, .. } | OpenError::Page(source)) => {
                return of(source);
            }
            Self::Open(OpenError::Cache(config::Error::Memory { source, .. })) => {
                return of(source);
            }
            Self::Open(OpenError::Cache(config::Error::Disk(error))) => return on_disk(error),
            Self::Name { .. } | Self::Value { .. } | Self::Memory(_) | Self::Open(_) => {
                Errno::INVAL
            }
        };
        errno.raw_os_error()
    }
}

fn on_disk(error: &disk::Error) -> i32 {
    let errno = match error {
        disk::Error::Config(_) | disk::Error::Geometry { .. } => Errno::INVAL,
        disk::Error::Foreign { .. }
        | disk::Error::Version { .. }
        | disk::Error::Unformatted { .. } => Errno::EXIST,
        disk::Error::Kind { .. } => Errno::NOTBLK,
        disk::Error::NoDevice { .. } => Errno::NODEV,
        disk::Error::Link { .. } => Errno::LOOP,
        disk::Error::Untrusted { .. } => Errno::PERM,
        disk::Error::InUse { .. } => Errno::BUSY,
        disk::Error::Full { .. } => Errno::NOSPC,
        disk::Error::Memory { .. } => Errno::NOMEM,
        other => {
            let source = std::error::Error::source(other);
            let source = source.and_then(|source| source.downcast_ref::<io::Error>());
            return source.and_then(io::Error::raw_os_error).unwrap_or(Errno::IO.raw_os_error());
        }
    };
    errno.raw_os_error()
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            memory: Vec::new(),
            eviction: Eviction::default(),
            movers: 1,
            copying: Copying::default(),
            items: None,
            item_max: None,
            disk: None,
            disk_small: None,
            disk_writes: Bytes(0),
            disk_reads: None,
            disk_after_crash: AfterCrash::default(),
            disk_format: false,
        }
    }
}

fn sized(value: &str) -> Result<Bytes, String> {
    size(value).map_err(|error| error.to_string())
}

fn count(value: &str, range: std::ops::RangeInclusive<u64>) -> Result<u64, String> {
    let found = value.parse().ok().filter(|number| range.contains(number));
    found.ok_or_else(|| format!("write a number from {} to {}", range.start(), range.end()))
}

fn one_of<T: Copy>(value: &str, all: &[(&str, T)]) -> Result<T, String> {
    let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
    let found = all.iter().find(|(name, _)| *name == value);
    found.map(|(_, one)| *one).ok_or_else(|| format!("write one of {}", names.join(", ")))
}

impl Settings {
    /// The names there are.
    pub const NAMES: [&str; 12] = [
        "memory",
        "eviction",
        "movers",
        "copy",
        "items",
        "item-max",
        "disk",
        "disk-small",
        "disk-writes",
        "disk-reads",
        "disk-after-crash",
        "disk-format",
    ];

    /// Sets one value. `memory` adds a tier each time; any other setting replaces its previous value.
    ///
    /// # Errors
    /// [`SettingsError::Name`], [`SettingsError::Value`]; nothing is set then.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SettingsError> {
        let known = Self::NAMES.into_iter().find(|known| *known == name);
        let known = known.ok_or_else(|| SettingsError::Name { name: name.to_owned() })?;
        self.put(known, value).map_err(|why| {
            let value = value.to_owned();
            SettingsError::Value { name: known, value, why }
        })
    }

    fn put(&mut self, name: &'static str, value: &str) -> Result<(), String> {
        match name {
            "memory" => {
                self.memory.push(value.parse()?);
            }
            "eviction" => self.eviction = one_of(value, &Eviction::ALL)?,
            "movers" => self.movers = usize::try_from(count(value, 0..=64)?).unwrap_or(64),
            "copy" => self.copying = one_of(value, &Copying::ALL)?,
            "items" => self.items = Some(count(value, 1..=1 << 40)?),
            "item-max" => {
                let fits = Some(sized(value)?).filter(|bytes| ITEM_MAX.contains(&bytes.0));
                self.item_max = Some(fits.ok_or("an item may have 1k to 16m")?);
            }
            "disk" => self.disk = Some(value.parse()?),
            "disk-small" => self.disk_small = Some(sized(value)?),
            "disk-writes" => self.disk_writes = sized(value)?,
            "disk-reads" => self.disk_reads = u32::try_from(count(value, 0..=3)?).ok(),
            "disk-after-crash" => {
                let all = [("discard", AfterCrash::Discard), ("keep", AfterCrash::Keep)];
                self.disk_after_crash = one_of(value, &all)?;
            }
            _ => self.disk_format = one_of(value, &[("yes", true), ("no", false)])?,
        }
        Ok(())
    }

    /// Number of mover threads.
    #[must_use]
    pub const fn movers(&self) -> usize {
        self.movers
    }

    fn tiers(&self) -> Result<Vec<Memory>, SettingsError> {
        let memory = if self.memory.is_empty() { &[MEMORY][..] } else { &self.memory };
        if memory.iter().all(|one| one.kind.is_none()) {
            return Ok(tiers::plain(memory)?);
        }
        let fs = RootFs::live()?;
        let (machine, _) = fs::topology(&fs, &Overrides::new());
        let cpus = affinity::get().unwrap_or_default();
        Ok(tiers::resolve(memory, &machine, (&cpus, &fs))?)
    }

    fn disk(&self) -> Option<DiskExpr> {
        let (small, writes, reads) = (self.disk_small, self.disk_writes, self.disk_reads);
        let (after_crash, format) = (self.disk_after_crash, self.disk_format);
        self.disk.clone().map(|disk| DiskExpr { small, writes, reads, after_crash, format, ..disk })
    }

    /// The configuration on this machine.
    ///
    /// # Errors
    /// Memory that is missing or too small; inconsistent sizes.
    pub fn config(&self) -> Result<Config, SettingsError> {
        let tier = |memory: Memory| Tier {
            bytes: memory.bytes.0,
            policy: memory.policy,
            eviction: self.eviction,
        };
        let mut config = Config::of_bytes(0);
        config.tiers = self.tiers()?.into_iter().map(tier).collect();
        config.copying = self.copying;
        config.items = self.items;
        config.item_max = self.item_max.and_then(|bytes| usize::try_from(bytes.0).ok());
        config.disk = self.disk().map(|disk| disk.tier(0));
        config.check().map_err(OpenError::Cache)?;
        Ok(config)
    }

    /// Opens the cache.
    ///
    /// # Errors
    /// As [`Self::config`] and [`LocalCache::open`].
    pub fn open(&self) -> Result<LocalCache, SettingsError> {
        Ok(LocalCache::open(&self.config()?, self.movers)?)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn set(all: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        let mut settings = Settings::default();
        all.iter().try_for_each(|(name, value)| settings.set(name, value))?;
        Ok(settings)
    }

    #[test]
    fn each_setting_is_applied_and_each_memory_setting_adds_a_tier() {
        let settings = set(&[
            ("memory", "16m"),
            ("memory", "32m"),
            ("eviction", "w-tinylfu"),
            ("movers", "0"),
            ("copy", "auto"),
            ("items", "1000"),
            ("item-max", "64k"),
            ("disk", "/tmp/a=b=1g"),
            ("disk-small", "5000"),
            ("disk-writes", "10g"),
            ("disk-after-crash", "keep"),
            ("disk-format", "yes"),
        ]);
        let settings = settings.unwrap();
        let config = settings.config().unwrap();
        let tiers: Vec<_> = config.tiers.iter().map(|tier| (tier.bytes, tier.eviction)).collect();
        assert_eq!(tiers, [(16 << 20, Eviction::WTinyLfu), (32 << 20, Eviction::WTinyLfu)]);
        assert_eq!((settings.movers(), config.items), (0, Some(1000)));
        assert_eq!(config.copying, Copying::Auto);
        assert_eq!(config.item_max, Some(64 << 10));
        let disk = config.disk.unwrap();
        assert_eq!(disk.path, Path::new("/tmp/a=b"));
        assert!(disk.config.format);
        let disk::Config { bytes, small_bytes, budget_per_day, least_hits, after_crash, .. } =
            disk.config;
        assert_eq!((bytes, small_bytes, budget_per_day), (1 << 30, 4096, 10 << 30));
        assert_eq!((least_hits, after_crash), (1, AfterCrash::Keep));
        assert_eq!(set(&[]).unwrap().config().unwrap().bytes(), 64 << 20);
    }

    #[test]
    fn invalid_settings_report_the_remedy_and_an_errno() {
        for (name, value, said) in [
            ("colour", "red", "there are memory, eviction"),
            ("memory", "1q", "`1q` is not a size"),
            ("memory", "fast=1g", "`fast`"),
            ("eviction", "random", "s3-fifo, sieve, lru, w-tinylfu"),
            ("movers", "65", "0 to 64"),
            ("movers", "-1", "`-1`"),
            ("copy", "gpu", "cpu, dsa, auto"),
            ("items", "0", "from 1"),
            ("item-max", "1", "1k to 16m"),
            ("disk", "/tmp/a", "PATH=SIZE"),
            ("disk", "=1g", "before =SIZE"),
            ("disk-reads", "9", "0 to 3"),
            ("disk-after-crash", "all", "discard, keep"),
            ("disk-format", "1", "yes, no"),
        ] {
            let error = set(&[(name, value)]).unwrap_err();
            assert!(error.to_string().contains(said), "{error}");
            assert_eq!(error.errno(), Errno::INVAL.raw_os_error(), "{error}");
        }
        for (value, errno, said) in [
            ("1k", Errno::INVAL, "less than 256 KiB"),
            ("999=64m", Errno::NODEV, "999"),
            ("all=900t", Errno::NOMEM, "free"),
            ("weighted:0=1=1g", Errno::INVAL, "nearfar weights"),
        ] {
            let error = set(&[("memory", value)]).unwrap().config().unwrap_err();
            assert_eq!(error.errno(), errno.raw_os_error(), "{error}");
            assert!(error.to_string().contains(said), "{error}");
        }
    }

    #[test]
    fn a_cache_opens_with_the_given_settings() {
        let all = [("memory", "all=8m"), ("memory", "8m"), ("movers", "0")];
        let cache = set(&all).unwrap().open().unwrap();
        assert_eq!(cache.counted().unwrap().tiers.len(), 2);
        cache.close().unwrap();
    }
}
