//! `nearfar record`: which memory is accessed how often, and where it is, over time, into a file for `nearfar report`.
//!
//! DAMON watches: physical memory for the whole machine, else the virtual memory of each process (a kdamond each, as
//! the kernel does not say which target a region is of). Its session goes through the journal, so what a killed recorder
//! left is undone by the next one. What is watched and how is found in `record/plan.rs` before anything is changed.

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use nearfar_kernel::damon::{DamonError, DamonStat, Holder, Session, holders};
use nearfar_kernel::fs::Fs;
use nearfar_kernel::journal::Journal;
use nearfar_record::{Access, Ending, Range, Region, Snapshot, Writer};

use super::machine::MachineArgs;
use super::output;
use crate::clock::{self, Stopwatch};
use crate::exit::{EndsWith as _, Exit, WithExit};

mod place;
mod plan;

use plan::Plan;

/// The longest wait before a signal, or the end of the command, is seen.
const NAP: Duration = Duration::from_millis(50);

/// As typed.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("target").required(true).args(["machine", "cgroup", "pid", "command"]))]
pub(crate) struct Args {
    /// Record all of the machine's memory, by physical address
    #[arg(long)]
    machine: bool,
    /// Record the processes that are in this cgroup now
    #[arg(long, value_name = "PATH")]
    cgroup: Option<String>,
    /// Record this process
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Time between two snapshots, such as 500ms or 2s
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = plan::time)]
    interval: Duration,
    /// Stop after this time, such as 30s or 5m [default: when what is recorded ends, or at ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = plan::time)]
    duration: Option<Duration>,
    /// Turn the kernel's own damon_stat off for as long as it takes, if it holds DAMON
    #[arg(long)]
    pause_damon_stat: bool,
    /// Run this command, and record it (not what it starts) until it ends
    #[arg(last = true, value_name = "CMD", num_args = 1..)]
    command: Vec<String>,
}

/// Records.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    super::demo::writable(&args.output)?;
    let machine = MachineArgs::default();
    let fs = machine.open()?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("can't catch signals")?;
    }
    free(args, fs.as_ref())?;
    let mut child = if args.command.is_empty() { None } else { Some(start(&args.command)?) };
    let pid = child.as_ref().map(Child::id);
    let done = Plan::new(args, pid, &machine, fs.as_ref())
        .and_then(|plan| record(args, &plan, fs.as_ref(), &stop, child.as_mut()));
    if let (Err(_), Some(child)) = (&done, child.as_mut()) {
        // It was to be recorded; it may have ended by itself.
        let _ = child.kill();
    }
    let status = child.as_mut().map(Child::wait).transpose().context("can't wait for CMD")?;
    let done = if status.is_some() { done.ends_with(Exit::BeforeCommand) } else { done };
    output::note(done?);
    Ok(status.map_or(Exit::Done, of_status).into())
}

/// Refuses before the command is started if the kernel's own modules hold DAMON; a kdamond may be one that a killed
/// recorder left, which the session puts away.
fn free(args: &Args, fs: &dyn Fs) -> anyhow::Result<()> {
    let mut held = holders(fs).unwrap_or_default();
    held.retain(|holder| matches!(holder, Holder::Module { .. }));
    if args.pause_damon_stat || held.is_empty() {
        return Ok(());
    }
    let exit = if args.command.is_empty() { Exit::Failed } else { Exit::BeforeCommand };
    Err(explained(&DamonError::Held(held), args)).ends_with(exit)
}

fn start(command: &[String]) -> anyhow::Result<Child> {
    let name = command.first().map_or("", String::as_str);
    Command::new(name).args(&command[1..]).spawn().map_err(|error| {
        let exit = Exit::of_start(&error);
        WithExit { exit, error: anyhow::Error::from(error).context(format!("can't run `{name}`")) }
            .into()
    })
}

/// A shell's status for how the command ended.
fn of_status(status: ExitStatus) -> Exit {
    let signal = || status.signal().map(|signal| signal + 128);
    let code = status.code().or_else(signal).and_then(|code| u8::try_from(code).ok());
    Exit::Command(code.unwrap_or(1))
}

/// Records until it is time to stop; gives what is to be said of it.
fn record(
    args: &Args,
    plan: &Plan,
    fs: &dyn Fs,
    stop: &AtomicBool,
    mut child: Option<&mut Child>,
) -> anyhow::Result<String> {
    let journal = Journal::new(Journal::default_dir(), fs, PathBuf::from("/"));
    let stat = if args.pause_damon_stat { DamonStat::Pause } else { DamonStat::Keep };
    let session = Session::start(fs, &journal, &plan.kdamonds, stat)
        .map_err(|error| explained(&error, args))?;
    let writing = || format!("writing {}", args.output.display());
    let mut writer = Writer::create(&args.output, &plan.header).with_context(writing)?;
    let watch = Stopwatch::start();
    let mut snapshots = 0u64;
    let mut next = Duration::ZERO;
    let mut cpu = place::cpu_of_kdamonds(fs, &session);
    let over = |child: &mut Option<&mut Child>| {
        stop.load(Ordering::Relaxed)
            || args.duration.is_some_and(|limit| watch.elapsed() >= limit)
            || child.as_mut().is_some_and(|of| !matches!(of.try_wait(), Ok(None)))
    };
    loop {
        next += args.interval;
        while watch.elapsed() < next && !over(&mut child) {
            clock::sleep(NAP.min(next.saturating_sub(watch.elapsed())));
        }
        if over(&mut child) && snapshots > 0 {
            break;
        }
        let targets = targets(&session)?;
        if targets.is_empty() {
            break;
        }
        let at_ns = nanoseconds(watch);
        let intervals = plan.header.intervals;
        writer.access(&Access { at_ns, intervals, targets }).with_context(writing)?;
        if let Some(residency) = place::residency(fs, plan, at_ns) {
            writer.residency(&residency).with_context(writing)?;
        }
        snapshots += 1;
        cpu = place::cpu_of_kdamonds(fs, &session).max(cpu);
        if over(&mut child) {
            break;
        }
    }
    session.stop()?;
    let at_ns = nanoseconds(watch);
    let ending = Ending { at_ns, kernel_cpu_ns: cpu, own_cpu_ns: place::own_cpu(fs) };
    let bytes = writer.bytes();
    writer.end(ending).and_then(|file| file.sync_all()).with_context(writing)?;
    Ok(said(args, snapshots, bytes, ending))
}

fn said(args: &Args, snapshots: u64, bytes: u64, ending: Ending) -> String {
    let share = |ns: u64| {
        let part = u128::from(ns) * 10_000 / u128::from(ending.at_ns.max(1));
        format!("{}.{:02} %", part / 100, part % 100)
    };
    format!(
        "{snapshots} snapshot{} in {} ({}); recording took {} of a CPU in the kernel and {} in nearfar",
        if snapshots == 1 { "" } else { "s" },
        args.output.display(),
        nearfar_topology::Bytes(bytes),
        share(ending.kernel_cpu_ns),
        share(ending.own_cpu_ns),
    )
}

/// The regions of each kdamond that still runs.
fn targets(session: &Session<'_>) -> anyhow::Result<Vec<Snapshot>> {
    let mut targets = Vec::new();
    for index in 0..session.len() {
        let regions = match session.regions(index, 0) {
            Ok(regions) => regions,
            Err(DamonError::Gone { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let mut end = 0;
        let mut kept = Vec::new();
        for of in regions {
            // The kernel may still be merging: what overlaps has been said already.
            let range = Range { start: of.range.start.max(end), end: of.range.end };
            if range.bytes() > 0 {
                end = range.end;
                kept.push(Region { range, accesses: small(of.nr_accesses), age: small(of.age) });
            }
        }
        targets.push(Snapshot { target: u32::try_from(index).unwrap_or(u32::MAX), regions: kept });
    }
    Ok(targets)
}

/// An error with the option that helps.
fn explained(error: &DamonError, args: &Args) -> anyhow::Error {
    let stat = !args.pause_damon_stat && error.to_string().contains("damon_stat");
    let hint = if stat { "; or let nearfar pause it: --pause-damon-stat" } else { "" };
    anyhow::anyhow!("{error}{hint}")
}

fn nanoseconds(watch: Stopwatch) -> u64 {
    u64::try_from(watch.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
