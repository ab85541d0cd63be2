//! A cache as options say it, the same for `serve` and for `bench`: its tiers, what leaves them first, who makes room.

use clap::ValueEnum;
use nearfar_cache::Config;
use nearfar_cache::evict::Eviction;
use nearfar_cache::tiers::{self, Memory, MemoryExpr};
use nearfar_kernel::affinity;
use nearfar_topology::Bytes;

use super::super::machine::MachineArgs;
use super::disk::DiskArgs;
use crate::cache::serve;
use crate::exit::{EndsWith as _, Exit};

/// memcached's `-m`.
const MEMORY: Bytes = Bytes(64 << 20);

/// As typed.
#[derive(Debug, clap::Args)]
pub(super) struct EngineArgs {
    /// Memory for items: SIZE, or a kind of memory and a size, for each tier, fastest first: near=4g,
    /// 'weighted:near,far=16g', 0=64m [default: 64m]
    #[arg(short, long = "memory", value_name = "[KIND=]SIZE")]
    memory: Vec<MemoryExpr>,
    /// What goes first where a tier is full
    #[arg(long, value_enum, default_value_t = Policy::S3Fifo)]
    eviction: Policy,
    /// Threads that make room in tiers ahead of need; 0: whoever stores makes it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=64))]
    movers: u16,
    /// Items to have room for in the index [default: one for each 100 bytes of memory]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    items: Option<u64>,
    #[command(flatten)]
    disk: DiskArgs,
    #[command(flatten)]
    machine: MachineArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Policy {
    /// Three queues: new ones, those read again, and the names of those that went
    S3Fifo,
    /// One queue, and a hand that leaves what was read
    Sieve,
    /// Least recently used, in three queues
    Lru,
    /// Who comes in is read more often than who goes
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

/// A size, as typed.
pub(super) fn size(text: &str) -> Result<Bytes, String> {
    nearfar_spec::spec::size(text).map_err(|error| error.to_string())
}

/// Bytes of the largest item, as typed.
pub(super) fn item_size(text: &str) -> Result<Bytes, String> {
    let fits = size(text)?;
    let fits = (1 << 10..=16 << 20).contains(&fits.0).then_some(fits);
    fits.ok_or_else(|| "an item may have 1k to 16m".into())
}

impl EngineArgs {
    /// The options there are here, but for those on which machine it is.
    pub(super) const NAMES: [&'static str; 5] = ["memory", "eviction", "movers", "items", "disk"];

    /// The cache, with its tiers as they were named; key and value of an item may have `item_max` bytes.
    pub(super) fn cache(&self, item_max: Option<Bytes>) -> anyhow::Result<(Config, Vec<Memory>)> {
        let default = [MemoryExpr { kind: None, bytes: MEMORY }];
        let memory = if self.memory.is_empty() { &default[..] } else { &self.memory };
        let tiers = if memory.iter().any(|one| one.kind.is_some()) {
            let fs = self.machine.open()?;
            let (machine, _) = self.machine.read(fs.as_ref())?;
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
        Ok(cache)
    }

    /// Threads that make room.
    pub(super) fn movers(&self) -> usize {
        self.movers.into()
    }
}
