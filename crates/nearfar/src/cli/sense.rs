//! `nearfar sense`: shows readings of memory-traffic sensors over a period.
//!
//! Each requested sensor runs a self-test first; an unusable one reports its reason. Samples are read ten times a
//! second, so that few are lost, and summed. Settings changed for a sensor are restored at the end, also at ctrl-C;
//! after a kill, by the next run.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nearfar_kernel::fs::RootFs;
use nearfar_kernel::journal::Journal;
use nearfar_kernel::{chase, process};
use nearfar_policy::ports::{Reading, Sensor, Targets, Unusable};
use nearfar_policy::traffic::Process;
use nearfar_topology::Nanoseconds;

use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_command::machine::Machine;
use nearfar_command::{interrupt, output};
use nearfar_kernel::clock;
use nearfar_sensors::{self as sense, Scene};

pub(in crate::cli) mod report;

/// Interval of readings.
const SLICE: Duration = Duration::from_millis(100);
/// The owner of changed settings in the journal.
const BY: &str = "sense";

/// Arguments of `nearfar sense`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Use this sensor (names: nearfar doctor); may be repeated [default: all usable ones]
    #[arg(long = "sensor", value_name = "NAME")]
    sensors: Vec<String>,
    /// Only accesses of this process and its descendants, for sensors that distinguish processes; may be repeated
    #[arg(long = "pid", value_name = "PID")]
    pids: Vec<u32>,
    /// Length of the measurement
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = super::record::duration)]
    duration: Duration,
    /// Print JSON (schema nearfar.sense/1)
    #[arg(long)]
    json: bool,
}

/// A sensor with its reading, or the reason it is unusable.
type Outcome<'a> = (Box<dyn Sensor + 'a>, Result<Reading, Unusable>);

/// Measures and prints.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let stop = interrupt::flag()?;
    let machine_args = Machine::default();
    let fs = RootFs::live()?;
    let (machine, _) = machine_args.read(&fs)?;
    let lab = machine_args.lab(&fs);
    let journal = Journal::new(Journal::default_dir(), &fs, "/");
    let scene = Scene { fs: &fs, machine: &machine, journal: &journal, by: BY };
    let chosen = chosen(sense::all(scene), &args.sensors).ends_with(Exit::Usage)?;
    let targets = targets(&fs, &args.pids)?;
    let outcomes = sensed(chosen, &targets, args.duration, &stop);
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

/// The sensors with these names; all if there are no names.
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

fn targets(fs: &RootFs, pids: &[u32]) -> anyhow::Result<Targets> {
    if pids.is_empty() {
        return Ok(Targets::Machine);
    }
    let mut processes = std::collections::BTreeSet::new();
    for pid in pids {
        anyhow::ensure!(process::lives(fs, *pid), "--pid {pid}: no such process");
        processes.extend(process::tree(fs, *pid)?.into_iter().map(Process));
    }
    Ok(Targets::Processes(processes))
}

/// Runs all sensors for this time, or until `stop`.
fn sensed<'a>(
    sensors: Vec<Box<dyn Sensor + 'a>>,
    targets: &Targets,
    duration: Duration,
    stop: &AtomicBool,
) -> Vec<Outcome<'a>> {
    let begin = |mut sensor: Box<dyn Sensor + 'a>| {
        let started = sensor.start(targets, chase::now()).map(|()| Reading::default());
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
