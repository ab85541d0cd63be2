//! Runs programs under the preload library.

use std::path::PathBuf;
use std::process::Command;

/// The directory to which `make library` builds: cargo builds no shared library for a test.
pub(crate) fn built() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let dir = own.ancestors().nth(3).unwrap().join("abi");
    let library = dir.join("libnearfar_preload.so");
    assert!(library.exists(), "no {}: make library", library.display());
    dir
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Prepares the program to run under the library with this configuration.
pub(crate) fn preloaded(conf: &str, mut program: Command) -> Command {
    program.env("LD_PRELOAD", built().join("libnearfar_preload.so")).env("NEARFAR_CONF", conf);
    program.env_remove("CXLMALLOC_CONF").env_remove("NEARFAR_PRINT_SMDK");
    program
}
