//! `nearfar topo`: shows the machine's memory, as text ([`text`]) or as JSON.
//!
//! It reads only and needs no privilege. `--record` writes everything that was read into one file, from which `--sysfs`
//! shows the same machine elsewhere: in a bug report, in a test.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use nearfar_kernel::fs::{self, Fs};
use nearfar_kernel::mempolicy;
use nearfar_kernel::smbios;
use nearfar_report::drawing;
use nearfar_topology::Topology;

use super::machine::MachineArgs;
use nearfar_command::topo::{json, text};
use nearfar_command::{machine, output, terminal};

/// Arguments of `nearfar topo`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON (schema nearfar.topo/2)
    #[arg(long)]
    json: bool,
    /// Draw sockets, nodes and what is attached to them; --draw=svg for a browser or a document
    #[arg(long, value_enum, value_name = "FORM", num_args = 0..=1, require_equals = true, default_missing_value = "text", conflicts_with = "json")]
    draw: Option<Form>,
    #[command(flatten)]
    machine: MachineArgs,
    /// Also write all files read into FILE (`-` prints it instead), for --sysfs on any machine; it contains serial
    /// numbers of CXL devices
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// Forms of the drawing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    /// Lines of text
    #[default]
    Text,
    /// A drawing for a browser or a document
    Svg,
}

/// Prints the machine.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let fs = args.machine.select().open()?;
    let lab = args.machine.select().lab(fs.as_ref());
    let (machine, findings) = args.machine.select().read(fs.as_ref())?;
    if let Some(file) = &args.record {
        let recording = recording(fs.as_ref(), &machine, lab.as_ref());
        if file == Path::new("-") {
            output::print(&recording)?;
            return Ok(ExitCode::SUCCESS);
        }
        std::fs::write(file, recording)
            .with_context(|| format!("--record: can't write {}", file.display()))?;
        output::remark(format_args!("recorded to {}", file.display()));
    }
    let is_live = args.machine.select().is_live();
    if is_live && let Err(error) = mempolicy::permitted() {
        output::note(format_args!("no memory can be placed here: {error}"));
    }
    let modules = if is_live { smbios::modules() } else { smbios::Modules::new() };
    if let Some(form) = args.draw {
        output::print(&match form {
            Form::Text => drawing::text(&machine, terminal::get().columns),
            Form::Svg => drawing::svg(&machine),
        })?;
    } else if args.json {
        output::print_json(&json::Report::of(&machine, lab, &findings, &modules))?;
    } else {
        output::print(&text::of(&machine, lab.as_ref(), &findings, &modules))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The recorded tree, with a header that describes it.
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
