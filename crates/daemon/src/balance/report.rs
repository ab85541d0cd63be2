//! Assembles the status of the loop and the live system, as a [`State`].
//!
//! The inputs are the loop's last round and decision, the mover's counters, and constant parts of
//! the service. Decisions of both laws become an outcome word and a sentence of explanation. Not
//! here: the format of the file (`state.rs`), its text (`words.rs`).

use std::collections::BTreeMap;

use nearfar_control::balancing::{Decided, Effect, Loop, Round, Wanted};
use nearfar_kernel::chase;
use nearfar_kernel::moving::Outcome;
use nearfar_kernel::process::Identity;
use nearfar_policy::ports::{Nature, Sensor};
use nearfar_policy::traffic::balance::{self, Verdict};
use nearfar_policy::traffic::carrefour::{self, Hold, Left, Sampling};
use nearfar_policy::traffic::{self, metrics};
use nearfar_topology::NodeId;

use super::choice::Eye as Sees;
use super::options::Options;
use super::pages::Live;
use super::state::{self, SCHEMA, State};
use crate::history::{Decision, History};
use crate::tier::state::Moves;

/// Further parts of the status.
#[derive(Debug)]
pub(super) struct More<'a> {
    pub(super) identity: Identity,
    pub(super) options: &'a Options,
    pub(super) scope: String,
    pub(super) emulated: Option<&'a serde_json::Value>,
    pub(super) left_alone: &'a [String],
    pub(super) model: &'a str,
    /// All nodes, in the loop's order, and the indices of the model's columns.
    pub(super) layout: &'a nearfar_control::balancing::Layout,
    pub(super) running_s: u64,
}

/// The complete status.
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
        metrics: round.metrics.map(|of| metrics_of(of, round)),
        nodes: nodes(one, more),
        decision: one.decided().map(decided).unwrap_or_default(),
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
        history: History::default(),
    }
}

/// Adds the present decision to the last ones, and has the state take these over.
pub(super) fn continue_history(state: &mut State, history: &mut History) {
    let decided = &state.decision;
    let share = |bp: u32| format!("{}.{} %", bp / 100, bp % 100 / 10);
    let figures = [
        decided.gain_bp.map(|gain| format!("predicted gain {}", share(gain))),
        decided.confidence_bp.map(|sure| format!("confidence {}", share(sure))),
        Some(format!("{} pages to move, {} huge ones split", decided.moves, decided.splits)),
    ];
    history.note(Decision {
        at_s: state.running_s,
        about: String::new(),
        reason: decided.what.clone(),
        why: decided.why.clone(),
        figures: figures.into_iter().flatten().collect::<Vec<_>>().join(", "),
    });
    state.history.clone_from(history);
}

fn eye(watch: &nearfar_control::balancing::Watch<Sees<'_>>) -> state::Eye {
    let nature = match watch.sensor.sees().nature {
        Nature::Measured => "measured",
        Nature::Emulated => "emulated",
        Nature::Simulated => "simulated",
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

/// Imbalance of traffic between pairs of nodes, each direction separately. Shared links are
/// unknown.
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
    // The last region is the memory shared by several nodes.
    let (prices, weights) = match one.decided() {
        Some(Decided::Balance { decision, .. }) => (decision.costs.last(), decision.weights.last()),
        _ => (None, None),
    };
    let column = |place: usize| more.layout.mems.iter().position(|mem| *mem == place);
    let node = |(place, memory): (usize, &traffic::Memory)| {
        let row = round.accesses.get(place);
        let asked: u64 = row.into_iter().flatten().sum();
        let own = row.and_then(|row| row.get(place)).copied().unwrap_or(0);
        let latency = more.layout.cpus.iter().filter_map(|cpu| {
            let from: NodeId = *more.layout.nodes.get(*cpu)?;
            let load = round.latency.get(*cpu)?.get(place).copied().flatten()?;
            // A latency of zero stands for an unknown one.
            (load.0 > 0).then_some((from.0, load.0))
        });
        state::Node {
            node: memory.node.0,
            total_bytes: memory.total.0,
            free_bytes: memory.free.0,
            share_bp: share(served(place), all),
            local_access_ratio_bp: share(own, asked),
            latency_ns: latency.collect(),
            price_ns: prices.zip(column(place)).and_then(|(all, at)| all.get(at)).map(|ns| ns.0),
            weight: weights.zip(column(place)).and_then(|(all, at)| all.get(at)).copied(),
        }
    };
    round.nodes.iter().enumerate().map(node).collect()
}

fn decided(decided: &Decided) -> state::Decided {
    match decided {
        Decided::Carrefour { decision, wanted } => by_carrefour(decision, wanted),
        Decided::Balance { decision, wanted } => by_balance(decision, wanted),
    }
}

fn by_carrefour(decision: &carrefour::Decision, wanted: &Wanted) -> state::Decided {
    let gates = [(decision.gates.interleave, "interleave"), (decision.gates.relocate, "relocate")];
    let (what, why) = match decision.hold {
        None if wanted.moves == 0 => ("nothing_to_move", "no sampled page is misplaced"),
        None => {
            ("moves", "sampled pages migrate to the nodes that access them, or are interleaved")
        }
        Some(Hold::NoReading) => ("no_reading", "no sensor counted accesses"),
        Some(Hold::Coverage(_)) => {
            ("coverage", "counters ran for too small a share of the interval")
        }
        Some(Hold::NotBusy) => ("not_busy", "too few accesses to memory for placement to matter"),
        Some(Hold::NothingOn) => ("nothing_on", "accesses are sufficiently local and balanced"),
        Some(Hold::NotWorthIt) => ("not_worth_it", "the last migrations brought no improvement"),
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
        Verdict::Sensing => ("sensing", "collecting samples for the next decision", None),
        Verdict::Stale => ("stale", "latencies are unknown or out of date", None),
        Verdict::Quiet => ("quiet", "too little traffic", None),
        Verdict::Mismatch => ("mismatch", "measurements contradict the model of the machine", None),
        Verdict::Settled { gain } => ("settled", "no possible migration gains enough", Some(gain)),
        Verdict::NotRepaid { gain, .. } => (
            "not_repaid",
            "migration costs more than it would gain while this load lasts",
            Some(gain),
        ),
        Verdict::Reversing { .. } => {
            ("reversing", "this would reverse the last migration; awaiting confirmation", None)
        }
        Verdict::Moving { gain } => ("moves", "migration gains more than it costs", Some(gain)),
        Verdict::Average => (
            "equalises",
            "equalising latencies: own traffic is unknown, or the policy is colloid",
            None,
        ),
        Verdict::Undoing => {
            ("undoing", "too many wrong predictions: migrations are being reverted", None)
        }
        Verdict::Off => ("off", "too many wrong predictions: idle until the load changes", None),
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
    // Links are those of the last round, not of that time.
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
