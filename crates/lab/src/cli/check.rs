//! `accuracy` and `overhead`: the lab checked against its own machine files.

use std::io::Write as _;
use std::process::ExitCode;

use super::{Failure, Stderr};
use crate::check::{CheckError, Setting, accuracy, overhead};
use crate::fetch::SERIES;
use crate::host::Timing;
use crate::machine::{Machine, catalog};

/// What both take.
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

/// What `accuracy` takes.
#[derive(Debug, clap::Args)]
pub(super) struct AccuracyArgs {
    #[command(flatten)]
    common: Common,
    /// Machines, by name or file [default: all built-in ones whose memory is modelled]
    #[arg(value_name = "NAME|FILE")]
    machines: Vec<String>,
    /// Numbers of CPUs; a machine that can't have one of them goes without
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [1, 2, 4])]
    cpus: Vec<u32>,
}

/// What `overhead` takes.
#[derive(Debug, clap::Args)]
pub(super) struct OverheadArgs {
    #[command(flatten)]
    common: Common,
    /// The machine: a built-in name, or a machine file
    #[arg(short = 'M', long, value_name = "NAME|FILE", default_value = catalog::DEFAULT)]
    machine: String,
    /// CPUs in all
    #[arg(long, value_name = "N", default_value_t = 1)]
    cpus: u32,
    /// Pairs of runs
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    pairs: u16,
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
    let machines = machines(args)?;
    let guests = accuracy::check(&setting, &machines, &Stderr::new())?;
    print(&if args.common.json { accuracy::json(&guests) } else { accuracy::table(&guests) });
    Ok(status(accuracy::is_ok(&guests)))
}

pub(super) fn overhead(args: &OverheadArgs, reenter: Vec<String>) -> Result<ExitCode, Failure> {
    let setting = args.common.setting(reenter)?;
    let machine = catalog::with_cpus(catalog::find(&args.machine)?, args.cpus)?;
    let cost = overhead::check(&setting, &machine, args.pairs.into(), &Stderr::new())?;
    print(&if args.common.json { cost.json() } else { cost.text() });
    Ok(status(cost.is_ok()))
}

/// Each named machine with each number of CPUs that it can have; an error if one can have none of them.
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

fn print(text: &str) {
    // A reader that has seen enough is no failure.
    let _ = std::io::stdout().write_all(text.as_bytes());
}

fn status(ok: bool) -> ExitCode {
    if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
