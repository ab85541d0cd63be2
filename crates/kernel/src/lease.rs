//! A lease: the mark that a program still makes use of something set for its time only.
//!
//! A lease is a shared lock (flock) on a file. It ends with its holder, however that ends, so no lease is ever stale.
//! Whoever gives one back learns whether it was the last; only then may what was set be undone.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

/// A held lease; dropping it gives it back.
#[derive(Debug)]
pub struct Lease(File);

impl Lease {
    /// Takes a lease on `file`, made if it is not there. Waits while someone who gave back the last one cleans up.
    ///
    /// # Errors
    /// The errno, if the file can be neither opened nor made.
    pub fn take(file: &Path) -> io::Result<Self> {
        let opened = File::open(file)
            .or_else(|_| File::options().read(true).append(true).create(true).open(file))?;
        opened.lock_shared()?;
        Ok(Self(opened))
    }

    /// Gives the lease back. If no one else holds one, nobody can take one until what this returns is dropped.
    ///
    /// # Errors
    /// The errno of flock, other than that others hold one.
    pub fn last(self) -> io::Result<Option<Sole>> {
        match self.0.try_lock() {
            Ok(()) => Ok(Some(Sole { _file: self.0 })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

/// No one holds a lease, and no one can take one while this lives.
#[derive(Debug)]
pub struct Sole {
    _file: File,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_to_give_back_learns_so() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("lease");
        let (first, second) = (Lease::take(&file).unwrap(), Lease::take(&file).unwrap());
        assert!(first.last().unwrap().is_none());
        let sole = second.last().unwrap();
        assert!(sole.is_some());
        assert!(
            File::open(&file).unwrap().try_lock_shared().is_err(),
            "nobody takes one meanwhile"
        );
        drop(sole);
        Lease::take(&file).unwrap();
    }
}
