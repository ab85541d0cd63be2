//! Workloads: regions of pages with heat, and who asks for them.
//!
//! A region is what a program allocates and touches in one way. Most of its pages are alike; a few hot ones take a share of
//! its accesses together, and it is they that make an interleaved placement uneven by chance: with heat shares h the
//! imbalance of n nodes is about `sqrt(n sum h^2)`.
//!
//! Here: the types, and the published workloads as far as any machine with several CPU nodes can run them. Where their
//! figures come from stands beside each; what is fitted and what predicted is [`crate::published`]'s.

use crate::machine::Machine;

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
    /// Share of lines that are read.
    pub reads: f64,
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
}

/// Why a workload can't run on a machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsuited {
    /// No workload goes by that name.
    #[error("workload {0}: there is none; nearfar sim list shows which there are")]
    Unknown(String),
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

/// Workloads for machines whose several nodes have CPUs, with what they are.
pub const NAMES: [(&str, &str); 2] = [
    (
        "streamcluster",
        "PARSEC's clustering: all threads read points that the first thread touched first",
    ),
    (
        "pca",
        "principal components (Metis): all threads read a matrix; the master's node asks for 1.4 times as much",
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
    if machine.cpu_nodes.len() < 2 {
        let (workload, machine) = ((*name).to_owned(), machine.name.clone());
        return Err(Unsuited::Machine {
            workload,
            machine,
            wanted: "machines whose CPUs are on several nodes",
        });
    }
    let shared = if *name == "pca" { PCA } else { STREAMCLUSTER };
    Ok(shared.on(machine, name, about))
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
        };
        let worker = |row: usize| Worker {
            row,
            lines: self.lines[usize::from(row > 0)],
            think_ns: self.think_cycles / machine.clock_ghz,
            reads: 1.0,
            uses: vec![1.0],
        };
        Workload {
            name: name.to_owned(),
            about,
            page_bytes: 4096,
            regions: vec![region],
            workers: (0..rows).map(worker).collect(),
            antagonists: Vec::new(),
        }
    }
}
