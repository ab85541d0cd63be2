//! Where new memory goes while memory is busy: adaptive interleaving.
//!
//! A node's *load* is what a dependent load takes there now, as a share of what it takes when nothing else goes on. It is 1 while
//! the node is idle, some 2 at nine tenths of its bandwidth, and has no end at all of it; so it says how busy a node is without
//! counters. What has been placed stays where it is: a choice is for memory that is new, and is made anew all the time.
//!
//! | rule | new memory goes |
//! |---|---|
//! | [`Rule::Saturation`] | to the nearest node that is neither saturated nor full (SMDK's `bw_saturation`) |
//! | [`Rule::Order`] | to the node with the most bandwidth that is neither (SMDK's `bw_order`) |
//! | [`Rule::Weighted`] | to all nodes by weights, of which one in sixteen moves at a time from the node where a load takes longest to the one where it is shortest, until all take alike: bandwidth is balanced then, and on an idle machine all is near (Colloid, SOSP 2024, section 3) |
//!
//! Saturated is [`SATURATED`], and ends at [`RELIEVED`], so that a node near the border does not change at each tick.

use alloc::vec;
use alloc::vec::Vec;

use nearfar_topology::{BasisPoints, BytesPerSecond, Nanoseconds};

/// A load of this and more is saturation, in per cent of an idle node's.
pub const SATURATED: u64 = 200;
/// It is over below this.
pub const RELIEVED: u64 = 150;
/// A node with less than this part of its memory free is full.
pub const FULL: BasisPoints = BasisPoints(1000);
/// Weights add up to this.
pub const PARTS: u8 = 16;
/// Latencies that differ by less than this, in per cent, are alike.
const ALIKE: u64 = 10;

/// How nodes are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The nearest that has bandwidth left.
    Saturation,
    /// The one with the most bandwidth of those that have some left.
    Order,
    /// All, so that a load takes as long everywhere.
    Weighted,
}

/// A node as it is known, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// What a load takes when nothing else goes on.
    pub idle: Nanoseconds,
    /// The most it gives, if that is known.
    pub bandwidth: Option<BytesPerSecond>,
}

/// A node as it is seen now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// What a load takes now.
    pub load: Nanoseconds,
    /// The share of its memory that is free.
    pub free: BasisPoints,
}

/// The chooser.
#[derive(Clone, Debug)]
pub struct Interleave {
    rule: Rule,
    places: Vec<Place>,
    saturated: Vec<bool>,
    weights: Vec<u8>,
}

impl Interleave {
    /// For these nodes, nearest first. All is near until something is seen.
    #[must_use]
    pub fn new(rule: Rule, places: Vec<Place>) -> Self {
        let mut weights = vec![0; places.len()];
        if let Some(nearest) = weights.first_mut() {
            *nearest = PARTS;
        }
        Self { rule, saturated: vec![false; places.len()], weights, places }
    }

    /// The weight of each node for new memory, of [`PARTS`] in all.
    #[must_use]
    pub fn weights(&self) -> &[u8] {
        &self.weights
    }

    /// Takes in what is seen of each node, in the same order.
    pub fn step(&mut self, seen: &[Seen]) {
        for ((place, seen), saturated) in self.places.iter().zip(seen).zip(&mut self.saturated) {
            let percent = seen.load.0.saturating_mul(100) / place.idle.0.max(1);
            *saturated = percent >= if *saturated { RELIEVED } else { SATURATED };
        }
        match self.rule {
            Rule::Weighted => self.balance(seen),
            Rule::Saturation => self.choose(seen, |_| 0),
            Rule::Order => self.choose(seen, |place| {
                u64::MAX - place.bandwidth.map_or(0, |bandwidth| bandwidth.0)
            }),
        }
    }

    /// All to the first node by `order` that has bandwidth and room left; if none has, to the first that has room.
    fn choose(&mut self, seen: &[Seen], order: impl Fn(&Place) -> u64) {
        let room = |index: &usize| seen.get(*index).is_some_and(|seen| seen.free >= FULL);
        let by_order = || (0..self.places.len()).filter(room);
        let first = by_order().filter(|index| !self.saturated[*index]);
        let best = first.min_by_key(|index| order(&self.places[*index]));
        let best = best.or_else(|| by_order().next()).unwrap_or(0);
        for (index, weight) in self.weights.iter_mut().enumerate() {
            *weight = if index == best { PARTS } else { 0 };
        }
    }

    /// One part from where a load takes longest to where it is shortest; from where there is no room in any case.
    fn balance(&mut self, seen: &[Seen]) {
        let full = |index: usize| seen.get(index).is_none_or(|seen| seen.free < FULL);
        let takes = |index: &usize| seen.get(*index).map_or(u64::MAX, |seen| seen.load.0);
        let all = || 0..self.weights.len();
        let slowest = all()
            .filter(|index| self.weights[*index] > 0)
            .max_by_key(|index| (full(*index), takes(index), *index));
        let fastest =
            all().filter(|index| !full(*index)).min_by_key(|index| (takes(index), *index));
        let (Some(from), Some(to)) = (slowest, fastest) else { return };
        let gains = takes(&from) > takes(&to).saturating_mul(100 + ALIKE) / 100;
        if from != to && (gains || full(from)) {
            self.weights[from] -= 1;
            self.weights[to] += 1;
        }
    }
}

/// Which node new memory is for: that which has least of what its weight would have it, by the bytes there are.
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

    fn near_and_far(rule: Rule) -> Interleave {
        let place = |idle, gbps: u64| Place {
            idle: Nanoseconds(idle),
            bandwidth: Some(BytesPerSecond(gbps * 1_000_000_000)),
        };
        Interleave::new(rule, vec![place(100, 50), place(250, 25)])
    }

    fn seen(load: u64) -> Seen {
        Seen { load: Nanoseconds(load), free: BasisPoints(5000) }
    }

    /// A near node that gives as much as nine sixteenths of all need and is slower the more it is asked for.
    fn loaded(weights: &[u8]) -> [Seen; 2] {
        let near = 100 + u64::from(weights[0].saturating_sub(9)) * 60;
        let far = 250 + u64::from(weights[1].saturating_sub(4)) * 60;
        [seen(near), seen(far)]
    }

    #[test]
    fn an_idle_machine_has_all_near() {
        for rule in [Rule::Saturation, Rule::Order, Rule::Weighted] {
            let mut one = near_and_far(rule);
            (0..50).for_each(|_| one.step(&[seen(105), seen(255)]));
            assert_eq!(one.weights(), [PARTS, 0], "{rule:?}");
        }
    }

    #[test]
    fn a_saturated_node_is_left_until_it_is_relieved() {
        let mut one = near_and_far(Rule::Saturation);
        one.step(&[seen(210), seen(250)]);
        assert_eq!(one.weights(), [0, PARTS]);
        one.step(&[seen(160), seen(250)]);
        assert_eq!(one.weights(), [0, PARTS]);
        one.step(&[seen(140), seen(250)]);
        assert_eq!(one.weights(), [PARTS, 0]);
        // If all are saturated, the nearest.
        one.step(&[seen(900), seen(900)]);
        assert_eq!(one.weights(), [PARTS, 0]);
    }

    #[test]
    fn order_is_by_bandwidth() {
        let place = |gbps| Place { idle: Nanoseconds(100), bandwidth: Some(BytesPerSecond(gbps)) };
        let mut one = Interleave::new(Rule::Order, vec![place(50), place(400), place(100)]);
        one.step(&[seen(100), seen(100), seen(100)]);
        assert_eq!(one.weights(), [0, PARTS, 0]);
        one.step(&[seen(100), seen(300), seen(100)]);
        assert_eq!(one.weights(), [0, 0, PARTS]);
    }

    #[test]
    fn weights_settle_where_a_load_takes_as_long_everywhere() {
        let mut one = near_and_far(Rule::Weighted);
        for _ in 0..50 {
            let now = loaded(one.weights());
            one.step(&now);
        }
        for _ in 0..10 {
            let now = loaded(one.weights());
            one.step(&now);
            assert!((11..=12).contains(&one.weights()[0]), "{:?}", one.weights());
        }
        // Idle again, all goes back.
        (0..20).for_each(|_| one.step(&[seen(100), seen(250)]));
        assert_eq!(one.weights(), [PARTS, 0]);
    }

    #[test]
    fn a_full_node_gets_nothing() {
        let full = Seen { load: Nanoseconds(100), free: BasisPoints(500) };
        for rule in [Rule::Saturation, Rule::Order, Rule::Weighted] {
            let mut one = near_and_far(rule);
            (0..20).for_each(|_| one.step(&[full, seen(250)]));
            assert_eq!(one.weights(), [0, PARTS], "{rule:?}");
        }
    }

    #[test]
    fn memory_goes_where_weights_have_least() {
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
            looks in prop::collection::vec(prop::collection::vec((0_u64..5000, 0_u32..10_000), 0..4), 1..60),
        ) {
            let place = Place { idle: Nanoseconds(100), bandwidth: None };
            let mut one = Interleave::new(rule, vec![place; 3]);
            for look in looks {
                let seen: Vec<_> = look
                    .iter()
                    .map(|(load, free)| Seen { load: Nanoseconds(*load), free: BasisPoints(*free) })
                    .collect();
                one.step(&seen);
                prop_assert_eq!(one.weights().iter().copied().sum::<u8>(), PARTS);
                prop_assert!(next(one.weights(), &[5, 6, 7]) < 3);
            }
        }
    }
}
