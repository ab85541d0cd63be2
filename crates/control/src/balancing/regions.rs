//! Regions of memory with the same use, built from samples: one for the memory of each node's CPUs, and a shared one.
//!
//! Samples of a page decay: they are halved every [`FADES`] decisions, so that a single use is forgotten in a minute.
//! If the policy finds that loads have changed, only the samples of the readings that showed it are kept: the node
//! that initialised memory is often not the one that uses it. Only few pages are ever sampled, and neighbouring pages
//! mostly have the same use. So the unit of memory is a *part*: a huge page, or a block of small ones of which some
//! were sampled (`blocks.rs`).

use std::collections::{BTreeMap, VecDeque};

use nearfar_policy::traffic::balance::Region;
use nearfar_policy::traffic::{PIECES, Page, Process, Sample};
use nearfar_topology::{BasisPoints, Bytes};

use super::blocks::{self, set_owners};
use super::part::{Heat, Part};
use super::{Layout, Placed};

/// Most pages with samples.
const PAGES_MAX: usize = 200_000;
/// Decisions after which samples are halved.
const FADES: u32 = 20;
/// Readings that show a change of loads.
const LATELY: usize = 5;
const WHOLE: u64 = 10_000;
/// Sampled parts are assumed to get at least one access of so many.
const COVERED_LEAST: u64 = 20;

/// Pages with their recent samples.
#[derive(Clone, Debug)]
pub struct Regions {
    nodes: usize,
    pages: BTreeMap<Page, Heat>,
    /// Samples of the last few readings.
    lately: VecDeque<Vec<Sample>>,
    since_faded: u32,
    lost: u64,
}

impl Regions {
    /// Empty, for a machine with this number of nodes.
    #[must_use]
    pub const fn new(nodes: usize) -> Self {
        Self { nodes, pages: BTreeMap::new(), lately: VecDeque::new(), since_faded: 0, lost: 0 }
    }

    /// Number of pages with samples.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether no page has samples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Samples dropped because the table was full, or their node is unknown.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    /// Adds the samples of a reading.
    pub(super) fn add(&mut self, samples: Vec<Sample>) {
        self.count(&samples);
        self.lately.push_back(samples);
        if self.lately.len() > LATELY {
            self.lately.pop_front();
        }
    }

    /// Drops all samples except those of the last few readings.
    pub(super) fn begin_anew(&mut self) {
        self.pages.clear();
        self.since_faded = 0;
        for samples in std::mem::take(&mut self.lately) {
            self.add(samples);
        }
    }

    fn count(&mut self, samples: &[Sample]) {
        for sample in samples {
            let page = if sample.huge { sample.page.whole() } else { sample.page };
            let room = self.pages.len() < PAGES_MAX || self.pages.contains_key(&page);
            if sample.cpu >= self.nodes || !room {
                self.lost = self.lost.saturating_add(1);
                continue;
            }
            let fresh = || Heat { node: sample.node, huge: sample.huge, by: vec![0; self.nodes] };
            let heat = self.pages.entry(page).or_insert_with(fresh);
            (heat.node, heat.huge) = (sample.node, sample.huge);
            heat.by[sample.cpu] = heat.by[sample.cpu].saturating_add(1);
        }
    }

    /// Updates the node of a page by the result of a move.
    pub(super) fn placed(&mut self, placed: &Placed) {
        match (self.pages.get_mut(&placed.asked.page), placed.on) {
            (Some(heat), Some(node)) => heat.node = node,
            (Some(_), None) => drop(self.pages.remove(&placed.asked.page)),
            (None, _) => {}
        }
    }

    /// Drops pages of processes that are out of scope.
    pub(super) fn keep(&mut self, in_scope: impl Fn(Process) -> bool) {
        self.pages.retain(|page, _| in_scope(page.process));
        self.lately.iter_mut().for_each(|all| all.retain(|sample| in_scope(sample.page.process)));
    }

    /// Counts a decision, and halves samples if it is time.
    pub(super) fn age(&mut self) {
        self.since_faded += 1;
        if self.since_faded < FADES {
            return;
        }
        self.since_faded = 0;
        self.pages.retain(|_, heat| {
            heat.by.iter_mut().for_each(|samples| *samples /= 2);
            heat.all() > 0
        });
    }

    /// Divides the sampled pages into parts.
    pub(super) fn parts(&self) -> Vec<Part> {
        let (huge, small): (Vec<_>, Vec<_>) = self.pages.iter().partition(|(_, heat)| heat.huge);
        let orders = blocks::orders(&small);
        let mut all: Vec<Part> =
            huge.iter().map(|one| Part::of(*one.0, PIECES, std::slice::from_ref(one))).collect();
        set_owners(&mut all);
        for of_one in small.chunk_by(|a, b| a.0.process == b.0.process) {
            blocks::of_process(of_one, &orders, &mut all);
        }
        all
    }
}

/// Regions for a policy: one for each node with CPUs, in the layout's order, then the shared one. None is larger than the
/// memory in use, `most`, unless more was sampled.
pub(super) fn regions(parts: &[Part], layout: &Layout, most: Bytes) -> Vec<Region> {
    let (cpus, mems) = (layout.cpus.len(), layout.mems.len());
    let mut used = vec![vec![0_u64; cpus]; cpus + 1];
    let mut at = vec![vec![0_u64; mems]; cpus + 1];
    // Samples of parts that wait, which stay in place.
    let mut stays = at.clone();
    let mut bytes = vec![0_u64; cpus + 1];
    // The number of samples, and of parts with one sample.
    let mut seen = vec![(0_u64, 0_u64); cpus + 1];
    for part in parts {
        let region = layout.region(part.owner);
        let samples: u64 = part.by.iter().sum();
        seen[region] = (seen[region].0 + samples, seen[region].1 + u64::from(samples == 1));
        for (sum, cpu) in used[region].iter_mut().zip(&layout.cpus) {
            *sum += part.by.get(*cpu).copied().unwrap_or(0);
        }
        for (_, node, samples) in &part.sampled {
            if let Some(place) = layout.place_of_memory(*node) {
                at[region][place] += samples;
                stays[region][place] += if part.waits { *samples } else { 0 };
            }
        }
        bytes[region] += part.bytes().0;
    }
    let by_cpu = |cpu: usize| used.iter().map(|region| region[cpu]).sum::<u64>();
    let all: Vec<u64> = (0..cpus).map(by_cpu).collect();
    let region = |index: usize| {
        let shared = index == cpus;
        let by = (0..cpus).map(|cpu| match all[cpu] {
            // A CPU node without samples counts as a user of shared memory only.
            0 => BasisPoints(if shared { 10_000 } else { 0 }),
            all => share(used[index][cpu], all),
        });
        let served: u64 = at[index].iter().sum();
        let stay: u64 = stays[index].iter().sum();
        Region {
            by: by.collect(),
            at: at[index].iter().map(|part| share(*part, served)).collect(),
            least: stays[index].iter().map(|here| share(*here, served)).collect(),
            most: stays[index]
                .iter()
                .map(|here| BasisPoints(10_000 - share(stay - here, served).0))
                .collect(),
            bytes: Bytes(in_all(bytes[index], seen[index]).min(most.0.max(bytes[index]))),
        }
    };
    (0..=cpus).map(region).collect()
}

/// Bytes of a region of which only some parts were sampled, if all parts are equally hot. Parts without a sample get the
/// share of accesses that the samples of parts with one sample are of all samples (Good, "The Population Frequencies of
/// Species", Biometrika 40, 1953).
fn in_all(bytes: u64, (samples, once): (u64, u64)) -> u64 {
    let known = (samples - once).max(samples.div_ceil(COVERED_LEAST)).max(1);
    let all = u128::from(bytes) * u128::from(samples.max(1)) / u128::from(known);
    u64::try_from(all).unwrap_or(u64::MAX)
}

/// The parts of a region that may move.
pub(super) fn of_region<'a>(
    parts: &'a [Part],
    layout: &'a Layout,
    region: usize,
) -> impl Iterator<Item = &'a Part> {
    parts.iter().filter(move |part| !part.waits && layout.region(part.owner) == region)
}

fn share(part: u64, of: u64) -> BasisPoints {
    let share = u128::from(part) * u128::from(WHOLE) / u128::from(of.max(1));
    BasisPoints(u32::try_from(share).unwrap_or(0))
}

#[cfg(test)]
pub(super) mod tests {
    use nearfar_policy::traffic::PAGE;
    use nearfar_topology::NodeId;

    use super::super::turns::Home;
    use super::*;

    /// Samples of pages; `asks` returns the requesting nodes of each.
    pub(in super::super) fn seen(
        pages: impl IntoIterator<Item = u64>,
        asks: impl Fn(u64) -> Vec<usize>,
    ) -> Regions {
        let mut regions = Regions::new(4);
        for number in pages {
            let page = Page { process: Process(1), number };
            let node = NodeId(u16::try_from(number % 2).unwrap());
            let sample = |cpu| Sample { page, node, huge: false, cpu, write: false };
            regions.add(asks(number).into_iter().map(sample).collect());
        }
        regions
    }

    const MOST: Bytes = Bytes(1 << 40);

    fn layout() -> Layout {
        let nodes = (0..4).map(NodeId).collect();
        let places = || (0..4).collect::<Vec<usize>>();
        Layout { nodes, cpus: places(), mems: places(), controllers: places(), queues: 4 }
    }

    #[test]
    fn sampled_pages_represent_their_neighbours() {
        // Every fifth page is sampled: by node 2 in the first half, by node 0 in the second.
        let all = seen((0..640).step_by(5), |number| vec![if number < 320 { 2 } else { 0 }; 2]);
        let parts = all.parts();
        assert_eq!(parts.len(), 40);
        assert!(parts.iter().all(|part| part.pages == 16 && !part.huge));
        assert_eq!(parts.iter().filter(|part| part.owner == Some(2)).count(), 20);
        let layout = layout();
        let regions = regions(&parts, &layout, MOST);
        assert_eq!(regions[2].bytes, Bytes(320 * PAGE));
        assert_eq!(regions[2].at[..2], [BasisPoints(5000); 2]);
        // The amount on a node is estimated by its share of the sampled pages.
        let leaves = |node, home| -> Vec<u64> {
            let parts = of_region(&parts, &layout, 2);
            parts.filter_map(|part| Some(part.leaves(NodeId(node), home)?.bytes.0 / PAGE)).collect()
        };
        let all = leaves(1, None);
        assert!(all.len() == 20 && all.iter().all(|pages| (4..=12).contains(pages)), "{all:?}");
        assert_eq!(leaves(3, None), [0; 0]);
        // A quarter of these have one node as home.
        let home = Home::new(&[16; 4], (1, 3));
        assert!(leaves(1, Some(&home)).iter().all(|pages| (1..=4).contains(pages)));
    }

    #[test]
    fn unsampled_parts_are_estimated_from_sampled_ones() {
        assert_eq!(in_all(1000, (90, 0)), 1000, "each part has several: all are known");
        assert_eq!(in_all(1000, (90, 45)), 2000);
        assert_eq!(in_all(1000, (90, 90)), 1000 * 90 / 5, "at most twenty times as many");
        assert_eq!(in_all(0, (0, 0)), 0);
        assert_eq!(in_all(u64::MAX, (2, 2)), u64::MAX);
        // Eight huge pages, of which two have a second sample.
        let parts: Vec<Part> = {
            let mut all = Regions::new(4);
            let page = |number: u64| Page { process: Process(1), number: PIECES * number };
            let sample = |number| Sample {
                page: page(number),
                node: NodeId(0),
                huge: true,
                cpu: 1,
                write: false,
            };
            all.add((0..8).chain(0..2).map(sample).collect());
            all.parts()
        };
        let huge = PIECES * PAGE;
        let bytes = |most| regions(&parts, &layout(), most)[1].bytes;
        assert_eq!(bytes(MOST), Bytes(8 * huge * 10 / 4));
        assert_eq!(bytes(Bytes(9 * huge)), Bytes(9 * huge), "memory in use");
        assert_eq!(bytes(Bytes(huge)), Bytes(8 * huge), "more was sampled");
    }

    #[test]
    fn an_undecided_part_counts_as_shared_and_is_not_moved() {
        // Of 40 blocks, all but the last have enough samples.
        let asks = |number: u64| vec![usize::try_from(number / 16 % 4).unwrap(); 3];
        let all = |told: u64| {
            seen((0..640).filter(|number| *number < 16 * told || number % 16 == 0), |number| {
                if number < 16 * told { asks(number) } else { vec![2] }
            })
        };
        let (parts, layout) = (all(39).parts(), layout());
        let waits: Vec<_> = parts.iter().filter(|part| part.waits).map(|one| one.first).collect();
        assert_eq!(waits.iter().map(|page| page.number).collect::<Vec<_>>(), [624]);
        assert_eq!(of_region(&parts, &layout, 4).count(), 0);
        let shared = &regions(&parts, &layout, MOST)[4];
        assert_eq!(shared.least[..2], [BasisPoints(10_000), BasisPoints(0)]);
        assert_eq!(shared.most[..2], [BasisPoints(10_000), BasisPoints(0)]);
        assert!(all(40).parts().iter().all(|part| !part.waits && part.owner.is_some()));
    }

    #[test]
    fn old_samples_are_dropped_when_the_load_changes() {
        let sample = |number, cpu| Sample {
            page: Page { process: Process(1), number },
            node: NodeId(0),
            huge: false,
            cpu,
            write: false,
        };
        let mut all = Regions::new(4);
        for _ in 0..9 {
            all.add((0..64).map(|number| sample(number, 0)).collect());
        }
        assert!(all.parts().iter().all(|part| part.owner == Some(0)));
        for reading in 0..LATELY {
            all.add((0..64).map(|number| sample(number, reading % 4)).collect());
        }
        all.begin_anew();
        assert_eq!(all.parts().iter().map(|part| part.by.iter().sum::<u64>()).sum::<u64>(), 320);
        assert!(all.parts().iter().all(|part| part.owner.is_none()));
    }

    #[test]
    fn pages_with_alternating_owners_become_single_page_parts() {
        // Pages belong to nodes 0 and 1 alternately.
        let fine = seen(0..64, |number| vec![usize::try_from(number % 2).unwrap(); 4]);
        let parts = fine.parts();
        assert_eq!(parts.len(), 64);
        assert!(parts.iter().all(|part| part.owner == Some((part.first.number % 2) as usize)));
        // Both nodes use each page.
        assert_eq!(seen(0..64, |_| vec![0, 1, 0, 1]).parts().len(), 4);
        // Too few samples to tell.
        assert_eq!(
            seen(0..16, |number| vec![usize::try_from(number % 2).unwrap(); 2]).parts().len(),
            1
        );
    }

    #[test]
    fn processes_and_huge_pages_form_separate_parts() {
        let mut all = seen(0..4, |_| vec![0; 4]);
        let page = |process, number| Page { process: Process(process), number };
        let sample = |page, huge| Sample { page, node: NodeId(0), huge, cpu: 1, write: false };
        all.add(vec![sample(page(2, 1), false), sample(page(1, 700), true)]);
        let mut parts: Vec<_> =
            all.parts().iter().map(|one| (one.first, one.pages, one.huge)).collect();
        parts.sort_unstable();
        assert_eq!(
            parts,
            [(page(1, 0), 16, false), (page(1, 512), 512, true), (page(2, 0), 16, false)]
        );
    }
}
