//! Demotion by age: a CLOCK hand over the memory of a node.
//!
//! The CLOCK algorithm (Corbató, A Paging Experiment with the Multics System, 1968): where the hand passes, a page that was
//! accessed since the last pass stays and its accessed bit is cleared; a page that was not is demoted. The hand advances only
//! as far as free memory is needed, at most one revolution a pass, so the slower it turns, the longer a demoted page has been
//! idle. Offsets count bytes over the address ranges of the node, without holes.

use super::scale;

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// At least this part of the memory ahead is assumed to be idle (one in eight): the hand would overshoot where the estimate
/// is too low.
const IDLE_LEAST: u64 = 8;
/// Denominator of the idle share.
const WHOLE: u64 = 1024;

/// The hand of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockHand {
    /// Offset of the next pass.
    at: u64,
    /// Bytes covered by passes that have no outcome yet.
    tried: u64,
    /// Share of covered bytes that recent passes migrated, in parts of [`WHOLE`].
    idle: u64,
}

impl ClockHand {
    /// A hand at the first byte that expects all memory to be idle.
    pub const NEW: Self = Self { at: 0, tried: 0, idle: WHOLE };

    /// Advances far enough to demote `wanted` bytes of a node with `span` bytes of addresses; returns the offsets (from, to)
    /// to cover, or `None` where `span` is 0.
    pub fn next(&mut self, wanted: u64, span: u64) -> Option<(u64, u64)> {
        let from = if self.at < span { self.at } else { 0 };
        let share = self.idle.clamp(WHOLE / IDLE_LEAST, WHOLE);
        let far = scale(wanted, WHOLE, share).min(span).next_multiple_of(PAGE);
        let to = from.saturating_add(far);
        // A pass is one range and ends with the node's memory: it takes a short remainder along.
        let to = if to.saturating_add(far / 2) >= span { span } else { to };
        (self.at, self.tried) = (to, self.tried + (to - from));
        (from < to).then_some((from, to))
    }

    /// Corrects the idle share by the bytes that were migrated since the last call.
    pub fn learn(&mut self, moved: u64) {
        if self.tried > 0 {
            // A higher share than expected is adopted at once, since too much was demoted; a lower one by half.
            let share = scale(moved, WHOLE, self.tried).min(WHOLE);
            (self.idle, self.tried) = (share.max(u64::midpoint(self.idle, share)), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_hand_advances_by_the_demand_and_wraps_around() {
        let (mut hand, span) = (ClockHand::NEW, 64 * MIB);
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
    fn the_hand_advances_further_if_fewer_pages_are_idle() {
        let (mut hand, span) = (ClockHand::NEW, 64 * MIB);
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
