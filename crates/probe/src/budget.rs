//! Time and buffer sizes of each measurement.
//!
//! Time is allocated top-down: a total for the whole probe, shared evenly by the pairs, and within a pair by fixed
//! shares. So a quick probe of sixteen pairs takes as long as one of two, with shorter windows. On a modelled clock a
//! guest second takes the host minutes and nothing disturbs a window, so there the total is far shorter.

use nearfar_topology::Bytes;

use crate::loops::LINE;
use crate::windows::Windows;

/// Windows of the three types of measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Budget {
    pub(crate) latency: Windows,
    /// For each mix.
    pub(crate) bandwidth: Windows,
    /// For each point of the loaded-latency curve.
    pub(crate) loaded: Windows,
    /// Its points between idle and saturation, in per cent of saturation.
    pub(crate) loads_percent: &'static [u64],
}

/// Duration of a probe, and the type of its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// A few seconds.
    Quick,
    /// Up to a minute.
    Full,
    /// A few seconds of the host, on a modelled clock.
    QuickModelled,
    /// Up to a minute of the host, on a modelled clock.
    FullModelled,
}

impl Pace {
    /// Total time for measuring by the machine's own clock, without set-up.
    const fn total_ns(self) -> u64 {
        match self {
            Self::Quick => 5_000_000_000,
            Self::Full => 40_000_000_000,
            Self::QuickModelled => 50_000_000,
            Self::FullModelled => 300_000_000,
        }
    }

    /// Time for a pair's idle latency, out of the pair's time. On a modelled clock a single chase takes the host next
    /// to no time, so there it gets enough that the cost of reading the clock is negligible.
    fn latency_ns(self, pair_ns: u64) -> u64 {
        match self {
            Self::Quick | Self::Full => pair_ns / 10,
            Self::QuickModelled | Self::FullModelled => 20_000_000,
        }
    }

    /// Minimum per pair, regardless of the number of pairs.
    const fn pair_ns_min(self) -> u64 {
        match self {
            Self::Quick | Self::Full => 250_000_000,
            Self::QuickModelled | Self::FullModelled => 10_000_000,
        }
    }
}

/// Points of the loaded-latency curve between idle and saturation, closer where it bends.
const LOADS_PERCENT: [u64; 11] = [10, 20, 30, 40, 50, 60, 70, 80, 85, 90, 95];
const LOADS_PERCENT_QUICK: [u64; 7] = [20, 40, 55, 70, 80, 90, 95];

impl Budget {
    /// Divides `pace`'s time among `pairs` pairs with `mixes` mixes each.
    pub(crate) fn new(pace: Pace, pairs: usize, mixes: usize) -> Self {
        let pair_ns = (pace.total_ns() / pairs.max(1) as u64).max(pace.pair_ns_min());
        let loads_percent: &[u64] = match pace {
            Pace::Quick | Pace::QuickModelled => &LOADS_PERCENT_QUICK,
            Pace::Full | Pace::FullModelled => &LOADS_PERCENT,
        };
        let points = loads_percent.len() as u64 + 1;
        Self {
            latency: windows(pace.latency_ns(pair_ns), 7),
            bandwidth: windows(pair_ns * 45 / 100 / mixes.max(1) as u64, 5),
            loaded: windows(pair_ns * 45 / 100 / points, 3),
            loads_percent,
        }
    }
}

/// A quarter as warm-up, the rest in `count` windows.
fn windows(total_ns: u64, count: u32) -> Windows {
    let warm_up_ns = total_ns / 4;
    let window_ns = ((total_ns - warm_up_ns) / u64::from(count)).max(1);
    Windows { warm_up_units: 0, warm_up_ns, window_ns, count }
}

/// Sizes of one memory node's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) chase: Bytes,
    /// For all streams together.
    pub(crate) stream: Bytes,
}

/// Size of the last-level cache where the kernel does not report it.
pub(crate) const LLC_ASSUMED: Bytes = Bytes(32 << 20);

/// Ratio of a buffer to the cache in front of it, if there is room: cyclic access to four times a cache hits 2 % of the
/// time even where the cache replaces lines at random.
pub(crate) const TIMES_CACHE: u64 = 4;
/// Least ratio.
const TIMES_CACHE_MIN: u64 = 2;

/// Caches that the buffers must exceed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgrown {
    /// The largest one that a single CPU uses.
    pub(crate) one: Bytes,
    /// The sum of all.
    pub(crate) all: Bytes,
    /// Number of streaming threads.
    pub(crate) threads: usize,
}

impl Outgrown {
    /// Size needed by all streams: several times all caches, and for each thread more than its own cache. A thread
    /// whose part fits a cache may keep it there: once it is ahead of the others it comes round again before they have
    /// evicted its lines, and so stays ahead.
    pub(crate) fn streams(self, factor: u64) -> Bytes {
        let own = self.one.0.saturating_add(self.one.0 / 4).saturating_mul(self.threads as u64);
        Bytes(self.all.0.saturating_mul(factor).max(own))
    }
}

impl Sizes {
    /// Buffers that exceed the caches, in at most `room`; `None` if they would be too small to measure memory rather
    /// than cache.
    pub(crate) fn fit(caches: Outgrown, room: Bytes) -> Option<Self> {
        if room < Self::least(caches) {
            return None;
        }
        let wanted = Self::of(caches.one, caches.streams(TIMES_CACHE), TIMES_CACHE);
        let sum = wanted.sum();
        let share = |part: Bytes| {
            let bytes = u128::from(part.0) * u128::from(room.min(sum).0) / u128::from(sum.0);
            let lines = u64::try_from(bytes).unwrap_or(part.0) / LINE as u64;
            Bytes(lines * LINE as u64)
        };
        Some(Self { chase: share(wanted.chase), stream: share(wanted.stream) })
    }

    /// The least room for which [`Sizes::fit`] returns sizes.
    pub(crate) fn least(caches: Outgrown) -> Bytes {
        let streams = Bytes(caches.all.0.saturating_mul(TIMES_CACHE_MIN));
        Self::of(caches.one, streams, TIMES_CACHE_MIN).sum()
    }

    /// Sum of both.
    pub(crate) fn sum(self) -> Bytes {
        Bytes(self.chase.0 + self.stream.0)
    }

    fn of(one: Bytes, streams: Bytes, factor: u64) -> Self {
        let within = |bytes: u64, most| Bytes(bytes.clamp(16 << 20, most));
        let chase = one.0.saturating_mul(factor);
        Self { chase: within(chase, 1 << 30), stream: within(streams.0, 2 << 30) }
    }
}

/// The most to allocate on a node with this much free: an eighth and 32 MiB remain for other processes.
pub(crate) fn room(free: Bytes) -> Bytes {
    Bytes((free.0 - free.0 / 8).saturating_sub(32 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pair_ns(budget: Budget, mixes: u64) -> u64 {
        let total = |of: Windows| of.warm_up_ns + of.window_ns * u64::from(of.count);
        total(budget.latency)
            + total(budget.bandwidth) * mixes
            + total(budget.loaded) * (budget.loads_percent.len() as u64 + 1)
    }

    #[test]
    fn a_quick_probe_of_two_nodes_measures_for_five_seconds_a_full_one_for_forty() {
        for (pace, total_s) in [(Pace::Quick, 5), (Pace::Full, 40)] {
            let all = 2 * pair_ns(Budget::new(pace, 2, 3), 3);
            assert!((total_s * 970_000_000..=total_s * 1_000_000_000).contains(&all), "{all}");
        }
    }

    #[test]
    fn more_pairs_take_no_longer_until_windows_get_too_short() {
        assert!(16 * pair_ns(Budget::new(Pace::Quick, 16, 3), 3) <= 5_000_000_000);
        assert!(pair_ns(Budget::new(Pace::Quick, 1024, 3), 3) >= 240_000_000);
    }

    #[test]
    fn buffers_are_four_times_the_cache_or_as_much_as_fits() {
        let caches = |threads| Outgrown { one: Bytes(32 << 20), all: Bytes(32 << 20), threads };
        let sizes = Sizes::fit(caches(3), Bytes(1 << 40)).unwrap();
        assert_eq!(sizes, Sizes { chase: Bytes(128 << 20), stream: Bytes(128 << 20) });
        let sizes = Sizes::fit(caches(3), Bytes(128 << 20)).unwrap();
        assert_eq!(sizes, Sizes { chase: Bytes(64 << 20), stream: Bytes(64 << 20) });
        assert_eq!(Sizes::fit(caches(3), Bytes(127 << 20)), None);
        let many = Sizes::fit(caches(12), Bytes(1 << 40)).unwrap();
        assert_eq!(many.stream, Bytes(480 << 20), "no thread's part fits its cache");
    }

    proptest! {
        #[test]
        fn buffers_fit_free_memory_and_exist_from_the_minimum_size_on(
            one in 1u64..1 << 32, more in 0u64..1 << 34, room in 0u64..1 << 40, threads in 1usize..1000,
        ) {
            let caches = Outgrown { one: Bytes(one), all: Bytes(one + more), threads };
            let room = Bytes(room);
            let sizes = Sizes::fit(caches, room);
            prop_assert_eq!(sizes.is_some(), room >= Sizes::least(caches));
            if let Some(sizes) = sizes {
                prop_assert!(sizes.chase.0 + sizes.stream.0 <= room.0);
                prop_assert!(sizes.chase.0 >= 1 << 20 && sizes.chase.0 % 64 == 0);
            }
        }
    }
}
