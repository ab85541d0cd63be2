//! Used bandwidth as counted by processors: resctrl's monitoring (Documentation/filesystems/resctrl.rst), if it is
//! mounted.
//!
//! `mon_data/mon_L3_NN` is an L3 cache, and contains the bytes transferred between it and memory. A cache belongs to
//! the node of the CPUs that share it. `mbm_local_bytes` are those of the cache's own node, and preferred; else
//! `mbm_total_bytes` is used, which includes traffic to other nodes. Control groups (`mkdir` in resctrl's root) count
//! separately, monitoring groups are part of theirs. Nodes without CPUs have no cache, so their traffic is unknown.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_topology::{BytesPerSecond, Nanoseconds, NodeId, Topology};

use crate::fs::{EntryKind, Fs};

const ROOT: &str = "sys/fs/resctrl";
/// Entries of the root besides groups.
const NO_GROUPS: [&str; 3] = ["info", "mon_data", "mon_groups"];
const FILES: [&str; 2] = ["mbm_local_bytes", "mbm_total_bytes"];

/// Counters of caches, by node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Each node's caches.
    nodes: BTreeMap<NodeId, BTreeSet<u32>>,
    file: &'static str,
}

/// Bytes so far, by node and then by directory.
pub type Counted = BTreeMap<NodeId, BTreeMap<String, u64>>;

impl Counters {
    /// The counters of this machine; `None` if there are no such files, or they can't be read.
    #[must_use]
    pub fn find(fs: &dyn Fs, machine: &Topology) -> Option<Self> {
        let domains = domains(fs, &format!("{ROOT}/mon_data"));
        let cache = |cpu| {
            let path = format!("sys/devices/system/cpu/cpu{cpu}/cache/index3/id");
            fs.read(&path).ok().flatten()?.trim().parse::<u32>().ok()
        };
        let mut nodes = BTreeMap::new();
        for (id, node) in &machine.nodes {
            let caches: BTreeSet<_> = node.cpus.iter().filter_map(cache).collect();
            if !caches.is_empty() && caches.iter().all(|cache| domains.contains_key(cache)) {
                nodes.insert(*id, caches);
            }
        }
        let readable = |file: &&&str| {
            domains
                .values()
                .all(|name| bytes(fs, &format!("{ROOT}/mon_data/{name}/{file}")).is_some())
        };
        let file = FILES.iter().find(readable)?;
        (!nodes.is_empty()).then_some(Self { nodes, file })
    }

    /// The name of the counter files.
    #[must_use]
    pub fn file(&self) -> &'static str {
        self.file
    }

    /// The present counts. A node with an unavailable counter is left out.
    #[must_use]
    pub fn read(&self, fs: &dyn Fs) -> Counted {
        let groups = groups(fs);
        let of_node = |caches: &BTreeSet<u32>| {
            let mut counted = BTreeMap::new();
            for group in &groups {
                for (id, name) in domains(fs, group) {
                    if caches.contains(&id) {
                        let path = format!("{group}/{name}/{}", self.file);
                        counted.insert(path.clone(), bytes(fs, &path)?);
                    }
                }
            }
            Some(counted)
        };
        let nodes = self.nodes.iter();
        nodes.filter_map(|(node, caches)| Some((*node, of_node(caches)?))).collect()
    }
}

/// The rates between two readings. A node whose counters were reset, added or removed meanwhile is left out.
#[must_use]
pub fn rate(
    before: &Counted,
    after: &Counted,
    passed: Nanoseconds,
) -> BTreeMap<NodeId, BytesPerSecond> {
    let of_node = |(node, after): (&NodeId, &BTreeMap<String, u64>)| {
        let before = before.get(node).filter(|before| before.keys().eq(after.keys()))?;
        let mut sum: u128 = 0;
        for (before, after) in before.values().zip(after.values()) {
            sum += u128::from(after.checked_sub(*before)?);
        }
        let rate = (sum * 1_000_000_000).checked_div(u128::from(passed.0))?;
        Some((*node, BytesPerSecond(u64::try_from(rate).unwrap_or(u64::MAX))))
    };
    after.iter().filter_map(of_node).collect()
}

/// The directories of counters, of the root and of each control group.
fn groups(fs: &dyn Fs) -> Vec<String> {
    let listed = fs.list(ROOT).ok().flatten().unwrap_or_default();
    let is_group = |name: &str| !NO_GROUPS.contains(&name);
    let groups = listed
        .into_iter()
        .filter(|entry| entry.kind == EntryKind::Directory && is_group(&entry.name));
    let below = groups.map(|entry| format!("{ROOT}/{}/mon_data", entry.name));
    [format!("{ROOT}/mon_data")].into_iter().chain(below).collect()
}

/// The caches below a directory, by number.
fn domains(fs: &dyn Fs, dir: &str) -> BTreeMap<u32, String> {
    let listed = fs.list(dir).ok().flatten().unwrap_or_default();
    let number = |name: &str| name.strip_prefix("mon_L3_")?.parse().ok();
    listed.into_iter().filter_map(|entry| Some((number(&entry.name)?, entry.name))).collect()
}

/// A counter; `None` if it reads `Unavailable`, `Unassigned` or `Error`.
fn bytes(fs: &dyn Fs, path: &str) -> Option<u64> {
    fs.read(path).ok().flatten()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::TreeFs;
    use nearfar_topology::Tree;
    use nearfar_topology::testkit::{machine, node};
    use proptest::prelude::*;

    const RECORDED: &str = include_str!("../../../fixtures/resctrl/two-sockets.tree");

    fn recorded() -> (TreeFs, Topology) {
        let nodes = [node(0).cpus(0..4), node(1).cpus(4..8), node(2)];
        (TreeFs(Tree::parse(RECORDED)), machine(nodes))
    }

    fn with(changes: &[(&str, &str)]) -> TreeFs {
        let mut tree = Tree::parse(RECORDED);
        changes.iter().for_each(|(path, text)| tree.insert(path, text));
        TreeFs(tree)
    }

    #[test]
    fn node_bytes_are_summed_over_caches_and_groups() {
        let (fs, machine) = recorded();
        let counters = Counters::find(&fs, &machine).unwrap();
        assert_eq!(counters.file(), "mbm_total_bytes");
        let counted = counters.read(&fs);
        let sums: Vec<_> =
            counted.iter().map(|(node, all)| (node.0, all.values().sum::<u64>())).collect();
        // Two caches and two groups each on node 0; node 2 has no CPUs.
        assert_eq!(sums, [(0, 1_000 + 2_000 + 10 + 20), (1, 4_000 + 8_000 + 40 + 80)]);
    }

    #[test]
    fn rates_are_counter_differences_over_time() {
        let (fs, machine) = recorded();
        let counters = Counters::find(&fs, &machine).unwrap();
        let before = counters.read(&fs);
        let later = with(&[
            ("sys/fs/resctrl/mon_data/mon_L3_00/mbm_total_bytes", "501000"),
            ("sys/fs/resctrl/batch/mon_data/mon_L3_01/mbm_total_bytes", "500020"),
            // One that was reset.
            ("sys/fs/resctrl/mon_data/mon_L3_02/mbm_total_bytes", "3"),
        ]);
        let passed = Nanoseconds(500_000_000);
        let rates = rate(&before, &counters.read(&later), passed);
        assert_eq!(rates, BTreeMap::from([(NodeId(0), BytesPerSecond(2_000_000))]));
        // An unavailable counter, and a new group.
        for (path, text) in [
            ("sys/fs/resctrl/mon_data/mon_L3_00/mbm_total_bytes", "Unavailable"),
            ("sys/fs/resctrl/new/mon_data/mon_L3_00/mbm_total_bytes", "5"),
        ] {
            let rates = rate(&before, &counters.read(&with(&[(path, text)])), passed);
            assert_eq!(rates.keys().copied().collect::<Vec<_>>(), [NodeId(1)], "{path}");
        }
        assert_eq!(rate(&before, &before, Nanoseconds(0)), BTreeMap::new());
    }

    #[test]
    fn local_byte_counters_are_preferred_if_every_cache_has_them() {
        let local =
            [0, 1, 2, 3].map(|id| format!("sys/fs/resctrl/mon_data/mon_L3_0{id}/mbm_local_bytes"));
        let changes: Vec<_> = local.iter().map(|path| (path.as_str(), "5")).collect();
        let counters = Counters::find(&with(&changes), &recorded().1).unwrap();
        assert_eq!(counters.file(), "mbm_local_bytes");
        // A cache without local counters rules them out.
        let counters = Counters::find(&with(&changes[..3]), &recorded().1).unwrap();
        assert_eq!(counters.file(), "mbm_total_bytes");
    }

    #[test]
    fn without_resctrl_or_usable_counters_none_are_found() {
        let (_, machine) = recorded();
        assert_eq!(Counters::find(&TreeFs(Tree::new()), &machine), None);
        let mute = with(&[("sys/fs/resctrl/mon_data/mon_L3_03/mbm_total_bytes", "Unavailable")]);
        assert_eq!(Counters::find(&mute, &machine), None);
    }

    proptest! {
        #[test]
        fn no_figures_panic(figures in prop::collection::vec((0_u16..3, "[ab]", any::<u64>()), 0..8), passed in any::<u64>()) {
            let mut counted = [Counted::new(), Counted::new()];
            for (at, (node, path, figure)) in figures.into_iter().enumerate() {
                counted[at % 2].entry(NodeId(node)).or_default().insert(path, figure);
            }
            let _ = rate(&counted[0], &counted[1], Nanoseconds(passed));
        }
    }
}
