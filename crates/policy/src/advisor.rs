//! Derives the advice page from samples of memory: the pressure of each node, and weights for new memory.
//!
//! Idle latency is the least ever sampled, since firmware's figure and a chain of dependent loads measure slightly
//! different things. If that least is far above firmware's figure, the node was never idle while sampled, and
//! firmware's figure counts. It is found anew once the sampled memory had been migrated to another node. A load far below it was served by a cache, so no load counts as less than idle. One sample
//! is short and may be disturbed, so it is averaged with earlier ones. Weights are those of
//! [`interleave`](super::interleave) that equalise latencies. [`pace`] bounds the cost of sampling.

use alloc::vec::Vec;

use nearfar_topology::{BasisPoints, BytesPerSecond, Nanoseconds, NodeId};

use crate::advice::Advice;
use crate::interleave::{FULL, Interleave, Place, RELIEVED, Rule, SATURATED, Seen};

/// Sampling takes at most one part in `SHARE` of a CPU,
pub const SHARE: u64 = 1000;
/// on average; this initial cost, with cold caches, is not counted.
const AT_FIRST: Nanoseconds = Nanoseconds(10_000_000);
/// A node with this much of its bandwidth in use, in per cent, is busy at any latency.
const IN_USE: u64 = 90;
/// Least latencies above this, in per cent of firmware's figure, are not idle latencies.
const IDLE_AT_MOST: u64 = 150;
/// Loads below this, in per cent of firmware's figure, were served by a cache.
const CACHED: u64 = 67;

/// Static properties of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The node.
    pub node: NodeId,
    /// Idle latency by firmware; `None` if not reported.
    pub idle: Option<Nanoseconds>,
    /// Maximal read bandwidth; `None` if unknown.
    pub read: Option<BytesPerSecond>,
    /// Maximal write bandwidth; `None` if unknown.
    pub write: Option<BytesPerSecond>,
}

/// One sample of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Latency of a dependent load.
    pub load: Nanoseconds,
    /// The share of its memory that is free.
    pub free: BasisPoints,
    /// Bandwidth in use; `None` if not counted.
    pub used: Option<BytesPerSecond>,
    /// Whether earlier loads may have been of other nodes, because the memory they read was migrated.
    pub strayed: bool,
}

/// State of one node.
#[derive(Clone, Copy, Debug)]
struct Judged {
    known: Known,
    least: Nanoseconds,
    load: Nanoseconds,
    seen: Option<Look>,
    busy: bool,
}

/// Tracks nodes, sample by sample.
#[derive(Clone, Debug)]
pub struct Advisor {
    nodes: Vec<Judged>,
    chooser: Interleave,
}

impl Advisor {
    /// An advisor for these nodes, nearest first.
    #[must_use]
    pub fn new(nodes: &[Known]) -> Self {
        let place =
            |known: &Known| Place { idle: known.idle.unwrap_or_default(), bandwidth: known.read };
        let chooser = Interleave::new(Rule::Weighted, 1, nodes.iter().map(place).collect());
        let nodes = nodes.iter().map(|known| Judged {
            known: *known,
            least: Nanoseconds(u64::MAX),
            load: Nanoseconds(0),
            seen: None,
            busy: false,
        });
        Self { nodes: nodes.collect(), chooser }
    }

    /// Records one sample of each node, in the order of [`Advisor::new`].
    pub fn step(&mut self, looks: &[Look]) {
        for (node, look) in self.nodes.iter_mut().zip(looks) {
            node.step(*look);
        }
        // Bytes placed by programs are unknown here, so weights do not wait for memory to follow.
        let seen = |node: &Judged| {
            node.seen.map(|look| Seen { load: node.load, free: look.free, placed: 0 })
        };
        self.chooser.step(&self.nodes.iter().filter_map(seen).collect::<Vec<_>>());
    }

    /// Advice on each node with at least one sample, by rising id.
    #[must_use]
    pub fn advice(&self) -> Vec<Advice> {
        let nodes = self.nodes.iter().zip(self.chooser.weights());
        let mut all: Vec<_> = nodes.filter_map(|(node, weight)| node.advice(*weight)).collect();
        all.sort_by_key(|advice| advice.node);
        all
    }

    /// Whether `node` has bandwidth left; true for unknown nodes.
    #[must_use]
    pub fn has_bandwidth(&self, node: NodeId) -> bool {
        !self.find(node).is_some_and(|node| node.busy)
    }

    /// Whether `node` has free memory left; true for unknown nodes.
    #[must_use]
    pub fn has_room(&self, node: NodeId) -> bool {
        self.find(node).and_then(|node| node.seen).is_none_or(|look| look.free >= FULL)
    }

    fn find(&self, node: NodeId) -> Option<&Judged> {
        self.nodes.iter().find(|judged| judged.known.node == node)
    }
}

impl Judged {
    fn step(&mut self, look: Look) {
        let cached = self.known.idle.map_or(0, |stated| stated.0.saturating_mul(CACHED) / 100);
        if look.strayed {
            self.least = Nanoseconds(u64::MAX);
        }
        if look.load.0 >= cached {
            self.least = self.least.min(look.load);
        }
        let load = look.load.max(self.idle());
        // Idle latency may just have been found higher than it was taken for.
        self.load = match self.seen {
            Some(_) => Nanoseconds(self.load.0.midpoint(load.0)).max(self.idle()),
            None => load,
        };
        self.seen = Some(look);
        let limit = if self.busy { RELIEVED } else { SATURATED };
        let most = [self.known.read, self.known.write].into_iter().flatten().max();
        let is_used_up = look.used.zip(most).is_some_and(|(used, most)| {
            u128::from(used.0) * 100 >= u128::from(most.0) * u128::from(IN_USE)
        });
        self.busy = u64::from(self.pressure()) >= limit || is_used_up;
    }

    fn idle(&self) -> Nanoseconds {
        match self.known.idle {
            Some(stated) if self.least.0 > stated.0.saturating_mul(IDLE_AT_MOST) / 100 => stated,
            _ => self.least,
        }
    }

    fn pressure(&self) -> u32 {
        let percent = self.load.0.saturating_mul(100) / self.idle().0.max(1);
        u32::try_from(percent).unwrap_or(u32::MAX)
    }

    fn advice(&self, weight: u8) -> Option<Advice> {
        let Look { free, used, .. } = self.seen?;
        let Known { node, read, write, .. } = self.known;
        let (idle, load, pressure) = (self.idle(), self.load, self.pressure());
        Some(Advice { node, idle, load, pressure, used, read, write, free, weight })
    }
}

/// Interval between samples: `asked`, or longer if `looks` samples that cost `cpu` exceed [`SHARE`].
#[must_use]
pub fn pace(asked: Nanoseconds, cpu: Nanoseconds, looks: u64) -> Nanoseconds {
    let counts = cpu.0.saturating_sub(AT_FIRST.0);
    Nanoseconds(asked.0.max((counts / looks.max(1)).saturating_mul(SHARE)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GB: u64 = 1_000_000_000;

    fn known(id: u16, idle: Option<u64>, gbps: Option<u64>) -> Known {
        let most = gbps.map(|gbps| BytesPerSecond(gbps * GB));
        Known { node: NodeId(id), idle: idle.map(Nanoseconds), read: most, write: most }
    }

    fn look(load: u64) -> Look {
        Look { load: Nanoseconds(load), free: BasisPoints(5000), used: None, strayed: false }
    }

    fn pressures(one: &Advisor) -> Vec<u32> {
        one.advice().iter().map(|advice| advice.pressure).collect()
    }

    #[test]
    fn pressure_rises_with_loaded_latency_and_clears_when_latency_falls() {
        let mut one = Advisor::new(&[known(0, None, None), known(1, None, None)]);
        assert_eq!(one.advice(), []);
        one.step(&[look(100), look(250)]);
        assert_eq!(pressures(&one), [100, 100]);
        (0..8).for_each(|_| one.step(&[look(300), look(250)]));
        assert!((298..=300).contains(&pressures(&one)[0]), "{:?}", pressures(&one));
        assert!(!one.has_bandwidth(NodeId(0)) && one.has_bandwidth(NodeId(1)));
        // Not yet relieved on the first step; relieved after these.
        (0..8).for_each(|_| one.step(&[look(160), look(250)]));
        assert!(!one.has_bandwidth(NodeId(0)));
        (0..8).for_each(|_| one.step(&[look(120), look(250)]));
        assert!(one.has_bandwidth(NodeId(0)));
    }

    #[test]
    fn firmware_latency_is_the_baseline_of_a_node_first_sampled_under_load() {
        let mut one = Advisor::new(&[known(0, Some(100), None)]);
        one.step(&[look(240)]);
        assert_eq!(pressures(&one), [240]);
        // Slightly more than firmware's figure is still idle.
        (0..12).for_each(|_| one.step(&[look(130)]));
        assert_eq!((pressures(&one)[0], one.advice()[0].idle), (100, Nanoseconds(130)));
    }

    #[test]
    fn samples_served_by_a_cache_do_not_lower_idle_latency() {
        let mut one = Advisor::new(&[known(0, Some(100), None), known(1, Some(250), None)]);
        (0..20).for_each(|_| one.step(&[look(110), look(20)]));
        let idle: Vec<_> = one.advice().iter().map(|advice| advice.idle.0).collect();
        assert_eq!(idle, [110, 250]);
        assert_eq!(pressures(&one), [100, 100]);
        assert_eq!(one.advice()[0].weight, 16, "far memory is not faster");
    }

    #[test]
    fn idle_latency_is_reset_if_the_sampled_memory_was_migrated() {
        let mut one = Advisor::new(&[known(1, None, None)]);
        (0..3).for_each(|_| one.step(&[look(100)]));
        one.step(&[Look { strayed: true, ..look(250) }]);
        assert_eq!(one.advice()[0].idle, Nanoseconds(250));
        assert_eq!(pressures(&one), [100]);
    }

    #[test]
    fn used_bandwidth_makes_a_node_busy_only_if_its_limit_is_known() {
        let mut one = Advisor::new(&[known(0, None, Some(10)), known(1, None, None)]);
        let used = |gbps: u64| Look { used: Some(BytesPerSecond(gbps * GB)), ..look(100) };
        one.step(&[used(8), used(8)]);
        assert!(one.has_bandwidth(NodeId(0)));
        one.step(&[used(9), used(9)]);
        assert!(!one.has_bandwidth(NodeId(0)) && one.has_bandwidth(NodeId(1)));
    }

    #[test]
    fn a_node_has_capacity_while_at_least_ten_per_cent_of_it_is_free() {
        let mut one = Advisor::new(&[known(0, None, None)]);
        let free = |share| Look { free: BasisPoints(share), ..look(100) };
        one.step(&[free(1000)]);
        assert!(one.has_room(NodeId(0)) && one.has_room(NodeId(9)));
        one.step(&[free(999)]);
        assert!(!one.has_room(NodeId(0)));
    }

    #[test]
    fn weights_leave_a_node_that_is_slower_than_far_memory() {
        // Nodes are given nearest first; advice is ordered by id.
        let mut one = Advisor::new(&[known(1, None, None), known(0, None, None)]);
        let weights = |one: &Advisor| -> Vec<_> {
            one.advice().iter().map(|advice| (advice.node.0, advice.weight)).collect()
        };
        one.step(&[look(100), look(250)]);
        assert_eq!(weights(&one), [(0, 0), (1, 16)]);
        (0..12).for_each(|_| one.step(&[look(900), look(250)]));
        let now = weights(&one);
        assert!(now[0].1 > 4 && now[0].1 + now[1].1 == 16, "{now:?}");
    }

    #[test]
    fn a_node_is_busy_from_twice_its_idle_latency_until_its_average_is_below_one_and_a_half() {
        let mut one = Advisor::new(&[known(0, Some(100), None)]);
        let mut step = |load| {
            one.step(&[look(load)]);
            (pressures(&one)[0], !one.has_bandwidth(NodeId(0)))
        };
        assert_eq!(step(100), (100, false));
        assert_eq!(step(298), (199, false));
        assert_eq!(step(201), (200, true), "the average of 199 and 201");
        assert_eq!(step(100), (150, true), "not relieved yet");
        assert_eq!(step(149), (149, false));
        assert_eq!(step(250), (199, false), "and busy only from 200 on again");
    }

    #[test]
    fn the_first_sample_counts_in_full_and_each_further_one_counts_half() {
        let mut one = Advisor::new(&[known(0, Some(100), None)]);
        let loads = [100, 300, 300, 100].map(|load| {
            one.step(&[look(load)]);
            one.advice()[0].load.0
        });
        assert_eq!(loads, [100, 200, 250, 175]);
    }

    #[test]
    fn bandwidth_in_use_is_compared_with_the_larger_of_the_read_and_the_write_figure() {
        let most = |gbps: u64| Some(BytesPerSecond(gbps * GB));
        for (read, write) in [(most(10), most(20)), (most(20), most(10)), (None, most(20))] {
            let mut one = Advisor::new(&[Known { read, write, ..known(0, None, None) }]);
            let mut busy = |tenths: u64| {
                let used = Some(BytesPerSecond(tenths * GB / 10));
                one.step(&[Look { used, ..look(100) }]);
                !one.has_bandwidth(NodeId(0))
            };
            assert_eq!([busy(179), busy(180)], [false, true], "{read:?} {write:?}");
        }
    }

    #[test]
    fn expensive_samples_lengthen_the_sampling_interval() {
        let wait = |cpu, looks| pace(Nanoseconds(200_000_000), Nanoseconds(cpu), looks).0;
        assert_eq!(wait(0, 0), 200_000_000);
        assert_eq!(wait(8_000_000, 1), 200_000_000);
        assert_eq!(wait(12_000_000, 10), 200_000_000);
        assert_eq!(wait(20_000_000, 10), 1_000_000_000);
    }

    proptest! {
        #[test]
        fn sampling_uses_no_more_than_its_share_of_cpu_time(asked in 1_u64..1 << 40, cost in 0_u64..1 << 40, looks in 1_u64..1000) {
            let wait = pace(Nanoseconds(asked), Nanoseconds(AT_FIRST.0 + cost * looks), looks).0;
            prop_assert!(wait >= asked && cost * SHARE <= wait);
        }

        #[test]
        fn any_samples_give_advice_for_every_node_with_weights_that_add_up(
            stated in prop::option::of(0_u64..2000),
            looks in prop::collection::vec((any::<u64>(), 0_u32..=10_000, prop::option::of(any::<u64>())), 1..20),
        ) {
            let mut one = Advisor::new(&[known(3, stated, Some(10)), known(1, None, None)]);
            for (load, free, used) in looks {
                let look = Look {
                    load: Nanoseconds(load), free: BasisPoints(free), used: used.map(BytesPerSecond),
                    strayed: free % 7 == 0,
                };
                one.step(&[look, look]);
                let said = one.advice();
                prop_assert_eq!(said.iter().map(|advice| advice.node.0).collect::<Vec<_>>(), [1, 3]);
                prop_assert_eq!(said.iter().map(|advice| advice.weight).sum::<u8>(), 16);
            }
        }
    }
}
