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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::Sample as Seen;
    use crate::live::testkit::{node, pages, readings, tiers};
    use crate::machine::{Builder, Machine, Route};

    /// Two nodes with CPUs.
    fn two() -> Machine {
        let mut of =
            Builder::tiers("two", 2.0, vec![(100.0, node(1 << 30)), (160.0, node(1 << 30))]);
        (of.cpu_nodes, of.routes) = (vec![0, 1], vec![vec![Route::default(); 2]; 2]);
        of.latency_ns.push(vec![160.0, 100.0]);
        of.build().unwrap()
    }

    #[test]
    fn a_part_is_in_basis_points_and_zero_if_invalid() {
        assert_eq!([0.25, 1.0, 0.000_04, 0.000_06].map(part), [2_500, 10_000, 0, 1]);
        assert_eq!([-0.5, f64::NAN].map(part), [0, 0]);
    }

    #[test]
    fn a_replication_is_a_copy_for_each_node() {
        let page = Page { process: Process(0), number: 7 };
        let action = policy::Action::Replicate { page, on: vec![NodeId(1), NodeId(3)] };
        assert_eq!(acts_of(&action), [1, 3].map(|to| Act::Copy { page: 7, to }));
        assert_eq!(acts_of(&policy::Action::Split { page }), [Act::Split { page: 7 }]);
        let action = policy::Action::Move { page, to: NodeId(2) };
        assert_eq!(acts_of(&action), [Act::Move { page: 7, to: 2 }]);
    }

    #[test]
    fn only_small_pages_that_are_all_on_one_node_are_joined() {
        let machine = tiers(&[1 << 30, 1 << 30]);
        // A huge page, a place on node 1, one with a page elsewhere, and the rest of a place.
        let mut of = pages(&vec![1; 3 * PIECES + 100], 4096);
        of.huge[0] = true;
        of.node[2 * PIECES + 5] = 0;
        assert_eq!(to_join(&readings(&machine, &of)), [Act::Join { page: 512 }]);
    }

    #[test]
    fn requests_count_as_executed_once_their_pages_have_arrived() {
        let machine = tiers(&[1 << 30, 1 << 30]);
        let mut of = pages(&[1, 0, 0, 0, 1], 4096);
        of.copies[2] = 0b10;
        let asked = [
            Act::Move { page: 0, to: 1 },
            Act::Move { page: 1, to: 1 },
            Act::Move { page: 4, to: 1 },
            Act::Copy { page: 2, to: 1 },
            Act::Copy { page: 3, to: 1 },
            Act::Split { page: 0 },
        ];
        let found = executed(&asked, &readings(&machine, &of));
        assert_eq!(found, policy::Executed { moves: 2, replicas: 1 });
    }

    #[test]
    fn lost_counters_shorten_the_counted_time_of_a_round() {
        let (machine, of) = (two(), pages(&[0, 1], 4096));
        let mut seen = readings(&machine, &of);
        seen.own_per_us = vec![vec![Some(2.0), None], vec![Some(0.5), Some(1.0)]];
        seen.samples = [(0, false), (1, true), (1, true)]
            .map(|(page, write)| Seen { page, row: 1, write })
            .to_vec();
        let mut round = Underway::begin(&seen);
        round.take_in(&seen);
        // 10 ms are 10,000 us.
        assert_eq!(round.accesses, [[20_000.0, 0.0], [5_000.0, 10_000.0]]);
        assert!((round.counted_ms - 7.5).abs() < 1e-9, "three of four: {}", round.counted_ms);
        assert_eq!((round.since_ms, round.sampled), (10, [1, 2]));
        round.take_in(&seen);
        assert_eq!((round.since_ms, round.sampled), (20, [2, 4]));
    }

    #[test]
    fn a_round_ends_at_its_period_and_the_next_one_starts() {
        let (machine, of) = (two(), pages(&[0, 1], 4096));
        let mut controller = Carrefour::default();
        assert!((controller.sampling() - 1.0).abs() < 1e-12, "all samples before the first round");
        for tick in 1..=100 {
            controller.tick(&readings(&machine, &of));
            let since = controller.round.as_ref().unwrap().since_ms;
            // The period is a second, and a tick 10 ms.
            assert_eq!(since, if tick == 100 { 0 } else { 10 * tick });
        }
    }
}
