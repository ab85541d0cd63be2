//! Carrefour, the policy's ([`nearfar_policy::traffic::carrefour`]), on the machine that is not there.
//!
//! Once a round (a second, unless the policy says otherwise) counters and samples become a [`Round`] and a [`Table`], and
//! what the policy decides becomes acts. Where pages are huge, its version for huge pages decides. Pages that have copies are
//! not moved, as published, but get more of them where they are seen to be read. It is told at its next round what was done of
//! what it wanted.
//!
//! Stock kernels can't have a page on several nodes, so there are two: one that relocates and interleaves, and the published
//! system, which also replicates ([`Replicas`]).

use nearfar_policy::traffic::carrefour as policy;
use nearfar_policy::traffic::{Memory, Page, Process, Reads, Round, Sample, Table};
use nearfar_topology::{BasisPoints, Bytes, Nanoseconds, NodeId};

use super::{Act, Controller, Readings};
use crate::pages::PIECES;

/// Whether pages may be on several nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replicas {
    /// As on stock kernels.
    None,
    /// As published, with a kernel that can do it.
    Made,
}

/// The controller.
#[derive(Debug)]
pub struct Carrefour {
    replicas: Replicas,
    round: Option<Underway>,
}

/// A round under way, and who decides on it.
#[derive(Debug)]
struct Underway {
    policy: policy::Carrefour,
    table: Table,
    /// Time since it began, and the time that counters counted.
    since_ms: u64,
    counted_ms: f64,
    period_ms: u64,
    /// Accesses by node that asked and node that answered.
    accesses: Vec<Vec<f64>>,
    /// Samples that read and that wrote.
    sampled: [u64; 2],
    /// What was asked for in the last round.
    asked: Vec<Act>,
}

impl Carrefour {
    /// One that has seen nothing.
    #[must_use]
    pub const fn new(replicas: Replicas) -> Self {
        Self { replicas, round: None }
    }

    fn begin(&self, readings: &Readings<'_>) -> Underway {
        let huge = (0..readings.on().len()).step_by(PIECES).any(|page| readings.is_huge(page));
        let mut config =
            if huge { policy::Config::with_huge_pages() } else { policy::Config::default() };
        if self.replicas == Replicas::None {
            // More than all lines are read.
            config.reads_of_lines = BasisPoints(10_001);
        }
        let period_ms = config.period.0 / 1_000_000;
        let (policy, nodes) = (policy::Carrefour::new(config), readings.machine.nodes.len());
        let table = Table::new(policy.pages_max(), nodes);
        Underway {
            policy,
            table,
            since_ms: 0,
            counted_ms: 0.0,
            period_ms,
            accesses: vec![vec![0.0; nodes]; nodes],
            sampled: [0; 2],
            asked: Vec::new(),
        }
    }
}

impl Controller for Carrefour {
    fn tick(&mut self, readings: &Readings<'_>) -> Vec<Act> {
        let mut round = self.round.take().unwrap_or_else(|| self.begin(readings));
        round.take_in(readings);
        let due = round.since_ms >= round.period_ms;
        let acts = if due { round.decide(readings) } else { Vec::new() };
        self.round = Some(round);
        acts
    }

    fn sampling(&self) -> f64 {
        match self.round.as_ref().map(|round| round.policy.sampling()) {
            Some(policy::Sampling::Sparse) => 0.25,
            Some(policy::Sampling::Dense) | None => 1.0,
        }
    }
}

impl Underway {
    fn take_in(&mut self, readings: &Readings<'_>) {
        self.since_ms += u64::from(readings.tick_ms);
        let (mut known, mut all) = (0.0, 0.0);
        for (row, per_us) in readings.own_per_us.iter().enumerate() {
            let from = readings.machine.cpu_nodes[row];
            for (sum, per_us) in self.accesses[from].iter_mut().zip(per_us) {
                all += 1.0;
                if let Some(per_us) = per_us {
                    known += 1.0;
                    *sum += per_us * f64::from(readings.tick_ms) * 1000.0;
                }
            }
        }
        self.counted_ms += f64::from(readings.tick_ms) * known / f64::max(all, 1.0);
        for sample in &readings.samples {
            self.sampled[usize::from(sample.write)] += 1;
            let page = sample.page as usize;
            self.table.add(Sample {
                page: Page { process: Process(0), number: u64::from(sample.page) },
                node: NodeId(readings.on()[page]),
                huge: readings.is_huge(page),
                cpu: readings.machine.cpu_nodes[usize::from(sample.row)],
                write: sample.write,
            });
        }
    }

    fn decide(&mut self, readings: &Readings<'_>) -> Vec<Act> {
        self.policy.executed(executed(&self.asked, readings));
        let nodes = readings.machine.nodes.iter().zip(&readings.free).enumerate();
        let memory = |(node, (of, free)): (usize, (&crate::machine::Node, &u64))| Memory {
            node: NodeId(u16::try_from(node).unwrap_or_default()),
            total: of.size,
            free: Bytes(*free),
        };
        let accesses = self.accesses.iter().map(|row| row.iter().map(|sum| whole(*sum)).collect());
        let [reads, writes] = self.sampled;
        let round = Round {
            elapsed: Nanoseconds(self.since_ms * 1_000_000),
            coverage: BasisPoints(part(self.counted_ms / self.since_ms.max(1) as f64)),
            nodes: nodes.map(memory).collect(),
            accesses: accesses.collect(),
            reads: Reads::Lines { reads, writes },
            threads: Vec::new(),
        };
        let lost = policy::Translation {
            walks: BasisPoints(part(readings.walks)),
            faults: BasisPoints(0),
        };
        let decision = self.policy.step_with(&round, &self.table, lost);
        let stays = |act: &Act| matches!(act, Act::Move { page, .. } if readings.copies(*page as usize) != 0);
        let acts = decision.actions.iter().flat_map(|(action, _)| acts_of(action));
        let mut acts: Vec<Act> = acts.filter(|act| !stays(act)).collect();
        if decision.join {
            acts.extend(to_join(readings));
        }
        self.period_ms = decision.period.0 / 1_000_000;
        (self.since_ms, self.counted_ms, self.sampled) = (0, 0.0, [0; 2]);
        self.accesses.iter_mut().for_each(|row| row.fill(0.0));
        self.table.clear(self.policy.pages_max());
        self.asked.clone_from(&acts);
        acts
    }
}

/// What was done of what was asked for.
fn executed(asked: &[Act], readings: &Readings<'_>) -> policy::Executed {
    let (mut moves, mut replicas) = (0, 0);
    for act in asked {
        match *act {
            Act::Move { page, to } => moves += u64::from(readings.on()[page as usize] == to),
            Act::Copy { page, to } => replicas += readings.copies(page as usize) >> to & 1,
            Act::Split { .. } | Act::Join { .. } => {}
        }
    }
    policy::Executed { moves, replicas }
}

fn acts_of(action: &policy::Action) -> Vec<Act> {
    let number = |page: Page| u32::try_from(page.number).unwrap_or(u32::MAX);
    match action {
        policy::Action::Move { page, to } => vec![Act::Move { page: number(*page), to: to.0 }],
        policy::Action::Replicate { page, on } => {
            on.iter().map(|node| Act::Copy { page: number(*page), to: node.0 }).collect()
        }
        policy::Action::Split { page } => vec![Act::Split { page: number(*page) }],
    }
}

/// Places of huge pages whose small pages are all on one node: joining these moves nothing elsewhere.
fn to_join(readings: &Readings<'_>) -> Vec<Act> {
    let on = readings.on();
    let whole = (0..on.len() / PIECES).map(|at| at * PIECES).filter(|first| {
        !readings.is_huge(*first)
            && on[*first..*first + PIECES].iter().all(|node| *node == on[*first])
    });
    whole.map(|page| Act::Join { page: u32::try_from(page).unwrap_or(u32::MAX) }).collect()
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
const fn whole(count: f64) -> u64 {
    count.round() as u64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
const fn part(share: f64) -> u32 {
    (share * 10_000.0).round() as u32
}
