//! Home nodes of the pages of shared memory.

use nearfar_policy::traffic::place::PARTS;

/// Homes of pages, and the pair of nodes of one shift: its pages are those of one home on another node.
///
/// Homes alternate between nodes by the number of the page, in proportion to the weights, as an interleave policy
/// would place pages. With whole blocks on one node, threads that traverse memory in parallel would meet there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Home {
    /// The home columns of 64 consecutive pages.
    turns: [u16; TURNS],
    /// The column of the pages' home, and of the node that they should leave.
    pub(super) of: u16,
    pub(super) from: u16,
}

/// Sum of the weights, and length of the pattern.
const TURNS: usize = PARTS as usize;

impl Home {
    /// Homes by these weights. Any few consecutive pages have as many different homes as possible.
    pub(super) fn new(weights: &[u8], (from, of): (usize, usize)) -> Self {
        let column = |place: usize| u16::try_from(place).unwrap_or(u16::MAX);
        let mut turns = [u16::MAX; TURNS];
        let mut ends = Vec::with_capacity(weights.len());
        for weight in weights {
            ends.push(ends.last().copied().unwrap_or(0) + usize::from(*weight));
        }
        for (turn, home) in turns.iter_mut().enumerate() {
            // The six bits in reverse order.
            let at = usize::from(u8::try_from(turn).unwrap_or(0).reverse_bits() >> 2);
            *home = ends.iter().position(|end| at < *end).map_or(u16::MAX, column);
        }
        Self { turns, of: column(of), from: column(from) }
    }

    pub(super) fn at(&self, turn: u64) -> u16 {
        self.turns[usize::try_from(turn % TURNS as u64).unwrap_or(0)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_pages_have_different_homes_in_proportion_to_the_weights() {
        let home = |weights: [u8; 4], number| Home::new(&weights, (0, 0)).at(number);
        for first in 0..200 {
            let mut near: Vec<_> = (first..first + 4).map(|page| home([16; 4], page)).collect();
            near.sort_unstable();
            assert_eq!(near, [0, 1, 2, 3]);
        }
        let weights = [40, 0, 23, 1];
        let many = |of| (640..704).filter(|page| home(weights, *page) == of).count();
        assert_eq!([0, 1, 2, 3].map(many), [40, 0, 23, 1]);
        assert_eq!(home([0; 4], 1), u16::MAX);
    }
}
