//! `nearfar sim tiers`: controllers of two tiers over time, by far latency and phase of contention, and against
//! adversarial workloads.

use std::path::PathBuf;
use std::process::ExitCode;

use nearfar_sim::Policy;
use nearfar_sim::live::{Counters, Sensors, Settings};
use nearfar_sim::studies::{adversaries, tiers};

use nearfar_bench::pages::sim::tiers::{Document, How};
use nearfar_command::exit::Exit;
use nearfar_command::number::{percent, whole};
use nearfar_command::{new_file, output};

/// Length of a run against an adversarial workload, in phases, the longest: controllers need some of it to learn.
const RUN: u32 = 8;

/// Arguments as typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Policies by name, separated by commas; nearfar sim list shows them
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "POLICY,...",
        default_value = "first-touch,colloid,balanced"
    )]
    policies: Vec<Policy>,
    /// Length of phases of contention, in seconds of simulated time; several lengths, separated by commas, have a row each
    #[arg(long, visible_alias = "phases", value_name = "N,...", value_delimiter = ',', default_value = "80", value_parser = whole::<u32>(1..=3600))]
    seconds: Vec<u32>,
    /// Maximum migration rate, GB/s
    #[arg(long, value_name = "GB/S", default_value_t = 2.0, value_parser = rate)]
    rate: f64,
    /// Noise of latency readings, in per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 5, value_parser = percent::<u32>(0..=100))]
    noise: u32,
    /// Share of lost readings and samples, in per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = percent::<u32>(0..=100))]
    loss: u32,
    /// Bias of readings, in per cent above the true value
    #[arg(long, value_name = "PERCENT", default_value_t = 0, allow_hyphen_values = true, value_parser = percent::<i32>(-90..=100))]
    bias: i32,
    /// Counters available besides probed latencies
    #[arg(long, value_enum, default_value_t = Counted::Own)]
    counters: Counted,
    /// Also run page-migrating policies on adversarial workloads, against no migration
    #[arg(long)]
    adversaries: bool,
    /// Seed of random numbers; the same seed gives the same result
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON (schema nearfar.sim-tiers/2)
    #[arg(long)]
    json: bool,
    /// Write an HTML page with charts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the charts as an SVG picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Counted {
    /// None
    None,
    /// The workload's own accesses
    Own,
    /// These, and the traffic of each controller
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

/// Parses a rate in GB/s.
pub(super) fn rate(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.0..=1000.0).contains(number));
    number.ok_or_else(|| "allowed is 0 to 1000".to_owned())
}

/// Runs the study.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    new_file::check(args.html.iter().chain(&args.svg))?;
    super::over_time("--policies", &args.policies)?;
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
        phase_seconds: args.seconds.clone(),
        rate_gbps: args.rate,
        counters: counted,
    };
    let mut rows = Vec::new();
    for seconds in &args.seconds {
        rows.push((*seconds, tiers::rows(&args.policies, *seconds, &settings)?));
    }
    let mut document = Document::of(how, &rows);
    if args.adversaries {
        let against = adversaries::all();
        for policy in args.policies.iter().filter(|policy| policy.controller().is_some()) {
            let longest = args.seconds.iter().copied().max().unwrap_or_default();
            let stood = adversaries::stand(*policy, &against, RUN * longest, &settings)?;
            document.stood(*policy, &against, &stood);
        }
    }
    if let Some(file) = &args.html {
        new_file::write(file, &document.html())?;
    }
    if let Some(file) = &args.svg {
        new_file::write(file, &document.svg())?;
    }
    if args.json {
        output::print_json(&document)?;
    } else {
        output::print(&document.text())?;
    }
    Ok(Exit::Done.into())
}
