//! `nearfar vm xml`: libvirt's domain XML with memory kinds for its cells.

use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use nearfar_vm::libvirt::{self, Cell};

use super::super::machine::MachineArgs;
use super::command::host;
use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_command::output;

/// The longest document that is read.
const BYTES_MAX: u64 = 4 << 20;

/// Arguments of `nearfar vm xml`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Place the memory of a cell (cpu/numa/cell): CELL=TYPE or CELL=TYPE,POLICY, such as 1=cxl or 1=2-3,interleave; may
    /// be given several times
    #[arg(long = "cell", value_name = "CELL=TYPE[,POLICY]", required = true)]
    cells: Vec<Cell>,
    /// Also bind memory to nodes that have less free memory than that
    #[arg(long)]
    overcommit: bool,
    #[command(flatten)]
    machine: MachineArgs,
    /// The domain's XML, or - for standard input
    #[arg(value_name = "FILE|-")]
    file: PathBuf,
}

/// Prints the changed document.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let text = read(args).ends_with(Exit::Usage)?;
    let fs = args.machine.select().open()?;
    let (machine, _) = args.machine.select().read(fs.as_ref())?;
    let host = host(fs.as_ref(), &machine)?;
    let domain = libvirt::patch(&text, &args.cells, &host, args.overcommit);
    let domain = domain.ends_with(Exit::Usage)?;
    for note in &domain.notes {
        output::note(note);
    }
    output::print(&domain.text)?;
    Ok(Exit::Done.into())
}

fn read(args: &Args) -> anyhow::Result<String> {
    let mut text = String::new();
    let name = args.file.display();
    let input: Box<dyn std::io::Read> = if args.file.as_os_str() == "-" {
        Box::new(std::io::stdin())
    } else {
        Box::new(File::open(&args.file).with_context(|| format!("can't open {name}"))?)
    };
    input
        .take(BYTES_MAX + 1)
        .read_to_string(&mut text)
        .with_context(|| format!("can't read {name}"))?;
    anyhow::ensure!(text.len() as u64 <= BYTES_MAX, "{name}: more than 4 MiB; that is no domain");
    Ok(text)
}
