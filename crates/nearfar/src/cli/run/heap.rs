//! `--heap`: places CMD's malloc on a memory kind, through the preload library.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use nearfar_topology::{CpuId, Topology};

use nearfar_command::exit::{EndsWith as _, Exit};

const LIBRARY: &str = "libnearfar_preload.so";

/// The configuration of CMD's heap.
#[derive(Debug)]
pub(super) struct Heap {
    library: PathBuf,
    conf: String,
}

impl fmt::Display for Heap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.conf, self.library.display())
    }
}

/// The heap for a kind or a configuration string; bad usage if it is unavailable on this machine.
pub(super) fn plan(text: &str, machine: &Topology, cpus: &[CpuId]) -> anyhow::Result<Heap> {
    let conf = nearfar_spec::check(text, machine, cpus);
    let conf = conf.map_err(|why| anyhow::anyhow!("--heap: {why}")).ends_with(Exit::Usage)?;
    Ok(Heap { library: find().context("--heap")?, conf })
}

impl Heap {
    /// Has the command load the library, with its configuration.
    pub(super) fn prepare(&self, command: &mut Command) {
        preload(command, &self.library);
        command.env("NEARFAR_CONF", &self.conf);
    }
}

/// Puts a library first in `LD_PRELOAD`, before those that the user has named.
pub(crate) fn preload(command: &mut Command, library: &Path) {
    let mut libraries = OsString::from(library);
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        libraries.push(":");
        libraries.push(others);
    }
    command.env("LD_PRELOAD", libraries);
}

/// Another library beside the preload library.
pub(crate) fn find_beside(name: &str) -> anyhow::Result<PathBuf> {
    let path = find()?.with_file_name(name);
    anyhow::ensure!(path.is_file(), "no {} (build it with: make library)", path.display());
    Ok(path)
}

/// The library: `$NEARFAR_PRELOAD`, else beside this program, else in `../lib` or distributions' equivalents.
pub(crate) fn find() -> anyhow::Result<PathBuf> {
    let named = nearfar_kernel::environment::var("NEARFAR_PRELOAD").filter(|path| !path.is_empty());
    if let Some(named) = named {
        let path = std::path::absolute(&named)?;
        anyhow::ensure!(
            path.is_file(),
            "NEARFAR_PRELOAD names {}, which is not a file",
            path.display()
        );
        return Ok(path);
    }
    let own = std::env::current_exe()?;
    let dir = own.parent().unwrap_or_else(|| Path::new("/"));
    let of_machine = format!("../lib/{}-linux-gnu", std::env::consts::ARCH);
    let places = ["", "../lib", "../lib/nearfar", "../lib64", &of_machine];
    let mut paths = places.iter().map(|place| dir.join(place).join(LIBRARY));
    paths.find(|path| path.is_file()).ok_or_else(|| {
        anyhow::anyhow!(
            "no {LIBRARY} beside this program, in ../lib, ../lib/nearfar, ../lib64 or {of_machine}, or named by \
             NEARFAR_PRELOAD (build it with: make library)"
        )
    })
}
