//! The compared uses of memory, and their placements.
//!
//! Every row is the same program, `nearfar-load inference`, under a command line as a user would type it. Kinds are
//! written for machines with one near and one far node of memory, 0 and 1.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::demo::line::Line;
use crate::demo::placements;

/// A use of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Part {
    /// An instance on each CPU, which together exceed the bandwidth of near memory
    Saturating,
    /// An instance on every second CPU with dependent loads of single values, so that only latency counts
    Lookups,
    /// One instance that computes more than it reads
    Light,
    /// As many instances as fit
    Instances,
}

/// The placement of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Row {
    /// Near memory alone.
    Near,
    /// Far memory alone.
    Far,
    /// 1:1 interleaving by the kernel.
    Interleave,
    /// The kernel's default placement.
    Default,
    /// By load of memory, SMDK's `bw_saturation`.
    Saturation,
    /// By load of memory, SMDK's `bw_order`.
    Order,
    /// By load of memory, as weights.
    Weighted,
    /// By fixed weights that are known to be right here.
    Own,
    /// Model weights in far memory, contexts and everything else near.
    WeightsFar,
}

impl Part {
    /// All of them, in display order.
    pub(crate) const ALL: [Self; 4] =
        [Self::Saturating, Self::Lookups, Self::Light, Self::Instances];

    /// Description as text.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::Saturating => {
                "an instance on each CPU, streaming over weights and context: more than near memory gives"
            }
            Self::Lookups => {
                "an instance on every second CPU, from value to value, each found by the one before: bound by latency"
            }
            Self::Light => "one instance that computes more than it reads: memory is half idle",
            Self::Instances => "as many instances as memory has room for and CPUs can run",
        }
    }

    /// Its rows; the first is the reference of ratios.
    pub(crate) fn rows(self) -> &'static [Row] {
        match self {
            Self::Saturating => &[
                Row::Near,
                Row::Far,
                Row::Interleave,
                Row::Default,
                Row::Saturation,
                Row::Order,
                Row::Weighted,
                Row::Own,
            ],
            Self::Lookups | Self::Light => {
                &[Row::Near, Row::Far, Row::Saturation, Row::Order, Row::Weighted]
            }
            Self::Instances => &[Row::Near, Row::Default, Row::WeightsFar],
        }
    }

    /// Weights and context of an instance, in MiB.
    pub(crate) fn sizes_mib(self) -> [u64; 2] {
        match self {
            Self::Instances => [40, 20],
            _ => [4, 8],
        }
    }

    /// Its command line, with this many instances for this long.
    pub(crate) fn program(self, load: &str, instances: u64, seconds: Seconds) -> Line {
        let [weights, context] = self.sizes_mib();
        let more = match self {
            Self::Saturating => "",
            Self::Lookups => " --access lookup",
            Self::Light => " --batch 16",
            // Layers of 5 MiB, so that `from=4m` separates weights from everything else.
            Self::Instances => " --layers 8 --batch 64",
        };
        let Seconds { all, warm_up } = seconds;
        let options = format!(
            "inference --instances {instances} --weights-mib {weights} --context-mib {context}{more} \
             --seconds {all} --warm-up {warm_up} --json"
        );
        Line::new([load]).and(&Line::words(&options))
    }

    /// Its run time and the warm-up part: adaptive heaps need time to adapt.
    pub(crate) fn seconds(self, row: Row, smoke: bool) -> Seconds {
        match self {
            _ if smoke => Seconds { all: 0.1, warm_up: 0.0 },
            Self::Saturating if row.adapts() => Seconds { all: 1.2, warm_up: 0.6 },
            Self::Instances => Seconds { all: 0.4, warm_up: 0.0 },
            _ => Seconds { all: 0.4, warm_up: 0.1 },
        }
    }
}

/// Run time in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Seconds {
    /// Since all instances have their weights.
    pub(crate) all: f64,
    /// The warm-up part at its start.
    pub(crate) warm_up: f64,
}

impl Row {
    /// Name as text.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Near => "near only",
            Self::Far => "far only",
            Self::Interleave => "1:1 interleave",
            Self::Default => "kernel default",
            Self::Saturation => "adapt=bw_saturation",
            Self::Order => "adapt=bw_order",
            Self::Weighted => "adapt=weighted",
            Self::Own => "weighted:0=2,1=1",
            Self::WeightsFar => "weights far",
        }
    }

    /// Whether it adapts to the load of memory.
    pub(crate) fn adapts(self) -> bool {
        matches!(self, Self::Saturation | Self::Order | Self::Weighted)
    }

    /// The program's command line under it.
    pub(crate) fn line(self, program: &Line) -> Line {
        let heap = |conf: &str| {
            Line::words("nearfar run --heap").and(&Line::new([conf])).and(&Line::words("--"))
        };
        let prefix = match self {
            Self::Near => placements::prefix("-m near"),
            Self::Far => placements::prefix("-m far"),
            Self::Interleave => placements::prefix("-i all"),
            Self::Default => placements::prefix(""),
            Self::Saturation | Self::Order | Self::Weighted | Self::Own => heap(self.name()),
            Self::WeightsFar => heap("heap=far from=4m mmap=off"),
        };
        prefix.and(program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_lines_that_a_user_would_type() {
        let seconds = Seconds { all: 2.0, warm_up: 0.5 };
        let line =
            |part: Part, row: Row| row.line(&part.program("nearfar-load", 4, seconds)).to_string();
        assert_eq!(
            line(Part::Lookups, Row::Saturation),
            "nearfar run --heap adapt=bw_saturation -- nearfar-load inference --instances 4 --weights-mib 4 \
             --context-mib 8 --access lookup --seconds 2 --warm-up 0.5 --json"
        );
        assert_eq!(
            line(Part::Instances, Row::WeightsFar),
            "nearfar run --heap 'heap=far from=4m mmap=off' -- nearfar-load inference --instances 4 --weights-mib 40 \
             --context-mib 20 --layers 8 --batch 64 --seconds 2 --warm-up 0.5 --json"
        );
        assert!(line(Part::Saturating, Row::Default).starts_with("nearfar-load inference"));
    }

    #[test]
    fn every_part_refers_to_near_memory_alone() {
        assert!(Part::ALL.iter().all(|part| part.rows()[0] == Row::Near));
    }
}
