//! Files and directories that one process keeps while it runs, and that go with it, also after it was killed.
//!
//! A [`Claim`] is a lock (flock) on a file, `NAME.claim` beside the file that it is about, so one process has it at a time. In it
//! stands, a JSON object a line, who has it and what was made:
//! ```text
//! {"schema":"nearfar.claim/1","pid":812}
//! {"path":"/run/tierd/node0/max_bw"}
//! {"path":"/run/tierd/node0/max_bw","inode":5210}
//! ```
//! A path is noted before the file is made, with its number after. Who takes the claim of a process that was killed removes what
//! it had made: files that are still those, directories that are empty. A line that was cut off is none: what it was
//! about to say had not been done.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

const SCHEMA: &str = "nearfar.claim/1";
/// A larger file is none of ours.
const SIZE_MAX: u64 = 4 << 20;

/// Why something is not kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// A file or directory can't be used.
    #[error("can't {call} {}: {source}{}", path.display(), needs_root(source))]
    Call {
        /// `create`, `lock`, `write` and so on.
        call: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The errno.
        source: io::Error,
    },
    /// The directory above what is to be made is not there.
    #[error("there is no directory {}: make it, or name another", path.display())]
    NoDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// Another process has it.
    #[error("{} is kept by process {pid} already; end that first (kill {pid}), or name another file", path.display())]
    Held {
        /// What it is about.
        path: PathBuf,
        /// The process.
        pid: u32,
    },
    /// Others could have written what is to be trusted.
    #[error("{} belongs to another user or is writable by others, so it is not trusted; name another", path.display())]
    Untrusted {
        /// The file or directory.
        path: PathBuf,
    },
    /// There is something else already.
    #[error("{} is there already and is not nearfar's: {hint}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What to do.
        hint: &'static str,
    },
}

fn needs_root(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; this needs root, or a directory of your own"
        }
        _ => "",
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Holder {
    schema: String,
    pid: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct Made {
    path: PathBuf,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    inode: Option<u64>,
}

/// The right to keep something. Dropping it removes all that was made, and then itself.
#[derive(Debug)]
pub struct Claim {
    file: File,
    path: PathBuf,
    /// In the order in which it was made.
    made: Vec<Made>,
    /// What the one before, which was killed, had left and is removed.
    recovered: Vec<PathBuf>,
}

impl Claim {
    /// Takes the claim on `about`, whose directory is made if need be, and removes what a killed holder has left.
    ///
    /// # Errors
    /// [`ClaimError`]; nothing is made then.
    pub fn take(about: &Path) -> Result<Self, ClaimError> {
        let dir = parent(about);
        let is_new = make_dir(dir)?;
        let taken = Self::take_in(about, dir, is_new);
        if taken.is_err() && is_new {
            let _ = fs::remove_dir(dir);
        }
        taken
    }

    fn take_in(about: &Path, dir: &Path, is_new: bool) -> Result<Self, ClaimError> {
        check_dir(dir)?;
        let mut claim = loop {
            if let Some(claim) = Self::lock(about, true)? {
                break claim;
            }
        };
        let was_made = claim.recover()?;
        claim.made.clear();
        let failed = failed("write", &claim.path);
        claim.file.set_len(0).map_err(failed)?;
        claim.line(&Holder { schema: SCHEMA.into(), pid: std::process::id() })?;
        if is_new || was_made {
            claim.note(dir, None)?;
        }
        Ok(claim)
    }

    /// Removes what a killed holder has left; what that was.
    ///
    /// # Errors
    /// [`ClaimError`], also if a holder lives.
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

    /// Opens and locks the file; nothing if it went while it was waited for, or is not there and is not to be made.
    fn lock(about: &Path, make: bool) -> Result<Option<Self>, ClaimError> {
        let path = beside(about);
        let mut options = File::options();
        options.read(true).append(true).create(make).mode(0o600);
        // Not through a link that someone else has put there.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
        let opened = options.custom_flags(i32::try_from(flags).unwrap_or(0)).open(&path);
        let file = match opened {
            Err(error) if !make && error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failed("open", &path))?,
        };
        let found = file.metadata().map_err(failed("look at", &path))?;
        if found.uid() != rustix::process::geteuid().as_raw()
            || found.mode() & 0o022 != 0
            || !found.is_file()
        {
            return Err(ClaimError::Untrusted { path });
        }
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                let pid = said(&file).lines().next().and_then(holder).unwrap_or(0);
                return Err(ClaimError::Held { path: about.into(), pid });
            }
            locked => locked.map_err(io::Error::from).map_err(failed("lock", &path))?,
        }
        // Whoever had it before may have removed the file meanwhile.
        let is_there = fs::symlink_metadata(&path).is_ok_and(|there| there.ino() == found.ino());
        Ok(is_there.then(|| Self { file, path, made: Vec::new(), recovered: Vec::new() }))
    }

    /// Removes what the text in the file says was made, but for the directory that the file is in; whether that was made.
    fn recover(&mut self) -> Result<bool, ClaimError> {
        let text = said(&self.file);
        let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        for line in lines {
            let Ok(made) = serde_json::from_str::<Made>(line) else { continue };
            self.made.retain(|before| before.path != made.path);
            self.made.push(made);
        }
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

    /// Makes a file that was not there, as all may read it.
    ///
    /// # Errors
    /// [`ClaimError`]; `hint` says what to do where there is a file already.
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
        // Whatever the umask.
        file.set_permissions(fs::Permissions::from_mode(0o644)).map_err(failed("open up", path))?;
        let inode = file.metadata().map_err(failed("look at", path))?.ino();
        self.made.pop();
        self.note(path, Some(inode))?;
        Ok(file)
    }

    /// Makes a directory, unless it is there.
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

    /// Gives a file that was made another name, in the place of what has that name.
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

    /// Removes what was made, last first: files that are still those, directories that are empty. What was removed.
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
                // Others have put something there.
                Err(why) if why.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                Err(why) if why.kind() == io::ErrorKind::NotFound => {}
                Err(why) => return Err(failed("remove", &path)(why)),
            }
        }
        Ok(removed)
    }

    /// Removes all that was made, and the claim.
    ///
    /// # Errors
    /// [`ClaimError`], with what could not be removed.
    pub fn end(mut self) -> Result<(), ClaimError> {
        self.give_up()
    }

    fn give_up(&mut self) -> Result<(), ClaimError> {
        // The directory can only go after the claim, which is in it.
        let dir = self.take_own_dir();
        let removed = self.remove();
        let _ = fs::remove_file(&self.path);
        if let Some(dir) = dir {
            let _ = fs::remove_dir(dir.path);
        }
        removed.map(drop)
    }

    /// What the holder before, which was killed, had left.
    #[must_use]
    pub fn recovered(&self) -> &[PathBuf] {
        &self.recovered
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // There is nobody to tell; the next holder tries again.
        let _ = self.give_up();
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

/// Makes the directory in one that is there; whether it is new.
fn make_dir(dir: &Path) -> Result<bool, ClaimError> {
    match DirBuilder::new().mode(0o755).create(dir) {
        Ok(()) => {
            let all = fs::Permissions::from_mode(0o755);
            fs::set_permissions(dir, all).map_err(failed("open up", dir))?;
            Ok(true)
        }
        Err(why) if why.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(false),
        Err(why) if why.kind() == io::ErrorKind::NotFound => {
            Err(ClaimError::NoDirectory { path: parent(dir).into() })
        }
        Err(why) => Err(failed("create", dir)(why)),
    }
}

/// Nobody else may put a claim of theirs there.
fn check_dir(dir: &Path) -> Result<(), ClaimError> {
    let found = fs::metadata(dir).map_err(failed("look at", dir))?;
    let me = rustix::process::geteuid().as_raw();
    let is_sticky = found.mode() & 0o1000 != 0;
    if [0, me].contains(&found.uid()) && (is_sticky || found.mode() & 0o022 == 0) {
        return Ok(());
    }
    Err(ClaimError::Untrusted { path: dir.into() })
}

fn said(file: &File) -> String {
    let mut bytes = Vec::new();
    // What can't be read says nothing.
    let _ = rustix::fs::seek(file, rustix::fs::SeekFrom::Start(0));
    let _ = file.take(SIZE_MAX).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn holder(line: &str) -> Option<u32> {
    let holder: Holder = serde_json::from_str(line).ok()?;
    Some(holder.pid)
}

#[cfg(test)]
mod tests;
