//! The guest's first file system: an archive with busybox, the modules needed to mount the host's root, and a script
//! that mounts it and starts the guest's runner.
//!
//! Here: the content (`build`); the archive format is `cpio.rs`, the order of modules `modules.rs`, the script
//! `init.sh`.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::fetch::{Busybox, Kernel};

mod cpio;
mod modules;

pub use cpio::Archive;

const INIT: &str = include_str!("init.sh");

/// Modules for the host's root: 9p over virtio, and the writable overlay.
const ROOT_MODULES: &[&str] = &["9pnet_virtio", "9p", "overlay"];
/// Modules that bring up a CXL memory device as system memory. Kernels differ in which of them are built in, so a
/// missing one is skipped; if it was needed, the script reports which step failed.
const CXL_MODULES: &[&str] =
    &["cxl_acpi", "cxl_port", "cxl_pci", "cxl_mem", "device_dax", "dax_cxl", "kmem"];

/// Reasons why the archive can't be made.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A file of the kernel or the cache can't be read.
    #[error("reading {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error.
        source: std::io::Error,
    },
    /// The kernel lacks a required module.
    #[error("kernel {kernel} has no module {module}, neither built in nor in {}; the lab can't boot it", dir.display())]
    NoModule {
        /// The kernel's version.
        kernel: String,
        /// The module.
        module: String,
        /// The directory that was searched.
        dir: PathBuf,
    },
    /// A compressed module can't be unpacked.
    #[error("unpacking module {}: {found}", path.display())]
    Unpack {
        /// The module.
        path: PathBuf,
        /// The error.
        found: String,
    },
}

/// Settings for the script.
#[derive(Debug)]
pub(crate) struct Settings<'a> {
    /// The runner: a host program and its first arguments.
    pub(crate) runner: (&'a Path, &'a [&'a str]),
    /// Whether a directory is shared at /out.
    pub(crate) out: bool,
    /// The guest's host name.
    pub(crate) hostname: &'a str,
    /// How long, by the guest's clock, its CPUs keep translations, milliseconds; 0: no limit beyond the emulator's.
    pub(crate) translations_ms: u64,
    /// A CXL device: bytes of the region to make of it (0: none), and granularity.
    pub(crate) cxl: Option<(u64, u32)>,
}

/// Makes the archive.
pub(crate) fn build(
    kernel: &Kernel,
    busybox: &Busybox,
    settings: &Settings<'_>,
) -> Result<Vec<u8>, ImageError> {
    let read = |path: &Path| {
        fs::read(path).map_err(|source| ImageError::Read { path: path.to_owned(), source })
    };
    let mut archive = Archive::default();
    for dir in ["bin", "dev", "proc", "sys", "lower", "rw", "new", "modules"] {
        archive.dir(dir);
    }
    archive.file("bin/busybox", 0o755, &read(&busybox.program)?);
    archive.file("init", 0o755, INIT.as_bytes());
    let index = modules::Index::read(kernel)?;
    let mut wanted = ROOT_MODULES.to_vec();
    if settings.cxl.is_some() {
        wanted.extend(CXL_MODULES.iter().filter(|module| index.has(module)));
    }
    let mut order = String::new();
    for file in index.in_order(&wanted)? {
        let name = modules::name(&file);
        let content = modules::unpacked(&kernel.modules.join(&file), &read, busybox)?;
        archive.file(&format!("modules/{name}.ko"), 0o644, &content);
        let _ = writeln!(order, "{name}");
    }
    archive.file("modules/order", 0o644, order.as_bytes());
    archive.file("settings", 0o644, &script_settings(kernel, settings));
    Ok(archive.finish())
}

/// Shell assignments that `init.sh` reads.
fn script_settings(kernel: &Kernel, settings: &Settings<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    let mut set = |name: &str, value: &[u8]| {
        out.extend(name.as_bytes());
        out.extend(b"=");
        out.extend(quoted(value));
        out.extend(b"\n");
    };
    let (program, args) = settings.runner;
    set("runner", program.as_os_str().as_bytes());
    set("runner_args", args.join(" ").as_bytes());
    set("modules_dir", kernel.modules.as_os_str().as_bytes());
    set("release", kernel.version.as_bytes());
    set("hostname", settings.hostname.as_bytes());
    set("out", if settings.out { b"1" } else { b"" });
    set("translations_ms", settings.translations_ms.to_string().as_bytes());
    let (size, granularity) = settings.cxl.unwrap_or_default();
    set("cxl_size", if size > 0 { size.to_string() } else { String::new() }.as_bytes());
    set("cxl_granularity", granularity.to_string().as_bytes());
    out
}

/// A word quoted for the shell, whatever its bytes.
fn quoted(value: &[u8]) -> Vec<u8> {
    let mut out = vec![b'\''];
    for byte in value {
        match byte {
            b'\'' => out.extend(b"'\\''"),
            byte => out.push(*byte),
        }
    }
    out.push(b'\'');
    out
}

/// Runs busybox's unpacker over a file.
fn unpack(busybox: &Busybox, applet: &str, path: &Path) -> Result<Vec<u8>, ImageError> {
    let failed = |found: String| ImageError::Unpack { path: path.to_owned(), found };
    let file = fs::File::open(path)
        .map_err(|source| ImageError::Read { path: path.to_owned(), source })?;
    let output = Command::new(&busybox.program)
        .args([applet, "-c"])
        .stdin(file)
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| failed(format!("busybox: {error}")))?;
    if output.status.success() && !output.stdout.is_empty() {
        Ok(output.stdout)
    } else {
        Err(failed(String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quote_in_a_path_reaches_the_script_unchanged() {
        assert_eq!(quoted(b"/it's a $dir"), b"'/it'\\''s a $dir'");
    }
}
