//! Leases: marks of programs that still use a temporary setting.
//!
//! A lease is a shared lock (flock) on a file. It ends with its holder, however that ends, so no lease is ever stale.
//! Taking one, and checking whether one's own is the only one, happens in a [`Turn`], one process at a time: so no
//! process joins while the only holder sets or undoes something.
//!
//! Only the user who may change the setting can hold these files: another user's lock would keep a setting changed.
//! Programs of other users that rely on a setting take a [`Lease::of_anyone`] on a second file, which is looked at only
//! before the setting is changed, never before it is restored.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::lock::{Lock, LockError, PATIENCE, failed, open, wait};

/// The right to take leases and to count them; others wait until it is dropped.
#[derive(Debug)]
pub struct Turn {
    leases: PathBuf,
    _lock: Lock,
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
        let lock = Lock::take(&file.with_extension("turn"), PATIENCE)?;
        Ok(Self { leases: file.into(), _lock: lock })
    }

    /// Takes a lease.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn take(&self) -> Result<Lease, LockError> {
        Lease::on(open(&self.leases)?, &self.leases)
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

impl Lease {
    /// Takes a lease as any user, on a file that [`Self::make_for_anyone`] has created.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn of_anyone(path: &Path) -> Result<Self, LockError> {
        Self::on(File::open(path).map_err(failed("open", path))?, path)
    }

    /// Creates the file for leases of all users if it is missing.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn make_for_anyone(path: &Path) -> Result<(), LockError> {
        File::options().append(true).create(true).open(path).map_err(failed("open", path))?;
        Ok(())
    }

    /// Succeeds if no user holds a lease on this file.
    ///
    /// # Errors
    /// [`LockError::Held`] names a holder.
    pub fn is_free_of_anyone(path: &Path) -> Result<(), LockError> {
        let file = File::open(path).map_err(failed("open", path))?;
        wait(&file, path, Duration::ZERO, File::try_lock)
    }

    fn on(file: File, path: &Path) -> Result<Self, LockError> {
        wait(&file, path, PATIENCE, File::try_lock_shared)?;
        Ok(Self { file, path: path.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_reports_if_it_is_the_only_one() {
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
    fn shared_leases_are_separate_from_those_that_keep_a_setting() {
        let dir = tempfile::tempdir().unwrap();
        let (file, anyone) = (dir.path().join("run.lease"), dir.path().join("run.anyone"));
        assert!(Lease::of_anyone(&anyone).is_err(), "not created by who only relies");
        Lease::make_for_anyone(&anyone).unwrap();
        let other = Lease::of_anyone(&anyone).unwrap();
        let error = Lease::is_free_of_anyone(&anyone).unwrap_err().to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        let turn = Turn::wait(&file).unwrap();
        assert!(turn.is_only(&turn.take().unwrap()).unwrap());
        drop(other);
        Lease::is_free_of_anyone(&anyone).unwrap();
    }

    #[test]
    fn lease_files_are_private_to_their_owner() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("run.lease");
        let turn = Turn::wait(&file).unwrap();
        let _lease = turn.take().unwrap();
        for path in [file.with_extension("turn"), file] {
            let mode = path.metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{}", path.display());
        }
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
    fn a_held_turn_returns_an_error_with_its_holder() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("run.lease");
        let _kept = Turn::wait(&file).unwrap();
        let error = Turn::wait(&file).unwrap_err().to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
    }
}
