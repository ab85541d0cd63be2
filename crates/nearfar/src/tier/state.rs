//! The state of a running `nearfar tier`, in a file beside the journal: `nearfar.tier/1`.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nearfar_control::tiering::{Count, KeptBy, Loop};
use nearfar_control::turns::Turns;
use nearfar_kernel::process;
use nearfar_policy::tiering::{Reason, Side};
use nearfar_topology::{Bytes, Nanoseconds, NodeId, NodeSet};
use serde::{Deserialize, Serialize};

use super::damon::Damon;
use super::node::{PAGE, scale};
use super::options::InForce;
use super::plan::Plan;

/// The `schema` of a [`State`].
pub(crate) const SCHEMA: &str = "nearfar.tier/1";

/// What tiering does and has done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) schema: String,
    #[serde(flatten)]
    pub(crate) identity: Identity,
    pub(crate) running_s: u64,
    /// Whose memory, if not the whole machine's.
    pub(crate) cgroup: Option<String>,
    /// The root of the processes in it, if that was asked for.
    pub(crate) tree: Option<u32>,
    pub(crate) settings: InForce,
    pub(crate) recording: Option<Recorded>,
    /// Between each tier and the next, fastest first.
    pub(crate) boundaries: Vec<Between>,
    /// Nodes that were tiered and have no memory online any more.
    pub(crate) gone: String,
    /// CPU time of DAMON's threads and of this program.
    pub(crate) cpu_ms: u64,
    pub(crate) moves: Vec<Moves>,
}

/// A process: its number, and when it started, in ticks since boot, for another process may get the number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) pid: u32,
    pub(crate) started_ticks: u64,
}

/// What is recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Recorded {
    pub(crate) file: String,
    pub(crate) bytes: u64,
    /// Why it is not recorded any more.
    pub(crate) error: Option<String>,
}

/// A boundary between two neighbouring tiers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Between {
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
    /// Moved a second each way, from the look before the last to the last.
    pub(crate) promoted_bytes_per_second: u64,
    pub(crate) demoted_bytes_per_second: u64,
    /// Who keeps near memory up between looks: `kernel` or `nearfar`.
    pub(crate) kept_up_by: String,
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
    let mut fields = process::stat_fields(&stat);
    let state = fields.next().filter(|state| !matches!(*state, "Z" | "X"));
    state.and(fields.nth(18))?.parse().ok()
}

impl Identity {
    /// Of the process with this number, if there is one that has not ended.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        started(pid).map(|started_ticks| Self { pid, started_ticks })
    }

    /// Our own.
    pub(crate) fn own() -> Self {
        let pid = std::process::id();
        Self::of(pid).unwrap_or(Self { pid, started_ticks: 0 })
    }

    /// Whether it still runs.
    pub(crate) fn is_running(self) -> bool {
        Self::of(self.pid) == Some(self)
    }
}

impl State {
    /// Whether the process that wrote this still runs.
    pub(crate) fn is_running(&self) -> bool {
        self.identity.is_running()
    }

    /// What there is to say now.
    pub(crate) fn of(turns: &Turns, pages: &Damon<'_>, more: &More<'_>) -> Self {
        let boundaries = turns.loops().zip(pages.totals()).enumerate();
        Self {
            schema: SCHEMA.into(),
            identity: more.identity,
            running_s: more.running_s,
            tree: more.tree,
            settings: more.settings.clone(),
            recording: more.recording.cloned(),
            cgroup: pages.group.as_ref().map(|group| group.path.clone()),
            boundaries: boundaries.map(|(at, (one, now))| between(at, one, now, more)).collect(),
            gone: more.ledger.gone.to_string(),
            cpu_ms: pages.cpu().0.saturating_add(more.ledger.cpu.0) / 1_000_000,
            moves: more.ledger.moves(pages),
        }
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let share =
            |basis_points: u32| format!("{}.{} %", basis_points / 100, basis_points % 100 / 10);
        let side = |name: &str, memory: &Memory, used: u32| {
            format!(
                "    {name:<5} nodes {:<6} {} of {} free, {} of its pages used within a window\n",
                memory.nodes,
                Bytes(memory.free_bytes),
                Bytes(memory.total_bytes),
                share(used)
            )
        };
        let boundary = |one: &Between| {
            let taken = |memory: &Memory| memory.total_bytes.saturating_sub(memory.free_bytes);
            let [near, all] = [taken(&one.near), taken(&one.near).saturating_add(taken(&one.far))];
            let traffic =
                one.promoted_bytes_per_second.saturating_add(one.demoted_bytes_per_second);
            format!(
                "  {} over {}: {}\n{}{}    {} of the memory in use is near\n    window {} ms, a look every {} ms; used \
                 within a window: {}\n    promoted {}/s, demoted {}/s: {} of the {}/s of traffic allowed\n    {}\n",
                one.near.nodes,
                one.far.nodes,
                why(&one.reason),
                side("near", &one.near, one.near_used_bp),
                side("far", &one.far, one.far_used_bp),
                percent(near, all),
                one.window_ms,
                one.period_ms,
                Bytes(one.hot_bytes),
                Bytes(one.promoted_bytes_per_second),
                Bytes(one.demoted_bytes_per_second),
                percent(traffic, one.traffic_max_bytes_per_second),
                Bytes(one.traffic_max_bytes_per_second),
                match one.kept_up_by.as_str() {
                    "kernel" =>
                        "between looks the kernel keeps room for new pages and fills near memory",
                    _ =>
                        "short of room for new pages, or with much to fill, the next look comes sooner",
                }
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
        let gone = if self.gone.is_empty() {
            String::new()
        } else {
            format!("  node {} has no memory online any more; it goes on without\n", self.gone)
        };
        format!(
            "Tiering{} for {} s (process {})\n{}{gone}{}  CPU time {} ms\n{}",
            self.whose(),
            self.running_s,
            self.identity.pid,
            self.boundaries.iter().map(boundary).collect::<String>(),
            moves.collect::<String>(),
            self.cpu_ms,
            self.recording.as_ref().map(Recorded::text).unwrap_or_default(),
        )
    }

    fn whose(&self) -> String {
        let cgroup = self.cgroup.as_ref().map(|path| format!(" cgroup {path}"));
        let tree = self.tree.map(|pid| format!(" (process {pid} and what it has started)"));
        format!("{}{}", cgroup.unwrap_or_default(), tree.unwrap_or_default())
    }

    /// Its nodes, for people: `1 over 0 over 2`.
    pub(crate) fn order(&self) -> String {
        let first = self.boundaries.first().map(|one| one.near.nodes.as_str());
        let rest = self.boundaries.iter().map(|one| one.far.nodes.as_str());
        first.into_iter().chain(rest).collect::<Vec<_>>().join(" over ")
    }
}

impl Recorded {
    fn text(&self) -> String {
        let written = format!("  recorded in {}: {}", self.file, Bytes(self.bytes));
        match &self.error {
            Some(error) => format!("{written}, then no more: {error}\n"),
            None => written + "\n",
        }
    }
}

fn between(at: usize, one: &Loop, now: &Count, more: &More<'_>) -> Between {
    let seen = one.seen();
    let estimate = one.policy().estimate(seen);
    let decision = one.decision();
    let rate = |moved: Bytes| scale(moved.0, 1_000_000_000, seen.elapsed.0);
    let side = |tier: usize, side: Side| Memory {
        nodes: more.plan.tiers.get(tier).map(ToString::to_string).unwrap_or_default(),
        total_bytes: side.total.0,
        free_bytes: side.free.0,
    };
    Between {
        reason: decision.map_or("starting", |decision| decision.reason.word()).into(),
        window_ms: estimate.window.0 / 1_000_000,
        period_ms: decision.map_or(0, |decision| decision.period.0 / 1_000_000),
        hot_bytes: estimate.hot.0,
        near_used_bp: estimate.near_used.0,
        far_used_bp: estimate.far_used.0,
        near: side(at, now.near),
        far: side(at + 1, now.far),
        promote_bytes: decision.map_or(0, |decision| decision.promote.0),
        demote_bytes: decision.map_or(0, |decision| decision.demote.0),
        traffic_max_bytes_per_second: more
            .plan
            .boundaries
            .get(at)
            .map_or(0, |one| one.goals.traffic.0),
        promoted_bytes_per_second: rate(seen.far_look.moved),
        demoted_bytes_per_second: rate(seen.near_look.moved),
        kept_up_by: match one.kept_by() {
            KeptBy::Machine => "kernel".into(),
            KeptBy::Loop => "nearfar".into(),
        },
    }
}

/// A share for people.
fn percent(part: u64, of: u64) -> String {
    format!("{} %", scale(part, 100, of))
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
#[derive(Clone, Copy, Debug)]
pub(crate) struct More<'a> {
    pub(crate) identity: Identity,
    pub(crate) tree: Option<u32>,
    pub(crate) settings: &'a InForce,
    pub(crate) recording: Option<&'a Recorded>,
    pub(crate) plan: &'a Plan,
    pub(crate) ledger: &'a Ledger,
    pub(crate) running_s: u64,
}

/// What was done before nodes came or went, which begins all counts anew.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    moved: BTreeMap<(NodeId, NodeId), Bytes>,
    cpu: Nanoseconds,
    /// Nodes that were tiered and have no memory online any more.
    pub(crate) gone: NodeSet,
}

impl Ledger {
    /// Takes over what has been counted.
    pub(crate) fn close(&mut self, pages: &Damon<'_>) {
        self.moved = self.sum(pages);
        self.cpu.0 = self.cpu.0.saturating_add(pages.cpu().0);
    }

    /// CPU time that it has taken.
    pub(crate) fn cpu(&self) -> Nanoseconds {
        self.cpu
    }

    /// Moved from node to node in all.
    pub(crate) fn sum(&self, pages: &Damon<'_>) -> BTreeMap<(NodeId, NodeId), Bytes> {
        let mut moved = self.moved.clone();
        for node in &pages.nodes {
            for way in &node.ways {
                moved.entry((node.node, way.to)).or_default().0 += way.moved.0;
            }
        }
        moved
    }

    fn moves(&self, pages: &Damon<'_>) -> Vec<Moves> {
        let moves = |((from, to), bytes): ((NodeId, NodeId), Bytes)| Moves {
            from: from.0,
            to: to.0,
            bytes: bytes.0,
            pages: bytes.0 / PAGE,
        };
        self.sum(pages).into_iter().map(moves).collect()
    }
}

/// Where it is.
pub(crate) fn path(dir: &Path) -> PathBuf {
    dir.join("tier.json")
}

/// Writes it whole.
pub(crate) fn write(dir: &Path, state: &State) -> anyhow::Result<()> {
    put(&path(dir), state)
}

/// Writes JSON to a file that appears whole or not at all.
pub(crate) fn put(path: &Path, what: &impl Serialize) -> anyhow::Result<()> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let text = serde_json::to_string_pretty(what).context("writing JSON")?;
    let wrote = std::fs::File::create(&fresh).and_then(|mut file| file.write_all(text.as_bytes()));
    wrote
        .and_then(|()| std::fs::rename(&fresh, path))
        .with_context(|| format!("writing {}", path.display()))
}

/// Reads it; `None` if there is none.
pub(crate) fn read(dir: &Path) -> anyhow::Result<Option<State>> {
    read_as(&path(dir), SCHEMA, "nearfar tier")
}

/// Reads what `command` keeps in a file; `None` if there is none.
///
/// # Errors
/// It can't be read or is something else. What was set is in the journal, not there, so it can go.
pub(crate) fn read_as<T: serde::de::DeserializeOwned>(
    path: &Path,
    schema: &str,
    command: &str,
) -> anyhow::Result<Option<T>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(serde_json::from_str(&text).with_context(|| {
            format!(
                "{} is not {schema}: broken, or of another version of nearfar; remove it, and `{command} stop` still puts back \
                 all that was set",
                path.display()
            )
        })?)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
    }
}

/// Where it is said why tiering ended by itself.
pub(crate) fn ended_path(dir: &Path) -> PathBuf {
    dir.join("tier-ended.json")
}

/// Says why it ended by itself.
pub(crate) fn write_ended(dir: &Path, why: &str) -> anyhow::Result<()> {
    put(&ended_path(dir), &why)
}

/// Why it ended by itself; nothing if it did not.
pub(crate) fn read_ended(dir: &Path) -> Option<String> {
    serde_json::from_str(&std::fs::read_to_string(ended_path(dir)).ok()?).ok()
}
