//! Files named by users: configurations, records, reports.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

/// The text of a file named by a user, if it is a regular file of at most `size_max` bytes. A FIFO or a device, which
/// may have no end, is refused without waiting for it.
///
/// # Errors
/// The errno, or a description of the file's error.
pub fn read_input(path: &Path, size_max: u64) -> io::Result<String> {
    let nonblock = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = File::options().read(true).custom_flags(nonblock).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut text = String::new();
    let read = file.take(size_max.saturating_add(1)).read_to_string(&mut text)?;
    if read as u64 > size_max {
        let mib = size_max as f64 / 1_048_576.0;
        return Err(io::Error::other(format!("larger than {mib} MiB")));
    }
    Ok(text)
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
}
