//! Assigns kdamonds to recorded processes, one each: those that exist at the start, and those that start later.
//!
//! A kdamond ends with its process and becomes free for another. Each process has a number in the record, its target,
//! which is never reused. A process that starts and ends between two scans is missed; one for which no kdamond is free
//! is noted in the record.

use std::collections::BTreeSet;

use nearfar_kernel::damon::spec::Kdamond;
use nearfar_kernel::damon::{DamonError, Session};
use nearfar_kernel::fs::Fs;
use nearfar_kernel::process;
use nearfar_record::{Intervals, Snapshot};

use super::Args;
use super::files::Files;
use super::plan::{self, PROCESSES_MAX, Plan, Who};
use nearfar_daemon::recording::regions;

/// The targets of the kdamonds.
#[derive(Debug)]
pub(super) struct Watched<'a> {
    args: &'a Args,
    who: &'a Who,
    /// By kdamond: the target, and its process unless the target is physical memory.
    places: Vec<Option<(u32, Option<u32>)>>,
    /// Number of targets so far.
    targets: u32,
    /// Processes for which no kdamond was free when they were first seen.
    missed: BTreeSet<u32>,
}

impl<'a> Watched<'a> {
    /// The present targets, and kdamonds for them.
    pub(super) fn begin(
        args: &'a Args,
        plan: &'a Plan,
        fs: &dyn Fs,
    ) -> anyhow::Result<(Self, Vec<Kdamond>)> {
        let mut watched =
            Self { args, who: &plan.who, places: Vec::new(), targets: 0, missed: BTreeSet::new() };
        if let Who::Machine(ranges) = &plan.who {
            watched.place(0, None);
            return Ok((watched, vec![plan::looking(args, Kdamond::physical(ranges))]));
        }
        // The others are added by `follow`: they may end before all is set up, and DAMON starts all targets or none.
        let first = plan.who.members(fs)?.into_iter().next();
        watched.places.extend(first.map(|pid| Some((0, Some(pid)))));
        watched.targets = u32::from(first.is_some());
        let kdamonds = first.map(|pid| plan::looking(args, Kdamond::process(pid)));
        Ok((watched, kdamonds.into_iter().collect()))
    }

    /// Assigns the next target number to kdamond `index`.
    fn place(&mut self, index: usize, pid: Option<u32>) -> u32 {
        let target = self.targets;
        self.places.resize(self.places.len().max(index + 1), None);
        self.places[index] = Some((target, pid));
        self.targets += 1;
        target
    }

    /// Maximum number of kdamonds.
    pub(super) fn room(&self) -> usize {
        if matches!(self.who, Who::Machine(_)) { 1 } else { PROCESSES_MAX }
    }

    /// The monitored processes.
    pub(super) fn processes(&self) -> impl Iterator<Item = (u32, u32)> {
        self.places.iter().flatten().filter_map(|(target, pid)| Some((*target, (*pid)?)))
    }

    /// Writes the initial targets into the record.
    pub(super) fn introduce(&self, fs: &dyn Fs, into: &mut Files) -> anyhow::Result<()> {
        self.processes().try_for_each(|(target, pid)| introduce(fs, into, target, pid))
    }

    /// Starts to monitor new processes; returns all present ones, monitored or not.
    pub(super) fn follow(
        &mut self,
        fs: &dyn Fs,
        session: &mut Session<'_>,
        into: &mut Files,
    ) -> anyhow::Result<Vec<u32>> {
        let mut members = self.who.members(fs)?;
        if let Who::Tree(_) = self.who {
            // A process that lost its parent is no descendant any more, but is still monitored, with its own
            // descendants.
            for (_, pid) in self.processes() {
                if !members.contains(&pid) {
                    members.extend(Who::Tree(pid).members(fs)?);
                }
            }
        }
        let watched: BTreeSet<u32> = self.processes().map(|(_, pid)| pid).collect();
        for pid in members.iter().copied().filter(|pid| !watched.contains(pid)) {
            match session.add(&plan::looking(self.args, Kdamond::process(pid))) {
                Ok(Some(index)) => {
                    let target = self.place(index, Some(pid));
                    introduce(fs, into, target, pid)?;
                }
                Ok(None) => {
                    if self.missed.insert(pid) {
                        let command = process::command(fs, pid);
                        let text = format!(
                            "process {pid} ({command}) is not watched: {PROCESSES_MAX} others are"
                        );
                        into.note(text)?;
                    }
                }
                // The process ended before it could be monitored.
                Err(_) if !process::lives(fs, pid) => {}
                // The process may be exiting, or in execve; it is retried.
                Err(error @ (DamonError::NotStarted(_) | DamonError::Refused(_))) => {
                    if self.missed.insert(pid) {
                        let command = process::command(fs, pid);
                        let text = format!("process {pid} ({command}) is not watched yet: {error}");
                        into.note(text)?;
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(members)
    }

    /// Snapshots of all running kdamonds, scaled to common intervals.
    pub(super) fn look(
        &mut self,
        session: &Session<'_>,
    ) -> anyhow::Result<Option<(Intervals, Vec<Snapshot>)>> {
        let mut common = None;
        let mut targets = Vec::new();
        for (index, place) in self.places.iter_mut().enumerate() {
            let Some((target, _)) = *place else { continue };
            let found = session.intervals(index).and_then(|intervals| {
                let found = session.regions(index, 0)?;
                Ok((intervals, found))
            });
            let (intervals, found) = match found {
                Ok(found) => found,
                Err(DamonError::Gone { .. }) => {
                    *place = None;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let own =
                Intervals { sample_us: intervals.sample_us, aggregation_us: intervals.aggr_us };
            let common = *common.get_or_insert(own);
            let mut snapshot = Snapshot { target, regions: regions(&found) };
            rescale(&mut snapshot, own, common);
            targets.push(snapshot);
        }
        Ok(common.map(|common| (common, targets)))
    }
}

/// Scales counts from one kdamond's intervals to another's. The kernel tunes each kdamond separately.
fn rescale(snapshot: &mut Snapshot, from: Intervals, to: Intervals) {
    let scaled = |count: u32, [by, of]: [u64; 2]| {
        let count = u128::from(count) * u128::from(by) / u128::from(of.max(1));
        u32::try_from(count).unwrap_or(u32::MAX)
    };
    for region in snapshot.regions.iter_mut().filter(|_| from != to) {
        region.accesses = scaled(region.accesses, [to.samples_max(), from.samples_max()]);
        region.age = scaled(region.age, [from.aggregation_us, to.aggregation_us]);
    }
}

fn introduce(fs: &dyn Fs, into: &mut Files, target: u32, pid: u32) -> anyhow::Result<()> {
    let command = process::command(fs, pid);
    into.process(target, pid, command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_record::{Range, Region};

    #[test]
    fn counts_are_rescaled_to_other_intervals_by_rate_and_age() {
        let region = Region { range: Range { start: 0, end: 1 }, accesses: 5, age: 30 };
        let mut snapshot = Snapshot { target: 0, regions: vec![region] };
        let fast = Intervals { sample_us: 5_000, aggregation_us: 100_000 };
        let slow = Intervals { sample_us: 50_000, aggregation_us: 500_000 };
        rescale(&mut snapshot, fast, slow);
        let region = snapshot.regions[0];
        assert_eq!((region.accesses, region.age), (2, 6));
        assert_eq!(slow.age_ns(region.age), fast.age_ns(30));
    }
}
