//! hmctl: runs a program with its hmalloc memory placed by options. HMSDK's command, for `libhmalloc.so`.
//!
//! hmctl sets variables, which libhmalloc reads as the program starts, and then executes the program. Every error that
//! can be detected is reported before that: crate topology resolves the nodes, and crate kernel checks that the kernel
//! accepts the policy. Programs are linked with libhmalloc; no variable of the dynamic linker is changed.
//!
//! Exit status: the program's own; 2 bad usage, 64 no program (as HMSDK's), 125 hmctl itself failed before the program,
//! 126 it can't be executed, 127 it was not found.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use clap::error::ErrorKind;
use clap::{ArgAction, CommandFactory as _, Parser};
use nearfar_topology::NodeExpr;

#[cfg(test)]
mod manual;
mod placement;

use placement::{Mode, Placement, Refused};

// Each paragraph is a single line, which help wraps to the width of the terminal.
const HELP: &str = "\
NODES are numbers (0,2-3), all, near, far, dram, cxl, hbm, pmem, tier:N, or several of these joined by commas. Without \
one of these options the pool is on, and its memory is where the process's policy has it; numactl before hmctl sets \
that one.

Sets HMALLOC_JEMALLOC=1 and, with an option, HMALLOC_MPOL_MODE, HMALLOC_NODES and HMALLOC_NODEMASK.

Exit status: PROGRAM's own; 2 bad usage, 64 no PROGRAM, 125 hmctl failed before PROGRAM, 126 PROGRAM can't be \
executed, 127 PROGRAM was not found. A name without a slash is looked up on PATH, then in the current directory.";

const USAGE: &str =
    "hmctl [-m NODES | -p NODE | -P NODES | -i NODES | -w NODES] PROGRAM [ARGUMENTS]...";

/// Runs PROGRAM with its hmalloc memory placed by options
#[derive(Debug, Parser)]
#[command(name = "hmctl", version, override_usage = USAGE, after_long_help = HELP, disable_help_flag = true)]
#[command(group(clap::ArgGroup::new("policy").multiple(false)))]
struct Args {
    /// hmalloc memory from these nodes only
    #[arg(short, long, value_name = "NODES", group = "policy")]
    membind: Option<NodeExpr>,
    /// hmalloc memory from this node, from others when it is full
    #[arg(short, long, value_name = "NODE", group = "policy")]
    preferred: Option<NodeExpr>,
    /// hmalloc memory from these nodes, from others when they are full
    #[arg(short = 'P', long, value_name = "NODES", group = "policy")]
    preferred_many: Option<NodeExpr>,
    /// hmalloc memory from these nodes in turn, page by page
    #[arg(short, long, value_name = "NODES", group = "policy")]
    interleave: Option<NodeExpr>,
    /// hmalloc memory from these nodes in turn, by the machine's weights (nearfar weights)
    #[arg(short, long, value_name = "NODES", group = "policy")]
    weighted_interleave: Option<NodeExpr>,
    /// Print help
    #[arg(short = '?', long, short_alias = 'h', action = ArgAction::HelpLong)]
    help: Option<bool>,
    /// Print usage in short
    #[arg(long)]
    usage: bool,
    /// The program and its arguments
    #[arg(required_unless_present = "usage", trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// An error that ends hmctl before the program runs.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Placement(#[from] Refused),
    #[error("`{program}` {what}: {source}", program = program.display())]
    Start { program: OsString, what: &'static str, source: io::Error },
}

impl Failure {
    fn status(&self) -> u8 {
        match self {
            Self::Placement(refused) if refused.is_usage() => 2,
            Self::Placement(_) => 125,
            Self::Start { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            Self::Start { .. } => 126,
        }
    }
}

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(refused) => {
            let _ = refused.print();
            return ExitCode::from(status_of(&refused));
        }
    };
    if args.usage {
        let _ = writeln!(io::stdout(), "{}", Args::command().render_usage());
        return ExitCode::SUCCESS;
    }
    let failure = run(&args);
    let text = failure.to_string().replace(|c: char| c.is_control() && c != '\n', "?");
    let _ = writeln!(io::stderr(), "hmctl: {text}");
    ExitCode::from(failure.status())
}

fn status_of(refused: &clap::Error) -> u8 {
    match refused.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => 0,
        ErrorKind::MissingRequiredArgument => 64,
        _ => 2,
    }
}

/// Executes the program; returns only on failure.
fn run(args: &Args) -> Failure {
    let placement = match asked(args).map(|(mode, nodes)| Placement::new(mode, nodes)).transpose() {
        Ok(placement) => placement,
        Err(refused) => return refused.into(),
    };
    let mut words = args.command.iter();
    let program = words.next().cloned().unwrap_or_default();
    let start = |program: &Path| exec(program, words.clone(), placement.as_ref());
    let mut source = start(Path::new(&program));
    // As HMSDK's: a program that is not in PATH may be a file of the current directory.
    if source.kind() == io::ErrorKind::NotFound && !program.as_bytes().contains(&b'/') {
        source = start(&Path::new(".").join(&program));
    }
    let missing = source.kind() == io::ErrorKind::NotFound;
    let what = if missing { "was not found" } else { "can't be executed" };
    Failure::Start { program, what, source }
}

/// Executes the program. Returns only on failure.
fn exec<'a>(
    program: &Path,
    words: impl Iterator<Item = &'a OsString>,
    placement: Option<&Placement>,
) -> io::Error {
    let mut command = Command::new(program);
    command.args(words).env("HMALLOC_JEMALLOC", "1");
    if let Some(placement) = placement {
        command.env("HMALLOC_MPOL_MODE", placement.mode.number().to_string());
        command.env("HMALLOC_NODES", placement.nodes.to_string());
        // Remove an inherited variable, too: other readers of it do not know HMALLOC_NODES.
        match placement.mask() {
            Some(mask) => command.env("HMALLOC_NODEMASK", mask.to_string()),
            None => command.env_remove("HMALLOC_NODEMASK"),
        };
    }
    command.exec()
}

/// The requested policy.
fn asked(args: &Args) -> Option<(Mode, &NodeExpr)> {
    [
        (Mode::Bind, &args.membind),
        (Mode::Preferred, &args.preferred),
        (Mode::PreferredMany, &args.preferred_many),
        (Mode::Interleave, &args.interleave),
        (Mode::WeightedInterleave, &args.weighted_interleave),
    ]
    .into_iter()
    .find_map(|(mode, nodes)| Some((mode, nodes.as_ref()?)))
}
