//! Turns a recording back into files: for tests, and for inspection with ordinary tools.

use std::os::fd::OwnedFd;
use std::path::Path;

use nearfar_topology::Tree;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{Fs as _, FsError, RootFs};

/// Maximum length of a chain of links; a recording with longer ones is malformed.
const LINKS_MAX: usize = 8;

/// Writes `tree` as directories, files and links below the existing directory `dir`, which can then be the root of a
/// [`RootFs`].
///
/// Entries below a link are written to its target. Every step is resolved as if `dir` were `/`, so that a recording
/// from elsewhere can write nothing outside it.
///
/// # Errors
/// [`FsError`] if something can't be written, or a link has a target that can't be created.
pub fn plant(tree: &Tree, dir: &Path) -> Result<(), FsError> {
    let root = RootFs::confined(dir)?;
    for (path, text) in tree.iter() {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        directory(&root, parent, LINKS_MAX)?;
        match tree.link(path) {
            _ if name.is_empty() => {}
            Some(target) => link(&root, parent, name, target)?,
            None if tree.children(path).next().is_some() => directory(&root, path, LINKS_MAX)?,
            None => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
                root.open_with(path, flags, Mode::from_raw_mode(0o644))?;
                root.write(path, &format!("{text}\n"))?;
            }
        }
    }
    Ok(())
}

/// Creates the directory `path` and its parents, following links.
fn directory(root: &RootFs, path: &str, links_left: usize) -> Result<(), FsError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    if root.open(path, flags)?.is_some() {
        return Ok(());
    }
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
    directory(root, parent, links_left)?;
    let gone = || root.failed("create", path, Errno::NOENT);
    let above = root.open(parent, flags)?.ok_or_else(gone)?;
    match rustix::fs::mkdirat(&above, name, Mode::from_raw_mode(0o755)) {
        Ok(()) => Ok(()),
        // A link whose target does not exist yet.
        Err(Errno::EXIST) if links_left > 0 => {
            let target = rustix::fs::readlinkat(&above, name, Vec::new())
                .map_err(|errno| root.failed("create", path, errno))?;
            let target = target.to_string_lossy();
            match target.strip_prefix('/') {
                Some(absolute) => directory(root, absolute, links_left - 1),
                None => directory(root, &format!("{parent}/{target}"), links_left - 1),
            }
        }
        Err(errno) => Err(root.failed("create", path, errno)),
    }
}

fn link(root: &RootFs, parent: &str, name: &str, target: &str) -> Result<(), FsError> {
    let path = format!("{parent}/{name}");
    let gone = || root.failed("link", &path, Errno::NOENT);
    let above = root.open(parent, OFlags::PATH | OFlags::DIRECTORY)?.ok_or_else(gone)?;
    match rustix::fs::symlinkat(target, &above, name) {
        // Sysfs shows a device below more than one name, so a recording may have the same link twice.
        Err(Errno::EXIST) if leads_to(&above, name, target) => Ok(()),
        made => made.map_err(|errno| root.failed("link", &path, errno)),
    }
}

fn leads_to(above: &OwnedFd, name: &str, target: &str) -> bool {
    rustix::fs::readlinkat(above, name, Vec::new())
        .is_ok_and(|found| found.to_bytes() == target.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::TreeFs;

    fn root() -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir(&root).unwrap();
        std::fs::write(dir.path().join("secret"), "outside\n").unwrap();
        (dir, root)
    }

    fn tree(entries: &[(&str, &str)]) -> Tree {
        let mut tree = Tree::new();
        entries.iter().for_each(|(path, text)| tree.insert(path, text));
        tree
    }

    #[test]
    fn a_recording_reads_as_the_directory_it_is_planted_to() {
        let (_dir, root) = root();
        let tree = tree(&[("sys/x/one", "1"), ("sys/x/link", "-> one"), ("sys/empty/", "")]);
        plant(&tree, &root).unwrap();
        let (planted, recorded) = (RootFs::new(root).unwrap(), TreeFs(tree));
        assert_eq!(planted.read("sys/x/link").unwrap().as_deref(), Some("1\n"));
        for path in ["sys", "sys/x", "sys/empty", "sys/none"] {
            assert_eq!(planted.list(path).unwrap(), recorded.list(path).unwrap(), "{path}");
        }
        assert_eq!(planted.read("sys/x/one").unwrap(), recorded.read("sys/x/one").unwrap());
        assert!(matches!(recorded.write("sys/x/one", "2"), Err(FsError::Recording { .. })));
    }

    #[test]
    fn entries_below_a_link_are_created_at_its_target() {
        let (_dir, root) = root();
        let entries = [
            ("sys/bus/mem0", "-> ../devices/a/b/mem0"),
            ("sys/bus/mem0/serial", "0x1"),
            ("sys/bus/mem0/up", "-> ../../c"),
            ("sys/bus/mem0/up/name", "c"),
        ];
        plant(&tree(&entries), &root).unwrap();
        let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
        assert_eq!(read("sys/devices/a/b/mem0/serial"), "0x1\n");
        assert_eq!(read("sys/devices/a/c/name"), "c\n");
    }

    #[test]
    fn a_link_recorded_under_two_names_of_its_device_is_planted_once() {
        let (_dir, root) = root();
        let entries = [
            ("bus/a", "-> ../dev/a"),
            ("bus/a/driver", "-> ../drv"),
            ("bus/b", "-> ../dev/a"),
            ("bus/b/driver", "-> ../drv"),
        ];
        plant(&tree(&entries), &root).unwrap();
        assert_eq!(std::fs::read_link(root.join("dev/a/driver")).unwrap(), Path::new("../drv"));
        let differs = [("bus/c", "-> ../dev/a"), ("bus/c/driver", "-> ../other")];
        assert!(plant(&tree(&differs), &root).is_err());
    }

    #[test]
    fn no_recording_writes_outside_the_directory() {
        let (dir, root) = root();
        let outside = dir.path().join("made").display().to_string();
        let up = format!("-> ../{outside}");
        for entries in [
            vec![("../secret", "x")],
            vec![("a/../../secret", "x")],
            vec![("b", up.as_str()), ("b/file", "x")],
            vec![("c", "-> ../.."), ("c/made", "x")],
            vec![("d", "-> d"), ("d/file", "x")],
        ] {
            // Some are errors, some land inside as they would below a changed root.
            let _ = plant(&tree(&entries), &root);
        }
        assert_eq!(std::fs::read_to_string(dir.path().join("secret")).unwrap(), "outside\n");
        assert!(!dir.path().join("made").exists());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
