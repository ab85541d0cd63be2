//! The download cache: QEMU, kernels and busybox from Debian, unpacked outside the tree; nothing is installed.
//!
//! Location: `$NEARFAR_CACHE`, else `$XDG_CACHE_HOME/nearfar`, else `~/.cache/nearfar`. Layout: `qemu/VERSION/` (a file
//! system root), `kernels/VERSION/` (`vmlinuz`, unpacked `vmlinux`, `config` and `lib/modules/VERSION/`),
//! `busybox/VERSION/busybox`. A directory appears there complete or not at all: it is made under `new/` and renamed. A
//! lock excludes concurrent downloads; files downloaded before an interruption are used by the next run. If the cache
//! is complete, nothing is locked, written or downloaded.

use std::fs;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Passes arbitrary bytes to the parsers of downloaded data, for fuzz targets.
#[cfg(fuzzing)]
pub(crate) mod fuzz {
    /// A kernel image.
    pub fn images(data: &[u8]) {
        let _ = super::bzimage::version(data);
        let _ = super::bzimage::unpacked(data);
    }

    /// apt-get's output.
    pub fn listings(data: &[u8]) {
        let _ = super::apt::wanted(&String::from_utf8_lossy(data));
        let _ = super::apt::last_words(data);
    }
}

mod apt;
mod assets;
mod bzimage;
mod kernel;
mod mirror;
mod version;

pub use assets::{Busybox, Qemu};
pub use kernel::Kernel;

/// Kernel series that the lab can download, the default first.
pub const SERIES: [&str; 2] = ["6.12", "7.2"];

/// Reasons why something is not available.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// There is no directory for the cache.
    #[error(
        "no place for downloads: neither NEARFAR_CACHE, XDG_CACHE_HOME nor HOME is set; set NEARFAR_CACHE to a directory"
    )]
    NoCache,
    /// The kernel is neither a known series nor a file.
    #[error(
        "kernel {0}: neither a series nor a kernel image; known series are {series}, and a path names a vmlinuz, or a directory with vmlinuz and lib/modules",
        series = SERIES.join(" and ")
    )]
    UnknownKernel(String),
    /// A kernel image without its modules.
    #[error(
        "kernel {path}: no modules for {version} beside it; expected lib/modules/{version} in its directory or the one above",
        path = path.display()
    )]
    NoModules {
        /// The image.
        path: PathBuf,
        /// Its version.
        version: String,
    },
    /// There is no such emulator.
    #[error("QEMU {}: {found}; --qemu takes a qemu-system-x86_64 of version 8.0 or later, or leave it out to use the cached one", path.display())]
    NoQemu {
        /// The requested path.
        path: PathBuf,
        /// The finding of the check.
        found: String,
    },
    /// A file operation in the cache failed.
    #[error("{doing} {path}: {source}; the cache is {cache}, NEARFAR_CACHE names another", path = path.display(), cache = cache.display())]
    Cache {
        /// The operation.
        doing: &'static str,
        /// Its path.
        path: PathBuf,
        /// The cache.
        cache: PathBuf,
        /// The error.
        source: std::io::Error,
    },
    /// The disk is full, or would be.
    #[error("{what} needs about {} MB in {}, which has {} MB free; make room, or set NEARFAR_CACHE to a directory elsewhere", needed / 1_000_000, cache.display(), free / 1_000_000)]
    NoSpace {
        /// The download.
        what: String,
        /// Bytes needed at the peak.
        needed: u64,
        /// Bytes available.
        free: u64,
        /// The cache.
        cache: PathBuf,
    },
    /// A required tool is missing.
    #[error(
        "{what} needs {tool}, which could not be started: {source}; install it, or give --qemu and --kernel paths"
    )]
    NoTool {
        /// The operation that needs it.
        what: &'static str,
        /// The program.
        tool: &'static str,
        /// The error.
        source: std::io::Error,
    },
    /// A tool failed.
    #[error("{what}: {found}")]
    Tool {
        /// The operation.
        what: String,
        /// The tool's last words, on one line.
        found: String,
    },
    /// Debian does not have this package any more.
    #[error(
        "{what}: no package {pattern} in Debian's {suite}; give a kernel or QEMU by path instead"
    )]
    NoPackage {
        /// The operation.
        what: String,
        /// The pattern of its name.
        pattern: String,
        /// The suite that was searched.
        suite: &'static str,
    },
}

/// Destination of progress messages: lines for a log, and a line that is rewritten on a terminal.
pub trait Say {
    /// A line.
    fn line(&self, text: &str);
    /// Progress of a download, in bytes.
    fn progress(&self, done: u64, total: u64);
    /// The current wait, for a terminal; empty when it is over.
    fn status(&self, _text: &str) {}
}

/// No progress messages.
#[derive(Clone, Copy, Debug)]
pub struct Silent;

impl Say for Silent {
    fn line(&self, _: &str) {}
    fn progress(&self, _: u64, _: u64) {}
}

/// The download cache.
#[derive(Clone, Debug)]
pub struct Cache {
    dir: PathBuf,
}

impl Cache {
    /// The cache that the environment names.
    ///
    /// # Errors
    /// [`FetchError::NoCache`] if it names none.
    pub fn from_env() -> Result<Self, FetchError> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let dir = set("NEARFAR_CACHE")
            .map(PathBuf::from)
            .or_else(|| set("XDG_CACHE_HOME").map(|dir| PathBuf::from(dir).join("nearfar")))
            .or_else(|| set("HOME").map(|dir| PathBuf::from(dir).join(".cache/nearfar")))
            .ok_or(FetchError::NoCache)?;
        Ok(Self { dir: std::path::absolute(&dir).unwrap_or(dir) })
    }

    /// A cache at `dir`.
    #[must_use]
    pub fn at(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// Its directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The newest complete entry `kind/NAME` whose name starts with `prefix`.
    fn newest(&self, kind: &str, prefix: &str) -> Option<(String, PathBuf)> {
        let names = fs::read_dir(self.dir.join(kind)).ok()?.flatten();
        let mut found: Vec<String> = names
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| name.starts_with(prefix))
            .collect();
        found.sort_by(|a, b| version::compare(a, b));
        let name = found.pop()?;
        let path = self.dir.join(kind).join(&name);
        Some((name, path))
    }

    fn failed(
        &self,
        doing: &'static str,
        path: &Path,
    ) -> impl FnOnce(std::io::Error) -> FetchError {
        let (path, cache) = (path.to_owned(), self.dir.clone());
        move |source| FetchError::Cache { doing, path, cache, source }
    }

    /// Refuses a download that would not fit.
    fn room_for(&self, what: &str, needed: u64) -> Result<(), FetchError> {
        let free = self.free();
        if free >= needed {
            return Ok(());
        }
        Err(FetchError::NoSpace { what: what.to_owned(), needed, free, cache: self.dir.clone() })
    }

    /// Free bytes on its disk; the maximum where that is unknown.
    fn free(&self) -> u64 {
        rustix::fs::statvfs(&self.dir)
            .map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    /// Holds the cache's lock until dropped. Only this user can open the file, so no other one can hold it.
    fn lock(&self, say: &dyn Say) -> Result<fs::File, FetchError> {
        fs::create_dir_all(&self.dir).map_err(self.failed("creating", &self.dir))?;
        let path = self.dir.join("lock");
        let mut options = fs::File::options();
        let file = options.create(true).truncate(false).write(true).mode(0o600).open(&path);
        let file = file.map_err(self.failed("writing", &path))?;
        let private = fs::Permissions::from_mode(0o600);
        file.set_permissions(private).map_err(self.failed("restricting", &path))?;
        if file.try_lock().is_err() {
            say.line(&format!(
                "waiting for another nearfar that is downloading: it holds {}",
                path.display()
            ));
            file.lock().map_err(self.failed("locking", &path))?;
        }
        Ok(file)
    }

    /// Fills a fresh directory by `fill` and moves it to `kind/name`; an existing entry stays.
    fn install(
        &self,
        kind: &str,
        name: &str,
        fill: impl FnOnce(&Path) -> Result<(), FetchError>,
    ) -> Result<PathBuf, FetchError> {
        let fresh = self.dir.join("new").join(format!("{kind}-{name}"));
        let place = self.dir.join(kind).join(name);
        if place.exists() {
            return Ok(place);
        }
        if fresh.exists() {
            fs::remove_dir_all(&fresh).map_err(self.failed("clearing", &fresh))?;
        }
        fs::create_dir_all(&fresh).map_err(self.failed("creating", &fresh))?;
        let filled = fill(&fresh).and_then(|()| {
            fs::create_dir_all(self.dir.join(kind)).map_err(self.failed("creating", &place))?;
            fs::rename(&fresh, &place).map_err(self.failed("renaming to", &place))
        });
        if filled.is_err() {
            // A partial entry is useless; the downloaded files stay.
            let _ = fs::remove_dir_all(&fresh);
        }
        let _ = fs::remove_dir(self.dir.join("new"));
        filled.map(|()| place)
    }
}
