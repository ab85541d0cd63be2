//! Specification of a kdamond as plain data, in the kernel's words and units.
//!
//! Bounds are closed intervals. Times have their unit in the name; sizes and addresses are in bytes; `nr_accesses`
//! counts samples that found a region accessed in one aggregation interval, `age` counts aggregation intervals. Every
//! setting that a kernel may lack has a value equivalent to its absence, which is its default here; a kernel without
//! the setting refuses any other value as a whole, and never drops it silently.
//!
//! To restrict a scheme to one cgroup on every kernel: a `memcg` filter that does not match and does not allow.

pub use nearfar_topology::AddrRange;
use nearfar_topology::BasisPoints;

/// Declares words known to the kernel.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name { $($(#[$of])* $variant,)+ }

        impl $name {
            /// All variants.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The kernel's word.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }
    };
}

mod check;
mod scheme;

pub use scheme::*;

/// A kernel thread of DAMON and its task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kdamond {
    /// Interval at which the kernel refreshes statistics by itself, in milliseconds; 0 for never (Linux 6.17 for
    /// others).
    pub refresh_ms: u64,
    /// Its monitoring and its schemes.
    pub context: Context,
}

/// Monitored memory, accuracy of monitoring, and schemes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    /// Kind of addresses.
    pub operations: Operations,
    /// The monitored memory.
    pub targets: Vec<Target>,
    /// Monitoring intervals.
    pub intervals: Intervals,
    /// Goal of the kernel's tuning of intervals; `None` for fixed ones (Linux 6.15).
    pub intervals_goal: Option<IntervalsGoal>,
    /// Number of regions that memory is divided into; at least 3. Older kernels (6.12) start with the targets' own
    /// regions and split them in two at each aggregation, so it takes several aggregations to reach this number.
    pub nr_regions: Bounds,
    /// Bytes per unit of address, for 32-bit machines; 1 elsewhere (Linux 6.18 for others).
    pub addr_unit: u64,
    /// Whether it is paused with its settings kept (Linux 7.2).
    pub pause: bool,
    /// Schemes applied to the monitored memory.
    pub schemes: Vec<Scheme>,
}

words! {
    /// Kind of addresses.
    Operations {
        /// A process's virtual addresses, following its mappings.
        Vaddr = "vaddr",
        /// Fixed virtual addresses of a process.
        Fvaddr = "fvaddr",
        /// Physical addresses.
        Paddr = "paddr",
    }
}

/// A process, or part of physical memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// The process; `None` for physical addresses.
    pub pid: Option<u32>,
    /// Address ranges; empty for all of the process.
    pub regions: Vec<AddrRange>,
}

/// Monitoring intervals. The default is the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intervals {
    /// Between two samples of a region.
    pub sample_us: u64,
    /// Between two aggregations.
    pub aggr_us: u64,
    /// Between two updates of the monitored mappings.
    pub update_us: u64,
}

impl Default for Intervals {
    fn default() -> Self {
        Self { sample_us: 5_000, aggr_us: 100_000, update_us: 60_000_000 }
    }
}

impl Intervals {
    /// Largest access count of a region: samples per aggregation.
    #[must_use]
    pub const fn nr_accesses_max(self) -> u64 {
        match self.aggr_us.checked_div(self.sample_us) {
            Some(looks) if looks > 0 => looks,
            _ => 1,
        }
    }

    /// `share` of all samples as an access count, rounded up.
    #[must_use]
    pub fn nr_accesses(self, share: BasisPoints) -> u64 {
        self.nr_accesses_max().saturating_mul(u64::from(share.0)).div_ceil(10_000)
    }

    /// An age in aggregation intervals, rounded up.
    #[must_use]
    pub const fn age(self, age_us: u64) -> u64 {
        match self.aggr_us {
            0 => 0,
            aggr_us => age_us.div_ceil(aggr_us),
        }
    }
}

/// Goal of the kernel's tuning of intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntervalsGoal {
    /// The share of possible access events to observe; the kernel's authors recommend 400 (4 %).
    pub access_bp: u64,
    /// Number of aggregations in which to observe it.
    pub aggrs: u64,
    /// The shortest sampling interval.
    pub min_sample_us: u64,
    /// The longest.
    pub max_sample_us: u64,
}

/// From `min` to `max`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The least.
    pub min: u64,
    /// The most.
    pub max: u64,
}

impl Bounds {
    /// Any number. The kernel stores some bounds in 32 bits, so this is the limit.
    pub const ANY: Self = Self { min: 0, max: u32::MAX as u64 };
    /// Any size.
    pub const ANY_SIZE: Self = Self { min: 0, max: u64::MAX };

    /// From `min` upwards.
    #[must_use]
    pub const fn from(min: u64) -> Self {
        Self { min, ..Self::ANY }
    }

    /// Just `value`.
    #[must_use]
    pub const fn just(value: u64) -> Self {
        Self { min: value, max: value }
    }
}

impl Kdamond {
    /// Physical memory in `ranges`, monitored with the kernel's defaults, without schemes.
    #[must_use]
    pub fn physical(ranges: &[AddrRange]) -> Self {
        let target = Target { pid: None, regions: ranges.to_vec() };
        Self::watching(Operations::Paddr, target)
    }

    /// A process, monitored with the kernel's defaults, without schemes.
    #[must_use]
    pub fn process(pid: u32) -> Self {
        Self::watching(Operations::Vaddr, Target { pid: Some(pid), regions: Vec::new() })
    }

    fn watching(operations: Operations, target: Target) -> Self {
        let context = Context {
            operations,
            targets: vec![target],
            intervals: Intervals::default(),
            intervals_goal: None,
            nr_regions: Bounds { min: 10, max: 1000 },
            addr_unit: 1,
            pause: false,
            schemes: Vec::new(),
        };
        Self { refresh_ms: 0, context }
    }
}
