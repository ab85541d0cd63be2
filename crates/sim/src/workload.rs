//! Workloads: regions of pages with heat, and the CPUs that access them.
//!
//! A region is memory that a program allocates and touches in one way. Most of its pages have equal heat; a few hot
//! ones receive a share of its accesses together, and cause random imbalance of an interleaved placement: with heat
//! shares h the imbalance of n nodes is about `sqrt(n sum h^2)`.
//!
//! Here: the types, and the published workloads, as far as any machine with several CPU nodes can run them. The origin
//! of each figure is stated beside it; free parameters are listed in [`crate::published::parameters`].

use crate::flow::{self, Demand};
use crate::machine::{LINE, Machine};

/// Most outstanding lines of an antagonist.
const LINES_MAX: f64 = 1e5;
/// Small pages of a huge page.
pub const PIECES: usize = 512;
/// Outstanding lines of the application of the hot set, as [`crate::published::colloid`] fits them.
pub const HOT_SET_LINES: f64 = 128.0;

/// Pages with a uniform access pattern.
#[derive(Clone, Debug, PartialEq)]
pub struct Region {
    /// Its name.
    pub name: String,
    /// Number of pages.
    pub pages: u32,
    /// Number of hot pages.
    pub hot_pages: u32,
    /// Share of the region's accesses that goes to the hot pages, evenly.
    pub hot_share: f64,
    /// Share of its accesses to pages first touched by each CPU row, and so on its node.
    pub touched_by: Vec<f64>,
    /// Share of its lines that are read; the others are written.
    pub reads: f64,
}

/// The CPUs of one node with their demand.
#[derive(Clone, Debug, PartialEq)]
pub struct Worker {
    /// Their row ([`Machine::row`]).
    pub row: usize,
    /// Outstanding lines, N.
    pub lines: f64,
    /// Think time between a line's arrival and the next request, Z.
    pub think_ns: f64,
    /// Share of accesses by region; sums to 1.
    pub uses: Vec<f64>,
}

/// Traffic of other programs, which no policy here migrates.
#[derive(Clone, Debug, PartialEq)]
pub struct Antagonist {
    /// The row of its CPUs.
    pub row: usize,
    /// The node of its memory.
    pub node: usize,
    /// Outstanding lines.
    pub lines: f64,
}

impl Antagonist {
    /// Reads of the second node of `path` by the CPUs of the first row, with outstanding lines for `gbps` on an otherwise
    /// idle machine. Beside a workload it gets less. `None` if the path does not allow it.
    #[must_use]
    pub fn reading(machine: &Machine, (row, node): (usize, usize), gbps: f64) -> Option<Self> {
        let reads = |lines: f64| {
            let mut shares = vec![0.0; machine.nodes.len()];
            shares[node] = 1.0;
            let demand = Demand { row, lines, think_ns: 0.0, reads: 1.0, shares };
            LINE * flow::solve(machine, &[demand], &[]).served[0].per_ns
        };
        let (mut low, mut high) = (0.0, LINES_MAX);
        if reads(high) < gbps {
            return None;
        }
        for _ in 0..50 {
            let middle = f64::midpoint(low, high);
            if reads(middle) < gbps { low = middle } else { high = middle }
        }
        Some(Self { row, node, lines: if gbps > 0.0 { high } else { 0.0 } })
    }
}

/// A workload on a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Its name.
    pub name: String,
    /// Its description, in a sentence.
    pub about: String,
    /// Bytes per page, the unit of migration.
    pub page_bytes: u64,
    /// Its memory regions.
    pub regions: Vec<Region>,
    /// Its workers.
    pub workers: Vec<Worker>,
    /// Traffic of others.
    pub antagonists: Vec<Antagonist>,
    /// Whether it has huge pages, of [`PIECES`] pages each.
    pub huge: bool,
    /// Regions are interleaved in runs of this many pages; 0 if they are consecutive.
    pub stripe: u32,
    /// Additional cost of address translation per line on a small page over a huge one.
    pub walk_ns: f64,
}

impl Workload {
    /// The same workload with `lines` outstanding lines for each antagonist.
    #[must_use]
    pub fn contended(mut self, lines: f64) -> Self {
        self.antagonists.iter_mut().for_each(|antagonist| antagonist.lines = lines);
        self
    }
}

/// Reason why a workload cannot run on a machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsuited {
    /// No workload has this name.
    #[error("there is no workload {0}; nearfar sim list shows all")]
    Unknown(String),
    /// The policy does not support the machine.
    #[error("policy {policy} on machine {machine}: it is for {wanted}")]
    Policy {
        /// The policy.
        policy: &'static str,
        /// The machine.
        machine: String,
        /// The machines that it supports.
        wanted: &'static str,
    },
    /// The workload does not support the machine.
    #[error("workload {workload} on machine {machine}: it is for {wanted}")]
    Machine {
        /// The workload.
        workload: String,
        /// The machine.
        machine: String,
        /// The machines that it supports.
        wanted: &'static str,
    },
}

/// Workloads with their descriptions: those of the published tables, three more for machines with CPUs on several
/// nodes, one for memory of two tiers.
pub const NAMES: [(&str, &str); 6] = [
    (
        "streamcluster",
        "PARSEC's clustering: all threads read points that the first thread touched first",
    ),
    (
        "pca",
        "principal components (Metis): all threads read a matrix; the master's node asks for 1.4 times as much",
    ),
    (
        "private",
        "each node's CPUs use a part of memory of their own, all of which the first thread touched first",
    ),
    (
        "false-sharing",
        "huge pages of which each node's CPUs use other pieces, as UA's of NAS (Carrefour for huge pages)",
    ),
    (
        "hot-page",
        "huge pages of which one takes two fifths of all accesses, as CG's of NAS (Carrefour for huge pages)",
    ),
    (
        "hot-set",
        "two tiers: 90 % of accesses go to 24 of 72 GiB (Colloid's), and others may contend for near memory",
    ),
];

/// The workload of this name, on `machine`.
///
/// # Errors
/// [`Unsuited`].
pub fn find(name: &str, machine: &Machine) -> Result<Workload, Unsuited> {
    let Some((name, about)) = NAMES.iter().find(|(known, _)| *known == name) else {
        return Err(Unsuited::Unknown(name.to_owned()));
    };
    let unsuited = |wanted| Unsuited::Machine {
        workload: (*name).to_owned(),
        machine: machine.name.clone(),
        wanted,
    };
    if *name == "hot-set" {
        let size: u128 = machine.nodes.iter().map(|node| u128::from(node.size.0)).sum();
        if machine.cpu_nodes != [0] || machine.nodes.len() < 2 || size < 72 << 30 {
            return Err(unsuited(
                "machines whose CPUs are on node 0 alone, with other nodes and 72 GiB in all",
            ));
        }
        return Ok(hot_set(name, about));
    }
    if machine.cpu_nodes.len() < 2 {
        return Err(unsuited("machines whose CPUs are on several nodes"));
    }
    Ok(match *name {
        "pca" => PCA.on(machine, name, about),
        "private" => own_parts(machine, (name, about)),
        "false-sharing" => falsely_shared(machine, (name, about)),
        "hot-page" => hot_page(machine, (name, about)),
        _ => STREAMCLUSTER.on(machine, name, about),
    })
}

/// A region read by all CPU nodes: the workload of the two published tables.
pub(crate) struct Shared {
    /// Share of accesses to pages first touched by the first thread; the other nodes have the rest evenly.
    pub(crate) first: f64,
    pub(crate) hot_pages: u32,
    pub(crate) hot_share: f64,
    /// Outstanding lines of the first thread's node, and of every other.
    pub(crate) lines: [f64; 2],
    /// Think time in cycles between a line's arrival and the next request.
    pub(crate) think_cycles: f64,
}

/// 97/1/1/1 is published (Carrefour's slides). Lines and think time are fitted to the two published latencies and the
/// gain; hot pages (28 receive a fifth) to the 7 % imbalance of interleaved controllers.
pub(crate) const STREAMCLUSTER: Shared =
    Shared { first: 0.97, hot_pages: 28, hot_share: 0.2, lines: [12.9, 12.9], think_cycles: 194.0 };

/// 83 % is fitted to the published imbalance of 154 %, the first node's factor of 1.4 to its 33 % of local accesses.
/// Lines are fitted to the latency under first touch, think time to the gain, hot pages (21 receive a tenth) to the 4 %
/// imbalance when interleaved.
pub(crate) const PCA: Shared =
    Shared { first: 0.83, hot_pages: 21, hot_share: 0.1, lines: [10.0, 7.2], think_cycles: 80.0 };

/// 100 MiB of 4 KiB pages.
const SHARED_PAGES: u32 = 25_600;

impl Shared {
    fn on(&self, machine: &Machine, name: &str, about: &'static str) -> Workload {
        let rows = machine.cpu_nodes.len();
        #[expect(clippy::cast_precision_loss, reason = "a small count")]
        let other = (1.0 - self.first) / (rows - 1) as f64;
        let touched_by = (0..rows).map(|row| if row == 0 { self.first } else { other }).collect();
        let region = Region {
            name: "shared".into(),
            pages: SHARED_PAGES,
            hot_pages: self.hot_pages,
            hot_share: self.hot_share,
            touched_by,
            reads: 1.0,
        };
        let worker = |row: usize| Worker {
            row,
            lines: self.lines[usize::from(row > 0)],
            think_ns: self.think_cycles / machine.clock_ghz,
            uses: vec![1.0],
        };
        Workload {
            name: name.to_owned(),
            about: about.to_owned(),
            page_bytes: 4096,
            regions: vec![region],
            workers: (0..rows).map(worker).collect(),
            antagonists: Vec::new(),
            huge: false,
            stripe: 0,
            walk_ns: 0.0,
        }
    }
}

/// Private memory for each row of CPUs, with streamcluster's lines and think time: no published figures exist for it.
fn own_parts(machine: &Machine, (name, about): (&str, &'static str)) -> Workload {
    let rows = machine.cpu_nodes.len();
    let only = |row: usize| (0..rows).map(|at| if at == row { 1.0 } else { 0.0 }).collect();
    let region = |_| Region {
        name: "part".into(),
        pages: OWN_PAGES,
        hot_pages: 0,
        hot_share: 0.0,
        touched_by: only(0),
        reads: 0.7,
    };
    let worker = |row: usize| Worker {
        row,
        lines: STREAMCLUSTER.lines[0],
        think_ns: STREAMCLUSTER.think_cycles / machine.clock_ghz,
        uses: only(row),
    };
    Workload {
        name: name.to_owned(),
        about: about.to_owned(),
        page_bytes: 4096,
        regions: (0..rows).map(region).collect(),
        workers: (0..rows).map(worker).collect(),
        antagonists: Vec::new(),
        huge: false,
        stripe: 0,
        walk_ns: 0.0,
    }
}

/// The same on huge pages; each row uses some pieces of every page and touches them first. The first piece determines
/// the node.
fn falsely_shared(machine: &Machine, named: (&str, &'static str)) -> Workload {
    let rows = machine.cpu_nodes.len();
    let mut workload = own_parts(machine, named);
    for (row, region) in workload.regions.iter_mut().enumerate() {
        region.touched_by = (0..rows).map(|at| if at == row { 1.0 } else { 0.0 }).collect();
    }
    let pieces = PIECES / rows;
    (workload.huge, workload.walk_ns) = (true, WALK_NS);
    workload.stripe = u32::try_from(pieces.max(1)).unwrap_or(1);
    workload
}

/// A huge page with two fifths of all accesses, and others used by all CPU nodes.
fn hot_page(machine: &Machine, named: (&str, &'static str)) -> Workload {
    let mut workload = own_parts(machine, named);
    #[expect(clippy::cast_precision_loss, reason = "a small count")]
    let even = vec![1.0 / machine.cpu_nodes.len() as f64; machine.cpu_nodes.len()];
    let [hot, others] = [("hot", 512), ("others", 4 * OWN_PAGES)];
    workload.regions = [hot, others]
        .map(|(name, pages)| Region {
            name: name.to_owned(),
            pages,
            hot_pages: 0,
            hot_share: 0.0,
            touched_by: even.clone(),
            reads: 0.9,
        })
        .into();
    for worker in &mut workload.workers {
        worker.uses = vec![0.4, 0.6];
    }
    (workload.huge, workload.walk_ns) = (true, WALK_NS);
    workload
}

/// 24 MiB of 4 KiB pages: twelve huge ones.
const OWN_PAGES: u32 = 6144;
/// Assumed, not fitted: additional latency per line on a translation miss.
const WALK_NS: f64 = 4.0;

/// Colloid's GUPS: [`crate::published::colloid`] states the fitted parameters and their targets.
fn hot_set(name: &str, about: &'static str) -> Workload {
    const PAGE: u64 = 16 << 20;
    let region = |name: &str, gib: u64| Region {
        name: name.to_owned(),
        pages: u32::try_from((gib << 30) / PAGE).unwrap_or(u32::MAX),
        hot_pages: 0,
        hot_share: 0.0,
        touched_by: vec![1.0],
        reads: 1.0,
    };
    let worker = Worker { row: 0, lines: HOT_SET_LINES, think_ns: 0.0, uses: vec![0.9, 0.1] };
    Workload {
        name: name.to_owned(),
        about: about.to_owned(),
        page_bytes: PAGE,
        regions: vec![region("hot", 24), region("cold", 48)],
        workers: vec![worker],
        antagonists: vec![Antagonist { row: 0, node: 0, lines: 0.0 }],
        huge: false,
        stripe: 0,
        walk_ns: 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::imbalance;
    use crate::pages::Pages;
    use crate::published::colloid;
    use crate::testkit::ring;
    use nearfar_topology::Bytes;
    use proptest::prelude::{ProptestConfig, prop_assert, proptest};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn an_antagonist_reads_at_its_configured_rate_on_an_idle_machine(gbps in 0.1f64..5.0, row in 0usize..4, node in 0usize..4) {
            let machine = ring();
            let found = Antagonist::reading(&machine, (row, node), gbps).unwrap();
            let mut shares = vec![0.0; 4];
            shares[node] = 1.0;
            let demand = Demand { row, lines: found.lines, think_ns: 0.0, reads: 1.0, shares };
            let served = LINE * flow::solve(&machine, &[demand], &[]).served[0].per_ns;
            prop_assert!((served / gbps - 1.0).abs() < 1e-6, "{served} of {gbps}");
        }
    }

    #[test]
    fn an_antagonist_cannot_exceed_the_available_bandwidth() {
        let machine = ring();
        let found = Antagonist::reading(&machine, (1, 3), 0.0).unwrap();
        assert!(found.lines.abs() < 1e-12 && (found.row, found.node) == (1, 3));
        // A controller has 5.5 GB/s.
        assert_eq!(Antagonist::reading(&machine, (1, 3), 6.0), None);
    }

    #[test]
    fn the_published_programs_run_on_each_node_with_most_pages_touched_by_the_first() {
        let machine = ring();
        for (name, first, lines, cycles) in
            [("streamcluster", 0.97, [12.9, 12.9], 194.0), ("pca", 0.83, [10.0, 7.2], 80.0)]
        {
            let found = find(name, &machine).unwrap();
            let region = &found.regions[0];
            let other = (1.0 - first) / 3.0;
            for (touched, expected) in region.touched_by.iter().zip([first, other, other, other]) {
                assert!((touched - expected).abs() < 1e-12, "{name}: {region:?}");
            }
            // 100 MiB.
            assert_eq!(u64::from(region.pages) * found.page_bytes, 100 << 20);
            for (row, worker) in found.workers.iter().enumerate() {
                assert!((worker.lines - lines[usize::from(row > 0)]).abs() < 1e-12);
                assert!((machine.cycles(worker.think_ns) - cycles).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn each_nodes_cpus_use_a_quarter_of_every_falsely_shared_huge_page() {
        let machine = ring();
        let workload = find("false-sharing", &machine).unwrap();
        let mut pages = Pages::of(&workload, 1);
        for huge in pages.region.chunks(PIECES) {
            for region in 0..4 {
                assert_eq!(huge.iter().filter(|of| **of == region).count(), PIECES / 4);
            }
        }
        pages.first_touch(&workload, &machine);
        assert!(pages.node.iter().all(|node| *node == 0), "the first piece decides");
    }

    #[test]
    fn one_huge_page_has_two_fifths_of_all_accesses_to_a_hot_page() {
        let machine = ring();
        let workload = find("hot-page", &machine).unwrap();
        let pages = Pages::of(&workload, 1);
        let hot: f64 = pages.whole(0).map(|page| pages.heat[page]).sum();
        assert!((hot * workload.workers[0].uses[0] - 0.4).abs() < 1e-9);
        assert_eq!(pages.count(), PIECES + 4 * 6_144);
        assert!(pages.region[PIECES..].iter().all(|region| *region == 1));
    }

    #[test]
    fn the_hot_set_needs_72_gib_beside_cpus_of_the_first_node() {
        let of = |far_gib: u64| {
            let mut builder = (*colloid::machine(135.0).unwrap()).clone();
            builder.nodes[1].size = Bytes(far_gib << 30);
            builder.build().unwrap()
        };
        let found = find("hot-set", &of(40)).unwrap();
        let bytes = |region: &Region| (u64::from(region.pages) * found.page_bytes) >> 30;
        assert_eq!(found.regions.iter().map(bytes).collect::<Vec<_>>(), [24, 48]);
        let error = find("hot-set", &of(39)).unwrap_err().to_string();
        assert!(error.contains("colloid-135ns") && error.contains("72 GiB in all"), "{error}");
        let error = find("hot-set", &ring()).unwrap_err().to_string();
        assert!(error.contains("machine ring") && error.contains("node 0 alone"), "{error}");
    }

    #[test]
    fn imbalance_of_interleaved_hot_pages_is_the_root_of_squared_heat() {
        let machine = ring();
        for name in ["streamcluster", "pca"] {
            let workload = find(name, &machine).unwrap();
            let draw = |seed| {
                let mut pages = Pages::of(&workload, seed);
                pages.interleave(&[1; 4], &machine);
                let shares = pages.demands(&workload, &machine)[0].shares.clone();
                let squares: f64 = pages.heat.iter().map(|heat| heat * heat).sum();
                (imbalance(&shares).powi(2), 4.0 * squares)
            };
            let (found, expected): (Vec<f64>, Vec<f64>) = (0..200).map(draw).unzip();
            let [found, expected] =
                [found, expected].map(|of| (of.iter().sum::<f64>() / 200.0).sqrt());
            assert!((found / expected - 1.0).abs() < 0.1, "{name}: {found} for {expected}");
        }
    }
}
