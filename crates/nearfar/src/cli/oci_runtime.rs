//! `nearfar oci-runtime`: an OCI runtime's command line before a real one, which it starts with the memory policy that
//! the container's annotations ask for.
//!
//! `create` and `run` set the policy and become the runtime: policies are inherited through fork and exec, so the
//! container has it too. A runtime that knows `linux.memoryPolicy` gets it in config.json instead. `start` runs the
//! runtime as a child and verifies the container afterwards; its placement follows from its bundle again. All
//! other commands become the runtime at once.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus};
use std::time::Duration;

use anyhow::Context as _;
use nearfar_containers::annotations::{self, Classes, Request};
use nearfar_containers::bundle::{self, Config, Edits};
use nearfar_containers::policy::MemoryPolicy;
use nearfar_containers::resolve::{Resolved, resolve};
use nearfar_containers::runtime::{self, Call, State};
use nearfar_containers::seat::Seat;
use nearfar_containers::verify::{Report, Verdict, verify};
use nearfar_kernel::clock;
use nearfar_kernel::fs::{RootFs, read_input};
use nearfar_kernel::mempolicy::{self, PolicyError};
use nearfar_kernel::watch::{self, Placement};

use super::machine::MachineArgs;
use super::run::preload_library;
use nearfar_command::exit::{self, EndsWith as _, Exit, WithExit};
use nearfar_command::output;
use nearfar_daemon::budget::groups::set_budget;

/// Arguments of `nearfar oci-runtime`.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, disable_version_flag = true, after_long_help = HELP)]
pub(crate) struct Args {
    /// The real OCI runtime [default: $NEARFAR_OCI_RUNTIME, else runc or crun from PATH]
    #[arg(long, value_name = "PATH")]
    runtime: Option<PathBuf>,
    /// Place the memory of containers without a memory annotation on this kind [default: $NEARFAR_OCI_MEMORY]
    #[arg(long, value_name = "KIND")]
    memory: Option<String>,
    /// Policies by class for class.memory-policy.nri.io, as JSON
    #[arg(long, value_name = "FILE")]
    classes: Option<PathBuf>,
    #[command(flatten)]
    machine: MachineArgs,
    /// The runtime's arguments, or `verify ID`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARG")]
    arguments: Vec<OsString>,
}

const HELP: &str = "\
The options above come before the runtime's own. create and run read the annotations of the container (docs/containers.md); \
start verifies its memory policy in /proc/PID/numa_maps. `verify ID` does so for a running container, with status 0 if the \
placement is as asked and 1 if not.

NEARFAR_OCI_VERIFY: `log` (default) reports a wrong placement on standard error and in the runtime's log; `fail` also kills \
the container and fails; `off` does not verify.

Exit status: that of the runtime; 1 if a placement is impossible (nothing is started), or wrong with `fail`; 2 for bad usage.";

/// Tries of a verification that finds a wrong policy: the program may replace the runtime's process a moment later.
const TRIES: u32 = 10;
const BETWEEN: Duration = Duration::from_millis(20);
const LONG: Duration = Duration::from_secs(3600);

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let is_help = |word: &OsString| word == "--help" || word == "-h";
    if args.arguments.first().is_none_or(is_help) {
        return super::help("oci-runtime");
    }
    let call = Call::parse(&args.arguments);
    let wrapper = Wrapper { args, runtime: find_runtime(args)?, verifies: Verifies::read()?, call };
    let done = match wrapper.call.command {
        runtime::Command::Create => wrapper.create(),
        runtime::Command::Run => wrapper.run(),
        runtime::Command::Start => wrapper.start(),
        runtime::Command::Verify => wrapper.verify(),
        runtime::Command::Other => wrapper.become_runtime(),
    };
    done.inspect_err(|error| wrapper.log("error", &exit::text(error)))
}

/// The reaction to a wrong placement (`NEARFAR_OCI_VERIFY`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verifies {
    Off,
    Log,
    Fail,
}

impl Verifies {
    fn read() -> anyhow::Result<Self> {
        let text = std::env::var("NEARFAR_OCI_VERIFY").unwrap_or_default();
        match text.as_str() {
            "off" => Ok(Self::Off),
            "" | "log" => Ok(Self::Log),
            "fail" => Ok(Self::Fail),
            _ => Err(anyhow::anyhow!("NEARFAR_OCI_VERIFY={text}: write log, fail or off"))
                .ends_with(Exit::Usage),
        }
    }
}

/// The real runtime.
fn find_runtime(args: &Args) -> anyhow::Result<PathBuf> {
    let variable = || std::env::var_os("NEARFAR_OCI_RUNTIME").map(PathBuf::from);
    let named = args.runtime.clone().or_else(variable);
    if let Some(named) = named.filter(|path| !path.as_os_str().is_empty()) {
        return Ok(named);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs: Vec<_> = std::env::split_paths(&path).collect();
    let mut found =
        ["runc", "crun"].iter().flat_map(|name| dirs.iter().map(move |dir| dir.join(name)));
    let missing =
        || anyhow::anyhow!("no runc or crun in PATH; install one, or name it with --runtime PATH");
    found.find(|path| path.is_file()).ok_or_else(missing)
}

struct Wrapper<'a> {
    args: &'a Args,
    runtime: PathBuf,
    verifies: Verifies,
    call: Call,
}

impl Wrapper<'_> {
    fn create(&self) -> anyhow::Result<ExitCode> {
        self.prepare()?;
        self.become_runtime()
    }

    fn run(&self) -> anyhow::Result<ExitCode> {
        let resolved = self.prepare()?;
        let id = self.call.id.as_ref().filter(|_| self.has_work(&resolved));
        let Some(id) = id else { return self.become_runtime() };
        if self.call.is_detached {
            let status = self.command().status().with_context(|| self.name())?;
            let state = self.state(id).filter(|_| status.success());
            if let Some(state) = state {
                self.settle(state.pid, &resolved)?;
            }
            return Ok(code(status));
        }
        let watched = watch::start(self.command(), &Placement::default());
        let watched = watched.with_context(|| self.name())?;
        let mut pause = BETWEEN;
        loop {
            if let Some(ended) = watched.wait(pause)? {
                return Ok(Exit::Command(ended.shell_status()).into());
            }
            let state = self.state(id).filter(|state| pause != LONG && state.status == "running");
            if let Some(state) = state {
                pause = LONG;
                self.settle(state.pid, &resolved)?;
            }
        }
    }

    fn start(&self) -> anyhow::Result<ExitCode> {
        let state = self.call.id.as_ref().and_then(|id| self.state(id));
        let Some(state) = state else { return self.become_runtime() };
        let resolved = match self.wanted_of(&state) {
            Ok(resolved) => resolved,
            Err(error) => {
                self.warn(&format!("not verified: {}", exit::text(&error)));
                Resolved::default()
            }
        };
        if !self.has_work(&resolved) {
            return self.become_runtime();
        }
        let status = self.command().status().with_context(|| self.name())?;
        if status.success() {
            self.settle(state.pid, &resolved)?;
        }
        Ok(code(status))
    }

    /// Whether something is left to do once the container runs.
    fn has_work(&self, resolved: &Resolved) -> bool {
        let verifies = resolved.policy.is_some() && self.verifies != Verifies::Off;
        verifies || resolved.near.is_some()
    }

    /// Sets the budget of a started container, and verifies its policy.
    fn settle(&self, pid: u32, resolved: &Resolved) -> anyhow::Result<()> {
        if let Some((max, min)) = resolved.near
            && let Err(error) = set_budget(&RootFs::live()?, pid, max, min)
        {
            self.warn(&format!("budget of near memory not set: {}", exit::text(&error)));
        }
        match &resolved.policy {
            Some(policy) if self.verifies != Verifies::Off => self.check(pid, policy),
            _ => Ok(()),
        }
    }

    /// `verify ID`: prints the verification of a running container.
    fn verify(&self) -> anyhow::Result<ExitCode> {
        let id =
            self.call.id.as_ref().context("verify: name the container").ends_with(Exit::Usage)?;
        let name = id.to_string_lossy();
        let state =
            self.state(id).with_context(|| format!("the runtime has no container {name}"))?;
        let Some(policy) = self.wanted_of(&state)?.policy else {
            output::print(&format!("{name}: no memory placement asked\n"))?;
            return Ok(ExitCode::SUCCESS);
        };
        let report = judge(state.pid, &policy)?;
        output::print(&format!("{name}: {report}\n"))?;
        let is_right = matches!(report.verdict, Verdict::AsAsked | Verdict::NotTouched);
        Ok(if is_right { Exit::Done } else { Exit::Failed }.into())
    }

    /// Edits the bundle or sets this process's policy, as the annotations ask. Returns the container's settings.
    fn prepare(&self) -> anyhow::Result<Resolved> {
        let path = self.call.config_path();
        let text = bundle::read(&path)?;
        let config = Config::parse(&text)?;
        let resolved = self.resolve(&config)?;
        resolved.notes.iter().for_each(|note| self.warn(note));
        let library = resolved.heap.as_ref().map(|_| preload_library()).transpose()?;
        let heap = library.as_deref().zip(resolved.heap.as_deref());
        let native = resolved.policy.as_ref().filter(|policy| self.knows(policy));
        let edits = Edits { policy: native, mems: resolved.mems.as_ref(), heap };
        let edited = edits.apply(&text)?;
        if !edits.is_empty() && edited != text {
            bundle::replace(&path, &edited)?;
        }
        if let Some(policy) = resolved.policy.as_ref().filter(|_| native.is_none()) {
            set(policy)?;
        }
        Ok(resolved)
    }

    /// The settings that a container's configuration asks for.
    fn resolve(&self, config: &Config) -> anyhow::Result<Resolved> {
        if config.is_sandbox() {
            return Ok(Resolved::default());
        }
        let request = Request::read(&config.annotations(), config.name(), &self.classes()?)?;
        let variable = std::env::var("NEARFAR_OCI_MEMORY").ok().filter(|kind| !kind.is_empty());
        let request = request
            .or_memory("--memory", self.args.memory.as_deref())?
            .or_memory("NEARFAR_OCI_MEMORY", variable.as_deref())?;
        let mut resolved = Resolved::default();
        if !request.is_empty() {
            let machine = self.args.machine.select();
            let fs = machine.open()?;
            let (topology, _) = machine.read(fs.as_ref())?;
            let seat = Seat::new(&topology, config.cpuset(), &request, fs.as_ref())?;
            resolved = resolve(&request, &seat)?;
        }
        if request.memory.is_none() {
            // A policy of others, which the runtime may not know.
            resolved.policy = config.policy()?;
        }
        Ok(resolved)
    }

    fn classes(&self) -> anyhow::Result<Classes> {
        let path = self.args.classes.as_deref();
        path.map_or_else(|| Ok(Classes::new()), read_classes)
    }

    fn wanted_of(&self, state: &State) -> anyhow::Result<Resolved> {
        let config = Config::parse(&bundle::read(&state.config_path())?)?;
        self.resolve(&config)
    }

    /// Whether the runtime sets such a policy by itself.
    fn knows(&self, policy: &MemoryPolicy) -> bool {
        let features = Command::new(&self.runtime).arg("features").output();
        let text = features.map(|output| output.stdout).unwrap_or_default();
        runtime::policy_modes(&String::from_utf8_lossy(&text)).contains(&policy.mode)
    }

    fn state(&self, id: &OsString) -> Option<State> {
        let mut command = Command::new(&self.runtime);
        let output = command.args(&self.call.global).arg("state").arg(id).output().ok()?;
        State::parse(&String::from_utf8_lossy(&output.stdout))
    }

    /// Verifies a started container; a wrong placement is reported, and fatal if asked.
    fn check(&self, pid: u32, policy: &MemoryPolicy) -> anyhow::Result<()> {
        let report = judge(pid, policy)?;
        let text = format!("memory placement {report}");
        if !matches!(report.verdict, Verdict::Wrong(_)) {
            self.log("info", &text);
            return Ok(());
        }
        if self.verifies == Verifies::Log {
            self.warn(&text);
            return Ok(());
        }
        let mut kill = Command::new(&self.runtime);
        kill.args(&self.call.global).arg("kill").args(&self.call.id).arg("KILL");
        let killed = kill.output().is_ok_and(|output| output.status.success());
        let after = if killed { "the container was killed" } else { "killing it failed" };
        anyhow::bail!("{text}; {after} (NEARFAR_OCI_VERIFY=fail)")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.runtime);
        command.args(&self.args.arguments);
        command
    }

    fn name(&self) -> String {
        self.runtime.display().to_string()
    }

    fn become_runtime(&self) -> anyhow::Result<ExitCode> {
        let error = self.command().exec();
        let exit = Exit::of_start(&error);
        let error = anyhow::Error::from(error).context(format!("can't execute {}", self.name()));
        Err(WithExit { exit, error }.into())
    }

    fn warn(&self, message: &str) {
        output::note(message);
        self.log("warning", message);
    }

    /// Adds a line to the runtime's log, from which container managers report errors.
    fn log(&self, level: &str, message: &str) {
        let Some((path, is_json)) = &self.call.log else { return };
        let line = runtime::log_line(*is_json, level, &format!("nearfar: {message}"));
        let file = OpenOptions::new().create(true).append(true).open(path);
        // The error itself is on standard error too.
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}

/// Verifies, again until the result is right: a process that is just executing its program may show no memory yet, or
/// that of the runtime.
fn judge(pid: u32, policy: &MemoryPolicy) -> anyhow::Result<Report> {
    let fs = RootFs::live()?;
    let mut report = verify(&fs, pid, policy);
    for _ in 1..TRIES {
        if matches!(report.verdict, Verdict::AsAsked) {
            break;
        }
        clock::sleep(BETWEEN);
        report = verify(&fs, pid, policy);
    }
    Ok(report)
}

/// Sets this process's policy, which the runtime and the container inherit.
fn set(policy: &MemoryPolicy) -> anyhow::Result<()> {
    mempolicy::set_flagged(&policy.kernel(), policy.flags).map_err(|error| {
        match error {
            PolicyError::Refused { policy, call, source } => anyhow::anyhow!(
                "{policy}: {call} is not permitted here ({source}): a seccomp profile refuses it, as in a container without \
                 CAP_SYS_NICE; run the OCI runtime on the host"
            ),
            error => error.into(),
        }
    })
}

/// The exit status of a child.
fn code(status: ExitStatus) -> ExitCode {
    let byte = |number: i32| u8::try_from(number & 0xff).unwrap_or(u8::MAX);
    let signal = status.signal().map(|signal| byte(signal).saturating_add(128));
    Exit::Command(status.code().map(byte).or(signal).unwrap_or(1)).into()
}

/// Larger files are no classes.
const CLASSES_MAX: u64 = 16 << 20;

/// Reads policies by class.
pub(super) fn read_classes(path: &std::path::Path) -> anyhow::Result<Classes> {
    let text = read_input(path, CLASSES_MAX).with_context(|| path.display().to_string())?;
    let parsed = annotations::classes(&text).map_err(anyhow::Error::msg);
    parsed.with_context(|| format!("--classes {}", path.display())).ends_with(Exit::Usage)
}
