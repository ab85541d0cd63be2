//! Leases: the marks of programs that still make use of something set for a time only.
//!
//! A lease is a shared lock (flock) on a file. It ends with its holder, however that ends, so no lease is ever stale.
//! Taking one, and looking whether one's own is the only one, is done in a [`Turn`], one process at a time: so nobody
//! joins while the only holder sets or undoes something.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// The right to take leases and to count them; others wait until it is dropped.
#[derive(Debug)]
pub struct Turn {
    leases: PathBuf,
    _lock: File,
}

/// A held lease; dropping it gives it back.
#[derive(Debug)]
pub struct Lease(File);

impl Turn {
    /// Waits for our turn with the leases on `file`. Beside it stands a file for the turn itself; both are made if need be.
    ///
    /// # Errors
    /// The errno, if a file can be neither opened nor made.
    pub fn wait(file: &Path) -> io::Result<Self> {
        let lock = open(&file.with_extension("turn"))?;
        lock.lock()?;
        Ok(Self { leases: file.into(), _lock: lock })
    }

    /// Takes a lease.
    ///
    /// # Errors
    /// The errno, if the file can be neither opened nor made.
    pub fn take(&self) -> io::Result<Lease> {
        let file = open(&self.leases)?;
        file.lock_shared()?;
        Ok(Lease(file))
    }

    /// Whether `lease` is the only one there is.
    ///
    /// # Errors
    /// The errno of flock.
    pub fn is_only(&self, lease: &Lease) -> io::Result<bool> {
        let only = match lease.0.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => false,
            Err(TryLockError::Error(error)) => return Err(error),
        };
        // Trying may have cost the shared lock. Nobody can have taken an exclusive one meanwhile: it is our turn.
        lease.0.lock_shared()?;
        Ok(only)
    }
}

/// Opens for reading, which is all that flock needs and all that other users may do; makes the file if it is not there.
fn open(file: &Path) -> io::Result<File> {
    File::open(file).or_else(|_| File::options().read(true).append(true).create(true).open(file))
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
}
