//! Divides sampled small pages into blocks with uniform use, as large as the samples allow.
//!
//! A block of 2 MiB to 64 KiB is assigned to one node if nearly all its samples are of that node, and chance is an
//! unlikely reason (`owners.rs`); otherwise it counts as shared. A shared block is divided if the samples of each
//! smaller block agree (one belongs to one node, the next to another), or are too few to tell. If they do not agree,
//! all nodes use all of the block, and it stays whole: few samples then describe much memory. The smallest blocks are
//! 64 KiB, or larger if very much memory was sampled; if they are shared but the samples of each page agree, single
//! pages are parts. A block that counts as shared but may be owned stays in place until there are enough samples,
//! because it would have to be moved back.

use nearfar_policy::traffic::Page;

use super::owners::Owners;
use super::part::{Heat, Part, Sampled, asked};

/// Pages of a block, as powers of two. The smallest order in use is the first with at most `BLOCKS_MOST` blocks, or
/// the last; the largest is the last with at least `BLOCKS_LEAST` blocks, so that one block never covers all memory.
const ORDERS: [u32; 6] = [4, 5, 6, 7, 8, 9];
const BLOCKS_MOST: usize = 4096;
const BLOCKS_LEAST: usize = 64;
/// Sampled pieces that a block owned by one node must have: samples come in bursts.
const PIECES_LEAST: usize = 3;
/// Pairs of samples from which on agreement can be judged.
const PAIRS_LEAST: u128 = 20;

/// Orders of blocks for these sampled pages, the largest first.
pub(super) fn orders(small: Sampled<'_>) -> Vec<u32> {
    let mut count = [0; ORDERS.len()];
    let mut last = None;
    for (page, _) in small {
        for (count, order) in count.iter_mut().zip(ORDERS) {
            *count += usize::from(last.is_none_or(|last| block(last, order) != block(page, order)));
        }
        last = Some(*page);
    }
    let few = count.iter().position(|count| *count <= BLOCKS_MOST);
    let finest = few.unwrap_or(ORDERS.len() - 1);
    let most = count.iter().rposition(|count| *count >= BLOCKS_LEAST).unwrap_or(0);
    ORDERS[finest..=most.max(finest)].iter().rev().copied().collect()
}

/// Pairs of samples within pieces of blocks (smaller blocks, or pages): all pairs, those of one node, and the number
/// of these expected by chance.
#[derive(Clone, Copy, Debug, Default)]
struct Pairs {
    all: u128,
    agree: u128,
    chance: u128,
}

impl Pairs {
    /// Adds a block, with the samples of each of its pieces by the place of the requesting node.
    fn add(&mut self, block: &Part, pieces: impl Iterator<Item = Vec<u64>>) {
        let pairs = |samples: u64| samples * samples.saturating_sub(1) / 2;
        let (mut all, mut agree) = (0, 0);
        for by in pieces {
            all += pairs(by.iter().sum());
            agree += by.iter().map(|one| pairs(*one)).sum::<u64>();
        }
        let sum: u64 = block.by.iter().sum();
        let (all, sum) = (u128::from(all), u128::from(sum));
        let squares: u128 = block.by.iter().map(|one| u128::from(*one).pow(2)).sum();
        self.all += all;
        self.agree += u128::from(agree);
        self.chance += all * squares / (sum * sum).max(1);
    }

    /// Whether the pieces have an owner each; `None` if there are too few samples to tell.
    const fn are_fine(self) -> Option<bool> {
        if self.all < PAIRS_LEAST {
            return None;
        }
        Some(2 * self.agree > self.all + self.chance)
    }
}

/// The part that covers these sampled pages, in blocks of 2^`finest` pages. It ends with the last sampled one, because
/// there may be no memory beyond.
fn part(sampled: Sampled<'_>, finest: u32) -> Option<Part> {
    let (first, last) = (block(sampled.first()?.0, finest), block(sampled.last()?.0, finest));
    Some(Part::of(first, last.number + (1 << finest) - first.number, sampled))
}

/// Samples of each sampled block of 2^`order` pages.
fn pieces(sampled: Sampled<'_>, order: u32) -> impl Iterator<Item = Vec<u64>> {
    sampled.chunk_by(move |a, b| block(a.0, order) == block(b.0, order)).map(asked)
}

/// Divides a process's sampled small pages into parts: blocks as large as samples allow. A block with an owner stays
/// whole. Others are divided into smaller blocks, unless these would not differ. `orders` begins with the largest.
pub(super) fn of_process<'a>(sampled: Sampled<'a>, orders: &[u32], all: &mut Vec<Part>) {
    let finest = orders.last().copied().unwrap_or(0);
    let mut left: Vec<Sampled<'a>> = vec![sampled];
    for (at, order) in orders.iter().enumerate() {
        let same =
            |a: &(&Page, &Heat), b: &(&Page, &Heat)| block(a.0, *order) == block(b.0, *order);
        let blocks = left.iter().flat_map(|one| one.chunk_by(same));
        let (mut parts, sampled): (Vec<_>, Vec<_>) =
            blocks.filter_map(|sampled| Some((part(sampled, finest)?, sampled))).unzip();
        set_owners(&mut parts);
        let finer = &orders[at + 1..];
        for (part, sampled) in parts.iter_mut().zip(&sampled) {
            let few = || pieces(sampled, finest).take(PIECES_LEAST).count() < PIECES_LEAST;
            if part.owner.is_some() && !finer.is_empty() && few() {
                (part.owner, part.waits) = (None, true);
            }
        }
        let splits = {
            let shared: Vec<_> =
                parts.iter().zip(&sampled).filter(|(part, _)| part.owner.is_none()).collect();
            // Smaller blocks, or pages.
            let fine = |order: u32| {
                let mut pairs = Pairs::default();
                shared.iter().for_each(|(part, sampled)| pairs.add(part, pieces(sampled, order)));
                pairs.are_fine()
            };
            // For the next smaller blocks, too few samples are a sufficient reason.
            let next = finer.first().map(|order| fine(*order));
            matches!(next, Some(None | Some(true)))
                || finer.iter().skip(1).chain([&0]).any(|order| fine(*order) == Some(true))
        };
        left.clear();
        for (part, sampled) in parts.into_iter().zip(sampled) {
            if part.owner.is_none() && splits {
                left.push(sampled);
            } else {
                all.push(part);
            }
        }
    }
    let pages = left.into_iter().flatten();
    let mut pages: Vec<Part> =
        pages.map(|one| Part::of(*one.0, 1, std::slice::from_ref(one))).collect();
    set_owners(&mut pages);
    all.append(&mut pages);
}

/// Sets the owners of parts of one size, process by process.
pub(super) fn set_owners(parts: &mut [Part]) {
    for of_one in parts.chunk_by_mut(|a, b| a.first.process == b.first.process) {
        let owners = Owners::of(of_one.iter().map(|part| part.by.as_slice()));
        for part in of_one {
            (part.owner, part.waits) = (owners.owner(&part.by), owners.may_be_owned(&part.by));
        }
    }
}

/// The first page of the block that contains `page`.
const fn block(page: &Page, order: u32) -> Page {
    Page { process: page.process, number: page.number >> order << order }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::owners::tests::any;
    use super::super::regions::tests::seen;

    /// Number of parts by size, for `all` pages with every `apart`-th sampled by the nodes of `asks`.
    fn sizes(all: u64, apart: u64, asks: impl Fn(u64) -> Vec<usize>) -> Vec<(u64, usize)> {
        let mut sizes = BTreeMap::new();
        for part in seen((0..all).step_by(usize::try_from(apart).unwrap()), asks).parts() {
            *sizes.entry(part.pages).or_default() += 1;
        }
        sizes.into_iter().collect()
    }

    #[test]
    fn uniformly_owned_memory_forms_large_blocks_with_few_samples() {
        // Ten samples of each 2 MiB block.
        let quarter = |number: u64| vec![usize::try_from(number / (16 * 512)).unwrap()];
        assert_eq!(sizes(64 * 512, 50, quarter).last().map(|size| size.0), Some(512));
        let all = |number: u64| vec![any(number)];
        assert!(sizes(64 * 512, 10, all).iter().all(|(pages, _)| *pages > 480));
        // With less memory, blocks are smaller, and one block never covers all.
        assert!(sizes(64 * 64, 10, all).iter().all(|(pages, _)| (48..=64).contains(pages)));
    }

    #[test]
    fn block_size_adapts_to_the_size_of_single_owner_ranges() {
        // One node owns 64 KiB, another the next.
        let pieces = |number: u64| vec![any(number / 16)];
        assert_eq!(sizes(64 * 512, 4, pieces), [(16, 2048)]);
        // The one block with two owners is divided.
        let halves = |number: u64| vec![usize::from(number >= 32 * 512 + 256)];
        let found = sizes(64 * 512, 8, halves);
        assert_eq!(found.last(), Some(&(512, 63)), "{found:?}");
        assert!(found.iter().map(|(pages, parts)| pages * *parts as u64).sum::<u64>() == 64 * 512);
    }

    #[test]
    fn of_very_much_memory_the_smallest_blocks_are_larger() {
        let pieces = |number: u64| vec![any(number / 32)];
        assert_eq!(sizes(5000 * 16, 8, pieces), [(32, 2500)]);
        assert_eq!(sizes(20_000 * 64, 32, |number| vec![any(number / 512)]), [(512, 2500)]);
    }
}
