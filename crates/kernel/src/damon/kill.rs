//! DAMON under SIGKILL: whenever a session's process dies, the next start finds everything as it was, file by file.
//!
//! The victim is this test binary again, told by the environment to start, change and stop sessions without end, on a
//! fake kernel whose files are kept on disk: each write happens whole or not at all, as sysfs has it. It is killed at
//! each of its writes, before and after, and at moments drawn from a seed in between (while journaling, reading, ...).

use std::cell::Cell;
use std::fs;
use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::damon::spec::{Action, AddrRange, Destination, Filter, FilterType, Kdamond, Scheme};
use crate::damon::{DamonStat, Session, recover};
use crate::fake::{Damon, FakeFs};
use crate::fs::{Entry, Fs, FsError};
use crate::journal::{Journal, OnConflict};
use nearfar_topology::{NodeId, Tree};

/// The fake kernel with its files on disk, which can kill its own process.
struct OnDisk {
    file: PathBuf,
    now: FakeFs,
    /// Writes left until we die; dying after the write if `after`.
    left: Cell<u32>,
    after: bool,
}

impl OnDisk {
    fn new(root: &Path, left: u32, after: bool) -> Self {
        let file = root.join("system.tree");
        let tree = Tree::parse(&fs::read_to_string(&file).unwrap());
        let now = FakeFs::with_damon(Damon::Linux7_2, tree);
        Self { file, now, left: Cell::new(left), after }
    }
}

impl Fs for OnDisk {
    fn read(&self, path: &str) -> Result<Option<String>, FsError> {
        self.now.read(path)
    }

    fn write(&self, path: &str, text: &str) -> Result<(), FsError> {
        self.left.set(self.left.get() - 1);
        let dying = self.left.get() == 0;
        if dying && !self.after {
            die();
        }
        let answer = self.now.write(path, text);
        let new = self.file.with_extension("new");
        fs::write(&new, self.now.tree().record()).unwrap();
        fs::rename(&new, &self.file).unwrap();
        if dying {
            die();
        }
        answer
    }

    fn list(&self, path: &str) -> Result<Option<Vec<Entry>>, FsError> {
        self.now.list(path)
    }
}

fn die() -> ! {
    let me = rustix::process::getpid();
    rustix::process::kill_process(me, rustix::process::Signal::KILL).unwrap();
    loop {
        std::hint::spin_loop();
    }
}

fn spec(node: u16) -> Kdamond {
    let start = u64::from(node) << 32;
    let mut kdamond = Kdamond::physical(&[AddrRange { start, end: start + (1 << 30) }]);
    kdamond.context.schemes = vec![Scheme {
        destination: Destination::Node(NodeId(1 - node)),
        filters: vec![Filter { what: FilterType::Anon, matching: true, allow: false }],
        ..Scheme::new(Action::MigrateCold)
    }];
    kdamond
}

/// What the victim does, over and over.
fn one_round(journal: &Journal<'_>, fs: &dyn Fs, round: u64) {
    let specs = [spec(0), spec(1)];
    let mut session = Session::start(fs, journal, &specs, DamonStat::Pause).unwrap();
    for index in [0, 1] {
        session
            .adjust(index, |kdamond| kdamond.context.schemes[0].quotas.bytes = round + 1)
            .unwrap();
        session.stats(index).unwrap();
    }
    session.adjust(1, |kdamond| kdamond.context.schemes.push(Scheme::new(Action::Stat))).unwrap();
    session.stop().unwrap();
}

#[test]
fn victim() {
    let Some(root) = std::env::var_os("NEARFAR_TEST_VICTIM").map(PathBuf::from) else { return };
    let left = std::env::var("NEARFAR_TEST_WRITES").unwrap().parse().unwrap();
    let after = std::env::var_os("NEARFAR_TEST_AFTER").is_some();
    let fs = OnDisk::new(&root, left, after);
    let journal = Journal::new(root.join("journal"), &fs, "/");
    fs::write(root.join("ready"), "").unwrap();
    // The one line the parent waits for.
    println!("ready");
    for round in 0.. {
        one_round(&journal, &fs, round);
    }
}

fn machine() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let fresh = FakeFs::damon(Damon::Linux7_2).tree();
    fs::write(dir.path().join("system.tree"), fresh.record()).unwrap();
    dir
}

fn start(root: &Path, writes: u32, after: bool) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["damon::kill::victim", "--exact", "--nocapture"]);
    command.env("NEARFAR_TEST_VICTIM", root).env("NEARFAR_TEST_WRITES", writes.to_string());
    if after {
        command.env("NEARFAR_TEST_AFTER", "1");
    }
    command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// Recovers as the next start would; every file must be there and read as before, and no batch may be left.
fn assert_recovers(root: &Path, when: &str) {
    let fs = OnDisk::new(root, u32::MAX, false);
    let journal = Journal::new(root.join("journal"), &fs, "/");
    let report = recover(&journal, OnConflict::Refuse).unwrap();
    assert_eq!(report.conflicts, [], "killed {when}");
    assert_eq!(fs.now.tree(), FakeFs::damon(Damon::Linux7_2).tree(), "killed {when}");
    let left = fs::read_dir(root.join("journal")).into_iter().flatten();
    let batches =
        left.filter(|item| item.as_ref().unwrap().file_name().to_string_lossy().ends_with(".json"));
    assert_eq!(batches.count(), 0, "killed {when}");
}

/// How many writes one round makes.
fn writes_of_a_round() -> u32 {
    let machine = machine();
    let fs = OnDisk::new(machine.path(), u32::MAX, false);
    one_round(&Journal::new(machine.path().join("journal"), &fs, "/"), &fs, 0);
    u32::MAX - fs.left.get()
}

#[test]
fn killed_at_any_of_its_writes_a_session_leaves_nothing_behind() {
    let round = writes_of_a_round();
    assert!(round > 150, "{round}");
    // The first writes and the last are the journaled ones; those between are alike, so a few will do.
    let telling = |write: &u32| *write <= 6 || *write + 12 >= round || write.is_multiple_of(19);
    for write in (1..=round + 3).filter(telling) {
        for after in [false, true] {
            let machine = machine();
            let status = start(machine.path(), write, after).wait_with_output().unwrap().status;
            assert_eq!(status.signal(), Some(9), "the victim must die of its own kill");
            assert_recovers(machine.path(), &format!("at write {write}, after it: {after}"));
        }
    }
}

#[test]
fn killed_at_any_moment_a_session_leaves_nothing_behind() {
    let mut seed = 0x51_7cc1_b727_u64;
    for turn in 0..100 {
        let machine = machine();
        let mut victim = start(machine.path(), u32::MAX, false);
        let mut byte = [0];
        let mut output = victim.stdout.take().unwrap();
        while !machine.path().join("ready").exists() && output.read(&mut byte).unwrap() > 0 {}
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(turn | 1);
        let spins = (seed >> 33) % 8_000_000;
        for _ in 0..spins {
            std::hint::spin_loop();
        }
        victim.kill().unwrap();
        assert_eq!(victim.wait().unwrap().signal(), Some(9));
        assert_recovers(machine.path(), &format!("in turn {turn} after {spins} spins"));
    }
}

#[test]
fn recovering_may_itself_be_killed_and_carried_on() {
    let machine = machine();
    let round = writes_of_a_round();
    // The last writes put back; the victims after the first put back what the one before left.
    for (write, after) in [(round - 4, true), (1, true), (2, false), (2, true), (1, true)] {
        let status = start(machine.path(), write, after).wait_with_output().unwrap().status;
        assert_eq!(status.signal(), Some(9));
    }
    assert_recovers(machine.path(), "five times over while putting back");
    // And it can be used again.
    let fs = OnDisk::new(machine.path(), u32::MAX, false);
    one_round(&Journal::new(machine.path().join("journal"), &fs, "/"), &fs, 0);
    assert_recovers(machine.path(), "not at all");
}

#[test]
fn without_recovery_the_kill_would_have_been_seen() {
    // The canary: these tests can fail.
    let machine = machine();
    start(machine.path(), 3, true).wait_with_output().unwrap();
    let fs = OnDisk::new(machine.path(), u32::MAX, false);
    assert_ne!(fs.now.tree(), FakeFs::damon(Damon::Linux7_2).tree());
}
