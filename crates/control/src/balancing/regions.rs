//! Memory that is used alike, made of samples: what one node's CPUs use is a region for each node, what several use is one.
//!
//! Samples of a page are kept and fade: halved every [`FADES`] decisions, so that what was used once is forgotten in a minute.
//! A page is taken for one node's from three samples on of which nearly all are that node's; with fewer it may be anyone's,
//! and counts as shared. A huge page is one.

use std::collections::BTreeMap;

use nearfar_policy::traffic::balance::{Candidate, Region};
use nearfar_policy::traffic::{PAGE, PIECES, Page, Process, Sample};
use nearfar_topology::{BasisPoints, Bytes, NodeId};

use super::{Layout, Placed};

/// Pages that are remembered.
const PAGES_MAX: usize = 200_000;
/// Decisions until samples count half.
const FADES: u32 = 20;
/// Samples from which on it is told who uses a page,
const TELLS: u64 = 3;
/// and the share of them that is one node's if others hardly use it.
const NEARLY: u64 = 90;
const WHOLE: u64 = 10_000;

/// Pages with what was seen of them lately.
#[derive(Clone, Debug)]
pub struct Regions {
    nodes: usize,
    pages: BTreeMap<Page, Heat>,
    since_faded: u32,
    lost: u64,
}

#[derive(Clone, Debug)]
struct Heat {
    node: NodeId,
    huge: bool,
    by: Vec<u32>,
}

impl Heat {
    fn all(&self) -> u64 {
        self.by.iter().map(|samples| u64::from(*samples)).sum()
    }

    /// The place of the node whose it is; `None` for a shared one.
    fn owner(&self) -> Option<usize> {
        let all = self.all();
        let (place, most) = self.by.iter().enumerate().max_by_key(|(_, samples)| **samples)?;
        (all >= TELLS && u64::from(*most) * 100 >= all * NEARLY).then_some(place)
    }

    const fn bytes(&self) -> Bytes {
        Bytes(if self.huge { PAGE * PIECES } else { PAGE })
    }
}

impl Regions {
    /// Of a machine with so many nodes; empty.
    #[must_use]
    pub const fn new(nodes: usize) -> Self {
        Self { nodes, pages: BTreeMap::new(), since_faded: 0, lost: 0 }
    }

    /// Pages remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Samples of pages for which there was no room.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    pub(super) fn add(&mut self, samples: &[Sample]) {
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

    /// Takes in where a page was found to be.
    pub(super) fn placed(&mut self, placed: &Placed) {
        match (self.pages.get_mut(&placed.asked.page), placed.on) {
            (Some(heat), Some(node)) => heat.node = node,
            (Some(_), None) => drop(self.pages.remove(&placed.asked.page)),
            (None, _) => {}
        }
    }

    /// Forgets pages of processes that are not among those looked at any more.
    pub(super) fn keep(&mut self, whose: impl Fn(Process) -> bool) {
        self.pages.retain(|page, _| whose(page.process));
    }

    /// A decision was made.
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

    pub(super) fn is_huge(&self, page: Page) -> bool {
        self.pages.get(&page).is_some_and(|heat| heat.huge)
    }

    /// Regions for a policy: one for each node with CPUs, in the layout's order, then the one that is shared.
    pub(super) fn regions(&self, layout: &Layout) -> Vec<Region> {
        let (cpus, mems) = (layout.cpus.len(), layout.mems.len());
        let mut used = vec![vec![0_u64; cpus]; cpus + 1];
        let mut at = vec![vec![0_u64; mems]; cpus + 1];
        let mut bytes = vec![0_u64; cpus + 1];
        for heat in self.pages.values() {
            let region = layout.region(heat.owner());
            for (sum, cpu) in used[region].iter_mut().zip(&layout.cpus) {
                *sum += u64::from(heat.by.get(*cpu).copied().unwrap_or(0));
            }
            if let Some(place) = layout.place_of_memory(heat.node) {
                at[region][place] += heat.all();
            }
            bytes[region] += heat.bytes().0;
        }
        let by_cpu = |cpu: usize| used.iter().map(|region| region[cpu]).sum::<u64>();
        let all: Vec<u64> = (0..cpus).map(by_cpu).collect();
        let region = |index: usize| {
            let shared = index == cpus;
            let by = (0..cpus).map(|cpu| match all[cpu] {
                // Of a CPU node that was not seen at all: whatever it does, it does as the others.
                0 => BasisPoints(if shared { 10_000 } else { 0 }),
                all => share(used[index][cpu], all),
            });
            let served: u64 = at[index].iter().sum();
            Region {
                by: by.collect(),
                at: at[index].iter().map(|part| share(*part, served)).collect(),
                least: vec![BasisPoints(0); mems],
                most: vec![BasisPoints(10_000); mems],
                bytes: Bytes(bytes[index]),
            }
        };
        (0..=cpus).map(region).collect()
    }

    /// The pages of a region on a node.
    pub(super) fn candidates(&self, layout: &Layout, region: usize, on: NodeId) -> Vec<Candidate> {
        let ours = |heat: &Heat| heat.node == on && layout.region(heat.owner()) == region;
        let pages = self.pages.iter().filter(|(_, heat)| ours(heat));
        let candidate = |(page, heat): (&Page, &Heat)| Candidate {
            page: *page,
            bytes: heat.bytes(),
            accesses: heat.all(),
        };
        pages.map(candidate).collect()
    }
}

fn share(part: u64, of: u64) -> BasisPoints {
    let share = u128::from(part) * u128::from(WHOLE) / u128::from(of.max(1));
    BasisPoints(u32::try_from(share).unwrap_or(0))
}
