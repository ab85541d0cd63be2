//! The measuring programs: their sources are embedded, and compiled with the system's C compiler at run time.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

const SOURCES: [(&str, &str); 7] = [
    ("common.h", include_str!("../../../../lab/programs/common.h")),
    ("chase.c", include_str!("../../../../lab/programs/chase.c")),
    ("bandwidth.c", include_str!("../../../../lab/programs/bandwidth.c")),
    ("loaded.c", include_str!("../../../../lab/programs/loaded.c")),
    ("membound.c", include_str!("../../../../lab/programs/membound.c")),
    ("writers.c", include_str!("../../../../lab/programs/writers.c")),
    ("turmoil.c", include_str!("../../../../lab/programs/turmoil.c")),
];

/// Reasons why the programs can't be built.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// Their directory can't be made.
    #[error("making the measuring programs in {}: {source}", dir.display())]
    Files {
        /// The directory.
        dir: PathBuf,
        /// What failed.
        source: io::Error,
    },
    /// There is no compiler.
    #[error(
        "compiling the measuring programs with cc: {0}; install a C compiler (Debian: gcc and libc6-dev)"
    )]
    NoCompiler(io::Error),
    /// The compiler rejected a source.
    #[error("compiling {name} with cc: {said}")]
    Refused {
        /// The source.
        name: &'static str,
        /// The compiler's message.
        said: String,
    },
}

/// A directory with the compiled programs, removed when dropped.
#[derive(Debug)]
pub struct Programs {
    dir: TempDir,
}

impl Programs {
    /// Compiles them.
    ///
    /// # Errors
    /// [`ProgramError`].
    pub fn compile() -> Result<Self, ProgramError> {
        let dir = std::env::temp_dir();
        // A new private directory: the programs run as the user that compiles them.
        let made = tempfile::Builder::new().prefix("nearfar-check-").tempdir();
        let programs = made
            .and_then(|dir| {
                let programs = Self { dir };
                programs.write_sources().map(|()| programs)
            })
            .map_err(|source| ProgramError::Files { dir, source })?;
        for (name, program) in
            SOURCES.iter().filter_map(|(name, _)| Some((*name, name.strip_suffix(".c")?)))
        {
            let mut cc = Command::new("cc");
            cc.current_dir(programs.dir());
            cc.args(["-O2", "-static", "-pthread", "-o", program, name]);
            let done = cc.output().map_err(ProgramError::NoCompiler)?;
            if !done.status.success() {
                let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
                return Err(ProgramError::Refused { name, said });
            }
        }
        Ok(programs)
    }

    fn write_sources(&self) -> io::Result<()> {
        SOURCES.iter().try_for_each(|(name, text)| fs::write(self.dir().join(name), text))
    }

    /// The directory, with a program for each source: `chase` of `chase.c`.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The content of a file that a script wrote there; empty if there is none.
    pub(super) fn take(&self, name: &str) -> String {
        let path = self.dir().join(name);
        let text = fs::read_to_string(&path).unwrap_or_default();
        let _ = fs::remove_file(path);
        text
    }
}
