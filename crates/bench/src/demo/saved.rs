//! Restores machine-wide weights after a demo or benchmark, however it ends.
//!
//! `-w auto` without `--report` leaves the weights it set in place, as no parent of the program remains to restore
//! them. Here there is one.

use std::time::Duration;

use nearfar_kernel::fs::RootFs;
use nearfar_kernel::weights::{self, Current, WeightsError};

use super::line::Line;
use super::process::Launcher;
use nearfar_command::output;

/// Time limit of restoring.
const LIMIT: Duration = Duration::from_secs(60);

/// The previous weights; dropping it restores them.
#[derive(Debug)]
pub(crate) struct KeptWeights<'a> {
    launcher: Launcher<'a>,
    before: Option<Current>,
}

impl<'a> KeptWeights<'a> {
    /// Reads the weights; there are none on a kernel without weighted interleave.
    pub(crate) fn of(launcher: Launcher<'a>) -> anyhow::Result<Self> {
        Ok(Self { launcher, before: current()? })
    }

    /// The previous weights.
    pub(crate) fn before(&self) -> Option<&Current> {
        self.before.as_ref()
    }

    /// Restores them now, if they have changed.
    pub(crate) fn put_back(&self) -> anyhow::Result<()> {
        if current()? != self.before {
            let line = Line::words("nearfar weights --restore");
            self.launcher.run(&line, "restore.txt", LIMIT)?;
        }
        Ok(())
    }
}

impl Drop for KeptWeights<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.put_back() {
            output::note(format_args!("{error:#}; run nearfar weights --restore"));
        }
    }
}

fn current() -> anyhow::Result<Option<Current>> {
    match weights::read(&RootFs::live()?) {
        Ok(current) => Ok(Some(current)),
        Err(WeightsError::Unsupported) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
