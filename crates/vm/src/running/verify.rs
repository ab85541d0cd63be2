//! Compares the placement requested for a backend with the one the kernel reports.
//!
//! Pages of a backend are counted by mapping where mappings are parts of its blocks, and page by page where a mapping
//! extends beyond a block (the kernel merges neighbours of equal policy). The verdict:
//!
//! - *unattached*: no device and no node of the guest uses the backend, and QEMU reports no address of it;
//! - *untouched*: no page is resident yet, so nothing is placed and nothing is wrong;
//! - *wrong*: pages are on nodes that a bind or interleave policy excludes; or the kernel's policy text has other nodes
//!   than requested, as it drops absent ones without an error; or weighted shares are off;
//! - *elsewhere*: pages of a `preferred` policy are on other nodes, as it permits when the preferred ones were full;
//! - *as requested*; and *no request*, if the policy is the default.
//!
//! Interleaving deals pages out by address, in folios. So shares are compared only if the backend is wholly resident,
//! and may differ by the huge pages that a node has in one round, and by one in a hundred.

use std::collections::BTreeMap;

use nearfar_kernel::mapped::Mapping;
use nearfar_topology::{Bytes, NodeId, NodeSet};

use crate::policy::Policy;

/// A huge page.
const HUGE: u64 = 2 << 20;

/// A requested placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its policy; `None` for QEMU's default, which requests nothing.
    pub policy: Option<Policy>,
    /// Its nodes.
    pub nodes: NodeSet,
    /// Weights of weighted interleave; nodes without one have weight 1.
    pub weights: BTreeMap<NodeId, u8>,
}

/// The mode at the start of the kernel's text of a policy; without flags.
const fn mode(policy: Policy) -> &'static str {
    match policy {
        Policy::Bind => "bind",
        Policy::Preferred => "prefer",
        Policy::Interleave => "interleave",
        Policy::WeightedInterleave => "weighted interleave",
    }
}

/// The placement that the kernel reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fact {
    /// The policies of its mappings, each once.
    pub policies: Vec<String>,
    /// Resident bytes by node.
    pub nodes: BTreeMap<NodeId, Bytes>,
}

impl Fact {
    /// Resident bytes.
    #[must_use]
    pub fn resident(&self) -> Bytes {
        Bytes(self.nodes.values().fold(0, |sum, bytes| sum.saturating_add(bytes.0)))
    }
}

/// The result of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As requested.
    AsRequested,
    /// Nothing was requested.
    NoRequest,
    /// It is no part of the guest, and QEMU reports no address of it.
    Unattached,
    /// No page is resident.
    Untouched,
    /// Pages that are elsewhere than preferred.
    Elsewhere(Bytes),
    /// Not as requested, with the reason.
    Wrong(String),
}

impl Verdict {
    /// A keyword for it.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::AsRequested => "as_requested",
            Self::NoRequest => "no_request",
            Self::Unattached => "unattached",
            Self::Untouched => "untouched",
            Self::Elsewhere(_) => "elsewhere",
            Self::Wrong(_) => "wrong",
        }
    }
}

/// The facts about address ranges. `pages` returns the resident bytes by node of a range, counted page by page; with
/// `exact`, all are counted so.
pub fn fact(
    ranges: &[(u64, u64)],
    mappings: &[Mapping],
    exact: bool,
    mut pages: impl FnMut(u64, u64) -> BTreeMap<NodeId, Bytes>,
) -> Fact {
    let mut fact = Fact::default();
    for (first, last) in ranges {
        let overlaps = |mapping: &&Mapping| mapping.start < *last && *first < mapping.end;
        for mapping in mappings.iter().filter(overlaps) {
            if !fact.policies.contains(&mapping.policy) {
                fact.policies.push(mapping.policy.clone());
            }
            let (start, end) = (mapping.start.max(*first), mapping.end.min(*last));
            let is_whole = (start, end) == (mapping.start, mapping.end);
            let nodes = match is_whole && !exact {
                true => mapping.nodes.clone(),
                false => pages(start, end),
            };
            for (node, bytes) in nodes {
                let sum = fact.nodes.entry(node).or_default();
                sum.0 = sum.0.saturating_add(bytes.0);
            }
        }
    }
    fact
}

/// Compares a request with the facts about memory of `size`, in host pages of `page`.
#[must_use]
pub fn compare(request: &Request, fact: &Fact, (size, page): (Bytes, Bytes)) -> Verdict {
    let page = page.0.max(HUGE);
    let Some(requested) = request.policy else { return Verdict::NoRequest };
    for policy in &fact.policies {
        if let Some(reason) = other_policy(requested, &request.nodes, policy) {
            return Verdict::Wrong(reason);
        }
    }
    let resident = fact.resident();
    if resident == Bytes(0) {
        return Verdict::Untouched;
    }
    let outside: Vec<(NodeId, Bytes)> = fact
        .nodes
        .iter()
        .filter(|(node, bytes)| !request.nodes.contains(**node) && bytes.0 > 0)
        .map(|(node, bytes)| (*node, *bytes))
        .collect();
    if !outside.is_empty() {
        let bytes = Bytes(outside.iter().map(|(_, bytes)| bytes.0).sum());
        if requested == Policy::Preferred {
            return Verdict::Elsewhere(bytes);
        }
        let list: Vec<String> =
            outside.iter().map(|(node, bytes)| format!("{bytes} on node {node}")).collect();
        return Verdict::Wrong(format!("{}, outside of {}", list.join(", "), request.nodes));
    }
    match uneven(request, fact, (size.0, page)) {
        Some(reason) if resident.0.saturating_add(page) >= size.0 => Verdict::Wrong(reason),
        _ => Verdict::AsRequested,
    }
}

/// The reason why a policy text of the kernel is not the requested one. `restrictive` modes and a policy of the whole
/// process have other texts only where QEMU was not asked for any.
fn other_policy(requested: Policy, nodes: &NodeSet, text: &str) -> Option<String> {
    let (found, list) = text.rsplit_once(':').unwrap_or((text, ""));
    let found = found.split('=').next().unwrap_or_default().trim_end_matches(" (many)");
    let has = NodeSet::parse_list(list).unwrap_or_default();
    let missing: NodeSet = nodes.without(&has);
    if found == mode(requested) && !missing.is_empty() {
        return Some(format!(
            "the kernel's policy is {text}, without node {missing} of the requested {nodes}: it is absent, or the process's \
             cpuset excludes it"
        ));
    }
    let is_it = found == mode(requested) && has == *nodes;
    let asked = format!("{requested} of nodes {nodes}");
    (!is_it).then(|| format!("the kernel's policy is {text}, requested was {asked}"))
}

/// A node whose share differs from its weight's by more than a round of pages that is not complete, and one in a hundred.
fn uneven(request: &Request, fact: &Fact, (size, page): (u64, u64)) -> Option<String> {
    let weight = |node: NodeId| match request.policy? {
        Policy::Interleave => Some(1_u64),
        Policy::WeightedInterleave => {
            Some(u64::from(request.weights.get(&node).copied().unwrap_or(1)))
        }
        Policy::Bind | Policy::Preferred => None,
    };
    let weights: BTreeMap<NodeId, u64> =
        request.nodes.iter().map(|node| Some((node, weight(node)?))).collect::<Option<_>>()?;
    let all: u64 = weights.values().sum();
    for (node, weight) in &weights {
        let due = u128::from(fact.resident().0) * u128::from(*weight) / u128::from(all.max(1));
        let due = u64::try_from(due).unwrap_or(u64::MAX);
        let has = fact.nodes.get(node).map_or(0, |bytes| bytes.0);
        if has.abs_diff(due) > page.saturating_mul(*weight).saturating_add(size / 100) {
            return Some(format!(
                "{} on node {node}, where {} is its share",
                Bytes(has),
                Bytes(due)
            ));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn nodes(text: &str) -> NodeSet {
        NodeSet::parse_list(text).unwrap()
    }

    fn request(policy: Policy, of: &str) -> Request {
        Request { policy: Some(policy), nodes: nodes(of), weights: BTreeMap::new() }
    }

    fn mapping(start: u64, end: u64, policy: &str, mib: &[(u16, u64)]) -> Mapping {
        let nodes = mib.iter().map(|(node, mib)| (NodeId(*node), Bytes(mib * MIB))).collect();
        Mapping { start, end, policy: policy.to_owned(), nodes, file: None, is_private: true }
    }

    fn facts(policy: &str, mib: &[(u16, u64)]) -> Fact {
        let mappings = [mapping(0, 64 * MIB, policy, mib)];
        fact(&[(0, 64 * MIB)], &mappings, false, |_, _| panic!("it is whole"))
    }

    fn compared(request: &Request, policy: &str, mib: &[(u16, u64)]) -> Verdict {
        compare(request, &facts(policy, mib), (Bytes(64 * MIB), Bytes(4096)))
    }

    #[test]
    fn pages_where_they_were_requested_are_as_requested() {
        let bound = request(Policy::Bind, "1");
        assert_eq!(compared(&bound, "bind:1", &[(1, 64)]), Verdict::AsRequested);
        assert_eq!(compared(&bound, "bind=static:1", &[(1, 3)]), Verdict::AsRequested);
        assert_eq!(compared(&bound, "bind:1", &[]), Verdict::Untouched);
        let preferred = request(Policy::Preferred, "1");
        assert_eq!(compared(&preferred, "prefer (many):1", &[(1, 64)]), Verdict::AsRequested);
        assert_eq!(
            compared(&preferred, "prefer:1", &[(1, 60), (0, 4)]),
            Verdict::Elsewhere(Bytes(4 * MIB))
        );
        let nothing = Request { policy: None, nodes: nodes(""), weights: BTreeMap::new() };
        assert_eq!(compared(&nothing, "default", &[(0, 64)]), Verdict::NoRequest);
    }

    #[test]
    fn pages_elsewhere_and_nodes_that_the_kernel_dropped_are_wrong() {
        let wrong = |request: &Request, policy: &str, mib: &[(u16, u64)]| match compared(
            request, policy, mib,
        ) {
            Verdict::Wrong(reason) => reason,
            other => panic!("{other:?}"),
        };
        let reason = wrong(&request(Policy::Bind, "1"), "bind:1", &[(1, 60), (0, 4)]);
        assert_eq!(reason, "4 MiB on node 0, outside of 1");
        let reason = wrong(&request(Policy::Bind, "0-1"), "bind:0", &[(0, 64)]);
        assert!(reason.contains("without node 1 of the requested 0-1"), "{reason}");
        // Accepted by qom-set on a backend that is mapped already.
        let reason = wrong(&request(Policy::Interleave, "0-1"), "bind:0", &[(0, 64)]);
        assert!(reason.contains("the kernel's policy is bind:0"), "{reason}");
        let reason = wrong(&request(Policy::Bind, "0"), "bind:0-1", &[]);
        assert!(reason.contains("the kernel's policy is bind:0-1"), "{reason}");
    }

    #[test]
    fn shares_are_compared_once_all_is_resident() {
        let weights = BTreeMap::from([(NodeId(0), 3), (NodeId(1), 1)]);
        let weighted = Request { weights, ..request(Policy::WeightedInterleave, "0-1") };
        let text = "weighted interleave:0-1";
        assert_eq!(compared(&weighted, text, &[(0, 48), (1, 16)]), Verdict::AsRequested);
        assert_eq!(compared(&weighted, text, &[(0, 47), (1, 17)]), Verdict::AsRequested);
        assert!(matches!(compared(&weighted, text, &[(0, 32), (1, 32)]), Verdict::Wrong(_)));
        assert_eq!(compared(&weighted, text, &[(0, 20)]), Verdict::AsRequested, "not all yet");
        let even = request(Policy::Interleave, "0-1");
        assert!(matches!(
            compared(&even, "interleave:0-1", &[(0, 48), (1, 16)]),
            Verdict::Wrong(_)
        ));
    }

    #[test]
    fn a_mapping_beyond_the_block_is_counted_page_by_page() {
        let mappings = [mapping(0, 128 * MIB, "bind:1", &[(0, 64), (1, 64)])];
        let mut asked = Vec::new();
        let found = fact(&[(32 * MIB, 96 * MIB)], &mappings, false, |start, end| {
            asked.push((start / MIB, end / MIB));
            BTreeMap::from([(NodeId(1), Bytes(end - start))])
        });
        assert_eq!(asked, [(32, 96)]);
        assert_eq!(found.nodes, BTreeMap::from([(NodeId(1), Bytes(64 * MIB))]));
    }

    proptest! {
        #[test]
        fn memory_dealt_out_by_weights_is_as_requested(
            weights in prop::collection::btree_map(0u16..8, 1u8..=255, 1..6), mib in 64u64..4_096,
        ) {
            let all: u64 = weights.values().map(|weight| u64::from(*weight)).sum();
            let of = weights.keys().map(|node| NodeId(*node)).collect::<NodeSet>();
            let shares: Vec<(u16, u64)> =
                weights.iter().map(|(node, weight)| (*node, mib * u64::from(*weight) / all)).collect();
            let weights = weights.iter().map(|(node, weight)| (NodeId(*node), *weight)).collect();
            let policy = Some(Policy::WeightedInterleave);
            let request = Request { policy, nodes: of.clone(), weights };
            let fact = facts(&format!("weighted interleave:{of}"), &shares);
            prop_assert!(!matches!(compare(&request, &fact, (Bytes(mib * MIB), Bytes(4096))), Verdict::Wrong(_)));
        }

        #[test]
        fn any_page_outside_of_a_binding_is_wrong(of in 0u16..4, on in 4u16..8, mib in 1u64..64) {
            let request = request(Policy::Bind, &of.to_string());
            let verdict = compared(&request, &format!("bind:{of}"), &[(of, 64 - mib), (on, mib)]);
            prop_assert!(matches!(verdict, Verdict::Wrong(_)));
        }
    }
}
