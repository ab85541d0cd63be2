//! The options of balancing, as they are in force.

use nearfar_policy::traffic::balance::{self, Law};
use nearfar_policy::traffic::carrefour;
use nearfar_topology::BytesPerSecond;
use serde::{Deserialize, Serialize};

/// Megabytes a second that may be asked for, at most.
pub(crate) const RATE_MAX: i64 = 1_000_000;
/// Moved at most, unless said otherwise: megabytes a second.
pub(crate) const RATE: u32 = 2_000;

/// Who decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Policy {
    /// What a line more costs is made the same on all nodes; moves must repay
    #[default]
    Balanced,
    /// Page by page as the published system: thresholds, no prediction
    Carrefour,
    /// Latencies are made equal, by bounds search
    Colloid,
}

impl Policy {
    /// As it is typed.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Balanced => "balanced",
            Self::Carrefour => "carrefour",
            Self::Colloid => "colloid",
        }
    }

    /// Whether it goes by what loads take.
    pub(crate) const fn needs_latency(self) -> bool {
        matches!(self, Self::Balanced | Self::Colloid)
    }
}

/// What is in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Options {
    pub(crate) policy: Policy,
    pub(crate) rate_mbps: u32,
    /// By name; those that can be used, if none is named.
    pub(crate) sensors: Vec<String>,
    pub(crate) cgroup: Option<String>,
    pub(crate) pid: Option<u32>,
    pub(crate) keep_numa_balancing: bool,
    /// Lines in a microsecond, on the whole machine, above which Carrefour acts; as published if not said.
    pub(crate) busy_above: Option<u32>,
}

impl Options {
    /// The most that moves.
    pub(crate) fn rate(&self) -> BytesPerSecond {
        BytesPerSecond(u64::from(self.rate_mbps) * 1_000_000)
    }

    /// Limits of the laws that know prices.
    pub(crate) fn balance(&self) -> balance::Config {
        let law = if self.policy == Policy::Colloid { Law::Average } else { Law::Marginal };
        balance::Config { law, rate: self.rate(), ..balance::Config::default() }
    }

    /// Carrefour's thresholds. Where accesses are not counted but only sampled, it is not known how busy the machine is, and
    /// that is not asked. Destinations are drawn anew each round, as published: drawn by the page they stop short of even.
    pub(crate) fn carrefour(&self, counted: bool, seed: u64) -> carrefour::Config {
        let usual = carrefour::Config::default();
        let said = self.busy_above.map(|lines| carrefour::Busy::Machine(u64::from(lines) * 1000));
        let busy = if counted { said.unwrap_or(usual.busy) } else { carrefour::Busy::Machine(0) };
        carrefour::Config { busy, draw: carrefour::Draw::Anew { seed }, ..usual }
    }
}
