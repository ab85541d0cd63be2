//! `nearfar move`: moves the memory of running processes to other nodes, once, and back again.
//!
//! What can't succeed is refused before a page moves. The result is read again from the kernel's tables. Pages that a
//! process touches later follow its own policy; `nearfar run` sets one.

use std::path::PathBuf;
use std::process::ExitCode;

use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_command::machine::Machine;
use nearfar_command::moving::processes;
use nearfar_command::output;
use nearfar_kernel::fs::RootFs;
use nearfar_topology::{Bytes, BytesPerSecond, NodeExpr};

/// Arguments of `nearfar move`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A process, or a cgroup with all its processes
    #[arg(value_name = "PID|CGROUP", required_unless_present = "undo")]
    whose: Option<String>,
    /// The nodes to move to
    #[arg(value_name = "NODES", required_unless_present = "undo")]
    to: Option<NodeExpr>,
    /// Write the former places of the pages into FILE, for --undo
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Move the pages in FILE back to their former places
    #[arg(long, value_name = "FILE", conflicts_with_all = ["whose", "save"])]
    undo: Option<PathBuf>,
    /// Print the amount of memory to move, and move nothing
    #[arg(long, conflicts_with_all = ["save", "json"])]
    dry_run: bool,
    /// Maximum bytes per second; units are powers of 1024
    #[arg(long, value_name = "SIZE", default_value = "1g")]
    rate: Bytes,
    /// Print JSON (schema nearfar.move/1)
    #[arg(long)]
    json: bool,
}

/// Moves.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let positive = || anyhow::anyhow!("--rate: it must be above zero");
    (args.rate > Bytes(0)).then_some(()).ok_or_else(positive).ends_with(Exit::Usage)?;
    let fs = RootFs::live()?;
    let (machine, _) = Machine::default().read(&fs)?;
    let rate = BytesPerSecond(args.rate.0);
    let jobs = match (&args.undo, &args.whose, &args.to) {
        (Some(file), ..) => processes::back(&fs, &machine, file, rate)?,
        (None, Some(whose), Some(to)) => {
            let targets = to.resolve(&machine, &[]).ends_with(Exit::Usage)?;
            processes::there(&fs, &machine, (whose, &targets), rate)?
        }
        _ => anyhow::bail!("name a process or cgroup and nodes, or a file with --undo"),
    };
    if args.dry_run {
        return output::dry_run(&processes::preview(&jobs));
    }
    let report = processes::all(&fs, jobs, args.save.as_deref())?;
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&report.text(args.save.as_deref()))?;
    }
    Ok(if report.complete { Exit::Done } else { Exit::Failed }.into())
}
