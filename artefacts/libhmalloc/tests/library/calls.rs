//! The behaviour of the functions, with the pool and without.

use std::process::Command;

use super::rights::{as_nobody, public_dir};
use super::{built, compile, printed, program, ready, scratch, source};

#[test]
fn all_nine_functions_work_with_and_without_the_pool() {
    let mut calls = program("calls");
    let file = scratch("mapped");
    calls.arg(&file);
    assert_eq!(printed(&mut calls), "right\n", "without");
    for (name, value) in [
        ("HMALLOC_JEMALLOC", "0"),
        ("HMALLOC_JEMALLOC", "1"),
        ("HMALLOC_NODES", "0"),
        ("HMALLOC_MPOL_MODE", "2"),
    ] {
        if name == "HMALLOC_NODES" {
            calls.env("HMALLOC_MPOL_MODE", "3");
        }
        assert_eq!(printed(calls.env(name, value)), "right\n", "{calls:?}");
    }
}

#[test]
fn a_set_user_id_program_reads_no_variable_of_its_caller() {
    let Some(dir) = public_dir() else { return };
    for (name, file) in [("libhmalloc.so", "libhmalloc.so"), ("libnearfar.so.0", "libnearfar.so")] {
        std::fs::copy(built().join(file), dir.path().join(name)).unwrap();
    }
    let program = dir.path().join("trusts");
    let mut compile = Command::new("cc");
    compile.args(["-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    compile.arg(source("tests/library/trusts.c")).arg("-I").arg(source("include"));
    // Of the older kind: the run path of libhmalloc's own needs, too.
    let rpath = format!("-Wl,--disable-new-dtags,-rpath,{}", dir.path().display());
    compile.arg("-L").arg(dir.path()).args(["-lhmalloc", "-l:libnearfar.so.0", &rpath]);
    printed(&mut compile);
    for (mode, expected) in [(0o755, "by the variable\n"), (0o4755, "plain\n")] {
        let mut run = as_nobody(&program, mode);
        assert_eq!(printed(run.env("HMALLOC_JEMALLOC", "1")), expected, "mode {mode:o}");
    }
}

#[test]
fn freed_memory_returns_to_the_system() {
    let mut returns = program("returns");
    returns.env("HMALLOC_JEMALLOC", "1");
    println!("{}", printed(&mut returns));
    returns.env("HMALLOC_MPOL_MODE", "2").env("HMALLOC_NODEMASK", "1");
    println!("{}", printed(&mut returns));
}

#[test]
fn update_env_keeps_earlier_allocations_and_reuses_kinds() {
    let with = ["-lhmalloc", "-lnearfar"];
    let changes = compile("cc", "changes.c", "changes", &with);
    assert_eq!(printed(&mut ready(&changes)), "right\n");
}

#[test]
fn threads_and_children_of_fork_allocate_at_the_same_time() {
    let mut threads = program("threads");
    assert_eq!(printed(&mut threads), "right\n", "without");
    for (name, value) in
        [("HMALLOC_JEMALLOC", "1"), ("HMALLOC_MPOL_MODE", "1"), ("HMALLOC_NODES", "0")]
    {
        assert_eq!(printed(threads.env(name, value)), "right\n", "{threads:?}");
    }
}

#[test]
fn allocation_works_before_library_constructors_run() {
    let mut early = program("early");
    assert_eq!(printed(&mut early), "right\n", "without");
    assert_eq!(printed(early.env("HMALLOC_JEMALLOC", "1")), "right\n");
    early.env("HMALLOC_MPOL_MODE", "2").env("HMALLOC_NODES", "near");
    assert_eq!(printed(&mut early), "right\n");
}
