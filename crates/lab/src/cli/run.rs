//! `run` and `shell`: turn arguments into a plan, and report all errors that can be found before anything starts.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use super::model::ModelArgs;
use super::{Failure, Stderr};
use crate::fetch::{SERIES, Say as _};
use crate::host::{self, Plan, RunError, Timing};
use crate::machine::catalog;

/// Options of the guest.
#[derive(Debug, clap::Args)]
struct GuestArgs {
    /// The machine: a built-in name, or a machine file
    #[arg(short = 'M', long, value_name = "NAME|FILE", default_value = catalog::DEFAULT)]
    machine: String,
    /// The kernel: 6.12, 7.2, or the path of an image
    #[arg(short = 'K', long, value_name = "VERSION|PATH", default_value = SERIES[0])]
    kernel: String,
    /// Total number of CPUs, spread over the nodes that have some [default: from the machine file]
    #[arg(long, value_name = "N")]
    cpus: Option<u32>,
    /// How guest time passes
    #[arg(long, value_enum, default_value_t)]
    timing: Timing,
    #[command(flatten)]
    model: ModelArgs,
    /// A directory that the guest can write to, as /out; all other writes are discarded
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Write per-node reads, writes, stalls and mean loaded latency there, as JSON
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// Interval in milliseconds of modelled time at which the statistics also record each CPU's reads and writes per
    /// node
    #[arg(long, value_name = "MS", requires = "stats", value_parser = clap::value_parser!(u64).range(1..=86_400_000))]
    stats_every: Option<u64>,
    /// More parameters for the guest's kernel
    #[arg(long, value_name = "TEXT", default_value = "")]
    append: String,
    /// An emulator other than the cached one
    #[arg(long, value_name = "PATH")]
    qemu: Option<PathBuf>,
    /// Set a variable for the command; may be repeated
    #[arg(short = 'e', long = "env", value_name = "NAME=VALUE")]
    env: Vec<OsString>,
    /// Seconds the guest may take to come up
    #[arg(long, value_name = "S", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    boot_timeout: u64,
}

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    guest: GuestArgs,
    /// End the command after this many seconds of the host's clock, with status 124
    #[arg(long, value_name = "S", value_parser = seconds)]
    timeout: Option<Duration>,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Arguments of `shell`.
#[derive(Debug, clap::Args)]
pub(super) struct ShellArgs {
    #[command(flatten)]
    guest: GuestArgs,
    /// The command to run in the terminal [default: $SHELL, or /bin/sh]
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Variables that refer to the host's session, which does not exist in the guest.
const LEFT_OUT: [&str; 12] = [
    "DBUS_SESSION_BUS_ADDRESS",
    "DISPLAY",
    "GPG_AGENT_INFO",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "NOTIFY_SOCKET",
    "SSH_AGENT_PID",
    "SSH_AUTH_SOCK",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "XDG_RUNTIME_DIR",
    "XDG_SESSION_ID",
];

pub(super) fn run(args: RunArgs, reenter: Vec<String>) -> Result<ExitCode, Failure> {
    let mut plan = plan(args.guest, args.command, reenter)?;
    plan.limit = args.timeout;
    execute(&plan)
}

pub(super) fn shell(args: ShellArgs, reenter: Vec<String>) -> Result<ExitCode, Failure> {
    let mut command = args.command;
    if command.is_empty() {
        let shell = std::env::var_os("SHELL").filter(|shell| Path::new(shell).is_file());
        command.push(shell.unwrap_or_else(|| "/bin/sh".into()));
    }
    let mut plan = plan(args.guest, command, reenter)?;
    plan.terminal = true;
    execute(&plan)
}

fn execute(plan: &Plan) -> Result<ExitCode, Failure> {
    let ended = host::run(plan, &Stderr::new())?;
    if let Some(message) = ended.message {
        Stderr::new().line(&message);
    }
    Ok(ExitCode::from(ended.status))
}

fn plan(args: GuestArgs, command: Vec<OsString>, reenter: Vec<String>) -> Result<Plan, Failure> {
    let mut machine = args.model.apply(catalog::find(&args.machine)?)?;
    if let Some(cpus) = args.cpus {
        machine = catalog::with_cpus(machine, cpus)?;
    }
    let cwd = std::env::current_dir()
        .map_err(|source| RunError::Process { what: "finding the working directory", source })?;
    let out = args.out.as_deref().map(out_dir).transpose()?;
    if let Some(path) = &args.stats {
        // Fail now rather than after the command.
        let file = fs::OpenOptions::new().create(true).append(true).open(path);
        file.map_err(|source| RunError::File {
            what: "writing statistics to",
            path: path.clone(),
            source,
        })?;
    }
    Ok(Plan {
        machine,
        kernel: args.kernel,
        append: args.append,
        qemu: args.qemu,
        timing: args.timing,
        out,
        stats: args.stats,
        stats_every_ms: args.stats_every,
        limit: None,
        boot_limit: Duration::from_secs(args.boot_timeout),
        argv: command.into_iter().map(OsString::into_vec).collect(),
        env: environment(args.env)?,
        cwd,
        terminal: false,
        reenter,
    })
}

/// The directory, created in an existing one if necessary.
fn out_dir(dir: &Path) -> Result<PathBuf, RunError> {
    let made = match fs::create_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Ok(()) => {
            Stderr::new().line(&format!("made the directory {}", dir.display()));
            Ok(())
        }
        failed => failed,
    };
    made.and_then(|()| fs::canonicalize(dir))
        .and_then(|dir| fs::read_dir(&dir).map(|_| dir))
        .map_err(|source| RunError::File {
            what: "making the directory for /out",
            path: dir.to_owned(),
            source,
        })
}

/// This process's variables without those of its session, then the given ones.
fn environment(given: Vec<OsString>) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Failure> {
    let mut env: BTreeMap<Vec<u8>, Vec<u8>> = std::env::vars_os()
        .filter(|(name, _)| !LEFT_OUT.iter().any(|left_out| name == left_out))
        .map(|(name, value)| (name.into_vec(), value.into_vec()))
        .collect();
    for pair in given {
        let bytes = pair.into_vec();
        let Some(at) = bytes.iter().position(|byte| *byte == b'=').filter(|at| *at > 0) else {
            let pair = String::from_utf8_lossy(&bytes).into_owned();
            return Err(Failure { status: 2, message: format!("-e {pair}: not NAME=VALUE") });
        };
        env.insert(bytes[..at].to_vec(), bytes[at + 1..].to_vec());
    }
    Ok(env)
}

/// Seconds, possibly with a fraction.
fn seconds(text: &str) -> Result<Duration, String> {
    let refused = || "not a number of seconds above 0, such as 30 or 0.5".to_owned();
    let number: f64 = text.parse().map_err(|_| refused())?;
    if number <= 0.0 {
        return Err(refused());
    }
    Duration::try_from_secs_f64(number).map_err(|_| refused())
}
