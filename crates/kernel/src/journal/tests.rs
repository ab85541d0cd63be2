//! The journal against a fake kernel: restoring, conflicts, refusals, other owners. Kill tests: `kill.rs`; failing calls: `faults.rs`.

mod faults;
mod kill;

use super::*;
use crate::fake::FakeFs;
use crate::fs::FsError;
use nearfar_topology::Tree;
use rustix::io::Errno;
use std::fs::File;
use tempfile::TempDir;

const A: &str = "sys/a";
const B: &str = "sys/b";

fn system() -> (TempDir, FakeFs) {
    let mut tree = Tree::new();
    tree.insert(A, "1");
    tree.insert(B, "one");
    tree.insert(BOOT_ID, "boot-1");
    (tempfile::tempdir().unwrap(), FakeFs::new(tree))
}

fn journal<'a>(dir: &TempDir, fs: &'a FakeFs) -> Journal<'a> {
    Journal::new(dir.path().join("journal"), fs, "/")
}

fn change(path: &str, new: &str) -> Change {
    Change { path: path.into(), new: new.into() }
}

fn files(dir: &TempDir) -> usize {
    let listed = fs::read_dir(dir.path().join("journal")).unwrap();
    listed.filter(|item| item.as_ref().unwrap().path().extension().is_some()).count()
}

#[test]
fn changes_are_restored_newest_first_and_batches_removed() {
    let (dir, fs) = system();
    let journal = journal(&dir, &fs);
    journal.change("weights", &[change(A, "2"), change(B, "two")]).unwrap();
    journal.change("weights", &[change(A, "3")]).unwrap();
    assert_eq!(journal.pending("weights").unwrap().len(), 3);
    let report = journal.restore("weights", OnConflict::Refuse).unwrap();
    let order: Vec<_> =
        report.put_back.iter().map(|put| (put.path.as_str(), put.old.as_str())).collect();
    assert_eq!(order, [(A, "2"), (B, "one"), (A, "1")]);
    assert_eq!((fs.value(A).unwrap().as_str(), fs.value(B).unwrap().as_str()), ("1", "one"));
    assert_eq!(files(&dir), 0);
    assert_eq!(journal.restore("weights", OnConflict::Refuse).unwrap(), Restored::default());
}

#[test]
fn the_old_value_is_on_disk_before_the_first_write() {
    struct Spy<'a>(&'a FakeFs, &'a Path);
    impl Fs for Spy<'_> {
        fn read(&self, path: &str) -> Result<Option<String>, FsError> {
            self.0.read(path)
        }
        fn write(&self, path: &str, text: &str) -> Result<(), FsError> {
            let file = self.1.join("0000000001.json");
            let recorded: Entry = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
            assert_eq!(recorded.changes[0].old, "1");
            self.0.write(path, text)
        }
        fn list(&self, path: &str) -> Result<Option<Vec<crate::fs::Entry>>, FsError> {
            self.0.list(path)
        }
    }
    let (dir, fs) = system();
    let spy = Spy(&fs, dir.path());
    Journal::new(dir.path(), &spy, "/").change("weights", &[change(A, "2")]).unwrap();
    assert_eq!(fs.writes().len(), 1);
}

#[test]
fn a_value_already_as_wanted_is_neither_written_nor_recorded() {
    let (dir, fs) = system();
    let journal = journal(&dir, &fs);
    assert_eq!(journal.change("weights", &[change(A, "1")]).unwrap(), []);
    assert_eq!((fs.writes().len(), files(&dir)), (0, 0));
}

#[test]
fn a_refused_write_leaves_nothing_half_applied() {
    let (dir, fs) = system();
    fs.refuse(B, Errno::INVAL);
    let error =
        journal(&dir, &fs).change("weights", &[change(A, "2"), change(B, "x")]).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("/sys/b") && text.contains("nothing was changed"), "{text}");
    assert_eq!((fs.value(A).as_deref(), files(&dir)), (Some("1"), 0));
}

#[test]
fn without_permission_the_error_names_the_capability() {
    let (dir, fs) = system();
    fs.refuse(A, Errno::ACCESS);
    let error = journal(&dir, &fs).change("weights", &[change(A, "2")]).unwrap_err().to_string();
    assert!(error.contains("CAP_DAC_OVERRIDE"), "{error}");
}

#[test]
fn a_value_changed_by_others_is_overwritten_only_on_request() {
    let (dir, fs) = system();
    let journal = journal(&dir, &fs);
    journal.change("weights", &[change(A, "2"), change(B, "two")]).unwrap();
    fs.meddle(B, "theirs");
    let report = journal.restore("weights", OnConflict::Refuse).unwrap();
    assert_eq!(report.conflicts.len(), 1);
    assert_eq!(
        (report.conflicts[0].recorded.path.as_str(), report.conflicts[0].found.as_str()),
        (B, "theirs")
    );
    // The whole batch is unchanged: A was not restored either.
    assert_eq!((fs.value(A).as_deref(), fs.value(B).as_deref()), (Some("2"), Some("theirs")));
    let report = journal.restore("weights", OnConflict::Overwrite).unwrap();
    assert_eq!((report.put_back.len(), files(&dir)), (2, 0));
    assert_eq!((fs.value(A).as_deref(), fs.value(B).as_deref()), (Some("1"), Some("one")));
}

#[test]
fn an_already_restored_value_is_not_written_again() {
    let (dir, fs) = system();
    let journal = journal(&dir, &fs);
    journal.change("weights", &[change(A, "2")]).unwrap();
    fs.meddle(A, "1");
    let report = journal.restore("weights", OnConflict::Refuse).unwrap();
    assert_eq!((report, files(&dir)), (Restored::default(), 0));
}

#[test]
fn changes_of_an_earlier_boot_are_discarded() {
    let (dir, fs) = system();
    let journal = journal(&dir, &fs);
    journal.change("weights", &[change(A, "2")]).unwrap();
    fs.meddle(BOOT_ID, "boot-2");
    fs.meddle(A, "2");
    assert_eq!(journal.pending("weights").unwrap(), []);
    let report = journal.restore("weights", OnConflict::Refuse).unwrap();
    assert_eq!((report.void, report.put_back.len(), files(&dir)), (1, 0, 0));
    assert_eq!(fs.value(A).as_deref(), Some("2"));
}

#[test]
fn a_later_change_by_another_owner_stays_and_inherits_the_old_value() {
    let (dir, fs) = system();
    let journal = journal(&dir, &fs);
    journal.change("weights", &[change(A, "2"), change(B, "two")]).unwrap();
    journal.change("run", &[change(A, "3")]).unwrap();
    let report = journal.restore("weights", OnConflict::Refuse).unwrap();
    assert_eq!(report.put_back.len(), 1, "only B: A is still in use");
    assert_eq!(fs.value(A).as_deref(), Some("3"));
    journal.restore("run", OnConflict::Refuse).unwrap();
    assert_eq!((fs.value(A).as_deref(), files(&dir)), (Some("1"), 0));
}

#[test]
fn handing_over_a_change_is_idempotent() {
    let (dir, fs) = system();
    let journal = journal(&dir, &fs);
    journal.change("weights", &[change(A, "2")]).unwrap();
    journal.change("run", &[change(A, "3")]).unwrap();
    // As if killed after the newer batch was saved and before the older was deleted.
    let older = dir.path().join("journal/0000000001.json");
    let kept = fs::read(&older).unwrap();
    journal.restore("weights", OnConflict::Refuse).unwrap();
    fs::write(&older, kept).unwrap();
    let report = journal.restore("weights", OnConflict::Refuse).unwrap();
    assert_eq!((report, files(&dir)), (Restored::default(), 1));
    journal.restore("run", OnConflict::Refuse).unwrap();
    assert_eq!((fs.value(A).as_deref(), files(&dir)), (Some("1"), 0));
}

#[test]
fn another_roots_changes_are_not_touched() {
    let (dir, fs) = system();
    journal(&dir, &fs).change("weights", &[change(A, "2")]).unwrap();
    let other = Journal::new(dir.path().join("journal"), &fs, "/elsewhere");
    assert_eq!(other.restore("weights", OnConflict::Refuse).unwrap(), Restored::default());
    assert_eq!((fs.value(A).as_deref(), files(&dir)), (Some("2"), 1));
}

#[test]
fn a_path_that_no_longer_exists_is_not_restored() {
    let (dir, fs) = system();
    journal(&dir, &fs).change("weights", &[change(A, "2")]).unwrap();
    let mut smaller = Tree::new();
    smaller.insert(BOOT_ID, "boot-1");
    let fs = FakeFs::new(smaller);
    let report = journal(&dir, &fs).restore("weights", OnConflict::Refuse).unwrap();
    assert_eq!((report, files(&dir)), (Restored::default(), 0));
}

#[test]
fn paths_outside_sysfs_and_sysctl_are_refused_both_ways() {
    let (dir, fs) = system();
    let journal = journal(&dir, &fs);
    for path in ["etc/passwd", "sys/../etc/passwd", "proc/1/mem", "/sys/a", ""] {
        let error = journal.change("weights", &[change(path, "x")]).unwrap_err();
        assert!(matches!(error, JournalError::Outside { .. }), "{path}: {error}");
    }
    journal.change("weights", &[change(A, "2")]).unwrap();
    let file = dir.path().join("journal/0000000001.json");
    let text = fs::read_to_string(&file).unwrap().replace("sys/a", "etc/shadow");
    fs::write(&file, text).unwrap();
    let report = journal.restore("weights", OnConflict::Overwrite).unwrap();
    let [unreadable] = report.unreadable.as_slice() else { panic!("{report:?}") };
    assert!(unreadable.path.ends_with("0000000001.json"), "{unreadable:?}");
    assert!(unreadable.found.contains("etc/shadow"), "{unreadable:?}");
    assert_eq!(report.put_back, []);
}

#[test]
fn unreadable_batches_are_reported_kept_and_do_not_block_others() {
    for bad in ["", "{}", "not json", "\u{0}", "[[[[", "newer"] {
        let (dir, fs) = system();
        let journal = journal(&dir, &fs);
        journal.change("weights", &[change(A, "2")]).unwrap();
        journal.change("weights", &[change(B, "two")]).unwrap();
        let file = dir.path().join("journal/0000000001.json");
        let newer = fs::read_to_string(&file).unwrap().replace("journal/1", "journal/2");
        let text = if bad == "newer" { newer.as_str() } else { bad };
        fs::write(&file, text).unwrap();
        assert_eq!(journal.pending("weights").unwrap().len(), 1, "{bad}");
        let report = journal.restore("weights", OnConflict::Refuse).unwrap();
        assert_eq!(fs.value(B).as_deref(), Some("one"), "{bad}");
        assert_eq!(fs.value(A).as_deref(), Some("2"), "{bad}: nobody knows what it was");
        let [unreadable] = report.unreadable.as_slice() else { panic!("{bad}: {report:?}") };
        assert_eq!(unreadable.path, file);
        assert_eq!(fs::read_to_string(&file).unwrap(), text, "{bad}: it is left as it is");
        journal.change("weights", &[change(B, "three")]).unwrap();
        assert!(dir.path().join("journal/0000000002.json").exists(), "{bad}");
    }
}

#[test]
fn a_batch_is_left_alone_if_an_unreadable_one_changes_the_same_file() {
    let (dir, fs) = system();
    let journal = journal(&dir, &fs);
    journal.change("weights", &[change(A, "2")]).unwrap();
    journal.change("weights", &[change(A, "3")]).unwrap();
    let file = dir.path().join("journal/0000000002.json");
    let newer = fs::read_to_string(&file).unwrap().replace("journal/1", "journal/2");
    fs::write(&file, newer).unwrap();
    let report = journal.restore("weights", OnConflict::Overwrite).unwrap();
    assert_eq!((report.put_back, report.unreadable.len()), (vec![], 1));
    assert_eq!((fs.value(A).as_deref(), files(&dir)), (Some("3"), 2));
}

#[test]
fn a_restore_plan_matches_the_restore_and_changes_nothing() {
    for on_conflict in [OnConflict::Refuse, OnConflict::Overwrite] {
        for meddled in [None, Some("2"), Some("9")] {
            let (dir, fs) = system();
            let journal = journal(&dir, &fs);
            journal.change("weights", &[change(A, "2")]).unwrap();
            journal.change("tier", &[change(B, "5")]).unwrap();
            journal.change("weights", &[change(A, "3"), change(B, "6")]).unwrap();
            if let Some(value) = meddled {
                fs.meddle(A, value);
            }
            let before = (fs.value(A), fs.value(B), files(&dir));
            for by in ["tier", "weights", "nobody"] {
                let planned = journal.planned(by, on_conflict).unwrap();
                let case = format!("{on_conflict:?} {meddled:?} {by}");
                if by == "tier" {
                    assert_eq!((fs.value(A), fs.value(B), files(&dir)), before, "{case}");
                }
                assert_eq!(planned, journal.restore(by, on_conflict).unwrap(), "{case}");
            }
        }
    }
}

#[test]
fn files_with_other_names_are_not_batches() {
    let (dir, fs) = system();
    let journal = journal(&dir, &fs);
    journal.change("weights", &[change(A, "2")]).unwrap();
    let ours = dir.path().join("journal/0000000001.json");
    for name in ["18446744073709551615.json", "+5.json", "5.json", "00000000005.json", "-1.json"] {
        fs::copy(&ours, dir.path().join("journal").join(name)).unwrap();
    }
    journal.change("weights", &[change(A, "3")]).unwrap();
    let report = journal.restore("weights", OnConflict::Refuse).unwrap();
    assert_eq!((report.put_back.len(), files(&dir)), (2, 5));
    assert_eq!(fs.value(A).as_deref(), Some("1"));
    // After the largest number nothing is changed, as the change could not be restored.
    fs::write(dir.path().join("journal/9223372036854775807.json"), "").unwrap();
    let error = journal.change("weights", &[change(A, "4")]).unwrap_err().to_string();
    assert!(error.contains("9223372036854775807.json"), "{error}");
    assert_eq!(fs.value(A).as_deref(), Some("1"));
}

#[test]
fn a_changed_witness_value_marks_equal_values_as_foreign() {
    let (dir, fs) = system();
    let journal = journal(&dir, &fs);
    journal.change("damon", &[change(A, "2")]).unwrap();
    journal.attest("damon", &[B.into()]).unwrap();
    fs.plant(&[(B.into(), "another")]);
    let report = journal.restore("damon", OnConflict::Refuse).unwrap();
    assert_eq!((report.put_back.len(), report.conflicts.len()), (0, 1));
    assert_eq!(fs.value(A).as_deref(), Some("2"));
    fs.plant(&[(B.into(), "-1")]);
    let report = journal.restore("damon", OnConflict::Refuse).unwrap();
    assert_eq!((report.put_back.len(), fs.value(A).as_deref()), (1, Some("1")), "it has ended");
}

#[test]
fn a_lock_that_another_process_holds_ends_in_an_error_that_names_it() {
    let (dir, fs) = system();
    let journal = journal(&dir, &fs);
    journal.change("weights", &[change(A, "2")]).unwrap();
    let held = File::options().write(true).open(dir.path().join("journal/lock")).unwrap();
    held.lock().unwrap();
    let error = journal.restore("weights", OnConflict::Refuse).unwrap_err();
    assert!(matches!(error, JournalError::Lock(_)), "{error}");
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    drop(held);
    journal.restore("weights", OnConflict::Refuse).unwrap();
}

#[test]
fn a_directory_of_another_user_or_that_others_may_write_is_not_trusted() {
    use std::os::unix::fs::PermissionsExt as _;
    let (dir, fs) = system();
    let journal = Journal::new(dir.path(), &fs, "/");
    let refused = |why: &str| {
        for error in [
            journal.change("weights", &[change(A, "2")]).unwrap_err(),
            journal.restore("weights", OnConflict::Overwrite).unwrap_err(),
        ] {
            assert!(matches!(error, JournalError::Untrusted { .. }), "{why}: {error}");
        }
    };
    for mode in [0o777, 0o775] {
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
        refused(&format!("mode {mode:o}"));
    }
    if rustix::process::geteuid().is_root() {
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::chown(dir.path(), Some(1001), None).unwrap();
        refused("another user's");
    }
    assert_eq!(fs.writes(), []);
}

#[test]
fn a_leftover_of_a_killed_writer_is_ignored() {
    let (dir, fs) = system();
    let journal = journal(&dir, &fs);
    fs::create_dir(dir.path().join("journal")).unwrap();
    fs::write(dir.path().join("journal/new"), "{\"schema\":\"near").unwrap();
    journal.change("weights", &[change(A, "2")]).unwrap();
    journal.restore("weights", OnConflict::Refuse).unwrap();
    assert_eq!(fs.value(A).as_deref(), Some("1"));
}

#[test]
fn two_at_once_do_not_lose_the_first_value() {
    // In memory: all wait for one lock, but not for a slow disk.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("sys")).unwrap();
    fs::write(root.path().join("sys/a"), "first\n").unwrap();
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let (dir, root) = (dir.path(), root.path());
            scope.spawn(move || {
                let fs = crate::fs::RootFs::new(root).unwrap();
                for turn in 0..5 {
                    let text = format!("{writer}-{turn}");
                    Journal::new(dir, &fs, root).change("weights", &[change(A, &text)]).unwrap();
                }
            });
        }
    });
    let fs = crate::fs::RootFs::new(root.path()).unwrap();
    let journal = Journal::new(dir.path(), &fs, root.path());
    assert_eq!(journal.pending("weights").unwrap().len(), 20);
    journal.restore("weights", OnConflict::Refuse).unwrap();
    assert_eq!(
        fs.read(A).unwrap().as_deref(),
        Some("first"),
        "as written back, without the newline"
    );
}

#[test]
fn an_inaccessible_journal_is_an_error() {
    let (dir, fs) = system();
    fs::write(dir.path().join("state"), "").unwrap();
    let journal = Journal::new(dir.path().join("state/journal"), &fs, "/");
    let restored = journal.restore("weights", OnConflict::Refuse).unwrap_err().to_string();
    assert!(restored.contains("state/journal"), "{restored}");
    let pending = journal.pending("weights").unwrap_err().to_string();
    assert!(pending.contains("state/journal"), "{pending}");
}
