//! The configurations a program runs in; they differ in the malloc used.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A configuration to run a program in.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    pub(crate) name: &'static str,
    /// The library to preload.
    library: Option<PathBuf>,
    /// The value of `NEARFAR_CONF`.
    conf: Option<&'static str>,
    /// Whether this is the baseline of the ratios.
    pub(crate) is_base: bool,
}

impl Way {
    /// All configurations; `LIBNEARFAR_PRELOAD` names our library.
    pub(crate) fn all() -> Result<Vec<Self>, String> {
        let own = std::env::var_os("LIBNEARFAR_PRELOAD").map(PathBuf::from);
        let own = own.filter(|path| path.is_file());
        let own = own.ok_or("LIBNEARFAR_PRELOAD does not name libnearfar_preload.so")?;
        let jemalloc = PathBuf::from("libjemalloc.so.2");
        let way = |name, library: Option<&PathBuf>, conf| Self {
            name,
            library: library.cloned(),
            conf,
            is_base: library.is_some_and(|library| *library == jemalloc),
        };
        Ok(vec![
            way("as it is", None, None),
            way("jemalloc, Debian's", Some(&jemalloc), None),
            way("preload, no configuration", Some(&own), None),
            way("preload, heap=default", Some(&own), Some("heap=default")),
            way("preload, heap=near", Some(&own), Some("heap=near")),
        ])
    }

    /// The configurations for the thirteen programs, glibc's first.
    pub(crate) fn of_programs() -> Result<Vec<Self>, String> {
        let mut ways = Self::all()?;
        ways.retain(|way| way.conf.is_none());
        let own = ways.iter().rev().find_map(|way| way.library.clone());
        let way =
            |name, library: Option<PathBuf>, conf| Self { name, library, conf, is_base: false };
        ways.insert(2, way("mimalloc, Debian's", Some("libmimalloc.so.2".into()), None));
        ways.push(way("preload, heap=0", own, Some("heap=0")));
        for way in &mut ways {
            way.is_base = way.library.is_none();
        }
        Ok(ways)
    }

    /// Checks that the library can be loaded and configured: the dynamic linker ignores a missing library, and ours
    /// falls back to plain memory.
    pub(crate) fn check(&self) -> Result<(), String> {
        let output = self.command("true").stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("true: {error}"))?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
        if output.status.success() && said.is_empty() { Ok(()) } else { Err(said) }
    }

    /// A command that runs `program` in this configuration.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for variable in ["LD_PRELOAD", "NEARFAR_CONF", "CXLMALLOC_CONF", "MALLOC_CONF"] {
            command.env_remove(variable);
        }
        if let Some(library) = &self.library {
            command.env("LD_PRELOAD", library);
        }
        if let Some(conf) = self.conf {
            command.env("NEARFAR_CONF", conf);
        }
        command
    }
}
