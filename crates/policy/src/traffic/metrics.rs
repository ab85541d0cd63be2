//! Metrics of a round of traffic as defined by Carrefour: utilisation, locality, imbalance. In whole numbers.
//!
//! Imbalance is the *sample* standard deviation (n - 1) over the mean: on four nodes, all accesses to one are exactly
//! 200 %. With the population standard deviation it would be 173 %, and published thresholds would not apply.
//! Multiplexed counters run for a part of the time; rates refer to that part.

use alloc::vec::Vec;

use nearfar_topology::BasisPoints;

use super::{Reads, Round};

const WHOLE: u128 = 10_000;
const MILLISECOND_NS: u128 = 1_000_000;
/// Counts are scaled down to this many bits before they are squared.
const BITS: u32 = 40;

/// Metrics of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Memory accesses per millisecond: a thousand times Carrefour's MAPTU.
    pub per_ms: u64,
    /// The share served by memory of the CPU's own node (LAR); the whole if there were no accesses.
    pub local: BasisPoints,
    /// Imbalance of controllers.
    pub imbalance: BasisPoints,
    /// The share of reads; `None` if unknown.
    pub reads: Option<BasisPoints>,
    /// The share of memory in use, page cache included.
    pub in_use: BasisPoints,
}

impl Metrics {
    /// Computes the metrics; `None` if the round took no time or nothing was counted.
    #[must_use]
    pub fn of(round: &Round) -> Option<Self> {
        let counted =
            u128::from(round.elapsed.0) * u128::from(round.coverage.0.min(10_000)) / WHOLE;
        let by_node = round.by_node();
        let all: u128 = by_node.iter().map(|accesses| u128::from(*accesses)).sum();
        let own = (0..round.nodes.len()).filter_map(|node| round.accesses.get(node)?.get(node));
        let own: u128 = own.map(|accesses| u128::from(*accesses)).sum();
        let with_memory = round.nodes.iter().zip(&by_node).filter(|(node, _)| node.total.0 > 0);
        let with_memory: Vec<u64> = with_memory.map(|(_, used)| *used).collect();
        let sum = |of: fn(&super::Memory) -> u64| {
            round.nodes.iter().map(|node| u128::from(of(node))).sum::<u128>()
        };
        let (total, free) = (sum(|node| node.total.0), sum(|node| node.free.0));
        (counted > 0).then(|| Self {
            per_ms: u64::try_from(all * MILLISECOND_NS / counted).unwrap_or(u64::MAX),
            local: share(own, all).unwrap_or(BasisPoints(10_000)),
            imbalance: imbalance(&with_memory),
            reads: reads(round.reads),
            in_use: share(total.saturating_sub(free), total).unwrap_or_default(),
        })
    }
}

fn share(part: u128, whole: u128) -> Option<BasisPoints> {
    let share = (part.min(whole) * WHOLE).checked_div(whole)?;
    u32::try_from(share).ok().map(BasisPoints)
}

/// The share of reads: fills that no other cache had modified, or lines read of all lines.
fn reads(reads: Reads) -> Option<BasisPoints> {
    match reads {
        Reads::Unknown => None,
        Reads::Fills { all, modified } => share(all.saturating_sub(modified).into(), all.into()),
        Reads::Lines { reads, writes } => {
            share(reads.into(), u128::from(reads) + u128::from(writes))
        }
    }
}

/// The sample standard deviation over the mean, for controllers or links; 0 for fewer than two, or without traffic.
#[must_use]
pub fn imbalance(counts: &[u64]) -> BasisPoints {
    let (Ok(many), all) =
        (u64::try_from(counts.len()), counts.iter().map(|n| u128::from(*n)).sum())
    else {
        return BasisPoints(0);
    };
    let all: u128 = all;
    if many < 2 || all == 0 {
        return BasisPoints(0);
    }
    let down = (u128::BITS - all.leading_zeros()).saturating_sub(BITS);
    let (all, many) = (all >> down, u128::from(many));
    // With x = n a - sum: sd / mean is the root of sum(x^2) / (n - 1), over sum.
    let squares = counts.iter().map(|count| {
        let apart = (many * (u128::from(*count) >> down)).abs_diff(all);
        apart.saturating_mul(apart)
    });
    let variance = squares.fold(0_u128, u128::saturating_add) / (many - 1);
    let root = (variance.saturating_mul(WHOLE * WHOLE)).isqrt();
    BasisPoints(u32::try_from(root / all.max(1)).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::Memory;
    use alloc::vec;
    use nearfar_topology::{Bytes, Nanoseconds, NodeId};
    use proptest::prelude::*;

    fn round(accesses: Vec<Vec<u64>>) -> Round {
        let memory = |node| Memory { node: NodeId(node), total: Bytes(100), free: Bytes(75) };
        Round {
            elapsed: Nanoseconds(1_000_000_000),
            coverage: BasisPoints(10_000),
            nodes: (0..4).map(memory).collect(),
            accesses,
            reads: Reads::Fills { all: 1000, modified: 40 },
            threads: vec![],
        }
    }

    #[test]
    fn all_on_one_of_four_nodes_is_exactly_two_hundred_per_cent() {
        assert_eq!(imbalance(&[1_000_003, 0, 0, 0]), BasisPoints(20_000));
        assert_eq!(imbalance(&[0, 0, u64::MAX, 0]), BasisPoints(20_000));
    }

    #[test]
    fn the_published_distributions_have_the_published_imbalance() {
        // Streamcluster by first touch: 97, 1, 1 and 1 % (200 % on the slide, in round figures).
        assert_eq!(imbalance(&[97, 1, 1, 1]), BasisPoints(19_200));
        // PCA: 83 % on one node is 154 %.
        assert_eq!(imbalance(&[83_000, 5_667, 5_667, 5_666]), BasisPoints(15_466));
        assert_eq!(imbalance(&[25, 25, 25, 25]), BasisPoints(0));
    }

    #[test]
    fn metrics_cover_the_time_during_which_counters_were_active() {
        let mut busy = round(vec![vec![25_000_000, 0, 0, 0], vec![25_000_000, 0, 0, 0]]);
        let metrics = Metrics::of(&busy).unwrap();
        assert_eq!(metrics.per_ms, 50_000);
        assert_eq!(metrics.local, BasisPoints(5_000));
        assert_eq!(metrics.reads, Some(BasisPoints(9_600)));
        assert_eq!(metrics.in_use, BasisPoints(2_500));
        busy.coverage = BasisPoints(2_500);
        assert_eq!(Metrics::of(&busy).unwrap().per_ms, 200_000);
        busy.coverage = BasisPoints(0);
        assert_eq!(Metrics::of(&busy), None, "nothing was counted");
    }

    #[test]
    fn a_node_without_memory_does_not_count_as_an_idle_controller() {
        let mut one = round(vec![vec![10, 10, 0, 0]]);
        one.nodes[2].total = Bytes(0);
        one.nodes[3].total = Bytes(0);
        assert_eq!(Metrics::of(&one).unwrap().imbalance, BasisPoints(0));
    }

    proptest! {
        #[test]
        fn imbalance_depends_on_proportions_alone(counts in prop::collection::vec(0_u64..1 << 30, 2..9)) {
            let (all, one) = (imbalance(&counts), imbalance(&counts.iter().map(|n| n * 7).collect::<Vec<_>>()));
            prop_assert!(all.0.abs_diff(one.0) <= 1);
            // All on one of n is the root of n, and nothing is above it.
            prop_assert!(u64::from(all.0).pow(2) <= counts.len() as u64 * 100_000_000);
        }

        #[test]
        fn metrics_of_any_round_are_within_range(
            accesses in prop::collection::vec(prop::collection::vec(any::<u64>(), 0..6), 0..6),
            elapsed in any::<u64>(),
            coverage in any::<u32>(),
        ) {
            let mut one = round(accesses);
            (one.elapsed, one.coverage) = (Nanoseconds(elapsed), BasisPoints(coverage));
            if let Some(metrics) = Metrics::of(&one) {
                prop_assert!(metrics.local.0 <= 10_000);
            }
        }
    }
}
