//! Where the pages of a kind are: one memory policy for all of a range, or parts of it in turn.
//!
//! The kernel's weights for weighted interleave are the machine's. A kind with weights of its own cuts what it sets aside into
//! *rounds*: in each, every node has a part as large as its weight has it. A round has 4 MiB for each of its nodes, so that
//! there is one mbind for 4 MiB at most, and what is allocated at a time may well lie on one node; if the machine's weights
//! are in the same proportion, or all weights are alike, the kernel interleaves page by page instead.

use std::vec::Vec;

use nearfar_kernel::mempolicy::{Existing, Prepared};

use crate::sys;

/// Bytes for each node of a round.
const ROUND_PART: usize = 4 << 20;

/// Where pages are.
#[derive(Debug)]
pub(crate) enum Placing {
    /// Where the process's policy has them.
    Anywhere,
    /// Under one policy.
    One(Prepared),
    /// In parts, each under its policy and as large as its weight has it.
    Rounds(Vec<(Prepared, u8)>),
}

impl Placing {
    /// Sets the policies of a range, from one page boundary to another; how many calls that took, none if one was refused.
    pub(crate) fn apply(&self, at: usize, length: usize) -> Option<u64> {
        match self {
            Self::Anywhere => Some(0),
            Self::One(policy) => policy.bind(at, length, Existing::Stay).ok().map(|()| 1),
            Self::Rounds(parts) => {
                let mut binds = 0;
                for (policy, from, to) in pieces(parts, length) {
                    policy.bind(at + from, to - from, Existing::Stay).ok()?;
                    binds += 1;
                }
                Some(binds)
            }
        }
    }
}

/// The pieces that rounds cut a range into, with their policies.
fn pieces<P>(parts: &[(P, u8)], length: usize) -> impl Iterator<Item = (&P, usize, usize)> {
    let whole: usize = parts.iter().map(|(_, weight)| usize::from(*weight)).sum();
    let round = parts.len() * ROUND_PART;
    // Ends are rounded, not lengths, so that errors do not add up.
    let end = move |before: usize| {
        before.saturating_mul(round).checked_div(whole).unwrap_or(round) / sys::PAGE * sys::PAGE
    };
    let rounds = (0..length).step_by(round.max(1));
    let of_round = move |start: usize| {
        let mut before = 0;
        parts.iter().map(move |(policy, weight)| {
            let from = end(before);
            before += usize::from(*weight);
            (policy, start + from, start + end(before))
        })
    };
    let cut =
        move |(policy, from, to): (_, usize, usize)| (policy, from.min(length), to.min(length));
    rounds.flat_map(of_round).map(cut).filter(|(_, from, to)| from < to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_cover_the_range_in_proportion(
            weights in prop::collection::vec(1_u8.., 1..6),
            pages in 1_usize..100_000,
        ) {
            let parts: Vec<(usize, u8)> = weights.iter().copied().enumerate().collect();
            let length = pages * sys::PAGE;
            let (mut bytes, mut next, mut count) = (std::vec![0; weights.len()], 0, 0);
            for (part, from, to) in pieces(&parts, length) {
                prop_assert_eq!(from, next);
                prop_assert_eq!(to % sys::PAGE, 0);
                bytes[*part] += to - from;
                (next, count) = (to, count + 1);
            }
            prop_assert_eq!(next, length);
            prop_assert!(count <= length / ROUND_PART + weights.len());
            let whole: usize = weights.iter().map(|weight| usize::from(*weight)).sum();
            let round = weights.len() * ROUND_PART;
            for (part, weight) in bytes.iter().zip(&weights) {
                let fair = length / round * (round / 4096) * usize::from(*weight) / whole * 4096;
                prop_assert!(part + 2 * 4096 * (length / round + 1) >= fair, "{part} {fair}");
                prop_assert!(*part <= fair + round + 2 * 4096 * (length / round + 1));
            }
        }
    }
}
