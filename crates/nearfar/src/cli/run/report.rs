//! Residency of a program's memory: peak and final bytes per node, as text or JSON (`nearfar.run/1`).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;
use nearfar_kernel::residency::Residency;
use nearfar_kernel::watch::Ended;
use nearfar_topology::{Bytes, MemoryKind, NodeId, Topology};
use serde::Serialize;

use super::Args;
use super::plan::{Plan, Setting};
use nearfar_command::{json, output};

/// Memory that a process may share with others.
const SHARED: u64 = 8 << 20;

/// Peak and final residency of a program.
#[derive(Debug, Default)]
pub(super) struct Residencies {
    samples: u64,
    /// The peak of each node, each at its own time.
    peak: BTreeMap<NodeId, Bytes>,
    /// The peak of all nodes together.
    peak_total: Bytes,
    processes_max: usize,
    /// The last sample that found any memory.
    last: Residency,
    unreadable_max: usize,
    /// The largest memory of a single process, by the kernel's own account, if that is known.
    pub(super) peak_of_a_process: Option<Bytes>,
}

impl Residencies {
    /// Adds a sample. A program that is ending has no memory left; the sample before is then the last.
    pub(super) fn add(&mut self, sample: &Residency) {
        self.samples += 1;
        self.unreadable_max = self.unreadable_max.max(sample.unreadable);
        if sample.total() == Bytes(0) {
            return;
        }
        for (node, bytes) in &sample.nodes {
            let peak = self.peak.entry(*node).or_default();
            *peak = (*peak).max(*bytes);
        }
        self.peak_total = self.peak_total.max(sample.total());
        self.processes_max = self.processes_max.max(sample.processes);
        self.last = sample.clone();
    }

    /// The largest memory of a single process, if it was larger than all together in any sample.
    fn unseen_peak(&self) -> Option<Bytes> {
        // The kernel's figure counts pages of shared files whole.
        let slack = SHARED.max(self.peak_total.0 / 16);
        self.peak_of_a_process.filter(|peak| peak.0 > self.peak_total.0.saturating_add(slack))
    }
}

/// `nearfar.run/1`. Shared memory counts proportionally, so that a tree of processes counts it once.
#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    command: Vec<String>,
    /// As --dry-run shows it; null if the policy was not changed.
    memory_policy: Option<String>,
    cpus: Option<Vec<u32>>,
    /// The machine's weights set for this run; null if none were set.
    weights_set: Option<BTreeMap<NodeId, u8>>,
    exit_status: Option<u8>,
    signal: Option<u8>,
    samples: u64,
    processes_max: usize,
    /// Processes whose memory could not be read; the figures lack them.
    unreadable_processes_max: usize,
    nodes: Vec<Node>,
    peak_total_bytes: u64,
    /// The peak of a single process, if larger than `peak_total_bytes`: it was between samples, on nodes not known.
    unsampled_peak_bytes: Option<u64>,
    final_total_bytes: u64,
    final_huge_bytes: u64,
}

#[derive(Debug, Serialize)]
struct Node {
    id: NodeId,
    kind: MemoryKind,
    peak_bytes: u64,
    final_bytes: u64,
}

/// Destination of the report; opened before CMD starts, so that an invalid path is refused early.
#[derive(Debug)]
pub(super) enum Sink {
    StandardError,
    File(File),
}

impl Sink {
    pub(super) fn open(file: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = file else { return Ok(Self::StandardError) };
        let file = File::create(path);
        Ok(Self::File(file.with_context(|| format!("--report: can't write {}", path.display()))?))
    }

    pub(super) fn write(
        self,
        args: &Args,
        plan: &Plan,
        machine: &Topology,
        (seen, ended): (&Residencies, Ended),
    ) -> anyhow::Result<()> {
        let nodes = machine.nodes.iter().filter(|(_, node)| node.size > Bytes(0));
        fn bytes(of: &BTreeMap<NodeId, Bytes>, id: &NodeId) -> u64 {
            of.get(id).map_or(0, |bytes| bytes.0)
        }
        let node = |(id, node): (&NodeId, &nearfar_topology::Node)| Node {
            id: *id,
            kind: node.kind,
            peak_bytes: bytes(&seen.peak, id),
            final_bytes: bytes(&seen.last.nodes, id),
        };
        let report = Report {
            schema: "nearfar.run/1",
            command: args.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            memory_policy: plan.placement.policy.as_ref().map(ToString::to_string),
            cpus: plan.placement.cpus.as_ref().map(|cpus| cpus.iter().map(|cpu| cpu.0).collect()),
            weights_set: match &plan.setting {
                Setting::Set(weights) => Some(weights.iter().collect()),
                Setting::None | Setting::Suits | Setting::Own(_) => None,
            },
            exit_status: if let Ended::Status(status) = ended { Some(status) } else { None },
            signal: if let Ended::Signal(signal) = ended { Some(signal) } else { None },
            samples: seen.samples,
            processes_max: seen.processes_max,
            unreadable_processes_max: seen.unreadable_max,
            nodes: nodes.map(node).collect(),
            peak_total_bytes: seen.peak_total.0,
            unsampled_peak_bytes: seen.unseen_peak().map(|peak| peak.0),
            final_total_bytes: seen.last.total().0,
            final_huge_bytes: seen.last.huge.0,
        };
        match self {
            Self::StandardError => output::print_error(&report.to_string()),
            Self::File(mut file) => {
                let text = json::text(&report).context("can't write JSON")?;
                file.write_all((text + "\n").as_bytes()).context("can't write the file")?;
            }
        }
        Ok(())
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out =
            String::from("nearfar: memory by node\n  node  kind     peak         final\n");
        for Node { id, kind, peak_bytes, final_bytes } in &self.nodes {
            let (peak, last) = (Bytes(*peak_bytes).to_string(), Bytes(*final_bytes));
            writeln!(out, "  {id:<4}  {kind:<7}  {peak:<11}  {last}")?;
        }
        let (peak, last) =
            (Bytes(self.peak_total_bytes).to_string(), Bytes(self.final_total_bytes));
        writeln!(out, "  all            {peak:<11}  {last}")?;
        if self.peak_total_bytes == 0 {
            writeln!(out, "  (it ended before its memory was sampled)")?;
        }
        if let Some(peak) = self.unsampled_peak_bytes {
            let (peak, samples) = (Bytes(peak), self.samples);
            writeln!(
                out,
                "  (one of its processes had {peak} at its peak, between two of {samples} samples)"
            )?;
        }
        if self.unreadable_processes_max > 0 {
            let many = self.unreadable_processes_max;
            writeln!(out, "  ({many} of its processes could not be read and are missing here)")?;
        }
        f.write_str(&out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(nodes: &[(u16, u64)]) -> Residency {
        let nodes = nodes.iter().map(|(node, bytes)| (NodeId(*node), Bytes(*bytes))).collect();
        Residency { nodes, processes: 1, ..Residency::default() }
    }

    #[test]
    fn the_peak_is_by_node_and_the_last_sample_with_memory_is_final() {
        let mut seen = Residencies::default();
        for nodes in [&[(0, 10), (1, 1)][..], &[(0, 2), (1, 8)], &[(0, 3)], &[]] {
            seen.add(&sample(nodes));
        }
        assert_eq!(seen.peak, [(NodeId(0), Bytes(10)), (NodeId(1), Bytes(8))].into());
        assert_eq!((seen.peak_total, seen.samples), (Bytes(11), 4));
        assert_eq!(seen.last, sample(&[(0, 3)]));
    }

    #[test]
    fn a_peak_between_samples_is_distinguished_from_shared_pages() {
        let mut seen = Residencies::default();
        seen.add(&sample(&[(0, 100 << 20)]));
        for (mib, told) in [(90, false), (106, false), (108, false), (109, true)] {
            let peak = Bytes(mib << 20);
            seen.peak_of_a_process = Some(peak);
            assert_eq!(seen.unseen_peak(), told.then_some(peak), "{mib}");
        }
    }
}
