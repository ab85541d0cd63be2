//! The host's side: the life of a run, from the plan to the command's exit status.
//!
//! - Everything a guest is made of is found or fetched ([`crate::fetch`]), and its first file system is written
//!   ([`crate::image`]).
//! - QEMU starts under a guard that ends it with us (`vm.rs`, its arguments in `qemu.rs`).
//! - The session carries streams and signals until the command ends (`session.rs`). Should QEMU crash, or break the kernel,
//!   before the guest is up, another boot is tried: nothing of the command has happened yet.
//! - QEMU is ended, and the run's files go. A failure leaves the guest's console log behind, and its path in the message.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::fetch::{Busybox, Cache, FetchError, Kernel, Qemu, Say};
use crate::image::{self, ImageError};
use crate::machine::Machine;
use crate::wire::Start;

mod files;
mod qemu;
mod session;
mod terminal;
mod timing;
mod vm;

pub use timing::{Method, Timing};
pub(crate) use vm::shim;

/// How often a boot is tried. QEMU 10.0 crashes once in some hundred boots, where one CPU changes the memory map under
/// another: an assertion in `iotlb_to_section`. More rarely a CPU executes a breakpoint of the kernel's that another has
/// just taken away, and the kernel panics.
const BOOTS: u32 = 3;

/// A run, ready to start: everything that can be wrong with it by itself has been found.
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
    /// A directory that is writable at /out in the guest.
    pub out: Option<PathBuf>,
    /// Where statistics go.
    pub stats: Option<PathBuf>,
    /// How often what has been counted by then is kept in them, in milliseconds of modelled time.
    pub stats_every_ms: Option<u64>,
    /// How long the command may take.
    pub limit: Option<Duration>,
    /// How long the guest may take to come up.
    pub boot_limit: Duration,
    /// The command and its arguments.
    pub argv: Vec<Vec<u8>>,
    /// Its environment.
    pub env: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Its directory.
    pub cwd: PathBuf,
    /// Whether it gets a terminal.
    pub terminal: bool,
    /// The arguments that lead this program to the lab's hidden commands.
    pub reenter: Vec<String>,
}

/// How a run ended that started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The exit status to give.
    pub status: u8,
    /// What to say about it, if the command itself did not.
    pub message: Option<String>,
}

/// Why a command was not run, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Something the guest is made of.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The guest's first file system.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// Timing as asked can't be had.
    #[error("timing {asked}: {found}")]
    Timing {
        /// What was asked.
        asked: Timing,
        /// What was found, and what to do.
        found: String,
    },
    /// A file or directory of the run.
    #[error("{what} {}: {source}", path.display())]
    File {
        /// What it is.
        what: &'static str,
        /// Where it is.
        path: PathBuf,
        /// What failed.
        source: std::io::Error,
    },
    /// QEMU, or a process of it.
    #[error("{what}: {source}")]
    Process {
        /// What was tried.
        what: &'static str,
        /// What failed.
        source: std::io::Error,
    },
    /// QEMU crashed, or broke the guest's kernel, before the guest was up.
    #[error("{found}; its console: {}", log.display())]
    Boot {
        /// What was seen.
        found: String,
        /// The console log that was kept.
        log: PathBuf,
    },
    /// The guest did not do its part.
    #[error("{found}; its console: {}", log.display())]
    Guest {
        /// What was seen.
        found: String,
        /// The console log that was kept.
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
    let device =
        plan.machine.nodes.iter().find_map(|node| {
            node.cxl_device.as_ref().map(|device| (node.size.0, device.granularity))
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
        match session::Session::new(vm, port, &files, plan).run(start.clone()) {
            Err(RunError::Boot { found, .. }) if boots < BOOTS => {
                boots += 1;
                say.line(&format!("{found}; booting again"));
            }
            ended => break ended?,
        }
    };
    drop(files);
    timing::publish(plan, &kernel, &method, &ended.statistics)?;
    Ok(ended.ended)
}

/// The command's environment: the plan's, at the end of PATH where nearfar is (so that it is found in the lab even if it
/// is not installed) and the guest's own tools, and what a program may want to know about where it runs.
fn environment(plan: &Plan, kernel: &Kernel, method: &Method) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut env = plan.env.clone();
    let path = env.entry(b"PATH".to_vec()).or_insert_with(|| b"/usr/bin:/bin".to_vec());
    let ours = std::env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_owned));
    // A colon can't be part of an entry.
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
