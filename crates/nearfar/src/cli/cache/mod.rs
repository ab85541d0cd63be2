//! `nearfar cache`: a cache over near and far memory, as a server.

use std::process::ExitCode;

use clap::Subcommand;

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
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Cache::Serve(args) => serve::run(args),
    }
}
