//! Where the pages of a kind are: one memory policy for all of a range, or parts of it in turn.
//!
//! The kernel's weights for weighted interleave are the machine's. A kind with weights of its own cuts what it sets aside into
//! *rounds*: in each, every node has a part as large as its weight has it. A round has 4 MiB for each of its nodes, so that
//! there is one mbind for 4 MiB at most, and what is allocated at a time may well lie on one node. Ranges take up the round
//! where the one before left it, so that weights hold over many small ranges as over one large. Where all weights are alike, or as
//! the machine's, the kernel could interleave page by page; but it counts a huge page as one page, and where huge pages have been
//! taken apart and used again, shares are off by five per cent and more.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::vec::Vec;

use nearfar_kernel::mempolicy::{Existing, Prepared};

use crate::sys;

/// Bytes for each node of a round.
const ROUND_PART: usize = 4 << 20;
/// Rounds that an object with a place of its own has, if its size allows it.
const ROUNDS_OF_ONE: usize = 16;

/// Where pages are.
#[derive(Debug, Default)]
pub(crate) enum Placing {
    /// Where the process's policy has them.
    #[default]
    Anywhere,
    /// Under one policy.
    One(Prepared),
    /// In parts, each under its policy and as large as its weight has it.
    Rounds(Rounds),
    /// Each object in a place of its own, which it is given as it is allocated.
    Apart,
}

/// Policies with their weights.
#[derive(Debug)]
pub(crate) struct Rounds {
    parts: Vec<(Prepared, u8)>,
    /// Bytes that had their place so far.
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
    /// Sets the policies of a range, from one page boundary to another; how many calls that took, none if one was refused.
    pub(crate) fn apply(&self, at: usize, length: usize) -> Option<u64> {
        match self {
            Self::Anywhere | Self::Apart => Some(0),
            Self::One(policy) => policy.bind(at, length, Existing::Stay).ok().map(|()| 1),
            Self::Rounds(rounds) => rounds.apply(at, length, ROUND_PART),
        }
    }

    /// As [`Self::apply`], in rounds so short that weights hold over this range alone.
    pub(crate) fn apply_finely(&self, at: usize, length: usize) -> Option<u64> {
        let Self::Rounds(rounds) = self else { return self.apply(at, length) };
        let part = length / (rounds.parts.len() * ROUNDS_OF_ONE).max(1);
        let whole_pages = part / sys::PAGE * sys::PAGE;
        let least = sys::PAGE * rounds.least_pages();
        rounds.apply(at, length, whole_pages.clamp(least, ROUND_PART.max(least)))
    }
}

impl Rounds {
    /// Pages for each node of a round in which every weight is as many pages.
    fn least_pages(&self) -> usize {
        let pages: usize = self.parts.iter().map(|(_, weight)| usize::from(*weight)).sum();
        pages.div_ceil(self.parts.len().max(1))
    }
}

/// The pieces that rounds, `part` bytes long for each node, cut a range into which begins `start` bytes into a round; with
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
    // Ends are rounded, not lengths, so that errors do not add up.
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

    /// Bytes of each part in a range, and how many pieces it takes; what is not in order is an error.
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
    fn a_range_of_a_few_pages_has_its_weights_to_the_page() {
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
