//! The access record of tiering: at each report, the placement of memory and the bytes migrated since the last one, and
//! a note when the reason of decisions changes. If writing fails, a message reports it, and tiering goes on.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use nearfar_kernel::fs::Fs;
use nearfar_kernel::process;
use nearfar_record::{Header, Intervals, Moved, Note, Operations, Pair, Residency, Resident};
use nearfar_topology::{Bytes, Nanoseconds, NodeId};

use super::intervals::INTERVALS;
use super::scope::Scope;
use super::state::Recorded;
use crate::recording::{self, Recording};
use nearfar_command::machine::Machine;
use nearfar_command::output;

/// A record being written.
#[derive(Debug)]
pub(crate) struct Log {
    header: Header,
    /// `None` after an error.
    recording: Option<Recording>,
    recorded: Recorded,
    /// Bytes migrated up to the last report, by pair of nodes.
    moved: BTreeMap<(NodeId, NodeId), Bytes>,
    reason: String,
}

impl Log {
    /// Creates the record in the file `name`.
    pub(crate) fn create(
        name: &str,
        machine: &Machine,
        fs: &dyn Fs,
        scope: &Scope,
    ) -> anyhow::Result<Self> {
        // Accesses are not recorded; these are DAMON's intervals, by which no page is judged.
        let intervals =
            Intervals { sample_us: INTERVALS.sample_us, aggregation_us: INTERVALS.aggr_us };
        let about = (scope.target(), Operations::Physical);
        let header = recording::header(machine, fs, about, intervals)?;
        let recording = Recording::create(Path::new(name), &header).context("--record")?;
        let recorded = Recorded { file: name.into(), bytes: recording.bytes(), error: None };
        let (moved, reason) = (BTreeMap::new(), String::new());
        Ok(Self { header, recording: Some(recording), recorded, moved, reason })
    }

    /// The state of the record.
    pub(crate) fn recorded(&self) -> &Recorded {
        &self.recorded
    }

    /// Appends the present state.
    pub(crate) fn look(
        &mut self,
        fs: &dyn Fs,
        scope: &Scope,
        moved: BTreeMap<(NodeId, NodeId), Bytes>,
        reason: &str,
    ) {
        let Some(mut recording) = self.recording.take() else { return };
        match self.append(&mut recording, fs, scope, (moved, reason)) {
            Ok(()) => {
                self.recorded.bytes = recording.bytes();
                self.recording = Some(recording);
            }
            Err(error) => self.give_up(&error),
        }
    }

    fn append(
        &mut self,
        recording: &mut Recording,
        fs: &dyn Fs,
        scope: &Scope,
        (moved, reason): (BTreeMap<(NodeId, NodeId), Bytes>, &str),
    ) -> anyhow::Result<()> {
        if let Some(nodes) = self.residency(fs, scope) {
            recording.append(|writer, at_ns| writer.residency(&Residency { at_ns, nodes }))?;
        }
        let pairs = self.pairs(moved);
        if !pairs.is_empty() {
            recording.append(|writer, at_ns| writer.moved(&Moved { at_ns, pairs }))?;
        }
        if self.reason != reason {
            self.reason = reason.into();
            let text = format!("tiering: {reason}");
            recording.append(|writer, at_ns| writer.note(&Note { at_ns, text }))?;
        }
        Ok(())
    }

    fn residency(&self, fs: &dyn Fs, scope: &Scope) -> Option<Vec<Resident>> {
        let Some(group) = scope.group() else { return recording::in_use(fs, &self.header) };
        let taken = group.taken(fs).ok()?;
        Some(taken.into_iter().map(|(node, bytes)| Resident { node, bytes: bytes.0 }).collect())
    }

    /// Bytes migrated since the last report.
    fn pairs(&mut self, now: BTreeMap<(NodeId, NodeId), Bytes>) -> Vec<Pair> {
        let since = |(pair, bytes): (&(NodeId, NodeId), &Bytes)| {
            let before = self.moved.get(pair).copied().unwrap_or_default();
            let bytes = bytes.0.saturating_sub(before.0);
            Some(Pair { from: pair.0, to: pair.1, bytes, failed_bytes: 0 })
                .filter(|pair| pair.bytes > 0)
        };
        let pairs = now.iter().filter_map(since).collect();
        self.moved = now;
        pairs
    }

    fn give_up(&mut self, error: &anyhow::Error) {
        let error = format!("{error:#}");
        output::note(format_args!("{error}; tiering continues without a record"));
        self.recorded.error = Some(error);
    }

    /// Ends the record; `cpu` is the CPU time of tiering in all.
    pub(crate) fn end(mut self, fs: &dyn Fs, cpu: Nanoseconds) {
        let own = process::cpu_ns(fs, "self");
        let Some(recording) = self.recording.take() else { return };
        if let Err(error) = recording.end(cpu.0.saturating_sub(own), own) {
            self.give_up(&error);
        }
    }
}
