//! Files that a command writes under a name from its user: whole, or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tempfile::NamedTempFile;

use crate::exit::{EndsWith as _, Exit};

/// A file that gets its name once it is whole. A pipe or a device, which must not be replaced, is written to directly, and
/// so is a file in a directory that this user may not write to.
#[derive(Debug)]
pub enum NewFile {
    /// Beside its place, under another name.
    Beside(NamedTempFile, PathBuf),
    /// In its place.
    Direct(File),
}

impl NewFile {
    /// Begins the file at `path`, with this mode (less the umask). A symbolic link stays; the file it leads to is replaced.
    ///
    /// # Errors
    /// The directory can't be written to, or `path` is a directory.
    pub fn begin(path: &Path, mode: u32) -> io::Result<Self> {
        match fs::metadata(path) {
            Ok(there) if there.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(there) if !there.is_file() => {
                return File::options().write(true).open(path).map(Self::Direct);
            }
            _ => {}
        }
        let path = path.canonicalize().unwrap_or_else(|_| path.into());
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        let create = |at: &Path| File::options().write(true).create_new(true).mode(mode).open(at);
        // An error of this one does not name the temporary file.
        match tempfile::Builder::new().make_in(dir.unwrap_or(Path::new(".")), create) {
            Ok(file) => Ok(Self::Beside(file, path)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let there = File::options().write(true).truncate(true).open(path);
                there.map(Self::Direct).map_err(|_| error)
            }
            Err(error) => Err(error),
        }
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// Those of fsync(2) and rename(2).
    pub fn finish(self) -> io::Result<()> {
        match self {
            Self::Beside(file, path) => {
                file.as_file().sync_all()?;
                file.persist(path).map(|_| ()).map_err(|error| error.error)
            }
            Self::Direct(mut file) => file.flush(),
        }
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Beside(file, _) => file.write(bytes),
            Self::Direct(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Beside(file, _) => file.flush(),
            Self::Direct(file) => file.flush(),
        }
    }
}

/// Refuses files that can't be written, and one file for two things, before minutes are spent on the contents.
///
/// # Errors
/// Bad usage, with the reason.
pub fn check<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> anyhow::Result<()> {
    let mut seen = Vec::new();
    for path in paths {
        writable(path)?;
        let place =
            path.canonicalize().unwrap_or_else(|_| std::path::absolute(path).unwrap_or_default());
        let twice = seen.contains(&place) && !path.metadata().is_ok_and(|there| !there.is_file());
        if twice {
            return Err(anyhow::anyhow!(
                "{} is named for two outputs; name two files",
                path.display()
            ))
            .ends_with(Exit::Usage);
        }
        seen.push(place);
    }
    Ok(())
}

fn writable(path: &Path) -> anyhow::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let reason = if path.is_dir() {
        "it is a directory"
    } else if parent.is_some_and(|parent| !parent.is_dir()) {
        "its directory does not exist"
    } else {
        let written = if path.exists() { path } else { parent.unwrap_or(Path::new(".")) };
        match rustix::fs::access(written, rustix::fs::Access::WRITE_OK) {
            Ok(()) => return Ok(()),
            Err(_) => "this user has no permission to write there",
        }
    };
    Err(anyhow::anyhow!("{reason}; name a file"))
        .with_context(|| format!("writing {}", path.display()))
        .ends_with(Exit::Usage)
}

/// Writes a whole file, readable by all.
///
/// # Errors
/// Those of [`NewFile`], with the file's name.
pub fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let whole = || {
        let mut file = NewFile::begin(path, 0o644)?;
        file.write_all(text.as_bytes())?;
        file.finish()
    };
    whole().with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _, symlink};

    fn write(path: &Path, text: &str) -> io::Result<()> {
        let mut file = NewFile::begin(path, 0o600)?;
        file.write_all(text.as_bytes())?;
        file.finish()
    }

    #[test]
    fn a_file_appears_at_the_end_and_the_old_one_stays_until_then() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "old").unwrap();
        let mut file = NewFile::begin(&path, 0o600).unwrap();
        file.write_all(b"new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        file.finish().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        drop(NewFile::begin(&path, 0o600).unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn a_link_stays_and_leads_to_the_new_file() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&path, "old").unwrap();
        symlink(&path, &link).unwrap();
        write(&link, "new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert!(link.symlink_metadata().unwrap().is_symlink());
    }

    #[test]
    fn a_pipe_is_written_to_and_stays_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let reader = std::thread::spawn({
            let path = path.clone();
            move || fs::read_to_string(path).unwrap()
        });
        write(&path, "text").unwrap();
        assert_eq!(reader.join().unwrap(), "text");
        assert!(path.symlink_metadata().unwrap().file_type().is_fifo());
    }

    #[test]
    fn one_file_for_two_outputs_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("./two"));
        check([&one, &two]).unwrap();
        let error = check([&two, &one, &dir.path().join("two")]).unwrap_err().to_string();
        assert!(error.ends_with("two is named for two outputs; name two files"), "{error}");
        let nothing = PathBuf::from("/dev/null");
        check([&nothing, &nothing]).unwrap();
    }

    #[test]
    fn an_error_names_no_temporary_file() {
        let dir = tempfile::tempdir().unwrap();
        let within = write(&dir.path().join("none/file"), "text").unwrap_err().to_string();
        assert_eq!(within, "No such file or directory (os error 2)");
        assert_eq!(write(dir.path(), "text").unwrap_err().kind(), io::ErrorKind::IsADirectory);
    }
}
