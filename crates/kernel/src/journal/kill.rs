//! The journal under SIGKILL: whenever a writer dies, one restore gives back exactly what was there before.
//!
//! The victim is this test binary again, told by the environment to change and restore without end. It is killed at
//! every write it makes, before and after, and at moments drawn from a seed in between (while syncing, renaming, ...).

#![expect(clippy::unwrap_used, reason = "tests stop where something unexpected happens")]

use std::cell::Cell;
use std::fs;
use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nearfar_kernel::fs::{Entry, Fs, FsError};
use nearfar_kernel::journal::{Change, Journal, OnConflict};

const FILES: [(&str, &str); 3] = [("sys/a", "1"), ("sys/b", "true"), ("sys/c", "old words")];

/// Files whose writes happen whole or not at all, as sysfs has it, and that can kill their own process.
struct Whole {
    root: PathBuf,
    /// Writes left until we die; dying after the write if `after`.
    left: Cell<u32>,
    after: bool,
}

impl Whole {
    fn new(root: &Path, left: u32, after: bool) -> Self {
        Self { root: root.into(), left: Cell::new(left), after }
    }
}

impl Fs for Whole {
    fn read(&self, path: &str) -> Result<Option<String>, FsError> {
        Ok(fs::read_to_string(self.root.join(path)).ok())
    }

    fn write(&self, path: &str, text: &str) -> Result<(), FsError> {
        self.left.set(self.left.get() - 1);
        let dying = self.left.get() == 0;
        if dying && !self.after {
            die();
        }
        let new = self.root.join("new");
        fs::write(&new, text).unwrap();
        fs::rename(&new, self.root.join(path)).unwrap();
        if dying {
            die();
        }
        Ok(())
    }

    fn list(&self, _path: &str) -> Result<Option<Vec<Entry>>, FsError> {
        Ok(None)
    }
}

fn die() -> ! {
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
        .unwrap();
    loop {
        std::hint::spin_loop();
    }
}

fn journal<'a>(root: &Path, fs: &'a dyn Fs) -> Journal<'a> {
    Journal::new(root.join("journal"), fs, root)
}

/// What the victim does, over and over: two batches, the second on top of the first, another owner's, and back.
fn one_round(root: &Path, fs: &dyn Fs, round: u32) {
    let journal = journal(root, fs);
    let change = |path: &str, text: String| Change { path: path.into(), new: text };
    let both = [change("sys/a", format!("a{round}")), change("sys/b", format!("b{round}"))];
    journal.change("weights", &both).unwrap();
    journal.change("weights", &[change("sys/a", format!("aa{round}"))]).unwrap();
    journal
        .change("run", &[change("sys/a", format!("run{round}")), change("sys/c", "new".into())])
        .unwrap();
    journal.restore("weights", OnConflict::Refuse).unwrap();
    journal.restore("run", OnConflict::Refuse).unwrap();
}

#[test]
fn victim() {
    let Some(root) = std::env::var_os("NEARFAR_TEST_VICTIM").map(PathBuf::from) else { return };
    let left = std::env::var("NEARFAR_TEST_WRITES").unwrap().parse().unwrap();
    let after = std::env::var_os("NEARFAR_TEST_AFTER").is_some();
    let fs = Whole::new(&root, left, after);
    fs::write(root.join("ready"), "").unwrap();
    // The one line the parent waits for.
    println!("ready");
    for round in 0.. {
        one_round(&root, &fs, round);
    }
}

fn machine() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("sys")).unwrap();
    for (path, text) in FILES {
        fs::write(dir.path().join(path), text).unwrap();
    }
    dir
}

fn start(root: &Path, writes: u32, after: bool) -> std::process::Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["victim", "--exact", "--nocapture"]);
    command.env("NEARFAR_TEST_VICTIM", root).env("NEARFAR_TEST_WRITES", writes.to_string());
    if after {
        command.env("NEARFAR_TEST_AFTER", "1");
    }
    command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// Restores as the next start would; everything must read as before, and no batch may be left.
fn assert_recovers(root: &Path, when: &str) {
    let fs = Whole::new(root, u32::MAX, false);
    let journal = journal(root, &fs);
    for by in ["run", "weights"] {
        let report = journal.restore(by, OnConflict::Refuse).unwrap();
        assert_eq!(report.conflicts, [], "killed {when}");
    }
    for (path, text) in FILES {
        assert_eq!(fs::read_to_string(root.join(path)).unwrap(), text, "{path}, killed {when}");
    }
    let left = fs::read_dir(root.join("journal")).into_iter().flatten();
    let batches =
        left.filter(|item| item.as_ref().unwrap().file_name().to_string_lossy().ends_with(".json"));
    assert_eq!(batches.count(), 0, "killed {when}");
}

#[test]
fn killed_at_any_of_its_writes_a_victim_leaves_nothing_behind() {
    // One round makes 9 writes or so; two rounds cover a journal that was used before.
    for write in 1..=20 {
        for after in [false, true] {
            let machine = machine();
            let status = start(machine.path(), write, after).wait_with_output().unwrap().status;
            assert_eq!(status.signal(), Some(9), "the victim must die of its own kill");
            assert_recovers(machine.path(), &format!("at write {write}, after it: {after}"));
        }
    }
}

#[test]
fn killed_at_any_moment_a_victim_leaves_nothing_behind() {
    let mut seed = 0x9e37_79b9_u64;
    for turn in 0..60 {
        let machine = machine();
        let mut victim = start(machine.path(), u32::MAX, false);
        let mut byte = [0];
        let mut output = victim.stdout.take().unwrap();
        while !machine.path().join("ready").exists() && output.read(&mut byte).unwrap() > 0 {}
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(turn | 1);
        let spins = (seed >> 33) % 2_000_000;
        for _ in 0..spins {
            std::hint::spin_loop();
        }
        victim.kill().unwrap();
        assert_eq!(victim.wait().unwrap().signal(), Some(9));
        assert_recovers(machine.path(), &format!("in turn {turn} after {spins} spins"));
    }
}

#[test]
fn restoring_may_itself_be_killed_and_carried_on() {
    let machine = machine();
    // The first 5 writes of a round are the changes; from the 6th on it restores.
    for write in 6..=9 {
        let status =
            start(machine.path(), write, write % 2 == 0).wait_with_output().unwrap().status;
        assert_eq!(status.signal(), Some(9));
    }
    assert_recovers(machine.path(), "four times over while restoring");
}

#[test]
fn without_a_restore_the_kill_would_have_been_seen() {
    // The canary: these tests can fail.
    let machine = machine();
    start(machine.path(), 3, true).wait_with_output().unwrap();
    assert_ne!(fs::read_to_string(machine.path().join("sys/a")).unwrap(), "1");
}
