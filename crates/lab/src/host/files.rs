//! The files of a run: a private directory that goes with it, and the console log that stays if the guest failed.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use super::RunError;

const PREFIX: &str = "nearfar-lab-";

/// A directory of this process, removed when dropped.
#[derive(Debug)]
pub(super) struct RunFiles {
    dir: PathBuf,
}

impl RunFiles {
    /// Makes it, and removes those that killed processes left.
    pub(super) fn new() -> Result<Self, RunError> {
        let temp = std::env::temp_dir();
        sweep(&temp);
        let failed = |path: &Path| {
            let path = path.to_owned();
            |source| RunError::File { what: "making a directory for the run in", path, source }
        };
        for attempt in 0..100 {
            let dir = temp.join(format!("{PREFIX}{}-{attempt}", std::process::id()));
            match fs::DirBuilder::new().mode(0o700).create(&dir) {
                Ok(()) => return Ok(Self { dir }),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(&temp)(error)),
            }
        }
        Err(failed(&temp)(std::io::ErrorKind::AlreadyExists.into()))
    }

    /// The guest's first file system.
    pub(super) fn image(&self) -> PathBuf {
        self.dir.join("image.cpio")
    }

    /// The guest's console.
    pub(super) fn console(&self) -> PathBuf {
        self.dir.join("console")
    }

    /// QEMU's own words.
    pub(super) fn qemu(&self) -> PathBuf {
        self.dir.join("qemu")
    }

    /// The timing plugin's settings.
    pub(super) fn timing(&self) -> PathBuf {
        self.dir.join("timing.json")
    }

    /// The timing plugin's statistics.
    pub(super) fn statistics(&self) -> PathBuf {
        self.dir.join("statistics.json")
    }

    /// The socket between the guest's port for its emulated PMU and the plugin.
    pub(super) fn pmu(&self) -> PathBuf {
        self.dir.join("pmu")
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

    /// Removes what only starting needs; a killed run then leaves little behind.
    pub(super) fn started(&self) {
        let _ = fs::remove_file(self.image());
    }

    /// Keeps the console where it outlives the run, with QEMU's words at its end; gives its path.
    pub(super) fn keep_console(&self) -> PathBuf {
        let kept = std::env::temp_dir().join(format!("nearfar-console-{}.log", std::process::id()));
        let mut text = fs::read(self.console()).unwrap_or_default();
        if let Ok(said) = fs::read(self.qemu())
            && !said.is_empty()
        {
            text.extend(b"\n--- QEMU ---\n");
            text.extend(said);
        }
        if fs::write(&kept, text).is_err() {
            return self.console();
        }
        kept
    }
}

impl Drop for RunFiles {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Removes directories of processes that are no more.
fn sweep(temp: &Path) {
    for entry in fs::read_dir(temp).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
        let Some(pid) = rest.split('-').next().and_then(|pid| pid.parse::<u32>().ok()) else {
            continue;
        };
        if !Path::new("/proc").join(pid.to_string()).exists() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
