//! Schemes: an action on memory of a given access pattern, with quotas, goals, watermarks and filters.

use nearfar_topology::NodeId;

use super::{AddrRange, Bounds};

/// An action on memory of a given access pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheme {
    /// The action.
    pub action: Action,
    /// Destination of a migration.
    pub destination: Destination,
    /// Interval of application; 0 for every aggregation.
    pub apply_interval_us: u64,
    /// The regions it applies to.
    pub access_pattern: AccessPattern,
    /// Limits on its amount.
    pub quotas: Quotas,
    /// Conditions under which it is active.
    pub watermarks: Watermarks,
    /// Selects pages of a region, first match first.
    pub filters: Vec<Filter>,
}

impl Scheme {
    /// Applies `action` to everything, without limit.
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
    /// Action of a scheme. The operations support only some of them; the kernel checks that at `on`.
    Action {
        /// madvise(MADV_WILLNEED).
        Willneed = "willneed",
        /// madvise(MADV_COLD).
        Cold = "cold",
        /// Reclaims pages.
        Pageout = "pageout",
        /// madvise(MADV_HUGEPAGE).
        Hugepage = "hugepage",
        /// madvise(MADV_NOHUGEPAGE).
        Nohugepage = "nohugepage",
        /// madvise(MADV_COLLAPSE) (Linux 7.2).
        Collapse = "collapse",
        /// Moves pages to the head of their reclaim list.
        LruPrio = "lru_prio",
        /// Moves pages to the tail of their reclaim list.
        LruDeprio = "lru_deprio",
        /// Migrates, hottest first (Linux 6.11).
        MigrateHot = "migrate_hot",
        /// Migrates, coldest first (Linux 6.11).
        MigrateCold = "migrate_cold",
        /// Counts only.
        Stat = "stat",
    }
}

/// Destination of a migration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Destination {
    /// None.
    #[default]
    None,
    /// One node.
    Node(NodeId),
    /// Several nodes, by weight (Linux 6.17); for virtual addresses only. A page's node depends on its offset in the
    /// region, and as regions change, some pages migrate again: without a quota migration never ends.
    Weighted(Vec<(NodeId, u32)>),
}

/// The regions that a scheme applies to. The default is all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessPattern {
    /// Size in bytes.
    pub sz: Bounds,
    /// Accesses per aggregation.
    pub nr_accesses: Bounds,
    /// Aggregations for which the access frequency has stayed about the same.
    pub age: Bounds,
}

impl AccessPattern {
    /// Matches no region: an inactive scheme that keeps its counters and its quota.
    pub const NOTHING: Self =
        Self { sz: Bounds { min: 0, max: 0 }, nr_accesses: Bounds::ANY, age: Bounds::ANY };
}

impl Default for AccessPattern {
    fn default() -> Self {
        Self { sz: Bounds::ANY_SIZE, nr_accesses: Bounds::ANY, age: Bounds::ANY }
    }
}

/// Limits per `reset_interval_ms`. 0 is no limit, the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quotas {
    /// CPU time spent on the action.
    pub ms: u64,
    /// Bytes it is tried on, including those rejected by filters and those that cannot be migrated.
    pub bytes: u64,
    /// Interval after which both are reset.
    pub reset_interval_ms: u64,
    /// Priorities of regions if they exceed the quota.
    pub weights: QuotaWeights,
    /// Goals of the kernel's tuning of the quota; the best reached one decides.
    pub goals: Vec<Goal>,
    /// Method of tuning (selectable since Linux 7.1).
    pub goal_tuner: GoalTuner,
}

/// Weights of size, accesses and age in a region's priority, in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaWeights {
    /// Weight of size.
    pub sz_permil: u64,
    /// Weight of accesses.
    pub nr_accesses_permil: u64,
    /// Weight of age.
    pub age_permil: u64,
}

words! {
    /// Method by which quotas approach their goals.
    GoalTuner {
        /// In one step per interval, starting at a single byte: the quota grows in proportion to the distance from the
        /// goal (it doubles if nothing is reached yet) and shrinks in proportion to the excess. The only method before
        /// Linux 7.1. Near its goal it hardly grows: with 2 % missing it takes 800 intervals to reach 10 MiB.
        Consist = "consist",
        /// The full quota of bytes and time until the goal is reached, then none.
        Temporal = "temporal",
    }
}

#[expect(clippy::derivable_impls, reason = "the variants come from a macro")]
impl Default for GoalTuner {
    fn default() -> Self {
        Self::Consist
    }
}

/// A goal of quota tuning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Goal {
    /// The measured quantity.
    pub metric: Metric,
    /// Its target.
    pub target_value: u64,
    /// Its present value, for metrics that the kernel does not measure.
    pub current_value: u64,
}

/// Quantity measured by a goal. `_bp` are shares in hundredths of a per cent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Metric {
    /// The current value written by the user.
    UserInput,
    /// Microseconds per quota interval in which any task waited for memory.
    SomeMemPsiUs,
    /// Used memory of a node (Linux 6.16).
    NodeMemUsedBp(NodeId),
    /// Free memory of a node (Linux 6.16).
    NodeMemFreeBp(NodeId),
    /// Memory of a node used by a cgroup, given by its path below the mount point with a leading `/` (Linux 6.19).
    NodeMemcgUsedBp(NodeId, String),
    /// Memory of a node not used by a cgroup (Linux 6.19).
    NodeMemcgFreeBp(NodeId, String),
    /// Memory on active lists (Linux 7.0).
    ActiveMemBp,
    /// Memory on inactive lists (Linux 7.0).
    InactiveMemBp,
    /// The share on a node of all used pages that the kdamond monitors and that match the scheme's pattern (Linux 7.2).
    /// So the kdamond must monitor both the source node and this one.
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

    /// Its node and its cgroup; `None` and an empty path for metrics without them.
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

/// Activity of a scheme by the share of free memory in thousandths. The default is always active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// The measured quantity.
    pub metric: WatermarkMetric,
    /// Interval of measurement.
    pub interval_us: u64,
    /// Above it the scheme is inactive.
    pub high: u64,
    /// Below it the scheme is activated.
    pub mid: u64,
    /// Below it the scheme is inactive too.
    pub low: u64,
}

impl Default for Watermarks {
    fn default() -> Self {
        Self { metric: WatermarkMetric::None, interval_us: 0, high: 0, mid: 0, low: 0 }
    }
}

words! {
    /// Quantity measured by watermarks.
    WatermarkMetric {
        /// Nothing: always on.
        None = "none",
        /// Free memory of the system, in thousandths.
        FreeMemRate = "free_mem_rate",
    }
}

/// Selects the pages that a scheme includes or excludes. Without a match the opposite of the last filter applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// The tested property.
    pub what: FilterType,
    /// Whether it applies to pages with the property, or to those without.
    pub matching: bool,
    /// Whether those pages are included rather than excluded (Linux 6.14).
    pub allow: bool,
}

/// Property tested by a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilterType {
    /// Anonymous pages.
    Anon,
    /// Pages of active lists (Linux 6.15).
    Active,
    /// Pages of a cgroup, given by its path below the mount point with a leading `/`.
    Memcg(String),
    /// Pages accessed since the last check.
    Young,
    /// Pages of a size in bytes (Linux 6.15).
    HugepageSize(Bounds),
    /// Pages that no process maps (Linux 6.15).
    Unmapped,
    /// Address ranges.
    Addr(AddrRange),
    /// The target with this index.
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
