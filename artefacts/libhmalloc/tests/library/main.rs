//! The library as programs have it: C programs against its header and the built `libhmalloc.so`.
//!
//! Here: how they are built and run. `shape.rs` is about the file and the header, `calls.rs` about what functions do,
//! `policies.rs` about where memory goes.
#![expect(clippy::unwrap_used, reason = "a test that can't run its tools should stop")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

mod calls;
mod policies;
mod shape;

/// Where `make library` has put the libraries: cargo builds none for a test.
fn built() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let dir = own.ancestors().nth(3).unwrap().join("abi");
    let there = dir.join("libhmalloc.so").exists();
    assert!(there, "no libhmalloc.so in {}: make library", dir.display());
    // The name that programs look for; installing makes it elsewhere. Another test may have made it meanwhile.
    let _ = std::os::unix::fs::symlink("libnearfar.so", dir.join("libnearfar.so.0"));
    dir
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// All crates' tests have this directory.
fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hmalloc-{name}"))
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What a command prints, which has to end well.
fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}: {}", output.status, said(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// `compiler` over a program of this folder into `name`, with what it needs to find headers and libraries.
fn compile(compiler: &str, program: &str, name: &str, with: &[&str]) -> PathBuf {
    let into = scratch(name);
    let mut compile = Command::new(compiler);
    compile.args(["-Wall", "-Wextra", "-pedantic", "-Werror", "-O1", "-o"]).arg(&into);
    compile.arg(source("tests/library").join(program)).arg("-I").arg(source("include"));
    compile.arg("-I").arg(source("../../crates/alloc/include"));
    compile.arg("-L").arg(built()).args(with);
    printed(&mut compile);
    into
}

/// A program of this folder, ready to run without any of our variables.
fn program(name: &str) -> Command {
    let into = compile("cc", &format!("{name}.c"), name, &["-lhmalloc", "-lpthread"]);
    ready(&into)
}

fn ready(program: &Path) -> Command {
    let mut run = Command::new(program);
    // The libraries are those that make library has built, whatever else a build has left.
    run.env("LD_LIBRARY_PATH", built());
    for variable in ["HMALLOC_JEMALLOC", "HMALLOC_MPOL_MODE", "HMALLOC_NODEMASK", "HMALLOC_NODES"] {
        run.env_remove(variable);
    }
    run
}
