//! The library in C programs: its header, its symbols, shared and static linking, and loading by dlopen.
#![expect(clippy::unwrap_used, reason = "a test that can't run its tools should stop")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// All exported symbols. None may be removed as long as the soname has the same number.
const SYMBOLS: [&str; 48] = [
    "nf_abi_version",
    "nf_aligned_alloc",
    "nf_bind",
    "nf_cache_add",
    "nf_cache_append",
    "nf_cache_cas",
    "nf_cache_config_create",
    "nf_cache_config_destroy",
    "nf_cache_config_set",
    "nf_cache_create",
    "nf_cache_decr",
    "nf_cache_delete",
    "nf_cache_destroy",
    "nf_cache_flush",
    "nf_cache_get",
    "nf_cache_get_copy",
    "nf_cache_incr",
    "nf_cache_item_max",
    "nf_cache_prepend",
    "nf_cache_replace",
    "nf_cache_set",
    "nf_cache_stats",
    "nf_cache_touch",
    "nf_calloc",
    "nf_error",
    "nf_free",
    "nf_kind_create",
    "nf_kind_destroy",
    "nf_kind_of",
    "nf_malloc",
    "nf_malloc_placed",
    "nf_mmap",
    "nf_node",
    "nf_nodes",
    "nf_realloc",
    "nf_replicated_create",
    "nf_replicated_destroy",
    "nf_replicated_nodes",
    "nf_replicated_read",
    "nf_replicated_size",
    "nf_replicated_stats",
    "nf_replicated_sync",
    "nf_replicated_view",
    "nf_replicated_write",
    "nf_residency",
    "nf_stats",
    "nf_stats_text",
    "nf_usable_size",
];

/// The directory to which `make library` builds: cargo builds no shared library for a test.
fn built() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let target = own.ancestors().nth(3).unwrap();
    let dir = target.join("abi");
    assert!(
        dir.join("libnearfar.so").exists(),
        "no libnearfar.so in {}: make library",
        dir.display()
    );
    dir
}

fn source() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {said}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Compiles a program of `tests/`, linked with the arguments in `with`.
fn program(source_name: &str, name: &str, with: &[&str]) -> Command {
    let program = built().join(name);
    let mut compile = Command::new("cc");
    compile.args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"]).arg(&program);
    compile.arg(source().join("tests").join(source_name));
    compile.arg("-I").arg(source().join("../../crates/alloc/include"));
    compile.arg("-L").arg(built()).args(with);
    output(&mut compile);
    let mut run = Command::new(program);
    run.env("LD_LIBRARY_PATH", built());
    run
}

#[test]
fn exported_symbols_are_those_of_the_header() {
    let named = output(
        Command::new("nm").args(["-D", "--defined-only"]).arg(built().join("libnearfar.so")),
    );
    let shown: BTreeSet<_> =
        named.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    assert_eq!(shown, SYMBOLS.into_iter().collect());
}

#[test]
fn the_soname_has_the_interface_version() {
    let said = output(Command::new("readelf").arg("-d").arg(built().join("libnearfar.so")));
    assert!(said.contains("soname: [libnearfar.so.0]"), "{said}");
}

#[test]
fn a_c_program_uses_it_shared_and_static() {
    let soname = built().join("libnearfar.so.0");
    // `make library` has created the target of the link.
    let _ = std::os::unix::fs::symlink("libnearfar.so", &soname);
    for (name, with) in [
        ("example-shared", &["-lnearfar"][..]),
        ("example-static", &["-l:libnearfar.a", "-lpthread", "-ldl", "-lm"][..]),
    ] {
        assert_eq!(output(&mut program("example.c", name, with)), "kept 1 0\n", "{name}");
        let refused = program("example.c", name, with).arg("nowhere").output().unwrap();
        assert_eq!(refused.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&refused.stderr).contains("nowhere"));
    }
}

#[test]
fn every_call_works_before_main_and_after_it_in_threads_and_in_children() {
    let _ = std::os::unix::fs::symlink("libnearfar.so", built().join("libnearfar.so.0"));
    for (name, with) in [
        ("every-shared", &["-lnearfar", "-lpthread"][..]),
        ("every-static", &["-l:libnearfar.a", "-lpthread", "-ldl", "-lm"][..]),
    ] {
        assert_eq!(output(&mut program("every.c", name, with)), "done\nended\n", "{name}");
    }
}

#[test]
fn threads_read_a_replicated_table_that_one_of_them_writes() {
    let _ = std::os::unix::fs::symlink("libnearfar.so", built().join("libnearfar.so.0"));
    for (name, with) in [
        ("replicated-shared", &["-lnearfar", "-lpthread"][..]),
        ("replicated-static", &["-l:libnearfar.a", "-lpthread", "-ldl", "-lm"][..]),
    ] {
        let said = output(&mut program("replicated.c", name, with));
        assert_eq!(said, "100 rows, each whole, the last of turn 2000\n", "{name}");
        let refused = program("replicated.c", name, with).arg("nowhere").output().unwrap();
        assert_eq!(refused.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&refused.stderr).contains("nowhere"));
    }
}

#[test]
fn threads_share_a_cache_and_a_child_of_fork_has_none() {
    let _ = std::os::unix::fs::symlink("libnearfar.so", built().join("libnearfar.so.0"));
    let dir = tempfile::tempdir().unwrap();
    for (name, with) in [
        ("cache-shared", &["-lnearfar", "-lpthread"][..]),
        ("cache-static", &["-l:libnearfar.a", "-lpthread", "-ldl", "-lm"][..]),
    ] {
        let disk = dir.path().join(name);
        assert_eq!(output(program("cache.c", name, with).arg(disk)), "done\n", "{name}");
    }
}

/// Code blocks of a language in the manual of the cache as a library.
fn examples(language: &str) -> Vec<String> {
    let manual = source().join("../../docs/cache-library.md");
    let manual = std::fs::read_to_string(manual).unwrap();
    let blocks = manual.split("\n```").filter_map(|block| {
        let (begins, code) = block.split_once('\n')?;
        (begins == language).then(|| code.to_owned())
    });
    blocks.collect()
}

#[test]
fn the_program_in_the_manual_prints_the_documented_output() {
    let _ = std::os::unix::fs::symlink("libnearfar.so", built().join("libnearfar.so.0"));
    let dir = tempfile::tempdir().unwrap();
    let [example] = &examples("c")[..] else { panic!("the manual has one program in C") };
    let file = dir.path().join("manual.c");
    std::fs::write(&file, example).unwrap();
    let said = output(&mut program(file.to_str().unwrap(), "manual", &["-lnearfar"]));
    let [shown] = &examples("text")[..] else { panic!("the manual has what it prints") };
    assert_eq!(said.trim_end(), shown);
}

#[test]
fn dlopen_loads_the_library_in_a_running_program() {
    let mut late = program("late.c", "late", &["-ldl", "-lpthread"]);
    output(late.arg(built().join("libnearfar.so")));
}
