//! `nearfar record`: records how often memory is accessed, and on which node it is, over time, into a file for `nearfar
//! report`.
//!
//! DAMON monitors physical memory for the whole machine, else the virtual memory of each process, with one kdamond
//! each, as the kernel does not report the target of a region. The session goes through the journal, so that the next
//! recorder undoes the changes of a killed one. `record/how.rs` checks the options and `record/plan.rs` resolves them
//! before anything is changed; `record/follow.rs` tracks processes that start and end, `record/files.rs` writes the
//! record and Parquet.

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use nearfar_daemon::owner::Service;
use nearfar_kernel::damon::spec::Operations;
use nearfar_kernel::damon::{DamonError, DamonStat, Holder, Session, holders, offers};
use nearfar_kernel::features::{Asked, Feature, Features, State};
use nearfar_kernel::fs::Fs;
use nearfar_kernel::journal::Journal;
use nearfar_parquet::Summary;
use nearfar_record::Ending;
use nearfar_topology::Bytes;

use nearfar_command::exit::{EndsWith as _, Exit, WithExit};
use nearfar_command::machine::Machine;
use nearfar_command::progress::StatusLine;
use nearfar_command::{interrupt, new_file, output};
use nearfar_kernel::clock;

mod files;
mod follow;
mod how;
pub(crate) mod parquet;
mod place;
mod plan;

pub(crate) use how::{duration, time};

use files::Files;
use follow::Watched;
use place::Cost;
use plan::Plan;

/// The longest delay until a signal, or the end of the command, is noticed.
const NAP: Duration = Duration::from_millis(50);

/// Arguments as typed.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
#[command(group = clap::ArgGroup::new("target").required(true).args(["all", "cgroup", "pid", "command"]))]
pub(crate) struct Args {
    /// Record all of the machine's memory, by physical address
    // In all other commands --machine names one.
    #[arg(short, long, alias = "machine")]
    all: bool,
    /// Record the processes of this cgroup
    #[arg(long, value_name = "PATH")]
    cgroup: Option<String>,
    /// Record this process and its descendants
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// The file to write; an existing one is kept as FILE.old
    #[arg(short, long, value_name = "FILE", default_value = "nearfar.nfr")]
    output: PathBuf,
    #[command(flatten)]
    how: how::HowArgs,
    #[command(flatten)]
    parquet: parquet::ParquetArgs,
    /// Stop after this time, such as 30s or 5m; CMD then runs on, and nearfar waits for it [default: when the recorded
    /// processes end, or at ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = how::duration)]
    duration: Option<Duration>,
    /// Refuse to record while the kernel's own damon_stat holds DAMON [default: pause it and resume it afterwards]
    #[arg(long)]
    keep_damon_stat: bool,
    /// Run this command, and record it and its descendants until it ends
    #[arg(trailing_var_arg = true, value_name = "CMD", num_args = 1..)]
    command: Vec<String>,
}

const HELP: &str = "\
Recorded memory: with --all physical memory; else the virtual memory of each process separately, by its own addresses. New descendants, or new processes in the cgroup, are found at each snapshot and recorded from then on; one that starts and ends between two snapshots is missed. At most 16 processes are recorded at once; the record notes the others, and `nearfar report info` lists the recorded ones with their start. Residency is counted for all processes.

On a terminal a line shows progress, except with CMD, which uses the terminal itself.

Exit status with CMD: CMD's own (128 + the signal, if one ended it); 125 nearfar failed, and CMD was ended; 126 CMD \
can't be executed, 127 CMD was not found.";

/// Records.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    new_file::check([&args.output])?;
    args.how.check().map_err(anyhow::Error::msg).ends_with(Exit::Usage)?;
    args.parquet.check()?;
    let machine = Machine::default();
    let fs = machine.open()?;
    let stop = interrupt::flag()?;
    let before = if args.command.is_empty() { Exit::Failed } else { Exit::BeforeCommand };
    possible(args, fs.as_ref()).ends_with(before)?;
    let mut child = if args.command.is_empty() { None } else { Some(start(&args.command)?) };
    let pid = child.as_ref().map(Child::id);
    let done = Plan::new(args, pid, &machine, fs.as_ref())
        .and_then(|plan| record(args, &plan, fs.as_ref(), &stop, child.as_mut()));
    if let (Err(_), Some(child)) = (&done, child.as_mut()) {
        // The command was to be recorded, so it is ended; it may have ended by itself.
        let _ = child.kill();
    }
    let status = child.as_mut().map(Child::wait).transpose().context("can't wait for CMD")?;
    let done = if status.is_some() { done.ends_with(Exit::BeforeCommand) } else { done };
    output::remark(done?);
    Ok(status.map_or(Exit::Done, of_status).into())
}

/// Refuses, before the command is started, if DAMON is held, or if the kernel lacks a requested feature. A kdamond may be
/// left over from a killed recorder; the trial and the session remove it.
fn possible(args: &Args, fs: &dyn Fs) -> anyhow::Result<()> {
    let mut held = holders(fs).unwrap_or_default();
    held.retain(|holder| {
        let can_pause = !args.keep_damon_stat && holder.name() == "damon_stat";
        matches!(holder, Holder::Module { .. }) && !can_pause
    });
    if !held.is_empty() {
        return Err(explained(DamonError::Held(held), args));
    }
    let journal = Journal::new(Journal::default_dir(), fs, "/");
    if !args.command.is_empty() {
        // Only a trial shows whether DAMON is free for the session, and can monitor processes.
        let offered = offers::trial(fs, &journal).map_err(|error| explained(error, args))?;
        if !offered.has(Feature::DamonVaddr) {
            return Err(explained(DamonError::Unwatched { operations: Operations::Vaddr }, args));
        }
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
        let hint = match name.parse::<u32>() {
            Ok(pid) => format!(" (a running process is recorded by --pid {pid})"),
            Err(_) => String::new(),
        };
        let error = anyhow::Error::from(error).context(format!("can't run `{name}`{hint}"));
        WithExit { exit, error }.into()
    })
}

/// A shell's status for the end of the command.
fn of_status(status: ExitStatus) -> Exit {
    let signal = || status.signal().map(|signal| signal + 128);
    let code = status.code().or_else(signal).and_then(|code| u8::try_from(code).ok());
    Exit::Command(code.unwrap_or(1))
}

/// Records until it is time to stop; returns the messages for the user.
fn record(
    args: &Args,
    plan: &Plan,
    fs: &dyn Fs,
    stop: &AtomicBool,
    mut child: Option<&mut Child>,
) -> anyhow::Result<String> {
    let journal = Journal::new(Journal::default_dir(), fs, PathBuf::from("/"));
    let stat = if args.keep_damon_stat { DamonStat::Keep } else { DamonStat::Pause };
    output::note_paused(fs, stat);
    let dataset = args.parquet.open(fs, &plan.header)?;
    let (mut watched, kdamonds) = Watched::begin(args, plan, fs)?;
    let mut session = Session::start_with_room(fs, &journal, &kdamonds, watched.room(), stat)
        .map_err(|error| explained(error, args))?;
    let mut recording = Files::create(&args.output, &plan.header, dataset)?;
    let line = if child.is_none() { StatusLine::new() } else { StatusLine::hidden() };
    watched.introduce(fs, &mut recording)?;
    if !args.all {
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
        recording.access(intervals, targets)?;
        if let Some(nodes) = place::residency(fs, plan, &processes) {
            recording.residency(nodes)?;
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
    let (ending, summary) = recording.end(cost.kernel_ns(), place::own_cpu(fs))?;
    Ok(summary_text(args, (snapshots, bytes), ending, summary))
}

/// Progress of a recording, and the line that shows it.
#[derive(Debug)]
struct SoFar {
    line: StatusLine,
    /// The second in which it was last written.
    second: Option<u64>,
    snapshots: u64,
    cost: Cost,
}

impl SoFar {
    /// Shows elapsed time, snapshots, size and overhead, once a second.
    fn show(&mut self, recording: &Files, watched: &Watched<'_>, fs: &dyn Fs) {
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

/// `part` of `whole`, in per cent.
fn share(part: u64, whole: u64) -> String {
    let part = u128::from(part) * 10_000 / u128::from(whole.max(1));
    format!("{}.{:02} %", part / 100, part % 100)
}

fn summary_text(
    args: &Args,
    (snapshots, bytes): (u64, u64),
    ending: Ending,
    summary: Option<Summary>,
) -> String {
    let file = args.output.display();
    let mut text = if snapshots == 0 {
        format!(
            "no snapshot in {file}: it ended before the first one, after {} ms; --interval makes snapshots more frequent",
            ending.at_ns / 1_000_000
        )
    } else {
        format!(
            "{snapshots} snapshot{} in {file} ({}); recording took {} of a CPU in the kernel and {} in nearfar",
            if snapshots == 1 { "" } else { "s" },
            Bytes(bytes),
            share(ending.kernel_cpu_ns, ending.at_ns),
            share(ending.own_cpu_ns, ending.at_ns),
        )
    };
    if let Some((dir, summary)) = args.parquet.dir.as_ref().zip(summary) {
        text += &format!("\n{}", parquet::summary_text(dir, summary));
    }
    text
}

/// Adds to an error the option that avoids it.
fn explained(error: DamonError, args: &Args) -> anyhow::Error {
    let stat = args.keep_damon_stat && error.to_string().contains("damon_stat");
    let tiers = |pid: &u32| Service::Tier.running().is_some_and(|tiering| tiering.pid == *pid);
    let hint = match &error {
        _ if stat => "; or leave --keep-damon-stat out, and nearfar pauses it during the recording",
        DamonError::Unwatched { .. } if !args.all => {
            "; nearfar record --all records physical memory"
        }
        DamonError::InUse { pid: Some(pid) } if tiers(pid) => {
            "; it is tiering: nearfar tier start --record FILE keeps a record meanwhile"
        }
        _ => return error.into(),
    };
    anyhow::anyhow!("{error}{hint}")
}
