//! Tests under SIGKILL: a file system that kills its process at its n-th write, and the victims that use it.
//!
//! A victim is the test binary again, with an environment variable that makes it run one test, `victim`, which works
//! without end on a [`CrashAtWrite`] file system. It kills itself at a write, before it or after it, or is killed by its
//! parent at a moment drawn from a seed (while journaling, syncing, reading, ...). The work of victims, and the checks
//! afterwards, are in `journal/tests/kill.rs`, `damon/tests/kill.rs` and similar files.

use std::cell::Cell;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Signal, getpid, kill_process};

use crate::fs::{Entry, Fs, FsError};

const ROOT: &str = "NEARFAR_TEST_VICTIM";
const WRITES: &str = "NEARFAR_TEST_WRITES";
const AFTER: &str = "NEARFAR_TEST_AFTER";
/// The file that reports that a victim has started.
const READY: &str = "ready";

/// The write at which a victim dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// Instead of its n-th write.
    Before(u32),
    /// Right after its n-th write.
    After(u32),
    /// Never.
    Never,
}

/// A file system that kills its process.
#[derive(Debug)]
pub struct CrashAtWrite<F> {
    inner: F,
    death: Death,
    writes: Cell<u32>,
}

impl<F: Fs> CrashAtWrite<F> {
    /// The same files, with death at some write.
    pub fn new(inner: F, death: Death) -> Self {
        Self { inner, death, writes: Cell::new(0) }
    }

    /// The underlying file system.
    pub fn inner(&self) -> &F {
        &self.inner
    }

    /// The number of writes so far.
    pub fn writes(&self) -> u32 {
        self.writes.get()
    }
}

impl<F: Fs> Fs for CrashAtWrite<F> {
    fn read(&self, path: &str) -> Result<Option<String>, FsError> {
        self.inner.read(path)
    }

    fn write(&self, path: &str, text: &str) -> Result<(), FsError> {
        self.writes.set(self.writes.get() + 1);
        if self.death == Death::Before(self.writes.get()) {
            die();
        }
        let answer = self.inner.write(path, text);
        if self.death == Death::After(self.writes.get()) {
            die();
        }
        answer
    }

    fn list(&self, path: &str) -> Result<Option<Vec<Entry>>, FsError> {
        self.inner.list(path)
    }
}

fn die() -> ! {
    kill_process(getpid(), Signal::KILL).expect("a process may kill itself");
    loop {
        std::hint::spin_loop();
    }
}

/// A test of this binary that runs in a separate process, by its full name.
#[derive(Clone, Copy, Debug)]
pub struct Victim(pub &'static str);

impl Victim {
    /// In the process of a victim: its directory and its death. `None` in any other.
    pub fn told() -> Option<(PathBuf, Death)> {
        let root = PathBuf::from(std::env::var_os(ROOT)?);
        let writes = std::env::var(WRITES).ok().and_then(|text| text.parse().ok());
        let death = match writes {
            None => Death::Never,
            Some(write) if std::env::var_os(AFTER).is_some() => Death::After(write),
            Some(write) => Death::Before(write),
        };
        Some((root, death))
    }

    /// Called by a victim at its start: random kills count from here.
    pub fn begins(root: &Path) {
        fs::write(root.join(READY), "").expect("a test may write into its directory");
        // The parent waits for a byte beyond the output of the harness.
        let _ = writeln!(std::io::stdout(), "ready");
    }

    fn start(self, root: &Path, death: Death) -> Child {
        let itself = std::env::current_exe().expect("a running test has a file");
        let mut command = Command::new(itself);
        command.args([self.0, "--exact", "--nocapture"]).env(ROOT, root);
        if let Death::Before(write) | Death::After(write) = death {
            command.env(WRITES, write.to_string());
        }
        if let Death::After(_) = death {
            command.env(AFTER, "1");
        }
        let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        child.expect("the test binary can be run once more")
    }

    /// Runs it in `root` until it has killed itself.
    ///
    /// # Panics
    /// If it ended in any other way, or was not to die at all.
    pub fn dies(self, root: &Path, death: Death) {
        assert_ne!(death, Death::Never, "it would be waited for without end");
        let ended = self.start(root, death).wait_with_output();
        killed(ended.expect("our own child can be waited for").status);
    }

    /// Runs it in `root` and kills it after `spins` spins of an empty loop.
    ///
    /// # Panics
    /// If it ended before.
    pub fn is_killed_after(self, root: &Path, spins: u64) {
        let mut child = self.start(root, Death::Never);
        let mut output = child.stdout.take().expect("its output was piped");
        let mut byte = [0];
        while !root.join(READY).exists() && output.read(&mut byte).is_ok_and(|got| got > 0) {}
        for _ in 0..spins {
            std::hint::spin_loop();
        }
        child.kill().expect("our own child can be killed");
        killed(child.wait().expect("our own child can be waited for"));
    }
}

fn killed(status: ExitStatus) {
    let signal = status.signal();
    assert_eq!(signal, Some(Signal::KILL.as_raw()), "a victim dies of SIGKILL, not by {status}");
}

/// `count` random numbers of spins below `below`, reproducible by the seed.
pub fn moments(seed: u64, count: u64, below: u64) -> impl Iterator<Item = u64> {
    (0..count).scan(seed, move |state, turn| {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(turn | 1);
        Some((*state >> 33) % below)
    })
}

/// Number of batches left in the journal in `dir`.
pub fn batches_left(dir: &Path) -> usize {
    let held = fs::read_dir(dir).into_iter().flatten().flatten();
    held.filter(|item| item.file_name().to_string_lossy().ends_with(".json")).count()
}
