//! hmctl as a command: the environment of the program, refused options, and finally a program linked with libhmalloc.
#![expect(clippy::unwrap_used, reason = "a test that can't run its tools should stop")]

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const VARIABLES: [&str; 4] =
    ["HMALLOC_JEMALLOC", "HMALLOC_MPOL_MODE", "HMALLOC_NODES", "HMALLOC_NODEMASK"];

/// Prints our variables in this order.
const SHOW: &str = "echo \"${HMALLOC_JEMALLOC-none} ${HMALLOC_MPOL_MODE-none} ${HMALLOC_NODES-none} \
    ${HMALLOC_NODEMASK-none}\"";

fn hmctl(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hmctl"));
    for variable in VARIABLES {
        command.env_remove(variable);
    }
    command.args(arguments);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The variables in the program's environment.
fn shown(arguments: &[&str]) -> String {
    let output = hmctl(arguments).args(["sh", "-c", SHOW]).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout).trim_end().to_owned()
}

/// Runs hmctl, which must exit with `status` before any program; returns its message.
fn refused(arguments: &[&str], status: i32) -> String {
    let output = hmctl(arguments).output().unwrap();
    let why = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {why}");
    assert_eq!(text(&output.stdout), "", "{arguments:?}: nothing runs");
    assert!(!why.is_empty(), "{arguments:?}");
    why
}

#[test]
fn each_option_sets_the_kernels_policy_number() {
    for (short, long, mode) in [
        ("-p", "--preferred", 1),
        ("-m", "--membind", 2),
        ("-i", "--interleave", 3),
        ("-P", "--preferred-many", 5),
        ("-w", "--weighted-interleave", 6),
    ] {
        let expected = format!("1 {mode} 0 1");
        for nodes in ["0", "near", "all", "0-0"] {
            assert_eq!(shown(&[short, nodes]), expected, "{short} {nodes}");
            assert_eq!(shown(&[&format!("{long}={nodes}")]), expected, "{long}={nodes}");
        }
    }
}

#[test]
fn no_policy_option_enables_the_pool_and_keeps_an_inherited_policy() {
    assert_eq!(shown(&[]), "1 none none none");
    let inner = env!("CARGO_BIN_EXE_hmctl");
    assert_eq!(shown(&["-m", "0", inner]), "1 2 0 1");
    let mut command = hmctl(&["-i", "0", "sh", "-c", SHOW]);
    command.env("HMALLOC_NODES", "7").env("HMALLOC_NODEMASK", "8");
    assert_eq!(text(&command.output().unwrap().stdout), "1 3 0 1\n");
}

#[test]
fn the_program_keeps_its_options_and_its_exit_status() {
    let words = ["-m", "0", "sh", "-c", "echo \"$0 $@\"; exit 7", "-x", "-m", "--help", "--"];
    let output = hmctl(&words).output().unwrap();
    assert_eq!(text(&output.stdout), "-x -m --help --\n");
    assert_eq!(output.status.code(), Some(7));
    let separated = hmctl(&["-m", "0", "--", "sh", "-c", "exit 3"]).output().unwrap();
    assert_eq!(separated.status.code(), Some(3));
}

#[test]
fn programs_are_found_by_path_lookup_as_in_a_shell() {
    let dir = tempdir("path");
    let tool = dir.join("hmctl-test-tool");
    fs::write(&tool, "#!/bin/sh\necho found\n").unwrap();
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap());
    let found = hmctl(&["hmctl-test-tool"]).env("PATH", path).output().unwrap();
    assert_eq!(text(&found.stdout), "found\n");
    let why = refused(&["hmctl-test-tool"], 127);
    assert!(why.contains("`hmctl-test-tool` was not found"), "{why}");
    let why = refused(&["-m", "0", "/no/such/program"], 127);
    assert!(why.contains("`/no/such/program` was not found"), "{why}");
    // As under HMSDK's hmctl: a program in the current directory, if it is not in PATH.
    let here = hmctl(&["hmctl-test-tool"]).current_dir(&dir).output().unwrap();
    assert_eq!(text(&here.stdout), "found\n");
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o644)).unwrap();
    let why = refused(&[tool.to_str().unwrap()], 126);
    assert!(why.contains("can't be executed"), "{why}");
    let why = refused(&[dir.to_str().unwrap()], 126);
    assert!(why.contains("can't be executed"), "{why}");
}

#[test]
fn absent_nodes_are_rejected_with_a_list_of_the_existing_nodes() {
    for (option, nodes, absent) in [
        ("-m", "5", "no node 5"),
        ("-m", "0,5", "no node 5"),
        ("-p", "40", "no node 40"),
        ("-P", "64-70", "no node 64-70"),
        ("-i", "0-3", "no node 1-3"),
        ("-w", "1000", "no node 1000"),
        ("-m", "!0", "`!0` names no node here"),
    ] {
        let why = refused(&[option, nodes, "echo", "ran"], 2);
        assert!(why.starts_with(&format!("hmctl: {option}: ")), "{why}");
        assert!(why.contains(absent) && why.contains("this machine has node 0 ("), "{why}");
    }
    let why = refused(&["-m", "hbm", "echo", "ran"], 2);
    assert!(why.contains("`hbm` names no node here; this machine has node 0"), "{why}");
}

#[test]
fn invalid_node_sets_are_rejected() {
    for (nodes, words) in [
        ("", "empty"),
        ("x", "`x` is not a node set"),
        ("-1", "`-1`"),
        ("0x1", "`0x1` is not"),
        ("3-1", "ends before it starts"),
        ("0,,1", "`` is not"),
        ("1024", "0 to 1023"),
        ("99999999999999999999", "0 to 1023"),
    ] {
        for option in ["--membind", "--preferred", "--interleave"] {
            let why = refused(&[&format!("{option}={nodes}"), "echo", "ran"], 2);
            assert!(why.contains(option) && why.contains(words), "{nodes}: {why}");
        }
    }
}

#[test]
fn two_policy_options_are_rejected() {
    let options = ["-m", "-p", "-P", "-i", "-w"];
    for first in options {
        for second in options {
            let why = refused(&[first, "0", second, "0", "echo", "ran"], 2);
            let twice = first == second && why.contains("multiple times");
            assert!(twice || why.contains("cannot be used with"), "{first} {second}: {why}");
        }
    }
}

#[test]
fn usage_is_printed_on_wrong_arguments_and_on_request() {
    for nothing in [&[][..], &["-m", "0"], &["--"]] {
        let why = refused(nothing, 64);
        assert!(why.contains("PROGRAM") && why.contains("Usage: hmctl"), "{why}");
    }
    for wrong in [&["-x", "echo"][..], &["--nodes=0", "echo"], &["-m"]] {
        refused(wrong, 2);
    }
    let said = |argument: &str| {
        let output: Output = hmctl(&[argument]).output().unwrap();
        assert!(output.status.success(), "{argument}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    for help in ["-?", "-h", "--help"] {
        let said = said(help);
        for word in VARIABLES.into_iter().chain(["--membind <NODES>", "127"]) {
            assert!(said.contains(word), "{help}: no {word} in {said}");
        }
    }
    assert!(said("--usage").starts_with("Usage: hmctl [-m NODES | -p NODE | "));
    assert!(said("--version").starts_with("hmctl "));
}

/// The directory to which `make library` builds the libraries: cargo builds none for a test.
fn built() -> PathBuf {
    let dir = Path::new(env!("CARGO_BIN_EXE_hmctl")).ancestors().nth(2).unwrap().join("abi");
    let there = dir.join("libhmalloc.so").exists();
    assert!(there, "no libhmalloc.so in {}: make library", dir.display());
    // The soname; installation creates this link elsewhere. Another test may have created it meanwhile.
    let _ = symlink("libnearfar.so", dir.join("libnearfar.so.0"));
    dir
}

fn tempdir(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hmctl-{name}"));
    fs::create_dir_all(&dir).unwrap();
    dir
}

#[test]
fn options_set_the_memory_policy_of_a_libhmalloc_program() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = tempdir("placed").join("placed");
    let mut compile = Command::new("cc");
    compile.args(["-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    compile.arg(folder.join("tests/placed.c")).arg("-I").arg(folder.join("../libhmalloc/include"));
    compile.arg("-L").arg(built()).arg("-lhmalloc");
    let output = compile.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let program = program.to_str().unwrap();
    for (arguments, placed) in [
        (&[][..], "0 0"),
        (&["-m", "0"], "2 0x1"),
        (&["-p", "near"], "1 0x1"),
        (&["-i", "all"], "3 0x1"),
        (&["-w", "0"], "6 0x1"),
    ] {
        let mut run = hmctl(arguments);
        let output = run.arg(program).env("LD_LIBRARY_PATH", built()).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        assert_eq!(text(&output.stdout), format!("pool {placed}, malloc 0 0\n"), "{arguments:?}");
    }
}
