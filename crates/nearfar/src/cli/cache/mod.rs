//! `nearfar cache`: the cache over tiers of memory. One command a file.

use std::process::ExitCode;

use clap::Subcommand;

mod bench;
mod engine;

/// As typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    cache: Cache,
}

#[derive(Debug, Subcommand)]
enum Cache {
    /// Put a load on the cache in this process or on a memcached server, and tell throughput, latencies and hit ratio
    ///
    /// The workload is drawn (zipf:0.99, uniform, a directory of cachebench's) or a trace (trace:FILE, with Meta's or Twitter's
    /// columns). With --rate, requests are due whether or not those before were answered, and are timed from then.
    Bench(Box<bench::Args>),
}

/// Runs one.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.cache {
        Cache::Bench(args) => bench::run(args),
    }
}
