//! The placement of memory, as the kernel reports it, and the treatment of nodes and policies that are unavailable.

use std::collections::BTreeMap;
use std::process::Command;

use super::{printed, program, said};

/// errno's numbers.
const EINVAL: i32 = 22;
const ENODEV: i32 = 19;

/// The output of `placed.c` by type of memory.
fn placed(variables: &[(&str, &str)]) -> BTreeMap<String, String> {
    let said = printed(program("placed").envs(variables.iter().copied()));
    let line = |line: &str| line.split_once(' ').map(|(what, is)| (what.into(), is.into()));
    said.lines().filter_map(line).collect()
}

fn all(heap: &str, mappings: &str) -> BTreeMap<String, String> {
    let of = |names: [&str; 3], is: &str| names.map(|name| (name.to_owned(), is.to_owned()));
    let heap = of(["small", "large", "aligned"], heap);
    heap.into_iter().chain(of(["map", "populated", "extent"], mappings)).collect()
}

#[test]
fn the_kernel_has_the_policy_that_was_asked_for() {
    for (mode, heap) in [("1", "1"), ("2", "2"), ("3", "3"), ("6", "6"), ("5", "1")] {
        // Preferring several nodes, if there is only one, is preferring one: memory reports that, mappings keep their
        // mode.
        let expected = all(&format!("{heap} 0x1"), &format!("{mode} 0x1"));
        for nodes in
            [("HMALLOC_NODEMASK", "1"), ("HMALLOC_NODEMASK", "0x1"), ("HMALLOC_NODES", "near")]
        {
            let asked = [("HMALLOC_JEMALLOC", "1"), ("HMALLOC_MPOL_MODE", mode), nodes];
            assert_eq!(placed(&asked), expected, "{asked:?}");
        }
    }
}

#[test]
fn mappings_are_placed_even_without_the_pool_but_never_without_nodes() {
    let mapped = [("HMALLOC_MPOL_MODE", "2"), ("HMALLOC_NODEMASK", "1")];
    assert_eq!(placed(&mapped), all("0 0", "2 0x1"));
    for nowhere in [
        &[("HMALLOC_JEMALLOC", "1")][..],
        &[("HMALLOC_JEMALLOC", "1"), ("HMALLOC_NODEMASK", "0"), ("HMALLOC_MPOL_MODE", "0")],
        &[("HMALLOC_JEMALLOC", "1"), ("HMALLOC_NODEMASK", ""), ("HMALLOC_MPOL_MODE", "2")],
        &[("HMALLOC_JEMALLOC", "1"), ("HMALLOC_NODES", ""), ("HMALLOC_MPOL_MODE", "x")],
        &[],
    ] {
        assert_eq!(placed(nowhere), all("0 0", "0 0"), "{nowhere:?}");
    }
}

#[test]
fn the_nodes_variable_overrides_the_node_mask() {
    let asked = [
        ("HMALLOC_JEMALLOC", "1"),
        ("HMALLOC_MPOL_MODE", "2"),
        ("HMALLOC_NODES", "0"),
        ("HMALLOC_NODEMASK", "32"),
    ];
    assert_eq!(placed(&asked), all("2 0x1", "2 0x1"));
}

/// Runs a program whose request must be refused; returns its message.
fn refused(mut refused: Command, variables: &[(&str, &str)], errno: i32) -> String {
    let output = refused.envs(variables.iter().copied()).arg(errno.to_string()).output().unwrap();
    assert!(output.status.success(), "{variables:?}: {}", said(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "refused\n");
    said(&output)
}

#[test]
fn unplaceable_allocations_fail_and_the_reason_is_printed() {
    for (variable, value, errno, words) in [
        ("HMALLOC_NODEMASK", "32", ENODEV, "no node 5"),
        ("HMALLOC_NODEMASK", "33", ENODEV, "no node 5"),
        ("HMALLOC_NODEMASK", "9223372036854775808", ENODEV, "no node 63"),
        ("HMALLOC_NODEMASK", "0xffffffffffffffff", ENODEV, "no node 1-63"),
        ("HMALLOC_NODEMASK", "18446744073709551616", EINVAL, "not a mask"),
        ("HMALLOC_NODEMASK", "-1", EINVAL, "not a mask"),
        ("HMALLOC_NODEMASK", "1x", EINVAL, "not a mask"),
        ("HMALLOC_NODEMASK", "0x", EINVAL, "not a mask"),
        ("HMALLOC_NODES", "5", ENODEV, "no node 5"),
        ("HMALLOC_NODES", "0,64", ENODEV, "no node 64"),
        ("HMALLOC_NODES", "1000-1023", ENODEV, "no node 1000-1023"),
        ("HMALLOC_NODES", "hbm", ENODEV, "names no node"),
        ("HMALLOC_NODES", "1024", EINVAL, "out of range"),
        ("HMALLOC_NODES", "fur", EINVAL, "`fur`"),
        ("HMALLOC_NODES", "0;limit=4k", EINVAL, "is not a node set"),
    ] {
        let asked = [("HMALLOC_JEMALLOC", "1"), ("HMALLOC_MPOL_MODE", "2"), (variable, value)];
        let why = refused(program("refused"), &asked, errno);
        let named = format!("hmalloc: {variable}={value}: ");
        assert!(why.starts_with(&named) && why.contains(words), "{asked:?}: {why}");
        assert!(why.ends_with("; hmalloc and hmmap fail\n"), "{why}");
        let mut mappings = program("refused");
        mappings.env_remove("HMALLOC_JEMALLOC");
        let why = refused_mappings(mappings, &asked[1..], errno);
        assert!(why.starts_with(&named) && why.ends_with("; hmmap fails\n"), "{asked:?}: {why}");
    }
}

fn refused_mappings(mut program: Command, variables: &[(&str, &str)], errno: i32) -> String {
    program.envs(variables.iter().copied()).args([&errno.to_string(), "map"]);
    let output = program.output().unwrap();
    assert!(output.status.success(), "{variables:?}: {}", said(&output));
    said(&output)
}

#[test]
fn policy_modes_that_take_no_nodes_are_rejected() {
    for mode in ["0", "4", "7", "-1", "32770", "two", "2 ,", ""] {
        let asked =
            [("HMALLOC_JEMALLOC", "1"), ("HMALLOC_NODEMASK", "1"), ("HMALLOC_MPOL_MODE", mode)];
        let why = refused(program("refused"), &asked, EINVAL);
        assert!(why.contains("HMALLOC_MPOL_MODE=") && why.contains("6 weighted"), "{why}");
    }
}
