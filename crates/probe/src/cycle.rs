//! The order of lines in a pointer chase: one random cycle through all of them, segment by segment.
//!
//! Random, so that no prefetcher guesses the next line; one cycle, so that the chase covers the whole buffer and no
//! short loop settles in a cache. Within a segment the order is random, then the next segment follows: a segment is
//! small enough for its pages to stay in the first-level TLB, so there is a page walk per page and segment and not per
//! load. An element is [`LINES_PER_ELEMENT`] lines of which only the first is visited, because many processors fetch a
//! line's neighbour along with it.

/// Lines per element of the cycle.
pub(crate) const LINES_PER_ELEMENT: usize = 2;

/// A cycle through `0..elements`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cycle {
    /// Number of elements.
    pub(crate) elements: usize,
    /// Elements per segment; the last segment may have fewer.
    pub(crate) segment: usize,
    /// The order is a function of the seed.
    pub(crate) seed: u64,
}

impl Cycle {
    /// All elements in the order of the chase; the last is followed by the first.
    pub(crate) fn order(self) -> impl Iterator<Item = usize> {
        let segment = self.segment.max(1);
        let mut state = self.seed;
        (0..self.elements).step_by(segment).flat_map(move |start| {
            let mut part: Vec<usize> = (start..self.elements.min(start + segment)).collect();
            shuffle(&mut part, &mut state);
            part
        })
    }
}

/// Fisher-Yates shuffle. The modulo bias (below 2^-40 for any buffer that fits a machine) does not matter here.
fn shuffle(part: &mut [usize], state: &mut u64) {
    for last in (1..part.len()).rev() {
        #[expect(clippy::cast_possible_truncation, reason = "the remainder is at most `last`")]
        let chosen = (next(state) % (last as u64 + 1)) as usize;
        part.swap(last, chosen);
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Each element's successor, for tests.
#[cfg(test)]
pub(crate) fn successors(cycle: Cycle) -> Vec<usize> {
    let order: Vec<usize> = cycle.order().collect();
    let mut next = vec![usize::MAX; order.len()];
    let following = order.iter().skip(1).chain(order.first());
    for (from, to) in std::iter::zip(&order, following) {
        next[*from] = *to;
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_cycle_visits_every_element_once_and_returns_to_its_start(
            elements in 1usize..3000, segment in 0usize..700, seed: u64,
        ) {
            let next = successors(Cycle { elements, segment, seed });
            let mut seen = vec![false; elements];
            let mut at = 0;
            for _ in 0..elements {
                prop_assert!(!seen[at]);
                seen[at] = true;
                at = next[at];
            }
            prop_assert_eq!(at, 0);
        }

        #[test]
        fn a_segment_is_finished_before_the_next_begins(segment in 1usize..64, seed: u64) {
            let order: Vec<usize> = Cycle { elements: 640, segment, seed }.order().collect();
            let segments: Vec<usize> = order.iter().map(|element| element / segment).collect();
            prop_assert!(segments.is_sorted());
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_order_and_another_one_does_not() {
        let order =
            |seed| Cycle { elements: 1000, segment: 1000, seed }.order().collect::<Vec<_>>();
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
        let in_place = order(1).into_iter().enumerate().filter(|(at, element)| at == element);
        assert!(in_place.count() < 20, "hardly any element stays where it was");
    }
}
