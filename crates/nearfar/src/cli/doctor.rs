//! `nearfar doctor`: reports the capabilities of this kernel and machine, those that are missing, and how to get them.
//!
//! It reads only and needs no privilege. Features come from the kernel crate's table; settings and privileges are in
//! [`state`], and the consequences for nearfar's commands in [`verdict`]. Sensors of memory traffic run a self-test,
//! because some interfaces succeed and report nothing. "Lacking" and "unknown" are distinct: a recording has no system
//! calls, and an ordinary user may not read every file.

use std::process::ExitCode;

use anyhow::Context as _;
use nearfar_kernel::features::{Asked, Features, State, TABLE};
use nearfar_kernel::fs::{Fs, RootFs};
use nearfar_kernel::journal::Journal;
use nearfar_kernel::mempolicy;
use nearfar_topology::{Finding, Topology};
use serde::Serialize;

use super::machine::MachineArgs;
use super::sense::report::{Described, described};
use answer::Verdict;
use nearfar_command::machine::Machine;
use nearfar_command::{movers, output, sandbox};
use nearfar_sensors::{self as sense, Scene as SenseScene};

mod answer;
mod services;
mod state;
mod text;
mod verdict;

/// Arguments of `nearfar doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON (schema nearfar.doctor/1)
    #[arg(long)]
    json: bool,
    /// Answer for a user without privileges, also if root asks
    #[arg(long, conflicts_with = "sysfs")]
    unprivileged: bool,
    #[command(flatten)]
    machine: MachineArgs,
}

/// The complete report; the JSON of `nearfar.doctor/1`. Key names are stable; new keys may be added.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    schema: &'static str,
    /// Vendor and product name from firmware.
    product: Option<String>,
    /// The kernel's release.
    kernel: Option<String>,
    /// Whether this is a directory or recording instead of the running machine; privileges are unknown then.
    recorded: bool,
    /// In a guest of the lab, the lab's description of it; else null.
    lab: Option<serde_json::Value>,
    /// A short description of the machine.
    machine: String,
    /// The verdict on each command.
    verdicts: Vec<Verdict>,
    /// The kernel's features.
    features: Vec<FeatureReport>,
    /// The kernel's settings.
    settings: Vec<state::Setting>,
    /// Mechanisms of the kernel and other managers that are on and move pages, too.
    movers: Vec<movers::Mover>,
    /// This process's privileges; null for a recording.
    privileges: Option<Vec<state::Privilege>>,
    /// Sensors of memory traffic with the results of their self-tests; null for a recording.
    sensors: Option<Vec<Described>>,
    /// Files that could not be read, and contradictions between them.
    findings: Vec<String>,
}

/// A feature of the kernel.
#[derive(Debug, Serialize)]
struct FeatureReport {
    name: &'static str,
    /// present, lacking, or unknown (it could not be determined).
    state: &'static str,
    /// The reason for unknown.
    why_unknown: Option<String>,
    purpose: &'static str,
    /// The evidence: a file or system call.
    seen_by: String,
    /// The first Linux release with the feature.
    since: &'static str,
    /// The option of the kernel's configuration that builds it.
    config: &'static str,
    /// nearfar's behaviour without the feature.
    without: &'static str,
}

/// The inputs of all of doctor's reports.
struct Scene<'a> {
    fs: &'a dyn Fs,
    machine: &'a Topology,
    features: &'a Features,
    live: bool,
    /// The sandbox's refusal of memory policies, if it refuses them.
    refused: Option<String>,
}

/// Prints the report.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.unprivileged {
        sandbox::become_ordinary().context("--unprivileged")?;
    }
    let report = of(&args.machine.select())?;
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&text::of(&report))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The report on a machine.
pub(crate) fn of(selected: &Machine) -> anyhow::Result<Report> {
    let fs = selected.open()?;
    let (machine, findings) = selected.read(fs.as_ref())?;
    let live = selected.is_live();
    let asked = if live { Asked::Live } else { Asked::Recorded };
    let features = Features::detect(fs.as_ref(), asked);
    let refused = if live { mempolicy::permitted().err() } else { None };
    let refused = refused.map(|error| error.to_string());
    let scene = Scene { fs: fs.as_ref(), machine: &machine, features: &features, live, refused };
    let mut report = report(&scene, selected.lab(fs.as_ref()), &findings);
    report.sensors = live.then(|| sensors(&machine)).transpose()?;
    Ok(report)
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
        movers: movers::all(scene.fs, scene.machine, scene.live),
        privileges,
        sensors: None,
        findings: findings.iter().map(ToString::to_string).collect(),
    }
}

/// The results of the sensors' self-tests, which change no setting and leave nothing open.
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
            config: row.config,
            without: row.without,
        }
    };
    TABLE.iter().map(row).collect()
}
