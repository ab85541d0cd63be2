//! Exclusive claims on files and directories, which are removed when their process ends, even after it was killed.
//!
//! A [`Claim`] is a lock (flock) on a file, `NAME.claim` beside the claimed file, so one process has it at a time. It
//! contains its holder and the files created, one JSON object per line:
//! ```text
//! {"schema":"nearfar.claim/1","pid":812,"started_ticks":40210,"of":"tier"}
//! {"path":"/run/tierd/node0/max_bw"}
//! {"path":"/run/tierd/node0/max_bw","inode":5210}
//! ```
//! `of` (optional) is the purpose. A process that starts another to do the work passes the claim on with the open file
//! ([`Claim::hand_over`], [`Claim::inherit`]), so that the claim is never free in between. A path is recorded before
//! the file is created, its inode number afterwards. The next holder after a killed one removes the files it created:
//! those with the same inode number, and empty directories. A truncated line is ignored: its action was not done.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::lock;
use crate::process::Identity;

const SCHEMA: &str = "nearfar.claim/1";
/// Larger files are not claims.
const SIZE_MAX: u64 = 4 << 20;

/// Reasons why a claim failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// A file or directory can't be used.
    #[error("can't {call} {}{}: {source}", path.display(), needs_root(source))]
    Call {
        /// `create`, `lock`, `write` and so on.
        call: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The errno.
        source: io::Error,
    },
    /// The parent directory is missing.
    #[error("there is no directory {}: make it, or name another", path.display())]
    NoDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// Another process has the claim.
    #[error("{} is kept by process {} already; end that first (kill {1}), or name another file", path.display(), holder.identity.pid)]
    Held {
        /// The claimed path.
        path: PathBuf,
        /// The holder.
        holder: Holder,
    },
    /// Other users could have written a file that must be trusted.
    #[error("{} belongs to another user or is writable by others, so it is not trusted; remove it, or name another", path.display())]
    Untrusted {
        /// The file or directory.
        path: PathBuf,
    },
    /// A foreign file exists already.
    #[error("{} is there already and is not nearfar's: {hint}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The way out.
        hint: &'static str,
    },
}

fn needs_root(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            " (this needs root, or a directory of your own)"
        }
        _ => "",
    }
}

/// A claim's holder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    schema: String,
    /// Its process.
    #[serde(flatten)]
    pub identity: Identity,
    /// Its purpose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
}

impl Holder {
    /// A process with its purpose.
    #[must_use]
    pub fn new(identity: Identity, of: Option<&str>) -> Self {
        Self { schema: SCHEMA.into(), identity, of: of.map(str::to_owned) }
    }

    /// The process that has the lock on a file without a readable record, as far as the kernel shows it (else pid 0).
    fn unrecorded(file: &File) -> Self {
        let identity = lock::holder_of(file).and_then(Identity::of).unwrap_or_default();
        Self { identity, ..Self::default() }
    }

    /// Whether the claim has its record, with its purpose. A holder that has just taken it has not yet written that.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        !self.schema.is_empty()
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Made {
    path: PathBuf,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    inode: Option<u64>,
}

/// An exclusive claim. Dropping it removes all files created with it, and then itself.
#[derive(Debug)]
pub struct Claim {
    file: File,
    path: PathBuf,
    /// In order of creation.
    made: Vec<Made>,
    /// Files of the previous, killed holder, which were removed.
    recovered: Vec<PathBuf>,
    /// Whether it was passed on to a child.
    left: bool,
}

impl Claim {
    /// Takes the claim on `about`, whose directory is created if necessary, and removes files of a killed holder.
    ///
    /// # Errors
    /// [`ClaimError`]; nothing is created then.
    pub fn take(about: &Path) -> Result<Self, ClaimError> {
        Self::take_for(about, None)
    }

    /// The same, with a purpose that others can read.
    ///
    /// # Errors
    /// [`ClaimError`]; nothing is created then.
    pub fn take_for(about: &Path, of: Option<&str>) -> Result<Self, ClaimError> {
        let dir = parent(about);
        let is_new = make_dir(dir)?;
        let taken = Self::take_in(about, (dir, is_new), of);
        if taken.is_err() && is_new {
            let _ = fs::remove_dir(dir);
        }
        taken
    }

    /// The running holder of the claim on `about`.
    #[must_use]
    pub fn holder(about: &Path) -> Option<Holder> {
        let (file, _) = open(&beside(about), false).ok()??;
        text_of(&file).lines().next().and_then(holder).filter(|holder| holder.identity.is_running())
    }

    /// The open file for a child to [inherit](Self::inherit). The claim is the child's once it has inherited it:
    /// [leave](Self::leave) it then.
    ///
    /// # Errors
    /// [`ClaimError::Call`].
    pub fn hand_over(&self) -> Result<File, ClaimError> {
        self.file.try_clone().map_err(failed("share", &self.path))
    }

    /// Leaves the claim to a child that has the open file, without removing anything.
    pub fn leave(mut self) {
        self.left = true;
    }

    /// Takes the claim over from the parent, through its open `file`.
    ///
    /// # Errors
    /// [`ClaimError`], also if it is another file.
    pub fn inherit(file: File, about: &Path, of: Option<&str>) -> Result<Self, ClaimError> {
        let path = beside(about);
        let number =
            |found: io::Result<fs::Metadata>| found.map(|found| (found.dev(), found.ino()));
        let is_it = number(file.metadata()).ok() == number(fs::symlink_metadata(&path)).ok();
        if !is_it || file.try_lock().is_err() {
            return Err(ClaimError::Foreign { path, hint: "start this without --claimed" });
        }
        let made = made(&text_of(&file));
        let claim = Self { file, path, made, recovered: Vec::new(), left: false };
        claim.begin(of)?;
        claim.made.iter().try_for_each(|made| claim.line(made))?;
        Ok(claim)
    }

    /// Records the holder.
    fn begin(&self, of: Option<&str>) -> Result<(), ClaimError> {
        self.file.set_len(0).map_err(failed("write", &self.path))?;
        self.line(&Holder::new(Identity::own(), of))
    }

    fn take_in(
        about: &Path,
        (dir, is_new): (&Path, bool),
        of: Option<&str>,
    ) -> Result<Self, ClaimError> {
        check_dir(dir)?;
        let mut claim = loop {
            if let Some(claim) = Self::lock(about, true)? {
                break claim;
            }
        };
        let was_made = claim.recover()?;
        claim.made.clear();
        claim.begin(of)?;
        if is_new || was_made {
            claim.note(dir, None)?;
        }
        Ok(claim)
    }

    /// Removes files of a killed holder; returns their paths.
    ///
    /// # Errors
    /// [`ClaimError`], also if the holder is running.
    pub fn clean(about: &Path) -> Result<Vec<PathBuf>, ClaimError> {
        let path = beside(about);
        if fs::symlink_metadata(&path).is_err_and(|why| why.kind() == io::ErrorKind::NotFound) {
            return Ok(Vec::new());
        }
        check_dir(parent(about))?;
        let Some(mut claim) = Self::lock(about, false)? else { return Ok(Vec::new()) };
        claim.recover()?;
        Ok(std::mem::take(&mut claim.recovered))
    }

    /// Opens and locks the file; `None` if it was removed during the wait, or is missing and should not be created.
    fn lock(about: &Path, make: bool) -> Result<Option<Self>, ClaimError> {
        let path = beside(about);
        let Some((file, found)) = open(&path, make)? else { return Ok(None) };
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                let recorded = text_of(&file).lines().next().and_then(holder);
                let holder = recorded.unwrap_or_else(|| Holder::unrecorded(&file));
                return Err(ClaimError::Held { path: about.into(), holder });
            }
            locked => locked.map_err(io::Error::from).map_err(failed("lock", &path))?,
        }
        // The previous holder may have removed the file meanwhile.
        let is_there = fs::symlink_metadata(&path).is_ok_and(|there| there.ino() == found.ino());
        let made = Vec::new();
        Ok(is_there.then(|| Self { file, path, made, recovered: Vec::new(), left: false }))
    }

    /// Removes the files recorded in the claim, except the directory that contains it; returns whether that was
    /// created.
    fn recover(&mut self) -> Result<bool, ClaimError> {
        self.made = made(&text_of(&self.file));
        let own = self.take_own_dir();
        self.recovered = self.remove()?;
        let is_own = own.is_some();
        self.made.extend(own);
        Ok(is_own)
    }

    fn take_own_dir(&mut self) -> Option<Made> {
        let at = self.made.iter().position(|made| made.path == parent(&self.path))?;
        Some(self.made.remove(at))
    }

    /// Creates a file that does not exist, readable by all.
    ///
    /// # Errors
    /// [`ClaimError`]; `hint` is the way out if there is a file already.
    pub fn create(&mut self, path: &Path, hint: &'static str) -> Result<File, ClaimError> {
        if fs::symlink_metadata(path).is_ok() {
            return Err(ClaimError::Foreign { path: path.into(), hint });
        }
        self.note(path, None)?;
        let made = File::options().read(true).write(true).create_new(true).mode(0o644).open(path);
        if made.is_err() {
            self.made.pop();
        }
        let file = made.map_err(failed("create", path))?;
        // Independent of the umask.
        file.set_permissions(fs::Permissions::from_mode(0o644)).map_err(failed("open up", path))?;
        let inode = file.metadata().map_err(failed("look at", path))?.ino();
        self.made.pop();
        self.note(path, Some(inode))?;
        Ok(file)
    }

    /// Creates a directory, unless it exists.
    ///
    /// # Errors
    /// [`ClaimError`].
    pub fn create_dir(&mut self, path: &Path) -> Result<(), ClaimError> {
        if path.is_dir() {
            return Ok(());
        }
        self.note(path, None)?;
        make_dir(path).map(drop).inspect_err(|_| {
            self.made.pop();
        })
    }

    /// Renames a created file, replacing any file with that name.
    ///
    /// # Errors
    /// [`ClaimError`].
    pub fn rename(&mut self, from: &Path, to: &Path) -> Result<(), ClaimError> {
        let inode = fs::metadata(from).map_err(failed("look at", from))?.ino();
        self.note(to, Some(inode))?;
        fs::rename(from, to).map_err(failed("create", to))?;
        self.made.retain(|made| made.path != from);
        Ok(())
    }

    fn note(&mut self, path: &Path, inode: Option<u64>) -> Result<(), ClaimError> {
        let made = Made { path: path.into(), inode };
        self.line(&made)?;
        self.made.push(made);
        Ok(())
    }

    fn line(&self, value: &impl Serialize) -> Result<(), ClaimError> {
        let written = serde_json::to_string(value).map_err(io::Error::from).and_then(|text| {
            (&self.file).write_all(format!("{text}\n").as_bytes())?;
            self.file.sync_data()
        });
        written.map_err(failed("write", &self.path))
    }

    /// Removes created files, last first: those with the same inode number, and empty directories. Returns their paths.
    fn remove(&mut self) -> Result<Vec<PathBuf>, ClaimError> {
        let mut removed = Vec::new();
        while let Some(Made { path, inode }) = self.made.pop() {
            let Ok(found) = fs::symlink_metadata(&path) else { continue };
            let gone = if found.is_dir() {
                fs::remove_dir(&path)
            } else if found.is_file() && inode.is_none_or(|inode| inode == found.ino()) {
                fs::remove_file(&path)
            } else {
                continue;
            };
            match gone {
                Ok(()) => removed.push(path),
                // It contains files of others.
                Err(why) if why.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                Err(why) if why.kind() == io::ErrorKind::NotFound => {}
                Err(why) => return Err(failed("remove", &path)(why)),
            }
        }
        Ok(removed)
    }

    /// Removes all created files, and the claim.
    ///
    /// # Errors
    /// [`ClaimError`] of a file that could not be removed.
    pub fn end(mut self) -> Result<(), ClaimError> {
        self.give_up()
    }

    fn give_up(&mut self) -> Result<(), ClaimError> {
        // The directory can be removed only after the claim, which is in it.
        let dir = self.take_own_dir();
        let removed = self.remove();
        let _ = fs::remove_file(&self.path);
        if let Some(dir) = dir {
            let _ = fs::remove_dir(dir.path);
        }
        removed.map(drop)
    }

    /// Files of the previous, killed holder, which were removed.
    #[must_use]
    pub fn recovered(&self) -> &[PathBuf] {
        &self.recovered
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.left {
            // Errors can't be reported here; the next holder retries.
            let _ = self.give_up();
        }
    }
}

fn beside(about: &Path) -> PathBuf {
    let mut name = about.as_os_str().to_owned();
    name.push(".claim");
    name.into()
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn failed(call: &'static str, path: &Path) -> impl Fn(io::Error) -> ClaimError + use<> {
    let path = path.to_path_buf();
    move |source| ClaimError::Call { call, path: path.clone(), source }
}

/// Creates a directory in an existing one; returns whether it is new.
fn make_dir(dir: &Path) -> Result<bool, ClaimError> {
    match DirBuilder::new().mode(0o755).create(dir) {
        Ok(()) => {
            // By a descriptor: in a directory of another user the name may lead elsewhere by now.
            let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
            let flags = i32::try_from(flags.bits()).unwrap_or(0);
            let made = File::options().read(true).custom_flags(flags).open(dir);
            let open_up = |made: File| made.set_permissions(fs::Permissions::from_mode(0o755));
            made.and_then(open_up).map_err(failed("open up", dir))?;
            Ok(true)
        }
        Err(why) if why.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(false),
        Err(why) if why.kind() == io::ErrorKind::NotFound => {
            Err(ClaimError::NoDirectory { path: parent(dir).into() })
        }
        Err(why) => Err(failed("create", dir)(why)),
    }
}

/// Checks that no other user can create a claim there.
fn check_dir(dir: &Path) -> Result<(), ClaimError> {
    let found = fs::metadata(dir).map_err(failed("look at", dir))?;
    let me = rustix::process::geteuid().as_raw();
    let is_sticky = found.mode() & 0o1000 != 0;
    if [0, me].contains(&found.uid()) && (is_sticky || found.mode() & 0o022 == 0) {
        return Ok(());
    }
    Err(ClaimError::Untrusted { path: dir.into() })
}

fn text_of(file: &File) -> String {
    let mut bytes = Vec::new();
    // An unreadable claim has no entries.
    let _ = rustix::fs::seek(file, rustix::fs::SeekFrom::Start(0));
    let _ = file.take(SIZE_MAX).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn holder(line: &str) -> Option<Holder> {
    serde_json::from_str(line).ok()
}

/// The files recorded in the text. A truncated line is ignored.
fn made(text: &str) -> Vec<Made> {
    let mut all: Vec<Made> = Vec::new();
    for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        let Ok(made) = serde_json::from_str::<Made>(line) else { continue };
        all.retain(|before| before.path != made.path);
        all.push(made);
    }
    all
}

/// Opens a claim's file; `None` if it is missing and should not be created.
fn open(path: &Path, make: bool) -> Result<Option<(File, fs::Metadata)>, ClaimError> {
    let mut options = File::options();
    options.read(true).append(true).create(make).mode(0o600);
    // Not through a link of another user.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let opened = options.custom_flags(i32::try_from(flags).unwrap_or(0)).open(path);
    let file = match opened {
        Err(error) if !make && error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(failed("open", path))?,
    };
    let found = file.metadata().map_err(failed("look at", path))?;
    if found.uid() != rustix::process::geteuid().as_raw()
        || found.mode() & 0o022 != 0
        || !found.is_file()
    {
        return Err(ClaimError::Untrusted { path: path.into() });
    }
    lock::restrict(&file, &found).map_err(failed("restrict", path))?;
    Ok(Some((file, found)))
}

/// Any bytes as the lines of a claim, for fuzz targets.
#[cfg(any(fuzzing, test))]
pub fn fuzz(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = text.lines().next().and_then(holder).map(|holder| holder.identity.is_running());
    let all = made(&text);
    assert!(
        all.iter()
            .enumerate()
            .all(|(at, one)| all[..at].iter().all(|other| other.path != one.path))
    );
}

#[cfg(test)]
mod tests;
