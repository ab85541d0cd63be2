//! nearfar's own programs, which are installed in one directory: `nearfar`, `nearfar-bench`, `nearfar-load`.

use std::path::PathBuf;

use anyhow::{Context as _, bail};

/// The file of this process's program.
///
/// # Errors
/// It can't be determined.
pub(crate) fn this() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("looking for this program's file")
}

/// The program `name` in the directory of this process's.
///
/// # Errors
/// It is missing.
pub(crate) fn program(name: &str) -> anyhow::Result<PathBuf> {
    let file = this()?.with_file_name(name);
    if !file.is_file() {
        bail!("{}: missing; make build builds it, and it belongs beside nearfar", file.display());
    }
    Ok(file)
}
