//! `nearfar nri`: the plugin of containerd or CRI-O that places and verifies the memory of containers, as a service.
//!
//! It connects to the runtime's socket, again after a while if the connection ends, since runtimes restart. It keeps no
//! state: the runtime lists its containers at each connection. SIGTERM ends it at once.

use std::fs::Permissions;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use nearfar_containers::claims::CDI_DIR;
use nearfar_containers::nri::metrics::Metrics;
use nearfar_containers::nri::plugin::{Host, OnMismatch, Plugin, Settings};
use nearfar_containers::nri::session;
use nearfar_daemon::budget::groups::set_budget;
use nearfar_kernel::clock::{self, Stopwatch};
use nearfar_kernel::fs::{self, Fs, RootFs};
use nearfar_kernel::process::Identity;
use nearfar_topology::{Bytes, Overrides, Topology};

use super::machine::MachineArgs;
use super::oci_runtime::read_classes;
use super::run::preload_library;
use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_command::number::whole;
use nearfar_command::output;

/// Arguments of `nearfar nri`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub(crate) struct Args {
    /// The container runtime's socket
    #[arg(long, value_name = "PATH", default_value = "/var/run/nri/nri.sock")]
    socket: PathBuf,
    /// The plugin's name
    #[arg(long, default_value = "nearfar")]
    name: String,
    /// The plugin's place among others, 0 to 99: those with lower numbers adjust containers first
    #[arg(long, default_value = "10", value_parser = whole::<u8>(0..=99))]
    index: u8,
    /// Reaction to a container with a wrong placement: report it, or evict and end it
    #[arg(long, value_enum, default_value = "event")]
    on_mismatch: OnMismatchArg,
    /// Write metrics for Prometheus' node exporter into this file (textfile collector: a name that ends in .prom)
    #[arg(long, value_name = "FILE", value_parser = prom)]
    metrics_file: Option<PathBuf>,
    /// Policies by class for class.memory-policy.nri.io, as JSON
    #[arg(long, value_name = "FILE")]
    classes: Option<PathBuf>,
    /// The directory of CDI files, where `nearfar dra` puts the placements of resource claims
    #[arg(long, value_name = "DIR", default_value = CDI_DIR)]
    cdi_dir: String,
    #[command(flatten)]
    machine: MachineArgs,
}

const HELP: &str = "\
Annotations of pods and containers are those of docs/containers.md. Memory of resource claims that `nearfar dra` has prepared is \
placed as well (docs/kubernetes.md). containerd 2.3 and later sets memory policies for the \
plugin; with earlier ones, kinds that bind become the container's cpuset.mems, and containers with other kinds are refused. \
Each container is verified after its start; messages are lines of event=... on standard error.

Needs root and the host's processes (in Kubernetes: hostPID).";

/// A file that the node exporter reads.
fn prom(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let is_read = path.extension().is_some_and(|extension| extension == "prom");
    let ignored = || "the node exporter reads files whose names end in .prom, and no others".into();
    is_read.then_some(path).ok_or_else(ignored)
}

/// [`OnMismatch`] on the command line.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum OnMismatchArg {
    Event,
    Evict,
}

/// Times between two connections.
const WAIT_MIN: Duration = Duration::from_millis(500);
const WAIT_MAX: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(20);

/// Runs the command; it does not return unless it can't start.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if args.name.is_empty() || !args.name.chars().all(is_word) {
        let error = anyhow::anyhow!("--name {}: write letters, digits, -, _ and .", args.name);
        return Err(error).ends_with(Exit::Usage);
    }
    let classes = args.classes.as_deref().map(read_classes).transpose()?.unwrap_or_default();
    let machine = args.machine.select();
    // Stated kinds of absent nodes are refused now; nodes may come later.
    machine.read(machine.open()?.as_ref())?;
    let mut host = Live {
        files: RootFs::live()?,
        machine: machine.open()?,
        overrides: machine.kinds.iter().copied().collect(),
        metrics_file: args.metrics_file.clone(),
    };
    let on_mismatch = match args.on_mismatch {
        OnMismatchArg::Event => OnMismatch::Event,
        OnMismatchArg::Evict => OnMismatch::Evict,
    };
    let mut plugin = Plugin::new(Settings {
        name: args.name.clone(),
        index: args.index,
        on_mismatch,
        classes,
        library: preload_library().ok(),
        cdi_dir: args.cdi_dir.clone(),
    });
    let mut wait = WAIT_MIN;
    loop {
        let connected = Stopwatch::start();
        let ended = connect(&args.socket, &mut plugin, &mut host);
        // A connection that lasted is no reason to hesitate.
        wait = if connected.elapsed() > WAIT_MAX { WAIT_MIN } else { wait };
        output::note(format_args!(
            "event=disconnected retry_ms={} reason={}",
            wait.as_millis(),
            serde_json::Value::from(ended)
        ));
        clock::sleep(wait);
        wait = (wait * 2).min(WAIT_MAX);
    }
}

/// One connection; returns the reason of its end.
fn connect(socket: &Path, plugin: &mut Plugin, host: &mut Live) -> String {
    let stream = UnixStream::connect(socket);
    let mut stream = match stream {
        Ok(stream) => stream,
        Err(error) => {
            return format!(
                "can't connect to {}: {error}; is the runtime running, with NRI enabled?",
                socket.display()
            );
        }
    };
    match session::run(&mut stream, plugin, host) {
        Ok(()) => "the container runtime shut the plugin down".into(),
        Err(error) => error.to_string(),
    }
}

/// The running system.
struct Live {
    files: RootFs,
    machine: Box<dyn Fs>,
    overrides: Overrides,
    metrics_file: Option<PathBuf>,
}

impl Host for Live {
    fn fs(&self) -> &dyn Fs {
        &self.files
    }

    fn machine(&self) -> Topology {
        fs::topology(self.machine.as_ref(), &self.overrides).0
    }

    fn log(&mut self, line: &str) {
        output::note(line);
    }

    fn publish(&mut self, metrics: &Metrics) {
        let Some(path) = &self.metrics_file else { return };
        if let Err(error) = write_whole(path, &metrics.text()) {
            output::note(format_args!(
                "event=metrics_failed path={} reason={error}",
                path.display()
            ));
        }
    }

    fn process(&self, pid: u32) -> Option<Identity> {
        Identity::of(pid)
    }

    fn end(&mut self, process: Identity) -> io::Result<()> {
        process.kill()
    }

    fn set_budget(
        &mut self,
        pid: u32,
        max: Option<Bytes>,
        min: Option<Bytes>,
    ) -> Result<(), String> {
        set_budget(&self.files, pid, max, min).map_err(|error| format!("{error:#}"))
    }

    fn pause(&self) {
        clock::sleep(PAUSE);
    }
}

/// Replaces a file by renaming, so that a reader never sees a part of it.
fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let mut other = tempfile::NamedTempFile::new_in(dir.unwrap_or_else(|| Path::new(".")))?;
    other.write_all(text.as_bytes())?;
    // The node exporter runs as another user.
    other.as_file().set_permissions(Permissions::from_mode(0o644))?;
    other.persist(path).map_err(|error| error.error)?;
    Ok(())
}
