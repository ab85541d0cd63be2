//! `nearfar bench tiering-cost`: what tiering costs on a machine of any size, simulated.

use std::process::ExitCode;

use nearfar_topology::Bytes;

use super::super::output;
use crate::bench::tiering_cost::{self, Request};
use crate::exit::Exit;

/// As typed.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Nodes
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(2..=1024))]
    nodes: u16,
    /// Of these, near ones
    #[arg(long, value_name = "N", default_value_t = 8)]
    near: u16,
    /// Memory of all nodes together, in GiB
    #[arg(long, value_name = "GIB", default_value_t = 4096, value_parser = clap::value_parser!(u64).range(4..=1 << 20))]
    memory_gib: u64,
    /// CPU time that a look takes the kernel for each page; 220 ns is what the lab's EMULATED cxl-2tier-small takes
    #[arg(long, value_name = "NS", default_value_t = 220, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    page_ns: u64,
    /// As of nearfar tier start: share of one CPU that looking and moving may take; shown for that and so much for each node
    #[arg(long, value_name = "PERCENT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
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
