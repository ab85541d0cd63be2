//! Carrefour as published, with replication, on a simulated machine.
//!
//! The published system has a kernel of its own that replicates read-only pages on several nodes, and joins huge pages
//! again. Stock kernels do neither; Carrefour as it ships runs in [`super::balancing`]. This one is for comparison.
//!
//! Once per round (a second, unless the policy sets another period) counters and samples become a [`Round`] and a
//! [`Table`], and the policy's decision becomes acts. With huge pages, the policy's configuration for them applies.
//! Replicated pages are not moved, but get more replicas where they are read. At its next round the policy learns
//! which acts were carried out.

use nearfar_policy::traffic::carrefour as policy;
use nearfar_policy::traffic::{Memory, Page, Process, Reads, Round, Sample, Table};
use nearfar_topology::{BasisPoints, Bytes, Nanoseconds, NodeId};

use super::number::whole;
use super::{Act, Controller, Readings};
use crate::pages::PIECES;

/// The controller.
#[derive(Debug, Default)]
pub struct Carrefour {
    round: Option<Underway>,
}

/// The present round, with its policy.
#[derive(Debug)]
struct Underway {
    policy: policy::Carrefour,
    table: Table,
    /// Time since it began, and the time in which counters counted.
    since_ms: u64,
    counted_ms: f64,
    period_ms: u64,
    /// Accesses by requesting node and serving node.
    accesses: Vec<Vec<f64>>,
    /// Sampled reads and writes.
    sampled: [u64; 2],
    /// Acts requested in the last round.
    asked: Vec<Act>,
}

impl Controller for Carrefour {
    fn tick(&mut self, readings: &Readings<'_>) -> Vec<Act> {
        let mut round = self.round.take().unwrap_or_else(|| Underway::begin(readings));
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
    fn begin(readings: &Readings<'_>) -> Self {
        let huge = (0..readings.on().len()).step_by(PIECES).any(|page| readings.is_huge(page));
        let config =
            if huge { policy::Config::with_huge_pages() } else { policy::Config::default() };
        let period_ms = config.period.0 / 1_000_000;
        let (policy, nodes) = (policy::Carrefour::new(config), readings.machine.nodes.len());
        let table = Table::new(policy.pages_max(), nodes);
        Self {
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

/// The requested acts that were carried out.
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

/// Places of huge pages with all small pages on one node: joining these migrates nothing.
fn to_join(readings: &Readings<'_>) -> Vec<Act> {
    let on = readings.on();
    let whole = (0..on.len() / PIECES).map(|at| at * PIECES).filter(|first| {
        !readings.is_huge(*first)
            && on[*first..*first + PIECES].iter().all(|node| *node == on[*first])
    });
    whole.map(|page| Act::Join { page: u32::try_from(page).unwrap_or(u32::MAX) }).collect()
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
const fn part(share: f64) -> u32 {
    (share * 10_000.0).round() as u32
}
