//! `nearfar topo`: what memory the machine has. For people a text ([`text`]), for programs JSON ([`json`]).
//!
//! Reads only, needs no privilege. `--record` keeps everything that was read in one file, from which `--sysfs` shows
//! the same machine anywhere: in a bug report, in a test.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use nearfar_kernel::fs::{self, Fs};
use nearfar_topology::Topology;

use super::machine::{self, MachineArgs};
use super::output;

pub(crate) mod json;
mod text;

/// What `nearfar topo` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON (schema nearfar.topo/1)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    machine: MachineArgs,
    /// Also write all that was read into FILE (`-` prints it instead), to be looked at elsewhere with --sysfs; it
    /// holds serial numbers of CXL devices
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// Prints the machine.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let fs = args.machine.open()?;
    let lab = args.machine.lab(fs.as_ref());
    let (machine, findings) = args.machine.read(fs.as_ref())?;
    if let Some(file) = &args.record {
        let recording = recording(fs.as_ref(), &machine, lab.as_ref());
        if file == Path::new("-") {
            output::print(&recording)?;
            return Ok(ExitCode::SUCCESS);
        }
        std::fs::write(file, recording)
            .with_context(|| format!("--record: can't write {}", file.display()))?;
        output::note(format_args!("recorded to {}", file.display()));
    }
    if args.json {
        output::print_json(&json::Report::of(&machine, lab, &findings))?;
    } else {
        output::print(&text::of(&machine, lab.as_ref(), &findings))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The recorded tree with a head that says what it is.
fn recording(fs: &dyn Fs, topology: &Topology, lab: Option<&serde_json::Value>) -> String {
    let (mut tree, _) = fs::gather(fs);
    if let Some(lab) = lab {
        tree.insert(machine::LAB, &lab.to_string());
    }
    format!(
        "# {}, Linux {}, recorded by nearfar {}\n{}",
        topology.product.as_deref().unwrap_or("unnamed machine"),
        topology.kernel.as_deref().unwrap_or("of unknown release"),
        env!("CARGO_PKG_VERSION"),
        tree.record()
    )
}
