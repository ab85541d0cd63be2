//! The bandwidth kernels: `nearfar-bench stream` under each placement and mix, and on each node alone.
//!
//! The stream program allocates plain memory without a policy of its own, so its placement is that of its start. A
//! node's bandwidth alone comes from a placement that used only that node, or from a separate run.

use std::time::Duration;

use anyhow::Context as _;
use nearfar_topology::Mix;

use super::line::Line;
use super::placements;
use super::process::Launcher;
use crate::stream::Outcome;
use nearfar_command::progress::Progress;
use nearfar_report::model::{Bandwidth, BandwidthRun, MIXES, Machine, Peak, Placement};

/// Time limit of one run.
const LIMIT: Duration = Duration::from_secs(120);

/// The program under test.
pub(crate) fn stream(mix: Mix) -> Line {
    Line::words(&format!("nearfar-bench stream --mix {mix} --json"))
}

/// Number of progress steps of [`run`].
pub(crate) fn steps(machine: &Machine, of: &[Placement]) -> usize {
    MIXES.len() * (of.len() + alone(machine).len())
}

/// Runs every mix under every available placement, and on each node alone.
pub(crate) fn run(
    launcher: Launcher<'_>,
    machine: &Machine,
    of: &[Placement],
    progress: &mut Progress,
) -> anyhow::Result<Bandwidth> {
    let mut found =
        Bandwidth { threads: 0, buffer_bytes: 0, repeats: 0, runs: vec![], peaks: vec![] };
    for mix in MIXES {
        for placement in of.iter().filter(|placement| placement.unavailable.is_none()) {
            progress.step(&format!("bandwidth, {mix}, {}", placement.name));
            let line = placements::under(placement, Some(mix), &stream(mix));
            let outcome = one(launcher, &line, &format!("stream-{}-{}", placement.id, file(mix)))?;
            (found.threads, found.buffer_bytes) = (outcome.threads, outcome.buffer_bytes);
            found.repeats = outcome.repeats;
            if let Some(node) = only_node(machine, &placement.id) {
                found.peaks.push(Peak {
                    node,
                    mix,
                    bytes_per_second: outcome.median_bytes_per_second,
                });
            }
            found.runs.push(BandwidthRun {
                placement: placement.id.clone(),
                mix,
                bytes_per_second: outcome.median_bytes_per_second,
                spread_bp: outcome.spread_bp,
                residency: outcome.residency,
                command: line.to_string(),
            });
        }
        for node in alone(machine) {
            progress.step(&format!("bandwidth, {mix}, node {node} alone"));
            let line = placements::on_node(node).and(&stream(mix));
            let outcome = one(launcher, &line, &format!("stream-node{node}-{}", file(mix)))?;
            found.peaks.push(Peak { node, mix, bytes_per_second: outcome.median_bytes_per_second });
        }
    }
    Ok(found)
}

/// One run of the stream program.
pub(crate) fn one(launcher: Launcher<'_>, line: &Line, name: &str) -> anyhow::Result<Outcome> {
    let text = launcher.run(line, &format!("{name}.json"), LIMIT)?;
    serde_json::from_str(&text).with_context(|| format!("reading the result of `{line}`"))
}

/// The node of a placement that uses only one node of this machine.
fn only_node(machine: &Machine, placement: &str) -> Option<u16> {
    let near = match placement {
        "near" => true,
        "far" => false,
        _ => return None,
    };
    let mut nodes = machine.nodes.iter().filter(|node| node.near == near).map(|node| node.id);
    let first = nodes.next()?;
    nodes.next().is_none().then_some(first)
}

/// Nodes that are not the only node of any placement.
fn alone(machine: &Machine) -> Vec<u16> {
    let covered: Vec<_> = ["near", "far"].iter().filter_map(|id| only_node(machine, id)).collect();
    let ids = machine.nodes.iter().map(|node| node.id);
    ids.filter(|id| !covered.contains(id)).collect()
}

fn file(mix: Mix) -> String {
    format!("{}-{}", mix.reads(), mix.writes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_report::model::Node;
    use nearfar_report::sample;

    #[test]
    fn on_two_nodes_near_only_and_far_only_are_the_peaks() {
        let machine = sample::report().machine;
        assert_eq!(only_node(&machine, "near"), Some(0));
        assert_eq!(only_node(&machine, "far"), Some(1));
        assert_eq!(only_node(&machine, "default"), None);
        assert!(alone(&machine).is_empty());
    }

    #[test]
    fn with_two_far_nodes_each_is_run_alone() {
        let mut machine = sample::report().machine;
        let third = Node { id: 2, ..machine.nodes[1].clone() };
        machine.nodes.push(third);
        assert_eq!(only_node(&machine, "far"), None);
        assert_eq!(alone(&machine), [1, 2]);
        assert_eq!(steps(&machine, &placements::all()), 3 * 7);
    }
}
