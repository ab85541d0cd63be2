//! Running CMD as a child, sampling where its memory lies until it ends, then reporting and putting weights back.
//!
//! A sample walks page tables, so its cost sets the pace: a little is free, as a short program has its peak early; beyond
//! that at most a twentieth of the time goes into sampling. What is reported as final is the last sample before the end.

use std::process::ExitCode;
use std::time::Duration;

use nearfar_kernel::fs::RootFs;
use nearfar_kernel::residency::{self, Residency};
use nearfar_kernel::watch::{self, Ended, WatchError, Watched};
use nearfar_topology::Topology;

use super::plan::Plan;
use super::report::{Residencies, Sink};
use super::{Args, command, not_started, output};
use crate::clock::Stopwatch;
use crate::exit::Exit;
use crate::weighing::set::{ForARun, Setter};

const FIRST: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_millis(100);
/// So much sampling in all is free; beyond it, what was spent is paid for by twenty times as much running.
const FREE: Duration = Duration::from_millis(250);
const RUN_PER_COST: u32 = 20;

/// What is to be done when CMD has ended.
pub(super) struct After<'a> {
    pub(super) sink: Sink,
    pub(super) setter: &'a Setter<'a>,
    pub(super) lease: Option<ForARun>,
}

/// Runs CMD and reports. Whatever happens to the report, the status is CMD's.
pub(super) fn run(
    args: &Args,
    plan: &Plan,
    machine: &Topology,
    after: After<'_>,
) -> anyhow::Result<ExitCode> {
    let fs = RootFs::live()?;
    let watched = match watch::start(command(args), &plan.placement) {
        Ok(watched) => watched,
        Err(error) => {
            after.put_weights_back();
            return Err(match error {
                WatchError::Execute(error) => not_started(args, error),
                error => error.into(),
            });
        }
    };
    let (residencies, ended) = watch(&fs, &watched);
    after.put_weights_back();
    let ended = ended?;
    if let Err(error) = after.sink.write(args, plan, machine, (&residencies, ended)) {
        output::note(format_args!("--report: {error:#}"));
    }
    Ok(Exit::Command(ended.shell_status()).into())
}

impl After<'_> {
    /// A failure is told, and the journal still knows; it is no failure of CMD.
    fn put_weights_back(&self) {
        let Some(lease) = &self.lease else { return };
        match self.setter.end(lease) {
            Ok(report) if report.conflicts.is_empty() => {}
            Ok(_) => output::note(
                "the machine's weights were changed by someone else meanwhile and are left so; nearfar weights --restore \
                 --overwrite puts the old ones back",
            ),
            Err(error) => {
                output::note(format_args!("{error:#}; nearfar weights --restore tries again"))
            }
        }
    }
}

/// Samples until it ends.
fn watch(fs: &RootFs, watched: &Watched) -> (Residencies, anyhow::Result<Ended>) {
    let mut seen = Residencies::default();
    let running = Stopwatch::start();
    let (mut pause, mut spent, mut next) = (FIRST, Duration::ZERO, FIRST);
    loop {
        let now = running.elapsed();
        if now < next {
            // A signal ends the wait early; the sample waits for its time all the same.
            match watched.wait(next - now) {
                Ok(Some(ended)) => return (seen, Ok(ended)),
                Err(error) => return (seen, Err(error.into())),
                Ok(None) => continue,
            }
        }
        let sample: Residency = residency::of_tree(fs, watched.id()).unwrap_or_default();
        seen.add(&sample);
        let after = running.elapsed();
        spent += after - now;
        pause = (pause * 2).min(LONGEST);
        next = (after + pause).max(spent.saturating_sub(FREE) * RUN_PER_COST);
    }
}
