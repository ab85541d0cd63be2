//! Who of this project runs DAMON: one at a time, by a file that is locked for as long.

use std::fs::{File, TryLockError};
use std::path::PathBuf;

use super::DamonError;
use crate::journal::Journal;

/// The lock of whoever runs DAMON. It is given back in so many words: a child just forked has the file open as well, and
/// closing ours alone would leave it locked until the child becomes another program.
#[derive(Debug)]
pub(super) struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // If that fails, it is released when the last copy is closed.
        let _ = self.0.unlock();
    }
}

/// Takes it.
pub(super) fn lock(journal: &Journal<'_>) -> Result<Lock, DamonError> {
    journal.make_dir()?;
    let path: PathBuf = journal.dir().join("damon.lock");
    let failed = |source| DamonError::Lock { path: path.clone(), source };
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(Lock(file)),
        Err(TryLockError::WouldBlock) => Err(DamonError::InUse { lock: path }),
        Err(TryLockError::Error(source)) => Err(failed(source)),
    }
}
