//! Setting weights and putting them back. They are machine-wide, so two owners are told apart in the journal:
//!
//! - `weights`: set to stay until `nearfar weights --restore` (by `weights --apply`, and by `run -w auto`, after which
//!   no parent is left that could put them back);
//! - `run`: set for the time of one `run -w auto --report`. Every such run holds a lease; the last to end puts the old
//!   weights back, and if it was killed, the next one to start or `--restore` does.

use std::path::PathBuf;

use anyhow::Context as _;
use nearfar_kernel::fs::Fs;
use nearfar_kernel::journal::{Journal, OnConflict, Recorded, Restored};
use nearfar_kernel::lease::{Lease, Turn};
use nearfar_kernel::weights;
use nearfar_policy::Weights;

const KEPT: &str = "weights";
const FOR_A_RUN: &str = "run";

/// The weights of one system: its files, and the journal of changes to them.
pub(crate) struct Setter<'a> {
    fs: &'a dyn Fs,
    journal: Journal<'a>,
    lease: PathBuf,
}

/// Weights set for the time of one run.
#[derive(Debug)]
pub(crate) struct ForARun(Lease);

impl<'a> Setter<'a> {
    /// For the system below `fs`, which stands on `root`.
    pub(crate) fn new(fs: &'a dyn Fs, root: PathBuf) -> Self {
        let dir = Journal::default_dir();
        Self { fs, lease: dir.join("run.lease"), journal: Journal::new(dir, fs, root) }
    }

    /// Sets `wanted` until they are restored.
    pub(crate) fn keep(&self, wanted: &Weights) -> anyhow::Result<Vec<Recorded>> {
        weights::apply(&self.journal, self.fs, KEPT, wanted).context("can't set weights")
    }

    /// Marks that a run makes use of the weights as they are.
    ///
    /// Not being able to is no failure: without a journal no one has set weights for a time.
    pub(crate) fn rely(&self) -> Option<ForARun> {
        Turn::wait(&self.lease).and_then(|turn| turn.take()).ok().map(ForARun)
    }

    /// Sets `wanted` for the time of a run, unless another run relies on what is set.
    pub(crate) fn for_a_run(&self, wanted: &Weights) -> anyhow::Result<(Vec<Recorded>, ForARun)> {
        self.journal.make_dir()?;
        let locked = || format!("can't lock {}", self.lease.display());
        let turn = Turn::wait(&self.lease).with_context(locked)?;
        let lease = turn.take().with_context(locked)?;
        anyhow::ensure!(
            turn.is_only(&lease).with_context(locked)?,
            "another `nearfar run -w auto` is using the weights as they are; wait for it to end, or use them too with \
             -w NODES"
        );
        // What a killed run left behind is not the state to come back to.
        self.journal.restore(FOR_A_RUN, OnConflict::Refuse)?;
        let written = weights::apply(&self.journal, self.fs, FOR_A_RUN, wanted)
            .context("can't set weights")?;
        Ok((written, ForARun(lease)))
    }

    /// Ends a run's use of the weights; puts back what runs have set if this was the last.
    pub(crate) fn end(&self, run: &ForARun) -> anyhow::Result<Restored> {
        let turn = Turn::wait(&self.lease).context("can't lock the weights")?;
        if turn.is_only(&run.0).context("can't lock the weights")? {
            return Ok(self.journal.restore(FOR_A_RUN, OnConflict::Refuse)?);
        }
        Ok(Restored::default())
    }

    /// Puts back what was set to stay, and what killed runs left.
    pub(crate) fn restore(&self, on_conflict: OnConflict) -> anyhow::Result<Restored> {
        let mut report = Restored::default();
        if let Ok(turn) = Turn::wait(&self.lease)
            && let Ok(lease) = turn.take()
            && turn.is_only(&lease).unwrap_or(false)
        {
            report = self.journal.restore(FOR_A_RUN, on_conflict)?;
        }
        let kept = self.journal.restore(KEPT, on_conflict)?;
        report.put_back.extend(kept.put_back);
        report.conflicts.extend(kept.conflicts);
        report.void += kept.void;
        Ok(report)
    }

    /// What nearfar has set and not put back.
    pub(crate) fn pending(&self) -> anyhow::Result<Vec<Recorded>> {
        let mut pending = self.journal.pending(KEPT)?;
        pending.extend(self.journal.pending(FOR_A_RUN)?);
        Ok(pending)
    }
}
