//! Adaptive interleaving: weights for new memory that follow the load on each node.
//!
//! The *load* of a node is the latency of a dependent load now, as a share of idle latency. It is 1 on an idle node,
//! about 2 at 90 % of its bandwidth, and grows without bound towards saturation; so it measures utilisation without
//! counters. Memory that is already placed is not migrated: a weight applies to new memory, and is updated at every
//! step.
//!
//! Each node has a weight, its part of all memory to be placed, and one part moves at a time:
//!
//! | rule | from | to |
//! |---|---|---|
//! | [`Rule::Saturation`] | saturated nodes, else the farthest | the nearest node that is not saturated (SMDK's `bw_saturation`) |
//! | [`Rule::Order`] | saturated nodes, else the one with the least bandwidth | the unsaturated node with the most bandwidth (SMDK's `bw_order`) |
//! | [`Rule::Weighted`] | the highest latency | the lowest latency, until all are equal: on an idle machine all memory is near (Colloid, SOSP 2024, section 3) |
//!
//! A full node always loses parts and gains none. Four rules damp oscillation, because memory follows weights slowly
//! and one sample is noisy:
//! - no part moves to a saturated node: once all are saturated, they deliver all they can, and latency differences are
//!   noise;
//! - a node without a part gets its first one only after several consecutive steps (`LASTS`): a short burst is over
//!   before new memory arrives, which then stays far;
//! - a part moves only after memory has followed the previous ones, however long that takes (`LAG`);
//! - each new sample counts half, the average of earlier ones the other half.
//!
//! No model of the machine is needed; the result is equal latencies. With a model, [`crate::traffic::place`] computes
//! the placement directly, and by marginal cost: the delay that one more cache line adds to all lines of a program, not
//! to itself alone.
//!
//! A node is saturated at [`SATURATED`] and relieved below [`RELIEVED`]; the distance is hysteresis.

use alloc::vec;
use alloc::vec::Vec;

use nearfar_topology::{BasisPoints, BytesPerSecond, Nanoseconds};

/// A load of this or more is saturation, in per cent of idle latency.
pub const SATURATED: u64 = 200;
/// Saturation ends below this, in per cent of idle latency.
pub const RELIEVED: u64 = 150;
/// A node with less than this part of its memory free is full.
pub const FULL: BasisPoints = BasisPoints(1000);
/// Sum of all weights.
pub const PARTS: u8 = 16;
/// Latencies that differ by less than this, in per cent, count as equal.
const ALIKE: u64 = 10;
/// A node gains a part only if its memory lags its weight, less the last step, by less than this: sixteenths of a part.
const LAG: u64 = 8;

/// Consecutive steps before a node gets its first part.
const LASTS: u8 = 4;

/// Rule that selects nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The nearest node with bandwidth left.
    Saturation,
    /// The node with the highest bandwidth of those with some left.
    Order,
    /// All nodes, weighted so that latencies are equal.
    Weighted,
}

/// Static properties of a node; nodes are ordered nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Idle latency; 0 if unknown, and then the node never counts as saturated.
    pub idle: Nanoseconds,
    /// Maximal bandwidth; `None` if unknown.
    pub bandwidth: Option<BytesPerSecond>,
}

/// Sample of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Latency of a dependent load.
    pub load: Nanoseconds,
    /// The share of its memory that is free.
    pub free: BasisPoints,
    /// Bytes placed there so far.
    pub placed: u64,
}

/// The controller of the weights.
#[derive(Clone, Debug)]
pub struct Interleave {
    rule: Rule,
    /// Parts that move per step.
    pace: u8,
    places: Vec<Place>,
    /// Smoothed latency; `None` before the first sample.
    loads: Vec<Option<u64>>,
    saturated: Vec<bool>,
    weights: Vec<u8>,
    /// The node that is to gain a part, and for how many consecutive steps.
    lasts: (usize, u8),
}

impl Interleave {
    /// A controller for these nodes, nearest first; `pace` parts move per step. All weight is on the nearest node until
    /// a sample is taken.
    #[must_use]
    pub fn new(rule: Rule, pace: u8, places: Vec<Place>) -> Self {
        let mut weights = vec![0; places.len()];
        if let Some(nearest) = weights.first_mut() {
            *nearest = PARTS;
        }
        let (loads, saturated) = (vec![None; places.len()], vec![false; places.len()]);
        let lasts = (0, 0);
        Self { rule, pace: pace.clamp(1, PARTS), loads, saturated, weights, lasts, places }
    }

    /// The weight of each node for new memory, of [`PARTS`] in all.
    #[must_use]
    pub fn weights(&self) -> &[u8] {
        &self.weights
    }

    /// Records a sample of each node, in the order of [`Interleave::new`], and updates the weights.
    pub fn step(&mut self, seen: &[Seen]) {
        for (index, (place, seen)) in self.places.iter().zip(seen).enumerate() {
            // Less than memory can deliver: the clock did not advance.
            let now = seen.load.0.max(place.idle.0 / 2);
            let before = self.loads[index].unwrap_or(now);
            let load = before / 2 + now / 2 + (before & now & 1);
            self.loads[index] = Some(load);
            let percent = load.saturating_mul(100) / place.idle.0.max(1);
            let border = if self.saturated[index] { RELIEVED } else { SATURATED };
            // Idle latency may be unknown (0).
            self.saturated[index] = place.idle.0 > 0 && percent >= border;
        }
        let full = |index: usize| seen.get(index).is_none_or(|seen| seen.free < FULL);
        let found = match self.rule {
            Rule::Weighted => self.balance(full),
            Rule::Saturation => self.choose(full, |_| 0),
            Rule::Order => self.choose(full, |place| {
                u64::MAX - place.bandwidth.map_or(0, |bandwidth| bandwidth.0)
            }),
        };
        let moves = found.filter(|(from, to)| from != to && (full(*from) || !self.saturated[*to]));
        let Some((from, to)) = moves else {
            self.lasts.1 = 0;
            return;
        };
        self.lasts = (to, if self.lasts.0 == to { self.lasts.1.saturating_add(1) } else { 1 });
        let lasts = self.weights[to] > 0 || self.lasts.1 >= LASTS;
        if full(from) || (lasts && self.has_followed(to, seen)) {
            let parts = self.pace.min(self.weights[from]);
            self.weights[from] -= parts;
            self.weights[to] += parts;
        }
    }

    /// Whether the memory on node `to` has reached its weight, less the last step.
    fn has_followed(&self, to: usize, seen: &[Seen]) -> bool {
        let all: u128 = seen.iter().map(|seen| u128::from(seen.placed)).sum();
        let placed = seen.get(to).map_or(0, |seen| u128::from(seen.placed));
        let parts = u128::from(PARTS);
        let wanted =
            u64::from(self.weights[to]).saturating_sub(self.pace.into()) * u64::from(PARTS);
        // With nothing placed, every share is reached.
        placed * parts * parts >= all * u128::from(wanted.saturating_sub(LAG))
    }

    /// To the first node by `order` with bandwidth and free memory left; from nodes that lack either, else from the
    /// last one.
    fn choose(
        &self,
        full: impl Fn(usize) -> bool,
        order: impl Fn(&Place) -> u64,
    ) -> Option<(usize, usize)> {
        let by_order = |index: &usize| (order(&self.places[*index]), *index);
        let room = (0..self.places.len()).filter(|index| !full(*index));
        let to = room.min_by_key(|index| (self.saturated[*index], by_order(index)))?;
        let used = (0..self.places.len()).filter(|index| *index != to && self.weights[*index] > 0);
        let from =
            used.max_by_key(|index| (full(*index), self.saturated[*index], by_order(index)))?;
        Some((from, to))
    }

    /// From the highest latency to the lowest; always from a full node.
    fn balance(&self, full: impl Fn(usize) -> bool) -> Option<(usize, usize)> {
        let takes = |index: &usize| self.loads[*index].unwrap_or(u64::MAX);
        let all = || 0..self.weights.len();
        let used = all().filter(|index| self.weights[*index] > 0);
        let from = used.max_by_key(|index| (full(*index), takes(index), *index))?;
        let room = all().filter(|index| !full(*index));
        let to = room.min_by_key(|index| (takes(index), *index))?;
        let gains = takes(&from) > takes(&to).saturating_mul(100 + ALIKE) / 100;
        (gains || full(from)).then_some((from, to))
    }
}

/// Index of the node for the next allocation: the one farthest below its weight, by the bytes already placed.
#[must_use]
pub fn next(weights: &[u8], bytes: &[u64]) -> usize {
    let fill = |index: &usize| {
        let (bytes, weight) =
            (bytes.get(*index).copied().unwrap_or(0), u128::from(weights[*index]));
        u128::from(bytes) * u128::from(PARTS) / weight.max(1)
    };
    (0..weights.len()).filter(|index| weights[*index] > 0).min_by_key(fill).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RULES: [Rule; 3] = [Rule::Saturation, Rule::Order, Rule::Weighted];

    fn near_and_far(rule: Rule) -> Interleave {
        let place = |idle, gbps: u64| Place {
            idle: Nanoseconds(idle),
            bandwidth: Some(BytesPerSecond(gbps * 1_000_000_000)),
        };
        Interleave::new(rule, 1, vec![place(100, 50), place(250, 25)])
    }

    fn seen(load: u64) -> Seen {
        Seen { load: Nanoseconds(load), free: BasisPoints(5000), placed: 0 }
    }

    /// Runs `count` steps with memory that follows at once.
    fn steps(one: &mut Interleave, count: usize, loads: [u64; 2]) -> [u8; 2] {
        for _ in 0..count {
            let placed = [0, 1].map(|node| u64::from(one.weights()[node]) << 20);
            let look = [0, 1].map(|node| Seen { placed: placed[node], ..seen(loads[node]) });
            one.step(&look);
        }
        [one.weights()[0], one.weights()[1]]
    }

    /// Threads that walk their memory with `lines` outstanding requests each and share the nodes' bandwidth. State of
    /// each node for the distribution `placed`; no randomness, so every figure is an average.
    fn loaded(placed: [u64; 2]) -> [Seen; 2] {
        const LINES_TOGETHER: f64 = 48.0;
        let far = placed[1] as f64 / (placed[0] + placed[1]) as f64;
        // Bytes per nanosecond that the bandwidth of each node allows.
        let limit = (50.0 / (1.0 - far)).min(25.0 / far.max(1e-9));
        // Latencies at which that many lines are outstanding: the limiting node holds those that the other does not.
        let [near_idle, far_idle] = [100.0, 250.0];
        let under_way = LINES_TOGETHER * 64.0 * 10.0;
        let near_limits = 50.0 / (1.0 - far) <= 25.0 / far.max(1e-9);
        let (near, far) = if near_limits {
            ((under_way / limit - far * far_idle) / (1.0 - far), far_idle)
        } else {
            (near_idle, (under_way / limit - (1.0 - far) * near_idle) / far)
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "nanoseconds of a model"
        )]
        let look = |load: f64, placed| Seen { placed, ..seen(load as u64) };
        [look(near.max(near_idle), placed[0]), look(far.max(far_idle), placed[1])]
    }

    #[test]
    fn an_idle_machine_gives_all_weight_to_near_memory() {
        for rule in RULES {
            let mut one = near_and_far(rule);
            assert_eq!(steps(&mut one, 50, [105, 255]), [PARTS, 0], "{rule:?}");
        }
    }

    #[test]
    fn a_saturated_node_loses_weight_part_by_part_until_it_is_relieved() {
        let mut one = near_and_far(Rule::Saturation);
        assert_eq!(steps(&mut one, 3, [210, 250]), [PARTS, 0], "it may be over soon");
        assert_eq!(steps(&mut one, 4, [210, 250]), [12, 4]);
        // Not yet relieved on the first step; relieved once older samples have decayed.
        assert_eq!(steps(&mut one, 1, [160, 250]), [11, 5]);
        assert_eq!(steps(&mut one, 3, [120, 250]), [12, 4]);
        assert_eq!(steps(&mut one, 50, [120, 250]), [PARTS, 0]);
    }

    #[test]
    fn weights_do_not_change_if_all_nodes_are_saturated() {
        for rule in RULES {
            let mut one = near_and_far(rule);
            steps(&mut one, 5, [400, 300]);
            let before = one.weights().to_vec();
            assert!(before[1] > 0, "{rule:?}");
            assert_eq!(steps(&mut one, 1, [900, 1400]), [before[0], before[1]], "{rule:?}");
            assert_eq!(steps(&mut one, 20, [1500, 900]), [before[0], before[1]], "{rule:?}");
        }
    }

    #[test]
    fn transient_latency_spikes_change_no_weights() {
        for rule in RULES {
            let mut one = near_and_far(rule);
            steps(&mut one, 5, [105, 255]);
            assert_eq!(steps(&mut one, 2, [380, 255]), [PARTS, 0], "{rule:?}");
            assert_eq!(steps(&mut one, 5, [105, 255]), [PARTS, 0], "{rule:?}");
        }
    }

    #[test]
    fn a_latency_sample_of_zero_is_ignored() {
        for rule in RULES {
            let mut one = near_and_far(rule);
            steps(&mut one, 3, [105, 255]);
            assert_eq!(steps(&mut one, 1, [105, 0]), [PARTS, 0], "{rule:?}");
        }
    }

    #[test]
    fn weights_change_no_further_until_the_placement_follows_them() {
        for rule in RULES {
            let mut one = near_and_far(rule);
            let look = |far_mib: u64| {
                let [mut near, mut far] = [seen(500), seen(250)];
                (near.placed, far.placed) = ((160 - far_mib) << 20, far_mib << 20);
                [near, far]
            };
            (0..50).for_each(|_| one.step(&look(0)));
            assert_eq!(one.weights(), [14, 2], "{rule:?}: nothing is there yet");
            (0..50).for_each(|_| one.step(&look(10)));
            assert_eq!(one.weights(), [13, 3], "{rule:?}: a part is there");
        }
    }

    #[test]
    fn a_larger_pace_moves_that_many_parts_in_one_step() {
        let place = Place { idle: Nanoseconds(100), bandwidth: None };
        let mut one = Interleave::new(Rule::Saturation, 6, vec![place; 2]);
        assert_eq!(steps(&mut one, 5, [200, 100]), [4, 12]);
        assert_eq!(steps(&mut one, 1, [200, 100]), [0, 16]);
    }

    #[test]
    fn the_order_rule_fills_nodes_by_descending_bandwidth() {
        let place = |gbps| Place { idle: Nanoseconds(100), bandwidth: Some(BytesPerSecond(gbps)) };
        let mut one = Interleave::new(Rule::Order, 16, vec![place(50), place(400), place(100)]);
        (0..LASTS).for_each(|_| one.step(&[seen(100), seen(100), seen(100)]));
        assert_eq!(one.weights(), [0, PARTS, 0]);
        (0..LASTS).for_each(|_| one.step(&[seen(100), seen(500), seen(100)]));
        assert_eq!(one.weights(), [0, 0, PARTS]);
    }

    #[test]
    fn every_rule_converges_to_full_use_of_both_nodes() {
        for rule in RULES {
            let mut one = near_and_far(rule);
            let mut placed = [160_u64 << 20, 0];
            let mut shares = Vec::new();
            for step in 0..600 {
                one.step(&loaded(placed));
                // One hundredth of memory is reallocated between steps.
                let renewed = (placed[0] + placed[1]) / 100;
                let of_far = placed[1] / 100;
                (placed[0], placed[1]) = (placed[0] - (renewed - of_far), placed[1] - of_far);
                for _ in 0..4 {
                    placed[next(one.weights(), &placed)] += renewed / 4;
                }
                if step >= 300 {
                    shares.push(placed[1] * 100 / (placed[0] + placed[1]));
                }
            }
            // At full use of both nodes a third is far; 30 and 37 per cent lose a twentieth of that.
            let (least, most) = (shares.iter().min(), shares.iter().max());
            assert!(least >= Some(&29) && most <= Some(&38), "{rule:?}: {least:?} to {most:?}");
        }
    }

    #[test]
    fn a_full_node_gets_a_weight_of_zero() {
        let full = Seen { free: BasisPoints(500), ..seen(100) };
        for rule in RULES {
            let mut one = near_and_far(rule);
            (0..20).for_each(|_| one.step(&[full, seen(600)]));
            assert_eq!(one.weights(), [0, PARTS], "{rule:?}");
        }
    }

    #[test]
    fn the_next_node_is_the_one_furthest_below_its_weight() {
        let mut bytes = [0, 0];
        for _ in 0..160 {
            bytes[next(&[12, 4], &bytes)] += 10;
        }
        assert_eq!(bytes, [1200, 400]);
        assert_eq!(next(&[0, 16], &[0, 1000]), 1);
    }

    proptest! {
        #[test]
        fn weights_always_add_up(
            rule in prop_oneof![Just(Rule::Saturation), Just(Rule::Order), Just(Rule::Weighted)],
            pace in 0_u8..,
            looks in prop::collection::vec(
                prop::collection::vec((any::<u64>(), 0_u32..10_000, any::<u64>()), 0..4), 1..60),
        ) {
            let place = Place { idle: Nanoseconds(100), bandwidth: None };
            let mut one = Interleave::new(rule, pace, vec![place; 3]);
            for look in looks {
                let seen: Vec<_> = look
                    .iter()
                    .map(|(load, free, placed)| Seen {
                        load: Nanoseconds(*load),
                        free: BasisPoints(*free),
                        placed: *placed,
                    })
                    .collect();
                one.step(&seen);
                prop_assert_eq!(one.weights().iter().copied().sum::<u8>(), PARTS);
                prop_assert!(next(one.weights(), &[5, 6, 7]) < 3);
            }
        }
    }
}
