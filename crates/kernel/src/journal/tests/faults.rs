//! The journal with each system call failing in turn: the error names the file, and one restore gives back the old
//! values.

use super::super::{Change, Journal, JournalError, OnConflict};
use crate::fake::{FakeFs, crash_at_write};
use crate::fs::{Entry, Fs, FsError};
use crate::whole::faults::{Failing, Fails, each};
use nearfar_topology::Tree;
use tempfile::TempDir;

const BEFORE: [(&str, &str); 3] = [("sys/a", "1"), ("sys/b", "one"), ("sys/c", "old words")];

struct System {
    dir: TempDir,
    fs: Failing<FakeFs>,
}

impl System {
    fn new() -> Self {
        let mut tree = Tree::new();
        BEFORE.iter().for_each(|(path, value)| tree.insert(path, value));
        Self { dir: tempfile::tempdir().unwrap(), fs: Failing(FakeFs::new(tree)) }
    }

    fn journal(&self) -> Journal<'_> {
        Journal::new(self.dir.path().join("journal"), &self.fs, "/")
    }

    fn change(&self, by: &str, changes: &[(&str, &str)]) -> Result<(), JournalError> {
        let change =
            |(path, new): &(&str, &str)| Change { path: (*path).into(), new: (*new).into() };
        self.journal().change(by, &changes.iter().map(change).collect::<Vec<_>>()).map(drop)
    }

    fn values(&self) -> Vec<(&str, String)> {
        BEFORE.iter().map(|(path, _)| (*path, self.fs.0.value(path).unwrap())).collect()
    }

    /// Restores as the next start would; all values must be the old ones, and no batch may be left.
    fn assert_recovers(&self, what: &str) {
        for by in ["run", "weights"] {
            let report = self.journal().restore(by, OnConflict::Refuse).expect(what);
            assert_eq!((report.conflicts, report.unreadable), (vec![], vec![]), "{what}");
        }
        assert_eq!(self.values(), BEFORE.map(|(path, value)| (path, value.to_owned())), "{what}");
        assert_eq!(self.batches(), 0, "{what}");
    }

    fn batches(&self) -> usize {
        crash_at_write::batches_left(&self.dir.path().join("journal"))
    }
}

/// Checks that it names a file of the journal, the journal, or a file that was to be changed.
fn assert_named(error: &JournalError) -> String {
    let text = error.to_string();
    let names = ["/journal", "0000000001.json", "sys/a", "sys/b", "sys/c"];
    assert!(names.iter().any(|name| text.contains(name)), "{text}");
    text
}

const CHANGES: [(&str, &str); 2] = [("sys/a", "2"), ("sys/b", "two")];

#[test]
fn a_change_with_any_call_failing_changes_nothing_and_the_next_succeeds() {
    let act = |system: &System| system.change("weights", &CHANGES);
    let calls = each(Fails::Once, System::new, act, |system, changed| {
        let text = assert_named(&changed.unwrap_err());
        assert_eq!((system.values(), system.batches()), (System::new().values(), 0), "{text}");
        assert!(!system.dir.path().join("journal/new").exists(), "{text}");
        act(system).unwrap();
        assert_eq!(system.values()[..2], CHANGES.map(|(path, new)| (path, new.to_owned())));
        system.assert_recovers(&text);
    });
    // The directory; the batch created, written, synced, renamed, the directory synced; two values.
    assert_eq!(calls, 8);
}

#[test]
fn a_restore_undoes_a_change_that_fails_from_any_call_onwards() {
    let act = |system: &System| system.change("weights", &CHANGES);
    let calls = each(Fails::FromThenOn, System::new, act, |system, changed| {
        let text = assert_named(&changed.unwrap_err());
        system.assert_recovers(&text);
    });
    assert_eq!(calls, 8);
}

/// Two batches of one owner, and one of another on top of both.
fn changed() -> System {
    let system = System::new();
    system.change("weights", &CHANGES).unwrap();
    system.change("weights", &[("sys/a", "3")]).unwrap();
    system.change("run", &[("sys/a", "4"), ("sys/c", "new")]).unwrap();
    system
}

#[test]
fn a_restore_with_any_call_failing_is_carried_on_by_the_next() {
    for fails in [Fails::Once, Fails::FromThenOn] {
        for order in [["weights", "run"], ["run", "weights"]] {
            let restore = |system: &System| {
                order
                    .iter()
                    .try_for_each(|by| system.journal().restore(by, OnConflict::Refuse).map(drop))
            };
            let calls = each(fails, changed, restore, |system, restored| {
                let text = assert_named(&restored.unwrap_err());
                system.assert_recovers(&format!("{order:?} {fails:?}: {text}"));
            });
            assert!(calls > 8, "{calls}");
        }
    }
}

/// A machine on which one file can't be written.
struct Refuses<'a>(&'a FakeFs, &'static str);

impl Fs for Refuses<'_> {
    fn read(&self, path: &str) -> Result<Option<String>, FsError> {
        self.0.read(path)
    }
    fn write(&self, path: &str, text: &str) -> Result<(), FsError> {
        if path == self.1 {
            let source = std::io::ErrorKind::InvalidInput.into();
            return Err(FsError::Call { call: "write", path: path.into(), source });
        }
        self.0.write(path, text)
    }
    fn list(&self, path: &str) -> Result<Option<Vec<Entry>>, FsError> {
        self.0.list(path)
    }
}

#[test]
fn a_value_that_can_not_be_restored_keeps_no_other_batch_from_it() {
    let system = System::new();
    for (path, new) in [("sys/a", "2"), ("sys/b", "two"), ("sys/c", "new")] {
        system.change("weights", &[(path, new)]).unwrap();
    }
    let refuses = Refuses(&system.fs.0, "sys/b");
    let journal = Journal::new(system.dir.path().join("journal"), &refuses, "/");
    let error = journal.restore("weights", OnConflict::Refuse).unwrap_err();
    assert!(assert_named(&error).contains("sys/b"));
    assert_eq!(
        system.values(),
        [("sys/a", "1"), ("sys/b", "two"), ("sys/c", "old words")]
            .map(|(path, value)| (path, value.to_owned()))
    );
    assert_eq!(system.batches(), 1);
    system.assert_recovers("once it can be written");
}
