//! The files of a run: a private directory removed after it, and the console log, which is kept if the guest failed.
//!
//! Both are in a directory that others may write to (/tmp). So they have unpredictable names, and are never created
//! over an existing file (`tempfile`); the process id in the names is for [`sweep`], which removes files of killed
//! processes.

use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::RunError;

const PREFIX: &str = "nearfar-lab-";

/// A path inside a list of options of QEMU: commas are doubled.
pub(super) fn escaped(path: &Path) -> OsString {
    let bytes = path.as_os_str().as_bytes();
    let doubled = bytes.iter().flat_map(|byte| {
        let times = if *byte == b',' { 2 } else { 1 };
        std::iter::repeat_n(*byte, times)
    });
    OsString::from_vec(doubled.collect())
}

/// A directory of this process, removed when dropped.
#[derive(Debug)]
pub(super) struct RunFiles {
    dir: TempDir,
}

impl RunFiles {
    /// Makes the directory, and removes those of killed processes.
    pub(super) fn new() -> Result<Self, RunError> {
        let path = tempfile::env::temp_dir();
        sweep(&path);
        let prefix = format!("{PREFIX}{}-", std::process::id());
        let made = tempfile::Builder::new().prefix(&prefix).tempdir();
        made.map(|dir| Self { dir }).map_err(|source| {
            let what = "making a directory for the run in";
            RunError::File { what, path, source }
        })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The guest's first file system.
    pub(super) fn image(&self) -> PathBuf {
        self.file("image.cpio")
    }

    /// The guest's console.
    pub(super) fn console(&self) -> PathBuf {
        self.file("console")
    }

    /// QEMU's own messages.
    pub(super) fn qemu(&self) -> PathBuf {
        self.file("qemu")
    }

    /// The timing plugin's settings.
    pub(super) fn timing(&self) -> PathBuf {
        self.file("timing.json")
    }

    /// The timing plugin's statistics.
    pub(super) fn statistics(&self) -> PathBuf {
        self.file("statistics.json")
    }

    /// The socket between the guest's port for its emulated PMU and the plugin.
    pub(super) fn pmu(&self) -> PathBuf {
        self.file("pmu")
    }

    /// The socket on which the plugin waits for the end of the boot.
    pub(super) fn begins(&self) -> PathBuf {
        self.file("begins")
    }

    /// The socket of QEMU's monitor.
    pub(super) fn monitor(&self) -> PathBuf {
        self.file("monitor")
    }

    /// Writes the image.
    pub(super) fn write_image(&mut self, image: &[u8]) -> Result<(), RunError> {
        let path = self.image();
        fs::write(&path, image).map_err(|source| RunError::File {
            what: "writing the guest's image",
            path,
            source,
        })
    }

    /// Removes the files needed only for the start; a killed run then leaves little behind.
    pub(super) fn started(&self) {
        let _ = fs::remove_file(self.image());
    }

    /// Moves the console log to where it outlives the run, with QEMU's messages at its end; returns its path.
    pub(super) fn keep_console(&self) -> PathBuf {
        let mut text = fs::read(self.console()).unwrap_or_default();
        if let Ok(said) = fs::read(self.qemu())
            && !said.is_empty()
        {
            text.extend(b"\n--- QEMU ---\n");
            text.extend(said);
        }
        let keep = || {
            let mut file =
                tempfile::Builder::new().prefix("nearfar-console-").suffix(".log").tempfile()?;
            file.write_all(&text)?;
            Ok(file.keep()?.1)
        };
        keep().unwrap_or_else(|_: std::io::Error| self.console())
    }
}

/// Removes directories of processes that do not exist any more.
fn sweep(temp: &Path) {
    for entry in fs::read_dir(temp).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
        let Some(pid) = rest.split('-').next().and_then(|pid| pid.parse::<u32>().ok()) else {
            continue;
        };
        let me = rustix::process::geteuid().as_raw();
        let is_ours = entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == me);
        if is_ours && !Path::new("/proc").join(pid.to_string()).exists() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
