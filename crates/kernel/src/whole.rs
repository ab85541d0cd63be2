//! Atomic and durable file writes, and directories: one system call after another, each of which a test can make fail.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

/// One system call.
fn call<T>(call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    #[cfg(test)]
    faults::strike()?;
    call()
}

/// Writes `text` to the file `name` in `dir`: first as `new`, which replaces the file once it is on disk.
pub(crate) fn write(dir: &Path, new: &str, name: &str, text: &[u8]) -> io::Result<()> {
    let new = dir.join(new);
    let written = call(|| File::create(&new)).and_then(|mut file| {
        call(|| file.write_all(text))?;
        call(|| file.sync_all())
    });
    let replaced = written.and_then(|()| call(|| fs::rename(&new, dir.join(name))));
    // On a full disk its space is needed.
    replaced.inspect_err(|_| drop(fs::remove_file(&new)))?;
    call(|| File::open(dir)?.sync_all())
}

/// Removes the file `name` in `dir`.
pub(crate) fn remove(dir: &Path, name: &str) -> io::Result<()> {
    call(|| fs::remove_file(dir.join(name)))?;
    call(|| File::open(dir)?.sync_all())
}

/// Creates a directory readable by all, and its parents.
pub(crate) fn create_all(path: &Path) -> io::Result<()> {
    call(|| fs::DirBuilder::new().recursive(true).mode(0o755).create(path))
}

/// Creates a directory.
pub(crate) fn create_dir(path: &Path) -> io::Result<()> {
    call(|| fs::create_dir(path))
}

/// Removes an empty directory.
pub(crate) fn remove_dir(path: &Path) -> io::Result<()> {
    call(|| fs::remove_dir(path))
}

/// Failing calls, for tests: of this module, and writes through [`Failing`](faults::Failing).
#[cfg(test)]
pub(crate) mod faults {
    use std::cell::Cell;
    use std::io;

    use crate::fs::{Entry, Fs, FsError};

    /// The calls that fail: only the one with a number, or all from it on.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Fails {
        Once,
        FromThenOn,
    }

    thread_local! {
        /// Number of calls that succeed before the first failure, and whether that has happened.
        static PLAN: Cell<Option<(u32, Fails, bool)>> = const { Cell::new(None) };
    }

    /// For each number of a call that `act` makes: creates a system by `make`, acts on it with that call failing, and
    /// checks the outcome. Returns the number of calls.
    pub(crate) fn each<S, T>(
        fails: Fails,
        mut make: impl FnMut() -> S,
        mut act: impl FnMut(&S) -> T,
        mut check: impl FnMut(&S, T),
    ) -> u32 {
        for before in 0.. {
            let system = make();
            PLAN.set(Some((before, fails, false)));
            let outcome = act(&system);
            if PLAN.take().is_none_or(|(_, _, has_failed)| !has_failed) {
                return before;
            }
            check(&system, outcome);
        }
        0
    }

    /// Fails if it is this call's turn.
    pub(crate) fn strike() -> io::Result<()> {
        let Some((before, fails, has_failed)) = PLAN.get() else { return Ok(()) };
        if before > 0 || (has_failed && fails == Fails::Once) {
            PLAN.set(Some((before.saturating_sub(1), fails, has_failed)));
            return Ok(());
        }
        PLAN.set(Some((0, fails, true)));
        Err(rustix::io::Errno::NOSPC.into())
    }

    /// Files with writes that may fail.
    pub(crate) struct Failing<F>(pub(crate) F);

    impl<F: Fs> Fs for Failing<F> {
        fn read(&self, path: &str) -> Result<Option<String>, FsError> {
            self.0.read(path)
        }
        fn write(&self, path: &str, text: &str) -> Result<(), FsError> {
            let failed = |source| FsError::Call { call: "write", path: path.into(), source };
            strike().map_err(failed)?;
            self.0.write(path, text)
        }
        fn list(&self, path: &str) -> Result<Option<Vec<Entry>>, FsError> {
            self.0.list(path)
        }
    }
}
