//! `nearfar-load inference`: its options, and checks of their consistency.

use std::io::Write as _;

use anyhow::{Context as _, bail};
use nearfar_load::inference::{self, Access, Plan};

use super::positive;

/// Arguments of `inference`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Threads, each with its own weights and context [default: all CPUs]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=4096))]
    instances: Option<u64>,
    /// Weights per instance
    #[arg(long, value_name = "MIB", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    weights_mib: u64,
    /// Number of buffers of the weights
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=4096))]
    layers: u64,
    /// Context per instance
    #[arg(long, value_name = "MIB", default_value_t = 12, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    context_mib: u64,
    /// Size of a context block: each token replaces the oldest
    #[arg(long, value_name = "KIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(4..=1 << 20))]
    block_kib: u64,
    /// Sequences computed per pass over the weights
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=4096))]
    batch: u64,
    /// Access pattern
    #[arg(long, value_enum, default_value = "stream")]
    access: Access,
    /// Run time
    #[arg(long, value_name = "S", default_value = "5", value_parser = positive)]
    seconds: f64,
    /// Part of the run time that is left out of rates
    #[arg(long, value_name = "S", default_value = "1", value_parser = not_negative)]
    warm_up: f64,
    /// Length of a window of throughput
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    window_ms: u32,
    /// Print JSON (schema nearfar.inference/1)
    #[arg(long)]
    json: bool,
}

fn not_negative(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| format!("{text} is no number of seconds"))
}

/// Runs it.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let report = inference::run(&planned(args)?);
    let text = if args.json {
        nearfar_command::json::text(&report).context("writing JSON")? + "\n"
    } else {
        inference::text(&report)
    };
    std::io::stdout().write_all(text.as_bytes()).context("writing to standard output")
}

fn planned(args: &Args) -> anyhow::Result<Plan> {
    let Args { weights_mib, layers, context_mib, block_kib, seconds, warm_up, .. } = args;
    if warm_up >= seconds {
        bail!("--warm-up {warm_up}: nothing of {seconds} s is left to count; say longer --seconds");
    }
    if *block_kib > context_mib << 10 {
        bail!("--block-kib {block_kib}: larger than a context of {context_mib} MiB");
    }
    if weights_mib << 20 < layers * 4096 {
        bail!("--layers {layers}: {weights_mib} MiB of weights are not a page for each");
    }
    let cpus = || std::thread::available_parallelism().map_or(1, Into::into);
    let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    Ok(Plan {
        instances: args.instances.map_or_else(cpus, size),
        weights_bytes: size(weights_mib << 20),
        layers: size(*layers),
        context_bytes: size(context_mib << 20),
        block_bytes: size(block_kib << 10),
        batch: size(args.batch),
        access: args.access,
        seconds: *seconds,
        warm_up_s: *warm_up,
        window_s: f64::from(args.window_ms) / 1000.0,
    })
}
