//! Tests under SIGKILL: a file system whose process dies at its n-th write, and the victims that use it.
//!
//! A victim is the test binary again, told by the environment to run one test, `victim`, which works without end on a
//! [`Mortal`] file system. It dies by its own hand at a write, before it or after it, or by its parent's at a moment
//! drawn from a seed (while journaling, syncing, reading, ...). Not here: what a victim does, and what has to be found
//! afterwards; those are `journal/kill.rs`, `damon/kill.rs` and their like.

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
/// The file that says that a victim has begun.
const READY: &str = "ready";

/// At which write a victim dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// Instead of its n-th write.
    Before(u32),
    /// Right after its n-th write.
    After(u32),
    /// At none.
    Never,
}

/// A file system that kills its process.
#[derive(Debug)]
pub struct Mortal<F> {
    inner: F,
    death: Death,
    writes: Cell<u32>,
}

impl<F: Fs> Mortal<F> {
    /// The same files, and death at some write of ours.
    pub fn new(inner: F, death: Death) -> Self {
        Self { inner, death, writes: Cell::new(0) }
    }

    /// What is below.
    pub fn inner(&self) -> &F {
        &self.inner
    }

    /// How many writes there were.
    pub fn writes(&self) -> u32 {
        self.writes.get()
    }
}

impl<F: Fs> Fs for Mortal<F> {
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

/// A test of this binary that is run as a process of its own, by its full name.
#[derive(Clone, Copy, Debug)]
pub struct Victim(pub &'static str);

impl Victim {
    /// In the process that was told to be a victim: its directory, and its death. In any other nothing.
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

    /// A victim says that it begins: killing it at a random moment starts counting from here.
    pub fn begins(root: &Path) {
        fs::write(root.join(READY), "").expect("a test may write into its directory");
        // The parent waits for a byte beyond what the harness prints.
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

    /// Lets it work in `root` until it has died of its own kill.
    ///
    /// # Panics
    /// If it ended in any other way, or was not to die at all.
    pub fn dies(self, root: &Path, death: Death) {
        assert_ne!(death, Death::Never, "it would be waited for without end");
        let ended = self.start(root, death).wait_with_output();
        killed(ended.expect("our own child can be waited for").status);
    }

    /// Lets it work in `root` and kills it after so many spins of an empty loop.
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

/// So many numbers of spins below `below`, the same ones for the same seed.
pub fn moments(seed: u64, count: u64, below: u64) -> impl Iterator<Item = u64> {
    (0..count).scan(seed, move |state, turn| {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(turn | 1);
        Some((*state >> 33) % below)
    })
}

/// Batches that a journal in `dir` still holds.
pub fn batches_left(dir: &Path) -> usize {
    let held = fs::read_dir(dir).into_iter().flatten().flatten();
    held.filter(|item| item.file_name().to_string_lossy().ends_with(".json")).count()
}
