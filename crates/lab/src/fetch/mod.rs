//! The download cache: QEMU, kernels and busybox from Debian, unpacked outside the tree, nothing of them installed.
//!
//! Where: `$NEARFAR_CACHE`, else `$XDG_CACHE_HOME/nearfar`, else `~/.cache/nearfar`. In it: `qemu/VERSION/` (a root of
//! files), `kernels/VERSION/` (`vmlinuz`, unpacked `vmlinux`, `config` and `lib/modules/VERSION/`), `busybox/VERSION/busybox`. A directory appears there
//! whole or not at all: it is made under `new/` and renamed. A lock keeps two fetches apart; what was downloaded before
//! an interruption is used by the next one. With everything there, nothing is locked, written or downloaded.

use std::fs;
use std::path::{Path, PathBuf};

mod apt;
mod assets;
mod bzimage;
mod kernel;
mod mirror;
mod version;

pub use assets::{Busybox, Qemu};
pub use kernel::Kernel;

/// Kernel series the lab knows where to get, the default first.
pub const SERIES: [&str; 2] = ["6.12", "7.2"];

/// Why something is not there.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// No directory to cache in.
    #[error(
        "no place for downloads: neither NEARFAR_CACHE, XDG_CACHE_HOME nor HOME is set; set NEARFAR_CACHE to a directory"
    )]
    NoCache,
    /// A kernel that is neither a known series nor a file.
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
    /// No such emulator.
    #[error("QEMU {}: {found}; --qemu takes a qemu-system-x86_64 of version 8.0 or later, or leave it out to use the cached one", path.display())]
    NoQemu {
        /// What was asked.
        path: PathBuf,
        /// What is there.
        found: String,
    },
    /// A file operation in the cache.
    #[error("{doing} {path}: {source}; the cache is {cache}, NEARFAR_CACHE names another", path = path.display(), cache = cache.display())]
    Cache {
        /// What was tried.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// The cache.
        cache: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A disk that is full, or would be.
    #[error("{what} needs about {} MB in {}, which has {} MB free; make room, or set NEARFAR_CACHE to a directory elsewhere", needed / 1_000_000, cache.display(), free / 1_000_000)]
    NoSpace {
        /// What for.
        what: String,
        /// Bytes it takes at its worst moment.
        needed: u64,
        /// Bytes there are.
        free: u64,
        /// The cache.
        cache: PathBuf,
    },
    /// A tool that is needed.
    #[error(
        "{what} needs {tool}, which could not be started: {source}; install it, or give --qemu and --kernel paths"
    )]
    NoTool {
        /// What for.
        what: &'static str,
        /// The program.
        tool: &'static str,
        /// Why not.
        source: std::io::Error,
    },
    /// A tool failed.
    #[error("{what}: {found}")]
    Tool {
        /// What was tried.
        what: String,
        /// The tool's last words, on one line.
        found: String,
    },
    /// Debian has no such package any more.
    #[error(
        "{what}: no package {pattern} in Debian's {suite}; give a kernel or QEMU by path instead"
    )]
    NoPackage {
        /// What for.
        what: String,
        /// The pattern of its name.
        pattern: String,
        /// Where it was looked for.
        suite: &'static str,
    },
}

/// Where progress is told: lines for a log, and a line that is rewritten on a terminal.
pub trait Say {
    /// A line.
    fn line(&self, text: &str);
    /// How far a download is.
    fn progress(&self, done: u64, total: u64);
}

/// The cache's directory.
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

    /// Refuses what would not fit.
    fn room_for(&self, what: &str, needed: u64) -> Result<(), FetchError> {
        let free = self.free();
        if free >= needed {
            return Ok(());
        }
        Err(FetchError::NoSpace { what: what.to_owned(), needed, free, cache: self.dir.clone() })
    }

    /// Bytes left on its disk; as good as endless where that can't be told.
    fn free(&self) -> u64 {
        rustix::fs::statvfs(&self.dir)
            .map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    /// Holds the cache's lock until dropped.
    fn lock(&self, say: &dyn Say) -> Result<fs::File, FetchError> {
        fs::create_dir_all(&self.dir).map_err(self.failed("creating", &self.dir))?;
        let path = self.dir.join("lock");
        let file = fs::File::create(&path).map_err(self.failed("writing", &path))?;
        if file.try_lock().is_err() {
            say.line("waiting for another nearfar that is downloading");
            file.lock().map_err(self.failed("locking", &path))?;
        }
        Ok(file)
    }

    /// Fills a fresh directory by `fill` and puts it at `kind/name`, whole; what is there already stays.
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
            // Half an entry is of no use; what was downloaded stays.
            let _ = fs::remove_dir_all(&fresh);
        }
        let _ = fs::remove_dir(self.dir.join("new"));
        filled.map(|()| place)
    }
}
