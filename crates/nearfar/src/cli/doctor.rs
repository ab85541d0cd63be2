//! `nearfar doctor`: what this kernel and machine can do, what is missing, and how to get it.
//!
//! Looks only, changes nothing, needs no privilege. Features are the kernel crate's one table; settings and privileges
//! are in [`state`], and what follows from it all for nearfar's commands in [`verdict`]. Sensors of memory traffic test
//! themselves: some interfaces succeed and report nothing. "Lacks it" and "could not
//! ask" are told apart: a recording has no system calls, and an ordinary user may not look everywhere.

use std::process::ExitCode;

use nearfar_kernel::features::{Asked, Features, State, TABLE};
use nearfar_kernel::fs::{Fs, RootFs};
use nearfar_kernel::journal::Journal;
use nearfar_topology::{Finding, Topology};
use serde::Serialize;

use super::machine::MachineArgs;
use super::output;
use super::sense::report::{Described, described};
use crate::sense::{self, Scene as SenseScene};

mod state;
mod text;
mod verdict;

/// What `nearfar doctor` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON (schema nearfar.doctor/1)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    machine: MachineArgs,
}

/// All that doctor tells; the JSON of `nearfar.doctor/1`. Key names are stable; new keys may come.
#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    /// Vendor and product as firmware names them.
    product: Option<String>,
    /// The kernel's release.
    kernel: Option<String>,
    /// Whether this is a directory or recording, not the running machine: then nothing about privileges is known.
    recorded: bool,
    /// In a guest of the lab what the lab says of it; else null.
    lab: Option<serde_json::Value>,
    /// The machine in a few words.
    machine: String,
    /// What nearfar can do here.
    verdicts: Vec<verdict::Verdict>,
    /// What the kernel has.
    features: Vec<FeatureReport>,
    /// How it is set.
    settings: Vec<state::Setting>,
    /// What this process may do; null for a recording.
    privileges: Option<Vec<state::Privilege>>,
    /// Sensors of memory traffic, each after its self-test; null for a recording.
    sensors: Option<Vec<Described>>,
    /// What could not be read or does not fit together.
    findings: Vec<String>,
}

/// A feature of the kernel.
#[derive(Debug, Serialize)]
struct FeatureReport {
    name: &'static str,
    /// present, lacking, or unknown: it could not be asked.
    state: &'static str,
    /// Why it could not be asked.
    why_unknown: Option<String>,
    purpose: &'static str,
    /// How it is seen.
    seen_by: String,
    /// The first Linux release that has it.
    since: &'static str,
    /// What is done without it.
    without: &'static str,
}

/// What is looked at by everything doctor says.
struct Scene<'a> {
    fs: &'a dyn Fs,
    machine: &'a Topology,
    features: &'a Features,
    live: bool,
}

/// Prints the report.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let fs = args.machine.open()?;
    let (machine, findings) = args.machine.read(fs.as_ref())?;
    let live = args.machine.is_live();
    let asked = if live { Asked::Live } else { Asked::Recorded };
    let features = Features::detect(fs.as_ref(), asked);
    let scene = Scene { fs: fs.as_ref(), machine: &machine, features: &features, live };
    let mut report = report(&scene, args.machine.lab(fs.as_ref()), &findings);
    report.sensors = live.then(|| sensors(&machine)).transpose()?;
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&text::of(&report))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn report(scene: &Scene<'_>, lab: Option<serde_json::Value>, findings: &[Finding]) -> Report {
    let privileges = scene.live.then(|| state::privileges(scene));
    Report {
        schema: "nearfar.doctor/1",
        product: scene.machine.product.clone(),
        kernel: scene.machine.kernel.clone(),
        recorded: !scene.live,
        lab,
        machine: scene.machine.inventory(),
        verdicts: verdict::all(scene, privileges.as_deref().unwrap_or_default()),
        features: features(scene.features),
        settings: state::settings(scene),
        privileges,
        sensors: None,
        findings: findings.iter().map(ToString::to_string).collect(),
    }
}

/// What became of the self-tests. They change no setting, and leave nothing open.
fn sensors(machine: &Topology) -> anyhow::Result<Vec<Described>> {
    let fs = RootFs::live()?;
    let journal = Journal::new(Journal::default_dir(), &fs, "/");
    let all = sense::all(SenseScene { fs: &fs, machine, journal: &journal, by: "sense" });
    let checked = all.into_iter().map(|mut sensor| {
        let unusable = sensor.check().err();
        described(sensor.as_ref(), unusable.as_ref())
    });
    Ok(checked.collect())
}

fn features(features: &Features) -> Vec<FeatureReport> {
    let row = |row: &nearfar_kernel::features::Row| {
        let (state, why_unknown) = match features.state(row.feature) {
            State::Present => ("present", None),
            State::Lacking => ("lacking", None),
            State::Unknown(why) => ("unknown", Some(why)),
        };
        FeatureReport {
            name: row.name,
            state,
            why_unknown,
            purpose: row.purpose,
            seen_by: row.seen_by(),
            since: row.since,
            without: row.without,
        }
    };
    TABLE.iter().map(row).collect()
}
