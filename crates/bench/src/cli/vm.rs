//! `nearfar-bench vm`: the memory of a virtual machine, in the lab.

use std::process::ExitCode;

use super::comparison::OneBoot;
use crate::demo::guest::Lab;
use crate::pages::vm::{html, is_whole, text};
use crate::vm;
use nearfar_command::exit::Exit;

/// Arguments as typed.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The modelled machine with DRAM and CXL memory, by name or file; that with a device is cxl-device
    #[arg(long, value_name = "NAME|FILE", default_value = "cxl-2tier")]
    machine: String,
    #[command(flatten)]
    frame: OneBoot,
}

/// Runs it; exit status 1 if a row has no figures.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let found = args.frame.found(
        || vm::plan(&args.machine),
        vm::measure,
        vm::prepare,
        |dir| {
            let boot = |machine: &str| {
                let lab = Lab { machine: Some(machine.into()), ..Lab::default() };
                args.frame.boot(lab, Vec::new(), dir)
            };
            Ok(vm::joined(boot(&args.machine)?, boot(vm::DEVICE)?))
        },
    )?;
    let Some(found) = found else { return Ok(Exit::Done.into()) };
    args.frame.output.show(&found, &text(&found), &html(&found), is_whole(&found))
}
