//! The library's file (soname, symbols), and its header.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use super::{built, compile, printed, ready, scratch};

/// All symbols of HMSDK's library: those of `hmalloc.h`, and those its own test uses.
const SYMBOLS: [&str; 15] = [
    "hmalloc",
    "hfree",
    "hcalloc",
    "hrealloc",
    "haligned_alloc",
    "hposix_memalign",
    "hmmap",
    "hmunmap",
    "hmalloc_usable_size",
    "update_env",
    "hmalloc_init",
    "extent_alloc",
    "getenv_jemalloc",
    "getenv_nodemask",
    "getenv_mpol_mode",
];

#[test]
fn exported_symbols_are_exactly_those_of_hmsdk() {
    let library = built().join("libhmalloc.so");
    let named = printed(Command::new("nm").args(["-D", "--defined-only"]).arg(library));
    let shown: BTreeSet<_> =
        named.lines().filter_map(|line| Some(line.split_once(' ')?.1.to_owned())).collect();
    let expected = SYMBOLS.into_iter().map(|name| format!("T {name}")).collect();
    assert_eq!(shown, expected, "functions, without versions");
}

#[test]
fn soname_has_no_version_and_the_heap_is_that_of_libnearfar() {
    let said = printed(Command::new("readelf").arg("-d").arg(built().join("libhmalloc.so")));
    assert!(said.contains("soname: [libhmalloc.so]"), "{said}");
    assert!(said.contains("Shared library: [libnearfar.so.0]"), "{said}");
    assert!(said.contains("path: [$ORIGIN]"), "{said}");
    assert!(!said.contains("jemalloc") && !said.contains("numa"), "{said}");
}

#[test]
fn the_header_is_for_c_and_for_cpp() {
    let program = "#include <hmalloc.h>\n#ifndef HMALLOC_H\n#error no guard\n#endif\n#include <hmalloc.h>\n\
        int main(void) { off_t at = 0; size_t size = 9; void *p = hmalloc(size); hfree(p);\n\
        p = hmmap(0, 4096, 1, 0x22, -1, at); return !p || hmunmap(p, 4096); }\n";
    for (compiler, name, standard) in
        [("cc", "header.c", "-std=c99"), ("c++", "header.cpp", "-std=c++11")]
    {
        let file = scratch(name);
        fs::write(&file, program).unwrap();
        let file = file.display().to_string();
        let into = compile(compiler, &file, &format!("{name}.out"), &[standard, "-lhmalloc"]);
        printed(&mut ready(&into));
    }
}

#[test]
fn dlopen_loads_the_library_without_a_search_path_for_dependencies() {
    let late = compile("cc", "late.c", "late", &["-ldl"]);
    for pool in ["0", "1"] {
        let mut run = ready(&late);
        run.env_remove("LD_LIBRARY_PATH").env("HMALLOC_JEMALLOC", pool);
        assert_eq!(printed(run.arg(built().join("libhmalloc.so"))), "right\n");
    }
}
