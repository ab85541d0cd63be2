//! The node of each page under weighted interleave.

use nearfar_topology::NodeId;

use super::Weights;

impl Weights {
    /// The pages of a round.
    #[must_use]
    pub fn round(&self) -> u32 {
        self.0.values().map(|pages| u32::from(*pages)).sum()
    }

    /// The node of a page under weighted interleave, by its number (mm/mempolicy.c, weighted_interleave_nid).
    #[must_use]
    pub fn node_of(&self, page: u64) -> NodeId {
        let mut at = page % u64::from(self.round().max(1));
        for (node, pages) in self.iter() {
            match at.checked_sub(u64::from(pages)) {
                Some(rest) => at = rest,
                None => return node,
            }
        }
        NodeId::default()
    }

    /// Whether both spread pages in the same proportions over the same nodes.
    #[must_use]
    pub fn is_in_proportion_to(&self, other: &Self) -> bool {
        let share = |(node, pages): (NodeId, u8), of: &Self| {
            (node, u64::from(pages) * u64::from(of.round()))
        };
        self.iter().map(|one| share(one, other)).eq(other.iter().map(|one| share(one, self)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_round_has_the_pages_of_each_node_in_order() {
        let weights = Weights::new([(NodeId(0), 3), (NodeId(4), 2)].into()).unwrap();
        let nodes: alloc::vec::Vec<u16> = (0..12).map(|page| weights.node_of(page).0).collect();
        assert_eq!(nodes, [0, 0, 0, 4, 4, 0, 0, 0, 4, 4, 0, 0]);
    }

    #[test]
    fn weights_are_compared_by_proportion_and_not_by_round_length() {
        let of = |near, far| Weights::new([(NodeId(0), near), (NodeId(1), far)].into()).unwrap();
        assert!(of(3, 1).is_in_proportion_to(&of(6, 2)));
        assert!(!of(3, 1).is_in_proportion_to(&of(1, 3)));
        let other = Weights::new([(NodeId(0), 3), (NodeId(2), 1)].into()).unwrap();
        assert!(!of(3, 1).is_in_proportion_to(&other));
    }

    fn any_weights() -> impl Strategy<Value = Weights> {
        prop::collection::btree_map((0_u16..64).prop_map(NodeId), 1_u8..12, 1..6)
            .prop_map(|pages| Weights::new(pages).unwrap())
    }

    proptest! {
        #[test]
        fn any_pages_of_a_rounds_length_are_spread_exactly_by_the_weights(weights in any_weights(), from in 0_u64..1 << 52) {
            let round = u64::from(weights.round());
            for (node, pages) in weights.iter() {
                let here = (from..from + round).filter(|page| weights.node_of(*page) == node).count();
                prop_assert_eq!(here, usize::from(pages));
            }
            prop_assert_eq!(weights.node_of(from), weights.node_of(from + round));
        }

        #[test]
        fn weights_are_in_proportion_to_their_multiples_and_to_no_others(weights in any_weights(), times in 1_u8..10, at in any::<prop::sample::Index>()) {
            let multiple = weights.iter().map(|(node, pages)| (node, pages * times)).collect();
            let multiple = Weights::new(multiple).unwrap();
            prop_assert!(weights.is_in_proportion_to(&multiple) && multiple.is_in_proportion_to(&weights));
            let mut more = multiple.0;
            let changed = at.index(more.len());
            *more.values_mut().nth(changed).unwrap() += 1;
            let alone = more.len() == 1;
            prop_assert_eq!(weights.is_in_proportion_to(&Weights::new(more).unwrap()), alone);
        }
    }
}
