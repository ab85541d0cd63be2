//! What a kdamond is to do, as plain data in the kernel's own words and units.
//!
//! Bounds are closed intervals. Times carry their unit in the name; sizes and addresses are bytes; `nr_accesses` counts
//! samples that found a region accessed in one aggregation interval, `age` counts aggregation intervals. Every setting
//! that a kernel may lack has a value that stands for "as if it were not there", which is its default here; any other
//! value is refused whole where the kernel lacks the setting, never dropped.
//!
//! Only some memory of one cgroup, on every kernel: a `memcg` filter that does not match and does not allow.

use nearfar_topology::BasisPoints;

/// Declares words the kernel knows by name.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name { $($(#[$of])* $variant,)+ }

        impl $name {
            /// Every one of them.
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

/// One kernel thread of DAMON's and what it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kdamond {
    /// How often the kernel refreshes statistics by itself, in milliseconds; 0 for never (Linux 6.17 for more).
    pub refresh_ms: u64,
    /// What it watches and does.
    pub context: Context,
}

/// What is watched, how closely, and what is done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    /// How memory is addressed.
    pub operations: Operations,
    /// What is watched.
    pub targets: Vec<Target>,
    /// How often.
    pub intervals: Intervals,
    /// What the kernel tunes the intervals to, if it is to (Linux 6.15).
    pub intervals_goal: Option<IntervalsGoal>,
    /// How many regions memory is divided into; at least 3. Older kernels (6.12) begin with the targets' own regions and
    /// split them in two at each aggregation, so it takes some before they are as many.
    pub nr_regions: Bounds,
    /// Bytes per unit of address, for 32-bit machines; 1 elsewhere (Linux 6.18 for more).
    pub addr_unit: u64,
    /// Whether it rests with its settings kept (Linux 7.2).
    pub pause: bool,
    /// What is done to which memory.
    pub schemes: Vec<Scheme>,
}

words! {
    /// How memory is addressed.
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
    /// The process; none for physical addresses.
    pub pid: Option<u32>,
    /// Where; all of the process if there is none.
    pub regions: Vec<AddrRange>,
}

/// Addresses from `start` to before `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddrRange {
    /// The first.
    pub start: u64,
    /// After the last.
    pub end: u64,
}

impl AddrRange {
    /// How many bytes it has.
    #[must_use]
    pub const fn len(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether it has none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// How often memory is looked at. The default is the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intervals {
    /// Between two looks at a region.
    pub sample_us: u64,
    /// Between two results.
    pub aggr_us: u64,
    /// Between two looks at what there is to watch.
    pub update_us: u64,
}

impl Default for Intervals {
    fn default() -> Self {
        Self { sample_us: 5_000, aggr_us: 100_000, update_us: 60_000_000 }
    }
}

impl Intervals {
    /// The most accesses that a region can show: looks per aggregation.
    #[must_use]
    pub const fn nr_accesses_max(self) -> u64 {
        match self.aggr_us.checked_div(self.sample_us) {
            Some(looks) if looks > 0 => looks,
            _ => 1,
        }
    }

    /// `share` of all looks as a number of accesses, rounded up.
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

/// What the kernel tunes intervals to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntervalsGoal {
    /// The share of possible access events that should be seen; 400 (4 %) is what the kernel's authors advise.
    pub access_bp: u64,
    /// Within so many aggregations.
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
    /// Any number. The kernel keeps some of these as 32 bits, so that is as far as it goes.
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
    /// Physical memory in `ranges`, watched as the kernel does by default, and nothing done about it yet.
    #[must_use]
    pub fn physical(ranges: &[AddrRange]) -> Self {
        let target = Target { pid: None, regions: ranges.to_vec() };
        Self::watching(Operations::Paddr, target)
    }

    /// A process, likewise.
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
