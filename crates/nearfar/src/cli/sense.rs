//! `nearfar sense`: what sensors of memory traffic see, for a while.
//!
//! Each sensor that is asked for tests itself first; one that can't be used says why. Samples are read ten times a second, so
//! that little is lost, and taken together. What was switched on for it is put back at the end, also by ctrl-C; after a kill
//! by the next time.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use nearfar_control::sense::{Reading, Sensor, Unusable, Whose};
use nearfar_kernel::fs::RootFs;
use nearfar_kernel::journal::Journal;
use nearfar_kernel::{chase, process};
use nearfar_policy::traffic::Process;
use nearfar_topology::Nanoseconds;

use super::machine::MachineArgs;
use super::output;
use crate::clock;
use crate::exit::{EndsWith as _, Exit};
use crate::sense::{self, Scene};

pub(in crate::cli) mod report;

/// From reading to reading.
const SLICE: Duration = Duration::from_millis(100);
/// In whose name settings are changed.
const BY: &str = "sense";

/// What `nearfar sense` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A sensor, by the name that `nearfar doctor` gives it; may be given again [default: all that can be used]
    #[arg(long = "sensor", value_name = "NAME")]
    sensors: Vec<String>,
    /// Only accesses of this process and what it has started, for sensors that tell processes apart; may be given again
    #[arg(long = "pid", value_name = "PID")]
    pids: Vec<u32>,
    /// For how long
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = super::record::duration)]
    duration: Duration,
    /// Print JSON (schema nearfar.sense/1)
    #[arg(long)]
    json: bool,
}

/// A sensor with what it saw, or why it did not.
type Outcome<'a> = (Box<dyn Sensor + 'a>, Result<Reading, Unusable>);

/// Senses and prints.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("can't catch signals")?;
    }
    let machine_args = MachineArgs::default();
    let fs = RootFs::live()?;
    let (machine, _) = machine_args.read(&fs)?;
    let lab = machine_args.lab(&fs);
    let journal = Journal::new(Journal::default_dir(), &fs, "/");
    let scene = Scene { fs: &fs, machine: &machine, journal: &journal, by: BY };
    let chosen = chosen(sense::all(scene), &args.sensors).ends_with(Exit::Usage)?;
    let whose = whose(&fs, &args.pids)?;
    let outcomes = sensed(chosen, &whose, args.duration, &stop);
    let asked = !args.sensors.is_empty();
    let report = report::of(&scene, lab, &outcomes);
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&report::text(&report))?;
    }
    let all = outcomes.iter().all(|(_, outcome)| outcome.is_ok());
    let any = outcomes.iter().any(|(_, outcome)| outcome.is_ok());
    let good = if asked { all } else { any };
    Ok(if good { Exit::Done } else { Exit::Failed }.into())
}

/// Those of these names, all if there are none.
fn chosen<'a>(
    mut all: Vec<Box<dyn Sensor + 'a>>,
    names: &[String],
) -> anyhow::Result<Vec<Box<dyn Sensor + 'a>>> {
    for name in names {
        let known: Vec<_> = all.iter().map(|sensor| sensor.name()).collect();
        let there = known.contains(&name.as_str());
        anyhow::ensure!(there, "no sensor {name}; there are {}", known.join(", "));
    }
    if !names.is_empty() {
        all.retain(|sensor| names.iter().any(|name| name == sensor.name()));
    }
    Ok(all)
}

fn whose(fs: &RootFs, pids: &[u32]) -> anyhow::Result<Whose> {
    if pids.is_empty() {
        return Ok(Whose::Machine);
    }
    let mut processes = std::collections::BTreeSet::new();
    for pid in pids {
        anyhow::ensure!(process::lives(fs, *pid), "--pid {pid}: no such process");
        processes.extend(process::tree(fs, *pid)?.into_iter().map(Process));
    }
    Ok(Whose::Processes(processes))
}

/// Has them all at work for so long, or until `stop`.
fn sensed<'a>(
    sensors: Vec<Box<dyn Sensor + 'a>>,
    whose: &Whose,
    duration: Duration,
    stop: &AtomicBool,
) -> Vec<Outcome<'a>> {
    let begin = |mut sensor: Box<dyn Sensor + 'a>| {
        let started = sensor.start(whose, chase::now()).map(|()| Reading::default());
        (sensor, started)
    };
    let mut outcomes: Vec<Outcome<'a>> = sensors.into_iter().map(begin).collect();
    let length = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let end = Nanoseconds(chase::now().0.saturating_add(length));
    while !stop.load(Ordering::Relaxed) && chase::now() < end {
        let left = Duration::from_nanos(end.0.saturating_sub(chase::now().0));
        clock::sleep(left.min(SLICE));
        for (sensor, outcome) in &mut outcomes {
            let Ok(sum) = outcome else { continue };
            match sensor.read(chase::now()) {
                Ok(reading) => sum.go_on(reading),
                Err(unusable) => *outcome = Err(unusable),
            }
        }
    }
    for (sensor, outcome) in &mut outcomes {
        if let Err(unusable) = sensor.stop() {
            *outcome = Err(unusable);
        }
    }
    outcomes
}
