//! The host's side: a run from the plan to the command's exit status.
//!
//! - The parts of a guest are found or downloaded ([`crate::fetch`]), and its first file system is written
//!   ([`crate::image`]).
//! - QEMU starts under a guard that ends it with this process (`vm.rs`, its arguments in `qemu.rs`).
//! - The session carries streams and signals until the command ends (`session.rs`). If QEMU crashes, or breaks the
//!   guest's kernel, before the guest is up, the boot is retried: the command has not started yet.
//! - QEMU is ended, and the run's files are removed. After a failure the guest's console log is kept, and the message
//!   has its path.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::fetch::{Busybox, Cache, FetchError, Kernel, Qemu, Say};
use crate::image::{self, ImageError};
use crate::machine::Machine;
use crate::wire::Start;

mod begin;
mod boot;
mod files;
mod qemu;
mod session;
mod silence;
mod stacks;
mod terminal;
mod timing;
mod vm;

pub use timing::{Method, Timing, distorted, find_plugin};
pub(crate) use vm::shim;

/// Most attempts to boot. QEMU 10.0 crashes about once in a hundred boots, where one CPU changes the memory map under
/// another: an assertion in `iotlb_to_section`. More rarely a CPU executes a breakpoint of the kernel that another has
/// just removed, and the kernel panics. A kernel that prints nothing for half of the boot's limit counts, too.
const BOOTS: u32 = 3;

/// A run, ready to start: all errors that can be found beforehand have been reported.
#[derive(Debug)]
pub struct Plan {
    /// The machine.
    pub machine: Machine,
    /// Kernel series or path.
    pub kernel: String,
    /// More kernel parameters.
    pub append: String,
    /// An emulator other than the cached one.
    pub qemu: Option<PathBuf>,
    /// How guest time passes.
    pub timing: Timing,
    /// The directory that is writable at /out in the guest.
    pub out: Option<PathBuf>,
    /// Path of the statistics.
    pub stats: Option<PathBuf>,
    /// Interval at which intermediate statistics are recorded, in milliseconds of modelled time.
    pub stats_every_ms: Option<u64>,
    /// Time limit of the command.
    pub limit: Option<Duration>,
    /// Time limit of the boot.
    pub boot_limit: Duration,
    /// The command and its arguments.
    pub argv: Vec<Vec<u8>>,
    /// Its environment.
    pub env: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Its directory.
    pub cwd: PathBuf,
    /// Whether it gets a terminal.
    pub terminal: bool,
    /// The arguments that invoke the lab's hidden commands in this program.
    pub reenter: Vec<String>,
}

/// The end of a run that started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The exit status to return.
    pub status: u8,
    /// A message about it, if the command itself printed none.
    pub message: Option<String>,
    /// Whether this process was asked to end by a signal.
    pub interrupted: bool,
}

impl Ended {
    fn new(status: u8, message: Option<String>) -> Self {
        Self { status, message, interrupted: false }
    }
}

/// Reasons why a command was not run, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A part of the guest is missing.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The guest's first file system can't be made.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The requested timing is not available.
    #[error("timing {asked}: {found}")]
    Timing {
        /// The requested method.
        asked: Timing,
        /// The cause, and the remedy.
        found: String,
    },
    /// A file operation of the run failed.
    #[error("{what} {}: {source}", path.display())]
    File {
        /// The kind of file.
        what: &'static str,
        /// Its path.
        path: PathBuf,
        /// The error.
        source: std::io::Error,
    },
    /// QEMU, or a process of it, failed.
    #[error("{what}: {source}")]
    Process {
        /// The operation.
        what: &'static str,
        /// The error.
        source: std::io::Error,
    },
    /// QEMU crashed, or broke the guest's kernel, before the guest was up.
    #[error("{found}; its console: {}", log.display())]
    Boot {
        /// The symptoms.
        found: String,
        /// Path of the console log.
        log: PathBuf,
    },
    /// The guest did not respond as expected.
    #[error("{found}; its console: {}", log.display())]
    Guest {
        /// The symptoms.
        found: String,
        /// Path of the console log.
        log: PathBuf,
    },
}

/// Runs the plan's command in a guest.
///
/// # Errors
/// [`RunError`] if the command did not start, or the guest failed under it.
pub fn run(plan: &Plan, say: &dyn Say) -> Result<Ended, RunError> {
    let cache = Cache::from_env()?;
    let qemu = match &plan.qemu {
        Some(path) => Qemu::at(path)?,
        None => Qemu::cached(&cache, say)?,
    };
    let busybox = Busybox::cached(&cache, say)?;
    let kernel = Kernel::find(&cache, &plan.kernel, &busybox, say)?;
    let mut files = files::RunFiles::new()?;
    let method = timing::settle(plan, &qemu, &files, say)?;

    let program = std::env::current_exe()
        .map_err(|source| RunError::Process { what: "finding this program", source })?;
    let reenter: Vec<&str> = plan.reenter.iter().map(String::as_str).collect();
    let device = plan.machine.nodes.iter().find_map(|node| {
        let device = node.cxl_device.as_ref()?;
        Some((if device.idle { 0 } else { node.size.0 }, device.granularity))
    });
    let settings = image::Settings {
        runner: (&program, &reenter),
        out: plan.out.is_some(),
        hostname: &plan.machine.name,
        translations_ms: method.guest_ms(plan.machine.translations_ms),
        cxl: device,
    };
    files.write_image(&image::build(&kernel, &busybox, &settings)?)?;

    let args = qemu::arguments(&qemu::Board {
        machine: &plan.machine,
        kernel: &kernel,
        files: &files,
        out: plan.out.as_deref(),
        method: &method,
        append: &plan.append,
        firmware: &qemu.firmware,
    });
    let start = Start {
        argv: plan.argv.clone(),
        env: environment(plan, &kernel, &method),
        cwd: std::os::unix::ffi::OsStringExt::into_vec(plan.cwd.clone().into_os_string()),
        terminal: None,
    };
    let mut boots = 1;
    let ended = loop {
        let (vm, port) = vm::Vm::start(&plan.reenter, &qemu, &args, &files)?;
        say.status(&format!(
            "booting Linux {} on {} ({} s at most)",
            kernel.version,
            plan.machine.name,
            plan.boot_limit.as_secs()
        ));
        let finished = session::Session::new(vm, port, &files, plan).run(start.clone(), say);
        if finished.is_err() {
            say.status("");
        }
        match finished {
            Err(RunError::Boot { found, .. }) if boots < BOOTS => {
                boots += 1;
                say.line(&format!("{found}; booting again"));
            }
            ended => break ended?,
        }
    };
    drop(files);
    timing::publish(plan, &kernel, &method, &ended.statistics, say)?;
    Ok(ended.ended)
}

/// The command's environment: the plan's; at the end of PATH the directory of nearfar (so that it is found in the lab
/// even if it is not installed) and the guest's own tools; and variables that describe the lab.
fn environment(plan: &Plan, kernel: &Kernel, method: &Method) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut env = plan.env.clone();
    let path = env.entry(b"PATH".to_vec()).or_insert_with(|| b"/usr/bin:/bin".to_vec());
    let ours = std::env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_owned));
    // A colon can't be part of an entry of PATH.
    if let Some(dir) = ours.map(|dir| dir.into_os_string().into_vec())
        && !dir.contains(&b':')
    {
        path.push(b':');
        path.extend(dir);
    }
    path.extend(b":/run/nearfar/bin");
    let mut set = |name: &str, value: &str| {
        env.insert(name.as_bytes().to_vec(), value.as_bytes().to_vec());
    };
    set("NEARFAR_LAB", &plan.machine.name);
    set("NEARFAR_LAB_KERNEL", &kernel.version);
    set("NEARFAR_LAB_TIMING", method.word());
    set("NEARFAR_LAB_SLOW_MOTION", &method.slow_motion().to_string());
    set("NEARFAR_LAB_LLC_KIB", &plan.machine.processor.llc_kib.to_string());
    env
}
