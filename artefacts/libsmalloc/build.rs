//! Sets the shared library's soname, and links libnearfar.so in the profile that programs use.
//!
//! libnearfar.so can't be a crate dependency: a crate would be linked in with all its symbols, and a program that uses
//! both would have two heaps.

use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Without a version, as upstream's: existing programs refer to the plain file name.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libsmalloc.so");
    let out = std::env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default();
    // OUT_DIR is PROFILE/build/PACKAGE/out. Other profiles only build the library for checks, and it is never loaded.
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
    // Both are installed in one directory. A function that libnearfar.so lacks is an error now and not at run time.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-rpath,$ORIGIN");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,defs");
}
