//! Options of a cache, shared by `serve` and `bench`: tiers, eviction policy, background eviction.

use clap::ValueEnum;
use nearfar_cache::Config;
use nearfar_cache::copy::Copying;
use nearfar_cache::evict::Eviction;
use nearfar_cache::tiers::{self, Memory, MemoryExpr};
use nearfar_kernel::affinity;
use nearfar_topology::Bytes;

use super::super::machine::MachineArgs;
use super::disk::DiskArgs;
use super::size;
use crate::serve;
use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_command::number::whole;

/// memcached's `-m`.
const MEMORY: Bytes = Bytes(64 << 20);

/// Arguments as typed.
#[derive(Debug, clap::Args)]
pub(super) struct EngineArgs {
    /// Memory for items: SIZE, or MEMORY_KIND=SIZE once per tier, fastest first: near=4g, 'weighted:near,far=16g',
    /// 0=64m; a number without a unit is MiB [default: 64m]
    #[arg(short, long = "memory", value_name = "[KIND=]SIZE")]
    memory: Vec<MemoryExpr>,
    /// Eviction policy of each tier
    #[arg(long, value_enum, default_value_t = Policy::S3Fifo)]
    eviction: Policy,
    /// Threads that evict and demote in the background; 0: storing threads do it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u16>(0..=64))]
    movers: u16,
    /// Copier of items between memory tiers
    #[arg(long, value_enum, default_value_t = Copy::Cpu)]
    copy: Copy,
    /// Expected number of items, which sizes the index [default: one per 100 bytes of memory]
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1..=1 << 40))]
    items: Option<u64>,
    #[command(flatten)]
    disk: DiskArgs,
    #[command(flatten, next_help_heading = "Machine")]
    machine: MachineArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Policy {
    /// Small, main and ghost queues
    S3Fifo,
    /// One queue with a moving hand that skips items read since its last pass
    Sieve,
    /// Segmented LRU: hot, warm and cold queues
    Lru,
    /// Admits an item only if it is used more often than the eviction victim
    WTinylfu,
}

impl From<Policy> for Eviction {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::S3Fifo => Self::S3Fifo,
            Policy::Sieve => Self::Sieve,
            Policy::Lru => Self::Lru,
            Policy::WTinylfu => Self::WTinyLfu,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Copy {
    /// The CPU
    Cpu,
    /// Intel's Data Streaming Accelerator; an error if no work queue can be used (nearfar doctor)
    Dsa,
    /// DSA if a work queue can be used, otherwise the CPU
    Auto,
}

impl From<Copy> for Copying {
    fn from(copy: Copy) -> Self {
        match copy {
            Copy::Cpu => Self::Cpu,
            Copy::Dsa => Self::Dsa,
            Copy::Auto => Self::Auto,
        }
    }
}

/// Parses the maximum item size, in bytes.
pub(super) fn item_size(text: &str) -> Result<Bytes, String> {
    let fits = size(text)?;
    let fits = (1 << 10..=16 << 20).contains(&fits.0).then_some(fits);
    fits.ok_or_else(|| "an item may have 1k to 16m".into())
}

impl EngineArgs {
    /// The options of this group, without those that select the machine.
    pub(super) const NAMES: [&'static str; 6] =
        ["memory", "eviction", "movers", "copy", "items", "disk"];

    /// The cache's configuration, and its tiers as named by the user; key and value of an item together have at most
    /// `item_max` bytes.
    pub(super) fn cache(&self, item_max: Option<Bytes>) -> anyhow::Result<(Config, Vec<Memory>)> {
        let default = [MemoryExpr { kind: None, bytes: MEMORY }];
        let memory = if self.memory.is_empty() { &default[..] } else { &self.memory };
        let tiers = if memory.iter().any(|one| one.kind.is_some()) {
            let fs = self.machine.select().open()?;
            let (machine, _) = self.machine.select().read(fs.as_ref())?;
            let cpus = affinity::get().unwrap_or_default();
            tiers::resolve(memory, &machine, (&cpus, fs.as_ref()))
        } else {
            tiers::plain(memory)
        };
        let item_max = item_max.map(|bytes| usize::try_from(bytes.0)).transpose()?;
        let cache = serve::cache(
            tiers.map_err(|error| anyhow::anyhow!("--memory {error}")).ends_with(Exit::Usage)?,
            self.eviction.into(),
            (self.items, item_max),
        );
        let mut cache = cache.ends_with(Exit::Usage)?;
        cache.0.disk = self.disk.tier();
        cache.0.copying = self.copy.into();
        Ok(cache)
    }

    /// Number of background eviction threads.
    pub(super) fn movers(&self) -> usize {
        self.movers.into()
    }
}
