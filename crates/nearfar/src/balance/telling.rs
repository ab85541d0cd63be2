//! What there is to tell of the loop and the live system, as a [`State`].

use std::collections::BTreeMap;

use nearfar_control::balancing::{Effect, Loop, Round, Said, Wanted};
use nearfar_control::sense::{Nature, Sensor};
use nearfar_kernel::chase;
use nearfar_kernel::moving::Outcome;
use nearfar_policy::traffic::balance::{self, Verdict};
use nearfar_policy::traffic::carrefour::{self, Hold, Left, Sampling};
use nearfar_policy::traffic::{self, metrics};
use nearfar_topology::NodeId;

use super::choice::Eye as Sees;
use super::options::Options;
use super::pages::Live;
use super::state::{self, SCHEMA, State};
use crate::tier::state::{Identity, Moves};

/// What is told besides.
#[derive(Debug)]
pub(super) struct More<'a> {
    pub(super) identity: Identity,
    pub(super) options: &'a Options,
    pub(super) scope: String,
    pub(super) emulated: Option<&'a serde_json::Value>,
    pub(super) left_alone: &'a [String],
    pub(super) model: &'a str,
    /// Nodes, in the loop's order, with CPUs or not; and the model's columns.
    pub(super) layout: &'a nearfar_control::balancing::Layout,
    pub(super) running_s: u64,
}

/// All of it.
pub(super) fn state(one: &Loop<Sees<'_>>, live: &Live<'_>, more: &More<'_>) -> State {
    let tally = live.mover.tally();
    let round = one.round();
    let cost = one.cost();
    let moves = tally.moved.iter().map(|((from, to), bytes)| Moves {
        from: from.0,
        to: to.0,
        bytes: bytes.0,
        pages: bytes.0 / traffic::PAGE,
    });
    let pages =
        Outcome::ALL.into_iter().map(|outcome| (outcome.word().into(), tally.count(outcome)));
    State {
        schema: SCHEMA.into(),
        identity: more.identity,
        running_s: more.running_s,
        settings: more.options.clone(),
        scope: more.scope.clone(),
        emulated: more.emulated.cloned(),
        left_alone: more.left_alone.to_vec(),
        sensors: one.watches().iter().map(eye).collect(),
        sampling: if one.sampling() == Sampling::Dense { "dense" } else { "sparse" }.into(),
        model: more.model.into(),
        metrics: round.metrics.map(|of| metrics_of(of, round)).unwrap_or_default(),
        nodes: nodes(one, more),
        decision: one.said().map(decided).unwrap_or_default(),
        effect: effect(one.effect(), round),
        moves: moves.collect(),
        pages: pages.filter(|(_, count)| *count > 0).collect(),
        retried: tally.retried,
        waiting: live.mover.waiting() as u64,
        splits: state::Splits {
            done: live.split.0,
            failed: live.split.1,
            unusable: live.splits.as_ref().err().cloned(),
        },
        cost: state::Cost {
            cpu_ms: chase::own_cpu().0 / 1_000_000,
            sensors_cpu_ms: cost.cpu.0 / 1_000_000,
            interruptions: cost.interruptions,
            calls: tally.calls,
        },
    }
}

fn eye(watch: &nearfar_control::balancing::Watch<Sees<'_>>) -> state::Eye {
    let nature = match watch.sensor.sees().nature {
        Nature::Measured => "measured",
        Nature::Emulated => "emulated",
    };
    state::Eye {
        name: watch.sensor.name().into(),
        nature: nature.into(),
        seen: watch.counts.seen,
        lost: watch.counts.lost,
        throttled: watch.counts.throttled,
        unplaced: watch.counts.unplaced,
        failed: watch.failed.as_ref().map(|(why, _)| why.to_string()),
    }
}

fn metrics_of(of: traffic::Metrics, round: &Round) -> state::Metrics {
    state::Metrics {
        counted: round.counted,
        accesses_per_ms: of.per_ms,
        local_access_ratio_bp: of.local.0,
        controller_imbalance_bp: of.imbalance.0,
        interconnect_imbalance_bp: interconnect(round),
        reads_bp: of.reads.map(|reads| reads.0),
        memory_in_use_bp: of.in_use.0,
    }
}

/// How unevenly pairs of nodes are used, each way. Which links they share is not known.
fn interconnect(round: &Round) -> Option<u32> {
    let has_memory = |place: usize| round.nodes.get(place).is_some_and(|node| node.total.0 > 0);
    let rows = round.accesses.iter().enumerate().filter(|(_, row)| row.iter().any(|n| *n > 0));
    let cells = rows.flat_map(|(cpu, row)| {
        let others = row.iter().enumerate().filter(move |(node, _)| *node != cpu);
        others.filter(|(node, _)| has_memory(*node)).map(|(_, lines)| *lines)
    });
    let cells: Vec<u64> = cells.collect();
    (cells.len() >= 2).then(|| metrics::imbalance(&cells).0)
}

fn share(part: u64, of: u64) -> Option<u32> {
    let share = (u128::from(part) * 10_000).checked_div(u128::from(of))?;
    u32::try_from(share).ok()
}

fn nodes(one: &Loop<Sees<'_>>, more: &More<'_>) -> Vec<state::Node> {
    let round = one.round();
    let served = |place: usize| round.accesses.iter().filter_map(|row| row.get(place)).sum::<u64>();
    let all: u64 = (0..round.nodes.len()).map(served).sum();
    // The last region is what several nodes use.
    let (prices, weights) = match one.said() {
        Some(Said::Balance { decision, .. }) => (decision.costs.last(), decision.weights.last()),
        _ => (None, None),
    };
    let column = |place: usize| more.layout.mems.iter().position(|mem| *mem == place);
    let node = |(place, memory): (usize, &traffic::Memory)| {
        let row = round.accesses.get(place);
        let asked: u64 = row.into_iter().flatten().sum();
        let own = row.and_then(|row| row.get(place)).copied().unwrap_or(0);
        let latency = more.layout.cpus.iter().filter_map(|cpu| {
            let from: NodeId = *more.layout.nodes.get(*cpu)?;
            Some((from.0, round.latency.get(*cpu)?.get(place).copied().flatten()?.0))
        });
        state::Node {
            node: memory.node.0,
            total_bytes: memory.total.0,
            free_bytes: memory.free.0,
            share_bp: share(served(place), all).unwrap_or(0),
            local_access_ratio_bp: share(own, asked),
            latency_ns: latency.collect(),
            price_ns: prices.zip(column(place)).and_then(|(all, at)| all.get(at)).map(|ns| ns.0),
            weight: weights.zip(column(place)).and_then(|(all, at)| all.get(at)).copied(),
        }
    };
    round.nodes.iter().enumerate().map(node).collect()
}

fn decided(said: &Said) -> state::Decided {
    match said {
        Said::Carrefour { decision, wanted } => by_carrefour(decision, wanted),
        Said::Balance { decision, wanted } => by_balance(decision, wanted),
    }
}

fn by_carrefour(decision: &carrefour::Decision, wanted: &Wanted) -> state::Decided {
    let gates = [(decision.gates.interleave, "interleave"), (decision.gates.relocate, "relocate")];
    let (what, why) = match decision.hold {
        None if wanted.moves == 0 => ("nothing_to_move", "no sampled page is to be elsewhere"),
        None => ("moves", "sampled pages go where they are used, or are spread over nodes"),
        Some(Hold::NoReading) => ("no_reading", "nothing was counted"),
        Some(Hold::Coverage(_)) => ("coverage", "counters counted too small a share of the time"),
        Some(Hold::NotBusy) => ("not_busy", "too few accesses to memory for placement to matter"),
        Some(Hold::NothingOn) => ("nothing_on", "accesses are local and even enough"),
        Some(Hold::NotWorthIt) => ("not_worth_it", "the last moves made nothing better"),
    };
    let left = decision.left.iter().map(|(left, pages)| (left_word(*left).into(), *pages));
    state::Decided {
        what: what.into(),
        why: why.into(),
        gates: gates.into_iter().filter(|(on, _)| *on).map(|(_, gate)| gate.into()).collect(),
        gain_bp: None,
        confidence_bp: None,
        left: left.collect(),
        ..asked(wanted)
    }
}

fn by_balance(decision: &balance::Decision, wanted: &Wanted) -> state::Decided {
    let (what, why, gain) = match decision.verdict {
        Verdict::Sensing => ("sensing", "it is not time yet", None),
        Verdict::Stale => ("stale", "no latency is known, or it is too old to act upon", None),
        Verdict::Quiet => ("quiet", "there is hardly any traffic", None),
        Verdict::Mismatch => ("mismatch", "what is seen does not fit the machine", None),
        Verdict::Settled { gain } => {
            ("settled", "nothing that can be moved gains enough", Some(gain))
        }
        Verdict::NotRepaid { gain, .. } => {
            ("not_repaid", "the gain does not repay moving so much while loads last", Some(gain))
        }
        Verdict::Reversing { .. } => (
            "reversing",
            "the last move went the other way; it waits until this is confirmed",
            None,
        ),
        Verdict::Moving { gain } => ("moves", "what moves gains more than it costs", Some(gain)),
        Verdict::Average => (
            "equalises",
            "latencies are made equal: own traffic is not known, or that is the policy",
            None,
        ),
        Verdict::Undoing => {
            ("undoing", "predictions were wrong too often: what was moved goes back", None)
        }
        Verdict::Off => {
            ("off", "predictions were wrong too often: it rests until loads change", None)
        }
    };
    state::Decided {
        what: what.into(),
        why: why.into(),
        gates: Vec::new(),
        gain_bp: gain.map(|gain| gain.0),
        confidence_bp: Some(decision.confidence.0),
        left: BTreeMap::new(),
        ..asked(wanted)
    }
}

fn asked(wanted: &Wanted) -> state::Decided {
    state::Decided {
        moves: wanted.moves,
        splits: wanted.splits,
        worth_replicas: wanted.replicas,
        ..state::Decided::default()
    }
}

const fn left_word(left: Left) -> &'static str {
    match left {
        Left::Local => "local",
        Left::RelocationOff => "relocation_off",
        Left::TooFewSamples => "too_few_samples",
        Left::SharingOff => "sharing_off",
        Left::NotDrawn => "not_drawn",
        Left::OwnDrawn => "own_drawn",
        Left::TooFewToReplicate => "needs_its_program_to_replicate",
        Left::MovedOften => "moved_often",
        Left::NoRoom => "no_room",
        Left::NoTimeToSplit => "no_time_to_split",
    }
}

fn effect(of: &Effect, round: &Round) -> state::Effect {
    // Links are those of the last round, not of then.
    let told = |of: traffic::Metrics| state::Metrics {
        interconnect_imbalance_bp: None,
        ..metrics_of(of, round)
    };
    state::Effect {
        under_way: of.open,
        moved_pages: of.moved,
        predicted_gain_bp: of.predicted.map(|gain| gain.0),
        before: of.before.map(told),
        after: of.after.map(told),
    }
}
