//! Pages one by one: how hot each is, and on which node.
//!
//! Heat is a share of its region's accesses. Hot pages lie anywhere among those that the first toucher of most of the
//! region touches: where, the seed says, and it is all that chance decides here. Interleaving then deals pages out in
//! turn, as the kernel does, and what the hot ones do to the nodes is luck.

use crate::flow::Demand;
use crate::machine::Machine;
use crate::rng::Rng;
use crate::workload::Workload;

/// A workload's pages; three columns of one table.
#[derive(Clone, Debug, PartialEq)]
pub struct Pages {
    /// Share of the region's accesses.
    pub heat: Vec<f64>,
    /// The region's index.
    pub region: Vec<u16>,
    /// The node it is on.
    pub node: Vec<u16>,
    /// Bytes of a page.
    pub page_bytes: u64,
}

impl Pages {
    /// The pages of a workload, all on node 0 as yet; `seed` says which are hot.
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
        Self { node: vec![0; heat.len()], heat, region, page_bytes: workload.page_bytes }
    }

    /// How many.
    #[must_use]
    pub fn count(&self) -> usize {
        self.heat.len()
    }

    /// Each page where it is touched first: in the order of addresses, a stretch for each CPU row, as long as makes its
    /// share of the region's accesses. What finds its node full goes to the nearest that is not.
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
    }

    /// Pages dealt out in turn, so many to each node a round. What finds its node full goes to the nearest that is not.
    pub fn interleave(&mut self, weights: &[u32], machine: &Machine) {
        let nodes = weights.iter().take(machine.nodes.len()).enumerate();
        let round: Vec<usize> =
            nodes.flat_map(|(node, weight)| (0..*weight).map(move |_| node)).collect();
        if round.is_empty() {
            return;
        }
        let mut room = Room::of(machine, self.page_bytes);
        for page in 0..self.count() {
            self.put(page, room.take(round[page % round.len()]));
        }
    }

    /// The hottest pages on node 0 as far as they have this share of all accesses and there is room, the others on node 1.
    pub fn hottest_near(&mut self, workload: &Workload, machine: &Machine, share: f64) {
        let uses = |page: usize| {
            let region = usize::from(self.region[page]);
            let lines =
                workload.workers.iter().map(|of| of.lines * of.uses.get(region).unwrap_or(&0.0));
            self.heat[page] * lines.sum::<f64>()
        };
        let mut pages: Vec<(usize, f64)> =
            (0..self.count()).map(|page| (page, uses(page))).collect();
        let all: f64 = pages.iter().map(|(_, heat)| heat).sum();
        pages.sort_by(|a, b| b.1.total_cmp(&a.1));
        let mut room = machine.nodes.first().map_or(0, |node| node.size.0 / self.page_bytes.max(1));
        let mut near = 0.0;
        for (page, heat) in pages {
            let fits = room > 0 && near + heat <= share * all;
            self.put(page, usize::from(!fits));
            if fits {
                (near, room) = (near + heat, room - 1);
            }
        }
    }

    /// Puts a page on a node.
    pub fn put(&mut self, page: usize, node: usize) {
        // A machine has at most 64 nodes.
        self.node[page] = u16::try_from(node).unwrap_or_default();
    }

    /// Bytes on each of `nodes` nodes.
    #[must_use]
    pub fn bytes(&self, nodes: usize) -> Vec<u64> {
        let mut bytes = vec![0; nodes];
        for node in &self.node {
            bytes[usize::from(*node)] += self.page_bytes;
        }
        bytes
    }

    /// What workers and antagonists ask of each node; workers first, in their order.
    #[must_use]
    pub fn demands(&self, workload: &Workload, machine: &Machine) -> Vec<Demand> {
        let nodes = machine.nodes.len();
        let mut of_region = vec![vec![0.0; nodes]; workload.regions.len()];
        for page in 0..self.count() {
            of_region[usize::from(self.region[page])][usize::from(self.node[page])] +=
                self.heat[page];
        }
        let workers = workload.workers.iter().map(|worker| {
            let mut shares = vec![0.0; nodes];
            for (uses, region) in worker.uses.iter().zip(&of_region) {
                for (share, heat) in shares.iter_mut().zip(region) {
                    *share += uses * heat;
                }
            }
            Demand {
                row: worker.row,
                lines: worker.lines,
                think_ns: worker.think_ns,
                reads: worker.reads,
                shares,
            }
        });
        let antagonists = workload.antagonists.iter().map(|other| {
            let mut shares = vec![0.0; nodes];
            shares[other.node] = 1.0;
            Demand { row: other.row, lines: other.lines, think_ns: 0.0, reads: 1.0, shares }
        });
        workers.chain(antagonists).collect()
    }
}

/// What is free.
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

    /// A page of `node`, or of the node nearest to its CPUs that has one; `node` itself if none has.
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

/// Heat of a hot and of another page.
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

/// `count` different numbers below `room`: Floyd's sampling.
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
mod tests {
    use super::*;
    use crate::workload::{Region, Worker};
    use nearfar_topology::Bytes;

    fn machine(nodes: usize) -> Machine {
        let node = crate::machine::Node {
            size: Bytes(1 << 30),
            read_gbps: 5.5,
            write_gbps: 5.5,
            duplex: false,
            waiting: crate::machine::Waiting::Queue,
        };
        let builder = crate::machine::Builder {
            name: "test".into(),
            clock_ghz: 1.0,
            nodes: vec![node; nodes],
            links: Vec::new(),
            cpu_nodes: (0..nodes).collect(),
            latency_ns: vec![vec![100.0; nodes]; nodes],
            routes: vec![vec![crate::machine::Route::default(); nodes]; nodes],
            concurrent_ns: 0.0,
            probe_lines: 0.0,
        };
        builder.build().unwrap()
    }

    fn workload(touched_by: &[f64]) -> Workload {
        let region = |name, hot_pages, hot_share| Region {
            name,
            pages: 1000,
            hot_pages,
            hot_share,
            touched_by: touched_by.to_vec(),
        };
        let worker =
            |row| Worker { row, lines: 4.0, think_ns: 0.0, reads: 1.0, uses: vec![0.25, 0.75] };
        Workload {
            name: "test".into(),
            about: "",
            page_bytes: 4096,
            regions: vec![region("one", 10, 0.5), region("two", 0, 0.7)],
            workers: (0..touched_by.len()).map(worker).collect(),
            antagonists: Vec::new(),
        }
    }

    #[test]
    fn each_regions_heat_is_shared_out_whole() {
        let pages = Pages::of(&workload(&[1.0]), 3);
        for region in [0, 1] {
            let of = || pages.heat.iter().zip(&pages.region).filter(|(_, at)| **at == region);
            assert!((of().map(|(heat, _)| heat).sum::<f64>() - 1.0).abs() < 1e-9);
            let hot = of().filter(|(heat, _)| **heat > 0.01).count();
            assert_eq!(hot, if region == 0 { 10 } else { 0 });
        }
    }

    #[test]
    fn first_touch_gives_each_node_the_share_its_cpus_touch_first() {
        let (workload, machine) = (workload(&[0.9, 0.07, 0.03]), machine(3));
        let mut pages = Pages::of(&workload, 5);
        pages.first_touch(&workload, &machine);
        for demand in pages.demands(&workload, &machine) {
            for (share, wanted) in demand.shares.iter().zip([0.9, 0.07, 0.03]) {
                assert!((share - wanted).abs() < 0.002, "{:?}", demand.shares);
            }
        }
    }

    #[test]
    fn what_does_not_fit_goes_to_the_nearest_node_with_room() {
        let machine = crate::published::colloid::machine(135.0).unwrap();
        let workload = crate::workload::find("hot-set", &machine).unwrap();
        let mut pages = Pages::of(&workload, 1);
        pages.first_touch(&workload, &machine);
        assert_eq!(pages.bytes(2), [32 << 30, 40 << 30]);
        let near = pages.demands(&workload, &machine)[0].shares[0];
        assert!((near - crate::published::colloid::NEAR_MOST).abs() < 1e-9, "{near}");
    }

    #[test]
    fn interleaving_deals_pages_by_weight_and_heat_by_chance() {
        let (workload, machine) = (workload(&[0.5, 0.5]), machine(2));
        let deal = |seed, weights: &[u32]| {
            let mut pages = Pages::of(&workload, seed);
            pages.interleave(weights, &machine);
            pages
        };
        assert_eq!(deal(1, &[3, 1]).bytes(2), [1500 * 4096, 500 * 4096]);
        let near = |seed| deal(seed, &[1, 1]).demands(&workload, &machine)[0].shares[0];
        let shares: Vec<f64> = (0..50).map(near).collect();
        let mean = shares.iter().sum::<f64>() / 50.0;
        assert!(
            (mean - 0.5).abs() < 0.02 && shares.iter().any(|share| (share - 0.5).abs() > 0.01),
            "{shares:?}"
        );
        let unplaced = deal(1, &[0, 0]);
        assert!(unplaced.node.iter().all(|node| *node == 0), "no node to deal to: pages stay");
    }

    #[test]
    fn a_seed_decides_which_pages_are_hot_and_nothing_else_does() {
        let workload = workload(&[1.0]);
        assert_eq!(Pages::of(&workload, 9), Pages::of(&workload, 9));
        assert_ne!(Pages::of(&workload, 9).heat, Pages::of(&workload, 10).heat);
    }
}
