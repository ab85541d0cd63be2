//! `nearfar cache`: a cache server over near and far memory, and a load generator for caches. One file per command.

use std::process::ExitCode;

use clap::Subcommand;
use nearfar_topology::Bytes;

mod bench;
mod disk;
mod engine;
mod listen;
mod serve;

/// Arguments as typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Cache,
}

#[derive(Debug, Subcommand)]
enum Cache {
    /// Serve a cache over one or more tiers of memory, by memcached's protocol
    ///
    /// There is no authentication: any client that reaches the socket may run every command, so the server listens on
    /// loopback by default. On SIGTERM, connections complete the requests they have begun.
    Serve(Box<serve::Args>),
    /// Put a load on the cache in this process or on a memcached server; show throughput, latencies and hit ratio
    ///
    /// The workload is synthetic (zipf:0.99, uniform, or a directory of cachebench's) or a trace (trace:FILE with
    /// Meta's or Twitter's columns, oracle-general:FILE, csv:COLUMNS:FILE). With --rate, requests are due at fixed times, independently of earlier replies,
    /// and latency counts from the due time.
    Bench(Box<bench::Args>),
}

/// Parses a size.
fn size(text: &str) -> Result<Bytes, String> {
    nearfar_spec::spec::size(text).map_err(|error| error.to_string())
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Cache::Serve(args) => serve::run(args),
        Cache::Bench(args) => bench::run(args),
    }
}
