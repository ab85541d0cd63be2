//! `nearfar vm resize`: changes how much memory of a tier a guest has, through a virtio-mem device.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_command::number::whole;
use nearfar_command::progress::StatusLine;
use nearfar_command::{interrupt, output};
use nearfar_kernel::clock::{self, Stopwatch};
use nearfar_kernel::fs::RootFs;
use nearfar_topology::{Bytes, NodeExpr};
use nearfar_vm::running::machine::{Machine, Target, VirtioMem};
use nearfar_vm::running::resize::{Select, device, room};
use serde_json::json;

use super::super::machine::MachineArgs;
use super::command;

/// Maximum of `--wait`, in seconds.
const WAIT_MAX: i64 = 86_400;

/// Arguments of `nearfar vm resize`.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("which").required(true)))]
pub(super) struct Args {
    /// The virtual machine: the process id of QEMU, or the path of a QMP socket
    #[arg(value_name = "PID|QMP")]
    machine: String,
    /// The memory's size afterwards; a multiple of the device's block size
    #[arg(value_name = "SIZE")]
    size: Bytes,
    /// The device with its memory on these host nodes
    #[arg(long, value_name = "NODES", group = "which")]
    tier: Option<NodeExpr>,
    /// The device of this name
    #[arg(long, value_name = "ID", group = "which")]
    device: Option<String>,
    /// Grow it also if the host's nodes have less free memory than that
    #[arg(long)]
    overcommit: bool,
    /// Seconds to wait for the guest; 0 does not wait
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = whole::<u64>(0..=WAIT_MAX))]
    wait: u64,
    /// Print JSON (schema nearfar.vm-resize/1)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    topology: MachineArgs,
}

/// Runs it.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let fs = RootFs::live()?;
    let select = args.topology.select();
    let (topology, _) = select.read(select.open()?.as_ref())?;
    let select = match (&args.tier, &args.device) {
        (Some(tier), _) => {
            Select::Nodes(tier.resolve(&topology, &[]).context("--tier").ends_with(Exit::Usage)?)
        }
        (None, Some(id)) => Select::Device(id.clone()),
        (None, None) => anyhow::bail!("neither --tier nor --device is given"),
    };
    let mut machine = Machine::connect(&fs, &Target::parse(&args.machine))?;
    super::moving::not_confidential(&mut machine, "its size can't be changed")?;
    let (devices, backends) = (machine.virtio_mem()?, machine.backends()?);
    let before = device(&devices, &backends, &select, args.size)?.clone();
    if !args.overcommit {
        let free = command::room(&fs, &topology);
        room(&before, &backends, args.size, |node| free.get(&node).copied().unwrap_or_default())?;
    }
    let path = format!("/machine/peripheral/{}", before.id);
    machine.execute(
        "qom-set",
        &json!({ "path": path, "property": "requested-size", "value": args.size.0 }),
    )?;
    let after = wait(&mut machine, &before.id, args)?;
    report(args, &before, &after)?;
    let is_there = after.size == args.size || args.wait == 0;
    Ok(if is_there { Exit::Done } else { Exit::Failed }.into())
}

/// Waits until the device has the size, at most `--wait` seconds; returns it as it is then.
fn wait(machine: &mut Machine, id: &str, args: &Args) -> anyhow::Result<VirtioMem> {
    let (watch, line) = (Stopwatch::start(), StatusLine::new());
    interrupt::listen()?;
    loop {
        let devices = machine.virtio_mem()?;
        let now = devices.into_iter().find(|device| device.id == id);
        let now = now.with_context(|| format!("device {id} is gone"))?;
        let is_late = watch.elapsed() >= Duration::from_secs(args.wait);
        if now.size == args.size || is_late || interrupt::check().is_err() {
            return Ok(now);
        }
        line.show(format_args!("{id}: {} of {}", now.size, args.size));
        clock::sleep(Duration::from_millis(100));
    }
}

fn report(args: &Args, before: &VirtioMem, after: &VirtioMem) -> anyhow::Result<()> {
    if args.json {
        return output::print_json(&json!({
            "schema": "nearfar.vm-resize/1",
            "device": after.id,
            "backend": after.backend,
            "guest_node": after.guest_node,
            "before": before.size.0,
            "requested": args.size.0,
            "size": after.size.0,
        }));
    }
    let node = after.guest_node;
    let mut out =
        format!("Device {}, guest node {node}: {} -> {}\n", after.id, before.size, after.size);
    if after.size != args.size {
        let text = match args.wait {
            0 => "The guest was asked, and approaches the size in its own time.".to_owned(),
            wait => format!(
                "{} were requested; the guest has not followed within {wait} s. It needs the virtio_mem driver, and to shrink, \
                 blocks that it can empty (boot it with memhp_default_state=online_movable). The request stands.",
                args.size
            ),
        };
        output::wrapped(&mut out, "", &text, 0);
    }
    output::print(&out)
}
