//! Gives the library the name that programs have recorded, and has it find libnearfar beside itself.

use std::env;
use std::path::{Path, PathBuf};

/// The profile that libraries are built in; others only check that this compiles, and link nothing.
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

/// Where cargo leaves what it links: what it gives a build script is `build/<package>/out` below that.
fn profile_dir() -> Option<PathBuf> {
    let out = PathBuf::from(env::var_os("OUT_DIR")?);
    out.ancestors().nth(3).map(Path::to_path_buf)
}
