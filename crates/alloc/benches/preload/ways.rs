//! The ways a program is run, which differ in whose malloc it has.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A way to run a program.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    pub(crate) name: &'static str,
    /// The library that is preloaded.
    library: Option<PathBuf>,
    /// What `NEARFAR_CONF` is.
    conf: Option<&'static str>,
    /// What others are compared with.
    pub(crate) is_base: bool,
}

impl Way {
    /// All of them; `LIBNEARFAR_PRELOAD` names our library.
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

    /// Whether the library can be loaded and configured: the dynamic linker goes on without one, and ours on plain memory.
    pub(crate) fn check(&self) -> Result<(), String> {
        let output = self.command("true").stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("true: {error}"))?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
        if output.status.success() && said.is_empty() { Ok(()) } else { Err(said) }
    }

    /// `program`, to be run this way.
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
