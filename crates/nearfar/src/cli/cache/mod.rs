//! `nearfar cache`: a cache over near and far memory, as a server, and a load on caches. One command a file.

use std::process::ExitCode;

use clap::Subcommand;

mod bench;
mod disk;
mod engine;
mod serve;

/// As typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Cache,
}

#[derive(Debug, Subcommand)]
enum Cache {
    /// Serve a cache by memcached's protocol, over as many tiers of memory as are named
    ///
    /// There is no authentication: whoever reaches the socket may do everything, so it listens on loopback unless told
    /// otherwise. SIGTERM lets connections finish what they began.
    Serve(Box<serve::Args>),
    /// Put a load on the cache in this process or on a memcached server, and tell throughput, latencies and hit ratio
    ///
    /// The workload is drawn (zipf:0.99, uniform, a directory of cachebench's) or a trace (trace:FILE, with Meta's or Twitter's
    /// columns). With --rate, requests are due whether or not those before were answered, and are timed from then.
    Bench(Box<bench::Args>),
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Cache::Serve(args) => serve::run(args),
        Cache::Bench(args) => bench::run(args),
    }
}
