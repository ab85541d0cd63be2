//! What a queue does when nothing comes back: asks for a drain, gives up, and takes note of what comes in after all.
#![expect(unsafe_code, reason = "a drain descriptor is handed over")]

use super::super::format::{Descriptor, Status};
use super::super::group::Group;
use super::super::line::{self, Line, lines};
use super::super::submit::SubmitError;
use super::{Queue, wait};
use crate::copy::job::Place;

/// Groups that the device did not come back with.
#[derive(Debug)]
pub(super) struct GivenUp {
    groups: Vec<Group>,
    /// The record of the drain that was asked for, as long as it may be written.
    drain: Option<Box<[Line]>>,
}

/// What became of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drain {
    /// All that was in the queue before is over.
    Done,
    /// The queue did not take it, or took it for an error.
    Refused,
    /// It was taken, and nothing came back.
    Silent,
}

impl Queue {
    /// Nothing came back for too long: has the queue drained, and gives up what is not over then.
    pub(super) fn give_up(&mut self) {
        self.withdraw();
        if self.groups.is_empty() {
            return;
        }
        self.counts.drains += 1;
        let record = lines(1);
        match self.drain(&record) {
            Drain::Done => {
                for group in std::mem::take(&mut self.groups) {
                    self.close(group);
                }
            }
            Drain::Refused => self.abandon(None),
            Drain::Silent => self.abandon(Some(record)),
        }
    }

    /// Asks for a drain, once; whether the queue took it.
    fn ask_for_drain(&mut self, record: &[Line]) -> Result<bool, SubmitError> {
        let drain = Descriptor::drain().recorded_at(line::address(record));
        // SAFETY: the operation touches nothing but its record, whose line callers keep until it was seen to be over, unless this
        // says that it was not taken.
        let taken = unsafe { self.door.submit(&[drain]) }?;
        Ok(taken > 0)
    }

    fn drain(&mut self, record: &[Line]) -> Drain {
        let mut tries = 0;
        loop {
            match self.ask_for_drain(record) {
                Ok(true) => break,
                Ok(false) if tries < self.config.retries_max => {
                    tries += 1;
                    wait(&mut *self.door, self.config, tries);
                }
                Ok(false) | Err(_) => return Drain::Refused,
            }
        }
        for polls in 0..self.config.patience {
            match record.iter().find_map(Line::record) {
                None => wait(&mut *self.door, self.config, polls),
                Some(record) if record.status == Status::SUCCESS => return Drain::Done,
                Some(_) => return Drain::Refused,
            }
        }
        Drain::Silent
    }

    /// Gives up what is not over: from now on nobody knows when the device writes.
    fn abandon(&mut self, drain: Option<Box<[Line]>>) {
        self.failures = self.failures.saturating_add(1);
        let mut groups = Vec::new();
        for mut group in std::mem::take(&mut self.groups) {
            if group.is_over() {
                self.close(group);
                continue;
            }
            self.settle(&mut group);
            self.unfinished.extend(group.rest().map(|piece| piece.of));
            self.counts.unfinished += group.rest().count() as u64;
            groups.push(group);
        }
        self.given_up.push(GivenUp { groups, drain });
    }

    /// Looks whether anything that was given up has come in, and has a drain under way while anything has not.
    pub(super) fn sweep(&mut self) {
        let mut places = Vec::new();
        for mut entry in std::mem::take(&mut self.given_up) {
            let answer = entry.drain.iter().flatten().find_map(Line::record);
            let is_drained = answer.is_some_and(|record| record.status == Status::SUCCESS);
            if answer.is_some() {
                entry.drain = None;
            }
            for group in std::mem::take(&mut entry.groups) {
                if is_drained || group.is_over() {
                    places.extend(group.rest().map(|piece| piece.job.place()));
                    let may_be_written = group.may_be_written();
                    self.retire(group, may_be_written);
                } else {
                    entry.groups.push(group);
                }
            }
            if entry.drain.is_none() && !entry.groups.is_empty() {
                let record = lines(1);
                if let Ok(true) = self.ask_for_drain(&record) {
                    entry.drain = Some(record);
                }
            }
            if !entry.groups.is_empty() || entry.drain.is_some() {
                self.given_up.push(entry);
            }
        }
        for place in places {
            if !self.is_given_up(place) && !self.settled.contains(&place) {
                self.settled.push(place);
            }
        }
    }

    /// Whether the device may still write to a job's destination.
    fn is_given_up(&self, place: Place) -> bool {
        let groups = self.given_up.iter().flat_map(|entry| &entry.groups);
        groups.flat_map(Group::rest).any(|piece| piece.job.place() == place)
    }

    /// Keeps a group for another time, or leaves its lines to the device.
    pub(super) fn retire(&mut self, group: Group, may_be_written: bool) {
        if may_be_written {
            self.counts.leaked += 1;
            group.leak();
        } else {
            self.spare.push(group);
        }
    }
}

impl Drop for Queue {
    /// Waits for what is under way, within bounds; what does not come back keeps its lines for ever.
    fn drop(&mut self) {
        self.finish(&mut []);
        for GivenUp { groups, drain } in self.given_up.drain(..) {
            groups.into_iter().for_each(Group::leak);
            drain.map(Box::leak);
        }
    }
}
