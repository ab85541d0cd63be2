//! Which processes are watched, each by a kdamond of its own: those there at the start, and those that come later.
//!
//! A kdamond ends with its process, and makes room for another. Each process has a number in the record, its target,
//! which is never used again. A process that is gone between two looks is never seen; one that found no room is noted.

use std::collections::BTreeSet;

use nearfar_kernel::damon::spec::Kdamond;
use nearfar_kernel::damon::{DamonError, Session};
use nearfar_kernel::fs::Fs;
use nearfar_kernel::process;
use nearfar_record::{Intervals, Note, Process, Snapshot};

use super::Args;
use super::plan::{self, PROCESSES_MAX, Plan, Who};
use crate::recording::{Recording, regions};

/// What the kdamonds watch.
#[derive(Debug)]
pub(super) struct Watched<'a> {
    args: &'a Args,
    who: &'a Who,
    /// By kdamond: the target, and its process unless it is physical memory.
    places: Vec<Option<(u32, Option<u32>)>>,
    /// Targets so far.
    targets: u32,
    /// Processes that found no room when they were seen first.
    missed: BTreeSet<u32>,
}

impl<'a> Watched<'a> {
    /// What there is to watch now, and the kdamonds for it.
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
        // The others are followed from the start: they may be gone by the time that all is set up, and DAMON starts all or
        // none.
        let first = plan.who.members(fs)?.into_iter().next();
        watched.places.extend(first.map(|pid| Some((0, Some(pid)))));
        watched.targets = u32::from(first.is_some());
        let kdamonds = first.map(|pid| plan::looking(args, Kdamond::process(pid)));
        Ok((watched, kdamonds.into_iter().collect()))
    }

    /// Gives what kdamond `index` watches the next number.
    fn place(&mut self, index: usize, pid: Option<u32>) -> u32 {
        let target = self.targets;
        self.places.resize(self.places.len().max(index + 1), None);
        self.places[index] = Some((target, pid));
        self.targets += 1;
        target
    }

    /// How many kdamonds there may be.
    pub(super) fn room(&self) -> usize {
        if matches!(self.who, Who::Machine(_)) { 1 } else { PROCESSES_MAX }
    }

    /// The processes that are watched.
    pub(super) fn processes(&self) -> impl Iterator<Item = (u32, u32)> {
        self.places.iter().flatten().filter_map(|(target, pid)| Some((*target, (*pid)?)))
    }

    /// Says in the record who is watched from the start.
    pub(super) fn introduce(&self, fs: &dyn Fs, into: &mut Recording) -> anyhow::Result<()> {
        self.processes().try_for_each(|(target, pid)| introduce(fs, into, target, pid))
    }

    /// Begins to watch processes that have come; gives all there are, watched or not.
    pub(super) fn follow(
        &mut self,
        fs: &dyn Fs,
        session: &mut Session<'_>,
        into: &mut Recording,
    ) -> anyhow::Result<Vec<u32>> {
        let mut members = self.who.members(fs)?;
        if let Who::Tree(_) = self.who {
            // Who lost its parent is no descendant any more, but is watched still, with what it starts.
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
                        into.append(|writer, at_ns| writer.note(&Note { at_ns, text }))?;
                    }
                }
                // It was gone before it could be watched.
                Err(_) if !process::lives(fs, pid) => {}
                // It may be on the way out, or becoming another program; it is tried again.
                Err(error @ (DamonError::NotStarted(_) | DamonError::Refused(_))) => {
                    if self.missed.insert(pid) {
                        let command = process::command(fs, pid);
                        let text = format!("process {pid} ({command}) is not watched yet: {error}");
                        into.append(|writer, at_ns| writer.note(&Note { at_ns, text }))?;
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(members)
    }

    /// What each kdamond that still runs has found, in intervals that they have in common.
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

/// Counts of one kdamond's intervals as they would be in another's. The kernel tunes each kdamond for itself.
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

fn introduce(fs: &dyn Fs, into: &mut Recording, target: u32, pid: u32) -> anyhow::Result<()> {
    let command = process::command(fs, pid);
    into.append(|writer, at_ns| writer.process(&Process { at_ns, target, pid, command }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_record::{Range, Region};

    #[test]
    fn counts_of_other_intervals_keep_their_rate_and_their_time() {
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
