//! Saved reports, so that other commands need not measure again.
//!
//! One file per machine, `probe-<fingerprint>.json`, in a directory for state: `$NEARFAR_STATE` if set, else
//! `/var/lib/nearfar` for root, else `$XDG_STATE_HOME/nearfar` or `~/.local/state/nearfar`. Each is written to a
//! temporary file beside it and renamed, so a reader sees the old report or the new one, never a part. Beside it is
//! `measured`, with the figures of the last one that rank nodes (`nearfar_topology::measured`); root's counts.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use nearfar_topology::measured;

use crate::report::{ProbeReport, ReportError};

/// A larger file is not a report: 1024 nodes squared would not fit, and no machine has as many.
const SIZE_MAX: u64 = 16 << 20;

/// Reasons why a report could not be saved or found.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Reading or writing failed.
    #[error("{verb} probe report {}: {source}", path.display())]
    Io {
        /// `reading` or `writing`.
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The file exists but is no report.
    #[error("probe report {}: {source}", path.display())]
    Report {
        /// The file.
        path: PathBuf,
        /// The error in it.
        source: ReportError,
    },
    /// The file is too large to be a report.
    #[error("probe report {}: larger than {} MiB, so not a probe report; measure again with `nearfar probe`", path.display(), SIZE_MAX >> 20)]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The file is a report of another machine.
    #[error("probe report {}: is of machine {found}, this one is {wanted}; measure again with `nearfar probe`", path.display())]
    OtherMachine {
        /// The file.
        path: PathBuf,
        /// Its fingerprint.
        found: String,
        /// The fingerprint of this machine.
        wanted: String,
    },
    /// There is no directory for state.
    #[error(
        "no directory for saved probes: neither NEARFAR_STATE, XDG_STATE_HOME nor HOME is set; set NEARFAR_STATE or use --save FILE"
    )]
    NoDirectory,
}

/// The directory for this process's state (head of this file). It need not exist.
///
/// # Errors
/// [`StoreError::NoDirectory`] if the environment names none.
pub fn state_dir() -> Result<PathBuf, StoreError> {
    let root = rustix::process::geteuid().is_root();
    state_dir_from(root, nearfar_kernel::environment::var).ok_or(StoreError::NoDirectory)
}

fn state_dir_from(root: bool, get: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let var = |name| get(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // The XDG specification requires relative paths to be ignored.
    let absolute = |path: &PathBuf| path.is_absolute();
    var("NEARFAR_STATE")
        .or_else(|| root.then(|| PathBuf::from("/var/lib/nearfar")))
        .or_else(|| var("XDG_STATE_HOME").filter(absolute).map(|dir| dir.join("nearfar")))
        .or_else(|| var("HOME").filter(absolute).map(|dir| dir.join(".local/state/nearfar")))
}

/// The file of the machine with this fingerprint.
#[must_use]
pub fn path_in(dir: &Path, fingerprint: &str) -> PathBuf {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    dir.join(format!("probe-{}.json", fingerprint.chars().map(plain).collect::<String>()))
}

/// Saves `report` in `dir`, which is created if necessary; returns the file.
///
/// # Errors
/// [`StoreError::Io`] if the file can't be written; an earlier one is unchanged then.
pub fn save(dir: &Path, report: &ProbeReport) -> Result<PathBuf, StoreError> {
    let path = path_in(dir, &report.machine.fingerprint);
    fs::create_dir_all(dir).map_err(|source| StoreError::Io {
        verb: "writing",
        path: path.clone(),
        source,
    })?;
    save_file(&path, report)?;
    let beside = dir.join("measured");
    let text = measured::text(&report.machine.fingerprint, &report.best());
    replace(&beside, &text).map_err(|source| StoreError::Io {
        verb: "writing",
        path: beside.clone(),
        source,
    })?;
    Ok(path)
}

/// Writes `report` to the file `path` atomically.
///
/// # Errors
/// [`StoreError::Io`] if the file can't be written.
pub fn save_file(path: &Path, report: &ProbeReport) -> Result<(), StoreError> {
    let failed = |source| StoreError::Io { verb: "writing", path: path.to_path_buf(), source };
    let text = report.to_json().map_err(|error| failed(error.into()))?;
    // Writes to a pipe or a device (/dev/stdout) directly, instead of replacing it.
    if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
        return fs::write(path, text).map_err(failed);
    }
    replace(path, &text).map_err(failed)
}

/// Writes a file atomically.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mode = Permissions::from_mode(0o644);
    let mut file = tempfile::Builder::new().permissions(mode).tempfile_in(dir)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

/// The saved report in `dir` for the machine with this fingerprint; `None` if there is none.
///
/// # Errors
/// [`StoreError`] if there is a file but no usable report of this machine in it.
pub fn load_matching(dir: &Path, fingerprint: &str) -> Result<Option<ProbeReport>, StoreError> {
    let path = path_in(dir, fingerprint);
    let report = match load_file(&path) {
        Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(None);
        }
        other => other?,
    };
    if report.machine.fingerprint != fingerprint {
        let (found, wanted) = (report.machine.fingerprint, fingerprint.to_string());
        return Err(StoreError::OtherMachine { path, found, wanted });
    }
    Ok(Some(report))
}

/// The report in the file `path`, of any machine.
///
/// # Errors
/// [`StoreError`] if it can't be read or is no usable report.
pub fn load_file(path: &Path) -> Result<ProbeReport, StoreError> {
    let failed = |source| StoreError::Io { verb: "reading", path: path.to_path_buf(), source };
    // A FIFO or a device may have no end.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(failed(std::io::Error::other("not a regular file")));
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    let read = file.take(SIZE_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if read as u64 > SIZE_MAX {
        return Err(StoreError::TooLarge { path: path.to_path_buf() });
    }
    ProbeReport::parse(&String::from_utf8_lossy(&bytes))
        .map_err(|source| StoreError::Report { path: path.to_path_buf(), source })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::testkit;

    #[test]
    fn a_saved_report_is_loaded_by_fingerprint() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("made/on/demand");
        let report = testkit::report();
        assert!(matches!(load_matching(&state, &report.machine.fingerprint), Ok(None)));
        let path = save(&state, &report).unwrap();
        save(&state, &report).unwrap();
        assert_eq!(load_matching(&state, &report.machine.fingerprint).unwrap(), Some(report));
        let files = fs::read_dir(&state).unwrap().map(|entry| entry.unwrap().path());
        let figures = state.join("measured");
        assert_eq!(files.collect::<BTreeSet<_>>(), [path, figures].into(), "no temporary file");
    }

    #[test]
    fn an_invalid_report_is_rejected_with_its_path_and_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let path = path_in(dir.path(), "abc");
        for text in [
            "",
            "{\"schema\":\"nearfar.probe/1\"",
            "\u{0}\u{1}",
            "{\"schema\":\"nearfar.probe/9\"}",
            "[]",
        ] {
            fs::write(&path, text).unwrap();
            let error = load_matching(dir.path(), "abc").unwrap_err().to_string();
            assert!(error.contains("probe-abc.json") && error.contains("nearfar probe"), "{error}");
        }
        fs::write(&path, testkit::report().to_json().unwrap()).unwrap();
        let error = load_matching(dir.path(), "abc").unwrap_err().to_string();
        assert!(error.contains("is of machine"), "{error}");
        File::create(&path).unwrap().set_len(SIZE_MAX + 1).unwrap();
        assert!(matches!(load_matching(dir.path(), "abc"), Err(StoreError::TooLarge { .. })));
    }

    #[test]
    fn a_failed_write_returns_an_error_with_the_path() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("absent/probe.json");
        let error = save_file(&missing, &testkit::report()).unwrap_err().to_string();
        assert!(
            error.contains("writing probe report") && error.contains("absent/probe.json"),
            "{error}"
        );
        assert!(!missing.exists());
    }

    #[test]
    fn a_fingerprint_never_leaves_the_directory() {
        assert_eq!(path_in(Path::new("/s"), "../../a b"), Path::new("/s/probe-______a_b.json"));
    }

    #[test]
    fn the_state_directory_follows_the_environment() {
        let with = |root: bool, vars: &[(&str, &str)]| {
            state_dir_from(root, |name| {
                vars.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
            })
        };
        let home = ("HOME", "/home/u");
        assert_eq!(with(true, &[("NEARFAR_STATE", "/x"), home]), Some("/x".into()));
        assert_eq!(with(true, &[home]), Some("/var/lib/nearfar".into()));
        assert_eq!(with(false, &[home]), Some("/home/u/.local/state/nearfar".into()));
        assert_eq!(with(false, &[home, ("XDG_STATE_HOME", "/st")]), Some("/st/nearfar".into()));
        assert_eq!(
            with(false, &[home, ("XDG_STATE_HOME", "rel")]),
            Some("/home/u/.local/state/nearfar".into())
        );
        assert_eq!(with(false, &[("HOME", "")]), None);
    }
}
