//! A heap whose interleave weights adapt to memory load: `adapt=` of `NEARFAR_CONF`, and SMDK's adaptive interleaving.
//!
//! There is one kind per node. The load comes from the first available source: the advice page of `nearfar daemon`
//! ([`Advised`]); the files in `/run/tierd` of SMDK's daemon or a compatible one; the load latency measured on each
//! node ([`Chase`]). `policy::interleave` sets the weights. There is no background thread and no signal: a thread that
//! takes the slow path anyhow (empty magazine, large object) checks the clock. A sample takes some tens of
//! microseconds, so one every [`TICK_MS`] costs one or two thousandths of a CPU.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::format;
use std::string::{String, ToString as _};
use std::sync::{Mutex, OnceLock};
use std::vec::Vec;

use nearfar_kernel::affinity;
use nearfar_kernel::chase::Chase;
use nearfar_kernel::fs::{Fs as _, RootFs};
use nearfar_kernel::meminfo;
use nearfar_policy::advice::Page;
use nearfar_policy::interleave::{Interleave, Place, Rule, SATURATED, Seen, next};
use nearfar_topology::{BasisPoints, Nanoseconds, NodeId, Topology};

use crate::kind::{self, DEFAULT};
use crate::machine::{self, KindError};
use crate::page::{self, Advised, Found};
use crate::{choice, haste, sys};

/// Interval between samples of the load.
const TICK_MS: u64 = 20;
/// Interval at which a daemon's files are read, and the number of steps that weights then move at once.
const TICK_FILES_MS: u64 = 500;
const PACE_FILES: u8 = 4;
/// Number of samples per check of the nodes' free memory.
const LOOKS_PER_FREE: u32 = 8;
/// Directory in which SMDK's daemon, or a compatible one, publishes the load of nodes.
const TIERD: &str = "run/tierd";

/// A heap over several nodes.
#[derive(Debug)]
struct Adapting {
    /// Nearest first.
    nodes: Vec<Candidate>,
    chooser: Mutex<Interleave>,
    page: Advised,
    source: Source,
    looks: AtomicU32,
    /// Whether the last sample came from the advice page.
    is_advised: AtomicBool,
}

#[derive(Debug)]
struct Candidate {
    node: NodeId,
    kind: u32,
    idle: Nanoseconds,
    /// Its weight for new allocations.
    weight: AtomicU32,
    /// The share of its memory that was free at the last check, in basis points.
    free: AtomicU32,
}

/// Source of the load where there is no advice page.
#[derive(Debug)]
enum Source {
    Probe(Vec<Chase>),
    Files,
}

static ADAPTING: OnceLock<Adapting> = OnceLock::new();
static LAST_MS: AtomicU64 = AtomicU64::new(0);

/// Makes the heap adaptive, over the nodes of a set or over all. Returns the initial kind.
///
/// # Errors
/// The reason, in words, if the heap can't be made.
pub(crate) fn begin(rule: Rule, only: Option<&str>) -> Result<u32, String> {
    let fs = RootFs::live().map_err(|why| why.to_string())?;
    let topology = machine::read(&fs);
    let nodes = order(&topology, only)?;
    let chases: Option<Vec<_>> = nodes.iter().map(|node| Chase::new(*node)).collect();
    let chases = chases.ok_or("a node of these gives no memory")?;
    let mut candidates = Vec::new();
    for (node, chase) in nodes.iter().zip(&chases) {
        // A full node falls back to others: good placement is not worth a failed allocation.
        let kind =
            machine::create(&format!("prefer:{node}")).map_err(|why: KindError| why.to_string())?;
        candidates.push(Candidate {
            node: *node,
            kind,
            idle: idle(&topology, *node, chase),
            weight: AtomicU32::new(0),
            free: AtomicU32::new(0),
        });
    }
    let bandwidth =
        |node: &Candidate| topology.nodes.get(&node.node)?.access()?.attributes.read_bandwidth;
    let places =
        candidates.iter().map(|node| Place { idle: node.idle, bandwidth: bandwidth(node) });
    let files = has_files(&fs);
    let pace = if files { PACE_FILES } else { 1 };
    let chooser = Mutex::new(Interleave::new(rule, pace, places.collect()));
    let source = if files { Source::Files } else { Source::Probe(chases) };
    let first = candidates.first().map_or(DEFAULT, |node| node.kind);
    let (page, is_advised, looks) = (Advised::new(), AtomicBool::new(false), AtomicU32::new(0));
    let _ = ADAPTING.set(Adapting { nodes: candidates, chooser, page, source, looks, is_advised });
    turn();
    // Allocations before the first sample use this kind, too.
    Ok(ADAPTING.get().and_then(Adapting::best).unwrap_or(first))
}

/// Whether SMDK's daemon, or a compatible one, has written files.
fn has_files(fs: &RootFs) -> bool {
    fs.list(TIERD).ok().flatten().is_some_and(|found| !found.is_empty())
}

/// Whether a daemon publishes the load, by the advice page or by files.
pub(crate) fn has_daemon() -> bool {
    matches!(Advised::new().look(), Found::New(_)) || RootFs::live().is_ok_and(|fs| has_files(&fs))
}

/// Nodes with memory, nearest first: by tier, then by distance from the CPUs that may be used.
fn order(machine: &Topology, only: Option<&str>) -> Result<Vec<NodeId>, String> {
    let cpus = affinity::get().unwrap_or_default();
    let expr = only.unwrap_or("all").parse::<nearfar_topology::NodeExpr>();
    let nodes =
        expr.and_then(|expr| expr.resolve(machine, &cpus)).map_err(|why| why.to_string())?;
    let own = |node: &nearfar_topology::Node| node.cpus.iter().any(|cpu| cpus.contains(cpu));
    let homes = machine.nodes.iter().filter(|(_, node)| own(node)).map(|(id, _)| *id).collect();
    Ok(machine.nearest_first(&nodes, &homes))
}

/// Unloaded latency of a node: from firmware, or else the lowest value measured at program start.
fn idle(machine: &Topology, node: NodeId, chase: &Chase) -> Nanoseconds {
    let stated = || machine.nodes.get(&node)?.access()?.attributes.read_latency;
    let measured = || (0..8).map(|_| chase.measure()).min().unwrap_or_default();
    stated().unwrap_or_else(measured)
}

/// Source of the load an adaptive heap uses: `page`, `files` or `probe`; `None` without an adaptive heap.
pub(crate) fn source() -> Option<&'static str> {
    let adapting = ADAPTING.get()?;
    Some(match adapting.source {
        _ if adapting.is_advised.load(Ordering::Relaxed) => "page",
        Source::Files => "files",
        Source::Probe(_) => "probe",
    })
}

/// Checks the clock and, if a sample is due, updates the kind for the next allocations.
pub(crate) fn turn() {
    let Some(adapting) = ADAPTING.get() else { return };
    let is_slow =
        matches!(adapting.source, Source::Files) && !adapting.is_advised.load(Ordering::Relaxed);
    let every = if is_slow { TICK_FILES_MS } else { TICK_MS };
    let (now, last) = (haste::now_ms(), LAST_MS.load(Ordering::Relaxed));
    let is_time = now >= last + every;
    let (order, otherwise) = (Ordering::Relaxed, Ordering::Relaxed);
    if is_time && LAST_MS.compare_exchange(last, now, order, otherwise).is_ok() {
        sys::uncancelled(|| adapting.tick());
    }
    adapting.choose();
}

impl Adapting {
    fn tick(&self) {
        let advised = match self.page.look() {
            Found::Same => return,
            Found::New(page) => self.advised(&page),
            Found::Nothing => None,
        };
        self.is_advised.store(advised.is_some(), Ordering::Relaxed);
        let seen = advised.unwrap_or_else(|| self.ask());
        // In a child of fork the lock may be held for ever: then the weights stay as they are.
        let Ok(mut chooser) = self.chooser.try_lock() else { return };
        chooser.step(&seen);
        for (node, weight) in self.nodes.iter().zip(chooser.weights()) {
            node.weight.store(u32::from(*weight), Ordering::Relaxed);
        }
    }

    /// Load of the nodes from the advice page, if it covers all of them.
    fn advised(&self, page: &Page) -> Option<Vec<Seen>> {
        let seen = |node: &Candidate| {
            let advised = page::seen(page.of(node.node)?, node.idle);
            Some(Seen { placed: node.placed(), ..advised })
        };
        self.nodes.iter().map(seen).collect()
    }

    fn ask(&self) -> Vec<Seen> {
        let is_due = self.looks.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOKS_PER_FREE);
        match &self.source {
            Source::Probe(chases) => {
                let look = |(node, chase): (&Candidate, &Chase)| Seen {
                    load: chase.measure(),
                    free: if is_due { node.ask_free() } else { node.known_free() },
                    placed: node.placed(),
                };
                self.nodes.iter().zip(chases).map(look).collect()
            }
            Source::Files => self.nodes.iter().map(Candidate::read_files).collect(),
        }
    }

    fn choose(&self) {
        if let Some(kind) = self.best() {
            choice::follow(kind);
        }
    }

    /// The kind for new allocations.
    fn best(&self) -> Option<u32> {
        let mut weights = [0_u8; 64];
        let mut bytes = [0_u64; 64];
        let count = self.nodes.len().min(weights.len());
        for (index, node) in self.nodes.iter().enumerate().take(count) {
            weights[index] = u8::try_from(node.weight.load(Ordering::Relaxed)).unwrap_or(0);
            bytes[index] = node.placed();
        }
        self.nodes.get(next(&weights[..count], &bytes[..count])).map(|node| node.kind)
    }
}

impl Candidate {
    /// Bytes that the program has on the node.
    fn placed(&self) -> u64 {
        kind::find(self.kind).map_or(0, |kind| kind.counts.all_out() as u64)
    }

    fn ask_free(&self) -> BasisPoints {
        let found = free(self.node);
        self.free.store(found.0, Ordering::Relaxed);
        found
    }

    fn known_free(&self) -> BasisPoints {
        BasisPoints(self.free.load(Ordering::Relaxed))
    }

    /// Load of the node from a daemon's files.
    fn read_files(&self) -> Seen {
        let says = |file: &str| {
            let path = format!("/{TIERD}/node{}/{file}", self.node);
            std::fs::read_to_string(path).map_or(true, |text| text.trim() != "false")
        };
        let busy = Nanoseconds(self.idle.0.saturating_mul(SATURATED) / 100);
        Seen {
            load: if says("idle_state_bandwidth") { self.idle } else { busy },
            free: BasisPoints(if says("idle_state_capacity") { 10_000 } else { 0 }),
            placed: self.placed(),
        }
    }
}

/// The share of a node's memory that is available to programs.
fn free(node: NodeId) -> BasisPoints {
    let found = RootFs::live().ok().and_then(|fs| meminfo::of_node(&fs, node));
    found.map_or(BasisPoints(10_000), |found| found.room())
}
