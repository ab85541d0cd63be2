//! Gives the shared library its name, and libnearfar.so to stand on where that is built as programs have it.
//!
//! libnearfar.so is no crate this one could depend on: as a crate it would come along with all its symbols, and there would
//! be two heaps in a program that uses both.

use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Without a version, as upstream's: what programs have recorded is the plain file name.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libsmalloc.so");
    let out = std::env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default();
    // PROFILE/build/PACKAGE/out. Other profiles build the library for checks only, and nothing loads it.
    let profile = out.ancestors().nth(3).filter(|dir| dir.ends_with("abi"));
    if let Some(dir) = profile {
        stand_on(dir);
    }
}

fn stand_on(dir: &Path) {
    let nearfar = dir.join("libnearfar.so");
    println!("cargo::rerun-if-changed={}", nearfar.display());
    if !nearfar.exists() {
        println!("cargo::error=there is no {}: `make library` builds it first", nearfar.display());
        return;
    }
    println!("cargo::rustc-cdylib-link-arg=-L{}", dir.display());
    println!("cargo::rustc-cdylib-link-arg=-l:libnearfar.so");
    // Both are installed side by side. A function that libnearfar.so has not got is found out here and not at run time.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-rpath,$ORIGIN");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,defs");
}
