//! A cache in this process as options say it: its tiers, where they are, what leaves them first.

use std::fmt;
use std::sync::Arc;

use anyhow::Context as _;
use clap::ValueEnum;
use nearfar_cache::evict::Eviction;
use nearfar_cache::mover::Movers;
use nearfar_cache::{Cache, Config, Making, Tier};
use nearfar_kernel::mempolicy::Policy;
use nearfar_topology::{Bytes, NodeExpr, NodeSet, Topology};

use super::super::machine::MachineArgs;
use crate::exit::{EndsWith as _, Exit};

/// As typed.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "In this process")]
pub(super) struct EngineArgs {
    /// Memory for items: bytes, or 512m, 4g; near memory if there is a far tier, else wherever the kernel places it
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "1g", conflicts_with = "server")]
    memory: Bytes,
    /// A second tier of this size in far memory, to which items go before they leave
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with = "server")]
    far: Option<Bytes>,
    /// The nodes of --memory [default: near, with --far]
    #[arg(long, value_name = "NODES", conflicts_with = "server")]
    memory_on: Option<NodeExpr>,
    /// The nodes of --far [default: far]
    #[arg(long, value_name = "NODES", requires = "far", conflicts_with = "server")]
    far_on: Option<NodeExpr>,
    /// What leaves a tier first
    #[arg(long, value_name = "POLICY", value_enum, default_value_t, conflicts_with = "server")]
    policy: Leaves,
    /// Threads that move items between tiers ahead of need; 0: whoever stores an item makes room for it [default: 1 with --far]
    #[arg(long, value_name = "N", conflicts_with = "server", value_parser = clap::value_parser!(u32).range(0..=64))]
    movers: Option<u32>,
}

fn size(text: &str) -> Result<Bytes, String> {
    nearfar_spec::spec::size(text).map_err(|error| error.to_string())
}

/// What leaves a tier first, as typed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Leaves {
    /// S3-FIFO
    #[default]
    #[value(name = "s3fifo")]
    S3Fifo,
    /// SIEVE
    Sieve,
    /// Least recently used, as of 2Q
    Lru,
    /// W-TinyLFU
    #[value(name = "wtinylfu")]
    WTinyLfu,
}

impl Leaves {
    const fn eviction(self) -> Eviction {
        match self {
            Self::S3Fifo => Eviction::S3Fifo,
            Self::Sieve => Eviction::Sieve,
            Self::Lru => Eviction::Lru,
            Self::WTinyLfu => Eviction::WTinyLfu,
        }
    }
}

/// A cache as it will be.
#[derive(Debug)]
pub(super) struct Engine {
    config: Config,
    movers: u32,
}

impl EngineArgs {
    /// Resolves nodes, and refuses what can't be.
    pub(super) fn plan(&self) -> anyhow::Result<Engine> {
        let (near, far): (NodeExpr, NodeExpr) = ("near".parse()?, "far".parse()?);
        let machine = match (&self.far, &self.memory_on) {
            (None, None) => None,
            _ => {
                let machine = MachineArgs::default();
                Some(machine.read(&*machine.open()?)?.0)
            }
        };
        let memory = match (&machine, &self.memory_on) {
            (Some(machine), on) => {
                Some(nodes("--memory-on", on.as_ref().unwrap_or(&near), machine)?)
            }
            (None, _) => None,
        };
        let eviction = self.policy.eviction();
        let tier = |bytes: Bytes, nodes: Option<NodeSet>| Tier {
            bytes: bytes.0,
            policy: nodes.map_or(Policy::Default, Policy::Bind),
            eviction,
        };
        let mut tiers = vec![tier(self.memory, memory)];
        if let (Some(bytes), Some(machine)) = (self.far, &machine) {
            let on = nodes("--far-on", self.far_on.as_ref().unwrap_or(&far), machine);
            let on = match &self.far_on {
                Some(_) => on,
                None => {
                    on.context("--far: name other nodes with --far-on, for example --far-on all")
                }
            };
            tiers.push(tier(bytes, Some(on.ends_with(Exit::Usage)?)));
        }
        let movers = self.movers.unwrap_or(u32::from(tiers.len() > 1));
        let making = if movers > 0 { Making::Background } else { Making::Inline };
        let config = Config { tiers, making, ..Config::of_bytes(0) };
        Ok(Engine { config, movers })
    }
}

fn nodes(option: &str, nodes: &NodeExpr, machine: &Topology) -> anyhow::Result<NodeSet> {
    let named = nodes.resolve(machine, &[]);
    named.map_err(|error| anyhow::anyhow!("{option}: {error}")).ends_with(Exit::Usage)
}

impl Engine {
    /// Makes the cache, and starts who moves items in it.
    pub(super) fn start(&self) -> anyhow::Result<(Arc<Cache>, Movers)> {
        let cache = Arc::new(Cache::new(&self.config).context("the cache").ends_with(Exit::Usage)?);
        let movers = Movers::start(&cache, self.movers as usize).context("starting movers")?;
        Ok((cache, movers))
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("in process: ")?;
        for (at, tier) in self.config.tiers.iter().enumerate() {
            write!(f, "{}{}", if at > 0 { " + " } else { "" }, Bytes(tier.bytes))?;
            if tier.policy != Policy::Default {
                write!(f, " ({})", tier.policy)?;
            }
        }
        let first = self.config.tiers.first().map(|tier| tier.eviction);
        let named = Eviction::ALL.iter().find(|(_, policy)| Some(*policy) == first);
        write!(f, ", {}", named.map_or("", |(name, _)| name))?;
        match self.movers {
            0 => Ok(()),
            1 => f.write_str(", 1 mover"),
            movers => write!(f, ", {movers} movers"),
        }
    }
}
