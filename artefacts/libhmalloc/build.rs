//! Sets the soname that existing programs refer to, and a run path to libnearfar in the same directory.

use std::env;
use std::path::{Path, PathBuf};

/// The profile of library builds; other profiles only check that this compiles, and link nothing.
const PROFILE: &str = "abi";

fn main() -> Result<(), String> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libhmalloc.so");
    let Some(dir) = profile_dir().filter(|dir| dir.ends_with(PROFILE)) else { return Ok(()) };
    let nearfar = dir.join("libnearfar.so");
    println!("cargo::rerun-if-changed={}", nearfar.display());
    if !nearfar.exists() {
        return Err(format!("no {}: `make library` builds it", nearfar.display()));
    }
    println!("cargo::rustc-cdylib-link-arg=-L{}", dir.display());
    println!("cargo::rustc-cdylib-link-arg=-l:libnearfar.so");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-rpath,$ORIGIN");
    Ok(())
}

/// The directory of cargo's linked outputs: a build script's OUT_DIR is `build/<package>/out` below that.
fn profile_dir() -> Option<PathBuf> {
    let out = PathBuf::from(env::var_os("OUT_DIR")?);
    out.ancestors().nth(3).map(Path::to_path_buf)
}
