//! `nearfar-bench workload`: a workload here or in the lab.

use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::scratch;
use crate::demo::guest::{Lab, hand_over};
use crate::workload::results::{self, Found};
use crate::workload::{self, Placement, Request, file, guest, programs};
use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_command::number::{percent, whole};
use nearfar_command::output;

/// Arguments as typed.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Workload: a built-in name, or a workload file; without it, all are listed
    #[arg(value_name = "NAME|FILE")]
    workload: Option<String>,
    /// Placement of the data; several run one after the other, and ratios are to the first
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "default",
        value_name = "PLACEMENT,..."
    )]
    placement: Vec<Placement>,
    /// Near memory for which the workload is sized [default: the machine's]
    #[arg(long, value_name = "MIB", value_parser = whole::<u64>(16..=1 << 30))]
    near_mib: Option<u64>,
    /// Working set [default: the workload's share of near memory]
    #[arg(long, value_name = "MIB", value_parser = whole::<u64>(1..=1 << 30))]
    set_mib: Option<u64>,
    /// Length of the timed part [default: the workload's]
    #[arg(long, value_name = "S", value_parser = whole::<u64>(1..=1_000_000))]
    seconds: Option<u64>,
    /// Percentage of every 10 ms in which the program works: less shortens emulation, and throughput is relative to
    /// busy time
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = percent::<u64>(1..=100))]
    busy_percent: u64,
    /// Cold data allocated first, in per cent of near memory [default: the workload's]
    #[arg(long, value_name = "PERCENT", value_parser = percent::<u64>(0..=95))]
    filler_percent: Option<u64>,
    /// Shell command to run first
    #[arg(long, value_name = "COMMAND")]
    first: Option<String>,
    /// Shell command that starts the compared system (a tiering daemon, for example) once the data is there;
    /// NEARFAR_DATA_PID is the process with the data
    #[arg(long, value_name = "COMMAND")]
    before: Option<String>,
    /// Shell command to run after the timed part
    #[arg(long, value_name = "COMMAND")]
    after: Option<String>,
    /// Interval in milliseconds at which another process gets the programs' CPUs: emulated CPUs otherwise keep
    /// translations too long, and pages in use look idle
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = whole::<u64>(0..=1000))]
    switch_ms: u64,
    /// Report CPU time and memory of the daemon whose command line contains these consecutive words
    #[arg(long, value_name = "WORDS")]
    daemon: Option<String>,
    /// The lab's machine, by name or file [default: the workload's]
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "here")]
    machine: Option<String>,
    /// The lab's kernel, by version or file
    #[arg(long, value_name = "VERSION|PATH", conflicts_with = "here")]
    kernel: Option<String>,
    /// Run on this machine, not in the lab
    #[arg(long)]
    here: bool,
    /// Print the result as JSON (schema nearfar.bench-workload/1)
    #[arg(long)]
    json: bool,
    /// Working directory, with the programs; the result is written there and nowhere else (used in the lab's guest)
    #[arg(long, value_name = "DIR", hide = true, requires = "here")]
    out: Option<PathBuf>,
    /// Show progress even if standard error is not a terminal
    #[arg(long, hide = true)]
    progress: bool,
}

/// Runs it.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Some(name) = &args.workload else {
        output::print(&listed()?)?;
        return Ok(Exit::Done.into());
    };
    let request = Request {
        workload: file::find(name).ends_with(Exit::Usage)?,
        placements: args.placement.clone(),
        near_mib: args.near_mib,
        set_mib: args.set_mib,
        seconds: args.seconds,
        busy_percent: args.busy_percent,
        filler_percent: args.filler_percent,
        first: args.first.clone(),
        before: args.before.clone(),
        after: args.after.clone(),
        switch_ms: args.switch_ms,
        daemon: args.daemon.clone(),
    };
    if let Some(out) = &args.out {
        let found = workload::run(&request, out, args.progress)?;
        hand_over(out, guest::RESULT, &found)?;
        return Ok(Exit::Done.into());
    }
    let dir = scratch()?;
    programs::compile(dir.path())?;
    let found = if args.here {
        workload::run(&request, dir.path(), progress(args))?
    } else {
        in_the_lab(args, name, &request, dir.path())?
    };
    if args.json {
        output::print_json(&found)?;
    } else {
        output::print(&results::text(&found))?;
    }
    Ok(Exit::Done.into())
}

fn progress(args: &Args) -> bool {
    args.progress || std::io::stderr().is_terminal()
}

fn listed() -> anyhow::Result<String> {
    let mut out = String::new();
    for workload in file::list()? {
        let _ = writeln!(
            out,
            "{:<16} {} (lab: {})",
            workload.name, workload.description, workload.machine
        );
    }
    Ok(out)
}

fn in_the_lab(args: &Args, name: &str, request: &Request, dir: &Path) -> anyhow::Result<Found> {
    let machine = args.machine.clone().unwrap_or_else(|| request.workload.machine.clone());
    let lab = Lab { machine: Some(machine), kernel: args.kernel.clone(), ..Lab::default() };
    guest::run(request, name, &lab, dir, progress(args))
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn all_workloads_are_listed_each_with_its_machine() {
        let listed = listed().unwrap();
        assert!(listed.lines().count() >= 10, "{listed}");
        assert!(
            listed.contains("redis-b") && listed.contains("(lab: cxl-2tier-small)"),
            "{listed}"
        );
    }
}
