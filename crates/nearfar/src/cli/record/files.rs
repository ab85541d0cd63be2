//! The files of a recording: the record, and Parquet if it is requested. Both get the same frames.

use std::path::Path;
use std::time::Duration;

use nearfar_daemon::recording::Recording;
use nearfar_parquet::{Dataset, Summary};
use nearfar_record::{
    Access, Ending, Header, Intervals, Note, Process, Residency, Resident, Snapshot,
};

/// A recording while it is written.
#[derive(Debug)]
pub(super) struct Files {
    record: Recording,
    dataset: Option<Dataset>,
}

impl Files {
    /// Creates the record; the dataset exists already.
    pub(super) fn create(
        path: &Path,
        header: &Header,
        dataset: Option<Dataset>,
    ) -> anyhow::Result<Self> {
        Ok(Self { record: Recording::create(path, header)?, dataset })
    }

    /// Time since the start.
    pub(super) fn elapsed(&self) -> Duration {
        self.record.elapsed()
    }

    /// The same in nanoseconds, as used in frames.
    pub(super) fn at_ns(&self) -> u64 {
        self.record.at_ns()
    }

    /// Bytes of the record so far.
    pub(super) const fn bytes(&self) -> u64 {
        self.record.bytes()
    }

    /// Appends a note.
    pub(super) fn note(&mut self, text: String) -> anyhow::Result<()> {
        self.record.append(|writer, at_ns| writer.note(&Note { at_ns, text }))
    }

    /// Appends the process of a target from here on.
    pub(super) fn process(&mut self, target: u32, pid: u32, command: String) -> anyhow::Result<()> {
        let process = Process { at_ns: self.at_ns(), target, pid, command };
        self.record.append(|writer, _| writer.process(&process))?;
        self.dataset.iter_mut().for_each(|dataset| dataset.process(&process));
        Ok(())
    }

    /// Appends a snapshot of all targets.
    pub(super) fn access(
        &mut self,
        intervals: Intervals,
        targets: Vec<Snapshot>,
    ) -> anyhow::Result<()> {
        let access = Access { at_ns: self.at_ns(), intervals, targets };
        self.record.append(|writer, _| writer.access(&access))?;
        Ok(self.dataset.iter_mut().try_for_each(|dataset| dataset.access(&access))?)
    }

    /// Appends a residency.
    pub(super) fn residency(&mut self, nodes: Vec<Resident>) -> anyhow::Result<()> {
        let residency = Residency { at_ns: self.at_ns(), nodes };
        self.record.append(|writer, _| writer.residency(&residency))?;
        Ok(self.dataset.iter_mut().try_for_each(|dataset| dataset.residency(&residency))?)
    }

    /// Ends both, even if one fails.
    pub(super) fn end(
        self,
        kernel_cpu_ns: u64,
        own_cpu_ns: u64,
    ) -> anyhow::Result<(Ending, Option<Summary>)> {
        let summary = self.dataset.map(Dataset::end).transpose();
        let ending = self.record.end(kernel_cpu_ns, own_cpu_ns)?;
        Ok((ending, summary?))
    }
}
