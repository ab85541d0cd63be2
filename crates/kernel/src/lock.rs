//! Lock files (flock(2)): exclusive, private to their owner, with a deadline.
//!
//! flock needs no permission beyond an open descriptor, and a descriptor for reading is enough. So other users could
//! hold a lock file that they can open without limit. Lock files here have mode 0600, belong to this user, and are not
//! opened through symbolic links. A wait ends at a deadline with an error that names the lock holder, as `/proc/locks`
//! has it (proc_locks(5)). A lock ends with its holder, so no lock is ever stale.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;

use crate::clock::{Stopwatch, sleep};
use crate::fs::{need_after, need_before};

/// Timeout of waiting for a lock that is held only for moments.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two attempts.
const NAP: Duration = Duration::from_millis(10);
const LOCKS: &str = "/proc/locks";

/// A held lock. Dropping it releases it, even if a forked child still has the file open.
#[derive(Debug)]
pub struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // If that fails, it is released when the last copy is closed.
        let _ = self.0.unlock();
    }
}

/// Reasons why a lock was not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Another process has it.
    #[error("{} is locked by {}", path.display(), holder(*pid))]
    Held {
        /// The lock file.
        path: PathBuf,
        /// The lock holder, where `/proc/locks` shows it.
        pid: Option<u32>,
    },
    /// Other users could hold it without limit.
    #[error("{} belongs to another user or is no regular file, so it is not trusted; remove it", path.display())]
    Untrusted {
        /// The lock file.
        path: PathBuf,
    },
    /// A call failed.
    #[error("can't {call} {}", path.display())]
    Call {
        /// `open`, `lock`.
        call: &'static str,
        /// The lock file.
        path: PathBuf,
        /// The errno.
        source: io::Error,
    },
}

fn holder(pid: Option<u32>) -> String {
    let Some(pid) = pid else { return "a process that /proc/locks does not show".into() };
    let command = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("process {pid} ({})", command.trim().escape_debug())
}

impl LockError {
    /// Whether this user lacks the permission.
    #[must_use]
    pub fn is_permission(&self) -> bool {
        let denied = [io::ErrorKind::PermissionDenied, io::ErrorKind::ReadOnlyFilesystem];
        matches!(self, Self::Call { source, .. } if denied.contains(&source.kind()))
            || matches!(self, Self::Untrusted { .. }) && !rustix::process::geteuid().is_root()
    }

    /// What the call needs if it was refused, as the end of a message.
    pub(crate) fn need_after(&self, subject: &str) -> String {
        need_after(subject, self.is_permission())
    }

    /// The same as the beginning of a message.
    pub(crate) fn need_before(&self, subject: &str) -> String {
        need_before(subject, self.is_permission())
    }
}

impl Lock {
    /// Takes the lock on the file `path`, which is created if necessary; waits for at most `patience`.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn take(path: &Path, patience: Duration) -> Result<Self, LockError> {
        let file = open(path)?;
        wait(&file, path, patience, File::try_lock)?;
        Ok(Self(file))
    }
}

/// Waits for a lock on an open file, taken by `lock`, for at most `patience`.
pub(crate) fn wait(
    file: &File,
    path: &Path,
    patience: Duration,
    lock: impl Fn(&File) -> Result<(), TryLockError>,
) -> Result<(), LockError> {
    let waited = Stopwatch::start();
    loop {
        match lock(file) {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if waited.elapsed() >= patience => {
                return Err(LockError::Held { path: path.into(), pid: holder_of(file) });
            }
            Err(TryLockError::WouldBlock) => sleep(NAP),
            Err(TryLockError::Error(source)) => return Err(failed("lock", path)(source)),
        }
    }
}

pub(crate) fn failed(call: &'static str, path: &Path) -> impl Fn(io::Error) -> LockError + use<> {
    let path = path.to_path_buf();
    move |source| LockError::Call { call, path: path.clone(), source }
}

pub(crate) fn open(path: &Path) -> Result<File, LockError> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let mut options = File::options();
    options.custom_flags(i32::try_from(flags).unwrap_or(0)).mode(0o600);
    let mut file = options.clone().create(true).truncate(false).write(true).open(path);
    if file.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ReadOnlyFilesystem) {
        // Settings are restored by a journal on a file system with errors, too.
        file = options.read(true).open(path);
    }
    let file = file.map_err(failed("open", path))?;
    let found = file.metadata().map_err(failed("open", path))?;
    if found.uid() != rustix::process::geteuid().as_raw() || !found.is_file() {
        return Err(LockError::Untrusted { path: path.into() });
    }
    restrict(&file, &found).map_err(failed("restrict", path))?;
    Ok(file)
}

/// Removes the access of other users, which an earlier version gave: any process that can open a file can keep it locked.
pub(crate) fn restrict(file: &File, found: &fs::Metadata) -> io::Result<()> {
    if found.mode() & 0o077 == 0 {
        return Ok(());
    }
    file.set_permissions(fs::Permissions::from_mode(0o600))
}

/// The process that holds a flock on `file`, as far as this user may see it.
pub(crate) fn holder_of(file: &File) -> Option<u32> {
    let found = file.metadata().ok()?;
    // The process that took the lock may have ended, and have left it to a child.
    let runs = |pid: &u32| Path::new(&format!("/proc/{pid}")).exists();
    listed(&found).filter(runs).or_else(|| by_descriptor(&found))
}

/// From `/proc/locks`, which all users may read: device and inode are in hexadecimal and decimal there.
fn listed(found: &fs::Metadata) -> Option<u32> {
    let device = found.dev();
    let name = format!(
        "{:02x}:{:02x}:{}",
        rustix::fs::major(device),
        rustix::fs::minor(device),
        found.ino()
    );
    let text = fs::read_to_string(LOCKS).ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1).filter(|field| *field != "->");
        let kind = fields.next()?;
        let (_advisory, _access) = (fields.next()?, fields.next()?);
        let pid = fields.next()?;
        // A process of another PID namespace is 0.
        (kind == "FLOCK" && fields.next()? == name)
            .then(|| pid.parse().ok().filter(|pid| *pid > 0))?
    })
}

/// From the descriptors of all processes: on some file systems (overlayfs) files have other numbers in `/proc/locks`, and a
/// list longer than a page is read in parts, so that others' changes in between may leave a lock out.
fn by_descriptor(found: &fs::Metadata) -> Option<u32> {
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    // This process may hold it by another descriptor: each shows the locks of its own open file alone.
    let is_held = |pid: u32, fd: &str| {
        let is_it = fs::metadata(format!("/proc/{pid}/fd/{fd}"))
            .is_ok_and(|of| (of.dev(), of.ino()) == (found.dev(), found.ino()));
        is_it
            && fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}"))
                .is_ok_and(|text| text.lines().any(|line| line.contains(" FLOCK ")))
    };
    pids.find(|pid| {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let names = descriptors.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.into_iter().any(|fd| is_held(*pid, &fd))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    #[test]
    fn a_lock_file_is_private_even_if_an_earlier_version_made_it() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        let (fresh, old) = (dir.path().join("fresh"), dir.path().join("old"));
        fs::write(&old, "").unwrap();
        fs::set_permissions(&old, fs::Permissions::from_mode(0o644)).unwrap();
        for path in [fresh, old] {
            let _held = Lock::take(&path, NOW).unwrap();
            assert_eq!(mode(&path), 0o600);
        }
    }

    #[test]
    fn a_wait_ends_at_its_deadline_and_names_the_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = Lock::take(&path, NOW).unwrap();
        let error = Lock::take(&path, Duration::from_millis(50)).unwrap_err().to_string();
        assert!(error.contains(&format!("process {} (", std::process::id())), "{error}");
        drop(held);
        Lock::take(&path, NOW).unwrap();
    }

    #[test]
    fn a_lock_missing_from_proc_locks_is_found_by_its_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = Lock::take(&path, NOW).unwrap();
        let again = open(&path).unwrap();
        let found = again.metadata().unwrap();
        assert_eq!(by_descriptor(&found), Some(std::process::id()));
        drop(held);
        assert_eq!(by_descriptor(&found), None);
    }

    #[test]
    fn a_lock_holder_is_found_by_descriptors_despite_other_device_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        fs::write(&path, "").unwrap();
        let script = "exec flock --no-fork \"$1\" sh -c 'echo up; exec sleep 100'";
        let mut held = std::process::Command::new("sh");
        let mut held = held
            .args(["-c", script, "sh"])
            .arg(&path)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut up = [0; 3];
        io::Read::read_exact(held.stdout.as_mut().unwrap(), &mut up).unwrap();
        let found = by_descriptor(&fs::metadata(&path).unwrap());
        held.kill().unwrap();
        held.wait().unwrap();
        assert_eq!(found, Some(held.id()));
    }

    #[test]
    fn a_wait_ends_when_the_holder_does() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = Lock::take(&path, NOW).unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| Lock::take(&path, PATIENCE).map(drop));
            drop(held);
            waiter.join().unwrap().unwrap();
        });
    }

    #[test]
    fn links_and_devices_are_no_lock_files() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), &link).unwrap();
        assert!(matches!(Lock::take(&link, NOW), Err(LockError::Call { call: "open", .. })));
        assert!(!dir.path().join("elsewhere").exists());
        let fifo = dir.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
        assert!(Lock::take(&fifo, NOW).is_err());
    }
}
