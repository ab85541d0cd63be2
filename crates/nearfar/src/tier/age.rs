//! Near memory judged by age: a hand that goes round a node's memory.
//!
//! The hand is that of the CLOCK algorithm (Corbató, A Paging Experiment with the Multics System, 1968): where it comes by,
//! a page that was used since the last time stays and is forgotten to have been used; one that was not is demoted. It goes
//! as far as room is needed, so the less is needed, the longer must a page have been unused.

use super::node::{PAGE, scale};

/// In one look it goes round this part of a node at most: three looks are the least age.
const ROUND: u64 = 3;
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
        let far = scale(wanted, WHOLE, share).min(span / ROUND).next_multiple_of(PAGE);
        let to = from.saturating_add(far).min(span);
        (self.at, self.tried) = (to, self.tried + (to - from));
        (from < to).then_some((from, to))
    }

    /// So much was moved by what was tried last.
    pub(super) fn learn(&mut self, moved: u64) {
        if self.tried > 0 {
            let share = scale(moved, WHOLE, self.tried).min(WHOLE);
            (self.unused, self.tried) = (u64::midpoint(self.unused, share), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hand_goes_round_as_far_as_is_needed() {
        let (mut hand, span) = (Hand::NEW, 64 << 20);
        assert_eq!(hand.next(4 << 20, span), Some((0, 4 << 20)));
        hand.learn(2 << 20);
        assert_eq!(
            hand.unused,
            WHOLE * 3 / 4,
            "half of what was expected, and half of that is believed"
        );
        assert_eq!(hand.next(3 << 20, span), Some((4 << 20, 8 << 20)));
        hand.learn(0);
        hand.learn(5 << 20);
        assert_eq!(hand.unused, WHOLE * 3 / 8, "what it has not tried it learns nothing from");
        let mut lengths = Vec::new();
        for _ in 0..6 {
            let (from, to) = hand.next(60 << 20, span).unwrap();
            lengths.push((to - from) >> 10);
            hand.learn(0);
        }
        let third = 21_848;
        let rest = (64 << 10) - 2 * third;
        assert_eq!(
            lengths,
            [third, third, (56 << 10) - 2 * third, third, third, rest],
            "and begins anew"
        );
        let (from, to) = hand.next(1 << 20, span).unwrap();
        assert_eq!(to - from, 8 << 20, "eight times as far at most");
        assert_eq!(hand.next(1 << 20, 0), None);
        assert_eq!(hand.next(8 << 20, 6 << 20), Some((0, 2 << 20)), "some memory has gone");
    }
}
