//! Kernel capabilities: one table, detected once into a value that is passed down. No version is ever compared.
//!
//! A feature is *present*, *lacking*, or *unknown* because it could not be tested (a recording has no system calls).
//! Detection never changes the system: a policy is tried in a separate thread, files are only checked for existence.
//! Features without a file until they are used (most of DAMON) are looked up by name in the kernel's own type
//! information (BTF), which every user may read. A call refused by a sandbox leaves the feature unknown.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::io;

use crate::fs::{Fs, FsError};

mod table;

pub use table::TABLE;

/// Kernel features used by the project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Feature {
    /// MPOL_WEIGHTED_INTERLEAVE.
    WeightedInterleave,
    /// Weights that the kernel derives itself.
    WeightedInterleaveAuto,
    /// MPOL_PREFERRED_MANY.
    PreferredMany,
    /// Ordering the nodes of a policy around a home node.
    HomeNode,
    /// Migrating pages that are already allocated.
    MovePages,
    /// Memory tiers.
    MemoryTiering,
    /// Access attributes from HMAT or CDAT.
    AccessAttributes,
    /// Demotion under reclaim.
    Demotion,
    /// Migrating pages towards the CPUs that use them.
    NumaBalancing,
    /// Promotion of hot pages from slower nodes (mode 2 of NUMA balancing).
    NumaBalancingTiering,
    /// The CXL bus.
    Cxl,
    /// CXL and persistent memory as devices of their own.
    Dax,
    /// The driver that turns such devices into system memory.
    DaxKmem,
    /// DAMON's user interface.
    Damon,
    /// DAMON watches the memory of processes.
    DamonVaddr,
    /// DAMON migrates hot and cold pages to a node.
    DamonMigrate,
    /// DAMON distributes them over several nodes by weight.
    DamonDests,
    /// DAMON tunes its own sampling intervals.
    DamonIntervalsGoal,
    /// DAMON has goals for the used share of a node's memory.
    DamonNodeGoals,
    /// DAMON has goals for a cgroup's share of a node.
    DamonMemcgGoals,
    /// DAMON has goals for the share of a node's memory that fits a scheme.
    DamonEligibleGoals,
    /// DAMON's goals have a choice of tuners.
    DamonGoalTuner,
    /// DAMON's filters may admit, by regions and by pages.
    DamonFilterLayers,
    /// DAMON refreshes its statistics by itself.
    DamonRefresh,
    /// DAMON addresses more than 32 bits on 32-bit machines.
    DamonAddrUnit,
    /// DAMON can pause and keep its settings.
    DamonPause,
    /// Idle page tracking.
    PageIdle,
    /// Bandwidth monitoring and limits.
    Resctrl,
    /// The processor's counters.
    CpuPmu,
    /// Bytes per node and cgroup.
    Cgroup2,
    /// Memory limits and counts of a cgroup.
    MemoryController,
    /// Nodes and CPUs of a cgroup.
    Cpuset,
    /// Transparent huge pages.
    HugePages,
    /// Reserved huge pages.
    HugeTlb,
    /// Bytes per node and process.
    NumaMaps,
}

/// Evidence for a feature.
#[derive(Clone, Copy, Debug)]
enum Seen {
    /// A file or directory at this path.
    Path(&'static str),
    /// A file or directory at one of these paths.
    AnyPath(&'static [&'static str]),
    /// An entry in some node's directory.
    PerNode(&'static str),
    /// This word in the file.
    Word { path: &'static str, word: &'static str },
    /// The file, or the call accepting it.
    PathOrCall { path: &'static str, call: &'static str, tried: Tried },
    /// The call accepting it.
    Call { call: &'static str, tried: Tried },
    /// Anything below this path, and this name in the kernel's type information.
    Type { within: &'static str, name: &'static str },
}

/// Tries a call: returns whether the kernel supports it, or the error that left it undecided.
type Tried = fn() -> io::Result<bool>;

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The feature.
    pub feature: Feature,
    /// Its name in `nearfar doctor` and in errors.
    pub name: &'static str,
    /// Its use.
    pub purpose: &'static str,
    /// The first Linux release with it.
    pub since: &'static str,
    /// The option of the kernel's configuration that builds it.
    pub config: &'static str,
    /// Behaviour without it.
    pub without: &'static str,
    seen: Seen,
}

/// State of a feature in a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Supported.
    Present,
    /// Not supported.
    Lacking,
    /// It could not be tested, for this reason.
    Unknown(String),
}

/// Whether system calls may be tried: only if the root is the running system's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The running system.
    Live,
    /// A directory or recording that stands for another.
    Recorded,
}

impl Row {
    /// The evidence, in words.
    #[must_use]
    pub fn seen_by(&self) -> String {
        match self.seen {
            Seen::Path(path) | Seen::PathOrCall { path, .. } => format!("/{path}"),
            Seen::AnyPath(paths) => {
                paths.iter().map(|path| format!("/{path}")).collect::<Vec<_>>().join(" or ")
            }
            Seen::PerNode(name) => format!("/sys/devices/system/node/node*/{name}"),
            Seen::Word { path, word } => format!("{word} in /{path}"),
            Seen::Call { call, .. } => format!("trying {call}"),
            Seen::Type { name, .. } => format!("{name} in /{BTF}"),
        }
    }
}

/// The features of one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Features(BTreeMap<Feature, State>);

impl Features {
    /// Tests all features of the system below `fs`.
    #[must_use]
    pub fn detect(fs: &dyn Fs, asked: Asked) -> Self {
        Self::detect_if(fs, asked, |_| true)
    }

    /// Tests only `wanted`, which saves the time of the others.
    #[must_use]
    pub fn detect_some(fs: &dyn Fs, asked: Asked, wanted: &[Feature]) -> Self {
        Self::detect_if(fs, asked, |feature| wanted.contains(&feature))
    }

    fn detect_if(fs: &dyn Fs, asked: Asked, wanted: impl Fn(Feature) -> bool) -> Self {
        let asking = Asking { fs, asked, types: OnceCell::new() };
        let rows = TABLE.iter().filter(|row| wanted(row.feature));
        Self(rows.map(|row| (row.feature, asking.state(row.seen))).collect())
    }

    /// These states, without detection.
    pub(crate) fn of(states: impl IntoIterator<Item = (Feature, State)>) -> Self {
        Self(states.into_iter().collect())
    }

    /// Only these features; for tests.
    #[must_use]
    pub fn only(present: &[Feature]) -> Self {
        let state =
            |feature| if present.contains(&feature) { State::Present } else { State::Lacking };
        Self(TABLE.iter().map(|row| (row.feature, state(row.feature))).collect())
    }

    /// The state of `feature`.
    #[must_use]
    pub fn state(&self, feature: Feature) -> State {
        self.0
            .get(&feature)
            .cloned()
            .unwrap_or_else(|| State::Unknown("it was not asked for".into()))
    }

    /// Whether `feature` is known to be present.
    #[must_use]
    pub fn has(&self, feature: Feature) -> bool {
        self.state(feature) == State::Present
    }
}

/// The kernel's type information: it contains the name of every type, member and constant, between zero bytes.
const BTF: &str = "sys/kernel/btf/vmlinux";

/// One run of the detection.
struct Asking<'a> {
    fs: &'a dyn Fs,
    asked: Asked,
    /// The type information, read when first needed.
    types: OnceCell<Result<Option<String>, FsError>>,
}

impl Asking<'_> {
    fn state(&self, seen: Seen) -> State {
        match seen {
            Seen::Path(path) => self.path(path),
            Seen::AnyPath(paths) => {
                let states = paths.iter().map(|path| self.path(path));
                states
                    .reduce(|one, next| if one == State::Lacking { next } else { one })
                    .unwrap_or(State::Lacking)
            }
            Seen::PerNode(name) => found(per_node(self.fs, name)),
            Seen::Word { path, word } => found(self.fs.read(path).map(|text| {
                text.is_some_and(|text| text.split_whitespace().any(|found| found == word))
            })),
            // The file may be hidden (no sysfs in a sandbox) while the call works.
            Seen::PathOrCall { path, call, tried } => match self.path(path) {
                State::Present => State::Present,
                _ if self.asked == Asked::Live => self.call(call, tried),
                unseen => unseen,
            },
            Seen::Call { call, tried } => self.call(call, tried),
            Seen::Type { within, name } => match self.path(within) {
                State::Present => self.typed(name),
                unseen => unseen,
            },
        }
    }

    fn path(&self, path: &str) -> State {
        found(self.fs.exists(path))
    }

    fn call(&self, call: &str, tried: Tried) -> State {
        if self.asked == Asked::Recorded {
            return State::Unknown(format!("a recording has no {call}"));
        }
        tried().map_or_else(
            |error| State::Unknown(format!("{call} is refused here: {error}")),
            |knows| if knows { State::Present } else { State::Lacking },
        )
    }

    fn typed(&self, name: &str) -> State {
        match self.types.get_or_init(|| self.fs.read(BTF)) {
            Ok(Some(types)) if types.contains(&format!("\0{name}\0")) => State::Present,
            Ok(Some(_)) => State::Lacking,
            Ok(None) if self.asked == Asked::Recorded => {
                State::Unknown("a recording does not show the kernel's types (BTF); run nearfar doctor on the machine".into())
            }
            Ok(None) => State::Unknown(format!("no /{BTF} (CONFIG_DEBUG_INFO_BTF)")),
            Err(error) => State::Unknown(error.to_string()),
        }
    }
}

fn found(asked: Result<bool, FsError>) -> State {
    match asked {
        Ok(true) => State::Present,
        Ok(false) => State::Lacking,
        Err(error) => State::Unknown(error.to_string()),
    }
}

fn per_node(fs: &dyn Fs, name: &str) -> Result<bool, FsError> {
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
    use crate::mempolicy;
    use nearfar_topology::Tree;

    fn recorded(entries: &[(&str, &str)]) -> Features {
        let mut tree = Tree::new();
        for (path, text) in entries {
            tree.insert(path, text);
        }
        Features::detect(&TreeFs(tree), Asked::Recorded)
    }

    #[test]
    fn every_feature_has_exactly_one_complete_table_row() {
        for row in TABLE {
            assert_eq!(TABLE.iter().filter(|other| other.feature == row.feature).count(), 1);
            assert_eq!(TABLE.iter().filter(|other| other.name == row.name).count(), 1);
            for text in [row.name, row.purpose, row.since, row.config, row.without, &row.seen_by()]
            {
                assert!(!text.is_empty(), "{row:?}");
            }
        }
    }

    #[test]
    fn features_are_detected_from_files() {
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
    fn automatic_weights_are_found_by_both_names_of_their_switch() {
        for path in crate::weights::AUTO {
            assert!(recorded(&[(path, "true")]).has(Feature::WeightedInterleaveAuto), "{path}");
        }
    }

    #[test]
    fn a_recording_leaves_system_calls_unknown_rather_than_lacking() {
        let features = recorded(&[]);
        assert!(matches!(features.state(Feature::PreferredMany), State::Unknown(_)));
        assert_eq!(features.state(Feature::WeightedInterleave), State::Lacking);
    }

    #[test]
    fn features_without_files_are_detected_from_kernel_types() {
        let admin = ("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "0");
        let features = recorded(&[admin, (BTF, "x\0DAMOS_MIGRATE_HOT\0damos_migrate_destsX\0")]);
        assert!(features.has(Feature::DamonMigrate));
        assert_eq!(features.state(Feature::DamonDests), State::Lacking);
        assert!(matches!(recorded(&[admin]).state(Feature::DamonMigrate), State::Unknown(_)));
        assert_eq!(recorded(&[]).state(Feature::DamonMigrate), State::Lacking);
    }

    #[test]
    fn a_call_without_permission_leaves_the_feature_unknown() {
        let fs = TreeFs(Tree::new());
        let asking = Asking { fs: &fs, asked: Asked::Live, types: OnceCell::new() };
        let refused = || Err(io::ErrorKind::PermissionDenied.into());
        assert!(
            matches!(asking.call("mbind", refused), State::Unknown(why) if why.contains("mbind"))
        );
        assert_eq!(asking.call("mbind", || Ok(false)), State::Lacking);
    }

    #[test]
    fn probing_the_live_system_leaves_the_memory_policy_unchanged() {
        let before = mempolicy::get().unwrap();
        let features = Features::detect(&RootFs::live().unwrap(), Asked::Live);
        assert_eq!(mempolicy::get().unwrap(), before);
        assert!(!matches!(features.state(Feature::PreferredMany), State::Unknown(_)));
    }
}
