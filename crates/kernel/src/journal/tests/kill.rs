//! The journal under SIGKILL: at whichever point a writer dies, one restore gives back exactly the old values.
//!
//! The victim is this test binary again, with an environment variable that makes it change and restore without end. It
//! is killed at every write it makes, before and after, and at moments drawn from a seed in between (while syncing,
//! renaming, ...).

use std::fs;
use std::path::{Path, PathBuf};

use super::super::{Change, Journal, OnConflict};
use crate::fake::crash_at_write::{self, CrashAtWrite, Death, Victim};
use crate::fs::{Entry, Fs, FsError};

const VICTIM: Victim = Victim("journal::tests::kill::victim");
const FILES: [(&str, &str); 3] = [("sys/a", "1"), ("sys/b", "true"), ("sys/c", "old words")];

/// Files whose writes are atomic, as in sysfs.
struct Whole(PathBuf);

impl Whole {
    fn open(root: &Path, death: Death) -> CrashAtWrite<Self> {
        CrashAtWrite::new(Self(root.into()), death)
    }
}

impl Fs for Whole {
    fn read(&self, path: &str) -> Result<Option<String>, FsError> {
        Ok(fs::read_to_string(self.0.join(path)).ok())
    }

    fn write(&self, path: &str, text: &str) -> Result<(), FsError> {
        let new = self.0.join("new");
        fs::write(&new, text).unwrap();
        fs::rename(&new, self.0.join(path)).unwrap();
        Ok(())
    }

    fn list(&self, _path: &str) -> Result<Option<Vec<Entry>>, FsError> {
        Ok(None)
    }
}

fn journal<'a>(root: &Path, fs: &'a dyn Fs) -> Journal<'a> {
    Journal::new(root.join("journal"), fs, root)
}

/// One iteration of the victim: two batches, the second on top of the first, another owner's, and back.
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
    let Some((root, death)) = Victim::told() else { return };
    let fs = Whole::open(&root, death);
    Victim::begins(&root);
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

/// Restores as the next start would; all values must be the old ones, and no batch may be left.
fn assert_recovers(root: &Path, when: &str) {
    let fs = Whole::open(root, Death::Never);
    let journal = journal(root, &fs);
    for by in ["run", "weights"] {
        let report = journal.restore(by, OnConflict::Refuse).unwrap();
        assert_eq!(report.conflicts, [], "killed {when}");
    }
    for (path, text) in FILES {
        assert_eq!(fs::read_to_string(root.join(path)).unwrap(), text, "{path}, killed {when}");
    }
    assert_eq!(crash_at_write::batches_left(&root.join("journal")), 0, "killed {when}");
}

#[test]
fn killed_at_any_of_its_writes_a_victim_leaves_nothing_behind() {
    // One round makes 9 writes or so; two rounds cover a journal that was used before.
    for write in 1..=20 {
        for death in [Death::Before(write), Death::After(write)] {
            let machine = machine();
            VICTIM.dies(machine.path(), death);
            assert_recovers(machine.path(), &format!("{death:?}"));
        }
    }
}

#[test]
fn killed_at_any_moment_a_victim_leaves_nothing_behind() {
    for spins in crash_at_write::moments(0x9e37_79b9, 60, 2_000_000) {
        let machine = machine();
        VICTIM.is_killed_after(machine.path(), spins);
        assert_recovers(machine.path(), &format!("after {spins} spins"));
    }
}

#[test]
fn restoring_may_itself_be_killed_and_carried_on() {
    let machine = machine();
    // The first 5 writes of a round are the changes; from the 6th on it restores.
    for death in [Death::After(6), Death::Before(7), Death::After(8), Death::Before(9)] {
        VICTIM.dies(machine.path(), death);
    }
    assert_recovers(machine.path(), "four times over while restoring");
}

#[test]
fn without_a_restore_the_kill_would_have_been_seen() {
    // The canary: these tests can fail.
    let machine = machine();
    VICTIM.dies(machine.path(), Death::After(3));
    assert_ne!(fs::read_to_string(machine.path().join("sys/a")).unwrap(), "1");
}
