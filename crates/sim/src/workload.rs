//! Workloads: regions of pages with heat, and who asks for them.
//!
//! A region is what a program allocates and touches in one way. Most of its pages are alike; a few hot ones take a share of
//! its accesses together, and it is they that make an interleaved placement uneven by chance: with heat shares h the
//! imbalance of n nodes is about `sqrt(n sum h^2)`.
//!
//! Here: the types, and the published workloads as far as any machine with several CPU nodes can run them. Where their
//! figures come from stands beside each; what is fitted and what predicted is [`crate::published`]'s.

use crate::machine::Machine;
use crate::pages::PIECES;
use crate::published::colloid;

/// Pages that are used in one way.
#[derive(Clone, Debug, PartialEq)]
pub struct Region {
    /// What it holds.
    pub name: &'static str,
    /// How many pages.
    pub pages: u32,
    /// How many of them are hot.
    pub hot_pages: u32,
    /// Share of the region's accesses that goes to the hot ones, evenly.
    pub hot_share: f64,
    /// Which share of its accesses each CPU row's first touch brings to its node.
    pub touched_by: Vec<f64>,
    /// Share of its lines that are read, the others being written.
    pub reads: f64,
}

/// The CPUs of one node at work.
#[derive(Clone, Debug, PartialEq)]
pub struct Worker {
    /// Their row ([`Machine::row`]).
    pub row: usize,
    /// Lines under way, N.
    pub lines: f64,
    /// Time between a line's arrival and the next request, Z.
    pub think_ns: f64,
    /// Share of accesses by region; sums to 1.
    pub uses: Vec<f64>,
}

/// Someone else's traffic, which no policy here moves.
#[derive(Clone, Debug, PartialEq)]
pub struct Antagonist {
    /// The row of its CPUs.
    pub row: usize,
    /// The node whose memory it uses.
    pub node: usize,
    /// Lines under way.
    pub lines: f64,
}

/// A workload on a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// The name it goes by.
    pub name: String,
    /// What it is, in a sentence.
    pub about: &'static str,
    /// Bytes of a page: what moves as one.
    pub page_bytes: u64,
    /// Its memory.
    pub regions: Vec<Region>,
    /// Who works on it.
    pub workers: Vec<Worker>,
    /// Who else is there.
    pub antagonists: Vec<Antagonist>,
    /// Whether it has huge pages, of [`PIECES`] pages each.
    pub huge: bool,
    /// Regions take turns in memory, so many pages each; 0 if they come one after the other.
    pub stripe: u32,
    /// What translation costs a line more on a small page than on a huge one.
    pub walk_ns: f64,
}

impl Workload {
    /// The same with each antagonist having so many lines under way.
    #[must_use]
    pub fn contended(mut self, lines: f64) -> Self {
        self.antagonists.iter_mut().for_each(|antagonist| antagonist.lines = lines);
        self
    }
}

/// Why a workload can't run on a machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsuited {
    /// No workload goes by that name.
    #[error("workload {0}: there is none; nearfar sim list shows which there are")]
    Unknown(String),
    /// The policy is for machines of another kind.
    #[error("policy {policy} on machine {machine}: it is for {wanted}")]
    Policy {
        /// The policy.
        policy: &'static str,
        /// The machine.
        machine: String,
        /// What it takes.
        wanted: &'static str,
    },
    /// The machine is of another kind.
    #[error("workload {workload} on machine {machine}: it is for {wanted}")]
    Machine {
        /// The workload.
        workload: String,
        /// The machine.
        machine: String,
        /// What it takes.
        wanted: &'static str,
    },
}

/// Workloads, with what they are: those of the published tables, three more for machines with CPUs on several nodes, one for
/// memory of two tiers.
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

/// A workload by its name, on `machine`.
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

/// A region that all read: what the two published tables are about.
struct Shared {
    /// Share of accesses to what the first thread touched; the others' nodes have the rest evenly.
    first: f64,
    hot_pages: u32,
    hot_share: f64,
    /// Lines under way of the first thread's node, and of every other.
    lines: [f64; 2],
    /// Cycles between a line's arrival and the next request.
    think_cycles: f64,
}

/// 97/1/1/1 is published (Carrefour's slides). Lines and think time are fitted to the two published latencies and the
/// gain; hot pages (28 take a fifth) to the 7 % that interleaved controllers differ by.
const STREAMCLUSTER: Shared =
    Shared { first: 0.97, hot_pages: 28, hot_share: 0.2, lines: [12.9, 12.9], think_cycles: 194.0 };

/// 83 % is what gives the published imbalance of 154 %, the first node's 1.4 times what gives its 33 % of local accesses.
/// Lines are fitted to the latency under first touch, hot pages (21 take a tenth) to the interleaved 4 %.
const PCA: Shared =
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
            name: "shared",
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
            about,
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

/// A part of memory of its own for each row of CPUs, with streamcluster's lines and think time: nobody published figures of it.
fn own_parts(machine: &Machine, (name, about): (&str, &'static str)) -> Workload {
    let rows = machine.cpu_nodes.len();
    let only = |row: usize| (0..rows).map(|at| if at == row { 1.0 } else { 0.0 }).collect();
    let region = |_| Region {
        name: "part",
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
        about,
        page_bytes: 4096,
        regions: (0..rows).map(region).collect(),
        workers: (0..rows).map(worker).collect(),
        antagonists: Vec::new(),
        huge: false,
        stripe: 0,
        walk_ns: 0.0,
    }
}

/// The same on huge pages, of which each row has some pieces and touches its own first: they are where the first piece is.
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

/// A huge page that takes two fifths of all accesses, and others that all use.
fn hot_page(machine: &Machine, named: (&str, &'static str)) -> Workload {
    let mut workload = own_parts(machine, named);
    #[expect(clippy::cast_precision_loss, reason = "a small count")]
    let even = vec![1.0 / machine.cpu_nodes.len() as f64; machine.cpu_nodes.len()];
    let [hot, others] = [("hot", 512), ("others", 4 * OWN_PAGES)];
    workload.regions = [hot, others]
        .map(|(name, pages)| Region {
            name,
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
/// Assumed, not fitted: what a line costs more where translation misses.
const WALK_NS: f64 = 4.0;

/// Colloid's GUPS: which parameters are fitted, and to what, is said in [`crate::published::colloid`].
fn hot_set(name: &str, about: &'static str) -> Workload {
    const PAGE: u64 = 16 << 20;
    let region = |name, gib: u64| Region {
        name,
        pages: u32::try_from((gib << 30) / PAGE).unwrap_or(u32::MAX),
        hot_pages: 0,
        hot_share: 0.0,
        touched_by: vec![1.0],
        reads: 1.0,
    };
    let worker = Worker { row: 0, lines: colloid::LINES, think_ns: 0.0, uses: vec![0.9, 0.1] };
    Workload {
        name: name.to_owned(),
        about,
        page_bytes: PAGE,
        regions: vec![region("hot", 24), region("cold", 48)],
        workers: vec![worker],
        antagonists: vec![Antagonist { row: 0, node: 0, lines: 0.0 }],
        huge: false,
        stripe: 0,
        walk_ns: 0.0,
    }
}
