//! Sources of bandwidths: a saved probe of this machine, firmware (HMAT, CDAT), or a file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context as _;
use nearfar_policy::{BandwidthByMix, BandwidthError};
use nearfar_probe::{ProbeReport, Source as ProbeSource};
use nearfar_topology::{BytesPerSecond, Initiator, Mix, Node, NodeId, NodeSet, Topology};

use super::{Figures, file};
use crate::exit::{EndsWith as _, Exit};

/// The source of bandwidths that the user selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum From {
    /// The saved probe of this machine.
    Probe,
    /// Firmware's figures: HMAT, CDAT.
    Hmat,
    /// No bandwidths: the kernel's current weights.
    Kernel,
    /// A file: a probe's report, or [`file`](mod@file).
    File(PathBuf),
}

impl FromStr for From {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "probe" => Self::Probe,
            "hmat" => Self::Hmat,
            "kernel" => Self::Kernel,
            file => Self::File(file.into()),
        })
    }
}

/// The bandwidths to look up.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Of this machine.
    pub machine: &'a Topology,
    /// Of these nodes.
    pub nodes: &'a NodeSet,
    /// As seen by the CPUs of these nodes; with `None`, each node as seen by its best CPUs.
    pub cpu_nodes: Option<&'a NodeSet>,
    /// At this mix.
    pub mix: Mix,
}

type ByMix = BTreeMap<NodeId, BandwidthByMix>;

/// Bandwidths from the source `from`; with `None`, from the saved probe, else from firmware.
///
/// # Errors
/// A message that names the missing figures and the command that provides them.
pub fn figures(from: Option<&From>, wanted: Wanted<'_>) -> anyhow::Result<Figures> {
    let probe = || saved(wanted.machine);
    match from {
        Some(From::Probe) => {
            let report = probe()?.context(
                "--from probe: no probe of this machine is saved; run `nearfar probe` first",
            )?;
            from_probe(&report, wanted, "probe")
        }
        Some(From::Hmat) => from_firmware(wanted),
        Some(From::File(path)) => {
            from_file(path, wanted).with_context(|| format!("--from {}", path.display()))
        }
        Some(From::Kernel) => anyhow::bail!("the kernel has weights, not bandwidths"),
        None => match probe()? {
            Some(report) => from_probe(&report, wanted, "probe"),
            None => from_firmware(wanted),
        },
    }
}

/// The saved probe of `machine`: the user's own, else the one root keeps for all.
///
/// # Errors
/// A saved probe can't be read.
pub fn saved(machine: &Topology) -> anyhow::Result<Option<ProbeReport>> {
    let fingerprint = machine.fingerprint();
    let mut dirs: Vec<PathBuf> = nearfar_probe::state_dir().into_iter().collect();
    if nearfar_kernel::environment::var("NEARFAR_STATE").is_none_or(|state| state.is_empty()) {
        dirs.push("/var/lib/nearfar".into());
    }
    for dir in dirs {
        if let Some(report) = nearfar_probe::load_matching(&dir, &fingerprint)? {
            return Ok(Some(report));
        }
    }
    Ok(None)
}

fn from_probe(report: &ProbeReport, wanted: Wanted<'_>, name: &str) -> anyhow::Result<Figures> {
    let mut by_mix = ByMix::new();
    for node in wanted.nodes.iter() {
        let pairs = report.pairs.iter().filter(|pair| pair.memory_node == node);
        let seen: Vec<_> = pairs
            .filter(|pair| wanted.cpu_nodes.is_none_or(|of| of.contains(pair.cpu_node)))
            .collect();
        // Where several CPU nodes see the node, the highest bandwidth comes closest to that of its controllers.
        let best = seen
            .iter()
            .max_by_key(|pair| pair.bandwidth.first().map(|at| at.median_bytes_per_second));
        let points = best.into_iter().flat_map(|pair| &pair.bandwidth);
        let points: Vec<_> = points
            .map(|at| {
                // Interleaved pages are used by all CPU nodes alike, each over its own link.
                let links = seen.iter().filter_map(|pair| {
                    let same = pair.bandwidth.iter().find(|other| other.mix == at.mix)?;
                    Some(same.median_bytes_per_second.0.saturating_mul(seen.len() as u64))
                });
                let bound = links.min().unwrap_or(u64::MAX);
                (at.mix, BytesPerSecond(at.median_bytes_per_second.0.min(bound)))
            })
            .collect();
        if points.is_empty() {
            continue;
        }
        let known = BandwidthByMix::from_points(points);
        by_mix.insert(node, known.with_context(|| format!("{name}: node {node}"))?);
    }
    let missing = "the probe did not measure it; run `nearfar probe` again, or leave the node out with --nodes";
    Ok(Figures {
        nodes: at_mix(&by_mix, wanted, missing)?,
        source: name.into(),
        emulated: Some(report.source == ProbeSource::Emulated),
        unknown_links: NodeSet::new(),
    })
}

fn from_firmware(wanted: Wanted<'_>) -> anyhow::Result<Figures> {
    let mut by_mix = ByMix::new();
    for node in wanted.nodes.iter() {
        let Some(known) = wanted.machine.nodes.get(&node) else { continue };
        if let Some((read, write)) = firmware(known, wanted.cpu_nodes) {
            let known = BandwidthByMix::from_read_write(read, write);
            by_mix.insert(node, known.with_context(|| format!("HMAT: node {node}"))?);
        }
    }
    let missing = if wanted.cpu_nodes.is_some() {
        "firmware (HMAT, CDAT) has no figures for those CPUs; `nearfar probe` measures them"
    } else {
        "firmware (HMAT, CDAT) has no figure; `nearfar probe` measures it, and weights from a saved probe are the default"
    };
    Ok(Figures {
        nodes: at_mix(&by_mix, wanted, missing)?,
        source: "hmat".into(),
        emulated: None,
        unknown_links: unknown_links(wanted),
    })
}

/// The nodes whose bandwidth from the CPUs of `cpu_nodes` is known: with a saved probe, all nodes it may have measured;
/// else those with firmware figures.
#[must_use]
pub fn seen_from(machine: &Topology, nodes: &NodeSet, cpu_nodes: &NodeSet) -> NodeSet {
    if saved(machine).is_ok_and(|saved| saved.is_some()) {
        return nodes.clone();
    }
    let known = |node: &NodeId| {
        machine.nodes.get(node).is_some_and(|node| firmware(node, Some(cpu_nodes)).is_some())
    };
    nodes.iter().filter(known).collect()
}

/// The CPU nodes that would use the wanted nodes, if firmware does not give figures for each pair.
fn unknown_links(wanted: Wanted<'_>) -> NodeSet {
    let initiators = |node: NodeId| -> NodeSet {
        let known = wanted.machine.nodes.get(&node);
        let accesses = known.into_iter().flat_map(|node| [&node.access0, &node.access1]);
        accesses.flatten().flat_map(|access| access.nodes.iter()).collect()
    };
    let own = || wanted.nodes.iter().flat_map(|node| initiators(node).iter().collect::<Vec<_>>());
    let cpu_nodes = wanted.cpu_nodes.cloned().unwrap_or_else(|| own().collect());
    let is_known = |node| {
        let known = initiators(node);
        cpu_nodes.iter().all(|cpu_node| known.contains(cpu_node))
    };
    if wanted.nodes.iter().all(is_known) { NodeSet::new() } else { cpu_nodes }
}

/// Read and write bandwidth of a node as its best CPUs see it, or as `cpu_nodes` do.
fn firmware(
    node: &Node,
    cpu_nodes: Option<&NodeSet>,
) -> Option<(BytesPerSecond, Option<BytesPerSecond>)> {
    let seen = |access: &&Initiator| {
        cpu_nodes.is_none_or(|of| access.nodes.iter().any(|node| of.contains(node)))
    };
    let accesses = [&node.access1, &node.access0].into_iter().filter_map(Option::as_ref);
    accesses.filter(seen).find_map(|access| {
        let attributes = access.attributes;
        Some((attributes.read_bandwidth?, attributes.write_bandwidth))
    })
}

fn from_file(path: &Path, wanted: Wanted<'_>) -> anyhow::Result<Figures> {
    let text = file::read(path).ends_with(Exit::Usage)?;
    if file::schema(&text).as_deref() == Some(nearfar_probe::SCHEMA) {
        let report = ProbeReport::parse(&text).ends_with(Exit::Usage)?;
        return from_probe(&report, wanted, &path.display().to_string());
    }
    let by_mix = file::parse(&text).ends_with(Exit::Usage)?;
    let missing = "the file has no entry for it; add one, or leave the node out with --nodes";
    Ok(Figures {
        nodes: at_mix(&by_mix, wanted, missing)?,
        source: path.display().to_string(),
        emulated: None,
        unknown_links: NodeSet::new(),
    })
}

/// Every wanted node's bandwidth at the wanted mix; a node without one is an error that ends with `missing`.
fn at_mix(
    by_mix: &ByMix,
    wanted: Wanted<'_>,
    missing: &str,
) -> anyhow::Result<BTreeMap<NodeId, BytesPerSecond>> {
    let mut found = BTreeMap::new();
    for node in wanted.nodes.iter() {
        let kind = wanted.machine.nodes.get(&node).map(|node| node.kind).unwrap_or_default();
        let who = || format!("weights for {}: node {node} ({kind})", wanted.nodes.named());
        let known = by_mix
            .get(&node)
            .with_context(|| format!("{} has no known bandwidth: {missing}", who()))?;
        let at: Result<_, BandwidthError> = known.at(wanted.mix);
        found.insert(node, at.with_context(who).ends_with(Exit::Usage)?);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_topology::MemoryKind;
    use nearfar_topology::testkit::{machine, node};

    fn wanted<'a>(machine: &'a Topology, nodes: &'a NodeSet) -> Wanted<'a> {
        Wanted { machine, nodes, cpu_nodes: None, mix: Mix::TWO_TO_ONE }
    }

    fn gb(figures: &Figures) -> Vec<u64> {
        figures.nodes.values().map(|bandwidth| bandwidth.0 / 1_000_000_000).collect()
    }

    fn pair() -> Topology {
        machine([
            node(0).cpus(0..4).access(100, 60_000, 30_000),
            node(1).kind(MemoryKind::Cxl).access(250, 27_000, 27_000),
        ])
    }

    #[test]
    fn firmwares_read_and_write_figures_are_combined_for_the_mix() {
        let machine = pair();
        let figures = from_firmware(wanted(&machine, &machine.memory_nodes())).unwrap();
        // 3 / (2/60 + 1/30) and 27.
        assert_eq!((gb(&figures), figures.source.as_str()), (vec![45, 27], "hmat"));
    }

    #[test]
    fn a_node_without_firmware_data_is_reported_with_the_remedy() {
        let machine = machine([node(0).cpus(0..4).access(100, 60_000, 30_000), node(1)]);
        let error = from_firmware(wanted(&machine, &machine.memory_nodes())).unwrap_err();
        let text = format!("{error:#}");
        assert!(
            text.contains("nodes 0-1: node 1 (dram)") && text.contains("nearfar probe"),
            "{text}"
        );
    }

    #[test]
    fn cpus_without_firmware_data_are_rejected() {
        let machine = pair();
        let (nodes, elsewhere) = (machine.memory_nodes(), [NodeId(9)].into_iter().collect());
        let wanted = Wanted { cpu_nodes: Some(&elsewhere), ..wanted(&machine, &nodes) };
        let text = format!("{:#}", from_firmware(wanted).unwrap_err());
        assert!(text.contains("no figures for those CPUs"), "{text}");
    }

    #[test]
    fn probe_results_are_read_for_the_mix_and_report_emulation() {
        let machine = pair();
        let report = nearfar_probe::testkit::report();
        let figures =
            from_probe(&report, wanted(&machine, &machine.memory_nodes()), "probe").unwrap();
        assert_eq!((gb(&figures), figures.emulated), (vec![50, 36], Some(false)));
    }

    #[test]
    fn a_node_the_probe_skipped_is_named() {
        let machine = machine([node(0).cpus(0..4), node(2)]);
        let report = nearfar_probe::testkit::report();
        let error = from_probe(&report, wanted(&machine, &machine.memory_nodes()), "probe");
        let text = format!("{:#}", error.unwrap_err());
        assert!(text.contains("node 2") && text.contains("did not measure"), "{text}");
    }

    #[test]
    fn a_mix_the_probe_did_not_cover_is_refused_as_usage() {
        let machine = pair();
        let report = nearfar_probe::testkit::report();
        let nodes = machine.memory_nodes();
        let wanted = Wanted { mix: Mix::new(1, 5).unwrap(), ..wanted(&machine, &nodes) };
        let error = from_probe(&report, wanted, "probe").unwrap_err();
        assert_eq!(crate::exit::of_error(&error), Exit::Usage);
        assert!(format!("{error:#}").contains("1:0, 2:1, 1:1"), "{error:#}");
    }
}
