//! Both types of memory on a simulated machine (`pretend.c`), so that exmem exists everywhere: `types.c`.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::{compile, installed, ready, tests};

/// The program, and the library it preloads.
fn programs() -> &'static [PathBuf; 2] {
    static PROGRAMS: OnceLock<[PathBuf; 2]> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let nearfar = tests().join("../../../crates/alloc/include").display().to_string();
        let path = format!("-Wl,-rpath,{}", installed().display());
        let with = ["-I", &nearfar, "-lsmalloc", "-lnearfar", &path];
        let pretend = ["-I", &nearfar, "-shared", "-fPIC", "-ldl"];
        [compile("types.c", "types", &with), compile("pretend.c", "pretend.so", &pretend)]
    })
}

/// Runs a check; returns the lines of stdout (the kinds it creates first) and of stderr.
fn check(name: &str, pretend: &str) -> [Vec<String>; 2] {
    let [program, preload] = programs();
    let mut command = ready(program);
    command.arg(name).env("PRETEND", pretend).env("LD_PRELOAD", preload as &Path);
    let output = command.output().unwrap();
    let [said, errors] = [output.stdout, output.stderr]
        .map(|text| String::from_utf8(text).unwrap().lines().map(str::to_string).collect());
    assert!(output.status.success(), "{name}: {errors:#?}");
    [said, errors]
}

#[test]
fn each_type_has_its_own_kind_and_is_counted_separately() {
    let [said, errors] = check("both", "");
    assert_eq!(said, ["bind:0,2", "bind:1,4", "both: done"]);
    assert_eq!(errors, [""; 0]);
}

#[test]
fn realloc_changes_the_type_and_keeps_the_content() {
    check("changes", "");
}

#[test]
fn node_allocations_use_the_nodes_of_the_requested_type() {
    let [said, _] = check("on-nodes", "");
    assert_eq!(said, ["bind:4", "bind:1", "bind:0,2", "bind:1,4", "on-nodes: done"]);
}

#[test]
fn interleaving_uses_the_nodes_of_the_type_and_reuses_kinds() {
    let [said, errors] = check("interleaves", "");
    let expected = [
        "bind:0,2",
        "bind:1,4",
        "interleave:1,4",
        "policy 3 of nodes 0x12",
        "bind:1",
        "interleave:0,2",
        "interleave:1",
        "policy 3 of nodes 0x7",
        "policy 3 of nodes 0x12",
        "policy 0 of nodes 0",
        "interleaves: done",
    ];
    assert_eq!(said, expected);
    assert_eq!(errors, [""; 0]);
}

#[test]
fn threads_that_begin_at_once_have_the_same_kinds() {
    for _ in 0..20 {
        check("at-once", "");
    }
}

#[test]
fn tables_and_warnings_match_the_expected_text() {
    let [_, errors] = check("sizes", "");
    assert_eq!(
        errors,
        [
            "SMDK Memory allocation stats:",
            "    Type             Total              Used         Available",
            "  Normal             4.0GB             0.1GB             2.0GB",
            "   ExMem             7.0GB             0.5GB             3.5GB",
            "SMDK Memory allocation stats per node:",
            "    Type   Node             Total         Available",
            "  Normal      0          1024.0MB           512.0MB",
            "   ExMem      1          2048.0MB          1024.0MB",
            "  Normal      2          3072.0MB          1536.0MB",
            "   ExMem      4          5120.0MB          2560.0MB",
            "[Warning] s_get_memsize_node_total: node 4 is not of type Normal, which has 0,2",
            "[Warning] s_get_memsize_node_available: node 3 is not of type ExMem, which has 1,4",
        ]
    );
}

#[test]
fn without_kinds_allocation_fails_with_enomem() {
    let [_, errors] = check("no-kinds", "no-kinds");
    assert_eq!(errors.len(), 1, "{errors:#?}");
    assert!(errors[0].starts_with("[Warning] s_enable_node_interleave: invalid node(s) \"all\""));
}

#[test]
fn without_nodes_allocation_fails_with_enosys() {
    let [_, errors] = check("no-nodes", "no-nodes");
    let warned = errors.iter().filter(|line| line.ends_with("type Normal, which has none"));
    assert_eq!(warned.count(), 1, "{errors:#?}");
}
