//! The state of a running `nearfar tier`, in a file beside the journal: `nearfar.tier/1`.
//!
//! The service rewrites the file after each scan and each change of options; other commands only show it, and no
//! decision depends on it. A second file keeps the reason if tiering has ended by itself. Both are replaced
//! atomically.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nearfar_control::tiering::Loop;
use nearfar_control::turns::Turns;
use nearfar_kernel::fs::read_own;
use nearfar_kernel::process::Identity;
use nearfar_policy::ports::{Count, KeptBy};
use nearfar_policy::tiering::{Reason, TierUsage};
use nearfar_topology::{Bytes, Nanoseconds, NodeId, NodeSet};
use serde::{Deserialize, Serialize};

use super::damon::DamonMigrator;
use super::options::EffectiveOptions;
use super::plan::Plan;
use crate::history::{Decision, History};
use nearfar_policy::tiering::clock_hand::PAGE;
use nearfar_policy::tiering::scale;

/// The `schema` of a [`State`].
pub const SCHEMA: &str = "nearfar.tier/1";

/// The status of tiering.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    pub(crate) schema: String,
    /// The tiering process.
    #[serde(flatten)]
    pub identity: Identity,
    /// Seconds since it began.
    pub running_s: u64,
    /// The tiered cgroup; `None` for the whole machine.
    pub cgroup: Option<String>,
    /// The root of the tiered process tree, if one was requested.
    pub(crate) tree: Option<u32>,
    /// The options in force.
    pub settings: EffectiveOptions,
    pub(crate) recording: Option<Recorded>,
    /// Between each tier and the next, fastest first.
    pub(crate) boundaries: Vec<Between>,
    /// Nodes that were tiered and have no memory online any more.
    pub(crate) gone: String,
    /// CPU time of DAMON's threads and of this program.
    pub(crate) cpu_ms: u64,
    pub(crate) moves: Vec<Moves>,
    /// The last decisions of all boundaries.
    #[serde(default)]
    pub history: History,
}

/// The access record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Recorded {
    pub(crate) file: String,
    pub(crate) bytes: u64,
    /// The reason why recording has ended.
    pub(crate) error: Option<String>,
}

/// A boundary between two neighbouring tiers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Between {
    /// [`Reason::word`] of the last decision.
    pub(crate) reason: String,
    pub(crate) window_ms: u64,
    pub(crate) period_ms: u64,
    /// Bytes referenced within a window.
    pub(crate) hot_bytes: u64,
    pub(crate) near_used_bp: u32,
    pub(crate) far_used_bp: u32,
    pub(crate) near: Memory,
    pub(crate) far: Memory,
    /// Bytes to migrate each way, by the last decision.
    pub(crate) promote_bytes: u64,
    pub(crate) demote_bytes: u64,
    pub(crate) traffic_max_bytes_per_second: u64,
    /// Migration rate each way, between the last two scans.
    pub(crate) promoted_bytes_per_second: u64,
    pub(crate) demoted_bytes_per_second: u64,
    /// Background migration is done by `kernel` or `nearfar`.
    pub(crate) kept_up_by: String,
}

/// One side.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Memory {
    pub(crate) nodes: String,
    pub(crate) total_bytes: u64,
    pub(crate) free_bytes: u64,
}

/// Migration from one node to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Moves {
    pub(crate) from: u16,
    pub(crate) to: u16,
    pub(crate) bytes: u64,
    pub(crate) pages: u64,
}

impl State {
    /// Whether the process that wrote this still runs.
    pub fn is_running(&self) -> bool {
        self.identity.is_running()
    }

    /// The present state.
    pub(crate) fn of(turns: &Turns, pages: &DamonMigrator<'_>, more: &More<'_>) -> Self {
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
            history: History::default(),
        }
    }

    /// Adds the present decisions to the last ones, and takes these over.
    pub(crate) fn continue_history(&mut self, history: &mut History) {
        let share = |basis_points: u32| format!("{} %", basis_points / 100);
        for one in &self.boundaries {
            history.note(Decision {
                at_s: self.running_s,
                about: format!("{} over {}", one.near.nodes, one.far.nodes),
                reason: one.reason.clone(),
                why: why(&one.reason).into(),
                figures: format!(
                    "referenced within {} ms: {}, {} of near and {} of far memory; {} to promote, {} to demote",
                    one.window_ms,
                    Bytes(one.hot_bytes),
                    share(one.near_used_bp),
                    share(one.far_used_bp),
                    Bytes(one.promote_bytes),
                    Bytes(one.demote_bytes)
                ),
            });
        }
        self.history.clone_from(history);
    }

    /// For people.
    pub fn text(&self) -> String {
        let share =
            |basis_points: u32| format!("{}.{} %", basis_points / 100, basis_points % 100 / 10);
        let side = |name: &str, memory: &Memory, used: u32| {
            format!(
                "    {name:<5} nodes {:<6} {} of {} free, {} of its pages referenced within a window\n",
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
                "  {} over {}: {}\n{}{}    {} of the memory in use is near\n    sampling window {} ms, scan interval {} ms; \
                 referenced within a window: {}\n    promoted {}/s, demoted {}/s: {} of the {}/s of traffic allowed\n    {}\n",
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
                        "between scans the kernel frees near memory for new pages, and fills the rest",
                    _ =>
                        "scans are more frequent while near memory has too little, or much, free memory",
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
            format!(
                "  node {} has no memory online any more; tiering continues without it\n",
                self.gone
            )
        };
        format!(
            "Tiering{} for {} s (process {})\n{}{gone}{}  CPU time {} ms\n{}",
            self.scope(),
            self.running_s,
            self.identity.pid,
            self.boundaries.iter().map(boundary).collect::<String>(),
            moves.collect::<String>(),
            self.cpu_ms,
            self.recording.as_ref().map(Recorded::text).unwrap_or_default(),
        )
    }

    fn scope(&self) -> String {
        let cgroup = self.cgroup.as_ref().map(|path| format!(" cgroup {path}"));
        let tree = self.tree.map(|pid| format!(" (process {pid} and its descendants)"));
        format!("{}{}", cgroup.unwrap_or_default(), tree.unwrap_or_default())
    }

    /// Its nodes, for people: `1 over 0 over 2`.
    pub fn order(&self) -> String {
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
    let side = |tier: usize, side: TierUsage| Memory {
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
        promoted_bytes_per_second: rate(seen.far_scan.moved),
        demoted_bytes_per_second: rate(seen.near_scan.moved),
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
        word if word == Reason::Seeks.word() => "measuring how often pages are accessed",
        word if word == Reason::Fits.word() => "no page of far memory is hot",
        word if word == Reason::Fills.word() => {
            "hot pages of far memory are promoted to free near memory"
        }
        word if word == Reason::Exchange.word() => {
            "hot pages of far memory are exchanged for cold ones of near memory"
        }
        word if word == Reason::NoRoom.word() => {
            "near memory is full: little is free, and it has no cold page of the tiered memory"
        }
        word if word == Reason::Settled.word() => {
            "near memory holds the hottest pages; few migrate"
        }
        word if word == no_gain => {
            "migration did not help this workload; tiering is idle until accesses change, then retries"
        }
        _ => "starting",
    }
}

/// Further inputs of a state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct More<'a> {
    pub(crate) identity: Identity,
    pub(crate) tree: Option<u32>,
    pub(crate) settings: &'a EffectiveOptions,
    pub(crate) recording: Option<&'a Recorded>,
    pub(crate) plan: &'a Plan,
    pub(crate) ledger: &'a Ledger,
    pub(crate) running_s: u64,
}

/// Results from before nodes came or went, which resets all counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    moved: BTreeMap<(NodeId, NodeId), Bytes>,
    cpu: Nanoseconds,
    /// Nodes that were tiered and have no memory online any more.
    pub(crate) gone: NodeSet,
}

impl Ledger {
    /// Adds the present counts.
    pub(crate) fn close(&mut self, pages: &DamonMigrator<'_>) {
        self.moved = self.sum(pages);
        self.cpu.0 = self.cpu.0.saturating_add(pages.cpu().0);
    }

    /// CPU time counted so far.
    pub(crate) fn cpu(&self) -> Nanoseconds {
        self.cpu
    }

    /// Bytes migrated so far, by pair of nodes.
    pub(crate) fn sum(&self, pages: &DamonMigrator<'_>) -> BTreeMap<(NodeId, NodeId), Bytes> {
        let mut moved = self.moved.clone();
        for node in &pages.nodes {
            for way in &node.targets {
                moved.entry((node.node, way.to)).or_default().0 += way.moved.0;
            }
        }
        moved
    }

    fn moves(&self, pages: &DamonMigrator<'_>) -> Vec<Moves> {
        let moves = |((from, to), bytes): ((NodeId, NodeId), Bytes)| Moves {
            from: from.0,
            to: to.0,
            bytes: bytes.0,
            pages: bytes.0 / PAGE,
        };
        self.sum(pages).into_iter().map(moves).collect()
    }
}

/// Path of the file.
pub fn path(dir: &Path) -> PathBuf {
    dir.join("tier.json")
}

/// Replaces the file.
pub(crate) fn write(dir: &Path, state: &State) -> anyhow::Result<()> {
    put(&path(dir), state)
}

/// Writes JSON to a file that appears whole or not at all. It is not synced: the claim and the journal decide, and a sync a
/// second would hold the service up where disks are busy.
pub(crate) fn put(path: &Path, what: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(what).context("writing JSON")?;
    let dir = path.parent().context("a file in no directory")?;
    let write = || {
        let mut file =
            tempfile::Builder::new().permissions(Permissions::from_mode(0o644)).tempfile_in(dir)?;
        file.write_all(text.as_bytes())?;
        file.persist(path).map(drop).map_err(|error| error.error)
    };
    write().with_context(|| format!("writing {}", path.display()))
}

/// Reads the file; `None` if there is none.
///
/// # Errors
/// It can't be read, or is of another version.
pub fn read(dir: &Path) -> anyhow::Result<Option<State>> {
    read_as(&path(dir), SCHEMA)
}

/// Larger files are no states.
const SIZE_MAX: u64 = 16 << 20;

/// Reads the state of a service from a file; `None` if there is none.
///
/// # Errors
/// It can't be read, or has another format.
pub(crate) fn read_as<T: serde::de::DeserializeOwned>(
    path: &Path,
    schema: &str,
) -> anyhow::Result<Option<T>> {
    let damaged =
        || format!("{} is not {schema}: damaged, or of another version of nearfar", path.display());
    match read_own(path, SIZE_MAX) {
        Ok(bytes) => {
            let value: serde_json::Value = serde_json::from_slice(&bytes).with_context(damaged)?;
            anyhow::ensure!(value["schema"] == schema, damaged());
            Ok(Some(serde_json::from_value(value).with_context(damaged)?))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
    }
}

/// Path of the file with the reason why tiering ended by itself.
pub fn ended_path(dir: &Path) -> PathBuf {
    dir.join("tier-ended.json")
}

/// Writes the reason why it ended by itself.
pub(crate) fn write_ended(dir: &Path, why: &str) -> anyhow::Result<()> {
    put(&ended_path(dir), &why)
}

/// The reason why it ended by itself; `None` if it did not.
pub fn read_ended(dir: &Path) -> Option<String> {
    serde_json::from_str(&std::fs::read_to_string(ended_path(dir)).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::Command;

    /// Variable that makes this binary write states in a directory with a file system of its own.
    const SMALL: &str = "NEARFAR_TEST_SMALL";

    /// The error of a state that can't be written; the earlier file must be intact, and the only one.
    fn refused(dir: &Path, state: &str) -> String {
        let error = put(&path(dir), &state).unwrap_err();
        assert_eq!(fs::read_to_string(path(dir)).unwrap(), "\"before\"");
        assert_eq!(fs::read_dir(dir).unwrap().count(), 1, "{error:#}");
        let error = format!("{error:#}");
        assert!(error.contains("writing ") && error.contains("tier.json"), "{error}");
        error
    }

    #[test]
    fn write_errors_on_a_full_or_read_only_disk_keep_the_state() {
        if let Some(dir) = std::env::var_os(SMALL).map(PathBuf::from) {
            put(&path(&dir), &"before").unwrap();
            let error = refused(&dir, &"too much".repeat(16 << 10));
            assert!(error.contains("No space left"), "{error}");
            let mut mount = Command::new("mount");
            assert!(mount.args(["-o", "remount,ro"]).arg(&dir).status().unwrap().success());
            let error = refused(&dir, "after");
            assert!(error.contains("Read-only"), "{error}");
            mount = Command::new("mount");
            assert!(mount.args(["-o", "remount,rw"]).arg(&dir).status().unwrap().success());
            put(&path(&dir), &"after").unwrap();
            assert_eq!(fs::read_to_string(path(&dir)).unwrap(), "\"after\"");
            return;
        }
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: only root can mount a file system");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let name = "tier::state::tests::write_errors_on_a_full_or_read_only_disk_keep_the_state";
        let run = r#"mount -t tmpfs -o size=64k none "$1" && shift && exec "$@""#;
        let mut own = Command::new("unshare");
        own.args(["--mount", "sh", "-c", run, "sh"]).arg(dir.path());
        own.arg(std::env::current_exe().unwrap()).args(["--exact", name]).env(SMALL, dir.path());
        let output = own.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
    }

    #[test]
    fn writing_state_to_a_missing_directory_returns_an_error_with_the_file() {
        let dir = tempfile::tempdir().unwrap().path().to_path_buf();
        let error = format!("{:#}", put(&path(&dir), &"after").unwrap_err());
        assert!(error.contains("tier.json") && error.contains("No such file"), "{error}");
    }
}
