//! Weights for weighted interleave, from each node's bandwidth.
//!
//! # The question
//! Under weighted interleave the kernel places `w_i` consecutive pages on node i, so node i serves `w_i` of every round
//! of `W = sum(w)` pages. A program that streams over its pages draws from the nodes in that proportion, and finishes a
//! round with the slowest share: all nodes together deliver `W x min(b_i / w_i)` of their bandwidths `b_i`, at best
//! `sum(b)`, the *ideal*. The shortfall from the ideal is the *loss*. Weights are whole numbers, 1..=255, and a short
//! round spreads a small buffer better than a long one. So: find the smallest round, of at most 64 pages, with a loss
//! within the tolerance (2 %).
//!
//! # The answer
//! For a round of `W` pages the best weights minimise `max(w_i / b_i)`. This equals dividing W seats among parties by
//! D'Hondt's method (1878; Jefferson's, 1792): start with one page each, give every further page to the node with the
//! largest `b_i / (w_i + 1)`. It is optimal because each step takes the cheapest next page, and a page once taken never
//! gets cheaper. It is also *house monotone*: the best round of W + 1 pages is the best round of W plus one page. One
//! pass from one page each to 64 in all therefore visits the best weights of every size, smallest first; the first
//! within the tolerance is the answer. All comparisons are exact, in whole numbers.
//!
//! # When there is no good answer
//! A node too slow to carry even one page in 64 slows all others down; without it the rest is faster, and
//! [`Unweighable::Hinders`] names the node. Between two nodes that is a ratio above 63:1. With many nodes of awkward
//! ratios 64 pages may be too few for the tolerance though no single node is the cause; then the best round found is
//! returned, and [`Weights::loss`] gives its loss.
//!
//! # What this is not
//! Not a recommendation to interleave. It helps programs that need more bandwidth than near memory has; for all others
//! far pages are only slower. Bandwidths are given for one mix of reads and writes ([`crate::bandwidth`]).
//!
//! Source: Linux 6.9, mm/mempolicy.c. The kernel's own automatic weights (6.16) are
//! `max(1, floor(32 b_i / sum(b)))` over the greatest common divisor: 24:7 for 40 and 13 GB/s, which loses 2.5 %.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;

use nearfar_topology::{BasisPoints, BytesPerSecond, NodeId};

mod place;

/// Losses up to this do not justify a longer round: 2 %.
pub const TOLERANCE: BasisPoints = BasisPoints(200);

/// The longest round of [`weights`], in pages.
pub const ROUND_MAX: u32 = 64;

/// Pages per round and node: at least one node, each at least one page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weights(BTreeMap<NodeId, u8>);

/// Reason why there are no weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unweighable {
    /// No nodes were given.
    NoNodes,
    /// More nodes than a round has pages.
    TooMany {
        /// Number of nodes.
        nodes: usize,
    },
    /// A node without bandwidth.
    Unmeasured {
        /// The node.
        node: NodeId,
    },
    /// The slowest node costs the others more than it adds: without it their aggregate bandwidth is higher.
    Hinders {
        /// The slowest node.
        node: NodeId,
        /// Its bandwidth.
        bandwidth: BytesPerSecond,
        /// Aggregate bandwidth of all nodes.
        with: BytesPerSecond,
        /// Aggregate bandwidth without the slowest node.
        without: BytesPerSecond,
    },
}

impl fmt::Display for Unweighable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNodes => f.write_str("no nodes to weigh; name at least one"),
            Self::TooMany { nodes } => {
                write!(f, "{nodes} nodes can't share a round of {ROUND_MAX} pages; name fewer")
            }
            Self::Unmeasured { node } => write!(f, "node {node} has no known bandwidth"),
            Self::Hinders { node, bandwidth, with, without } => write!(
                f,
                "node {node} is too slow to interleave with: with one page in {ROUND_MAX} on its {bandwidth} all \
                 nodes reach {with}, without it {without}; leave it out"
            ),
        }
    }
}

impl core::error::Error for Unweighable {}

impl Weights {
    /// These weights; `None` if there are none or one is zero.
    #[must_use]
    pub fn new(weights: BTreeMap<NodeId, u8>) -> Option<Self> {
        (!weights.is_empty() && weights.values().all(|pages| *pages > 0)).then_some(Self(weights))
    }

    /// One page each: plain interleave.
    #[must_use]
    pub fn even(nodes: impl IntoIterator<Item = NodeId>) -> Option<Self> {
        Self::new(nodes.into_iter().map(|node| (node, 1)).collect())
    }

    /// Node and pages, in order of node.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (NodeId, u8)> + '_ {
        self.0.iter().map(|(node, pages)| (*node, *pages))
    }

    /// The pages of `node` in a round.
    #[must_use]
    pub fn get(&self, node: NodeId) -> Option<u8> {
        self.0.get(&node).copied()
    }

    /// Aggregate bandwidth, `round x min(b_i / w_i)`; `None` if a node has no bandwidth in `bandwidth`.
    #[must_use]
    pub fn aggregate(
        &self,
        bandwidth: &BTreeMap<NodeId, BytesPerSecond>,
    ) -> Option<BytesPerSecond> {
        let round = u128::from(self.round());
        let least =
            self.measured(bandwidth)?.into_iter().map(|(b, pages)| round * b / pages).min()?;
        Some(BytesPerSecond(u64::try_from(least).unwrap_or(u64::MAX)))
    }

    /// The share of the ideal that is lost, rounded up; `None` if a node has no bandwidth in `bandwidth`.
    #[must_use]
    pub fn loss(&self, bandwidth: &BTreeMap<NodeId, BytesPerSecond>) -> Option<BasisPoints> {
        let round = u128::from(self.round());
        let measured = self.measured(bandwidth)?;
        let ideal: u128 = measured.iter().map(|(b, _)| b).sum();
        // 1 - round x b / (w x ideal), the largest over all nodes. At most 2^14 x 2^8 x 2^74.
        let lost = |(b, pages): (u128, u128)| {
            let whole = (pages * ideal).max(1);
            (whole.saturating_sub(round * b) * 10_000).div_ceil(whole)
        };
        let most = measured.into_iter().map(lost).max()?;
        u32::try_from(most).ok().map(BasisPoints)
    }

    /// Bandwidth and pages of each node.
    fn measured(&self, bandwidth: &BTreeMap<NodeId, BytesPerSecond>) -> Option<Vec<(u128, u128)>> {
        self.iter()
            .map(|(node, pages)| Some((u128::from(bandwidth.get(&node)?.0), u128::from(pages))))
            .collect()
    }
}

impl fmt::Display for Weights {
    /// `21:1`, in order of node.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, pages) in self.0.values().enumerate() {
            let colon = if index == 0 { "" } else { ":" };
            write!(f, "{colon}{pages}")?;
        }
        Ok(())
    }
}

/// The smallest weights with a loss of at most `tolerance`; the least lossy if no round of at most [`ROUND_MAX`] pages
/// is within it, or the fastest node alone has more.
///
/// # Errors
/// [`Unweighable`]; its text names the node and the way out.
pub fn weights(
    bandwidth: &BTreeMap<NodeId, BytesPerSecond>,
    tolerance: BasisPoints,
) -> Result<Weights, Unweighable> {
    let pages_max = usize::try_from(ROUND_MAX).unwrap_or(usize::MAX);
    if bandwidth.len() > pages_max {
        return Err(Unweighable::TooMany { nodes: bandwidth.len() });
    }
    if let Some((node, _)) = bandwidth.iter().find(|(_, b)| b.0 == 0) {
        return Err(Unweighable::Unmeasured { node: *node });
    }
    let (best, loss) = shortest(bandwidth, tolerance).ok_or(Unweighable::NoNodes)?;
    let alone = bandwidth.values().max().copied();
    let is_good = loss <= tolerance && best.aggregate(bandwidth) >= alone;
    if is_good { Ok(best) } else { unless_hindered(best, bandwidth, tolerance) }
}

/// The first round within `tolerance` that has no less than the fastest node alone, else the least lossy of all rounds up
/// to [`ROUND_MAX`]; with its loss.
fn shortest(
    bandwidth: &BTreeMap<NodeId, BytesPerSecond>,
    tolerance: BasisPoints,
) -> Option<(Weights, BasisPoints)> {
    let mut round = Weights::even(bandwidth.keys().copied())?;
    let mut best = (round.clone(), BasisPoints(u32::MAX));
    let alone = bandwidth.values().max().copied();
    loop {
        let loss = round.loss(bandwidth)?;
        if loss < best.1 {
            best = (round.clone(), loss);
        }
        if loss <= tolerance && round.aggregate(bandwidth) >= alone {
            return Some((round, loss));
        }
        if round.round() == ROUND_MAX {
            return Some(best);
        }
        add_page(&mut round, bandwidth);
    }
}

/// Like [`weights`], but leaves out nodes that hinder the others, slowest first, and returns the reason for each.
///
/// # Errors
/// [`Unweighable`], but never [`Unweighable::Hinders`].
pub fn worthwhile(
    bandwidth: &BTreeMap<NodeId, BytesPerSecond>,
    tolerance: BasisPoints,
) -> Result<(Weights, Vec<Unweighable>), Unweighable> {
    let mut bandwidth = bandwidth.clone();
    let mut left_out = Vec::new();
    loop {
        match weights(&bandwidth, tolerance) {
            Err(hinders @ Unweighable::Hinders { node, .. }) => {
                bandwidth.remove(&node);
                left_out.push(hinders);
            }
            other => return other.map(|weights| (weights, left_out)),
        }
    }
}

/// D'Hondt's step: one page more for the node with the largest `b / (w + 1)`, the lowest id among equals.
fn add_page(round: &mut Weights, bandwidth: &BTreeMap<NodeId, BytesPerSecond>) {
    let claim = |(node, pages): (&NodeId, &u8)| {
        (bandwidth.get(node).map_or(0, |b| u128::from(b.0)), u128::from(*pages) + 1)
    };
    let larger = |a: (u128, u128), b: (u128, u128)| a.0 * b.1 > b.0 * a.1;
    let mut winner: Option<(NodeId, (u128, u128))> = None;
    for entry in &round.0 {
        if winner.is_none_or(|(_, most)| larger(claim(entry), most)) {
            winner = Some((*entry.0, claim(entry)));
        }
    }
    if let Some(pages) = winner.and_then(|(node, _)| round.0.get_mut(&node)) {
        *pages += 1;
    }
}

/// `best`, or the error that names the slowest node if some of the others reach more without it. Of all sets of as many
/// nodes, the fastest nodes reach the most, so only those are tried: down to the fastest node alone.
fn unless_hindered(
    best: Weights,
    bandwidth: &BTreeMap<NodeId, BytesPerSecond>,
    tolerance: BasisPoints,
) -> Result<Weights, Unweighable> {
    let Some((&node, &slowest)) = bandwidth.iter().min_by_key(|(_, b)| **b) else {
        return Err(Unweighable::NoNodes);
    };
    let mut others = bandwidth.clone();
    others.remove(&node);
    let with = best.aggregate(bandwidth).unwrap_or_default();
    let mut by_speed: Vec<_> = others.iter().collect();
    by_speed.sort_by_key(|(_, bandwidth)| core::cmp::Reverse(**bandwidth));
    let reached = |count: usize| {
        let some =
            by_speed[..count].iter().map(|(node, bandwidth)| (**node, **bandwidth)).collect();
        shortest(&some, tolerance)?.0.aggregate(&some)
    };
    let without = (1..=by_speed.len()).filter_map(reached).max();
    match without {
        Some(without) if with < without => {
            Err(Unweighable::Hinders { node, bandwidth: slowest, with, without })
        }
        _ => Ok(best),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::string::ToString as _;

    /// Nodes 0, 1, ... with these bandwidths in GB/s.
    fn gb(bandwidths: &[u64]) -> BTreeMap<NodeId, BytesPerSecond> {
        bytes(&bandwidths.iter().map(|b| b * 1_000_000_000).collect::<Vec<_>>())
    }

    fn bytes(bandwidths: &[u64]) -> BTreeMap<NodeId, BytesPerSecond> {
        (0..).map(NodeId).zip(bandwidths.iter().copied().map(BytesPerSecond)).collect()
    }

    fn chosen(bandwidths: &[u64]) -> std::string::String {
        weights(&gb(bandwidths), TOLERANCE).unwrap().to_string()
    }

    #[test]
    fn equal_nodes_take_turns() {
        assert_eq!(chosen(&[40, 40]), "1:1");
        assert_eq!(chosen(&[27, 27, 27, 27]), "1:1:1:1");
    }

    #[test]
    fn a_five_to_one_pair_stays_five_to_one() {
        assert_eq!(chosen(&[200, 40]), "5:1");
    }

    #[test]
    fn a_lone_node_gets_every_page() {
        assert_eq!(chosen(&[40]), "1");
    }

    #[test]
    fn an_uneven_ratio_is_rounded_to_a_short_round() {
        // 40:13 exactly would be a round of 53 pages; 3:1 loses 1.9 %.
        assert_eq!(chosen(&[40, 13]), "3:1");
        let exact = weights(&gb(&[40, 13]), BasisPoints(0)).unwrap();
        assert_eq!(exact.to_string(), "40:13");
    }

    #[test]
    fn the_kernels_automatic_weights_lose_the_documented_bandwidth() {
        let kernel = Weights::new([(NodeId(0), 24), (NodeId(1), 7)].into()).unwrap();
        assert_eq!(kernel.loss(&gb(&[40, 13])), Some(BasisPoints(252)));
    }

    #[test]
    fn three_tiers_get_weights_in_the_order_of_their_bandwidths() {
        let machine = gb(&[40, 160, 27]);
        let found = weights(&machine, TOLERANCE).unwrap();
        assert!(found.loss(&machine).unwrap() <= TOLERANCE);
        assert!(found.get(NodeId(1)) > found.get(NodeId(0)));
        assert!(found.get(NodeId(0)) > found.get(NodeId(2)));
    }

    #[test]
    fn excess_pages_cost_little_on_the_fast_node_and_much_on_the_slow_one() {
        let machine = gb(&[100, 20]);
        let loss = |weights: [u8; 2]| {
            let weights = (0..).map(NodeId).zip(weights).collect();
            Weights::new(weights).unwrap().loss(&machine).unwrap()
        };
        assert_eq!(loss([5, 1]), BasisPoints(0));
        assert_eq!(loss([6, 1]), BasisPoints(278));
        assert_eq!(loss([4, 1]), BasisPoints(1_667));
        assert_eq!(loss([1, 1]), BasisPoints(6_667));
    }

    #[test]
    fn a_63_to_1_pair_is_weighted_and_a_slower_node_is_named() {
        assert_eq!(weights(&gb(&[630, 10]), BasisPoints(0)).unwrap().to_string(), "63:1");
        let error = weights(&gb(&[700, 10]), TOLERANCE).unwrap_err();
        let Unweighable::Hinders { node, with, without, .. } = error else { panic!("{error}") };
        assert_eq!(node, NodeId(1));
        // 64 x 10 GB/s with it, 700 GB/s without.
        assert_eq!((with.0, without.0), (640_000_000_000, 700_000_000_000));
        let text = error.to_string();
        assert!(text.contains("node 1") && text.contains("leave it out"), "{text}");
    }

    #[test]
    fn a_slow_node_is_kept_if_the_others_gain_nothing_without_it() {
        // The others have 120 703 together, more than the 120 128 that all reach, but their best round reaches less.
        let machine = bytes(&[18_114, 45_127, 1_877, 57_462]);
        let (kept, left_out) = worthwhile(&machine, TOLERANCE).unwrap();
        assert_eq!((kept.iter().len(), left_out), (4, std::vec![]));
    }

    #[test]
    fn nodes_that_hinder_are_left_out_slowest_first() {
        let (kept, left_out) = worthwhile(&gb(&[9_000, 9, 3_000, 1]), TOLERANCE).unwrap();
        assert_eq!(kept, Weights::new([(NodeId(0), 3), (NodeId(2), 1)].into()).unwrap());
        let named: Vec<_> = left_out
            .iter()
            .map(|error| match error {
                Unweighable::Hinders { node, .. } => node.0,
                other => panic!("{other}"),
            })
            .collect();
        assert_eq!(named, [3, 1]);
    }

    #[test]
    fn an_unmeasured_node_is_named_in_the_error() {
        let error = weights(&gb(&[40, 0]), TOLERANCE).unwrap_err();
        assert_eq!(error, Unweighable::Unmeasured { node: NodeId(1) });
        assert_eq!(weights(&gb(&[]), TOLERANCE).unwrap_err(), Unweighable::NoNodes);
        let crowd = weights(&gb(&[1; 65]), TOLERANCE).unwrap_err();
        assert_eq!(crowd, Unweighable::TooMany { nodes: 65 });
        assert_eq!(weights(&gb(&[1; 64]), TOLERANCE).unwrap().round(), 64);
    }

    #[test]
    fn empty_and_zero_weights_are_rejected() {
        assert_eq!(Weights::new(BTreeMap::new()), None);
        assert_eq!(Weights::new([(NodeId(0), 1), (NodeId(1), 0)].into()), None);
    }

    #[test]
    fn the_largest_bandwidths_do_not_overflow() {
        let machine = bytes(&[u64::MAX; 3]);
        let found = weights(&machine, TOLERANCE).unwrap();
        assert_eq!(found.to_string(), "1:1:1");
        assert_eq!(found.loss(&machine), Some(BasisPoints(0)));
    }

    /// The least loss of any weights with a round of exactly `pages`, by trying them all.
    fn least_loss(machine: &BTreeMap<NodeId, BytesPerSecond>, pages: u32) -> Option<BasisPoints> {
        fn all(nodes: usize, pages: u32) -> Vec<Vec<u32>> {
            if nodes == 1 {
                return std::vec![std::vec![pages]];
            }
            let rest = u32::try_from(nodes).unwrap() - 1;
            let firsts = 1..=pages.saturating_sub(rest);
            firsts
                .flat_map(|first| {
                    all(nodes - 1, pages - first).into_iter().map(move |mut tail| {
                        tail.insert(0, first);
                        tail
                    })
                })
                .collect()
        }
        all(machine.len(), pages)
            .into_iter()
            .filter_map(|pages| {
                let pages = pages.into_iter().map(|pages| u8::try_from(pages).unwrap());
                Weights::new(machine.keys().copied().zip(pages).collect())?.loss(machine)
            })
            .min()
    }

    proptest! {
        #[test]
        fn every_node_gets_a_page_and_a_round_has_at_most_64(b in prop::collection::vec(1u64..1_000, 1..9)) {
            if let Ok(found) = weights(&gb(&b), TOLERANCE) {
                prop_assert!(found.iter().all(|(_, pages)| pages >= 1));
                prop_assert_eq!(found.iter().len(), b.len());
                prop_assert!(found.round() <= ROUND_MAX);
            }
        }

        #[test]
        fn a_pair_within_63_to_1_is_always_within_the_tolerance(slow in 1u64..10_000, ratio in 1_000u64..=63_000) {
            let machine = bytes(&[slow * ratio, slow * 1_000]);
            let found = weights(&machine, TOLERANCE).unwrap();
            prop_assert!(found.loss(&machine).unwrap() <= TOLERANCE);
        }

        #[test]
        fn no_shorter_round_is_within_the_tolerance(b in prop::collection::vec(1u64..200, 2..4)) {
            let machine = gb(&b);
            let Ok(found) = weights(&machine, TOLERANCE) else { return Ok(()) };
            let shortest = u32::try_from(b.len()).unwrap();
            for pages in shortest..found.round() {
                prop_assert!(least_loss(&machine, pages).unwrap() > TOLERANCE, "{pages} pages would do");
            }
            prop_assert_eq!(least_loss(&machine, found.round()), found.loss(&machine));
        }

        #[test]
        fn scaling_all_bandwidths_changes_nothing(b in prop::collection::vec(1u64..1_000, 1..6), by in 1u64..1_000) {
            let scaled: Vec<_> = b.iter().map(|b| b * by).collect();
            prop_assert_eq!(weights(&gb(&b), TOLERANCE).ok(), weights(&gb(&scaled), TOLERANCE).ok());
        }

        #[test]
        fn a_faster_node_never_gets_fewer_pages(b in prop::collection::vec(1u64..1_000, 2..6)) {
            let machine = gb(&b);
            if let Ok(found) = weights(&machine, TOLERANCE) {
                let mut by_speed: Vec<_> = found.iter().map(|(node, pages)| (machine[&node], pages)).collect();
                by_speed.sort_unstable();
                prop_assert!(by_speed.windows(2).all(|pair| pair[0].0 == pair[1].0 || pair[0].1 <= pair[1].1));
            }
        }

        #[test]
        fn no_weights_exceed_the_ideal_aggregate(b in prop::collection::vec(1u64..1_000, 1..6), w in prop::collection::vec(1u8..=255, 6)) {
            let machine = bytes(&b);
            let given = Weights::new(machine.keys().copied().zip(w).collect()).unwrap();
            prop_assert!(given.aggregate(&machine).unwrap().0 <= b.iter().sum::<u64>());
        }

        #[test]
        fn excluding_nodes_that_hinder_never_lowers_the_aggregate(b in prop::collection::vec(1u64..100_000, 2..5)) {
            let machine = bytes(&b);
            let (kept, left_out) = worthwhile(&machine, TOLERANCE).unwrap();
            for error in left_out {
                let Unweighable::Hinders { with, .. } = error else { panic!("{error}") };
                prop_assert!(kept.aggregate(&machine).unwrap() >= with);
            }
        }
    }
}
