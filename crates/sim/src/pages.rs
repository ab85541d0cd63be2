//! Pages of a workload: heat, node and huge pages, page by page.
//!
//! Heat is a share of its region's accesses. Hot pages lie at random positions among those first touched by the main
//! toucher of the region; the seed determines the positions, the only random choice here. Interleaving then assigns
//! pages to nodes in turn, as the kernel does, and the effect of hot pages on the nodes is random.
//!
//! A page may have copies on other nodes: then each CPU reads the nearest one, and writes go to the page itself. A huge
//! page is [`PIECES`] consecutive pages on one node that migrate together until it is split.

use crate::flow::Demand;
use crate::machine::Machine;
use crate::rng::Rng;
use crate::workload::Workload;

pub use crate::workload::PIECES;

/// A workload's pages: columns of one table.
#[derive(Clone, Debug, PartialEq)]
pub struct Pages {
    /// Share of the region's accesses.
    pub heat: Vec<f64>,
    /// The region's index.
    pub region: Vec<u16>,
    /// The node it is on.
    pub node: Vec<u16>,
    /// Bit mask of other nodes with a copy of it.
    pub copies: Vec<u64>,
    /// Whether each group of [`PIECES`] consecutive pages is a huge page.
    pub huge: Vec<bool>,
    /// Bytes of a page.
    pub page_bytes: u64,
}

impl Pages {
    /// The pages of a workload, initially all on node 0; `seed` selects the hot ones.
    #[must_use]
    pub fn of(workload: &Workload, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let (mut heat, mut region) = (Vec::new(), Vec::new());
        for (at, of) in (0u16..).zip(&workload.regions) {
            let hot = of.hot_pages.min(of.pages);
            let [hot_heat, cold_heat] = heats(of.pages, hot, of.hot_share);
            let start = heat.len();
            heat.resize(start + of.pages as usize, cold_heat);
            region.resize(heat.len(), at);
            let most = of.touched_by.iter().copied().fold(0.0, f64::max);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "0.8 of a count, or all of it"
            )]
            let room = ((f64::from(of.pages) * 0.8 * most) as u32).max(hot);
            for page in some_of(room, hot, &mut rng) {
                heat[start + page as usize] = hot_heat;
            }
        }
        let count = heat.len();
        let mut pages = Self {
            node: vec![0; count],
            copies: vec![0; count],
            huge: vec![workload.huge; count / PIECES],
            heat,
            region,
            page_bytes: workload.page_bytes,
        };
        pages.stripe(workload.stripe as usize);
        pages
    }

    /// Interleaves regions in the address space in runs of `pages` pages, instead of one after the other.
    fn stripe(&mut self, pages: usize) {
        if pages == 0 {
            return;
        }
        // Sorted by the run number within the region, then by region.
        let mut seen = std::collections::BTreeMap::<u16, usize>::new();
        let turn = |region: &u16| {
            let before = seen.entry(*region).or_default();
            *before += 1;
            ((*before - 1) / pages, *region)
        };
        let turns: Vec<(usize, u16)> = self.region.iter().map(turn).collect();
        let mut order: Vec<usize> = (0..turns.len()).collect();
        order.sort_by_key(|page| turns[*page]);
        self.heat = order.iter().map(|page| self.heat[*page]).collect();
        self.region = order.iter().map(|page| self.region[*page]).collect();
    }

    /// Number of pages.
    #[must_use]
    pub fn count(&self) -> usize {
        self.heat.len()
    }

    /// Places each page on the node of its first toucher: in address order, each CPU row touches a stretch with its
    /// share of the region's accesses. Pages for a full node go to the nearest node with free memory.
    pub fn first_touch(&mut self, workload: &Workload, machine: &Machine) {
        let mut room = Room::of(machine, self.page_bytes);
        for (at, of) in (0u16..).zip(&workload.regions) {
            let mut ends = of.touched_by.iter().zip(&machine.cpu_nodes);
            let (mut end, mut node) = ends.next().map_or((1.0, 0), |(share, node)| (*share, *node));
            let mut seen = 0.0;
            for page in 0..self.count() {
                if self.region[page] != at {
                    continue;
                }
                let middle = seen + 0.5 * self.heat[page];
                while middle > end {
                    let Some((share, next)) = ends.next() else { break };
                    (end, node) = (end + share, *next);
                }
                self.put(page, room.take(node));
                seen += self.heat[page];
            }
        }
        self.gather();
    }

    /// Places pages in turn, `weights` pages per node and round. Pages for a full node go to the nearest one with free
    /// memory.
    pub fn interleave(&mut self, weights: &[u32], machine: &Machine) {
        let nodes = weights.iter().take(machine.nodes.len()).enumerate();
        let round: Vec<usize> =
            nodes.flat_map(|(node, weight)| (0..*weight).map(move |_| node)).collect();
        if round.is_empty() {
            return;
        }
        let mut room = Room::of(machine, self.page_bytes);
        let mut turn = 0;
        for page in 0..self.count() {
            self.put(page, room.take(round[turn % round.len()]));
            turn += usize::from(page + 1 == self.whole(page).end);
        }
        self.gather();
    }

    /// Places the hottest pages on node 0, up to this share of all accesses and its free memory, and the others on node
    /// 1.
    pub fn hottest_near(&mut self, workload: &Workload, machine: &Machine, share: f64) {
        let uses = |page: usize| {
            let region = usize::from(self.region[page]);
            let lines =
                workload.workers.iter().map(|of| of.lines * of.uses.get(region).unwrap_or(&0.0));
            self.heat[page] * lines.sum::<f64>()
        };
        let mut pages: Vec<(usize, f64)> =
            (0..self.count()).map(|page| (page, uses(page))).collect();
        pages.sort_by(|a, b| b.1.total_cmp(&a.1));
        // Added up in the same order as below, so that all pages have a share of exactly 1.
        let all: f64 = pages.iter().map(|(_, heat)| heat).sum();
        let mut room = machine.nodes.first().map_or(0, |node| node.size.0 / self.page_bytes.max(1));
        let mut near = 0.0;
        for (page, heat) in pages {
            let fits = room > 0 && near + heat <= share * all;
            self.put(page, usize::from(!fits));
            if fits {
                (near, room) = (near + heat, room - 1);
            }
        }
        self.gather();
    }

    /// Places each huge page on the node of its first piece.
    fn gather(&mut self) {
        for first in (0..self.huge.len()).filter(|at| self.huge[*at]).map(|at| at * PIECES) {
            let node = self.node[first];
            self.node[first..first + PIECES].fill(node);
        }
    }

    /// The pages that migrate with this one: the pieces of its huge page, or itself.
    #[must_use]
    pub fn whole(&self, page: usize) -> std::ops::Range<usize> {
        let first = page - page % PIECES;
        if self.is_huge(page) { first..first + PIECES } else { page..page + 1 }
    }

    /// Whether the page is part of a huge page.
    #[must_use]
    pub fn is_huge(&self, page: usize) -> bool {
        self.huge.get(page / PIECES).copied().unwrap_or(false)
    }

    /// Moves the hot set: each page takes over the heat and region of the page `by` positions before it, cyclically.
    pub fn rotate(&mut self, by: usize) {
        let by = by % self.count().max(1);
        self.heat.rotate_right(by);
        self.region.rotate_right(by);
    }

    /// Assigns a page to a node.
    pub fn put(&mut self, page: usize, node: usize) {
        // A machine has at most 64 nodes.
        self.node[page] = u16::try_from(node).unwrap_or_default();
    }

    /// Bytes on each of `nodes` nodes, copies included.
    #[must_use]
    pub fn bytes(&self, nodes: usize) -> Vec<u64> {
        let mut bytes = vec![0; nodes];
        for (node, copies) in self.node.iter().zip(&self.copies) {
            bytes[usize::from(*node)] += self.page_bytes;
            if *copies != 0 {
                for copy in (0..nodes).filter(|node| copies >> node & 1 == 1) {
                    bytes[copy] += self.page_bytes;
                }
            }
        }
        bytes
    }

    /// Demands of workers, in their order, then of antagonists.
    #[must_use]
    pub fn demands(&self, workload: &Workload, machine: &Machine) -> Vec<Demand> {
        let served = self.served(workload, machine);
        let small = self.small(workload);
        let workers = workload.workers.iter().map(|worker| {
            let mut shares = vec![0.0; machine.nodes.len()];
            for (uses, region) in worker.uses.iter().zip(&served[worker.row]) {
                for (share, heat) in shares.iter_mut().zip(region) {
                    *share += uses * heat;
                }
            }
            let of = |of: &dyn Fn(usize) -> f64| -> f64 {
                worker.uses.iter().enumerate().map(|(region, uses)| uses * of(region)).sum()
            };
            Demand {
                row: worker.row,
                lines: worker.lines,
                think_ns: worker.think_ns + workload.walk_ns * of(&|region| small[region]),
                reads: of(&|region| workload.regions[region].reads),
                shares,
            }
        });
        let antagonists = workload.antagonists.iter().map(|other| {
            let mut shares = vec![0.0; machine.nodes.len()];
            shares[other.node] = 1.0;
            Demand { row: other.row, lines: other.lines, think_ns: 0.0, reads: 1.0, shares }
        });
        workers.chain(antagonists).collect()
    }

    /// Share of each region's accesses served by each node, for each row of CPUs: by row, region and node.
    fn served(&self, workload: &Workload, machine: &Machine) -> Vec<Vec<Vec<f64>>> {
        let (rows, nodes) = (machine.cpu_nodes.len(), machine.nodes.len());
        let mut alone = vec![vec![0.0; nodes]; workload.regions.len()];
        let mut copied = Vec::new();
        for page in 0..self.count() {
            if self.copies[page] == 0 {
                alone[usize::from(self.region[page])][usize::from(self.node[page])] +=
                    self.heat[page];
            } else {
                copied.push(page);
            }
        }
        let mut served = vec![alone; rows];
        for page in copied {
            let on = self.copies[page] | 1 << self.node[page];
            for (row, served) in served.iter_mut().enumerate() {
                let latency = |node: &usize| machine.latency_ns[row][*node];
                let nearest = (0..nodes)
                    .filter(|node| on >> node & 1 == 1)
                    .min_by(|a, b| latency(a).total_cmp(&latency(b)));
                let to = nearest.unwrap_or(usize::from(self.node[page]));
                served[usize::from(self.region[page])][to] += self.heat[page];
            }
        }
        served
    }

    /// The share of each region's accesses that goes to small pages, if those cost more than huge ones; else 0.
    #[must_use]
    pub fn small(&self, workload: &Workload) -> Vec<f64> {
        let mut small = vec![0.0; workload.regions.len()];
        if workload.walk_ns > 0.0 {
            for page in (0..self.count()).filter(|page| !self.is_huge(*page)) {
                small[usize::from(self.region[page])] += self.heat[page];
            }
        }
        small
    }
}

/// Free memory of the nodes.
struct Room<'a> {
    machine: &'a Machine,
    pages: Vec<u64>,
}

impl<'a> Room<'a> {
    fn of(machine: &'a Machine, page_bytes: u64) -> Self {
        Self {
            machine,
            pages: machine.nodes.iter().map(|node| node.size.0 / page_bytes.max(1)).collect(),
        }
    }

    /// Takes a page on `node`, or on the node nearest to its CPUs with free memory; on `node` itself if there is none.
    fn take(&mut self, node: usize) -> usize {
        let near = |other: &usize| {
            self.machine.row(node).map_or(0.0, |row| self.machine.latency_ns[row][*other])
        };
        let found = if self.pages[node] > 0 {
            node
        } else {
            let others = (0..self.pages.len()).filter(|other| self.pages[*other] > 0);
            others.min_by(|a, b| near(a).total_cmp(&near(b))).unwrap_or(node)
        };
        self.pages[found] = self.pages[found].saturating_sub(1);
        found
    }
}

/// Heat of a hot and of a cold page.
fn heats(pages: u32, hot: u32, hot_share: f64) -> [f64; 2] {
    let share = if hot == 0 {
        0.0
    } else if hot == pages {
        1.0
    } else {
        hot_share
    };
    [share / f64::from(hot.max(1)), (1.0 - share) / f64::from((pages - hot).max(1))]
}

/// `count` distinct numbers below `room`: Floyd's sampling.
fn some_of(room: u32, count: u32, rng: &mut Rng) -> std::collections::BTreeSet<u32> {
    let mut chosen = std::collections::BTreeSet::new();
    for last in room.saturating_sub(count)..room {
        let any = rng.below(last + 1);
        if !chosen.insert(any) {
            chosen.insert(last);
        }
    }
    chosen
}

#[cfg(test)]
mod tests;
