//! A wish for memory of a kind, and the host on which it is resolved.
//!
//! A type is a word of the proposed QEMU property (`cxlram`) or any node set in nearfar's grammar. It resolves to nodes that
//! are online and have memory: the kernel and QEMU ignore absent nodes in a list, so a typing error would silently
//! place memory elsewhere.

use std::collections::BTreeMap;

use nearfar_topology::{Bytes, NodeExpr, NodeId, NodeSet, NodeSetError, Topology};

use crate::error::VmError;
use crate::figures::Figures;
use crate::policy::Policy;

/// The key of the type.
pub const TYPE: &str = "host-mem-type";
/// The key of the policy.
pub const POLICY: &str = "host-mem-policy";

/// The host's memory.
#[derive(Clone, Debug)]
pub struct Host<'a> {
    /// Its nodes.
    pub machine: &'a Topology,
    /// Memory of each node that is free or can be reclaimed at once.
    pub room: BTreeMap<NodeId, Bytes>,
    /// Its huge pages.
    pub huge: HugePages,
    /// Latency and bandwidth of its nodes, if known.
    pub figures: Option<Figures>,
}

impl Host<'_> {
    /// Its figures, if they cover the nodes that a guest's memory is on; else a message names the others.
    pub(crate) fn covering(&self, needed: &NodeSet, notes: &mut Vec<String>) -> Option<&Figures> {
        let lacks = |node: &NodeId| !self.figures.as_ref().is_some_and(|all| all.cover([*node]));
        let unknown: NodeSet = needed.iter().filter(lacks).collect();
        if unknown.is_empty() {
            return self.figures.as_ref();
        }
        notes.push(format!(
            "the guest is given no HMAT, so it may take far memory for near memory: latency and bandwidth of the host's \
             nodes {unknown} are not known; run nearfar probe first"
        ));
        None
    }
}

/// Pools of huge pages, which free memory does not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HugePages {
    /// The size that is used unless another one is named.
    pub default: Option<Bytes>,
    /// Free pages in bytes, by page size and node. Empty if unknown.
    pub free: BTreeMap<Bytes, BTreeMap<NodeId, Bytes>>,
}

/// The nodes of the host that the type `text` names; `place` is the option, for messages.
///
/// # Errors
/// The type is unknown, or names nodes that are absent or have no memory.
pub fn nodes(place: &str, text: &str, machine: &Topology) -> Result<NodeSet, VmError> {
    let ours = |term: &str| if term.trim() == "cxlram" { "cxl".into() } else { term.to_owned() };
    let expression = text.split(',').map(ours).collect::<Vec<_>>().join(",");
    let named = expression.parse::<NodeExpr>().and_then(|expr| expr.resolve(machine, &[]));
    let place = place.to_owned();
    named.map_err(|error| match error {
        NodeSetError::BadTerm { .. } | NodeSetError::Empty => {
            VmError::UnknownType { place, text: text.to_owned(), has: machine.inventory() }
        }
        error => VmError::Nodes { place, error },
    })
}

/// The policy `text`.
///
/// # Errors
/// It is unknown.
pub fn policy(place: &str, text: &str) -> Result<Policy, VmError> {
    let unknown = |_| VmError::UnknownPolicy { place: place.to_owned(), text: text.to_owned() };
    text.parse().map_err(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_topology::MemoryKind;
    use nearfar_topology::testkit::{machine, node};

    fn two_devices() -> Topology {
        machine([
            node(0).cpus(0..4),
            node(1).gib(0),
            node(2).kind(MemoryKind::Cxl),
            node(3).kind(MemoryKind::Cxl),
        ])
    }

    #[test]
    fn the_word_of_the_proposal_and_the_grammar_of_nodes_both_resolve() {
        let machine = two_devices();
        for (text, expected) in [
            ("cxlram", "2-3"),
            ("cxl", "2-3"),
            ("2", "2"),
            ("far", "2-3"),
            ("dram,cxlram", "0,2-3"),
        ] {
            assert_eq!(nodes("-object a", text, &machine).unwrap().to_string(), expected, "{text}");
        }
    }

    #[test]
    fn a_refusal_names_the_option_and_the_nodes_present() {
        let machine = two_devices();
        for (text, part) in [
            ("hmb", "host-mem-type=hmb is unknown; types are cxlram"),
            ("", "is unknown"),
            ("hbm", "node set `hbm` names no node here"),
            ("1", "no node 1 with memory here"),
            ("2-7", "no node 4-7 with memory"),
            ("tier:9", "names no node"),
        ] {
            let error = nodes("-object a", text, &machine).unwrap_err().to_string();
            assert!(error.starts_with("-object a: ") && error.contains(part), "{text}: {error}");
            assert!(error.contains("this machine has node 0 (dram, 4 GiB)"), "{error}");
        }
    }

    #[test]
    fn an_unknown_policy_is_refused_with_the_known_ones() {
        let error = policy("-object a", "strict").unwrap_err().to_string();
        assert!(error.contains("bind, preferred, interleave and weighted-interleave"), "{error}");
        assert_eq!(policy("-object a", "weighted-interleave"), Ok(Policy::WeightedInterleave));
    }
}
