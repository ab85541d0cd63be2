//! Placement of a kind's pages: one memory policy for a whole range, or alternating parts.
//!
//! The kernel's weights for weighted interleave are global to the machine. A kind with weights of its own cuts its
//! address space into *rounds*: in each, every node has a part proportional to its weight. A round has 4 MiB for each
//! of its nodes, so that there is at most one mbind per 4 MiB, and objects allocated together may well lie on one node.
//! A range continues the round where the previous range left it, so that weights hold over many small ranges as over
//! one large. Where all weights are equal, or the same as the machine's, the kernel could interleave page by page; but
//! it counts a huge page as one page, and where huge pages have been split and reused, shares are off by five per cent
//! and more.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::vec::Vec;

use nearfar_kernel::mempolicy::{Existing, Prepared};

use crate::sys;

/// Bytes per node of a round.
const ROUND_PART: usize = 4 << 20;
/// Rounds in an object with its own placement, if its size allows it.
const ROUNDS_OF_ONE: usize = 16;

/// A placement of pages.
#[derive(Debug, Default)]
pub(crate) enum Placing {
    /// By the process's policy.
    #[default]
    Anywhere,
    /// Under one policy.
    One(Prepared),
    /// In parts, each under its own policy and with a length proportional to its weight.
    Rounds(Rounds),
    /// Each object separately, at its allocation.
    Apart,
}

/// Policies with their weights.
#[derive(Debug)]
pub(crate) struct Rounds {
    parts: Vec<(Prepared, u8)>,
    /// Bytes placed so far.
    turn: AtomicUsize,
}

impl Rounds {
    pub(crate) const fn new(parts: Vec<(Prepared, u8)>) -> Self {
        Self { parts, turn: AtomicUsize::new(0) }
    }

    fn apply(&self, at: usize, length: usize, part: usize) -> Option<u64> {
        let start = self.turn.fetch_add(length, Ordering::Relaxed);
        let mut binds = 0;
        for (policy, from, to) in pieces(&self.parts, part, start, length) {
            policy.bind(at + from, to - from, Existing::Stay).ok()?;
            binds += 1;
        }
        Some(binds)
    }
}

impl Placing {
    /// Sets the policies of a range, from one page boundary to another; returns the number of calls, or `None` if one
    /// failed.
    pub(crate) fn apply(&self, at: usize, length: usize) -> Option<u64> {
        match self {
            Self::Anywhere | Self::Apart => Some(0),
            Self::One(policy) => policy.bind(at, length, Existing::Stay).ok().map(|()| 1),
            Self::Rounds(rounds) => rounds.apply(at, length, ROUND_PART),
        }
    }

    /// As [`Self::apply`], in rounds so short that the weights hold within this range.
    pub(crate) fn apply_finely(&self, at: usize, length: usize) -> Option<u64> {
        let Self::Rounds(rounds) = self else { return self.apply(at, length) };
        let part = length / (rounds.parts.len() * ROUNDS_OF_ONE).max(1);
        let whole_pages = part / sys::PAGE * sys::PAGE;
        let least = sys::PAGE * rounds.least_pages();
        rounds.apply(at, length, whole_pages.clamp(least, ROUND_PART.max(least)))
    }
}

impl Rounds {
    /// Pages per node of a round in which each node has as many pages as its weight.
    fn least_pages(&self) -> usize {
        let pages: usize = self.parts.iter().map(|(_, weight)| usize::from(*weight)).sum();
        pages.div_ceil(self.parts.len().max(1))
    }
}

/// The pieces into which rounds, with `part` bytes per node, cut a range that begins `start` bytes into a round, with
/// their policies.
fn pieces<P>(
    parts: &[(P, u8)],
    part: usize,
    start: usize,
    length: usize,
) -> impl Iterator<Item = (&P, usize, usize)> {
    let whole: usize = parts.iter().map(|(_, weight)| usize::from(*weight)).sum();
    let round = (parts.len() * part).max(sys::PAGE);
    let start = start % round / sys::PAGE * sys::PAGE;
    // Rounds the ends, not the lengths, so that errors do not add up.
    let end = move |before: usize| {
        before.saturating_mul(round).checked_div(whole).unwrap_or(round) / sys::PAGE * sys::PAGE
    };
    let of_round = move |first: usize| {
        let mut before = 0;
        parts.iter().map(move |(policy, weight)| {
            let from = end(before);
            before += usize::from(*weight);
            (policy, first + from, first + end(before))
        })
    };
    let cut = move |(policy, from, to): (_, usize, usize)| {
        let within = |at: usize| at.clamp(start, start + length) - start;
        (policy, within(from), within(to))
    };
    (0..start + length).step_by(round).flat_map(of_round).map(cut).filter(|(_, from, to)| from < to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes of each part in a range, and the number of pieces; panics if pieces are out of order.
    fn cut(weights: &[u8], part: usize, start: usize, length: usize) -> (Vec<usize>, usize) {
        let parts: Vec<(usize, u8)> = weights.iter().copied().enumerate().collect();
        let (mut bytes, mut next, mut count) = (std::vec![0; weights.len()], 0, 0);
        for (part, from, to) in pieces(&parts, part, start, length) {
            assert_eq!(from, next);
            assert_eq!(to % sys::PAGE, 0);
            bytes[*part] += to - from;
            (next, count) = (to, count + 1);
        }
        assert_eq!(next, length);
        (bytes, count)
    }

    #[test]
    fn small_ranges_share_rounds() {
        let mut sums = [0, 0];
        for object in 0..64 {
            let (bytes, _) = cut(&[3, 1], ROUND_PART, object << 20, 1 << 20);
            sums.iter_mut().zip(bytes).for_each(|(sum, bytes)| *sum += bytes);
        }
        assert_eq!(sums, [48 << 20, 16 << 20]);
    }

    #[test]
    fn a_short_range_is_divided_exactly_by_weight() {
        let (bytes, _) = cut(&[3, 1], 2 * sys::PAGE, 0, 16 * sys::PAGE);
        assert_eq!(bytes, [12 * sys::PAGE, 4 * sys::PAGE]);
    }

    proptest! {
        #[test]
        fn pieces_cover_the_range_in_proportion(
            weights in prop::collection::vec(1_u8.., 1..6),
            start in 0_usize..100_000,
            pages in 1_usize..100_000,
        ) {
            let length = pages * sys::PAGE;
            let (bytes, count) = cut(&weights, ROUND_PART, start * sys::PAGE, length);
            prop_assert!(count <= length / ROUND_PART + 2 * weights.len());
            let whole: usize = weights.iter().map(|weight| usize::from(*weight)).sum();
            let round = weights.len() * ROUND_PART;
            for (part, weight) in bytes.iter().zip(&weights) {
                let share = usize::from(*weight);
                let fair = length / round * (round / 4096) * share / whole * 4096;
                let rounding = 2 * 4096 * (length / round + 2);
                prop_assert!(part + rounding + round * share / whole >= fair, "{part} {fair}");
                prop_assert!(*part <= fair + round + rounding);
            }
        }
    }
}
