//! `nearfar-bench tiering-cost`: the simulated cost of tiering on a machine of any size.

use std::process::ExitCode;

use nearfar_topology::Bytes;

use crate::tiering_cost::{self, Request};
use nearfar_command::exit::Exit;
use nearfar_command::number::{percent, whole};
use nearfar_command::output;

/// Arguments as typed.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Number of nodes
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = whole::<u16>(2..=1024))]
    nodes: u16,
    /// Number of near nodes among them
    #[arg(long, value_name = "N", default_value_t = 8)]
    near: u16,
    /// Memory of all nodes together, in GiB
    #[arg(long, value_name = "GIB", default_value_t = 4096, value_parser = whole::<u64>(4..=1 << 20))]
    memory_gib: u64,
    /// Kernel CPU time of a scan per page; 220 ns is the figure of the lab's EMULATED cxl-2tier-small
    #[arg(long, value_name = "NS", default_value_t = 220, value_parser = whole::<u64>(1..=1_000_000))]
    page_ns: u64,
    /// As in nearfar tier start: maximum share of one CPU for scanning and migration; shown for that in total and for
    /// that per node
    #[arg(long, value_name = "PERCENT", default_value_t = 5, value_parser = percent::<u32>(1..=100))]
    cpu: u32,
    /// Print JSON (schema nearfar.tiering-cost/1)
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let request = Request {
        nodes: args.nodes,
        near: args.near,
        memory: Bytes(args.memory_gib << 30),
        page_ns: args.page_ns,
        cpu_percent: args.cpu,
    };
    let cost = tiering_cost::run(request)?;
    if args.json {
        output::print_json(&cost)?;
    } else {
        output::print(&tiering_cost::text(&cost))?;
    }
    Ok(Exit::Done.into())
}
