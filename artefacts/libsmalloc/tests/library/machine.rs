//! Nodes, sizes, tables, interleaving and the variable: checks of `machine.c`, and its messages on stderr.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::sync::OnceLock;

use crate::rights::{as_nobody, public_dir};
use crate::{Link, output, program, ready};

fn programs() -> &'static [PathBuf; 2] {
    static PROGRAMS: OnceLock<[PathBuf; 2]> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        [("machine-shared", Link::Shared), ("machine-static", Link::Static)]
            .map(|(name, link)| program("machine.c", name, link))
    })
}

fn check(name: &str) {
    for program in programs() {
        assert_eq!(output(ready(program).arg(name)), format!("{name}: done\n"));
    }
}

/// The lines that a check writes to stderr under this `SMALLOC_CONF`.
fn said(name: &str, conf: Option<&str>) -> Vec<String> {
    let mut command = ready(&programs()[0]);
    command.arg(name).env_remove("SMALLOC_CONF");
    if let Some(conf) = conf {
        command.env("SMALLOC_CONF", conf);
    }
    let Output { status, stderr, .. } = command.output().unwrap();
    let text = String::from_utf8_lossy(&stderr).into_owned();
    assert!(status.success(), "{name}, {conf:?}: {text}");
    text.lines().map(str::to_string).collect()
}

#[test]
fn sizes_are_the_sums_over_the_nodes_of_a_type() {
    check("sizes");
}

#[test]
fn available_memory_reflects_the_current_state() {
    check("available-changes");
}

#[test]
fn used_memory_is_exact_for_every_allocation_function() {
    check("used");
}

#[test]
fn memory_of_a_node_is_bound_to_it_and_stays_there_as_it_grows() {
    check("on-node");
}

#[test]
fn memory_of_a_type_is_bound_to_all_its_nodes() {
    check("plain");
}

#[test]
fn interleaving_applies_only_to_the_thread_that_enables_it() {
    check("interleaves");
}

#[test]
fn invalid_interleave_nodes_are_reported_and_change_nothing() {
    check("interleaves-nowhere");
    let lines = said("interleaves-nowhere", None);
    assert_eq!(lines.len(), 8, "{lines:#?}");
    let named = ["\"\"", "\"nowhere\"", "\"900\"", "\"0-900\"", "\"1,,2\"", "\"-1\"", "\"0x0\""];
    for (line, name) in lines.iter().zip(named) {
        let begins = line.starts_with("[Warning] s_enable_node_interleave: invalid node(s) ");
        assert!(begins && line.contains(name) && line.contains("nothing changes: "), "{line}");
        assert!(!line.ends_with(": "), "no reason: {line}");
    }
    assert!(lines[7].contains("no nodes are named"), "{}", lines[7]);
}

#[test]
fn nodes_of_another_type_are_rejected_with_a_list_of_valid_nodes() {
    let lines = said("warnings", None);
    assert_eq!(lines.len(), 2, "{lines:#?}");
    assert!(lines[0].starts_with("[Warning] s_get_memsize_node_total: node "), "{}", lines[0]);
    assert!(lines[0].contains("not of type ExMem, which has "), "{}", lines[0]);
    assert!(lines[1].contains("s_get_memsize_node_available: node 999 "), "{}", lines[1]);
    assert!(lines[1].contains("not of type Normal, which has "), "{}", lines[1]);
}

/// Parses an amount of a table; returns bytes.
fn bytes(text: &str) -> f64 {
    let end = text.find(|letter: char| letter.is_alphabetic()).unwrap();
    let power = ["B", "KB", "MB", "GB"].iter().position(|unit| *unit == &text[end..]).unwrap();
    text[..end].parse::<f64>().unwrap() * f64::from(1 << (10 * power))
}

#[test]
fn tables_are_printed_in_the_unit_that_is_asked_for() {
    // Bytes are separated from their unit by a space, other units are not.
    let lines: Vec<_> = said("tables", None).iter().map(|line| line.replace(" B", "B")).collect();
    let starts = lines.iter().filter(|line| line.starts_with("SMDK Memory allocation stats"));
    assert_eq!(starts.count(), 20, "{lines:#?}");
    let units = ["GB", "GB", "MB", "MB", "KB", "KB", "B", "B", "B", "B"];
    let mut by_type = lines.iter().filter(|line| line.starts_with("  Normal "));
    for unit in units {
        let columns: Vec<_> = by_type.next().unwrap().split_whitespace().collect();
        assert!(columns[1..].iter().all(|amount| amount.ends_with(unit)), "{columns:?}");
        let [total, used, free] = [1, 2, 3].map(|column| bytes(columns[column]));
        assert!(total > free && free > 0.0, "{columns:?}");
        // The table's resolution is a tenth of a unit.
        let step = bytes(&format!("0.1{unit}"));
        assert!((used - 67_108_864.0).abs() <= step, "{columns:?}");
        let by_node: Vec<_> = by_type.next().unwrap().split_whitespace().collect();
        assert_eq!(by_node.len(), 4, "{by_node:?}");
        assert!(by_node[2].ends_with(unit) && bytes(by_node[2]) <= total + step, "{by_node:?}");
    }
}

#[test]
fn a_valid_configuration_prints_no_warning() {
    for conf in [
        "",
        "use_auto_arena_scaling:true",
        "use_auto_arena_scaling:false",
        "some_other_key:7,use_auto_arena_scaling:true",
        "exmem_size:,k:v:w,use_auto_arena_scaling:false",
    ] {
        assert_eq!(said("goes-on", Some(conf)), [""; 0], "{conf}");
    }
    assert_eq!(said("goes-on", None), [""; 0]);
}

#[test]
fn an_invalid_configuration_prints_one_warning_and_the_program_continues() {
    let long = "x".repeat(5000);
    for (conf, words) in [
        ("use_auto_arena_scaling", "Conf string ends with key"),
        ("a:b,use_auto_arena_scaling", "Conf string ends with key"),
        ("use_auto_arena_scaling:true,", "Conf string ends with comma"),
        ("use_auto_arena_scaling:maybe", "Invalid conf value"),
        ("use_auto_arena_scaling:", "Invalid conf value"),
        ("use_auto_arena_scaling:TRUE", "Invalid conf value"),
        ("use auto", "Malformed conf string"),
        ("use_auto_arena_scaling=true", "Malformed conf string"),
        (",", "Malformed conf string"),
        ("a:b,,c:d", "Malformed conf string"),
        ("\u{e9}:true", "Malformed conf string"),
        (long.as_str(), "Conf string ends with key"),
    ] {
        let lines = said("goes-on", Some(conf));
        assert_eq!(lines.len(), 1, "{conf}: {lines:#?}");
        assert!(lines[0].starts_with(words), "{conf}: {lines:#?}");
        assert!(lines[0].contains("SMALLOC_CONF is \""), "{conf}: {lines:#?}");
        assert!(lines[0].ends_with("\"; write use_auto_arena_scaling:true, or :false"));
        let whole = conf.is_ascii() && conf.len() < 100;
        assert!(!whole || lines[0].contains(&format!("{conf:?}")), "{conf}: {lines:#?}");
    }
}

/// A variable may hold any bytes but zero; these are pseudo-random, the same in each run.
#[test]
fn arbitrary_configuration_bytes_print_at_most_one_warning_line() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    let mut state = 1_u64;
    for length in 0..60 {
        let mut byte = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let any = (state >> 56).to_le_bytes()[0].max(1);
            // Frequently a character of the syntax.
            b":,_a".get(usize::from(any) / 8).copied().unwrap_or(any)
        };
        let bytes: Vec<u8> = (0..length).map(|_| byte()).collect();
        let mut command = ready(&programs()[0]);
        let output =
            command.arg("goes-on").env("SMALLOC_CONF", OsStr::from_bytes(&bytes)).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.lines().count() <= 1, "{bytes:?}: {text}");
    }
}

#[test]
fn a_set_user_id_program_reads_no_variable_of_its_caller() {
    let Some(dir) = public_dir() else { return };
    let program = dir.path().join("static");
    std::fs::copy(&programs()[1], &program).unwrap();
    for (mode, lines) in [(0o755, 1), (0o4755, 0)] {
        let mut run = as_nobody(&program, mode);
        let output = run.arg("goes-on").env("SMALLOC_CONF", "wrong").output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "mode {mode:o}: {text}");
        assert_eq!(text.lines().count(), lines, "mode {mode:o}: {text}");
    }
}

#[test]
fn an_unwritable_stderr_does_not_stop_the_program() {
    for name in ["tables", "warnings", "interleaves-nowhere", "goes-on"] {
        for program in programs() {
            let mut command = ready(program);
            command.arg(name).env("SMALLOC_CONF", "wrong");
            let full = File::options().write(true).open("/dev/full").unwrap();
            command.stdout(Stdio::null()).stderr(full);
            assert!(command.status().unwrap().success(), "{name}, full");
            let mut shell = ready("sh");
            shell.arg("-c").arg("exec \"$0\" \"$1\" 2>&-").arg(program).arg(name);
            let closed = shell.stdout(Stdio::null()).status().unwrap();
            assert!(closed.success(), "{name}, closed");
        }
    }
}

/// The program for machines with a far node (`tests/nodes.c`) must fail on a machine without one.
#[test]
fn the_far_node_test_program_compiles_and_rejects_absent_nodes() {
    let program = program("nodes.c", "nodes", Link::Shared);
    let run = |arguments: &[&str]| ready(&program).args(arguments).output().unwrap();
    assert_eq!(run(&[]).status.code(), Some(2));
    assert_eq!(run(&["0", "0"]).status.code(), Some(1));
    assert_eq!(run(&["0", "1000"]).status.code(), Some(1));
}
