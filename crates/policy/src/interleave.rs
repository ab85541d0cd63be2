//! Where new memory goes while memory is busy: adaptive interleaving.
//!
//! A node's *load* is what a dependent load takes there now, as a share of what it takes when nothing else goes on. It is 1 while
//! the node is idle, some 2 at nine tenths of its bandwidth, and has no end at all of it; so it says how busy a node is without
//! counters. What has been placed stays where it is: a choice is for memory that is new, and is made anew all the time.
//!
//! Each node has a weight, its part of all that is to be there, and one part moves at a time:
//!
//! | rule | from | to |
//! |---|---|---|
//! | [`Rule::Saturation`] | saturated nodes, else the farthest | the nearest node that is not saturated (SMDK's `bw_saturation`) |
//! | [`Rule::Order`] | saturated nodes, else the one with the least bandwidth | the node with the most that is not saturated (SMDK's `bw_order`) |
//! | [`Rule::Weighted`] | where a load takes longest | where it is shortest, until all take alike: all is near on an idle machine (Colloid, SOSP 2024, section 3) |
//!
//! A full node is left in any case, and none is a goal. Four things keep weights from swinging, as they must when memory
//! follows slowly and one look is a moment's:
//! - nothing moves to a node that is saturated: where all are, they give all they can, and how long a load takes on each is chance;
//! - to a node that has no part, the first one moves when that has been so for some looks (`LASTS`): what is busy for a moment
//!   is over by the time that new memory is there, and has it far for long;
//! - a part moves when memory has followed the last ones, however long that takes (`LAG`);
//! - half of each look is the looks before.
//!
//! It needs no model of the machine, and comes to equal latencies. With one, [`crate::traffic::place`] says at once where to
//! go, and by prices: what a line more costs all of a program's lines, not itself alone.
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
/// A node is given more when what is there is less than this short of its weight, the last step apart: sixteenths of a part.
const LAG: u64 = 8;

/// So many looks in a row, before the first part.
const LASTS: u8 = 4;

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
    /// What a load takes when nothing else goes on; 0 if that is not known, and then the node is never saturated.
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
    /// What has been placed there, in bytes.
    pub placed: u64,
}

/// The chooser.
#[derive(Clone, Debug)]
pub struct Interleave {
    rule: Rule,
    /// Parts that move at a time.
    pace: u8,
    places: Vec<Place>,
    /// What a load takes, smoothed.
    loads: Vec<Option<u64>>,
    saturated: Vec<bool>,
    weights: Vec<u8>,
    /// For how many looks a part has been to move to which node.
    lasts: (usize, u8),
}

impl Interleave {
    /// For these nodes, nearest first; `pace` parts move at a step. All is near until something is seen.
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

    /// Takes in what is seen of each node, in the same order.
    pub fn step(&mut self, seen: &[Seen]) {
        for (index, (place, seen)) in self.places.iter().zip(seen).enumerate() {
            // What is quicker than memory can be is a clock that did not go on.
            let now = seen.load.0.max(place.idle.0 / 2);
            let before = self.loads[index].unwrap_or(now);
            let load = before / 2 + now / 2 + (before & now & 1);
            self.loads[index] = Some(load);
            let percent = load.saturating_mul(100) / place.idle.0.max(1);
            let border = if self.saturated[index] { RELIEVED } else { SATURATED };
            // What idle memory would take is not known of all.
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

    /// Whether a node has what its weight would have there, but for the last step.
    fn has_followed(&self, to: usize, seen: &[Seen]) -> bool {
        let all: u128 = seen.iter().map(|seen| u128::from(seen.placed)).sum();
        let placed = seen.get(to).map_or(0, |seen| u128::from(seen.placed));
        let parts = u128::from(PARTS);
        let wanted =
            u64::from(self.weights[to]).saturating_sub(self.pace.into()) * u64::from(PARTS);
        // Of nothing, every share is there.
        placed * parts * parts >= all * u128::from(wanted.saturating_sub(LAG))
    }

    /// To the first node by `order` that has bandwidth and room left; from those that lack either, else from the last.
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

    /// From where a load takes longest to where it is shortest; from where there is no room in any case.
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

    /// Steps with memory that follows at once, and so many of them.
    fn steps(one: &mut Interleave, count: usize, loads: [u64; 2]) -> [u8; 2] {
        for _ in 0..count {
            let placed = [0, 1].map(|node| u64::from(one.weights()[node]) << 20);
            let look = [0, 1].map(|node| Seen { placed: placed[node], ..seen(loads[node]) });
            one.step(&look);
        }
        [one.weights()[0], one.weights()[1]]
    }

    /// Threads that go from one place of their memory to the next, with `lines` under way each: where they meet they wait
    /// for each other. What each node is like, by where `placed` is; without chance, so all are where they are on average.
    fn loaded(placed: [u64; 2]) -> [Seen; 2] {
        const LINES_TOGETHER: f64 = 48.0;
        let far = placed[1] as f64 / (placed[0] + placed[1]) as f64;
        // Bytes a nanosecond that each node gives of what is asked of it.
        let limit = (50.0 / (1.0 - far)).min(25.0 / far.max(1e-9));
        // Latencies at which that many lines are under way: the node that limits has those that the other has not.
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
    fn an_idle_machine_has_all_near() {
        for rule in RULES {
            let mut one = near_and_far(rule);
            assert_eq!(steps(&mut one, 50, [105, 255]), [PARTS, 0], "{rule:?}");
        }
    }

    #[test]
    fn a_saturated_node_is_left_part_by_part_until_it_is_relieved() {
        let mut one = near_and_far(Rule::Saturation);
        assert_eq!(steps(&mut one, 3, [210, 250]), [PARTS, 0], "it may be over soon");
        assert_eq!(steps(&mut one, 4, [210, 250]), [12, 4]);
        // Not relieved yet; then it is, once looks before no longer count.
        assert_eq!(steps(&mut one, 1, [160, 250]), [11, 5]);
        assert_eq!(steps(&mut one, 3, [120, 250]), [12, 4]);
        assert_eq!(steps(&mut one, 50, [120, 250]), [PARTS, 0]);
    }

    #[test]
    fn where_all_are_saturated_nothing_moves() {
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
    fn looks_that_are_off_for_a_moment_move_nothing() {
        for rule in RULES {
            let mut one = near_and_far(rule);
            steps(&mut one, 5, [105, 255]);
            assert_eq!(steps(&mut one, 2, [380, 255]), [PARTS, 0], "{rule:?}");
            assert_eq!(steps(&mut one, 5, [105, 255]), [PARTS, 0], "{rule:?}");
        }
    }

    #[test]
    fn a_look_that_took_no_time_says_nothing() {
        for rule in RULES {
            let mut one = near_and_far(rule);
            steps(&mut one, 3, [105, 255]);
            assert_eq!(steps(&mut one, 1, [105, 0]), [PARTS, 0], "{rule:?}");
        }
    }

    #[test]
    fn weights_wait_for_memory_to_follow() {
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
    fn a_pace_of_more_parts_moves_them_at_once() {
        let place = Place { idle: Nanoseconds(100), bandwidth: None };
        let mut one = Interleave::new(Rule::Saturation, 6, vec![place; 2]);
        assert_eq!(steps(&mut one, 5, [200, 100]), [4, 12]);
        assert_eq!(steps(&mut one, 1, [200, 100]), [0, 16]);
    }

    #[test]
    fn order_is_by_bandwidth() {
        let place = |gbps| Place { idle: Nanoseconds(100), bandwidth: Some(BytesPerSecond(gbps)) };
        let mut one = Interleave::new(Rule::Order, 16, vec![place(50), place(400), place(100)]);
        (0..LASTS).for_each(|_| one.step(&[seen(100), seen(100), seen(100)]));
        assert_eq!(one.weights(), [0, PARTS, 0]);
        (0..LASTS).for_each(|_| one.step(&[seen(100), seen(500), seen(100)]));
        assert_eq!(one.weights(), [0, 0, PARTS]);
    }

    #[test]
    fn every_rule_comes_to_where_both_nodes_give_all_they_can() {
        for rule in RULES {
            let mut one = near_and_far(rule);
            let mut placed = [160_u64 << 20, 0];
            let mut shares = Vec::new();
            for step in 0..600 {
                one.step(&loaded(placed));
                // A hundredth of memory is renewed between looks.
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
            // A third is far where both are used to the full; a twentieth of that is lost at 30 and 37 per cent.
            let (least, most) = (shares.iter().min(), shares.iter().max());
            assert!(least >= Some(&29) && most <= Some(&38), "{rule:?}: {least:?} to {most:?}");
        }
    }

    #[test]
    fn a_full_node_gets_nothing() {
        let full = Seen { free: BasisPoints(500), ..seen(100) };
        for rule in RULES {
            let mut one = near_and_far(rule);
            (0..20).for_each(|_| one.step(&[full, seen(600)]));
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
