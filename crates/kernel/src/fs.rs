//! Files of the live system, or of a directory or recording that stands for it.
//!
//! [`Fs`] has three operations: read, write, list. [`RootFs`] performs them below a directory that stands for `/`: the
//! real `/`, a temporary directory in tests, or the directory of `--sysfs`. [`TreeFs`] reads a recording and refuses
//! writes. [`gather()`] reads the part of a root that describes the machine into a [`Tree`].
//!
//! Paths have no leading `/` (one is dropped). Absence is `Ok(None)`; every error names path, call and errno. Below any
//! root but `/` links are followed as if the root were `/` (openat2 with `RESOLVE_IN_ROOT`), so that nothing outside is
//! ever read or written, whichever links a directory from elsewhere contains. Only regular files are read and written:
//! a FIFO or device in such a directory is an error, not a hang.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use nearfar_topology::Tree;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

mod busy;
mod error;
pub mod gather;
mod input;
mod links;
mod plant;

use busy::once_free;
pub use error::FsError;
pub(crate) use error::{need_after, need_before};
pub use gather::{Extent, gather, part, topology};
pub use input::{read_input, read_own};
pub use plant::plant;

/// Larger files are refused; sysfs and procfs have none that the project needs.
const READ_BYTES_MAX: u64 = 64 << 20;
/// Larger directories are refused; 65,536 is twice the most processes or memory blocks a large machine lists.
const LIST_ENTRIES_MAX: usize = 1 << 16;

/// Called with each value written.
static OBSERVER: OnceLock<fn(&Path, &str)> = OnceLock::new();

/// Calls `observer` with path and text after each write by a [`RootFs`]; the first call of this function counts.
pub fn observe(observer: fn(&Path, &str)) {
    let _ = OBSERVER.set(observer);
}

/// Reads, writes and lists below a root.
pub trait Fs {
    /// Whether this is the running system, so that its processes can be queried by system calls.
    fn is_live(&self) -> bool {
        false
    }

    /// The text of the file at `path`; `None` where there is none. Bytes that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// [`FsError`], if the file is there but can't be read.
    fn read(&self, path: &str) -> Result<Option<String>, FsError>;

    /// `each` bytes at each of these offsets of the file at `path`, concatenated, fewer at its end; `None` if there is
    /// no such file, or if the implementation has only texts.
    ///
    /// # Errors
    /// [`FsError`], if the file is there but can't be read.
    fn read_parts(&self, path: &str, at: &[u64], each: usize) -> Result<Option<Vec<u8>>, FsError> {
        let _ = (path, at, each);
        Ok(None)
    }

    /// Writes `text` to the existing file at `path` in a single write call, as sysfs requires.
    ///
    /// # Errors
    /// [`FsError`], if the file is absent or refuses the text.
    fn write(&self, path: &str, text: &str) -> Result<(), FsError>;

    /// The entries of the directory at `path`, in order of name; `None` if there is no such directory.
    ///
    /// # Errors
    /// [`FsError`], if the directory is there but can't be read.
    fn list(&self, path: &str) -> Result<Option<Vec<Entry>>, FsError>;

    /// Whether there is an entry at `path`, readable or not: its parent is listed, the entry itself is not opened.
    ///
    /// # Errors
    /// [`FsError`], if the parent can't be read, which is not the same as an absent file.
    fn exists(&self, path: &str) -> Result<bool, FsError> {
        let path = path.trim_matches('/');
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let entries = self.list(parent)?.unwrap_or_default();
        Ok(name.is_empty() || entries.iter().any(|entry| entry.name == name))
    }
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The name.
    pub name: String,
    /// Its kind.
    pub kind: EntryKind,
}

/// The kind of a directory entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link with this target, as written.
    Link(String),
    /// Anything else.
    Other,
}

/// A directory that stands for `/`.
#[derive(Debug)]
pub struct RootFs {
    dir: OwnedFd,
    path: PathBuf,
    confined: bool,
    /// Whether it is a copy with files in place of links.
    texts: OnceLock<bool>,
}

impl RootFs {
    /// The directory `path` as the root.
    ///
    /// # Errors
    /// [`FsError::Call`] if it can't be opened as a directory.
    pub fn new(path: impl Into<PathBuf>) -> Result<Self, FsError> {
        let path = path.into();
        let confined = path != Path::new("/");
        Ok(Self { confined, ..Self::confined(path)? })
    }

    /// As [`RootFs::new`], and `..` and links can't leave the root, even if it is `/`.
    fn confined(path: impl Into<PathBuf>) -> Result<Self, FsError> {
        let path = path.into();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(CWD, &path, flags, Mode::empty()).map_err(|errno| {
            FsError::Call { call: "open", path: path.clone(), source: errno.into() }
        })?;
        Ok(Self { dir, path, confined: true, texts: OnceLock::new() })
    }

    /// The live system.
    ///
    /// # Errors
    /// [`FsError::Call`] if `/` can't be opened.
    pub fn live() -> Result<Self, FsError> {
        Self::new("/")
    }

    /// The directory that stands for `/`.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn full(&self, path: &str) -> PathBuf {
        self.path.join(path.trim_start_matches('/'))
    }

    fn failed(&self, call: &'static str, path: &str, source: impl Into<io::Error>) -> FsError {
        FsError::Call { call, path: self.full(path), source: source.into() }
    }

    /// Opens `path`; `None` if it does not exist.
    fn open(&self, path: &str, flags: OFlags) -> Result<Option<OwnedFd>, FsError> {
        let opened = self.open_with(path, flags, Mode::empty())?;
        if opened.is_some() || !self.has_texts() {
            return Ok(opened);
        }
        match self.through_texts(path) {
            Some(path) => self.open_with(&path, flags, Mode::empty()),
            None => Ok(None),
        }
    }

    fn open_with(&self, path: &str, flags: OFlags, mode: Mode) -> Result<Option<OwnedFd>, FsError> {
        const TRIES: usize = 8;
        let relative = match path.trim_start_matches('/') {
            "" => ".",
            relative => relative,
        };
        // openat2 refuses O_PATH together with flags that have no meaning for it.
        let waits = if flags.contains(OFlags::PATH) {
            OFlags::empty()
        } else {
            OFlags::NOCTTY | OFlags::NONBLOCK
        };
        let flags = flags | waits | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        for _ in 0..TRIES {
            let opened = if self.confined {
                rustix::fs::openat2(&self.dir, relative, flags, mode, resolve)
            } else {
                rustix::fs::openat(&self.dir, relative, flags, mode)
            };
            match opened {
                Ok(fd) => return Ok(Some(fd)),
                Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
                Err(Errno::NOSYS) => return Err(FsError::NoOpenat2 { root: self.path.clone() }),
                // openat2 returns EAGAIN when something was renamed during the walk.
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(self.failed("open", path, errno)),
            }
        }
        Err(self.failed("open", path, Errno::AGAIN))
    }

    /// The file, and its size; zero where the file system makes texts up as they are read (procfs, cgroups).
    fn open_file(&self, path: &str, flags: OFlags) -> Result<Option<(File, i64)>, FsError> {
        let Some(fd) = self.open(path, flags)? else { return Ok(None) };
        let stat = rustix::fs::fstat(&fd).map_err(|errno| self.failed("stat", path, errno))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(FsError::NotAFile { path: self.full(path) });
        }
        Ok(Some((File::from(fd), stat.st_size)))
    }

    fn kind(
        &self,
        dir: &OwnedFd,
        name: &str,
        path: &str,
        seen: FileType,
    ) -> Result<EntryKind, FsError> {
        let stat = || rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
        let seen = match seen {
            FileType::Unknown => stat()
                .map(|stat| FileType::from_raw_mode(stat.st_mode))
                .map_err(|errno| self.failed("stat", path, errno))?,
            known => known,
        };
        Ok(match seen {
            FileType::RegularFile => EntryKind::File,
            FileType::Directory => EntryKind::Directory,
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(dir, name, Vec::new())
                    .map_err(|errno| self.failed("read link", path, errno))?;
                EntryKind::Link(target.to_string_lossy().into_owned())
            }
            _ => EntryKind::Other,
        })
    }
}

impl Fs for RootFs {
    fn is_live(&self) -> bool {
        self.path == Path::new("/")
    }

    fn read(&self, path: &str) -> Result<Option<String>, FsError> {
        let Some((file, size)) = self.open_file(path, OFlags::RDONLY)? else { return Ok(None) };
        let (mut file, mut bytes) = (file.take(READ_BYTES_MAX + 1), Vec::new());
        // Nearly all files of sysfs are read by one call; there a size is an upper bound, in a copy it is the text's.
        let mut first = [0; 4096];
        once_free(path, || {
            let read = file.read(&mut first)?;
            bytes.extend_from_slice(&first[..read]);
            let is_short = size == 0 || !self.is_live() && i64::try_from(read) != Ok(size);
            let may_go_on = read == first.len() || read > 0 && is_short;
            if may_go_on { file.read_to_end(&mut bytes) } else { Ok(0) }
        })
        .map_err(|error| self.failed("read", path, error))?;
        if bytes.len() as u64 > READ_BYTES_MAX {
            return Err(FsError::TooLarge { path: self.full(path), limit: "64 MiB" });
        }
        Ok(Some(
            String::from_utf8(bytes)
                .unwrap_or_else(|bad| String::from_utf8_lossy(bad.as_bytes()).into_owned()),
        ))
    }

    fn read_parts(&self, path: &str, at: &[u64], each: usize) -> Result<Option<Vec<u8>>, FsError> {
        let Some((file, _)) = self.open_file(path, OFlags::RDONLY)? else { return Ok(None) };
        let (mut bytes, mut part) = (Vec::new(), vec![0; each]);
        for at in at {
            let read = rustix::io::pread(&file, &mut part[..], *at);
            let read = read.map_err(|errno| self.failed("read", path, errno))?;
            bytes.extend_from_slice(&part[..read]);
        }
        Ok(Some(bytes))
    }

    fn write(&self, path: &str, text: &str) -> Result<(), FsError> {
        let refused = |source: io::Error| FsError::Write {
            text: text.trim_end().to_string(),
            path: self.full(path),
            source,
        };
        let flags = OFlags::WRONLY | OFlags::TRUNC;
        let opened = self.open_file(path, flags)?;
        let (file, _) = opened.ok_or_else(|| refused(Errno::NOENT.into()))?;
        // One call: sysfs takes every write as a whole new value.
        let written = once_free(path, || (&file).write(text.as_bytes())).map_err(refused)?;
        if written != text.len() {
            return Err(refused(io::ErrorKind::WriteZero.into()));
        }
        if let Some(observer) = OBSERVER.get() {
            observer(&self.full(path), text.trim_end());
        }
        Ok(())
    }

    fn list(&self, path: &str) -> Result<Option<Vec<Entry>>, FsError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let has_texts = self.has_texts();
        let followed = if has_texts { self.through_texts(path) } else { None };
        let path = followed.as_deref().unwrap_or(path);
        let Some(fd) = self.open_with(path, flags, Mode::empty())? else { return Ok(None) };
        let mut entries = Vec::new();
        let dir = Dir::read_from(fd.as_fd()).map_err(|errno| self.failed("list", path, errno))?;
        for item in dir {
            let item = item.map_err(|errno| self.failed("list", path, errno))?;
            let name = item.file_name().to_string_lossy();
            if name == "." || name == ".." {
                continue;
            }
            if entries.len() == LIST_ENTRIES_MAX {
                return Err(FsError::TooLarge { path: self.full(path), limit: "65,536 entries" });
            }
            // A process or device may end between its listing and its check.
            match self.kind(&fd, &name, path, item.file_type()) {
                Ok(kind) => {
                    let entry = format!("{path}/{name}");
                    let may_be = has_texts && kind == EntryKind::File;
                    let target = may_be.then(|| self.target_text(&entry)).flatten();
                    let kind = target.map_or(kind, EntryKind::Link);
                    entries.push(Entry { name: name.into_owned(), kind });
                }
                Err(error) if error.errno() == Some(Errno::NOENT.raw_os_error()) => {}
                Err(error) => return Err(error),
            }
        }
        entries.sort();
        Ok(Some(entries))
    }
}

/// A recording that stands for `/`. It can be read and listed, not written.
#[derive(Clone, Debug, Default)]
pub struct TreeFs(pub Tree);

impl Fs for TreeFs {
    fn read(&self, path: &str) -> Result<Option<String>, FsError> {
        let text = self.0.text(path).filter(|_| self.0.link(path).is_none());
        Ok(text.map(|text| format!("{text}\n")))
    }

    fn write(&self, path: &str, _text: &str) -> Result<(), FsError> {
        Err(FsError::Recording { path: path.to_string() })
    }

    fn list(&self, path: &str) -> Result<Option<Vec<Entry>>, FsError> {
        let path = path.trim_matches('/');
        let entries: Vec<Entry> = self
            .0
            .children(path)
            .map(|name| {
                let below = format!("{path}/{name}");
                let kind = match (self.0.link(&below), self.0.text(&below)) {
                    (Some(target), _) => EntryKind::Link(target.to_string()),
                    (None, Some(_)) => EntryKind::File,
                    (None, None) => EntryKind::Directory,
                };
                Entry { name: name.to_string(), kind }
            })
            .collect();
        let there = !entries.is_empty() || self.0.exists(path);
        Ok(there.then_some(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn root() -> (tempfile::TempDir, RootFs) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("root/sys/a")).unwrap();
        std::fs::write(dir.path().join("root/sys/a/value"), "7\n").unwrap();
        std::fs::write(dir.path().join("secret"), "outside\n").unwrap();
        let fs = RootFs::new(dir.path().join("root")).unwrap();
        (dir, fs)
    }

    #[test]
    fn absence_is_not_an_error_but_writing_to_it_is() {
        let (_dir, fs) = root();
        assert_eq!(fs.read("sys/a/none").unwrap(), None);
        assert_eq!(fs.read("sys/a/value/below").unwrap(), None);
        assert_eq!(fs.list("sys/none").unwrap(), None);
        assert!(fs.exists("sys/a/value").unwrap() && !fs.exists("sys/b/value").unwrap());
        let error = fs.write("sys/a/none", "1").unwrap_err();
        assert_eq!(error.errno(), Some(Errno::NOENT.raw_os_error()));
        assert!(error.to_string().contains("sys/a/none") && error.to_string().contains("`1`"));
    }

    #[test]
    fn a_write_replaces_the_text() {
        let (_dir, fs) = root();
        fs.write("/sys/a/value", "8").unwrap();
        assert_eq!(fs.read("sys/a/value").unwrap().as_deref(), Some("8"));
    }

    #[test]
    fn links_are_followed_as_if_the_root_were_slash() {
        let (dir, fs) = root();
        let at = |name: &str| dir.path().join("root/sys").join(name);
        symlink("/sys/a/value", at("absolute")).unwrap();
        symlink("../../../secret", at("relative")).unwrap();
        symlink(dir.path().join("secret"), at("host")).unwrap();
        symlink("loop", at("loop")).unwrap();
        assert_eq!(fs.read("sys/absolute").unwrap().as_deref(), Some("7\n"));
        for leads_out in ["sys/relative", "sys/host", "../secret"] {
            assert_eq!(fs.read(leads_out).unwrap(), None, "{leads_out}");
            assert!(fs.write(leads_out, "x").is_err());
        }
        assert!(matches!(fs.read("sys/loop"), Err(FsError::Call { call: "open", .. })));
        assert_eq!(std::fs::read_to_string(dir.path().join("secret")).unwrap(), "outside\n");
    }

    #[test]
    fn directories_and_fifos_are_refused_without_waiting() {
        let (dir, fs) = root();
        let fifo = dir.path().join("root/sys/fifo");
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        for path in ["sys/fifo", "sys/a"] {
            assert!(matches!(fs.read(path), Err(FsError::NotAFile { .. })), "{path}");
            assert!(fs.write(path, "x").is_err(), "{path}");
        }
    }

    #[test]
    fn directory_lists_are_sorted_and_include_the_entry_kind() {
        let (dir, fs) = root();
        symlink("a", dir.path().join("root/sys/link")).unwrap();
        std::fs::write(dir.path().join("root/sys/b"), "").unwrap();
        let entry = |name: &str, kind| Entry { name: name.into(), kind };
        let expected = vec![
            entry("a", EntryKind::Directory),
            entry("b", EntryKind::File),
            entry("link", EntryKind::Link("a".into())),
        ];
        assert_eq!(fs.list("sys").unwrap(), Some(expected));
    }

    #[test]
    fn text_that_is_not_utf8_is_read_all_the_same() {
        let (dir, fs) = root();
        std::fs::write(dir.path().join("root/vendor"), b"caf\xe9\n").unwrap();
        assert_eq!(fs.read("vendor").unwrap().as_deref(), Some("caf\u{fffd}\n"));
    }
}
