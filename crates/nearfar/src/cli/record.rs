//! `nearfar record`: which memory is accessed how often, and where it is, over time, into a file for `nearfar report`.
//!
//! DAMON watches: physical memory for the whole machine, else the virtual memory of each process (a kdamond each, as
//! the kernel does not say which target a region is of). Its session goes through the journal, so what a killed recorder
//! left is undone by the next one. What is asked for is checked in `record/how.rs` and found in `record/plan.rs` before
//! anything is changed; `record/follow.rs` keeps up with processes that come and go.

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use nearfar_kernel::damon::{DamonError, DamonStat, Holder, Session, holders};
use nearfar_kernel::features::{Asked, Feature, Features, State};
use nearfar_kernel::fs::Fs;
use nearfar_kernel::journal::Journal;
use nearfar_record::{Access, Ending, Residency};
use nearfar_topology::Bytes;

use super::machine::MachineArgs;
use super::output;
use crate::clock;
use crate::demo::progress::StatusLine;
use crate::exit::{EndsWith as _, Exit, WithExit};
use crate::recording::Recording;

mod follow;
mod how;
mod place;
mod plan;

pub(crate) use how::duration;

use follow::Watched;
use place::Cost;
use plan::Plan;

/// The longest wait before a signal, or the end of the command, is seen.
const NAP: Duration = Duration::from_millis(50);

/// As typed.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
#[command(group = clap::ArgGroup::new("target").required(true).args(["machine", "cgroup", "pid", "command"]))]
pub(crate) struct Args {
    /// Record all of the machine's memory, by physical address
    #[arg(long)]
    machine: bool,
    /// Record the processes of this cgroup
    #[arg(long, value_name = "PATH")]
    cgroup: Option<String>,
    /// Record this process and what it starts
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    how: how::HowArgs,
    /// Stop after this time, such as 30s or 5m [default: when what is recorded ends, or at ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = how::duration)]
    duration: Option<Duration>,
    /// Turn the kernel's own damon_stat off for as long as it takes, if it holds DAMON
    #[arg(long)]
    pause_damon_stat: bool,
    /// Run this command, and record it and what it starts until it ends
    #[arg(last = true, value_name = "CMD", num_args = 1..)]
    command: Vec<String>,
}

const HELP: &str = "\
What is watched: with --machine physical memory; else the virtual memory of processes, each apart, by its own \
addresses. Processes that a recorded one starts, or that come into the cgroup, are looked for at each snapshot and \
watched from then on; one that starts and ends between two snapshots is not seen. At most 16 are watched at once; the \
record notes others, and `nearfar report info` lists who was watched from when. Where memory lies is counted for all \
of them.

On a terminal a line shows how far it is, except with CMD, whose terminal it is then.

Exit status with CMD: CMD's own (128 + the signal, if one ended it); 125 nearfar failed, and CMD was ended; 126 CMD \
can't be executed, 127 CMD was not found.";

/// Records.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    super::demo::writable(&args.output)?;
    args.how.check().map_err(anyhow::Error::msg).ends_with(Exit::Usage)?;
    let machine = MachineArgs::default();
    let fs = machine.open()?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("can't catch signals")?;
    }
    let before = if args.command.is_empty() { Exit::Failed } else { Exit::BeforeCommand };
    possible(args, fs.as_ref()).ends_with(before)?;
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

/// Refuses before the command is started if the kernel's own modules hold DAMON, or it lacks what was asked for; a
/// kdamond may be one that a killed recorder left, which the session puts away.
fn possible(args: &Args, fs: &dyn Fs) -> anyhow::Result<()> {
    let mut held = holders(fs).unwrap_or_default();
    held.retain(|holder| matches!(holder, Holder::Module { .. }));
    if !args.pause_damon_stat && !held.is_empty() {
        return Err(explained(&DamonError::Held(held), args));
    }
    let tunes = Feature::DamonIntervalsGoal;
    let lacks = || {
        Features::detect_some(fs, Asked::Live, &[Feature::Damon, tunes]).state(tunes)
            == State::Lacking
    };
    anyhow::ensure!(
        !args.how.is_tuned() || !lacks(),
        "--sample auto: this kernel's DAMON can't tune its intervals (Linux 6.15 can); give a time, such as --sample 5ms"
    );
    Ok(())
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
    let (mut watched, kdamonds) = Watched::begin(args, plan, fs)?;
    let mut session = Session::start_with_room(fs, &journal, &kdamonds, watched.room(), stat)
        .map_err(|error| explained(&error, args))?;
    let mut recording = Recording::create(&args.output, &plan.header)?;
    let line = if child.is_none() { StatusLine::new() } else { StatusLine::hidden() };
    watched.introduce(fs, &mut recording)?;
    if !args.machine {
        watched.follow(fs, &mut session, &mut recording)?;
    }
    let mut so_far = SoFar { line, second: None, snapshots: 0, cost: Cost::default() };
    let mut over = || {
        stop.load(Ordering::Relaxed)
            || child.as_mut().is_some_and(|of| !matches!(of.try_wait(), Ok(None)))
    };
    let mut next = Duration::ZERO;
    so_far.cost.look(fs, &session);
    loop {
        next = (next + args.how.interval).max(recording.elapsed());
        let over = loop {
            so_far.show(&recording, &watched, fs);
            let now = recording.elapsed();
            let over = over() || args.duration.is_some_and(|limit| now >= limit);
            if over || now >= next {
                break over;
            }
            clock::sleep(NAP.min(next - now));
        };
        if over && so_far.snapshots > 0 {
            break;
        }
        let processes = watched.follow(fs, &mut session, &mut recording)?;
        let Some((intervals, targets)) = watched.look(&session)? else { break };
        recording.append(|writer, at_ns| writer.access(&Access { at_ns, intervals, targets }))?;
        if let Some(nodes) = place::residency(fs, plan, &processes) {
            recording.append(|writer, at_ns| writer.residency(&Residency { at_ns, nodes }))?;
        }
        so_far.snapshots += 1;
        so_far.cost.look(fs, &session);
        if over {
            break;
        }
    }
    let SoFar { snapshots, cost, .. } = so_far;
    session.stop()?;
    let bytes = recording.bytes();
    let ending = recording.end(cost.kernel_ns(), place::own_cpu(fs))?;
    Ok(said(args, snapshots, bytes, ending))
}

/// What a recording has come to, and the line that shows it.
#[derive(Debug)]
struct SoFar {
    line: StatusLine,
    /// When it was last written.
    second: Option<u64>,
    snapshots: u64,
    cost: Cost,
}

impl SoFar {
    /// Shows elapsed time, snapshots, size, and what it costs, once a second.
    fn show(&mut self, recording: &Recording, watched: &Watched<'_>, fs: &dyn Fs) {
        let second = recording.elapsed().as_secs();
        if !self.line.is_shown() || self.second == Some(second) {
            return;
        }
        self.second = Some(second);
        let processes = match watched.processes().count() {
            0 => String::new(),
            1 => ", 1 process".into(),
            several => format!(", {several} processes"),
        };
        self.line.show(format_args!(
            "{second} s, {} snapshots{processes}, {}; {} of a CPU in the kernel, {} in nearfar",
            self.snapshots,
            Bytes(recording.bytes()),
            share(self.cost.kernel_ns(), recording.at_ns()),
            share(place::own_cpu(fs), recording.at_ns()),
        ));
    }
}

/// `part` of `whole` in per cent.
fn share(part: u64, whole: u64) -> String {
    let part = u128::from(part) * 10_000 / u128::from(whole.max(1));
    format!("{}.{:02} %", part / 100, part % 100)
}

fn said(args: &Args, snapshots: u64, bytes: u64, ending: Ending) -> String {
    format!(
        "{snapshots} snapshot{} in {} ({}); recording took {} of a CPU in the kernel and {} in nearfar",
        if snapshots == 1 { "" } else { "s" },
        args.output.display(),
        Bytes(bytes),
        share(ending.kernel_cpu_ns, ending.at_ns),
        share(ending.own_cpu_ns, ending.at_ns),
    )
}

/// An error with the option that helps.
fn explained(error: &DamonError, args: &Args) -> anyhow::Error {
    let stat = !args.pause_damon_stat && error.to_string().contains("damon_stat");
    let hint = if stat { "; or let nearfar pause it: --pause-damon-stat" } else { "" };
    anyhow::anyhow!("{error}{hint}")
}
