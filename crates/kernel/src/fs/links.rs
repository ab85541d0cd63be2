//! Links that a copy of sysfs holds as texts.
//!
//! Some ways to copy a tree (version control without symbolic links, downloads file by file) leave a file with the
//! target in the place of a link: `../../../devices/platform/hmem.0/dax0.0`. Below a root that is not the live system
//! such a file is taken for the link: its text begins with `../` and is short, which no attribute of sysfs is. To look
//! into each file of a copy would take longer than all else, so this is done only where the links of buses, classes or
//! nodes are such files.

use rustix::fs::{Dir, FileType, Mode, OFlags};

use super::{Fs as _, RootFs};

/// Longer texts are no targets.
const TARGET_MAX: usize = 255;
/// Links that are followed in one path.
const HOPS_MAX: usize = 16;

/// Directories whose entries are links, or have entries that are; `*` is any name.
const OF_LINKS: [&str; 3] = ["sys/bus/*/devices", "sys/class/*", "sys/devices/system/node/*"];

impl RootFs {
    /// Whether this is a copy with files in place of links.
    pub(super) fn has_texts(&self) -> bool {
        !self.is_live()
            && *self.texts.get_or_init(|| OF_LINKS.iter().any(|links| self.has_texts_in(links)))
    }

    fn has_texts_in(&self, links: &str) -> bool {
        let Some((above, below)) = links.split_once('*') else { return false };
        let above = above.trim_end_matches('/');
        // A few directories tell: in such a copy each link is a file.
        self.names(above).into_iter().take(64).any(|name| {
            let directory = format!("{above}/{name}{below}");
            let names = self.names(&directory).into_iter();
            names.take(64).any(|name| self.target_text(&format!("{directory}/{name}")).is_some())
        })
    }

    /// The names in a directory; none if it can't be read.
    fn names(&self, path: &str) -> Vec<String> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let Ok(Some(fd)) = self.open_with(path, flags, Mode::empty()) else { return Vec::new() };
        let names = Dir::read_from(&fd).into_iter().flatten().map_while(Result::ok);
        let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name != "." && name != "..").collect()
    }

    /// The target, if the entry `path` is a file that stands for a link.
    pub(super) fn target_text(&self, path: &str) -> Option<String> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW;
        let file = self.open_with(path, flags, Mode::empty()).ok()??;
        let stat = rustix::fs::fstat(&file).ok()?;
        let is_short =
            usize::try_from(stat.st_size).is_ok_and(|size| (3..=TARGET_MAX).contains(&size));
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || !is_short {
            return None;
        }
        let mut bytes = [0; TARGET_MAX];
        let read = rustix::io::read(&file, &mut bytes).ok()?;
        let text = std::str::from_utf8(bytes.get(..read)?).ok()?;
        let text = text.strip_suffix('\n').unwrap_or(text);
        let is_target = text.starts_with("../") && !text.contains(['\n', '\0', ' ']);
        is_target.then(|| text.to_owned())
    }

    /// `path` with such links followed, if it has any; it never leads out of the root.
    pub(super) fn through_texts(&self, path: &str) -> Option<String> {
        let mut todo: Vec<String> =
            path.trim_matches('/').split('/').rev().map(str::to_owned).collect();
        let (mut done, mut hops): (Vec<String>, usize) = (Vec::new(), 0);
        while let Some(part) = todo.pop() {
            match part.as_str() {
                "" | "." => continue,
                ".." => {
                    done.pop();
                    continue;
                }
                _ => {}
            }
            done.push(part);
            let Some(target) = self.target_text(&done.join("/")) else { continue };
            hops += 1;
            if hops > HOPS_MAX {
                return None;
            }
            done.pop();
            todo.extend(target.split('/').rev().map(str::to_owned));
        }
        (hops > 0).then(|| done.join("/"))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use crate::fs::{EntryKind, Fs as _, RootFs};

    #[test]
    fn files_with_link_targets_are_followed_in_a_copied_tree() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        fs::create_dir_all(at("sys/devices/pci0/mem0/ram")).unwrap();
        fs::create_dir_all(at("sys/bus/cxl/devices")).unwrap();
        fs::write(at("sys/devices/pci0/mem0/ram/size"), "0x10\n").unwrap();
        fs::write(at("sys/bus/cxl/devices/mem0"), "../../../devices/pci0/mem0").unwrap();
        fs::write(at("sys/devices/pci0/mem0/driver"), "../../../bus/cxl/drivers/mem").unwrap();
        fs::write(at("sys/bus/cxl/devices/loop0"), "../devices/loop0/x").unwrap();
        fs::write(at("sys/bus/cxl/devices/out"), "../../../../../../etc").unwrap();
        let root = RootFs::new(dir.path()).unwrap();
        let read = root.read("sys/bus/cxl/devices/mem0/ram/size").unwrap();
        assert_eq!(read.as_deref(), Some("0x10\n"));
        let listed = root.list("sys/bus/cxl/devices").unwrap().unwrap();
        let mem0 = listed.iter().find(|entry| entry.name == "mem0").unwrap();
        assert_eq!(mem0.kind, EntryKind::Link("../../../devices/pci0/mem0".into()));
        let inside = root.list("sys/bus/cxl/devices/mem0").unwrap().unwrap();
        let driver = EntryKind::Link("../../../bus/cxl/drivers/mem".into());
        assert_eq!((inside[0].name.as_str(), &inside[0].kind), ("driver", &driver));
        assert_eq!(inside[1].name, "ram");
        assert_eq!(root.read("sys/bus/cxl/devices/loop0/x").unwrap(), None);
        assert_eq!(
            root.read("sys/bus/cxl/devices/out/passwd").unwrap(),
            None,
            "not out of the root"
        );
    }
}
