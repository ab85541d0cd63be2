//! The balancing loop that ships ([`nearfar_control::balancing`]) on a simulated machine.
//!
//! # Approach
//! [`Balancing`] is a simulator's controller around control's loop. It implements the two ports that the loop needs: a sensor
//! whose readings are the simulator's of the last interval (own lines by CPU node and memory node, controllers' lines, loaded
//! latencies, sampled pages), and a page mover that turns moves into the simulator's acts at the machine's migration rate. The
//! model of the machine is in `model.rs`.
//!
//! # Limits
//! The loop knows 4 KiB and 2 MiB pages. Pages of the simulator that are larger are shown to it as huge pages each; as they
//! move as one, of every `k` huge pages that it asks for, one page of `k` huge ones moves and the others are reported as not
//! moved. Replicas and joined huge pages are not in the loop, since stock kernels have neither ([`super::carrefour`] has both).

use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::rc::Rc;

use nearfar_control::balancing::{Decided, Law, Layout, Loop};
use nearfar_policy::ports::{
    Cost, Counts, Grain, Move, Nature, PageMover, Placed, Reading, Scope, Sees, Sensor, Targets,
    Unusable,
};
use nearfar_policy::traffic::balance::{Balance, Config, Verdict};
use nearfar_policy::traffic::carrefour::{self, Sampling};
use nearfar_policy::traffic::model::Unmodelled;
use nearfar_policy::traffic::{Memory, PAGE, PIECES, Page, Process, Reads, Sample};
use nearfar_topology::{BasisPoints, Bytes, BytesPerSecond, Nanoseconds, NodeId};

use super::number::{real, whole};
use super::{Act, Controller, Counters, Failed, Readings, model};

/// The simulated workload is one process; antagonists are others.
const WORKLOAD: Process = Process(1);
/// Bytes of a huge page.
const HUGE: u64 = PAGE * PIECES;

/// Which policy decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decides {
    /// Equal marginal costs.
    Balance,
    /// Carrefour, without replicas.
    Carrefour,
}

impl Decides {
    const fn name(self) -> &'static str {
        match self {
            Self::Balance => "balanced",
            Self::Carrefour => "carrefour",
        }
    }
}

/// The loop as a controller of a simulated machine.
#[derive(Debug)]
pub struct Balancing {
    decides: Decides,
    at_work: Option<AtWork>,
    failed: Option<Failed>,
}

#[derive(Debug)]
struct AtWork {
    balancing: Loop<Eyes>,
    seen: Rc<RefCell<Reading>>,
    mover: Mover,
    due: Nanoseconds,
}

impl Balancing {
    /// A controller that has seen nothing.
    #[must_use]
    pub const fn new(decides: Decides) -> Self {
        Self { decides, at_work: None, failed: None }
    }
}

impl Controller for Balancing {
    fn tick(&mut self, readings: &Readings<'_>) -> Vec<Act> {
        let policy = self.decides.name();
        let begun = self.at_work.take().map_or_else(|| AtWork::begin(self.decides, readings), Ok);
        let mut work = match begun {
            Ok(work) => work,
            Err(reason) => {
                self.failed = Some(Failed::Unmodelled { policy, reason });
                return Vec::new();
            }
        };
        let acts = work.tick(readings);
        if is_mismatch(work.balancing.decided()) {
            self.failed = Some(Failed::Mismatch { policy });
        }
        self.at_work = Some(work);
        acts
    }

    fn failed(&self) -> Option<Failed> {
        self.failed.clone()
    }

    fn sampling(&self) -> f64 {
        match self.at_work.as_ref().map(|work| work.balancing.sampling()) {
            Some(Sampling::Sparse) => 0.25,
            Some(Sampling::Dense) | None => 1.0,
        }
    }
}

impl AtWork {
    fn begin(decides: Decides, readings: &Readings<'_>) -> Result<Self, Unmodelled> {
        let machine = readings.machine;
        let model::Model { machine: modelled, controllers, queues } = model::of(machine)?;
        // A machine has at most 64 nodes.
        let nodes = 0..u16::try_from(machine.nodes.len()).unwrap_or(u16::MAX);
        let layout = Layout {
            nodes: nodes.map(NodeId).collect(),
            cpus: machine.cpu_nodes.clone(),
            mems: (0..machine.nodes.len()).collect(),
            controllers: controllers.iter().map(|(queue, _)| *queue).collect(),
            queues,
        };
        let law = match decides {
            Decides::Balance => {
                let rate = BytesPerSecond(whole(readings.rate_gbps * 1e9));
                Law::balance(Balance::new(Config { rate, ..Config::default() }, modelled))
            }
            Decides::Carrefour => Law::carrefour(&carrefour::Config::default()),
        };
        let seen = Rc::new(RefCell::new(Reading::default()));
        let counted = controllers.iter().map(|(_, is_one)| *is_one).collect();
        let eyes = Eyes { seen: Rc::clone(&seen), traffic: readings.counters != Counters::None };
        Ok(Self {
            balancing: Loop::new(layout, law, vec![eyes]),
            seen,
            mover: Mover::new(readings, counted),
            due: Nanoseconds(0),
        })
    }

    fn tick(&mut self, readings: &Readings<'_>) -> Vec<Act> {
        let now = Nanoseconds(readings.now_ms * 1_000_000);
        self.mover.see(readings);
        let reading = self.mover.reading(readings);
        append(&mut self.seen.borrow_mut(), reading);
        if now >= self.due {
            let Ok(wait) = self.balancing.tick(now, &mut self.mover);
            self.due = Nanoseconds(now.0.saturating_add(wait.0));
        }
        std::mem::take(&mut self.mover.acts)
    }
}

/// Whether the last decision found readings of other dimensions than those of its model.
fn is_mismatch(decided: Option<&Decided>) -> bool {
    matches!(decided, Some(Decided::Balance { decision, .. }) if decision.verdict == Verdict::Mismatch)
}

/// Appends a reading; a latency that was lost is the one before.
fn append(seen: &mut Reading, mut later: Reading) {
    if seen.elapsed.0 == 0 {
        *seen = later;
        return;
    }
    for (later, before) in later.latency.iter_mut().zip(&seen.latency) {
        later.iter_mut().zip(before).for_each(|(now, before)| *now = now.or(*before));
    }
    seen.go_on(later);
}

/// The sensor: hands over the readings of the simulator's sensors since the last one.
#[derive(Debug)]
struct Eyes {
    seen: Rc<RefCell<Reading>>,
    traffic: bool,
}

impl Sensor for Eyes {
    fn name(&self) -> &'static str {
        "simulator"
    }

    fn sees(&self) -> Sees {
        Sees {
            addresses: Grain::Pages,
            writes: true,
            cpu: true,
            traffic: self.traffic,
            latency: true,
            scope: Scope::Processes,
            nature: Nature::Simulated,
        }
    }

    fn check(&mut self) -> Result<(), Unusable> {
        Ok(())
    }

    fn start(&mut self, _: &Targets, _: Nanoseconds) -> Result<(), Unusable> {
        self.seen.take();
        Ok(())
    }

    fn read(&mut self, _: Nanoseconds) -> Result<Reading, Unusable> {
        Ok(self.seen.take())
    }

    fn cost(&self) -> Cost {
        Cost::default()
    }

    fn stop(&mut self) -> Result<(), Unusable> {
        Ok(())
    }
}

/// The page mover.
#[derive(Debug)]
struct Mover {
    /// Bytes of a page of the loop, and such pages in one of the simulator's.
    unit: u64,
    pieces: u64,
    rate: f64,
    /// Whether a node has one counter for all its lines.
    counted: Vec<bool>,
    memory: Vec<Memory>,
    on: Vec<u16>,
    huge: Vec<bool>,
    waiting: VecDeque<Move>,
    /// Handed over to the simulator, oldest first, and how many acts it still has.
    handed: VecDeque<(Move, u32)>,
    undone: usize,
    refused: Vec<Move>,
    acts: Vec<Act>,
    /// Asked for of pages that move as one, since the last that was handed over.
    skipped: u64,
    /// Bytes that the rate allows by now, and when that was.
    allowed: f64,
    at: Nanoseconds,
    /// Draws the piece of a page that a sample is of.
    drawn: u64,
}

impl Mover {
    fn new(readings: &Readings<'_>, counted: Vec<bool>) -> Self {
        let bytes = readings.page_bytes();
        let unit = if bytes.is_multiple_of(HUGE) { HUGE } else { PAGE };
        Self {
            unit,
            pieces: (bytes / unit).max(1),
            rate: readings.rate_gbps,
            counted,
            memory: Vec::new(),
            on: Vec::new(),
            huge: Vec::new(),
            waiting: VecDeque::new(),
            handed: VecDeque::new(),
            undone: 0,
            refused: Vec::new(),
            acts: Vec::new(),
            skipped: 0,
            allowed: 0.0,
            at: Nanoseconds(0),
            drawn: 0,
        }
    }

    /// Takes over the placement of pages and the free memory.
    fn see(&mut self, readings: &Readings<'_>) {
        self.on.clear();
        self.on.extend_from_slice(readings.on());
        self.huge = (0..self.on.len()).map(|page| readings.is_huge(page)).collect();
        self.undone = readings.waiting;
        let nodes = (0..).zip(readings.machine.nodes.iter().zip(&readings.free));
        let memory = |(id, (node, free)): (u16, (&crate::machine::Node, &u64))| Memory {
            node: NodeId(id),
            total: node.size,
            free: Bytes(*free),
        };
        self.memory = nodes.map(memory).collect();
    }

    /// The loop's page of one of the simulator's, and whether it is a huge one.
    fn page(&self, page: u32, piece: u64) -> (Page, bool) {
        let number = u64::from(page) * self.pieces + piece;
        let (number, huge) = if self.unit == HUGE {
            (number * PIECES, true)
        } else {
            (number, self.huge.get(page as usize).copied().unwrap_or(false))
        };
        (Page { process: WORKLOAD, number }, huge)
    }

    /// The simulator's page.
    fn index(&self, page: Page) -> Option<u32> {
        let units = if self.unit == HUGE { page.number / PIECES } else { page.number };
        let index = u32::try_from(units / self.pieces).ok()?;
        ((index as usize) < self.on.len()).then_some(index)
    }

    /// The readings of the simulator's sensors in a tick, in the loop's terms.
    fn reading(&mut self, readings: &Readings<'_>) -> Reading {
        let (nodes, ms) = (readings.machine.nodes.len(), f64::from(readings.tick_ms));
        let lines = |per_us: f64| whole(per_us * ms * 1000.0);
        let mut accesses = vec![vec![0; nodes]; nodes];
        let mut latency = vec![vec![None; nodes]; nodes];
        let (mut known, mut all) = (0.0, 0.0);
        for (row, from) in readings.machine.cpu_nodes.iter().enumerate() {
            let own = readings.own_per_us.get(row).map(Vec::as_slice).unwrap_or_default();
            for (cell, per_us) in accesses[*from].iter_mut().zip(own) {
                *cell = lines(per_us.unwrap_or(0.0));
                (known, all) = (known + f64::from(u8::from(per_us.is_some())), all + 1.0);
            }
            let loaded = readings.loaded_ns.get(row).map(Vec::as_slice).unwrap_or_default();
            for (cell, ns) in latency[*from].iter_mut().zip(loaded) {
                *cell = ns.map(|ns| Nanoseconds(whole(ns)));
            }
        }
        let share = if all > 0.0 { known / all } else { 0.0 };
        let counted = readings.controllers_per_us.iter().zip(&self.counted);
        let served =
            counted.map(|(per_us, is_one)| per_us.filter(|_| *is_one).map(lines)).collect();
        let samples: Vec<Sample> =
            readings.samples.iter().map(|sample| self.sample(sample, readings)).collect();
        let writes = samples.iter().filter(|sample| sample.write).count() as u64;
        let elapsed = Nanoseconds(u64::from(readings.tick_ms) * 1_000_000);
        Reading {
            elapsed,
            coverage: BasisPoints(10_000),
            accesses: (share > 0.0).then(|| {
                // Lost readings are taken to be like the others.
                let whole_of = |lines: &u64| whole(real(*lines) / share);
                accesses.iter().map(|row| row.iter().map(whole_of).collect()).collect()
            }),
            served,
            reads: Reads::Lines { reads: samples.len() as u64 - writes, writes },
            latency,
            counts: Counts { seen: samples.len() as u64, ..Counts::default() },
            samples,
            ..Reading::default()
        }
    }

    fn sample(&mut self, sample: &super::Sample, readings: &Readings<'_>) -> Sample {
        // A Weyl sequence visits all pieces evenly.
        self.drawn = self.drawn.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let piece = (self.drawn >> 32) % self.pieces;
        let (page, huge) = self.page(sample.page, piece);
        Sample {
            page,
            node: NodeId(self.on[sample.page as usize]),
            huge,
            cpu: readings.machine.cpu_nodes[usize::from(sample.row)],
            write: sample.write,
        }
    }

    /// Hands over moves as the rate allows.
    fn hand_over(&mut self, now: Nanoseconds) {
        let elapsed = now.0.saturating_sub(std::mem::replace(&mut self.at, now).0);
        let a_second = self.rate * 1e9;
        self.allowed = (self.allowed + a_second * real(elapsed) / 1e9).min(a_second);
        while let Some(asked) = self.waiting.front().copied() {
            let Some(index) = self.index(asked.page) else {
                self.waiting.pop_front();
                continue;
            };
            let bytes = real(if asked.huge { HUGE } else { self.unit });
            if self.allowed < bytes {
                break;
            }
            self.allowed -= bytes;
            self.waiting.pop_front();
            let is_there = asked.from.is_none_or(|from| from.0 == self.on[index as usize]);
            self.skipped += 1;
            if is_there && self.skipped.is_multiple_of(self.pieces) {
                self.acts.push(Act::Move { page: index, to: asked.to.0 });
                self.handed.push_back((asked, index));
            } else {
                self.refused.push(asked);
            }
        }
    }
}

impl PageMover for Mover {
    type Error = Infallible;

    fn targets(&mut self) -> Result<Targets, Infallible> {
        Ok(Targets::Processes([WORKLOAD].into()))
    }

    fn memory(&mut self) -> Result<Vec<Memory>, Infallible> {
        Ok(self.memory.clone())
    }

    fn ask(&mut self, moves: Vec<Move>) {
        self.waiting.extend(moves);
    }

    fn split(&mut self, page: Page) -> bool {
        let splits =
            self.index(page).filter(|index| self.unit == PAGE && self.huge[*index as usize]);
        self.acts.extend(splits.map(|page| Act::Split { page }));
        splits.is_some()
    }

    fn work(&mut self, now: Nanoseconds) -> Vec<Placed> {
        let done = self.handed.len().saturating_sub(self.undone);
        let placed = |(asked, index): (Move, u32), on: &[u16]| {
            let on = NodeId(on[index as usize]);
            Placed { asked, on: Some(on), moved: on == asked.to }
        };
        let mut all: Vec<Placed> =
            self.handed.drain(..done).map(|one| placed(one, &self.on)).collect();
        let refused = std::mem::take(&mut self.refused);
        let index = |asked: Move| Some((asked, self.index(asked.page)?));
        all.extend(refused.into_iter().filter_map(index).map(|(asked, index)| {
            let on = NodeId(self.on[index as usize]);
            Placed { asked, on: Some(on), moved: false }
        }));
        self.hand_over(now);
        all
    }

    fn next(&self) -> Option<Nanoseconds> {
        let waits = !self.waiting.is_empty() || !self.handed.is_empty();
        waits.then_some(Nanoseconds(1))
    }

    fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn forget(&mut self) {
        self.waiting.clear();
    }

    fn leaves_alone(&self, _: Process) -> bool {
        false
    }
}

#[cfg(test)]
mod tests;
