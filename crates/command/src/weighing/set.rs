//! Sets the kernel's interleave weights and restores them. Weights are machine-wide, so the journal distinguishes two owners:
//!
//! - `weights`: set until `nearfar weights --restore` (by `weights --apply`, and by `run -w auto`, after which no parent
//!   process remains that could restore them);
//! - `run`: set for one `run -w auto --report`. Each such run holds a lease; the last to end restores the previous weights.
//!   If it was killed, the next run or `--restore` does.
//!
//! A run without the right to set weights only marks that it relies on them: then no other run changes them; restoring does not
//! wait for it.

use std::path::PathBuf;

use anyhow::Context as _;
use nearfar_kernel::fs::Fs;
use nearfar_kernel::journal::{Journal, OnConflict, Recorded, Restored};
use nearfar_kernel::lease::{Lease, Turn};
use nearfar_kernel::lock::LockError;
use nearfar_kernel::weights;
use nearfar_policy::Weights;

use crate::output;

const KEPT: &str = "weights";
const FOR_A_RUN: &str = "run";
const USED: &str = "another `nearfar run -w auto` is using the weights as they are; wait for it to end, or use the same weights with -w NODES";

/// Sets the weights of one system through the journal.
pub struct Setter<'a> {
    fs: &'a dyn Fs,
    journal: Journal<'a>,
    lease: PathBuf,
    anyone: PathBuf,
}

impl std::fmt::Debug for Setter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setter").field("lease", &self.lease).finish_non_exhaustive()
    }
}

/// The lease of one run on the weights.
#[derive(Debug)]
pub struct ForARun(Lease);

impl<'a> Setter<'a> {
    /// For the system with the files `fs`, mounted at `root`.
    #[must_use]
    pub fn new(fs: &'a dyn Fs, root: PathBuf) -> Self {
        let dir = Journal::default_dir();
        let (lease, anyone) = (dir.join("run.lease"), dir.join("run.anyone"));
        Self { fs, lease, anyone, journal: Journal::new(dir, fs, root) }
    }

    /// Sets `wanted` until [`Self::restore`].
    ///
    /// # Errors
    /// The journal or the kernel refuses the write.
    pub fn keep(&self, wanted: &Weights) -> anyhow::Result<Vec<Recorded>> {
        weights::apply(&self.journal, self.fs, KEPT, wanted).context("can't set weights")
    }

    /// Takes a lease on the current weights.
    ///
    /// `None` if its file can't be opened: then no run has set weights, or their end is not to be delayed by this user.
    #[must_use]
    pub fn rely(&self) -> Option<ForARun> {
        let lease = Turn::wait(&self.lease).and_then(|turn| turn.take());
        lease.or_else(|_| Lease::of_anyone(&self.anyone)).ok().map(ForARun)
    }

    /// Sets `wanted` for one run.
    ///
    /// # Errors
    /// Another run holds a lease on the current weights; the journal or the kernel refuses the write.
    pub fn for_a_run(&self, wanted: &Weights) -> anyhow::Result<(Vec<Recorded>, ForARun)> {
        self.journal.make_dir()?;
        let turn = Turn::wait(&self.lease)?;
        let lease = turn.take()?;
        anyhow::ensure!(turn.is_only(&lease)?, "{USED}");
        Lease::make_for_anyone(&self.anyone)?;
        Lease::is_free_of_anyone(&self.anyone).context(USED)?;
        // Weights left by a killed run are not the state to restore later.
        self.journal.restore(FOR_A_RUN, OnConflict::Refuse)?;
        let written = weights::apply(&self.journal, self.fs, FOR_A_RUN, wanted)
            .context("can't set weights")?;
        Ok((written, ForARun(lease)))
    }

    /// Ends a run's lease; the last run restores the weights.
    ///
    /// # Errors
    /// A turn that does not come, or a failed restore.
    pub fn end(&self, run: &ForARun) -> anyhow::Result<Restored> {
        let turn = Turn::wait(&self.lease).context("the weights stay as this run has set them")?;
        if turn.is_only(&run.0)? {
            return Ok(self.journal.restore(FOR_A_RUN, OnConflict::Refuse)?);
        }
        Ok(Restored::default())
    }

    /// Restores weights that were set to stay, and those left by killed runs. Runs that still use theirs keep them, unless
    /// `on_conflict` is to overwrite.
    ///
    /// # Errors
    /// A failed restore.
    pub fn restore(&self, on_conflict: OnConflict) -> anyhow::Result<Restored> {
        let mut report = Restored::default();
        let pending = || self.journal.pending(FOR_A_RUN).is_ok_and(|pending| !pending.is_empty());
        match self.is_free() {
            // No lease has been taken.
            _ if !self.lease.exists() => {}
            Ok(true) => report = self.journal.restore(FOR_A_RUN, on_conflict)?,
            _ if on_conflict == OnConflict::Overwrite => {
                report = self.journal.restore(FOR_A_RUN, on_conflict)?;
            }
            Ok(false) if pending() => output::note(
                "a `nearfar run -w auto` still uses the weights it has set, so they stay; --overwrite restores the previous ones regardless",
            ),
            Err(error) if pending() => output::note(format_args!(
                "{error}, so the weights that a `nearfar run -w auto` has set stay; --overwrite restores the previous ones regardless"
            )),
            _ => {}
        }
        report.add(self.journal.restore(KEPT, on_conflict)?);
        Ok(report)
    }

    /// The results that [`Self::restore`] would have now, if no run uses the weights.
    ///
    /// # Errors
    /// The journal can't be read.
    pub fn planned(&self, on_conflict: OnConflict) -> anyhow::Result<Restored> {
        let mut report = self.journal.planned(FOR_A_RUN, on_conflict)?;
        report.add(self.journal.planned(KEPT, on_conflict)?);
        Ok(report)
    }

    /// Whether no run holds a lease.
    fn is_free(&self) -> Result<bool, LockError> {
        let turn = Turn::wait(&self.lease)?;
        let lease = turn.take()?;
        turn.is_only(&lease)
    }

    /// The changes in the journal that have not been restored.
    ///
    /// # Errors
    /// The journal can't be read.
    pub fn pending(&self) -> anyhow::Result<Vec<Recorded>> {
        let mut pending = self.journal.pending(KEPT)?;
        pending.extend(self.journal.pending(FOR_A_RUN)?);
        Ok(pending)
    }
}
