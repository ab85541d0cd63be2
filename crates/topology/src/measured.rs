//! Figures that `nearfar probe` has measured, as evidence for ranks: a small file beside the saved probe, because every
//! process that reads the topology reads it too.
//!
//! ```text
//! machine 0123456789abcdef          the fingerprint; figures of another machine are ignored
//! node 0 116 54900000000            idle latency in ns and read bandwidth in bytes per second, from its best CPUs
//! ```
//!
//! It counts only if it has every node with memory, because a figure says nothing without one to compare it with.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use core::fmt::Write as _;

use crate::machine::{Measured, Topology};
use crate::reader::Reader;
use crate::units::{BytesPerSecond, Nanoseconds, NodeId};

/// Where root's `nearfar probe` keeps it, below `/`.
pub const FILE: &str = "var/lib/nearfar/measured";

/// The text of the file.
#[must_use]
pub fn text(fingerprint: &str, nodes: &BTreeMap<NodeId, Measured>) -> String {
    let mut text = format!("machine {fingerprint}\n");
    for (id, Measured { latency, read_bandwidth }) in nodes {
        let _ = writeln!(text, "node {id} {} {}", latency.0, read_bandwidth.0);
    }
    text
}

/// Sets the figures of each node, if there are some of this machine. Kinds are already set.
pub(crate) fn read(reader: &mut Reader<'_>, machine: &mut Topology) {
    let Some(text) = reader.text(FILE) else { return };
    let (mut lines, mut nodes) = (text.lines(), BTreeMap::new());
    let owner = lines.next().and_then(|line| line.strip_prefix("machine "));
    if owner.is_none() {
        return reader.note(FILE, "not a file of measured figures; ignored");
    }
    if owner.map(str::trim) != Some(machine.fingerprint().as_str()) {
        return;
    }
    for line in lines {
        match node(line) {
            Some((id, figures)) => {
                nodes.insert(id, figures);
            }
            None => {
                return reader.note(FILE, format!("`{line}` is not `node ID NS BYTES`; ignored"));
            }
        }
    }
    let memory = machine.memory_nodes();
    let missing = memory.iter().find(|id| !nodes.contains_key(id));
    if let Some(id) = missing {
        return reader.note(FILE, format!("has no figures of node {id}; ignored"));
    }
    for id in memory.iter() {
        if let Some(node) = machine.nodes.get_mut(&id) {
            node.measured = nodes.get(&id).copied();
        }
    }
}

fn node(line: &str) -> Option<(NodeId, Measured)> {
    let mut words = line.strip_prefix("node ")?.split(' ');
    let mut next = || words.next()?.parse::<u64>().ok();
    let (id, latency, rate) = (next()?, next()?, next()?);
    let id = NodeId(u16::try_from(id).ok()?);
    let figures = Measured { latency: Nanoseconds(latency), read_bandwidth: BytesPerSecond(rate) };
    (words.next().is_none() && latency > 0 && rate > 0).then_some((id, figures))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::{machine, node};
    use crate::{MemoryKind, Tree};

    fn found(text: &str) -> (bool, usize) {
        let mut tree = Tree::new();
        tree.insert(FILE, text);
        let mut machine = machine([node(0).cpus(0..2), node(1).kind(MemoryKind::Cxl)]);
        let mut reader = Reader { tree: &tree, findings: alloc::vec::Vec::new() };
        read(&mut reader, &mut machine);
        (machine.nodes[&NodeId(1)].measured.is_some(), reader.findings.len())
    }

    #[test]
    fn figures_are_used_only_if_complete_and_of_this_machine() {
        let print = machine([node(0).cpus(0..2), node(1).kind(MemoryKind::Cxl)]).fingerprint();
        let figures =
            Measured { latency: Nanoseconds(116), read_bandwidth: BytesPerSecond(54_900_000_000) };
        let nodes: BTreeMap<_, _> = [(NodeId(0), figures), (NodeId(1), figures)].into();
        assert_eq!(found(&text(&print, &nodes)), (true, 0));
        assert_eq!(found(&text("another", &nodes)), (false, 0));
        let one: BTreeMap<_, _> = [(NodeId(0), figures)].into();
        assert_eq!(found(&text(&print, &one)), (false, 1));
        for line in [
            "",
            "node",
            "node 1",
            "node 1 2",
            "node 1 2 3 4",
            "node 1 0 3",
            "node 1 2 -3",
            "node 99999 1 1",
        ] {
            assert_eq!(
                found(&(text(&print, &nodes) + line + "\nnode 9 1 1")),
                (false, 1),
                "{line}"
            );
        }
        assert_eq!(found("{}"), (false, 1));
    }
}
