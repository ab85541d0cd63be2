//! The options of balancing, as they are in force.

use nearfar_policy::traffic::balance::{self, Law};
use nearfar_policy::traffic::carrefour;
use nearfar_topology::BytesPerSecond;
use serde::{Deserialize, Serialize};

/// Upper bound of the rate option, in megabytes per second.
pub const RATE_MAX: i64 = 1_000_000;
/// Default migration rate, in megabytes per second.
pub const RATE: u32 = 2_000;

/// The law by which pages are migrated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// Equalises the marginal memory cost across nodes, and migrates only if the gain exceeds the cost.
    #[default]
    Balanced,
    /// Carrefour as published (ASPLOS 2013): per-page thresholds, no prediction.
    Carrefour,
    /// Colloid as published (SOSP 2024): equalises latencies by a search of bounds.
    Colloid,
}

impl Policy {
    /// Its name on the command line.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Balanced => "balanced",
            Self::Carrefour => "carrefour",
            Self::Colloid => "colloid",
        }
    }

    /// Whether it needs measured latency.
    pub(crate) const fn needs_latency(self) -> bool {
        matches!(self, Self::Balanced | Self::Colloid)
    }
}

/// The options in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// The law by which pages are migrated.
    pub policy: Policy,
    /// Limit of migration in megabytes a second.
    pub rate_mbps: u32,
    /// Sensors by name; all usable ones if empty.
    pub sensors: Vec<String>,
    /// Only processes in this cgroup and below.
    pub cgroup: Option<String>,
    /// Only this process and its descendants.
    pub pid: Option<u32>,
    /// Leave the kernel's NUMA balancing on.
    pub keep_numa_balancing: bool,
    /// Traffic in lines per microsecond on the whole machine above which Carrefour acts; `None` for the published
    /// value.
    pub busy_above: Option<u32>,
}

impl Options {
    /// Maximal migration rate.
    pub(crate) fn rate(&self) -> BytesPerSecond {
        BytesPerSecond(u64::from(self.rate_mbps) * 1_000_000)
    }

    /// Configuration of the laws that use a model.
    pub(crate) fn balance(&self) -> balance::Config {
        let law = if self.policy == Policy::Colloid { Law::Average } else { Law::Marginal };
        balance::Config { law, rate: self.rate(), ..balance::Config::default() }
    }

    /// Carrefour's thresholds. If accesses are sampled but not counted, utilisation is unknown and its threshold is 0.
    /// Destinations are drawn at random each round, as published: as a function of the page they would stop short of an
    /// even distribution.
    pub(crate) fn carrefour(&self, counted: bool, seed: u64) -> carrefour::Config {
        let usual = carrefour::Config::default();
        let said = self.busy_above.map(|lines| carrefour::Busy::Machine(u64::from(lines) * 1000));
        let busy = if counted { said.unwrap_or(usual.busy) } else { carrefour::Busy::Machine(0) };
        carrefour::Config { busy, draw: carrefour::Draw::Anew { seed }, ..usual }
    }
}
