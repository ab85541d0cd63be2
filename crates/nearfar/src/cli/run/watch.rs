//! Runs CMD as a child, samples its residency until it ends if that is to be reported, then restores weights and stops
//! tiering and balancing.
//!
//! A sample walks page tables, so its CPU time sets the sampling rate: the first 250 ms of sampling are not limited, as
//! a short program has its peak early; beyond that, sampling takes at most a twentieth of the time. The final residency
//! is the last sample before the end. A peak between samples is found by the kernel's own figure of the largest process.

use std::process::ExitCode;
use std::time::Duration;

use nearfar_kernel::fs::RootFs;
use nearfar_kernel::residency::{self, Residency};
use nearfar_kernel::watch::{self, Ended, WatchError, Watched};
use nearfar_topology::Topology;

use super::balanced::Balanced;
use super::plan::{Plan, Setting};
use super::report::{Residencies, Sink};
use super::tiered::Tiered;
use super::{Args, command, not_started};
use nearfar_command::exit::Exit;
use nearfar_command::output;
use nearfar_command::spread::Spreading;
use nearfar_command::weighing::set::{ForARun, Setter};
use nearfar_kernel::clock::{self, Stopwatch};

const FIRST: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_millis(100);
/// A wait that only a signal or the end of CMD ends.
const UNSEEN: Duration = Duration::from_secs(3600);
/// Total sampling time without limit; beyond it, each sample is followed by twenty times its duration without one.
const FREE: Duration = Duration::from_millis(250);
const RUN_PER_COST: u32 = 20;

/// Actions after CMD has ended.
pub(super) struct After<'a> {
    pub(super) fs: &'a RootFs,
    pub(super) sink: Option<Sink>,
    pub(super) setter: &'a Setter<'a>,
    pub(super) lease: Option<ForARun>,
    pub(super) tiered: Option<Tiered>,
    pub(super) balanced: Option<Balanced>,
}

/// Runs CMD and reports. The status is CMD's, even if the report fails.
pub(super) fn run(
    args: &Args,
    plan: &Plan,
    machine: &Topology,
    after: After<'_>,
) -> anyhow::Result<ExitCode> {
    let start = || {
        watch::start(command(args, plan), &plan.placement).map_err(|error| match error {
            WatchError::Execute(error) => not_started(args, error),
            error => error.into(),
        })
    };
    let started = match &after.tiered {
        Some(tiered) => tiered.within(after.fs, start).and_then(|started| started),
        None => start(),
    };
    let ended = started.and_then(|watched| {
        let spreading = match &plan.setting {
            // CMD runs already: its pages then stay where they are.
            Setting::Own(weights) => Spreading::start(watched.id(), weights.clone())
                .inspect_err(|error| output::note(format_args!("no pages are migrated: {error:#}")))
                .ok(),
            Setting::None | Setting::Suits | Setting::Set(_) => None,
        };
        let ended = match &after.sink {
            Some(_) => {
                let (residencies, ended) = watch(after.fs, &watched);
                ended.map(|ended| (Some(residencies), ended))
            }
            None => until_it_ends(&watched).map(|ended| (None, ended)),
        };
        if let Some(spreading) = spreading {
            spreading.end();
        }
        ended
    });
    after.put_back();
    let (residencies, ended) = ended?;
    if let Some((sink, residencies)) = after.sink.zip(residencies)
        && let Err(error) = sink.write(args, plan, machine, (&residencies, ended))
    {
        output::note(format_args!("--report: {error:#}"));
    }
    Ok(Exit::Command(ended.shell_status()).into())
}

/// Waits for CMD without sampling.
fn until_it_ends(watched: &Watched) -> anyhow::Result<Ended> {
    loop {
        if let Some(ended) = watched.wait(UNSEEN)? {
            return Ok(ended);
        }
    }
}

impl After<'_> {
    /// Restores the settings. A failure is reported and stays in the journal; it does not change CMD's status.
    fn put_back(&self) {
        if let Some(tiered) = &self.tiered {
            tiered.end(self.fs);
        }
        if let Some(balanced) = &self.balanced {
            balanced.end();
        }
        let Some(lease) = &self.lease else { return };
        match self.setter.end(lease) {
            Ok(report) if report.conflicts.is_empty() => {}
            Ok(_) => output::note(
                "the machine's weights were changed by another process meanwhile and are left unchanged; nearfar weights --restore --overwrite restores the old ones",
            ),
            Err(error) => {
                output::note(format_args!("{error:#}; nearfar weights --restore tries again"))
            }
        }
    }
}

/// Samples until CMD ends.
fn watch(fs: &RootFs, watched: &Watched) -> (Residencies, anyhow::Result<Ended>) {
    let mut seen = Residencies::default();
    let running = Stopwatch::start();
    let (mut pause, mut next, before) = (FIRST, FIRST, clock::of_thread());
    loop {
        let now = running.elapsed();
        if now < next {
            // A signal ends the wait early; the next sample keeps its time.
            match watched.wait(next - now) {
                Ok(Some(ended)) => {
                    seen.peak_of_a_process = watched.peak_of_a_process();
                    return (seen, Ok(ended));
                }
                Err(error) => return (seen, Err(error.into())),
                Ok(None) => continue,
            }
        }
        let sample: Residency = residency::of_tree(fs, watched.id()).unwrap_or_default();
        seen.add(&sample);
        let (after, spent) = (running.elapsed(), clock::of_thread() - before);
        pause = (pause * 2).min(LONGEST);
        next = (after + pause).max(spent.saturating_sub(FREE) * RUN_PER_COST);
    }
}
