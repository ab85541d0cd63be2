//! Tests over a corpus of command lines (`fixtures/qemu/command-lines`).

use std::ffi::OsString;

use nearfar_topology::testkit::dram_and_cxl;

use super::tests::host;
use super::*;

/// The words of a line of the corpus: separated by spaces; one in single quotes may have some.
fn split(line: &str) -> Vec<OsString> {
    let mut parts = line.split('\'');
    let mut words = Vec::new();
    while let Some(bare) = parts.next() {
        words.extend(bare.split_whitespace().map(OsString::from));
        words.extend(parts.next().map(OsString::from));
    }
    words
}

fn corpus() -> Vec<Vec<OsString>> {
    let text = include_str!("../../../../fixtures/qemu/command-lines");
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(split).collect()
}

#[test]
fn command_lines_without_nearfars_keys_are_unchanged() {
    let (machine, lines) = (dram_and_cxl(), corpus());
    assert!(lines.len() >= 60, "{}", lines.len());
    for argv in lines {
        let plan = plan(&Request::new(&argv), &host(&machine)).unwrap();
        assert_eq!(plan.argv, argv);
        assert!(plan.configs.is_empty() && plan.mounts.is_empty() && plan.process.is_none());
    }
}

#[test]
fn a_key_on_any_backend_changes_only_that_backend() {
    let machine = dram_and_cxl();
    let mut rewritten = 0;
    for argv in corpus() {
        for at in 0..argv.len() {
            let text = argv[at].to_str().unwrap();
            let takes = ["memory-backend-ram,", "memory-backend-memfd,", "memory-backend-file,"];
            let is_free = !text.contains("host-nodes") && !text.contains("policy");
            if !takes.iter().any(|kind| text.starts_with(kind)) || !is_free {
                continue;
            }
            let with = |keys: &str| {
                let mut words = argv.clone();
                words[at] = format!("{text},{keys}").into();
                words
            };
            let asked = with("host-mem-type=cxl");
            let request = Request { overcommit: true, ..Request::new(&asked) };
            let Ok(plan) = plan(&request, &host(&machine)) else {
                let ids = argv.iter().filter(|word| *word == &argv[at]).count();
                assert!(ids > 1, "{text}");
                continue;
            };
            let expected = with("host-nodes=1,policy=bind");
            for (index, (found, expected)) in plan.argv.iter().zip(&expected).enumerate() {
                // The guest's HMAT may add to its nodes.
                let is_node = index > 0 && argv[index - 1] == "-numa";
                let (found, expected) = (found.to_str().unwrap(), expected.to_str().unwrap());
                assert!(found == expected || is_node && found.starts_with(expected), "{found}");
            }
            rewritten += 1;
        }
    }
    assert!(rewritten > 20, "{rewritten}");
}
