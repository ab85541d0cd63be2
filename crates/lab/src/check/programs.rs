//! The measuring programs: their sources are part of this program, and the system's C compiler makes them anew.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCES: [(&str, &str); 5] = [
    ("common.h", include_str!("../../../../lab/programs/common.h")),
    ("chase.c", include_str!("../../../../lab/programs/chase.c")),
    ("bandwidth.c", include_str!("../../../../lab/programs/bandwidth.c")),
    ("membound.c", include_str!("../../../../lab/programs/membound.c")),
    ("turmoil.c", include_str!("../../../../lab/programs/turmoil.c")),
];

/// Why there are no programs.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// Their directory.
    #[error("making the measuring programs in {}: {source}", dir.display())]
    Files {
        /// The directory.
        dir: PathBuf,
        /// What failed.
        source: io::Error,
    },
    /// No compiler.
    #[error(
        "compiling the measuring programs with cc: {0}; install a C compiler (Debian: gcc and libc6-dev)"
    )]
    NoCompiler(io::Error),
    /// The compiler's refusal.
    #[error("compiling {name} with cc: {said}")]
    Refused {
        /// The source.
        name: &'static str,
        /// What the compiler said.
        said: String,
    },
}

/// A directory with the compiled programs, removed when dropped.
#[derive(Debug)]
pub(super) struct Programs {
    dir: PathBuf,
}

impl Programs {
    /// Compiles them.
    pub(super) fn compile() -> Result<Self, ProgramError> {
        let dir = std::env::temp_dir().join(format!("nearfar-check-{}", std::process::id()));
        let programs = Self { dir };
        programs.write_sources().map_err(|source| {
            let dir = programs.dir.clone();
            ProgramError::Files { dir, source }
        })?;
        for (name, program) in
            SOURCES.iter().filter_map(|(name, _)| Some((*name, name.strip_suffix(".c")?)))
        {
            let mut cc = Command::new("cc");
            cc.current_dir(&programs.dir);
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
        fs::create_dir_all(&self.dir)?;
        SOURCES.iter().try_for_each(|(name, text)| fs::write(self.dir.join(name), text))
    }

    /// Where they are.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// What a script wrote into a file there; empty if it wrote none.
    pub(super) fn take(&self, name: &str) -> String {
        let path = self.dir.join(name);
        let text = fs::read_to_string(&path).unwrap_or_default();
        let _ = fs::remove_file(path);
        text
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}
