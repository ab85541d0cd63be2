//! Moving the memory of processes, and moving it back by a file with the former places of pages.
//!
//! Problem: a move can't be undone by the nodes alone, because pages were spread before. Approach: former places are kept
//! as runs of pages, by process and start time. Limits: a page that the program has freed and allocated again since is
//! taken for the former one; policies of the process are not changed, so later pages go where these say.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;
use nearfar_kernel::cgroup::Hierarchy;
use nearfar_kernel::clock::Stopwatch;
use nearfar_kernel::fs::{self, Fs as _, RootFs};
use nearfar_kernel::mapped;
use nearfar_kernel::moving::{Migration, Run};
use nearfar_kernel::process::Identity;
use nearfar_policy::traffic::PAGE;
use nearfar_topology::{Bytes, BytesPerSecond, Nanoseconds, NodeId, NodeSet, Topology};
use serde::{Deserialize, Serialize};

use super::{carry_out, free, has_room, may_use, stayed};
use crate::exit::{EndsWith as _, Exit};
use crate::new_file::NewFile;
use crate::output;

/// The JSON of `nearfar.move/1`.
#[derive(Debug, Serialize)]
pub struct Report {
    schema: &'static str,
    processes: Vec<Done>,
    seconds: f64,
    /// Whether all was visited.
    pub complete: bool,
}

/// A process.
#[derive(Debug, Serialize)]
struct Done {
    pid: u32,
    moved_bytes: u64,
    before: BTreeMap<NodeId, u64>,
    after: BTreeMap<NodeId, u64>,
    not_moved_pages: BTreeMap<&'static str, u64>,
    policies: Vec<String>,
}

/// Former places of pages: `nearfar.moved/1`.
#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    schema: String,
    processes: Vec<SavedProcess>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedProcess {
    #[serde(flatten)]
    identity: Identity,
    /// First page, number of pages, node.
    runs: Vec<(u64, u64, u16)>,
}

impl Saved {
    /// Whether all runs are in address spaces of processes, which have at most 56 bits (x86-64 with five levels).
    fn has_addresses(&self) -> bool {
        let mut runs = self.processes.iter().flat_map(|process| &process.runs);
        runs.all(|(first, pages, _)| first.checked_add(*pages).is_some_and(|end| end <= 1 << 44))
    }
}

const SAVED: &str = "nearfar.moved/1";
/// Larger files are none.
const SAVED_MAX: u64 = 1 << 30;

/// The work on one process.
#[derive(Debug)]
pub struct Job {
    identity: Identity,
    migration: Migration,
    before: BTreeMap<NodeId, u64>,
    /// The bytes of `before` that are not at their target.
    away: u64,
}

/// The effects of the migrations, a line a process, as far as they can be known before.
#[must_use]
pub fn preview(jobs: &[Job]) -> String {
    let line = |job: &Job| {
        let (pid, away) = (job.identity.pid, Bytes(job.away));
        format!("would move at most {away} of process {pid}; now: {}\n", on_nodes(&job.before))
    };
    jobs.iter().map(line).collect()
}

/// Carries the migrations out, one after the other, and writes the former places into a file, if one is named.
///
/// # Errors
/// The file can't be written, or a process not be read.
pub fn all(fs: &RootFs, mut jobs: Vec<Job>, into: Option<&Path>) -> anyhow::Result<Report> {
    let cannot = |file: &Path| format!("can't write {}", file.display());
    // Before a page moves: else there would be no way back.
    let open = |file: &Path| {
        let is_there = file.metadata().is_ok_and(|there| there.is_file() && there.len() > 0);
        anyhow::ensure!(
            !is_there,
            "{}: it exists, and may be the way back of an earlier move; name another file, or remove it",
            cannot(file)
        );
        NewFile::begin(file, 0o600).with_context(|| cannot(file))
    };
    let into = into.map(|file| open(file).map(|begun| (file, begun))).transpose()?;
    let watch = Stopwatch::start();
    let mut complete = true;
    for job in &mut jobs {
        complete = complete && carry_out(&mut job.migration, fs, watch)?;
    }
    let seconds = watch.elapsed().as_secs_f64();
    // First of all: an error after it must not cost the way back.
    if let Some((file, begun)) = into {
        let saved = jobs.iter().map(SavedProcess::of).collect();
        save(begun, saved).with_context(|| cannot(file))?;
    }
    let processes = jobs.into_iter().map(|job| Done::of(fs, job)).collect::<Result<_, _>>()?;
    Ok(Report { schema: "nearfar.move/1", processes, seconds, complete })
}

/// Migrations of all resident pages of a process, or of those in a cgroup, to the nodes.
///
/// # Errors
/// There is no such process or cgroup, it may not use the nodes, or they have no room.
pub fn there(
    fs: &RootFs,
    machine: &Topology,
    (owner, targets): (&str, &NodeSet),
    rate: BytesPerSecond,
) -> anyhow::Result<Vec<Job>> {
    let pids = pids(fs, owner)?;
    let (mut jobs, mut outside) = (Vec::new(), 0_u64);
    for pid in pids {
        let Some(identity) = Identity::of(pid) else { continue };
        let mappings = match mapped::of_process(fs, pid) {
            Ok(mappings) => mappings,
            Err(error) if error.is_permission() => {
                return Err(output::forbidden(pid, "CAP_SYS_PTRACE, CAP_SYS_NICE"));
            }
            Err(error) => return Err(error.into()),
        };
        let before = by_node(&mappings);
        let away = before.iter().filter(|(node, _)| !targets.contains(**node));
        let away = away.map(|(_, bytes)| *bytes).sum();
        outside = outside.saturating_add(away);
        match may_use(pid, targets) {
            // It has ended meanwhile.
            Err(_) if !identity.is_running() => continue,
            allowed => allowed?,
        }
        let ranges = mappings.iter().filter(|mapping| mapping.resident() > Bytes(0));
        let ranges: Vec<_> = ranges.map(|mapping| (mapping.start, mapping.end)).collect();
        let free = free(machine, targets);
        let migration = Migration::new(pid, ranges, free, rate, Nanoseconds(0));
        jobs.push(Job { identity, migration, before, away });
    }
    has_room(machine, targets, Bytes(outside))?;
    Ok(jobs)
}

/// The process, or those of the cgroup.
fn pids(fs: &RootFs, owner: &str) -> anyhow::Result<Vec<u32>> {
    if let Ok(pid) = owner.parse::<u32>() {
        let gone = || anyhow::anyhow!("process {pid} does not exist");
        Identity::of(pid).ok_or_else(gone)?;
        let sizes = fs.read(&format!("proc/{pid}/statm"))?.unwrap_or_default();
        anyhow::ensure!(
            !sizes.starts_with("0 "),
            "process {pid} is a thread of the kernel, which has no memory of its own"
        );
        return Ok(vec![pid]);
    }
    let hierarchy = Hierarchy::find(fs)?;
    let neither = || format!("{owner} is no process id and no cgroup; nearfar ps NAME shows ids");
    let path = hierarchy.named(fs, owner).with_context(neither).ends_with(Exit::Usage)?;
    let members = hierarchy.members(fs, &path)?;
    anyhow::ensure!(!members.is_empty(), "cgroup {path} has no processes");
    Ok(members)
}

/// Migrations of saved pages to their former nodes, for processes that still run.
///
/// # Errors
/// The file is not one that was saved, or the nodes may not be used.
pub fn back(
    fs: &RootFs,
    machine: &Topology,
    file: &Path,
    rate: BytesPerSecond,
) -> anyhow::Result<Vec<Job>> {
    let asked = || format!("--undo {}", file.display());
    let bytes = fs::read_own(file, SAVED_MAX).with_context(asked).ends_with(Exit::Usage)?;
    let read = serde_json::from_slice::<Saved>(&bytes).ok();
    let other = || anyhow::anyhow!("{}: no file of nearfar move --save ({SAVED})", asked());
    let is_sound = |saved: &Saved| saved.schema == SAVED && saved.has_addresses();
    let saved = read.filter(is_sound).ok_or_else(other).ends_with(Exit::Usage)?;
    let all = saved.processes.len();
    let mut jobs = Vec::new();
    for one in saved.processes {
        let pid = one.identity.pid;
        if !one.identity.is_running() {
            output::note(format_args!("process {pid} has ended"));
            continue;
        }
        let runs = one.runs.iter();
        let runs: Vec<Run> = runs
            .map(|(first, pages, node)| Run { first: *first, pages: *pages, node: NodeId(*node) })
            .collect();
        let targets: NodeSet = runs.iter().map(|run| run.node).collect();
        may_use(pid, &targets)?;
        let before = by_node(&mapped::of_process(fs, pid)?);
        let free = free(machine, &targets);
        let pages = runs.iter().map(|run| run.pages).fold(0, u64::saturating_add);
        let away = pages.saturating_mul(PAGE);
        let migration = Migration::back(pid, &runs, free, rate, Nanoseconds(0));
        jobs.push(Job { identity: one.identity, migration, before, away });
    }
    anyhow::ensure!(!jobs.is_empty() || all == 0, "{}: nothing is left to move back", asked());
    Ok(jobs)
}

/// For people: `3 MiB on node 0, 1 MiB on node 2`.
fn on_nodes(sums: &BTreeMap<NodeId, u64>) -> String {
    let list = sums.iter().map(|(node, bytes)| format!("{} on node {node}", Bytes(*bytes)));
    list.collect::<Vec<_>>().join(", ")
}

fn by_node(mappings: &[mapped::Mapping]) -> BTreeMap<NodeId, u64> {
    let mut sums = BTreeMap::new();
    for (node, bytes) in mappings.iter().flat_map(|mapping| &mapping.nodes) {
        let sum: &mut u64 = sums.entry(*node).or_default();
        *sum = sum.saturating_add(bytes.0);
    }
    sums
}

impl SavedProcess {
    fn of(job: &Job) -> Self {
        let runs = job.migration.moved().iter().map(|run| (run.first, run.pages, run.node.0));
        Self { identity: job.identity, runs: runs.collect() }
    }
}

impl Done {
    fn of(fs: &RootFs, job: Job) -> anyhow::Result<Self> {
        let mappings = mapped::of_process(fs, job.identity.pid)?;
        let mut policies: Vec<String> =
            mappings.iter().map(|mapping| mapping.policy.clone()).collect();
        policies.sort();
        policies.dedup();
        let tally = job.migration.tally();
        Ok(Self {
            pid: job.identity.pid,
            moved_bytes: tally.bytes().0,
            before: job.before,
            after: by_node(&mappings),
            not_moved_pages: stayed(tally),
            policies,
        })
    }
}

/// Writes the file.
fn save(mut begun: NewFile, processes: Vec<SavedProcess>) -> anyhow::Result<()> {
    let saved = Saved { schema: SAVED.into(), processes };
    begun.write_all(serde_json::to_string(&saved)?.as_bytes())?;
    Ok(begun.finish()?)
}

impl Report {
    /// For people.
    #[must_use]
    pub fn text(&self, saved: Option<&Path>) -> String {
        let mut out = String::new();
        for one in &self.processes {
            let line = format!(
                "moved {} in {:.1} s; before: {}; now: {}",
                Bytes(one.moved_bytes),
                self.seconds,
                on_nodes(&one.before),
                on_nodes(&one.after)
            );
            output::wrapped(&mut out, &format!("process {}: ", one.pid), &line, 2);
            for (reason, count) in &one.not_moved_pages {
                output::wrapped(
                    &mut out,
                    "  ",
                    &format!("{count} pages: {}", reason.replace('_', " ")),
                    4,
                );
            }
            let policies =
                format!("pages touched later follow its policy: {}", one.policies.join("; "));
            output::wrapped(&mut out, "  ", &policies, 4);
        }
        match saved {
            Some(file) => {
                let undo = format!("undo with: nearfar move --undo {}", file.display());
                output::wrapped(&mut out, "", &undo, 0);
            }
            None if !self.complete => out.push_str("interrupted; the rest stays where it was\n"),
            None => {}
        }
        out
    }
}
