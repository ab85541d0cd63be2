//! The temporary cgroup in recorded systems and, for failing calls, in a directory that stands for the mounted
//! hierarchy.

use super::*;
use crate::fs::{RootFs, TreeFs};
use crate::whole::faults::{Failing, Fails, each};
use nearfar_topology::Tree;

fn system(entries: &[(&str, &str)]) -> TreeFs {
    let mut tree = Tree::new();
    tree.insert(&format!("proc/{}/cgroup", std::process::id()), "1:memory:/a\n0::/app/worker");
    tree.insert("cg/cgroup.controllers", "cpu memory");
    tree.insert("cg/app/cgroup.controllers", "cpu");
    tree.insert("cg/app/worker/cgroup.procs", "");
    tree.insert("proc/self/mounts", "c /cg cgroup2 rw 0 0");
    entries.iter().for_each(|(path, text)| tree.insert(path, text));
    TreeFs(tree)
}

#[test]
fn unsuitable_systems_are_rejected_without_a_record() {
    let dir = tempfile::tempdir().unwrap();
    let turn = Turn::take(dir.path()).unwrap();
    for (entries, says) in [
        (vec![("proc/self/mounts", "c /cg cgroup rw,memory 0 0")], "version 1 here (/cg)"),
        (vec![("proc/self/mounts", "")], "no memory cgroups"),
        (vec![("cg/app/worker/memory.high", "9\n")], "memory.high is 9"),
        (vec![("cg/app/worker/memory.max", "max\n")], "/app has no memory controller"),
    ] {
        let error = turn.make(&system(&entries), "ours").unwrap_err().to_string();
        assert!(error.contains(says), "{entries:?}: {error}");
        assert!(!turn.file().exists());
    }
    assert!(matches!(Turn::take(dir.path()), Err(OwnError::Busy(_))));
}

#[test]
fn a_refused_write_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let turn = Turn::take(dir.path()).unwrap();
    // A recording can't be written.
    let fs = system(&[("cg/app/cgroup.controllers", "memory")]);
    assert!(matches!(turn.make(&fs, "ours"), Err(OwnError::Fs(_))));
    let fs = system(&[
        ("cg/app/cgroup.controllers", "memory"),
        ("cg/app/cgroup.subtree_control", "memory"),
    ]);
    assert!(matches!(turn.make(&fs, "ours"), Err(OwnError::Call { call: "create", .. })));
    assert!(!turn.file().exists());
}

#[test]
fn invalid_records_are_set_aside_and_those_of_an_earlier_boot_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let turn = Turn::take(dir.path()).unwrap();
    let fs = system(&[(BOOT_ID, "now")]);
    assert_eq!(turn.recover(&fs).unwrap(), None);
    for text in ["", "{\"schema\":", "[]", "\u{0}"] {
        fs::write(turn.file(), text).unwrap();
        let error = turn.recover(&fs).unwrap_err().to_string();
        assert!(error.contains("own-cgroup.json.unreadable"), "{error}");
        // It is kept, and in nobody's way.
        assert_eq!(
            fs::read_to_string(dir.path().join("own-cgroup.json.unreadable")).unwrap(),
            text
        );
        assert_eq!(turn.recover(&fs).unwrap(), None);
    }
    let text = "{\"schema\":\"nearfar.own-cgroup/1\",\"boot_id\":\"then\",\"path\":\"/app\",\"home\":\"/\",\
                \"turned_on\":null,\"siblings\":[]}";
    fs::write(turn.file(), text).unwrap();
    assert_eq!(turn.recover(&fs).unwrap(), None);
    assert!(!turn.file().exists());
    // A missing cgroup need not be removed.
    fs::write(turn.file(), text.replace("then", "now").replace("/app", "/gone")).unwrap();
    assert_eq!(turn.recover(&fs).unwrap().unwrap().path, "/gone");
    assert!(!turn.file().exists());
}

/// A hierarchy in a directory; the rest of the system is recorded.
struct Mounted {
    dir: tempfile::TempDir,
    rest: TreeFs,
    live: RootFs,
}

impl Mounted {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mount = dir.path().join("cg");
        fs::create_dir_all(mount.join("app/worker")).unwrap();
        fs::create_dir(dir.path().join("journal")).unwrap();
        for (file, text) in [
            ("cgroup.controllers", "cpu memory"),
            ("app/cgroup.controllers", "cpu memory"),
            ("app/cgroup.subtree_control", "cpu"),
            ("app/worker/cgroup.procs", ""),
        ] {
            fs::write(mount.join(file), text).unwrap();
        }
        let mounts = format!("c {} cgroup2 rw 0 0", mount.display());
        let rest = system(&[("proc/self/mounts", &mounts), (BOOT_ID, "now")]);
        Self { dir, rest, live: RootFs::live().unwrap() }
    }

    fn turn(&self) -> Turn {
        Turn::take(&self.dir.path().join("journal")).unwrap()
    }

    fn is_as_before(&self) -> bool {
        let app = self.dir.path().join("cg/app");
        let controllers = fs::read_to_string(app.join("cgroup.subtree_control")).unwrap();
        controllers == "cpu" && !app.join("ours").exists()
    }
}

impl Fs for Mounted {
    fn read(&self, path: &str) -> Result<Option<String>, FsError> {
        if path.starts_with("proc") { self.rest.read(path) } else { self.live.read(path) }
    }
    fn write(&self, path: &str, text: &str) -> Result<(), FsError> {
        assert!(path.ends_with("/app/cgroup.subtree_control"), "{path}");
        let controllers = if text == "+memory" { "cpu memory" } else { "cpu" };
        fs::write(format!("/{path}"), controllers).unwrap();
        Ok(())
    }
    fn list(&self, path: &str) -> Result<Option<Vec<crate::fs::Entry>>, FsError> {
        if path.starts_with("proc") { self.rest.list(path) } else { self.live.list(path) }
    }
}

fn make_failing() -> Failing<Mounted> {
    Failing(Mounted::new())
}

#[test]
fn a_cgroup_with_any_call_failing_while_it_is_made_or_removed_is_gone_after_one_recovery() {
    let act = |system: &Failing<Mounted>| {
        let turn = system.0.turn();
        let own = turn.make(system, "ours")?;
        assert!(system.0.dir.path().join("cg/app/ours").is_dir());
        own.remove()
    };
    for fails in [Fails::Once, Fails::FromThenOn] {
        let calls = each(fails, make_failing, act, |system, removed| {
            let error = removed.unwrap_err().to_string();
            let names = ["own-cgroup.json", "/app/ours", "app/cgroup.subtree_control"];
            assert!(names.iter().any(|name| error.contains(name)), "{error}");
            let recovered = system.0.turn().recover(&system.0);
            assert!(recovered.is_ok(), "{error}: {recovered:?}");
            assert!(system.0.is_as_before(), "{error}");
            assert!(!system.0.turn().file().exists(), "{error}");
        });
        // The record in five, the controller, the directory; and back, the record in two.
        assert_eq!(calls, 11);
    }
}

#[test]
fn a_cgroup_that_can_not_be_made_leaves_everything_as_it_was() {
    let act =
        |system: &Failing<Mounted>| system.0.turn().make(system, "ours").map(std::mem::forget);
    let calls = each(Fails::Once, make_failing, act, |system, made| {
        let error = made.unwrap_err().to_string();
        assert!(system.0.is_as_before(), "{error}");
        assert!(!system.0.turn().file().exists(), "{error}");
    });
    assert_eq!(calls, 7);
}
