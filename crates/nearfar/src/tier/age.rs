//! Near memory judged by age: a hand that goes round a node's memory.
//!
//! The hand is that of the CLOCK algorithm (Corbató, A Paging Experiment with the Multics System, 1968): where it comes by,
//! a page that was used since the last time stays and is forgotten to have been used; one that was not is demoted. It goes
//! as far as room is needed, once round in a look at most, so the less is needed, the longer must a page have been unused.

use super::node::{PAGE, scale};

/// The least that it takes to be unused of what lies before it, in this many parts: it would go too far where it is wrong.
const UNUSED_LEAST: u64 = 8;
/// Parts of a share.
const WHOLE: u64 = 1024;
/// The hand of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hand {
    /// How far it is round.
    at: u64,
    /// Tried by the last pass, and moved by one as it has been of late, in parts of [`WHOLE`].
    tried: u64,
    unused: u64,
}

impl Hand {
    pub(super) const NEW: Self = Self { at: 0, tried: 0, unused: WHOLE };

    /// Goes on to demote so much of a node with so many addresses; gives from where to where, as counted over its ranges.
    pub(super) fn next(&mut self, wanted: u64, span: u64) -> Option<(u64, u64)> {
        let from = if self.at < span { self.at } else { 0 };
        let share = self.unused.clamp(WHOLE / UNUSED_LEAST, WHOLE);
        let far = scale(wanted, WHOLE, share).min(span).next_multiple_of(PAGE);
        let to = from.saturating_add(far);
        // No short rest is left for the next time: a pass has one range, which ends where memory does.
        let to = if to.saturating_add(far / 2) >= span { span } else { to };
        (self.at, self.tried) = (to, self.tried + (to - from));
        (from < to).then_some((from, to))
    }

    /// So much was moved by what was tried last.
    pub(super) fn learn(&mut self, moved: u64) {
        if self.tried > 0 {
            // More than expected is believed at once: it has moved too much.
            let share = scale(moved, WHOLE, self.tried).min(WHOLE);
            (self.unused, self.tried) = (share.max(u64::midpoint(self.unused, share)), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_hand_goes_round_as_far_as_is_needed() {
        let (mut hand, span) = (Hand::NEW, 64 * MIB);
        let mib = |range: Option<(u64, u64)>| range.map(|(from, to)| (from / MIB, to / MIB));
        assert_eq!(mib(hand.next(4 * MIB, span)), Some((0, 4)));
        assert_eq!(mib(hand.next(24 * MIB, span)), Some((4, 28)));
        assert_eq!(mib(hand.next(24 * MIB, span)), Some((28, 64)), "and the short rest");
        assert_eq!(mib(hand.next(4 * MIB, span)), Some((0, 4)));
        assert_eq!(mib(hand.next(100 * MIB, span)), Some((4, 64)), "to the end");
        assert_eq!(mib(hand.next(100 * MIB, span)), Some((0, 64)), "and round");
        assert_eq!(mib(hand.next(8 * MIB, 6 * MIB)), Some((0, 6)), "some memory has gone");
        assert_eq!(hand.next(MIB, 0), None);
    }

    #[test]
    fn it_goes_further_where_less_is_unused() {
        let (mut hand, span) = (Hand::NEW, 64 * MIB);
        let mut tries = |moved: u64| {
            let (from, to) = hand.next(MIB, span).unwrap();
            hand.learn(moved);
            (to - from) / MIB
        };
        assert_eq!(tries(0), 1);
        assert_eq!(tries(0), 2, "nothing was moved, and half of that is believed");
        assert_eq!(tries(0), 4);
        assert_eq!([tries(0), tries(0)], [8, 8], "no further than that");
        assert_eq!(tries(8 * MIB), 8);
        assert_eq!(tries(0), 1, "all was moved, which is believed at once");
        hand.learn(0);
        assert_eq!(
            hand.next(MIB, span).map(|(from, to)| (to - from) / MIB),
            Some(2),
            "of nothing it learns nothing"
        );
    }
}
