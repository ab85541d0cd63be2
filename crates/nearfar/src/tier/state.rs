//! The state of a running `nearfar tier`, in a file beside the journal: `nearfar.tier/1`.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nearfar_control::tiering::{Count, Loop};
use nearfar_policy::tiering::Reason;
use nearfar_topology::Bytes;
use serde::{Deserialize, Serialize};

use super::node::Watched;

/// The `schema` of a [`State`].
pub(crate) const SCHEMA: &str = "nearfar.tier/1";

/// What tiering does and has done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) schema: String,
    pub(crate) pid: u32,
    /// When the process started, in ticks since boot: another process may get the number.
    pub(crate) started_ticks: u64,
    pub(crate) running_s: u64,
    /// Whose memory, if not the whole machine's.
    pub(crate) cgroup: Option<String>,
    /// Why the last decision is as it is: `fits`, `exchange`, `settled`, `no_gain`.
    pub(crate) reason: String,
    pub(crate) window_ms: u64,
    pub(crate) period_ms: u64,
    /// What is used within a window.
    pub(crate) hot_bytes: u64,
    pub(crate) near_used_bp: u32,
    pub(crate) far_used_bp: u32,
    pub(crate) near: Memory,
    pub(crate) far: Memory,
    /// To be moved each way, by the last decision.
    pub(crate) promote_bytes: u64,
    pub(crate) demote_bytes: u64,
    pub(crate) traffic_max_bytes_per_second: u64,
    /// CPU time of DAMON's threads and of this program.
    pub(crate) cpu_ms: u64,
    pub(crate) moves: Vec<Moves>,
}

/// One side.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Memory {
    pub(crate) nodes: String,
    pub(crate) total_bytes: u64,
    pub(crate) free_bytes: u64,
}

/// From one node to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Moves {
    pub(crate) from: u16,
    pub(crate) to: u16,
    pub(crate) bytes: u64,
    pub(crate) pages: u64,
}

/// When a process started (proc_pid_stat(5), field 22); `None` if there is none, or one that has ended (a zombie).
fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split_whitespace();
    let state = fields.next().filter(|state| !matches!(*state, "Z" | "X"));
    state.and(fields.nth(18))?.parse().ok()
}

impl State {
    /// Whether the process that wrote this still runs.
    pub(crate) fn is_running(&self) -> bool {
        started(self.pid) == Some(self.started_ticks)
    }

    /// What there is to say now.
    pub(crate) fn of(tiering: &Loop, count: &Count, nodes: &[Watched], more: &More) -> Self {
        let seen = tiering.seen();
        let estimate = tiering.policy().estimate(seen);
        let decision = tiering.decision();
        let side = |near: bool, side: nearfar_policy::tiering::Side| Memory {
            nodes: if near { more.near.clone() } else { more.far.clone() },
            total_bytes: side.total.0,
            free_bytes: side.free.0,
        };
        let moves = nodes.iter().map(|node| Moves {
            from: node.node.0,
            to: node.to.0,
            bytes: node.moved.0,
            pages: node.moved.0 / 4096,
        });
        Self {
            schema: SCHEMA.into(),
            pid: std::process::id(),
            started_ticks: started(std::process::id()).unwrap_or(0),
            running_s: more.running_s,
            cgroup: more.cgroup.clone(),
            reason: decision.map_or("starting", |decision| decision.reason.word()).into(),
            window_ms: estimate.window.0 / 1_000_000,
            period_ms: decision.map_or(0, |decision| decision.period.0 / 1_000_000),
            hot_bytes: estimate.hot.0,
            near_used_bp: estimate.near_used.0,
            far_used_bp: estimate.far_used.0,
            near: side(true, count.near),
            far: side(false, count.far),
            promote_bytes: decision.map_or(0, |decision| decision.promote.0),
            demote_bytes: decision.map_or(0, |decision| decision.demote.0),
            traffic_max_bytes_per_second: more.traffic,
            cpu_ms: count.cpu.0 / 1_000_000,
            moves: moves.collect(),
        }
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let share =
            |basis_points: u32| format!("{}.{} %", basis_points / 100, basis_points % 100 / 10);
        let side = |name: &str, memory: &Memory, used: u32| {
            format!(
                "  {name:<5} nodes {:<6} {} of {} free, {} of its pages used within a window\n",
                memory.nodes,
                Bytes(memory.free_bytes),
                Bytes(memory.total_bytes),
                share(used)
            )
        };
        let moves = self.moves.iter().map(|moves| {
            format!(
                "  node {} to {}: {} in {} pages\n",
                moves.from,
                moves.to,
                Bytes(moves.bytes),
                moves.pages
            )
        });
        format!(
            "Tiering{} for {} s (process {}): {}\n{}{}  window {} ms, a look every {} ms; used within a window: {}\n\
             {}  CPU time {} ms; at most {} of traffic a second\n",
            self.cgroup.as_ref().map(|path| format!(" cgroup {path}")).unwrap_or_default(),
            self.running_s,
            self.pid,
            why(&self.reason),
            side("near", &self.near, self.near_used_bp),
            side("far", &self.far, self.far_used_bp),
            self.window_ms,
            self.period_ms,
            Bytes(self.hot_bytes),
            moves.collect::<String>(),
            self.cpu_ms,
            Bytes(self.traffic_max_bytes_per_second),
        )
    }
}

fn why(reason: &str) -> &'static str {
    let no_gain = Reason::NoGain { again_in: nearfar_topology::Nanoseconds(0) }.word();
    match reason {
        word if word == Reason::Seeks.word() => "looking how often pages are used",
        word if word == Reason::Fits.word() => "nothing in far memory is in use",
        word if word == Reason::Fills.word() => "used pages of far memory move to free near memory",
        word if word == Reason::Exchange.word() => {
            "used pages of far memory change places with unused ones of near memory"
        }
        word if word == Reason::Settled.word() => {
            "near memory holds what is used most; few pages move"
        }
        word if word == no_gain => {
            "moving pages did not help this workload; it rests until use changes, then tries again"
        }
        _ => "starting",
    }
}

/// What a state needs besides.
#[derive(Clone, Debug)]
pub(crate) struct More {
    pub(crate) cgroup: Option<String>,
    pub(crate) near: String,
    pub(crate) far: String,
    pub(crate) traffic: u64,
    pub(crate) running_s: u64,
}

/// Where it is.
pub(crate) fn path(dir: &Path) -> PathBuf {
    dir.join("tier.json")
}

/// Writes it whole.
pub(crate) fn write(dir: &Path, state: &State) -> anyhow::Result<()> {
    let (path, fresh) = (path(dir), dir.join("tier.json.new"));
    let text = serde_json::to_string_pretty(state).context("writing the state as JSON")?;
    let wrote = std::fs::File::create(&fresh).and_then(|mut file| file.write_all(text.as_bytes()));
    wrote
        .and_then(|()| std::fs::rename(&fresh, &path))
        .with_context(|| format!("writing {}", path.display()))
}

/// Reads it; `None` if there is none.
pub(crate) fn read(dir: &Path) -> anyhow::Result<Option<State>> {
    let path = path(dir);
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            let state = serde_json::from_str(&text);
            Ok(Some(state.with_context(|| format!("{} is not {SCHEMA}", path.display()))?))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
    }
}
