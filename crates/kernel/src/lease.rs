//! Leases: marks of programs that still use a temporary setting.
//!
//! A lease is a shared lock (flock) on a file. It ends with its holder, however that ends, so no lease is ever stale.
//! Taking one, and checking whether one's own is the only one, happens in a [`Turn`], one process at a time: so no
//! process joins while the only holder sets or undoes something.
//!
//! Every user may take a lease, and can therefore hold the files without limit. Waiting ends after [`PATIENCE`] with an
//! error that names a holder; callers then continue without the lease.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::lock::{LockError, failed, wait};

/// Timeout of waiting for a turn or a lease. Turns take milliseconds.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// The right to take leases and to count them; others wait until it is dropped.
#[derive(Debug)]
pub struct Turn {
    leases: PathBuf,
    _lock: File,
}

/// A held lease; dropping it releases it.
#[derive(Debug)]
pub struct Lease {
    file: File,
    path: PathBuf,
}

impl Turn {
    /// Waits for a turn with the leases on `file`. A second file beside it is for the turn itself; both are created if
    /// necessary.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn wait(file: &Path) -> Result<Self, LockError> {
        let path = file.with_extension("turn");
        let lock = open(&path)?;
        wait(&lock, &path, PATIENCE, File::try_lock)?;
        Ok(Self { leases: file.into(), _lock: lock })
    }

    /// Takes a lease.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn take(&self) -> Result<Lease, LockError> {
        let file = open(&self.leases)?;
        wait(&file, &self.leases, PATIENCE, File::try_lock_shared)?;
        Ok(Lease { file, path: self.leases.clone() })
    }

    /// Whether `lease` is the only one.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn is_only(&self, lease: &Lease) -> Result<bool, LockError> {
        let only = match lease.file.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => false,
            Err(TryLockError::Error(source)) => return Err(failed("lock", &lease.path)(source)),
        };
        // Trying may have released the shared lock. No process can have taken an exclusive one meanwhile: this one has
        // the turn.
        wait(&lease.file, &lease.path, PATIENCE, File::try_lock_shared)?;
        Ok(only)
    }
}

/// Opens for reading, which suffices for flock and is all that other users may do; creates the file if it is missing.
fn open(path: &Path) -> Result<File, LockError> {
    let made = || File::options().read(true).append(true).create(true).open(path);
    File::open(path).or_else(|_| made()).map_err(failed("open", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_holder_learns_so() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("run.lease");
        let turn = Turn::wait(&file).unwrap();
        let (first, second) = (turn.take().unwrap(), turn.take().unwrap());
        assert!(!turn.is_only(&first).unwrap() && !turn.is_only(&second).unwrap());
        drop(first);
        assert!(turn.is_only(&second).unwrap());
        let third = turn.take().unwrap();
        assert!(!turn.is_only(&second).unwrap(), "looking does not give up the lease");
        drop(second);
        assert!(turn.is_only(&third).unwrap());
    }

    #[test]
    fn others_wait_for_their_turn() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("run.lease");
        let turn = Turn::wait(&file).unwrap();
        assert!(File::open(file.with_extension("turn")).unwrap().try_lock().is_err());
        drop(turn);
        Turn::wait(&file).unwrap();
    }

    #[test]
    fn a_turn_that_another_keeps_ends_in_an_error_that_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("run.lease");
        let _kept = Turn::wait(&file).unwrap();
        let error = Turn::wait(&file).unwrap_err().to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
    }
}
