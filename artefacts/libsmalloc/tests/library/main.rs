//! The library in C and C++ programs: its headers, its symbols, shared and static linking, installation, and dlopen.
//!
//! C programs beside this folder test its functions; `memory`, `machine` and `types` run them.
#![expect(clippy::unwrap_used, reason = "a test that can't run its tools should stop")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

mod machine;
mod memory;
mod once;
mod rights;
mod types;

/// All exported symbols: upstream's interface.
const SYMBOLS: [&str; 17] = [
    "s_calloc",
    "s_disable_node_interleave",
    "s_enable_node_interleave",
    "s_free",
    "s_free_node",
    "s_free_type",
    "s_get_memsize_available",
    "s_get_memsize_node_available",
    "s_get_memsize_node_total",
    "s_get_memsize_total",
    "s_get_memsize_used",
    "s_malloc",
    "s_malloc_node",
    "s_posix_memalign",
    "s_realloc",
    "s_stats_node_print",
    "s_stats_print",
];

/// The way a program is linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    /// libsmalloc.so, which loads libnearfar.so.
    Shared,
    /// libsmalloc.a, which contains everything.
    Static,
}

/// The directory to which `make library` builds: cargo builds none for a test.
fn built() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let dir = own.ancestors().nth(3).unwrap().join("abi");
    for name in ["libsmalloc.so", "libsmalloc.a", "libnearfar.so"] {
        assert!(dir.join(name).exists(), "no {name} in {}: make library", dir.display());
    }
    dir
}

/// A directory with the libraries under their installed names, and the programs.
fn installed() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libsmalloc");
        std::fs::create_dir_all(&dir).unwrap();
        for (name, file) in [
            ("libsmalloc.so", "libsmalloc.so"),
            ("libsmalloc.a", "libsmalloc.a"),
            ("libnearfar.so", "libnearfar.so"),
            ("libnearfar.so.0", "libnearfar.so"),
        ] {
            // Another test may have created it.
            let _ = std::os::unix::fs::symlink(built().join(file), dir.join(name));
        }
        dir
    })
}

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {said}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Prepares a program to run with the libraries that `make library` has built, ignoring those of other builds.
fn ready(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env_remove("LD_LIBRARY_PATH");
    command
}

/// Compiles a program of `tests/`, with `more` as the last arguments.
fn compile(source: &str, name: &str, more: &[&str]) -> PathBuf {
    let program = installed().join(name);
    let headers = ["../include", "../../../crates/alloc/include"].map(|dir| tests().join(dir));
    let libraries = ["libsmalloc.so", "libsmalloc.a"].map(|name| built().join(name));
    let inputs = [&[tests().join(source), tests().join("check.h")][..], &headers, &libraries];
    once::made(&program, &inputs.concat(), |program| {
        let mut compile = Command::new(if source.ends_with(".cpp") { "c++" } else { "cc" });
        compile.args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"]).arg(program);
        compile.arg(tests().join(source)).arg("-I").arg(tests().join("../include"));
        compile.arg("-L").arg(installed()).args(more).arg("-lpthread");
        output(&mut compile);
    });
    program
}

/// As [`compile`], linked with the library. It finds libsmalloc.so by its own run path, and that finds libnearfar.so.
fn program(source: &str, name: &str, link: Link) -> PathBuf {
    let path = format!("-Wl,-rpath,{}", installed().display());
    match link {
        Link::Shared => compile(source, name, &["-lsmalloc", &path]),
        Link::Static => compile(source, name, &["-l:libsmalloc.a", "-ldl", "-lm"]),
    }
}

/// The lines of `readelf -d` that contain this word.
fn dynamic(file: &Path, word: &str) -> Vec<String> {
    let said = output(Command::new("readelf").args(["-d", "-W"]).arg(file));
    said.lines().filter(|line| line.contains(word)).map(str::to_string).collect()
}

#[test]
fn only_the_interfaces_symbols_are_exported() {
    let library = built().join("libsmalloc.so");
    let named = output(Command::new("nm").args(["-D", "--defined-only"]).arg(library));
    let lines: Vec<Vec<&str>> =
        named.lines().map(|line| line.split_whitespace().skip(1).collect()).collect();
    let shown: BTreeSet<_> = lines.iter().map(|line| line[1]).collect();
    assert_eq!(shown, SYMBOLS.into_iter().collect());
    assert!(lines.iter().all(|line| line[0] == "T"), "{named}");
}

#[test]
fn the_header_declares_the_exported_symbols() {
    let declared = Command::new("cc")
        .args(["-E", "-P"])
        .arg(tests().join("../include/smdk_opt_api.h"))
        .output()
        .unwrap();
    let text = String::from_utf8(declared.stdout).unwrap();
    let words: BTreeSet<_> = text
        .split(|letter: char| !letter.is_alphanumeric() && letter != '_')
        .filter(|word| word.starts_with("s_"))
        .collect();
    assert_eq!(words, SYMBOLS.into_iter().collect());
}

#[test]
fn the_soname_has_no_version_and_the_library_depends_on_libnearfar() {
    let library = built().join("libsmalloc.so");
    assert!(dynamic(&library, "SONAME")[0].contains("[libsmalloc.so]"));
    let needed = dynamic(&library, "NEEDED");
    assert!(needed.iter().any(|line| line.contains("[libnearfar.so.0]")), "{needed:?}");
    assert!(dynamic(&library, "PATH")[0].contains("[$ORIGIN]"));
    // The program records the file name, whether or not the library it was linked with has a soname.
    let program = program("memory.c", "records", Link::Shared);
    let needed = dynamic(&program, "NEEDED");
    assert!(needed.iter().any(|line| line.contains("[libsmalloc.so]")), "{needed:?}");
}

#[test]
fn a_statically_linked_program_needs_no_shared_library() {
    let needed = dynamic(&program("memory.c", "alone", Link::Static), "NEEDED");
    let ours = needed.iter().any(|line| line.contains("smalloc") || line.contains("nearfar"));
    assert!(!ours, "{needed:?}");
}

#[test]
fn dlopen_loads_the_library_in_a_running_program() {
    let program = compile("late.c", "late", &["-ldl"]);
    output(ready(program).arg(installed().join("libsmalloc.so")));
}

#[test]
fn both_interfaces_share_one_heap() {
    let nearfar = tests().join("../../../crates/alloc/include").display().to_string();
    let path = format!("-Wl,-rpath,{}", installed().display());
    let shared = ["-I", &nearfar, "-lsmalloc", "-lnearfar", &path];
    output(&mut ready(compile("doors.c", "doors-shared", &shared)));
    let archive = ["-I", &nearfar, "-l:libsmalloc.a", "-ldl", "-lm"];
    output(&mut ready(compile("doors.c", "doors-static", &archive)));
}

#[test]
fn a_c_plus_plus_program_uses_the_class() {
    for (name, link) in [("class-shared", Link::Shared), ("class-static", Link::Static)] {
        output(&mut ready(program("class.cpp", name, link)));
    }
}

#[test]
fn the_headers_compile_under_old_and_new_c_and_c_plus_plus_standards() {
    let headers = tests().join("../include");
    for (compiler, standard, header) in [
        ("cc", "c89", "smdk_opt_api.h"),
        ("cc", "c11", "smdk_opt_api.h"),
        ("c++", "c++98", "smdk_opt_api.h"),
        ("c++", "c++11", "smdk_opt_api.hpp"),
        ("c++", "c++20", "smdk_opt_api.hpp"),
    ] {
        let language = if compiler == "cc" { "c" } else { "c++" };
        let mut check = Command::new(compiler);
        check.args(["-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]);
        check.arg(format!("-std={standard}")).args(["-x", language]);
        // Twice: the include guards have upstream's names.
        output(check.arg("-include").arg(headers.join(header)).arg(headers.join(header)));
        let guard = header.to_uppercase().replace('.', "_") + "_";
        let text = std::fs::read_to_string(headers.join(header)).unwrap();
        assert!(text.contains(&format!("#ifndef {guard}\n")), "{header}: {guard}");
    }
}
