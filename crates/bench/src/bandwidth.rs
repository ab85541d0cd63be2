//! The bandwidth benchmark on this machine: every candidate under every mix, in rounds; results are medians of rounds.
//!
//! A quick probe runs first, as a user would run it once: it provides the bandwidths for `-w auto`. Candidates
//! alternate within a round, so that drift of the machine affects all of them alike. The kernel's own weights are those
//! it derives from the HMAT (`weighted_interleave/auto`, Linux 6.16); nearfar's overwrite them, so nearfar's changes
//! are undone before the kernel's turn.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use nearfar_kernel::fs::RootFs;
use nearfar_kernel::weights::{self, WeightsError};
use nearfar_policy::Weights;
use nearfar_probe::stats;
use nearfar_topology::{BasisPoints, BytesPerSecond, Mix, NodeId};
use serde::{Deserialize, Serialize};

use crate::demo::kernels;
use crate::demo::line::Line;
use crate::demo::placements;
use crate::demo::process::Launcher;
use crate::demo::saved::KeptWeights;
use nearfar_command::progress::Progress;
use nearfar_report::model::{MIXES, Machine, Node, Resident};
use nearfar_report::words;

/// The `schema` of a [`Found`].
pub(crate) const SCHEMA: &str = "nearfar.bench-bandwidth/1";
/// Time limit of the probe.
const PROBE_LIMIT: Duration = Duration::from_secs(600);

/// Results of one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Found {
    /// [`SCHEMA`].
    pub(crate) schema: String,
    /// The machine.
    pub machine: Machine,
    /// Number of rounds; figures are medians of them.
    pub(crate) rounds: u32,
    /// The reason why the kernel's own weights were not run, if they were not.
    pub(crate) kernel_weights_unavailable: Option<String>,
    /// Those weights, by node, if they were.
    pub(crate) kernel_weights: BTreeMap<u16, u8>,
    /// One per candidate and mix.
    pub(crate) runs: Vec<Run>,
}

/// A candidate under a mix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Run {
    /// The candidate.
    pub(crate) candidate: Candidate,
    /// Ratio of reads to writes.
    pub(crate) mix: Mix,
    /// Median of the rounds.
    pub(crate) bytes_per_second: u64,
    /// Each round.
    pub(crate) rounds_bytes_per_second: Vec<u64>,
    /// Residency of the buffer in the last round.
    pub(crate) residency: Vec<Resident>,
    /// Its command line.
    pub(crate) command: String,
}

/// The compared placements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Candidate {
    /// One node alone.
    Node(u16),
    /// No policy.
    Default,
    /// 1:1 interleaving.
    Interleave,
    /// The kernel's weights from the HMAT.
    KernelWeights,
    /// `nearfar run -w auto`.
    Auto,
}

impl Candidate {
    /// Name as text.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Node(node) => format!("node {node} alone"),
            Self::Default => "kernel default".into(),
            Self::Interleave => "1:1 interleave".into(),
            Self::KernelWeights => "kernel's weights".into(),
            Self::Auto => "-w auto".into(),
        }
    }

    /// Its command line of the stream program.
    fn line(self, mix: Mix) -> Line {
        let options = match self {
            Self::Node(node) => format!("-m {node}"),
            Self::Default => String::new(),
            Self::Interleave => "-i all".into(),
            Self::KernelWeights => "-w all".into(),
            Self::Auto => format!("-w auto --mix {mix}"),
        };
        placements::prefix(&options).and(&kernels::stream(mix))
    }
}

/// Runs everything `rounds` times; the output of every child is saved in `dir`.
pub(crate) fn run(
    machine: Machine,
    rounds: u32,
    dir: &Path,
    progress: bool,
) -> anyhow::Result<Found> {
    let nearfar = crate::demo::beside::program("nearfar")?;
    let launcher = Launcher { nearfar: &nearfar, dir };
    let kept = KeptWeights::of(launcher)?;
    let unavailable = kernel_weights_unavailable()?;
    let kernel_weights = kept.before().filter(|_| unavailable.is_none());
    let kernel_weights = kernel_weights.map_or_else(BTreeMap::new, |current| {
        let of = |node: &Node| Some((node.id, *current.nodes.get(&NodeId(node.id))?));
        machine.nodes.iter().filter_map(of).collect()
    });
    let candidates = candidates(&machine, unavailable.is_none());
    let steps = candidates.len() * MIXES.len() * rounds as usize + 1;
    let mut progress = Progress::new(steps, progress);
    progress.step("probe, for the weights of -w auto");
    launcher.run(&Line::words("nearfar probe --quick"), "probe.txt", PROBE_LIMIT)?;
    let mut runs: Vec<Run> = Vec::new();
    for round in 1..=rounds {
        for mix in MIXES {
            for &candidate in &candidates {
                progress.step(&format!("round {round}, {mix}, {}", candidate.name()));
                if candidate == Candidate::KernelWeights {
                    kept.put_back()?;
                }
                one(launcher, candidate, mix, &mut runs)?;
            }
        }
    }
    for run in &mut runs {
        let spread = stats::of_integers(&run.rounds_bytes_per_second);
        run.bytes_per_second = spread.map_or(0, |spread| spread.median);
    }
    let schema = SCHEMA.into();
    let kernel_weights_unavailable = unavailable;
    Ok(Found { schema, machine, rounds, kernel_weights_unavailable, kernel_weights, runs })
}

fn candidates(machine: &Machine, kernel_weights: bool) -> Vec<Candidate> {
    let mut candidates: Vec<_> =
        machine.nodes.iter().map(|node| Candidate::Node(node.id)).collect();
    candidates.extend([Candidate::Default, Candidate::Interleave]);
    candidates.extend(kernel_weights.then_some(Candidate::KernelWeights));
    candidates.push(Candidate::Auto);
    candidates
}

fn one(
    launcher: Launcher<'_>,
    candidate: Candidate,
    mix: Mix,
    runs: &mut Vec<Run>,
) -> anyhow::Result<()> {
    let line = candidate.line(mix);
    let outcome = kernels::one(launcher, &line, "stream")?;
    let of = |run: &&mut Run| run.candidate == candidate && run.mix == mix;
    if let Some(run) = runs.iter_mut().find(of) {
        run.rounds_bytes_per_second.push(outcome.median_bytes_per_second);
        run.residency = outcome.residency;
    } else {
        runs.push(Run {
            candidate,
            mix,
            bytes_per_second: 0,
            rounds_bytes_per_second: vec![outcome.median_bytes_per_second],
            residency: outcome.residency,
            command: line.to_string(),
        });
    }
    Ok(())
}

fn kernel_weights_unavailable() -> anyhow::Result<Option<String>> {
    let auto = match weights::read(&RootFs::live()?) {
        Err(WeightsError::Unsupported) => None,
        current => current?.auto,
    };
    Ok(match auto {
        None => Some("this kernel does not derive weights from the HMAT".into()),
        Some(auto) if auto.is_on => None,
        Some(auto) => Some(format!("the kernel's automatic weights are off (/{})", auto.path)),
    })
}

impl Found {
    /// Bandwidth of a candidate.
    pub(crate) fn of(&self, candidate: Candidate, mix: Mix) -> Option<u64> {
        let run = self.runs.iter().find(|run| run.candidate == candidate && run.mix == mix);
        run.map(|run| run.bytes_per_second)
    }

    /// Sum of the nodes' bandwidths alone.
    pub(crate) fn peaks(&self, mix: Mix) -> u64 {
        let nodes = self.machine.nodes.iter().map(|node| Candidate::Node(node.id));
        nodes.filter_map(|node| self.of(node, mix)).sum()
    }

    /// The loss of these weights against the sum of peaks, by the nodes' bandwidths alone.
    pub(crate) fn loss(&self, weights: &BTreeMap<u16, u8>, mix: Mix) -> Option<BasisPoints> {
        let of = |node: &u16| {
            Some((NodeId(*node), BytesPerSecond(self.of(Candidate::Node(*node), mix)?)))
        };
        let peaks = weights.keys().map(of).collect::<Option<_>>()?;
        Weights::new(weights.iter().map(|(node, pages)| (NodeId(*node), *pages)).collect())?
            .loss(&peaks)
    }

    /// The node of DRAM with CPUs, or the first: the reference of "over DRAM alone".
    pub(crate) fn dram(&self) -> Option<Candidate> {
        let nodes = &self.machine.nodes;
        let dram = nodes.iter().find(|node| node.kind == "dram" && node.cpus > 0);
        dram.or(nodes.first()).map(|node| Candidate::Node(node.id))
    }
}

/// The figures as a text table.
pub(crate) fn text(found: &Found) -> String {
    let mut out = format!("{}\n", words::about(&found.machine));
    for node in &found.machine.nodes {
        let _ = writeln!(out, "  {}", words::node(node));
    }
    let mixes =
        MIXES.iter().fold(String::new(), |row, mix| format!("{row}{:>14}", mix.to_string()));
    let _ = writeln!(out, "  {:<18}{mixes}   (medians of {} rounds)", "GB/s", found.rounds);
    let mut row = |name: &str, figure: &dyn Fn(Mix) -> Option<u64>| {
        let figures =
            MIXES.iter().map(|mix| figure(*mix).map_or_else(|| "–".into(), words::bandwidth));
        let cells = figures.fold(String::new(), |row, cell| format!("{row}{cell:>14}"));
        let _ = writeln!(out, "  {name:<18}{cells}");
    };
    for candidate in candidates(&found.machine, found.kernel_weights_unavailable.is_none()) {
        row(&candidate.name(), &|mix| found.of(candidate, mix));
    }
    row("sum of peaks", &|mix| Some(found.peaks(mix)));
    if let [first, rest @ ..] = found.kernel_weights.values().collect::<Vec<_>>().as_slice() {
        let all = rest.iter().fold(first.to_string(), |all, pages| format!("{all}:{pages}"));
        let _ = writeln!(out, "  kernel's weights are {all}");
    }
    if let Some(reason) = &found.kernel_weights_unavailable {
        let _ = writeln!(out, "  kernel's weights: not available: {reason}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_is_run_alone_and_kernel_weights_only_if_available() {
        let machine = nearfar_report::sample::report().machine;
        let names = |with| {
            candidates(&machine, with).iter().map(|of| of.name()).collect::<Vec<_>>().join(", ")
        };
        assert_eq!(
            names(false),
            "node 0 alone, node 1 alone, kernel default, 1:1 interleave, -w auto"
        );
        assert!(names(true).contains("kernel's weights, -w auto"));
    }
}
