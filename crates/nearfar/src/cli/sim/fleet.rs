//! `nearfar sim fleet`: a day of many hosts, by sampling.

use std::process::ExitCode;

use nearfar_sim::Policy;
use nearfar_sim::fleet::{self, Options};

use super::tiers::rate;
use nearfar_bench::pages::sim::fleet::Document;
use nearfar_command::exit::Exit;
use nearfar_command::number::whole;
use nearfar_command::output;
use nearfar_kernel::clock::Stopwatch;

/// Arguments as typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of hosts, of 1 TiB each
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = whole::<u32>(1..=100_000))]
    hosts: u32,
    /// Policy that migrates pages
    #[arg(long, default_value = "balanced", value_name = "POLICY")]
    policy: Policy,
    /// Maximum migration rate of a host, GB/s
    #[arg(long, value_name = "GB/S", default_value_t = 8.0, value_parser = rate)]
    rate: f64,
    /// Seed of random numbers; the same seed gives the same result
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON (schema nearfar.sim-fleet/1)
    #[arg(long)]
    json: bool,
}

/// Simulates the day.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    super::over_time("--policy", &[args.policy])?;
    let options =
        Options { hosts: args.hosts, policy: args.policy, rate_gbps: args.rate, seed: args.seed };
    let watch = Stopwatch::start();
    let found = fleet::day(&options)?;
    let document = Document::of(&options, &found, watch.elapsed().as_secs_f64());
    if args.json {
        output::print_json(&document)?;
    } else {
        output::print(&document.text())?;
    }
    Ok(Exit::Done.into())
}
