//! The library in C programs, compiled against its header and the built `libhmalloc.so`.
//!
//! Here: compiling and running them. `shape.rs` tests the file and the header, `calls.rs` the behaviour of functions,
//! `policies.rs` the placement of memory.
#![expect(clippy::unwrap_used, reason = "a test that can't run its tools should stop")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

mod calls;
#[path = "../../../libsmalloc/tests/library/once.rs"]
mod once;
mod policies;
#[path = "../../../libsmalloc/tests/library/rights.rs"]
mod rights;
mod shape;

/// The directory to which `make library` builds: cargo builds none for a test.
fn built() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let dir = own.ancestors().nth(3).unwrap().join("abi");
    let there = dir.join("libhmalloc.so").exists();
    assert!(there, "no libhmalloc.so in {}: make library", dir.display());
    // The soname; installation creates this link elsewhere. Another test may have created it meanwhile.
    let _ = std::os::unix::fs::symlink("libnearfar.so", dir.join("libnearfar.so.0"));
    dir
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// A scratch directory below the one that the tests of all crates share.
fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hmalloc-{name}"))
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The output of a command, which must succeed.
fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}: {}", output.status, said(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Compiles a program of this directory to `name`, with the paths of headers and libraries.
fn compile(compiler: &str, program: &str, name: &str, with: &[&str]) -> PathBuf {
    let (into, file) = (scratch(name), source("tests/library").join(program));
    let headers = ["include", "../../crates/alloc/include"].map(source);
    let inputs = [&[file.clone(), built().join("libhmalloc.so")][..], &headers].concat();
    once::made(&into, &inputs, |into| {
        let mut compile = Command::new(compiler);
        compile.args(["-Wall", "-Wextra", "-pedantic", "-Werror", "-O1", "-o"]).arg(into);
        compile.arg(&file).arg("-I").arg(source("include"));
        compile.arg("-I").arg(source("../../crates/alloc/include"));
        compile.arg("-L").arg(built()).args(with);
        printed(&mut compile);
    });
    into
}

/// A program of this directory, to be run without any of our variables.
fn program(name: &str) -> Command {
    let into = compile("cc", &format!("{name}.c"), name, &["-lhmalloc", "-lpthread"]);
    ready(&into)
}

fn ready(program: &Path) -> Command {
    let mut run = Command::new(program);
    // The libraries that `make library` has built, ignoring those of other builds.
    run.env("LD_LIBRARY_PATH", built());
    for variable in ["HMALLOC_JEMALLOC", "HMALLOC_MPOL_MODE", "HMALLOC_NODEMASK", "HMALLOC_NODES"] {
        run.env_remove(variable);
    }
    run
}
