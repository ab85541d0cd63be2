//! What a kernel can do: one table, detected once into a value that is passed down. No version is ever compared.
//!
//! A feature is *present*, *lacking*, or *unknown* because it could not be asked (a recording has no system calls).
//! Asking never changes the system: a policy is tried in a thread made for that, files are only looked for.

use std::collections::BTreeMap;

use crate::fs::Fs;
use crate::mempolicy;

/// What the project makes use of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Feature {
    /// MPOL_WEIGHTED_INTERLEAVE.
    WeightedInterleave,
    /// Weights that the kernel derives itself.
    WeightedInterleaveAuto,
    /// MPOL_PREFERRED_MANY.
    PreferredMany,
    /// Memory tiers.
    MemoryTiering,
    /// Access attributes from HMAT or CDAT.
    AccessAttributes,
    /// Demotion under reclaim.
    Demotion,
    /// Moving pages towards the CPUs that use them.
    NumaBalancing,
    /// The CXL bus.
    Cxl,
    /// CXL and persistent memory as ordinary memory.
    Dax,
    /// DAMON's user interface.
    Damon,
    /// Idle page tracking.
    PageIdle,
    /// Bandwidth monitoring and limits.
    Resctrl,
    /// Bytes per node and cgroup.
    Cgroup2,
    /// Transparent huge pages.
    HugePages,
    /// Bytes per node and process.
    NumaMaps,
}

/// How a feature is seen.
#[derive(Clone, Copy, Debug)]
enum Seen {
    /// Something is at this path.
    Path(&'static str),
    /// Some node's directory has this.
    PerNode(&'static str),
    /// The file has this word.
    Word { path: &'static str, word: &'static str },
    /// The file is there, or this policy can be set.
    PathOrPolicy { path: &'static str, tried: fn() -> bool },
    /// This policy can be set.
    Policy { call: &'static str, tried: fn() -> bool },
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The feature.
    pub feature: Feature,
    /// Its name in `nearfar doctor` and in errors.
    pub name: &'static str,
    /// What it is for.
    pub purpose: &'static str,
    /// The first Linux release that has it.
    pub since: &'static str,
    /// What is done without it.
    pub without: &'static str,
    seen: Seen,
}

/// Whether a kernel has a feature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It has.
    Present,
    /// It has not.
    Lacking,
    /// It could not be asked, for this reason.
    Unknown(String),
}

/// Whether system calls may be tried: only where the root is the running system's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The running system.
    Live,
    /// A directory or recording that stands for another.
    Recorded,
}

/// The table.
pub const TABLE: &[Row] = &[
    Row {
        feature: Feature::WeightedInterleave,
        name: "weighted_interleave",
        purpose: "several nodes' bandwidth at once, by weight",
        since: "6.9",
        without: "plain interleave, the same number of pages on each node (nearfar run --fallback)",
        seen: Seen::PathOrPolicy {
            path: "sys/kernel/mm/mempolicy/weighted_interleave",
            tried: mempolicy::knows_weighted_interleave,
        },
    },
    Row {
        feature: Feature::WeightedInterleaveAuto,
        name: "weighted_interleave_auto",
        purpose: "weights that the kernel derives from firmware's bandwidths",
        since: "6.16",
        without: "weights are 1 until nearfar weights --apply",
        seen: Seen::Path("sys/kernel/mm/mempolicy/weighted_interleave/auto"),
    },
    Row {
        feature: Feature::PreferredMany,
        name: "preferred_many",
        purpose: "preferring several nodes (nearfar run -P)",
        since: "5.15",
        without: "one preferred node (nearfar run -p)",
        seen: Seen::Policy { call: "set_mempolicy", tried: mempolicy::knows_preferred_many },
    },
    Row {
        feature: Feature::MemoryTiering,
        name: "memory_tiering",
        purpose: "the kernel's own ranking of nodes",
        since: "6.1",
        without: "tiers from attributes, kinds and measurement",
        seen: Seen::Path("sys/devices/virtual/memory_tiering"),
    },
    Row {
        feature: Feature::AccessAttributes,
        name: "access_attributes",
        purpose: "latency and bandwidth of nodes as firmware says (HMAT, CDAT)",
        since: "5.2",
        without: "measure: nearfar probe",
        seen: Seen::PerNode("access0"),
    },
    Row {
        feature: Feature::Demotion,
        name: "demotion",
        purpose: "reclaim moves cold pages to slower nodes",
        since: "5.15",
        without: "cold pages are dropped or swapped",
        seen: Seen::Path("sys/kernel/mm/numa/demotion_enabled"),
    },
    Row {
        feature: Feature::NumaBalancing,
        name: "numa_balancing",
        purpose: "the kernel moves pages towards the CPUs that use them",
        since: "3.8",
        without: "pages stay where they were placed",
        seen: Seen::Path("proc/sys/kernel/numa_balancing"),
    },
    Row {
        feature: Feature::Cxl,
        name: "cxl",
        purpose: "CXL devices and regions, hence which nodes are CXL memory",
        since: "5.12",
        without: "kinds from attributes and tiers",
        seen: Seen::Path("sys/bus/cxl"),
    },
    Row {
        feature: Feature::Dax,
        name: "dax",
        purpose: "CXL and persistent memory as nodes",
        since: "5.1",
        without: "only memory that firmware brings online",
        seen: Seen::Path("sys/bus/dax"),
    },
    Row {
        feature: Feature::Damon,
        name: "damon",
        purpose: "which memory is hot and which is cold",
        since: "5.18",
        without: "placement only, no tiering",
        seen: Seen::Path("sys/kernel/mm/damon/admin"),
    },
    Row {
        feature: Feature::PageIdle,
        name: "page_idle",
        purpose: "idle pages one by one",
        since: "4.3",
        without: "DAMON",
        seen: Seen::Path("sys/kernel/mm/page_idle/bitmap"),
    },
    Row {
        feature: Feature::Resctrl,
        name: "resctrl",
        purpose: "bandwidth in use per node, and limits",
        since: "4.10",
        without: "bandwidth in use is not seen",
        seen: Seen::Word { path: "proc/filesystems", word: "resctrl" },
    },
    Row {
        feature: Feature::Cgroup2,
        name: "cgroup2",
        purpose: "bytes per node and cgroup",
        since: "4.5",
        without: "residency by process only",
        seen: Seen::Path("sys/fs/cgroup/cgroup.controllers"),
    },
    Row {
        feature: Feature::HugePages,
        name: "transparent_hugepage",
        purpose: "measuring without address translation in the way",
        since: "2.6.38",
        without: "measured latency includes page table walks",
        seen: Seen::Path("sys/kernel/mm/transparent_hugepage/enabled"),
    },
    Row {
        feature: Feature::NumaMaps,
        name: "numa_maps",
        purpose: "bytes per node and process (nearfar run --report)",
        since: "2.6.14",
        without: "residency is not seen",
        seen: Seen::Path("proc/self/numa_maps"),
    },
];

impl Row {
    /// How the feature is seen, in words.
    #[must_use]
    pub fn seen_by(&self) -> String {
        match self.seen {
            Seen::Path(path) | Seen::PathOrPolicy { path, .. } => format!("/{path}"),
            Seen::PerNode(name) => format!("/sys/devices/system/node/node*/{name}"),
            Seen::Word { path, word } => format!("{word} in /{path}"),
            Seen::Policy { call, .. } => format!("trying {call} in a thread of its own"),
        }
    }
}

/// What one kernel has of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Features(BTreeMap<Feature, State>);

impl Features {
    /// Asks the system below `fs`.
    #[must_use]
    pub fn detect(fs: &dyn Fs, asked: Asked) -> Self {
        Self(TABLE.iter().map(|row| (row.feature, state(row.seen, fs, asked))).collect())
    }

    /// Only these; for tests.
    #[must_use]
    pub fn only(present: &[Feature]) -> Self {
        let state =
            |feature| if present.contains(&feature) { State::Present } else { State::Lacking };
        Self(TABLE.iter().map(|row| (row.feature, state(row.feature))).collect())
    }

    /// Whether `feature` is there, as far as could be asked.
    #[must_use]
    pub fn state(&self, feature: Feature) -> State {
        self.0
            .get(&feature)
            .cloned()
            .unwrap_or_else(|| State::Unknown("it was not asked for".into()))
    }

    /// Whether `feature` is known to be there.
    #[must_use]
    pub fn has(&self, feature: Feature) -> bool {
        self.state(feature) == State::Present
    }
}

fn state(seen: Seen, fs: &dyn Fs, asked: Asked) -> State {
    let present = |yes| if yes { State::Present } else { State::Lacking };
    let unknown = |error: crate::fs::FsError| State::Unknown(error.to_string());
    let path = |path| fs.exists(path).map_or_else(unknown, present);
    match seen {
        Seen::Path(at) => path(at),
        Seen::PerNode(name) => per_node(fs, name).map_or_else(unknown, present),
        Seen::Word { path, word } => fs.read(path).map_or_else(unknown, |text| {
            present(text.is_some_and(|text| text.split_whitespace().any(|found| found == word)))
        }),
        // The file may be hidden (no sysfs in a sandbox) while the call works.
        Seen::PathOrPolicy { path: at, tried } => match (path(at), asked) {
            (State::Present, _) => State::Present,
            (_, Asked::Live) => present(tried()),
            (found, Asked::Recorded) => found,
        },
        Seen::Policy { tried, .. } if asked == Asked::Live => present(tried()),
        Seen::Policy { call, .. } => State::Unknown(format!("a recording has no {call}")),
    }
}

fn per_node(fs: &dyn Fs, name: &str) -> Result<bool, crate::fs::FsError> {
    const NODES: &str = "sys/devices/system/node";
    for entry in fs.list(NODES)?.unwrap_or_default() {
        let numbered = entry.name.strip_prefix("node").is_some_and(|id| id.parse::<u16>().is_ok());
        if numbered && fs.exists(&format!("{NODES}/{}/{name}", entry.name))? {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::{RootFs, TreeFs};
    use nearfar_topology::Tree;

    fn recorded(entries: &[(&str, &str)]) -> Features {
        let mut tree = Tree::new();
        for (path, text) in entries {
            tree.insert(path, text);
        }
        Features::detect(&TreeFs(tree), Asked::Recorded)
    }

    #[test]
    fn every_feature_has_one_row_and_every_row_says_all() {
        for row in TABLE {
            assert_eq!(TABLE.iter().filter(|other| other.feature == row.feature).count(), 1);
            assert_eq!(TABLE.iter().filter(|other| other.name == row.name).count(), 1);
            for text in [row.name, row.purpose, row.since, row.without, &row.seen_by()] {
                assert!(!text.is_empty(), "{row:?}");
            }
        }
    }

    #[test]
    fn files_show_what_is_there() {
        let features = recorded(&[
            ("sys/kernel/mm/mempolicy/weighted_interleave/node0", "1"),
            ("sys/devices/system/node/node1/access0/initiators/read_latency", "250"),
            ("proc/filesystems", "nodev\tsysfs\nnodev\tresctrl\n\text4"),
        ]);
        assert!(features.has(Feature::WeightedInterleave));
        assert!(features.has(Feature::AccessAttributes));
        assert!(features.has(Feature::Resctrl));
        assert_eq!(features.state(Feature::WeightedInterleaveAuto), State::Lacking);
        assert_eq!(features.state(Feature::Cxl), State::Lacking);
    }

    #[test]
    fn a_recording_leaves_system_calls_unknown_rather_than_lacking() {
        let features = recorded(&[]);
        assert!(matches!(features.state(Feature::PreferredMany), State::Unknown(_)));
        assert_eq!(features.state(Feature::WeightedInterleave), State::Lacking);
    }

    #[test]
    fn asking_the_live_system_leaves_our_policy_as_it_was() {
        let before = mempolicy::get().unwrap();
        let features = Features::detect(&RootFs::live().unwrap(), Asked::Live);
        assert_eq!(mempolicy::get().unwrap(), before);
        assert!(!matches!(features.state(Feature::PreferredMany), State::Unknown(_)));
    }
}
