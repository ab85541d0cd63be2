//! Files from outside: those that users name (configurations, records, reports), and those that nearfar left for itself.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;

/// The text of a file named by a user, if it is a regular file of at most `size_max` bytes. A FIFO or a device, which
/// may have no end, is refused without waiting for it.
///
/// # Errors
/// The errno, or a description of the file's error.
pub fn read_input(path: &Path, size_max: u64) -> io::Result<String> {
    let bytes = read_open(&open(path, OFlags::NONBLOCK)?, size_max)?;
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// The bytes of a file that a process of ours has written, as [`read_input`]. It must belong to root or to this user, and
/// be no link; no others may write to it.
///
/// # Errors
/// The errno, or a description of the file's error.
pub fn read_own(path: &Path, size_max: u64) -> io::Result<Vec<u8>> {
    let file = open(path, OFlags::NONBLOCK | OFlags::NOFOLLOW)?;
    let (of, me) = (file.metadata()?, rustix::process::geteuid().as_raw());
    if ![0, me].contains(&of.uid()) || of.mode() & 0o022 != 0 {
        return Err(io::Error::other("belongs to another user, or others may write to it"));
    }
    read_open(&file, size_max)
}

fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    let flags = i32::try_from(flags.bits()).unwrap_or(0);
    File::options().read(true).custom_flags(flags).open(path)
}

fn read_open(file: &File, size_max: u64) -> io::Result<Vec<u8>> {
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    let read = file.take(size_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if read as u64 > size_max {
        let mib = size_max as f64 / 1_048_576.0;
        return Err(io::Error::other(format!("larger than {mib} MiB")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_up_to_the_limit_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let (file, fifo) = (dir.path().join("file"), dir.path().join("fifo"));
        std::fs::write(&file, "12345678").unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
        assert_eq!(read_input(&file, 8).unwrap(), "12345678");
        assert!(read_input(&file, 7).unwrap_err().to_string().contains("larger than"));
        for endless in [fifo.as_path(), Path::new("/dev/zero"), dir.path()] {
            assert!(read_input(endless, 8).is_err(), "{}", endless.display());
        }
    }

    #[test]
    fn own_files_must_not_be_links_or_writable_by_others() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        std::fs::write(&file, "text").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(read_own(&file, 8).unwrap(), b"text");
        assert!(read_own(&link, 8).is_err());
        let mode = std::os::unix::fs::PermissionsExt::from_mode;
        std::fs::set_permissions(&file, mode(0o666)).unwrap();
        assert!(read_own(&file, 8).unwrap_err().to_string().contains("others may write"));
        std::fs::set_permissions(&file, mode(0o644)).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&file, Some(65534), None).unwrap();
            assert!(read_own(&file, 8).unwrap_err().to_string().contains("another user"));
        }
    }
}
