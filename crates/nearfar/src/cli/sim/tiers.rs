//! `nearfar sim tiers`: controllers of two tiers over time, by far latency and phase of contention, and against adversaries.

use std::path::PathBuf;
use std::process::ExitCode;

use nearfar_sim::Policy;
use nearfar_sim::live::{Counters, Sensors, Settings, adversaries, tiers};

use crate::cli::{demo, output};
use crate::exit::Exit;
use crate::report::sim::tiers::{Document, How};

/// A run against an adversary is as long as so many phases: learning what it does takes some of it.
const RUN: u32 = 8;

/// As typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Policies by name, with commas between
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "POLICY,...",
        default_value = "first-touch,colloid,balanced"
    )]
    policies: Vec<Policy>,
    /// Length of each phase of contention, in seconds of the machine's time
    #[arg(long, value_name = "N", default_value_t = 80, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// The most that is moved, GB/s
    #[arg(long, value_name = "GB/S", default_value_t = 2.0, value_parser = rate)]
    rate: f64,
    /// Noise of latency readings, per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=100))]
    noise: u32,
    /// Share of readings and samples that is lost, per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100))]
    loss: u32,
    /// By how much readings are too high, per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 0, allow_hyphen_values = true, value_parser = bias())]
    bias: i32,
    /// What is counted, beside the latencies that are probed
    #[arg(long, value_enum, default_value_t = Counted::Own)]
    counters: Counted,
    /// Also what policies that move pages make of adversaries, against moving nothing
    #[arg(long)]
    adversaries: bool,
    /// What chance decides: the same number, the same result
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON (schema nearfar.sim-tiers/1)
    #[arg(long)]
    json: bool,
    /// Write a page with charts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the charts as a picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Counted {
    /// Nothing
    None,
    /// The workload's own accesses
    Own,
    /// These, and what each controller carries
    All,
}

impl Counted {
    fn counters(self) -> (Counters, &'static str) {
        match self {
            Self::None => (Counters::None, "none"),
            Self::Own => (Counters::Own, "own"),
            Self::All => (Counters::All, "all"),
        }
    }
}

fn bias() -> clap::builder::RangedI64ValueParser<i32> {
    clap::value_parser!(i32).range(-90..=100)
}

/// A rate in GB/s.
pub(super) fn rate(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.0..=1000.0).contains(number));
    number.ok_or_else(|| "allowed is 0 to 1000".to_owned())
}

/// Runs the study.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    for file in [&args.html, &args.svg].into_iter().flatten() {
        demo::writable(file)?;
    }
    let share = |percent: u32| f64::from(percent) / 100.0;
    let (counters, counted) = args.counters.counters();
    let sensors = Sensors {
        noise: share(args.noise),
        bias: f64::from(args.bias) / 100.0,
        loss: share(args.loss),
        delay_ticks: 1,
        samples: 500,
        counters,
    };
    let settings = Settings {
        tick_epochs: 1,
        rate_gbps: args.rate,
        sensors,
        seed: args.seed,
        ..Settings::default()
    };
    let how = How {
        seed: args.seed,
        phase_seconds: args.seconds,
        rate_gbps: args.rate,
        counters: counted,
    };
    let mut document = Document::of(how, &tiers::rows(&args.policies, args.seconds, &settings)?);
    if args.adversaries {
        let against = adversaries::all();
        for policy in args.policies.iter().filter(|policy| policy.controller().is_some()) {
            let stood = adversaries::stand(*policy, &against, RUN * args.seconds, &settings)?;
            document.stood(*policy, &against, &stood);
        }
    }
    if let Some(file) = &args.html {
        demo::write(file, &document.html())?;
    }
    if let Some(file) = &args.svg {
        demo::write(file, &document.svg())?;
    }
    if args.json {
        output::print_json(&document)?;
    } else {
        output::print(&document.text())?;
    }
    Ok(Exit::Done.into())
}
