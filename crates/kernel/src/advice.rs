//! The advice page as a file: one process publishes it ([`Publisher`]), all others map and read it ([`Reader`]).
//!
//! Its layout is in `nearfar_policy::advice`. The file is created under another name and renamed when complete, then
//! updated in place; it is removed with its publisher, and one left by a killed publisher is replaced by the next. A
//! reader trusts only pages of root and of its own user: the owner of a mapped file could truncate it and so end its
//! readers.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nearfar_policy::advice::{self, Page, Unreadable};
use nearfar_topology::Nanoseconds;
use rustix::fs::{Mode, OFlags};

use crate::claim::{Claim, ClaimError};
use crate::environment;
use crate::sys::shared::{Access, Shared};

/// Number of reads of a page that is being written.
const TRIES: usize = 100;
/// The way out, if the file is not a page.
const FOREIGN: &str = "it was left as it is; name another file for the advice page";

/// Default path of the page: `$NEARFAR_ADVICE`, or `/run/nearfar/advice`.
#[must_use]
pub fn default_path() -> PathBuf {
    let named = environment::var("NEARFAR_ADVICE").filter(|named| !named.is_empty());
    PathBuf::from(named.unwrap_or_else(|| "/run/nearfar/advice".into()))
}

/// Reasons why there is no page to read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdviceError {
    /// The file can't be read.
    #[error("can't read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The errno.
        source: io::Error,
    },
    /// It belongs to another user.
    #[error("{} is another user's, or writable by others: such a page is not trusted", path.display())]
    Untrusted {
        /// The file.
        path: PathBuf,
    },
    /// It contains no page.
    #[error("{} is {why}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: Unreadable,
    },
}

/// A page of another process, for reading.
#[derive(Debug)]
pub struct Reader {
    words: Shared,
    path: PathBuf,
}

impl Reader {
    /// Maps the page at `path`; `None` if there is no file.
    ///
    /// # Errors
    /// [`AdviceError`].
    pub fn open(path: &Path) -> Result<Option<Self>, AdviceError> {
        let io = |source: io::Error| AdviceError::Io { path: path.into(), source };
        // Neither another user's link nor a FIFO, whose open would block.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = match rustix::fs::open(path, flags, Mode::empty()) {
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(None),
            opened => File::from(opened.map_err(|errno| io(errno.into()))?),
        };
        let found = file.metadata().map_err(io)?;
        let me = rustix::process::geteuid().as_raw();
        if ![0, me].contains(&found.uid()) || found.mode() & 0o022 != 0 || !found.is_file() {
            return Err(AdviceError::Untrusted { path: path.into() });
        }
        if found.len() < advice::WORDS as u64 * 8 {
            return Err(AdviceError::Unreadable { path: path.into(), why: Unreadable::Foreign });
        }
        let words = Shared::map(&file, advice::WORDS, Access::Read).map_err(io)?;
        Ok(Some(Self { words, path: path.into() }))
    }

    /// The current contents.
    ///
    /// # Errors
    /// [`AdviceError::Unreadable`].
    pub fn read(&self) -> Result<Page, AdviceError> {
        let mut found = Err(Unreadable::Torn);
        for _ in 0..TRIES {
            found = advice::read(|at| self.words.load(at));
            if found != Err(Unreadable::Torn) {
                break;
            }
            std::hint::spin_loop();
        }
        found.map_err(|why| AdviceError::Unreadable { path: self.path.clone(), why })
    }

    fn is_page(&self) -> bool {
        let why = advice::read(|at| self.words.load(at)).err();
        why.is_none_or(|why| why != Unreadable::Foreign)
    }
}

/// A page owned by this process. Dropping it removes it, and all other files made with its claim.
#[derive(Debug)]
pub struct Publisher {
    words: Shared,
    sequence: u64,
    last: Page,
    claim: Claim,
}

impl Publisher {
    /// Publishes `first` at `path`, whose directory is created if necessary.
    ///
    /// # Errors
    /// [`ClaimError`]; nothing is created then.
    pub fn start(path: &Path, first: Page) -> Result<Self, ClaimError> {
        let mut claim = Claim::take(path)?;
        // Files of a killed publisher are gone by now; a page without a claim has no owner, and any other file is
        // foreign.
        match Reader::open(path) {
            Ok(None) => {}
            Ok(Some(page)) if page.is_page() => {}
            _ => return Err(ClaimError::Foreign { path: path.into(), hint: FOREIGN }),
        }
        let mut new = path.as_os_str().to_owned();
        new.push(".new");
        let new = PathBuf::from(new);
        let file = claim.create(&new, "remove it")?;
        let failed = |source| ClaimError::Call { call: "write", path: new.clone(), source };
        file.set_len(advice::WORDS as u64 * 8).map_err(failed)?;
        let words = Shared::map(&file, advice::WORDS, Access::Write).map_err(failed)?;
        let mut page = Self { words, sequence: 0, last: first.clone(), claim };
        page.publish(first);
        page.claim.rename(&new, path)?;
        Ok(page)
    }

    /// Updates the page.
    pub fn publish(&mut self, page: Page) {
        for (at, word) in page.stores(self.sequence) {
            self.words.store(at, word);
        }
        self.sequence = self.sequence.wrapping_add(2);
        self.last = page;
    }

    /// The claim, for further files that are removed with the page.
    pub fn claim(&mut self) -> &mut Claim {
        &mut self.claim
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        // Readers that have it mapped learn at once that it is no longer updated.
        self.publish(Page { heartbeat: Nanoseconds(0), ..self.last.clone() });
    }
}

/// Removes the page and other files of a killed publisher; returns their paths.
///
/// # Errors
/// [`ClaimError`], also if the publisher is running.
pub fn recover(path: &Path) -> Result<Vec<PathBuf>, ClaimError> {
    Claim::clean(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use nearfar_policy::advice::{Advice, Traffic};
    use nearfar_topology::{BasisPoints, NodeId};

    fn page(figure: u64) -> Page {
        let node = |id| Advice {
            node: NodeId(id),
            idle: Nanoseconds(figure),
            load: Nanoseconds(figure),
            pressure: 100,
            used: None,
            read: None,
            write: None,
            free: BasisPoints(1),
            weight: 8,
        };
        Page {
            heartbeat: Nanoseconds(figure),
            interval: Nanoseconds(10),
            pid: std::process::id(),
            traffic: Traffic::Unknown,
            cpu: Nanoseconds(figure),
            begun: Nanoseconds(figure),
            looks: figure,
            nodes: (0..8).map(node).collect(),
        }
    }

    #[test]
    fn a_published_page_is_readable_until_the_publisher_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nearfar/advice");
        assert!(Reader::open(&path).unwrap().is_none());
        let mut publisher = Publisher::start(&path, page(5)).unwrap();
        let (file, above) =
            (fs::metadata(&path).unwrap(), fs::metadata(path.parent().unwrap()).unwrap());
        assert_eq!((file.mode() & 0o777, above.mode() & 0o777), (0o644, 0o755));
        let reader = Reader::open(&path).unwrap().unwrap();
        assert_eq!(reader.read().unwrap(), page(5));
        publisher.publish(page(6));
        assert_eq!(reader.read().unwrap(), page(6));
        drop(publisher);
        assert_eq!(reader.read().unwrap().heartbeat, Nanoseconds(0));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
    }

    #[test]
    fn a_reader_never_sees_two_pages_mixed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("advice");
        let mut publisher = Publisher::start(&path, page(0)).unwrap();
        let reader = Reader::open(&path).unwrap().unwrap();
        let read = Arc::new(AtomicU64::new(0));
        let pages = Arc::clone(&read);
        let reading = std::thread::spawn(move || {
            loop {
                // A page written too fast to be read is read again.
                let Ok(found) = reader.read() else { continue };
                if found.heartbeat.0 == u64::MAX {
                    break;
                }
                assert_eq!(found, page(found.heartbeat.0));
                pages.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut figure = 1;
        while (figure < 20_000 || read.load(Ordering::Relaxed) < 100) && !reading.is_finished() {
            publisher.publish(page(figure));
            figure += 1;
            if figure % 64 == 0 {
                std::thread::yield_now();
            }
        }
        publisher.publish(page(u64::MAX));
        reading.join().unwrap();
    }

    #[test]
    fn a_file_that_is_not_an_advice_page_is_not_modified() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notes");
        for text in [String::from("mine"), "x".repeat(advice::WORDS * 8)] {
            fs::write(&path, &text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
            let error = Publisher::start(&path, page(1)).unwrap_err().to_string();
            assert!(error.contains("notes") && error.contains("left as it is"), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            let refused = Reader::open(&path).and_then(|page| page.unwrap().read());
            assert!(matches!(
                refused,
                Err(AdviceError::Unreadable { why: Unreadable::Foreign, .. })
            ));
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_page_that_others_may_write_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("advice");
        let _publisher = Publisher::start(&path, page(1)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(matches!(Reader::open(&path), Err(AdviceError::Untrusted { .. })));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(matches!(Reader::open(&link), Err(AdviceError::Io { .. })));
    }
}
