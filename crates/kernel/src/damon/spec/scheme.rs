//! What is done to which memory, how much of it and when: schemes, their quotas, goals and filters.

use nearfar_topology::NodeId;

use super::{AddrRange, Bounds};

/// What is done to memory of a certain access pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheme {
    /// What is done.
    pub action: Action,
    /// Where to, if it migrates.
    pub destination: Destination,
    /// How often; 0 for every aggregation.
    pub apply_interval_us: u64,
    /// To which memory.
    pub access_pattern: AccessPattern,
    /// How much of it.
    pub quotas: Quotas,
    /// When at all.
    pub watermarks: Watermarks,
    /// To which pages of it, first match first.
    pub filters: Vec<Filter>,
}

impl Scheme {
    /// Does `action` to everything, without limit.
    #[must_use]
    pub fn new(action: Action) -> Self {
        Self {
            action,
            destination: Destination::None,
            apply_interval_us: 0,
            access_pattern: AccessPattern::default(),
            quotas: Quotas::default(),
            watermarks: Watermarks::default(),
            filters: Vec::new(),
        }
    }
}

words! {
    /// What a scheme does. Which of them work depends on the operations; the kernel says at `on`.
    Action {
        /// madvise(MADV_WILLNEED).
        Willneed = "willneed",
        /// madvise(MADV_COLD).
        Cold = "cold",
        /// Reclaims.
        Pageout = "pageout",
        /// madvise(MADV_HUGEPAGE).
        Hugepage = "hugepage",
        /// madvise(MADV_NOHUGEPAGE).
        Nohugepage = "nohugepage",
        /// madvise(MADV_COLLAPSE) (Linux 7.2).
        Collapse = "collapse",
        /// Moves to the head of its reclaim list.
        LruPrio = "lru_prio",
        /// Moves to the tail of its reclaim list.
        LruDeprio = "lru_deprio",
        /// Migrates, hottest first (Linux 6.11).
        MigrateHot = "migrate_hot",
        /// Migrates, coldest first (Linux 6.11).
        MigrateCold = "migrate_cold",
        /// Counts only.
        Stat = "stat",
    }
}

/// Where pages are migrated to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Destination {
    /// Nowhere.
    #[default]
    None,
    /// A node.
    Node(NodeId),
    /// Several, by weight (Linux 6.17); for virtual addresses only. Pages go by their place in the region, and as regions
    /// change, some go again: it never comes to rest without a quota.
    Weighted(Vec<(NodeId, u32)>),
}

/// Which regions a scheme is for. The default is all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessPattern {
    /// Bytes.
    pub sz: Bounds,
    /// Accesses per aggregation.
    pub nr_accesses: Bounds,
    /// Aggregations for which the accesses have stayed about the same.
    pub age: Bounds,
}

impl AccessPattern {
    /// No region: a scheme that sleeps, and keeps its counters and its quota.
    pub const NOTHING: Self =
        Self { sz: Bounds { min: 0, max: 0 }, nr_accesses: Bounds::ANY, age: Bounds::ANY };
}

impl Default for AccessPattern {
    fn default() -> Self {
        Self { sz: Bounds::ANY_SIZE, nr_accesses: Bounds::ANY, age: Bounds::ANY }
    }
}

/// How much a scheme may do in each `reset_interval_ms`. 0 is no limit, the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quotas {
    /// CPU time spent on the action.
    pub ms: u64,
    /// Bytes it is tried on: what filters leave out, and what can't be moved, counts too.
    pub bytes: u64,
    /// After which both begin anew.
    pub reset_interval_ms: u64,
    /// What comes first where there is more than the quota.
    pub weights: QuotaWeights,
    /// What the kernel tunes the quota to; the best reached one decides.
    pub goals: Vec<Goal>,
    /// How it tunes (Linux 7.1 for a choice).
    pub goal_tuner: GoalTuner,
}

/// How size, accesses and age count for what comes first, in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaWeights {
    /// Of size.
    pub sz_permil: u64,
    /// Of accesses.
    pub nr_accesses_permil: u64,
    /// Of age.
    pub age_permil: u64,
}

words! {
    /// How quotas approach their goals.
    GoalTuner {
        /// In steps, one an interval, from a single byte: the quota grows by the part of the goal that is missing (it
        /// doubles where there is nothing yet) and shrinks by the part above. The only one before Linux 7.1. Near its goal
        /// it hardly grows: with 2 % missing it takes 800 intervals to get to 10 MiB.
        Consist = "consist",
        /// All that bytes and time allow until the goal is reached, then nothing.
        Temporal = "temporal",
    }
}

#[expect(clippy::derivable_impls, reason = "the variants come from a macro")]
impl Default for GoalTuner {
    fn default() -> Self {
        Self::Consist
    }
}

/// What a quota is tuned to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Goal {
    /// What is measured.
    pub metric: Metric,
    /// What it should be.
    pub target_value: u64,
    /// What it is, where the kernel does not measure it itself.
    pub current_value: u64,
}

/// What a goal measures. `_bp` are shares in hundredths of a per cent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Metric {
    /// What the user writes as the current value.
    UserInput,
    /// Microseconds per quota interval in which some task waited for memory.
    SomeMemPsiUs,
    /// A node's memory in use (Linux 6.16).
    NodeMemUsedBp(NodeId),
    /// A node's free memory (Linux 6.16).
    NodeMemFreeBp(NodeId),
    /// A node's memory in use by a cgroup, its path below the mount point with a leading `/` (Linux 6.19).
    NodeMemcgUsedBp(NodeId, String),
    /// A node's memory not in use by a cgroup (Linux 6.19).
    NodeMemcgFreeBp(NodeId, String),
    /// Memory on active lists (Linux 7.0).
    ActiveMemBp,
    /// Memory on inactive lists (Linux 7.0).
    InactiveMemBp,
    /// Of the pages in use that the kdamond watches and that fit the scheme's pattern, the share on a node (Linux 7.2). So
    /// the kdamond has to watch both the node where they come from and this one.
    NodeEligibleMemBp(NodeId),
}

impl Metric {
    /// The kernel's word.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::UserInput => "user_input",
            Self::SomeMemPsiUs => "some_mem_psi_us",
            Self::NodeMemUsedBp(_) => "node_mem_used_bp",
            Self::NodeMemFreeBp(_) => "node_mem_free_bp",
            Self::NodeMemcgUsedBp(..) => "node_memcg_used_bp",
            Self::NodeMemcgFreeBp(..) => "node_memcg_free_bp",
            Self::ActiveMemBp => "active_mem_bp",
            Self::InactiveMemBp => "inactive_mem_bp",
            Self::NodeEligibleMemBp(_) => "node_eligible_mem_bp",
        }
    }

    /// The node and the cgroup it is of.
    #[must_use]
    pub fn of(&self) -> (Option<NodeId>, &str) {
        match self {
            Self::NodeMemUsedBp(node)
            | Self::NodeMemFreeBp(node)
            | Self::NodeEligibleMemBp(node) => (Some(*node), ""),
            Self::NodeMemcgUsedBp(node, path) | Self::NodeMemcgFreeBp(node, path) => {
                (Some(*node), path)
            }
            _ => (None, ""),
        }
    }
}

/// When a scheme works, by the share of free memory in thousandths. The default is always.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// What is measured.
    pub metric: WatermarkMetric,
    /// How often.
    pub interval_us: u64,
    /// Above it the scheme rests.
    pub high: u64,
    /// Below it the scheme wakes.
    pub mid: u64,
    /// Below it the scheme rests too.
    pub low: u64,
}

impl Default for Watermarks {
    fn default() -> Self {
        Self { metric: WatermarkMetric::None, interval_us: 0, high: 0, mid: 0, low: 0 }
    }
}

words! {
    /// What watermarks measure.
    WatermarkMetric {
        /// Nothing: always on.
        None = "none",
        /// Free memory of the system, in thousandths.
        FreeMemRate = "free_mem_rate",
    }
}

/// Which pages a scheme leaves out or takes. Without a match the last filter's contrary applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// What is looked at.
    pub what: FilterType,
    /// Whether this is for pages that are so, or for those that are not.
    pub matching: bool,
    /// Whether those are taken rather than left out (Linux 6.14).
    pub allow: bool,
}

/// What a filter looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilterType {
    /// Anonymous pages.
    Anon,
    /// Pages of active lists (Linux 6.15).
    Active,
    /// Pages of a cgroup, its path below the mount point with a leading `/`.
    Memcg(String),
    /// Pages accessed since the last look.
    Young,
    /// Pages of a size in bytes (Linux 6.15).
    HugepageSize(Bounds),
    /// Pages no process maps (Linux 6.15).
    Unmapped,
    /// Addresses.
    Addr(AddrRange),
    /// The target of this index.
    Target(u32),
}

impl FilterType {
    /// The kernel's word.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Anon => "anon",
            Self::Active => "active",
            Self::Memcg(_) => "memcg",
            Self::Young => "young",
            Self::HugepageSize(_) => "hugepage_size",
            Self::Unmapped => "unmapped",
            Self::Addr(_) => "addr",
            Self::Target(_) => "target",
        }
    }

    /// Whether DAMON's core applies it (to regions) rather than its operations (to pages).
    #[must_use]
    pub const fn is_core(&self) -> bool {
        matches!(self, Self::Addr(_) | Self::Target(_))
    }
}
