//! `nearfar vm run`: carries out the plan and becomes QEMU.
//!
//! Files for QEMU have no names that others could take: a rewritten configuration is in a memfd, and a tmpfs with a
//! policy is mounted nowhere. QEMU inherits them as open files and opens them by their paths below /proc/self/fd; they
//! vanish with QEMU.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::Context as _;
use nearfar_kernel::mempolicy::{self, Policy};
use nearfar_topology::NodeSet;
use nearfar_vm::qemu::{Mount, Plan, Way};
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::FdFlags;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use super::super::run::{find_beside, preload};
use super::command::{CommandArgs, HELP};
use super::memory::REQUESTS;
use super::show;
use nearfar_command::exit::{EndsWith as _, Exit, WithExit};
use nearfar_command::output;

/// The library of --preload.
pub(super) const INTERLEAVE: &str = "libnearfar_vm_interleave.so";

/// Arguments of `nearfar vm run`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub(super) struct Args {
    /// Print the plan without running QEMU
    #[arg(long)]
    dry_run: bool,
    /// With --dry-run: print JSON (schema nearfar.vm-args/1)
    #[arg(long, requires = "dry_run")]
    json: bool,
    #[command(flatten)]
    command: CommandArgs,
}

/// Runs QEMU; returns only if it was not started.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if !args.dry_run && !args.command.machine.select().is_live() {
        let error = anyhow::anyhow!(
            "--sysfs names another machine, on which no program can run; add --dry-run"
        );
        return Err(error).ends_with(Exit::Usage);
    }
    let mut plan = args.command.plan()?;
    if args.dry_run {
        if args.json {
            output::print_json(&show::Document::new(&plan, &[]))?;
            return Ok(Exit::Done.into());
        }
        output::print(&show::plan(&plan))?;
        return Ok(Exit::Done.into());
    }
    for note in &plan.notes {
        output::note(note);
    }
    let files = prepare(&mut plan).ends_with(Exit::BeforeCommand)?;
    let mut words = plan.argv.iter();
    let program = words.next().map(OsStr::new).unwrap_or_default();
    let mut command = Command::new(program);
    command.args(words).env(REQUESTS, requests(&plan));
    if plan.way == Some(Way::Preload) {
        preload(&mut command, &interleave().ends_with(Exit::BeforeCommand)?);
    }
    let error = command.exec();
    drop(files);
    let exit = Exit::of_start(&error);
    let found = if exit == Exit::NotFound { "was not found" } else { "can't be executed" };
    let error = anyhow::Error::from(error).context(format!("`{}` {found}", program.display()));
    Err(WithExit { exit, error }.into())
}

/// Placements for `nearfar vm verify`, which QEMU does not know: weighted interleave is not a policy of its own.
fn requests(plan: &Plan) -> String {
    let weighted =
        plan.backends.iter().filter(|one| one.policy == nearfar_vm::Policy::WeightedInterleave);
    let request =
        |one: &nearfar_vm::qemu::Placed| format!("{}={}:{}", one.id, one.policy, one.nodes);
    weighted.map(request).collect::<Vec<_>>().join(";")
}

/// The library that makes interleaved memory weighted.
fn interleave() -> anyhow::Result<PathBuf> {
    // The kernel refuses the policy without naming it, and QEMU reports that as a fault of the nodes.
    anyhow::ensure!(
        mempolicy::knows_weighted_interleave().unwrap_or(true),
        "this kernel has no weighted interleave (Linux 6.9)"
    );
    find_beside(INTERLEAVE).context("--preload")
}

/// Makes mounts and copies, and sets the policy of this process. The files must stay open until QEMU has started.
fn prepare(plan: &mut Plan) -> anyhow::Result<Vec<OwnedFd>> {
    allowed(plan)?;
    let mut files = Vec::new();
    for mount in plan.mounts.clone() {
        let file = tmpfs(&mount).with_context(|| {
            format!(
                "a tmpfs with mpol={} for {} (needs root; without it, weighted interleave works only if all of the guest's \
                 memory is interleaved over the same nodes)",
                mount.mpol, mount.id
            )
        })?;
        plan.put(&mount.file, &path(&file));
        files.push(file);
    }
    for config in std::mem::take(&mut plan.configs) {
        let file = copy(&config.text).context("a copy of a configuration file")?;
        plan.argv[config.word] = path(&file).into();
        files.push(file);
    }
    if let Some(nodes) = plan.process.clone() {
        mempolicy::set(&Policy::WeightedInterleave(nodes))?;
    }
    Ok(files)
}

/// Refuses nodes that this process's cpuset excludes: the kernel ignores them in a list.
fn allowed(plan: &Plan) -> anyhow::Result<()> {
    let Some(allowed) = mempolicy::nodes_allowed() else { return Ok(()) };
    for placed in &plan.backends {
        let denied: NodeSet = placed.nodes.without(&allowed);
        anyhow::ensure!(
            denied.is_empty(),
            "{}: the cpuset of this process permits memory of nodes {allowed}, not {denied}; start it elsewhere, or choose other nodes",
            placed.id
        );
    }
    Ok(())
}

/// The path by which a process that inherits `file` opens it again.
fn path(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// The text in a memfd that survives exec.
fn copy(text: &str) -> anyhow::Result<OwnedFd> {
    let mut file = File::from(rustix::fs::memfd_create("nearfar-vm", MemfdFlags::empty())?);
    file.write_all(text.as_bytes())?;
    Ok(file.into())
}

/// A file on a tmpfs of its own with the policy, open across exec. The mount is attached nowhere, and ends with the file.
fn tmpfs(mount: &Mount) -> anyhow::Result<OwnedFd> {
    let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in
        [("mpol", mount.mpol.clone()), ("size", mount.size.0.to_string()), ("mode", "0700".into())]
    {
        let set = rustix::mount::fsconfig_set_string(&context, key, value);
        set.with_context(|| format!("the kernel refuses {key}"))?;
    }
    rustix::mount::fsconfig_create(&context)?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let root = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
    let access = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&root, "memory", access, Mode::RUSR | Mode::WUSR)?;
    rustix::fs::ftruncate(&file, mount.size.0)?;
    rustix::io::fcntl_setfd(&file, FdFlags::empty())?;
    Ok(file)
}
