//! Near memory judged by age: a hand that goes round a node's memory and a sample that is looked at.
//!
//! The hand is that of the CLOCK algorithm (Corbató, A Paging Experiment with the Multics System, 1968): where it comes by,
//! a page that was used since the last time stays and is forgotten to have been used; one that was not is demoted. It goes
//! as far as room is needed, so the less is needed, the longer must a page have been unused.

use super::node::{PAGE, scale};

/// In one look it goes round this part of a node at most: four looks are the least age.
const ROUND: u64 = 4;
/// The least that it takes to be unused of what lies before it, in this many parts: it would go too far where it is wrong.
const UNUSED_LEAST: u64 = 4;
/// Parts of a share.
const WHOLE: u64 = 1024;
/// In a sample there is one of so many parts, if that leaves it this large.
const SAMPLED: (u64, u64) = (16, 128);
const SAMPLE_LEAST: u64 = 16 << 20;

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

/// The part of the addresses from `start` to `end` that belongs to sample `turn` of a node with so many addresses: another
/// one each time.
pub(super) fn sample(start: u64, end: u64, span: u64, turn: u64) -> (u64, u64) {
    let parts = (span / SAMPLE_LEAST).clamp(SAMPLED.0, SAMPLED.1);
    let turn = turn % parts;
    let bound = |part: u64| start + scale((end - start) / PAGE, part, parts) * PAGE;
    (bound(turn), bound(turn + 1))
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
        for end in [24, 40, 56, 64, 16] {
            assert_eq!(hand.next(40 << 20, span).map(|(_, to)| to >> 20), Some(end));
            hand.learn(0);
        }
        assert_eq!(
            hand.next(1 << 20, span),
            Some((16 << 20, 20 << 20)),
            "four times as far at most"
        );
        assert_eq!(hand.next(1 << 20, 0), None);
        assert_eq!(hand.next(1 << 20, 8 << 20), Some((0, 2 << 20)), "some memory has gone");
    }

    #[test]
    fn samples_take_turns_and_are_all_there_is() {
        let (start, end, span) = (8 << 20, 24 << 20, 256 << 20);
        let parts: Vec<(u64, u64)> = (0..16).map(|turn| sample(start, end, span, turn)).collect();
        assert_eq!((parts[0].0, parts[15].1), (start, end));
        assert!(parts.windows(2).all(|two| two[0].1 == two[1].0));
        assert_eq!(sample(start, end, span, 16), parts[0]);
        let (from, to) = sample(0, 4 << 30, 64 << 30, 127);
        assert_eq!((to, to - from), (4 << 30, 32 << 20), "a 128th of a large node");
    }
}
