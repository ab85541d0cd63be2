//! `nearfar vm`: memory kinds for virtual machines: rewrites the command line of a VMM, or runs it; verifies, moves and
//! resizes the memory of one that runs.
//!
//! The rewriting is in crate vm, as text; here are the machine, the files and the start. One file for each subcommand.

use std::process::ExitCode;

use clap::Subcommand;

mod args;
mod command;
mod list;
mod memory;
mod moving;
mod native;
mod resize;
mod run;
mod show;
mod xml;

/// Arguments of `nearfar vm`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    vm: Vm,
}

#[derive(Debug, Subcommand)]
enum Vm {
    /// Print a VMM's command line with memory kinds rewritten to options that the VMM has
    Args(args::Args),
    /// Run QEMU with memory kinds on its command line
    Run(run::Args),
    /// Place the cells of a libvirt domain by kind of memory: XML in, XML out
    Xml(xml::Args),
    /// List the virtual machines that run here, with the memory of each by tier
    List(list::Args),
    /// Show the memory of a running QEMU: requested and actual placement of each backend
    Show(memory::Args),
    /// The same, with exit status 1 if a backend's memory is not placed as requested, 2 if that can't be found out
    Verify(memory::VerifyArgs),
    /// Migrate memory of a running QEMU to other nodes
    Move(moving::Args),
    /// Change how much memory of a tier a guest has, through virtio-mem
    Resize(resize::Args),
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.vm {
        Vm::Args(args) => args::run(args),
        Vm::Run(args) => run::run(args),
        Vm::Xml(args) => xml::run(args),
        Vm::List(args) => list::run(args),
        Vm::Show(args) => memory::run(args),
        Vm::Verify(args) => memory::verify(args),
        Vm::Move(args) => moving::run(args),
        Vm::Resize(args) => resize::run(args),
    }
}
