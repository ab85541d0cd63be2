//! Restores page interleaving inside regions whose node shares are already right.
//!
//! Weights change while pages move, so that consecutive pages are not interleaved when the shares are right at last.
//! Threads that traverse such memory in parallel meet at one node repeatedly, which costs a tenth of the bandwidth of
//! interleaved memory. So after a while without gains, pages move to their [`Home`], a few at a time and each once,
//! until weights change.
//!
//! The same repair applies if a shift finds too few pages: after a change of weights, pages with their home on the
//! node that lacks pages may be on a third node, and the surplus of the source node may have its home there.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_policy::traffic::place::PARTS;
use nearfar_policy::traffic::{Page, Process};

use super::Layout;
use super::part::Part;
use super::regions;
use super::turns::Home;
use nearfar_policy::ports::Move;

/// Pages per decision: 64 MiB.
const PAGES_MOST: usize = 16 << 10;
/// Weights count as unchanged if none differs by more parts than this.
const ALIKE: u8 = 3;
/// Shares match the weights if at most this many parts in all, of [`PARTS`], are on other nodes.
const ELSEWHERE: u64 = 6;
/// Pages of a block that is interleaved at once, as a power of two.
const BLOCK: u32 = 4;
/// Most blocks on record.
const BLOCKS_MOST: usize = 1 << 20;

/// Record of interleaved memory, by region.
#[derive(Clone, Debug, Default)]
pub(super) struct Tidy {
    regions: Vec<Region>,
}

#[derive(Clone, Debug, Default)]
struct Region {
    weights: Vec<u8>,
    /// The first pages of interleaved blocks.
    done: BTreeSet<Page>,
}

impl Tidy {
    /// Moves that interleave pages, by the weights of each region.
    pub(super) fn moves(
        &mut self,
        parts: &[Part],
        layout: &Layout,
        weights: &[Vec<u8>],
    ) -> Vec<Move> {
        // A decision without weights is no reason to drop the record.
        self.regions.resize(weights.len().max(self.regions.len()), Region::default());
        let mut moves = Vec::new();
        for (region, weights) in weights.iter().enumerate() {
            let of: Vec<&Part> = regions::of_region(parts, layout, region).collect();
            if is_spread(&of, layout, weights) {
                let most = PAGES_MOST.saturating_sub(moves.len());
                moves.extend(self.regions[region].moves(&of, layout, weights, most));
            }
        }
        moves
    }

    /// The same for regions in which shifts of `stuck` pages found too few.
    pub(super) fn unstick(
        &mut self,
        parts: &[Part],
        layout: &Layout,
        weights: &[Vec<u8>],
        stuck: &BTreeMap<usize, usize>,
    ) -> Vec<Move> {
        self.regions.resize(weights.len().max(self.regions.len()), Region::default());
        let mut moves = Vec::new();
        for (region, pages) in stuck {
            let Some(weights) = weights.get(*region) else { continue };
            let of: Vec<&Part> = regions::of_region(parts, layout, *region).collect();
            // Of interleaved pages, most are at home already.
            let most = pages.saturating_mul(weights.len()).min(PAGES_MOST);
            moves.extend(self.regions[*region].moves(&of, layout, weights, most));
        }
        moves
    }
}

impl Region {
    /// Moves in whole blocks; stops with the part that reaches `most`.
    fn moves(&mut self, of: &[&Part], layout: &Layout, weights: &[u8], most: usize) -> Vec<Move> {
        let mut moves = Vec::new();
        if weights.iter().filter(|weight| **weight > 0).count() < 2 {
            return moves;
        }
        self.go_by(weights);
        if self.done.len() >= BLOCKS_MOST {
            // Most are of processes that have ended, where many have.
            let live: BTreeSet<Process> = of.iter().map(|part| part.first.process).collect();
            self.done.retain(|page| live.contains(&page.process));
        }
        let home = Home::new(&self.weights, (0, 0));
        for part in of.iter().filter(|part| !part.goes_whole()) {
            if moves.len() >= most || self.done.len() >= BLOCKS_MOST {
                break;
            }
            let goes = |page: Page| {
                let to = layout.memory(usize::from(home.at(page.number)))?;
                Some(Move { page, huge: false, from: None, to })
            };
            let pages: Vec<Page> = part.pages_of(None).collect();
            // A part may have been smaller before: only its new blocks are moved.
            for block in pages.chunk_by(|a, b| a.number >> BLOCK == b.number >> BLOCK) {
                if block.first().is_some_and(|first| self.done.insert(*first)) {
                    moves.extend(block.iter().copied().filter_map(goes));
                }
            }
        }
        moves
    }

    /// Adopts weights that differ from the present ones, and drops the record.
    fn go_by(&mut self, weights: &[u8]) {
        let same = |(mine, now): (&u8, &u8)| mine.abs_diff(*now) <= ALIKE;
        let is_same = self.weights.len() == weights.len();
        if !is_same || !self.weights.iter().zip(weights).all(same) {
            *self = Self { weights: weights.to_vec(), done: BTreeSet::new() };
        }
    }
}

/// Whether the shares of nodes match the weights.
fn is_spread(parts: &[&Part], layout: &Layout, weights: &[u8]) -> bool {
    let mut served = vec![0_u64; weights.len()];
    for (node, samples) in parts.iter().flat_map(|part| part.on()) {
        if let Some(sum) = layout.place_of_memory(node).and_then(|place| served.get_mut(place)) {
            *sum += samples;
        }
    }
    let all: u64 = served.iter().sum();
    let missing = served.iter().zip(weights).map(|(served, weight)| {
        (u64::from(*weight) * all).saturating_sub(served * u64::from(PARTS))
    });
    all > 0 && missing.sum::<u64>() <= ELSEWHERE * all
}

#[cfg(test)]
mod tests {
    use nearfar_policy::traffic::Sample;
    use nearfar_topology::NodeId;

    use super::super::regions::Regions;
    use super::*;

    const PAGES: u64 = 256;

    fn layout() -> Layout {
        let places = || (0..2).collect::<Vec<usize>>();
        let nodes = (0..2).map(NodeId).collect();
        Layout { nodes, cpus: places(), mems: places(), controllers: places(), queues: 2 }
    }

    /// Shared memory with the pages below `first` on node 0, the rest on node 1.
    fn parts(first: u64) -> Vec<Part> {
        let mut all = Regions::new(2);
        for number in 0..PAGES {
            let page = Page { process: Process(1), number };
            let node = NodeId(u16::from(number >= first));
            let sample = |cpu| Sample { page, node, huge: false, cpu, write: false };
            all.add([0, 1, 0, 1].map(sample).to_vec());
        }
        all.parts()
    }

    fn weights(near: u8) -> Vec<Vec<u8>> {
        vec![vec![PARTS, 0], vec![0, PARTS], vec![near, PARTS - near]]
    }

    #[test]
    fn correctly_weighted_memory_is_interleaved_once() {
        let mut tidy = Tidy::default();
        let moves = tidy.moves(&parts(PAGES / 2), &layout(), &weights(32));
        let to: BTreeMap<u64, u16> = moves.iter().map(|one| (one.page.number, one.to.0)).collect();
        assert_eq!(to.len() as u64, PAGES);
        assert!((0..PAGES - 1).all(|number| to[&number] != to[&(number + 1)]), "{to:?}");
        // Weights that differ only by noise are the same.
        assert!(tidy.moves(&parts(PAGES / 2), &layout(), &weights(34)).is_empty());
        assert_eq!(tidy.moves(&parts(PAGES / 2 + 40), &layout(), &weights(40)).len() as u64, PAGES);
    }

    #[test]
    fn a_record_full_of_ended_processes_is_pruned() {
        let ended = (0..BLOCKS_MOST as u64).map(|number| Page { process: Process(2), number });
        let mut region = Region { weights: weights(32)[2].clone(), done: ended.collect() };
        let parts = parts(PAGES / 2);
        let parts: Vec<&Part> = parts.iter().collect();
        let moves = region.moves(&parts, &layout(), &weights(32)[2], PAGES_MOST);
        assert_eq!(moves.len() as u64, PAGES);
    }

    #[test]
    fn memory_in_other_regions_or_on_one_node_is_not_moved() {
        let mut tidy = Tidy::default();
        assert!(tidy.moves(&parts(PAGES), &layout(), &weights(32)).is_empty());
        assert!(tidy.moves(&parts(PAGES), &layout(), &weights(PARTS)).is_empty());
        assert!(tidy.moves(&[], &layout(), &weights(32)).is_empty());
    }
}
