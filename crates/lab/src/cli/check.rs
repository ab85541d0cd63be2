//! `accuracy`, `overhead` and `repeat`: check the lab against its own machine files, and against a busy host.

use std::path::Path;
use std::process::ExitCode;

use nearfar_topology::Curves;

use super::model::ModelArgs;
use super::{Failure, Stderr, print};
use crate::check::{CheckError, Setting, accuracy, curves, overhead, repeat as repeats};
use crate::fetch::SERIES;
use crate::host::Timing;
use crate::machine::{Machine, catalog};

/// Arguments of both commands.
#[derive(Debug, clap::Args)]
struct Common {
    /// The kernel: 6.12, 7.2, or the path of an image
    #[arg(short = 'K', long, value_name = "VERSION|PATH", default_value = SERIES[0])]
    kernel: String,
    /// How guest time passes
    #[arg(long, value_enum, default_value_t)]
    timing: Timing,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `accuracy`.
#[derive(Debug, clap::Args)]
pub struct AccuracyArgs {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    model: ModelArgs,
    /// Machines, by name or file [default: all built-in ones whose memory is modelled]; with --curves, curve files
    #[arg(value_name = "NAME|FILE")]
    machines: Vec<String>,
    /// Check measured curves instead: ten loads at three shares of reads for each [default: all built-in ones]
    #[arg(long, conflicts_with = "cpus")]
    curves: bool,
    /// Numbers of CPUs; a machine is skipped for those it can't have
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [1, 2, 4])]
    cpus: Vec<u32>,
}

/// Arguments of `overhead`.
#[derive(Debug, clap::Args)]
pub struct OverheadArgs {
    #[command(flatten)]
    common: Common,
    /// The machine: a built-in name, or a machine file
    #[arg(short = 'M', long, value_name = "NAME|FILE", default_value = catalog::DEFAULT)]
    machine: String,
    /// Total number of CPUs
    #[arg(long, value_name = "N", default_value_t = 1)]
    cpus: u32,
    /// Pairs of runs
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    pairs: u16,
}

/// Arguments of `repeat`.
#[derive(Debug, clap::Args)]
pub struct RepeatArgs {
    #[command(flatten)]
    common: Common,
    /// The machine: a built-in name, or a machine file
    #[arg(short = 'M', long, value_name = "NAME|FILE", default_value = catalog::DEFAULT)]
    machine: String,
    /// Boots beside the load
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u16).range(1..=1000))]
    boots: u16,
    /// Busy loops that make the load
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u16).range(0..=1000))]
    load: u16,
}

impl From<CheckError> for Failure {
    fn from(error: CheckError) -> Self {
        match error {
            CheckError::Run(error) => error.into(),
            other => Self { status: 1, message: other.to_string() },
        }
    }
}

impl Common {
    fn setting(&self, reenter: Vec<String>) -> Result<Setting, Failure> {
        if self.timing == Timing::Off {
            let message = "--timing off: without timing there is nothing to check".to_owned();
            return Err(Failure { status: 2, message });
        }
        Ok(Setting { kernel: self.kernel.clone(), timing: self.timing, reenter })
    }
}

pub(super) fn accuracy(args: &AccuracyArgs, reenter: Vec<String>) -> Result<ExitCode, Failure> {
    let setting = args.common.setting(reenter)?;
    if args.curves {
        let checked = curves::check(&setting, &curve_files(&args.machines)?, &Stderr::new())?;
        print(&if args.common.json { curves::json(&checked) } else { curves::table(&checked) })?;
        return Ok(status(curves::is_ok(&checked)));
    }
    let machines = machines(args)?;
    let guests = accuracy::check(&setting, &machines, &Stderr::new())?;
    print(&if args.common.json { accuracy::json(&guests) } else { accuracy::table(&guests) })?;
    Ok(status(accuracy::is_ok(&guests)))
}

pub(super) fn overhead(args: &OverheadArgs, reenter: Vec<String>) -> Result<ExitCode, Failure> {
    let setting = args.common.setting(reenter)?;
    let machine = catalog::with_cpus(catalog::find(&args.machine)?, args.cpus)?;
    let cost = overhead::check(&setting, &machine, args.pairs.into(), &Stderr::new())?;
    print(&if args.common.json { cost.json() } else { cost.text() })?;
    Ok(status(cost.is_ok()))
}

pub(super) fn repeat(args: &RepeatArgs, reenter: Vec<String>) -> Result<ExitCode, Failure> {
    let setting = args.common.setting(reenter)?;
    let machine = catalog::find(&args.machine)?;
    let boots = (args.boots.into(), args.load.into());
    let found = repeats::check(&setting, &machine, boots, &Stderr::new())?;
    print(&if args.common.json { found.json() } else { found.text() })?;
    Ok(status(found.is_ok()))
}

/// Each named machine with each possible number of CPUs; an error if a machine can have none of them.
fn machines(args: &AccuracyArgs) -> Result<Vec<Machine>, Failure> {
    let named = if args.machines.is_empty() {
        let mut all = catalog::all()?;
        all.retain(|machine| machine.nodes.iter().all(|node| node.cxl_device.is_none()));
        all
    } else {
        args.machines.iter().map(|name| catalog::find(name)).collect::<Result<_, _>>()?
    };
    let mut machines = Vec::new();
    for machine in named {
        let machine = args.model.apply(machine)?;
        let before = machines.len();
        let mut refused = None;
        for cpus in &args.cpus {
            match catalog::with_cpus(machine.clone(), *cpus) {
                Ok(machine) => machines.push(machine),
                Err(error) => refused = Some(error),
            }
        }
        if let (true, Some(error)) = (machines.len() == before, refused) {
            return Err(error.into());
        }
    }
    Ok(machines)
}

/// Curve files by name, or all built-in ones.
fn curve_files(names: &[String]) -> Result<Vec<(String, Curves)>, Failure> {
    let all = || catalog::CURVES.map(|(name, _)| name.to_owned()).to_vec();
    let names = if names.is_empty() { all() } else { names.to_vec() };
    let one = |name: String| {
        let refused =
            |reason: String| Failure { status: 2, message: format!("curve file {name}: {reason}") };
        let text = catalog::curve_of(Path::new(""), &name).map_err(refused)?;
        let curves = Curves::parse(&text).map_err(|error| refused(error.to_string()))?;
        Ok((name, curves))
    };
    names.into_iter().map(one).collect()
}

fn status(ok: bool) -> ExitCode {
    if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
