//! Compares tiering systems: the same workloads on the same emulated machine and kernel, in one run.
//!
//! Each row is one boot of the lab's guest and one run of `nearfar-bench workload` in it, so all begin in the same
//! state. [`rows`] has the compared systems, [`results`] the results, [`acceptance`] figures and thresholds; text and page are
//! in `pages/tiering`.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;
use nearfar_lab::machine::catalog;

pub mod acceptance;
pub mod loads;
pub mod results;
pub mod rows;
#[cfg(test)]
pub mod sample;

use super::workload::file::{self, Workload};
use super::workload::{self, Request};
use crate::demo::guest::Lab;
use nearfar_command::progress::Progress;
use results::{Compared, Found, Ran, SCHEMA};
use rows::{Commands, FIRST, Programs, ROOM, Row};

/// Share of a node's memory that kernels leave to programs, in per cent: 180 and 170 MB of cxl-2tier-small's 256 MiB.
/// Workloads are sized for it, so that twice near memory is twice the part available to programs.
const LEFT_PERCENT: u64 = 66;

/// The requested comparison.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Workloads, by name or file.
    pub(crate) workloads: Vec<String>,
    /// Rows.
    pub(crate) rows: Vec<Row>,
    /// The lab's machine; each workload's own if `None`.
    pub(crate) machine: Option<String>,
    /// A similar machine with enough near memory for everything.
    pub(crate) ample: Option<String>,
    /// The lab's kernel; its default if `None`.
    pub(crate) kernel: Option<String>,
    /// Run time of a program with one hot set.
    pub(crate) phase_s: u64,
    /// The warm-up part of that.
    pub(crate) warm_up_s: u64,
    /// Percentage of the time in which programs work; each workload's own if `None`.
    pub(crate) busy_percent: Option<u64>,
    /// Interval at which another process gets each CPU.
    pub(crate) switch_ms: u64,
    /// Concurrent boots.
    pub(crate) jobs: usize,
    /// Boots of each row.
    pub(crate) boots: usize,
    /// Whether it is a smoke run, which is not judged.
    pub(crate) smoke: bool,
    /// Peers.
    pub(crate) programs: Programs,
}

/// A row of a workload, ready to be run.
#[derive(Clone)]
struct Job {
    /// Workload, row and boot.
    at: [usize; 3],
    row: Row,
    name: String,
    request: Request,
    lab: Lab,
}

/// The plan; all errors are found before the first boot.
pub(crate) struct Plan {
    options: Options,
    found: Found,
    jobs: Vec<Job>,
}

/// Resolves the request; unavailable rows are reported as absent.
pub(crate) fn plan(options: Options) -> anyhow::Result<Plan> {
    let mut found = Found {
        schema: SCHEMA.into(),
        nearfar: env!("CARGO_PKG_VERSION").into(),
        phase_s: options.phase_s,
        warm_up_s: options.warm_up_s,
        switch_ms: options.switch_ms,
        smoke: options.smoke,
        workloads: Vec::new(),
    };
    let mut jobs = Vec::new();
    for (index, name) in options.workloads.iter().enumerate() {
        let workload = file::find(name)?;
        workload::programs::load_generator(&workload)?;
        let mut rows = Vec::new();
        for row in &options.rows {
            let mut ran = Ran::of(*row);
            match job(&options, name, &workload, *row)? {
                Ok(mut job) => {
                    job.at = [index, rows.len(), 0];
                    jobs.push(job);
                }
                Err(why) => ran.absent = Some(why),
            }
            rows.push(ran);
        }
        found.workloads.push(Compared {
            workload: workload.name.clone(),
            description: workload.description.clone(),
            tiering_helps: workload.tiering_helps,
            busy_percent: busy_percent(&options, &workload),
            rows,
        });
    }
    // All rows, then all again: drift of the host affects every row alike.
    let boots = (1..options.boots).flat_map(|boot| {
        jobs.iter().cloned().map(move |job| Job { at: [job.at[0], job.at[1], boot], ..job })
    });
    let boots: Vec<_> = boots.collect();
    jobs.extend(boots);
    Ok(Plan { options, found, jobs })
}

/// The job of a row with a workload, or the reason why it is unavailable.
fn job(
    options: &Options,
    name: &str,
    workload: &Workload,
    row: Row,
) -> anyhow::Result<Result<Job, String>> {
    let tiered = options.machine.clone().unwrap_or_else(|| workload.machine.clone());
    let machine = catalog::find(&tiered)?;
    let near = |node: &&nearfar_lab::machine::Node| node.cpus > 0;
    let near_bytes: u64 = machine.nodes.iter().filter(near).map(|node| node.size.0).sum();
    let first =
        |with_cpus: bool| machine.nodes.iter().position(|node| (node.cpus > 0) == with_cpus);
    let (Some(near), Some(far)) = (first(true), first(false)) else {
        anyhow::bail!(
            "machine {tiered} has no node without CPUs, so none to tier with; docs/machine-file.md says how to describe one"
        );
    };
    let id = |node: usize| u16::try_from(node).unwrap_or(u16::MAX);
    let commands = match rows::commands(row, &options.programs, [id(near), id(far)]) {
        Ok(commands) => commands,
        Err(why) => return Ok(Err(why)),
    };
    let machine = match (row, &options.ample) {
        (Row::Dram, Some(ample)) => ample.clone(),
        (Row::Dram, None) if tiered == "cxl-2tier-small" => "cxl-2tier-ample".into(),
        (Row::Dram, None) => {
            return Ok(Err(format!(
                "no machine like {tiered} with near memory for all; say --ample NAME|FILE"
            )));
        }
        _ => tiered,
    };
    catalog::find(&machine)?;
    let request =
        request(options, workload.clone(), row, commands, (near_bytes >> 20) * LEFT_PERCENT / 100);
    let lab = Lab { machine: Some(machine), kernel: options.kernel.clone(), ..Lab::default() };
    Ok(Ok(Job { at: [0, 0, 0], row, name: name.into(), request, lab }))
}

fn busy_percent(options: &Options, workload: &Workload) -> u64 {
    options.busy_percent.unwrap_or_else(|| workload.compared_at_percent())
}

fn request(
    options: &Options,
    workload: Workload,
    row: Row,
    commands: Commands,
    near_mib: u64,
) -> Request {
    let phases = if workload.moves() { 2 } else { 1 };
    let busy_percent = busy_percent(options, &workload);
    Request {
        workload,
        placements: vec![row.placement()],
        near_mib: Some(near_mib),
        set_mib: None,
        seconds: Some(options.phase_s * phases),
        busy_percent,
        filler_percent: None,
        first: Some(FIRST.into()),
        before: Some(commands.start.map_or(ROOM.into(), |start| format!("{ROOM}; {start}"))),
        after: commands.stop,
        switch_ms: options.switch_ms,
        daemon: row.daemon().map(Into::into),
    }
}

impl Plan {
    /// The plan, as text.
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        let times = match self.options.boots {
            ..=1 => String::new(),
            boots => format!(", {boots} boots"),
        };
        for job in self.jobs.iter().filter(|job| job.at[2] == 0) {
            let Job { row, request, lab, .. } = job;
            let machine = lab.machine.as_deref().unwrap_or_default();
            out += &format!(
                "{}, {}: machine {machine}, placement {}, {} s{times}\n",
                request.workload.name,
                row.name(),
                row.placement().name(),
                request.seconds.unwrap_or(0)
            );
            let commands =
                [("first", &request.first), ("start", &request.before), ("stop", &request.after)];
            for (what, command) in commands {
                out.extend(command.iter().map(|command| format!("  {what}: {command}\n")));
            }
        }
        for compared in &self.found.workloads {
            for ran in &compared.rows {
                let name = ran.row.name();
                out.extend(
                    ran.absent
                        .iter()
                        .map(|why| format!("{}, {name}: absent: {why}\n", compared.workload)),
                );
            }
        }
        out
    }

    /// Boots and runs the rows, up to the requested number at once. A failed row is reported as absent; `dir` receives
    /// the programs' output.
    pub(crate) fn run(self, dir: &Path) -> anyhow::Result<Found> {
        let Self { options, mut found, jobs } = self;
        let programs = dir.join("programs");
        std::fs::create_dir_all(&programs)
            .with_context(|| format!("creating {}", programs.display()))?;
        workload::programs::compile(&programs)?;
        let progress = Mutex::new(Progress::new(jobs.len(), false));
        let queue = Mutex::new(VecDeque::from(jobs));
        let done = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..options.jobs.max(1) {
                scope.spawn(|| {
                    loop {
                        // A separate statement, so that the queue is unlocked while the guest runs.
                        let job = locked(&queue).pop_front();
                        let Some(job) = job else { break };
                        let what = format!("{}, {}", job.request.workload.name, job.row.name());
                        locked(&progress).step(&what);
                        let ran = boot(&job, &programs, dir);
                        locked(&done).push((job.at, ran));
                    }
                });
            }
        });
        drop(progress);
        let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.sort_by_key(|(at, _)| *at);
        for ([workload, row, boot], ran) in done {
            let row = &mut found.workloads[workload].rows[row];
            if boot == 0 { *row = ran } else { row.again.push(ran) }
        }
        Ok(found)
    }
}

fn locked<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One boot; its directory contains the programs, and afterwards their output.
fn boot(job: &Job, programs: &Path, dir: &Path) -> Ran {
    let mut ran = Ran::of(job.row);
    if let Err(error) = run_in(job, programs, dir, &mut ran) {
        ran.absent = Some(format!("failed: {error:#}"));
    }
    ran
}

fn run_in(job: &Job, programs: &Path, dir: &Path, ran: &mut Ran) -> anyhow::Result<()> {
    let out = share(job, programs, dir)?;
    let counts = out.join(loads::FILE);
    let lab = Lab { stats: Some((counts.clone(), loads::EVERY_MS)), ..job.lab.clone() };
    let mut found = workload::guest::run(&job.request, &job.name, &lab, &out, false)?;
    let Some(run) = found.runs.pop() else { return Ok(()) };
    ran.set_bytes = found.set_bytes;
    ran.loads = loads::read(&counts, &found.machine, run.cpu, run.began_s)?;
    (ran.run, ran.machine) = (Some(run), Some(found.machine));
    Ok(())
}

/// A directory for a guest, with the programs in it.
fn share(job: &Job, programs: &Path, dir: &Path) -> anyhow::Result<PathBuf> {
    let out = dir.join(format!("{}-{}-{}", job.at[0], job.row.class(), job.at[2]));
    std::fs::create_dir_all(&out).with_context(|| format!("creating {}", out.display()))?;
    for entry in
        std::fs::read_dir(programs).with_context(|| format!("listing {}", programs.display()))?
    {
        let from = entry?.path();
        let Some(name) = from.file_name() else { continue };
        std::fs::copy(&from, out.join(name))
            .with_context(|| format!("copying {}", from.display()))?;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options {
            workloads: vec!["gups-moving".into(), "scan".into()],
            rows: Row::ALL.into(),
            machine: None,
            ample: None,
            kernel: None,
            phase_s: 90,
            warm_up_s: 60,
            busy_percent: None,
            switch_ms: 10,
            jobs: 1,
            boots: 1,
            smoke: false,
            programs: Programs { nearfar: "/n".into(), damo: None, memtierd: None },
        }
    }

    #[test]
    fn rows_differ_only_in_placement_machine_and_migration_mechanism() {
        let plan = plan(options()).unwrap();
        let gups: Vec<_> = plan.jobs.iter().filter(|job| job.at[0] == 0).collect();
        assert_eq!(gups.len(), 5, "damo and memtierd are not there");
        for job in &gups {
            let Request { seconds, near_mib, first, .. } = &job.request;
            assert_eq!(
                (seconds, near_mib, first.as_deref()),
                (&Some(180), &Some(168), Some(FIRST))
            );
            let ample = job.lab.machine.as_deref() == Some("cxl-2tier-ample");
            assert_eq!(ample, job.row == Row::Dram);
        }
        assert_eq!(plan.jobs.last().unwrap().request.seconds, Some(90), "nothing moves in a scan");
        assert!(plan.text().contains("scan, memtierd: absent: no binary"));
    }

    #[test]
    fn dram_rows_need_an_ample_machine_and_plans_need_far_memory() {
        let plan = plan(Options { machine: Some("cxl-2tier".into()), ..options() }).unwrap();
        assert!(plan.found.workloads[0].rows[0].absent.as_ref().unwrap().contains("--ample"));
        let numa = Options { machine: Some("numa-4node".into()), ..options() };
        assert!(super::plan(numa).err().unwrap().to_string().contains("without CPUs"));
        let unknown = Options { workloads: vec!["none".into()], ..options() };
        assert!(super::plan(unknown).is_err());
    }
}
