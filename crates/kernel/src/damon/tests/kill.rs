//! DAMON under SIGKILL: whenever a session's process dies, the next start restores the former state, file by file.
//!
//! The victim is this test binary, started again with an environment variable; it starts, changes and stops sessions
//! endlessly on a fake kernel with its files on disk: each write is atomic, as in sysfs. It is killed at each of its
//! writes, before and after, and at pseudo-random moments in between (while journaling, reading, ...).

use std::fs;
use std::path::{Path, PathBuf};

use crate::damon::spec::{Action, AddrRange, Destination, Filter, FilterType, Kdamond, Scheme};
use crate::damon::{DamonStat, KDAMONDS, Session, recover, room};
use crate::fake::crash_at_write::{self, CrashAtWrite, Death, Victim};
use crate::fake::{Damon, FakeFs};
use crate::fs::{Entry, Fs, FsError};
use crate::journal::{Journal, OnConflict};
use nearfar_topology::{NodeId, Tree};

const VICTIM: Victim = Victim("damon::tests::kill::victim");

/// The fake kernel with its files on disk.
struct OnDisk {
    file: PathBuf,
    now: FakeFs,
}

impl OnDisk {
    fn open(root: &Path, death: Death) -> CrashAtWrite<Self> {
        let file = root.join("system.tree");
        let tree = Tree::parse(&fs::read_to_string(&file).unwrap());
        CrashAtWrite::new(Self { file, now: FakeFs::with_damon(Damon::Linux7_2, tree) }, death)
    }
}

impl Fs for OnDisk {
    fn read(&self, path: &str) -> Result<Option<String>, FsError> {
        self.now.read(path)
    }

    fn write(&self, path: &str, text: &str) -> Result<(), FsError> {
        let answer = self.now.write(path, text);
        let new = self.file.with_extension("new");
        fs::write(&new, self.now.tree().record()).unwrap();
        fs::rename(&new, &self.file).unwrap();
        answer
    }

    fn list(&self, path: &str) -> Result<Option<Vec<Entry>>, FsError> {
        self.now.list(path)
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

/// One round of the victim's work.
fn one_round(journal: &Journal<'_>, fs: &dyn Fs, round: u64) {
    let specs = [spec(0), spec(1)];
    let mut session = Session::start_with_room(fs, journal, &specs, 3, DamonStat::Pause).unwrap();
    for index in [0, 1] {
        session
            .adjust(index, |kdamond| kdamond.context.schemes[0].quotas.bytes = round + 1)
            .unwrap();
        session.stats(index).unwrap();
    }
    session.adjust(1, |kdamond| kdamond.context.schemes.push(Scheme::new(Action::Stat))).unwrap();
    assert_eq!(session.add(&spec(0)).unwrap(), Some(2));
    // The place of a kdamond that has ended can be used again.
    fs.write(&format!("{KDAMONDS}/0/state"), "off").unwrap();
    assert_eq!(session.add(&spec(1)).unwrap(), Some(0));
    session.stop().unwrap();
}

#[test]
fn victim() {
    let Some((root, death)) = Victim::told() else { return };
    let fs = OnDisk::open(&root, death);
    let journal = Journal::new(root.join("journal"), &fs, "/");
    Victim::begins(&root);
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

/// Recovers as the next start would; all files must have their former contents, and no batch may be left.
fn assert_recovers(root: &Path, when: &str) {
    let fs = OnDisk::open(root, Death::Never);
    let journal = Journal::new(root.join("journal"), &fs, "/");
    let planned = room::planned(&journal, &fs, 3, DamonStat::Pause).unwrap();
    let report = recover(&journal, OnConflict::Refuse).unwrap();
    assert_eq!(planned, room::make_room(&fs, 3, DamonStat::Pause).unwrap(), "killed {when}");
    assert_eq!(report.conflicts, [], "killed {when}");
    assert_eq!(fs.inner().now.tree(), FakeFs::damon(Damon::Linux7_2).tree(), "killed {when}");
    assert_eq!(crash_at_write::batches_left(&root.join("journal")), 0, "killed {when}");
}

/// Number of writes in one round.
fn writes_of_a_round() -> u32 {
    let machine = machine();
    let fs = OnDisk::open(machine.path(), Death::Never);
    one_round(&Journal::new(machine.path().join("journal"), &fs, "/"), &fs, 0);
    fs.writes()
}

#[test]
fn killed_at_any_of_its_writes_a_session_leaves_nothing_behind() {
    let round = writes_of_a_round();
    assert!(round > 150, "{round}");
    // The first and the last writes are journaled; those between are similar, so a few of them suffice.
    let telling = |write: &u32| *write <= 6 || *write + 12 >= round || write.is_multiple_of(19);
    for write in (1..=round + 3).filter(telling) {
        for death in [Death::Before(write), Death::After(write)] {
            let machine = machine();
            VICTIM.dies(machine.path(), death);
            assert_recovers(machine.path(), &format!("{death:?}"));
        }
    }
}

#[test]
fn killed_at_any_moment_a_session_leaves_nothing_behind() {
    for spins in crash_at_write::moments(0x51_7cc1_b727, 100, 8_000_000) {
        let machine = machine();
        VICTIM.is_killed_after(machine.path(), spins);
        assert_recovers(machine.path(), &format!("after {spins} spins"));
    }
}

#[test]
fn recovering_may_itself_be_killed_and_carried_on() {
    let machine = machine();
    let round = writes_of_a_round();
    // The last writes restore; each later victim restores the rest left by the previous one.
    let (at, then) = (Death::After(round - 4), Death::After(1));
    for death in [at, then, Death::Before(2), Death::After(2), then] {
        VICTIM.dies(machine.path(), death);
    }
    assert_recovers(machine.path(), "five times over while putting back");
    // DAMON can be used again.
    let fs = OnDisk::open(machine.path(), Death::Never);
    one_round(&Journal::new(machine.path().join("journal"), &fs, "/"), &fs, 0);
    assert_recovers(machine.path(), "not at all");
}

#[test]
fn without_recovery_the_kill_would_have_been_seen() {
    // The canary: these tests can fail.
    let machine = machine();
    VICTIM.dies(machine.path(), Death::After(3));
    let fs = OnDisk::open(machine.path(), Death::Never);
    assert_ne!(fs.inner().now.tree(), FakeFs::damon(Damon::Linux7_2).tree());
}
