//! `nearfar vm args`: prints a VMM's command line with memory kinds rewritten.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use nearfar_vm::cloud_hypervisor::{self, Zone};
use nearfar_vm::qemu::{Plan, Way};
use nearfar_vm::shell;
use serde::Serialize;

use super::command::{CommandArgs, HELP, host};
use super::run::INTERLEAVE;
use super::show::{Document, argv};
use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_command::output;

/// Arguments of `nearfar vm args`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub(super) struct Args {
    /// The VMM; for cloud-hypervisor, options for the zones of --zone are added to its command line
    #[arg(long, value_enum, default_value_t)]
    vmm: Vmm,
    /// With cloud-hypervisor: a memory zone of a kind, as id=far0,size=2G,type=cxl; with cpus=0-3, the guest's CPUs of its
    /// node. May be given several times
    #[arg(long = "zone", value_name = "ZONE")]
    zones: Vec<Zone>,
    /// Print JSON (schema nearfar.vm-args/1)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    command: CommandArgs,
}

/// A VMM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Vmm {
    #[default]
    Qemu,
    CloudHypervisor,
}

/// `nearfar.vm-args/1` of Cloud Hypervisor.
#[derive(Debug, Serialize)]
struct Words {
    schema: &'static str,
    argv: Vec<String>,
}

/// Prints the command line.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.vmm == Vmm::CloudHypervisor {
        return zones(args);
    }
    let usage = anyhow::anyhow!(
        "--zone is for --vmm cloud-hypervisor; in QEMU's options write host-mem-type"
    );
    args.zones.is_empty().then_some(()).ok_or(usage).ends_with(Exit::Usage)?;
    let mut plan = args.command.plan()?;
    let copies = copy(&mut plan)?;
    if args.json {
        output::print_json(&Document::new(&plan, &copies))?;
        return Ok(Exit::Done.into());
    }
    for note in &plan.notes {
        output::note(note);
    }
    before(&plan);
    output::print(&(shell::join(&plan.argv) + "\n"))?;
    Ok(Exit::Done.into())
}

/// Writes the rewritten files, readable by this user only, and names them on the command line.
fn copy(plan: &mut Plan) -> anyhow::Result<Vec<String>> {
    let mut copies = Vec::new();
    for config in &plan.configs {
        let file = tempfile::Builder::new().prefix("nearfar-vm-").suffix(".cfg").tempfile();
        let mut file = file.context("can't create a copy of a configuration file")?;
        file.write_all(config.text.as_bytes()).context("can't write a configuration file")?;
        let (_, path) = file.keep().context("can't keep a configuration file")?;
        plan.argv[config.word] = path.clone().into();
        let path = path.to_string_lossy().into_owned();
        plan.notes
            .push(format!("{path} is a rewritten copy of {}; remove it after use", config.path));
        copies.push(path);
    }
    Ok(copies)
}

/// Names the work to do before the command line.
fn before(plan: &Plan) {
    if let Some(nodes) = &plan.process {
        output::note(format_args!(
            "start it under weighted interleave: nearfar run -w {nodes} -- ..., or use nearfar vm run"
        ));
    }
    if plan.way == Some(Way::Preload) {
        output::note(format_args!(
            "start it with LD_PRELOAD={INTERLEAVE}, with its path; or use nearfar vm run"
        ));
    }
    for mount in &plan.mounts {
        let (dir, mpol, size) = (mount.dir(), &mount.mpol, mount.size.0);
        output::note(format_args!(
            "first: mkdir -p {dir} && mount -t tmpfs -o 'size={size},mpol={mpol}' nearfar {dir}; or use nearfar vm run"
        ));
    }
}

/// Options of Cloud Hypervisor after its command line.
fn zones(args: &Args) -> anyhow::Result<ExitCode> {
    let usage = || anyhow::anyhow!("--vmm cloud-hypervisor needs --zone id=far0,size=2G,type=cxl");
    (!args.zones.is_empty()).then_some(()).ok_or_else(usage).ends_with(Exit::Usage)?;
    let far = || anyhow::anyhow!("--far is for QEMU; write a --zone for far memory");
    args.command.far.is_empty().then_some(()).ok_or_else(far).ends_with(Exit::Usage)?;
    let select = args.command.machine.select();
    let fs = select.open()?;
    let (machine, _) = select.read(fs.as_ref())?;
    let host = host(fs.as_ref(), &machine)?;
    let added = cloud_hypervisor::arguments(&args.zones, &host, args.command.overcommit);
    let added = added.ends_with(Exit::Usage)?;
    let words: Vec<_> =
        args.command.command.iter().cloned().chain(added.into_iter().map(Into::into)).collect();
    if args.json {
        output::print_json(&Words { schema: "nearfar.vm-args/1", argv: argv(&words) })?;
    } else {
        output::print(&(shell::join(&words) + "\n"))?;
    }
    Ok(Exit::Done.into())
}
