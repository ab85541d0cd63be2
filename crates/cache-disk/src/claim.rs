//! Opens a file or block device exclusively, if no other user can write to it.
//!
//! It must belong to root or to the user of this process; a file must not be writable by its group or by others, a
//! device not by others (the group of devices is one of administrators, such as `disk`). Symbolic links are refused,
//! because other users may own them. The kernel refuses a device that is mounted or part of another one (O_EXCL).

use std::fs::{File, TryLockError};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, StatVfs, fstat, lstat, open, statvfs};
use rustix::io::Errno;

use super::error::Error;

fn flags(mode: OFlags) -> OFlags {
    mode | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC
}

fn failed(path: &Path, errno: Errno) -> Error {
    let path = path.to_path_buf();
    match errno {
        Errno::LOOP => Error::Link { path },
        Errno::BUSY => Error::InUse { path },
        Errno::ISDIR => Error::Kind { path },
        _ => Error::Io { path, call: "open", source: errno.into() },
    }
}

/// Opens an existing file or device and locks it. `None` if there is none.
pub(super) fn claim(path: &Path, mode: OFlags) -> Result<Option<File>, Error> {
    match open(path, flags(mode), Mode::empty()) {
        Ok(file) => take(path, file.into(), mode).map(Some),
        Err(Errno::NOENT) if is_among_devices(path) => Err(Error::NoDevice { path: path.into() }),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(failed(path, errno)),
    }
}

/// Whether a new file would be one in /dev, which has its files in memory.
fn is_among_devices(path: &Path) -> bool {
    let dir = path.parent().and_then(|dir| dir.canonicalize().ok());
    dir.is_some_and(|dir| dir.starts_with("/dev") && !dir.starts_with("/dev/shm"))
}

/// Creates a file that does not exist.
pub(super) fn make(path: &Path) -> Result<File, Error> {
    let file = open(path, flags(OFlags::RDWR) | OFlags::CREATE, Mode::RUSR | Mode::WUSR);
    take(path, file.map_err(|errno| failed(path, errno))?.into(), OFlags::RDWR)
}

/// Removes a file that was created here, unless its name leads to another file now. An empty file left behind is harmless.
pub(super) fn unmake(path: &Path, made: &File) {
    let identity = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
    let same = matches!((lstat(path), fstat(made)), (Ok(now), Ok(made)) if identity(now) == identity(made));
    if same {
        let _ = std::fs::remove_file(path);
    }
}

/// The file system's free space for a file that does not exist, if it may be created.
pub(super) fn room_for_new(path: &Path) -> Result<StatVfs, Error> {
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let rights = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    let room = rustix::fs::access(dir, rights).and_then(|()| statvfs(dir));
    room.map_err(|errno| failed(path, errno))
}

fn take(path: &Path, file: File, mode: OFlags) -> Result<File, Error> {
    let fail = |call, source| Error::Io { path: path.into(), call, source };
    let stat = fstat(&file).map_err(|errno| fail("stat", errno.into()))?;
    let (others, write) = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => (0o022, "go-w"),
        FileType::BlockDevice => (0o002, "o-w"),
        _ => return Err(Error::Kind { path: path.into() }),
    };
    let untrusted = |why| Err(Error::Untrusted { path: path.into(), why });
    let own = rustix::process::geteuid().as_raw();
    if stat.st_uid != 0 && stat.st_uid != own {
        return untrusted(format!(
            "is owned by user {}, and cached values must not be readable or writable by another user; its owner must be root or user {own}",
            stat.st_uid
        ));
    }
    if stat.st_mode & others != 0 {
        return untrusted(format!(
            "other users may write to it (mode {:o}); take that away: chmod {write}",
            stat.st_mode & 0o7777
        ));
    }
    // A check only needs to exclude writers.
    let locked = if mode == OFlags::RDONLY { file.try_lock_shared() } else { file.try_lock() };
    match locked {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::InUse { path: path.into() }),
        Err(TryLockError::Error(source)) => Err(fail("lock", source)),
    }
}
