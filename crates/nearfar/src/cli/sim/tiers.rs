//! `nearfar sim tiers`: controllers of two tiers over time, by far latency and phase of contention.

use std::fmt::Write as _;
use std::process::ExitCode;

use nearfar_sim::Policy;
use nearfar_sim::live::tiers::{self, PHASES, Row};
use nearfar_sim::live::{Sensors, Settings};
use serde::Serialize;

use crate::cli::output;
use crate::exit::Exit;
use crate::report::sim::SIMULATED;

/// As typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Policies by name, with commas between
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "POLICY,...",
        default_value = "first-touch,colloid"
    )]
    policies: Vec<Policy>,
    /// Length of each phase of contention, in seconds of the machine's time
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=3600))]
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
    /// What chance decides: the same number, the same result
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON (schema nearfar.sim-tiers/1)
    #[arg(long)]
    json: bool,
}

fn bias() -> clap::builder::RangedI64ValueParser<i32> {
    clap::value_parser!(i32).range(-90..=100)
}

fn rate(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.0..=1000.0).contains(number));
    number.ok_or_else(|| "allowed is 0 to 1000".to_owned())
}

#[derive(Serialize)]
struct Document {
    schema: &'static str,
    simulated: bool,
    seed: u64,
    phase_seconds: u32,
    rate_gbps: f64,
    rows: Vec<Shown>,
}

#[derive(Serialize)]
struct Shown {
    far_ns: f64,
    policy: &'static str,
    phases: Vec<Phase>,
}

#[derive(Serialize)]
struct Phase {
    contention: f64,
    throughput_gbps: f64,
    of_oracle: f64,
    moved_bytes: u64,
    churn_gbps: f64,
}

/// Runs the study.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let share = |percent: u32| f64::from(percent) / 100.0;
    let sensors = Sensors {
        noise: share(args.noise),
        bias: f64::from(args.bias) / 100.0,
        loss: share(args.loss),
        delay_ticks: 1,
        samples: 500,
        counters: true,
    };
    let settings = Settings {
        tick_epochs: 1,
        rate_gbps: args.rate,
        sensors,
        seed: args.seed,
        ..Settings::default()
    };
    let rows = tiers::rows(&args.policies, args.seconds, &settings)?;
    if args.json {
        output::print_json(&document(args, &rows))?;
    } else {
        output::print(&text(&rows))?;
    }
    Ok(Exit::Done.into())
}

fn document(args: &Args, rows: &[Row]) -> Document {
    let phase = |of: &tiers::Phase| Phase {
        contention: of.contention,
        throughput_gbps: of.gbps,
        of_oracle: of.of_oracle,
        moved_bytes: of.moved_bytes,
        churn_gbps: of.churn_gbps,
    };
    let shown = |row: &Row| Shown {
        far_ns: row.far_ns,
        policy: row.policy.name(),
        phases: row.phases.iter().map(phase).collect(),
    };
    Document {
        schema: "nearfar.sim-tiers/1",
        simulated: true,
        seed: args.seed,
        phase_seconds: args.seconds,
        rate_gbps: args.rate,
        rows: rows.iter().map(shown).collect(),
    }
}

fn text(rows: &[Row]) -> String {
    let mut out = String::from(
        "SIMULATED two tiers, the near one contended: throughput as a share of the oracle's, once settled\n\n",
    );
    let _ = write!(out, "{:>6}  {:<12}", "far", "contention");
    for contention in PHASES {
        let _ = write!(out, " {:>6}", format!("{contention}x"));
    }
    let _ = writeln!(out, "  {:>9} {:>12}", "moved", "steady churn");
    for row in rows {
        let _ = write!(out, "{:>3} ns  {:<12}", row.far_ns, row.policy.name());
        for of in &row.phases {
            let _ = write!(out, " {:>6.3}", of.of_oracle);
        }
        let moved: u64 = row.phases.iter().map(|of| of.moved_bytes).sum();
        let churn = row.phases.iter().map(|of| of.churn_gbps).fold(0.0, f64::max);
        let _ =
            writeln!(out, "  {:>9} {churn:>7.2} GB/s", nearfar_topology::Bytes(moved).to_string());
    }
    output::wrapped(
        &mut out,
        "\n",
        "first-touch fills near memory with the hottest pages and leaves them. The oracle is the best near share for each phase, \
         found by search: it knows contention and heat, is never late and moves nothing. Churn is what is still moved in the \
         second half of a phase, the most of all phases.",
        0,
    );
    output::wrapped(&mut out, "", SIMULATED, 0);
    out
}
