//! A C project to compile: jemalloc's sources, in the version nearfar uses, from cargo's registry.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::child::{Running, Used};
use crate::ways::Way;

/// The crate that contains the sources.
const CRATE: &str = "tikv-jemalloc-sys";

/// A configured project.
pub(crate) struct Project {
    dir: PathBuf,
}

impl Project {
    /// Copies and configures the project below `dir`, unless that is already done.
    pub(crate) fn prepare(dir: &Path) -> Result<Self, String> {
        let manifest = manifest()?;
        let version = manifest.parent().and_then(Path::file_name).ok_or("no name of the crate")?;
        let dir = dir.join(version);
        let done = dir.join("configured");
        if !done.exists() {
            let source = manifest.with_file_name("jemalloc");
            let _ = fs::remove_dir_all(&dir);
            succeed(Command::new("cp").arg("-r").arg(&source).arg(&dir))?;
            // The crate keeps a generated `configure` in a separate directory, so that autoconf is not needed.
            let configure = manifest.with_file_name("configure").join("configure");
            succeed(Command::new("cp").arg(configure).arg(&dir))?;
            fs::write(dir.join("VERSION"), "0.0.0-0-g0\n").map_err(|error| error.to_string())?;
            eprintln!("configuring jemalloc's sources, once");
            let mut configure = Command::new("sh");
            succeed(configure.args(["configure", "--disable-cxx"]).current_dir(&dir))?;
            // The build generates these names; they matter only for linking.
            let names = dir.join("include/jemalloc/internal/private_namespace.h");
            fs::write(names, "").map_err(|error| error.to_string())?;
            fs::write(&done, "").map_err(|error| error.to_string())?;
        }
        Ok(Self { dir })
    }

    /// The first `most` source files.
    pub(crate) fn files(&self, most: usize) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.dir.join("src")).into_iter().flatten().flatten();
        let mut files: Vec<_> = entries
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
            // zone.c is for macOS.
            .filter(|path| path.file_name().is_some_and(|name| name != "zone.c"))
            .collect();
        files.sort();
        files.truncate(most);
        files
    }

    /// Compiles one file; returns the resource usage of the compiler, the assembler and their other children.
    pub(crate) fn compile(&self, way: &Way, file: &Path) -> Result<Used, String> {
        let mut command = way.command("cc");
        command.args([
            "-O1",
            "-std=gnu11",
            "-D_GNU_SOURCE",
            "-D_REENTRANT",
            "-w",
            "-Iinclude",
            "-c",
        ]);
        command.arg(file).args(["-o", "out.o"]).current_dir(&self.dir);
        Running::start(&mut command)?.end().map_err(|why| format!("{}: {why}", file.display()))
    }
}

/// The path of the crate's manifest in cargo's registry.
fn manifest() -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["metadata", "--locked", "--offline", "--format-version", "1"]);
    let output = command.output().map_err(|error| format!("cargo metadata: {error}"))?;
    let all: serde_json::Value = serde_json::from_slice(&output.stdout).map_err(|error| {
        format!("cargo metadata: {error}: {}", String::from_utf8_lossy(&output.stderr).trim())
    })?;
    let packages = all["packages"].as_array().into_iter().flatten();
    let found = packages.into_iter().find(|package| package["name"] == CRATE);
    let path = found.and_then(|package| package["manifest_path"].as_str());
    path.map(PathBuf::from).ok_or_else(|| format!("cargo knows no {CRATE}"))
}

fn succeed(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr)))
}
