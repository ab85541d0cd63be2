//! Tiers: ranks of nodes with memory, fastest first.
//!
//! The user's statement of a node's kind decides its rank. Then a saved probe of this machine decides, where it compares a
//! node without CPUs with DRAM clearly (`infer.rs` has the bounds): as DRAM, as memory behind a link, as HBM; if its tiers
//! differ from those without it, a finding says so. Without a probe, the rest follows.
//!
//! The kernel's memory tiers come first (`sys/devices/virtual/memory_tiering/memory_tierN/nodelist`; a smaller N is
//! faster). But a kernel puts memory in DRAM's tier if it has no other information: CXL memory that firmware set up, a
//! kernel without HMAT, or one older than tiers. So each of its tiers is split where a node's kind has another rank:
//! `hbm`, then `dram`, then `cxl`, then `pmem`. Only tiers with CPU nodes are split. There, kinds known by a CXL or nd
//! region or by the user always count; weaker evidence (HMAT, and for nodes of unknown kind the SLIT distance to the
//! nearest CPUs) only where the kernel has all memory in one tier, because a kernel that made several has used the same
//! HMAT already. A distance is the weakest evidence: it counts only for memory of unknown kind, and only if it is 14
//! or more (HBM on the package has been seen at 13 and, on Xeon Phi, at 31, and is not slower). `known_by` is the
//! evidence for a tier. Kernels before 6.1 report no tiers: that counts as one for all, which is then split.
//!
//! Sockets are not tiers: DRAM of all CPU nodes is one rank, within which nodes are local or remote to a CPU
//! ([`Topology::local`]).

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;

use crate::infer::{self, Figures};
use crate::kernel_tiers::{self, TIERING};
use crate::kind::{KnownBy, MemoryKind};
use crate::machine::{Node, Tier, Topology};
use crate::measured;
use crate::nodeset::NodeSet;
use crate::reader::Reader;
use crate::units::NodeId;

/// The SLIT's least distance of memory behind a link: 14 has been seen for CXL memory, 13 for HBM on the package.
const DISTANT: u32 = 14;

/// The tiers of `machine`; its kinds are already set. Together they contain every node with memory exactly once.
pub(crate) fn tiers(reader: &mut Reader<'_>, machine: &Topology) -> Vec<Tier> {
    let told = told(reader, machine);
    let Some(probed) = probed(machine, &told) else { return told };
    let nodes =
        |tiers: &[Tier]| -> Vec<NodeSet> { tiers.iter().map(|tier| tier.nodes.clone()).collect() };
    let other = told
        .iter()
        .map(|tier| tier.known_by)
        .filter(|by| !matches!(by, KnownBy::User | KnownBy::Cpus | KnownBy::Nothing));
    if let Some(by) = other.min().filter(|_| nodes(&told) != nodes(&probed)) {
        let shown = |tiers: &[Tier]| {
            let nodes: Vec<_> = tiers.iter().map(|tier| format!("{}", tier.nodes)).collect();
            nodes.join(" | ")
        };
        reader.note(
            measured::FILE,
            format!(
                "the saved probe ranks nodes {}, {by} would rank them {}; the probe's ranks are used",
                shown(&probed),
                shown(&told)
            ),
        );
    }
    probed
}

/// The tiers by a saved probe and the user's statements; `None` without a probe. `told` are those without it.
fn probed(machine: &Topology, told: &[Tier]) -> Option<Vec<Tier>> {
    let memory = machine.memory_nodes();
    let figures = |id: NodeId| machine.nodes.get(&id)?.measured.map(Figures::from);
    if memory.is_empty() || memory.iter().any(|id| figures(id).is_none()) {
        return None;
    }
    let has_cpus = |id: &NodeId| machine.nodes.get(id).is_some_and(|node| !node.cpus.is_empty());
    let is_dram =
        |id: &NodeId| machine.nodes.get(id).is_some_and(|node| node.kind == MemoryKind::Dram);
    let own: Vec<NodeId> = memory.iter().filter(has_cpus).collect();
    let dram: Vec<Figures> = own.iter().copied().filter(is_dram).filter_map(figures).collect();
    let all: Vec<Figures> = match own.is_empty() {
        true => memory.iter().filter_map(figures).collect(),
        false => own.iter().copied().filter_map(figures).collect(),
    };
    let reference = infer::best(if dram.is_empty() { &all } else { &dram });
    let mut ranks = Ranks::default();
    for id in memory.iter() {
        let by_kind = rank(machine, id, true);
        let node = machine.nodes.get(&id)?;
        let like = figures(id).and_then(|own| infer::by_figures(&reference, &own));
        let (rank, known_by) = match like {
            _ if node.known_by == KnownBy::User => by_kind,
            _ if !node.cpus.is_empty() => (by_kind.0, KnownBy::Probe),
            Some(MemoryKind::Hbm) => (Rank::Hbm, KnownBy::Probe),
            Some(MemoryKind::Dram) => (Rank::Dram, KnownBy::Probe),
            Some(_) if node.kind == MemoryKind::Pmem => (Rank::Pmem, KnownBy::Probe),
            Some(_) => (Rank::Cxl, KnownBy::Probe),
            None => by_kind,
        };
        let kernel_id = told.iter().find(|tier| tier.nodes.contains(id))?.kernel_id;
        ranks.insert(id, (rank, known_by), kernel_id);
    }
    Some(ranks.0.into_values().collect())
}

/// The tiers without a probe.
fn told(reader: &mut Reader<'_>, machine: &Topology) -> Vec<Tier> {
    let memory = machine.memory_nodes();
    let mut groups = kernel_tiers::read(reader, &memory);
    let told: NodeSet = groups.values().flat_map(NodeSet::iter).collect();
    let untold: NodeSet = memory.without(&told);
    if !untold.is_empty() && !told.is_empty() {
        reader.note(TIERING, format!("node {untold} has memory but no tier; ranked by its kind"));
    }
    let cpus = machine.cpu_nodes();
    let has_cpus = |nodes: &NodeSet| nodes.iter().any(|id| cpus.contains(id));
    let beside = groups.iter().find(|(_, nodes)| has_cpus(nodes)).and_then(|(id, _)| *id);
    let place = beside.or_else(|| groups.keys().next().copied().flatten());
    if !untold.is_empty() {
        let group = groups.entry(place).or_default();
        *group = group.iter().chain(untold.iter()).collect();
    }
    let single = groups.len() == 1;
    let split_or_whole = |(id, nodes): (Option<u32>, NodeSet)| match single || has_cpus(&nodes) {
        true => split(machine, id, &nodes, single),
        false => Vec::from([Tier { kernel_id: id, nodes, known_by: KnownBy::MemoryTier }]),
    };
    groups.into_iter().flat_map(split_or_whole).collect()
}

/// Ranks within one tier, fastest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Hbm,
    Dram,
    Cxl,
    Pmem,
}

/// A tier for each rank that has nodes.
#[derive(Default)]
struct Ranks(BTreeMap<Rank, Tier>);

impl Ranks {
    /// A tier has the strongest evidence and the fastest kernel tier of its nodes.
    fn insert(&mut self, id: NodeId, (rank, known_by): (Rank, KnownBy), kernel_id: Option<u32>) {
        let tier = self.0.entry(rank).or_insert_with(|| Tier { kernel_id, ..Tier::default() });
        tier.nodes.insert(id);
        tier.kernel_id = tier.kernel_id.min(kernel_id);
        let weakness = |by: KnownBy| (by != KnownBy::User, by != KnownBy::Probe, by);
        if weakness(known_by) < weakness(tier.known_by) {
            tier.known_by = known_by;
        }
    }
}

/// One of the kernel's tiers, split by rank.
fn split(
    machine: &Topology,
    kernel_id: Option<u32>,
    nodes: &NodeSet,
    weak_evidence_counts: bool,
) -> Vec<Tier> {
    let mut ranks = Ranks::default();
    for id in nodes.iter() {
        ranks.insert(id, rank(machine, id, weak_evidence_counts), kernel_id);
    }
    let mut tiers: Vec<Tier> = ranks.0.into_values().collect();
    if let ([whole], Some(_)) = (tiers.as_mut_slice(), kernel_id) {
        whole.known_by = KnownBy::MemoryTier;
    }
    tiers
}

fn rank(machine: &Topology, id: NodeId, weak_evidence_counts: bool) -> (Rank, KnownBy) {
    let Some(node) = machine.nodes.get(&id) else { return (Rank::Dram, KnownBy::Nothing) };
    let strong = node.known_by <= KnownBy::Driver;
    if !strong && !weak_evidence_counts {
        return (Rank::Dram, node.known_by);
    }
    let rank = match node.kind {
        MemoryKind::Hbm => Rank::Hbm,
        MemoryKind::Dram => Rank::Dram,
        MemoryKind::Cxl => Rank::Cxl,
        MemoryKind::Pmem | MemoryKind::Gpu => Rank::Pmem,
        MemoryKind::Unknown if is_distant(machine, id, node) => {
            return (Rank::Cxl, KnownBy::Distance);
        }
        MemoryKind::Unknown => Rank::Dram,
    };
    (rank, node.known_by)
}

/// Whether the node's memory is as far from all CPUs as that behind a link, or farther.
fn is_distant(machine: &Topology, id: NodeId, node: &Node) -> bool {
    let cpus = machine.cpu_nodes();
    let nearest = cpus.iter().filter_map(|from| machine.distance(from, id)).min();
    node.cpus.is_empty() && nearest.is_some_and(|distance| distance >= DISTANT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tree;
    use crate::read::Overrides;
    use crate::testkit::{machine, node};
    use crate::{BytesPerSecond, Measured, Nanoseconds};
    use std::string::{String, ToString};

    fn tiers_of(machine: &Topology, kernel: &[(u32, &str)]) -> Vec<(String, KnownBy)> {
        let mut tree = Tree::new();
        for (id, nodes) in kernel {
            tree.insert(&format!("{TIERING}/memory_tier{id}/nodelist"), nodes);
        }
        let mut reader = Reader { tree: &tree, findings: Vec::new() };
        let tiers = tiers(&mut reader, machine);
        tiers.iter().map(|tier| (tier.nodes.to_string(), tier.known_by)).collect()
    }

    fn known(kind: MemoryKind, known_by: KnownBy) -> Topology {
        let mut machine = machine([node(0).cpus(0..2), node(1).kind(kind)]);
        if let Some(node) = machine.nodes.get_mut(&NodeId(1)) {
            node.known_by = known_by;
        }
        machine
    }

    fn expect(tiers: &[(&str, KnownBy)]) -> Vec<(String, KnownBy)> {
        tiers.iter().map(|(nodes, by)| (nodes.to_string(), *by)).collect()
    }

    #[test]
    fn several_tiers_of_the_kernel_are_adopted() {
        let machine = known(MemoryKind::Cxl, KnownBy::CxlRegion);
        let kernel = [(22, "1"), (4, "0")];
        let expected = [("0", KnownBy::MemoryTier), ("1", KnownBy::MemoryTier)];
        assert_eq!(tiers_of(&machine, &kernel), expect(&expected));
    }

    #[test]
    fn cxl_memory_in_the_tier_of_dram_is_split_off_with_its_source() {
        for known_by in [KnownBy::CxlRegion, KnownBy::Hmat, KnownBy::User] {
            let machine = known(MemoryKind::Cxl, known_by);
            let expected = expect(&[("0", KnownBy::Cpus), ("1", known_by)]);
            assert_eq!(tiers_of(&machine, &[(4, "0-1")]), expected);
            assert_eq!(tiers_of(&machine, &[]), expected);
        }
    }

    #[test]
    fn hbm_in_drams_tier_comes_before_it() {
        let machine = known(MemoryKind::Hbm, KnownBy::Hmat);
        let expected = [("1", KnownBy::Hmat), ("0", KnownBy::Cpus)];
        assert_eq!(tiers_of(&machine, &[(4, "0-1")]), expect(&expected));
    }

    #[test]
    fn distance_ranks_a_node_without_cpus_only_when_nothing_else_does() {
        let machine = known(MemoryKind::Unknown, KnownBy::Nothing);
        let expected = [("0", KnownBy::Cpus), ("1", KnownBy::Distance)];
        assert_eq!(tiers_of(&machine, &[(4, "0-1")]), expect(&expected));
        let expected = [("0-1", KnownBy::MemoryTier), ("2", KnownBy::MemoryTier)];
        let three = crate::testkit::machine([
            node(0).cpus(0..2),
            node(1).kind(MemoryKind::Unknown),
            node(2).kind(MemoryKind::Cxl),
        ]);
        assert_eq!(tiers_of(&three, &[(4, "0-1"), (22, "2")]), expect(&expected));
    }

    fn probed(machine: &Topology, nodes: &[(u16, u64, u64)]) -> Topology {
        let mut machine = machine.clone();
        for (id, ns, rate) in nodes {
            let (latency, read_bandwidth) = (Nanoseconds(*ns), BytesPerSecond(*rate));
            machine.nodes.get_mut(&NodeId(*id)).unwrap().measured =
                Some(Measured { latency, read_bandwidth });
        }
        machine
    }

    #[test]
    fn a_saved_probe_decides_after_the_user_and_before_all_else() {
        let dram = (0, 100, 40);
        let (far, like, hbm) = ((1, 250, 13), (1, 105, 38), (1, 110, 160));
        let probe = |nodes: &'static str| (nodes, KnownBy::Probe);
        for (kind, known_by, own, expected) in [
            // A distance of 21, an unknown kind, and a conclusive measurement.
            (MemoryKind::Unknown, KnownBy::Nothing, far, &[probe("0"), probe("1")][..]),
            (MemoryKind::Unknown, KnownBy::Nothing, like, &[probe("0-1")][..]),
            (MemoryKind::Unknown, KnownBy::Nothing, hbm, &[probe("1"), probe("0")][..]),
            (MemoryKind::Cxl, KnownBy::Hmat, like, &[probe("0-1")][..]),
            (MemoryKind::Hbm, KnownBy::Hmat, far, &[probe("0"), probe("1")][..]),
            (MemoryKind::Pmem, KnownBy::NdRegion, far, &[probe("0"), probe("1")][..]),
            (MemoryKind::Cxl, KnownBy::User, like, &[probe("0"), ("1", KnownBy::User)][..]),
            // Between two kinds: the kind's other evidence decides.
            (
                MemoryKind::Cxl,
                KnownBy::CxlRegion,
                (1, 135, 40),
                &[probe("0"), ("1", KnownBy::CxlRegion)][..],
            ),
        ] {
            let machine = probed(&known(kind, known_by), &[dram, own]);
            for kernel in [&[][..], &[(4, "0-1")], &[(4, "0"), (22, "1")], &[(4, "1"), (22, "0")]] {
                assert_eq!(tiers_of(&machine, kernel), expect(expected), "{kind} {own:?}");
            }
        }
        // One node without figures: the probe says nothing.
        let machine = probed(&known(MemoryKind::Cxl, KnownBy::CxlRegion), &[dram]);
        assert_eq!(
            tiers_of(&machine, &[]),
            expect(&[("0", KnownBy::Cpus), ("1", KnownBy::CxlRegion)])
        );
    }

    #[test]
    fn a_conflict_of_the_probe_with_other_evidence_is_a_finding() {
        let findings = |own| {
            let machine = probed(&known(MemoryKind::Cxl, KnownBy::Hmat), &[(0, 100, 40), own]);
            let tree = Tree::new();
            let mut reader = Reader { tree: &tree, findings: Vec::new() };
            tiers(&mut reader, &machine);
            reader.findings.into_iter().map(|found| found.message).collect::<Vec<_>>()
        };
        assert!(findings((1, 250, 13)).is_empty());
        let said = findings((1, 100, 40));
        assert_eq!(
            said,
            [
                "the saved probe ranks nodes 0-1, hmat would rank them 0 | 1; the probe's ranks are used"
            ]
        );
    }

    #[test]
    fn sockets_are_one_tier() {
        let machine = machine([node(0).cpus(0..2), node(1).cpus(2..4)]);
        assert_eq!(tiers_of(&machine, &[(4, "0-1")]), expect(&[("0-1", KnownBy::MemoryTier)]));
        assert_eq!(tiers_of(&machine, &[]), expect(&[("0-1", KnownBy::Cpus)]));
    }

    #[test]
    fn a_node_with_no_or_two_kernel_tiers_is_in_exactly_one_tier() {
        let machine = known(MemoryKind::Cxl, KnownBy::CxlRegion);
        let expected = [("0", KnownBy::Cpus), ("1", KnownBy::CxlRegion)];
        assert_eq!(tiers_of(&machine, &[(4, "0")]), expect(&expected));
        let expected = [("0", KnownBy::MemoryTier), ("1", KnownBy::MemoryTier)];
        assert_eq!(tiers_of(&machine, &[(4, "0"), (22, "0-1,7")]), expect(&expected));
    }

    #[test]
    fn a_kind_given_by_the_user_makes_a_node_far() {
        let tree = Tree::parse(crate::recorded::ONE_TIER);
        let says = Overrides::from([(NodeId(1), MemoryKind::Cxl)]);
        let (machine, _) = Topology::read_with(&tree, &says);
        assert_eq!(machine.far().to_string(), "1");
    }
}
