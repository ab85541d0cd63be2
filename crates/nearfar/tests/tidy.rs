//! tidy: what every file of the workspace keeps to, as tests. Each finding names the file and the way out.

#![expect(clippy::unwrap_used, reason = "a check that can't read the repository should stop")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Modules that may hold unsafe code, each opened by a reasoned `expect`.
const UNSAFE_HOMES: [&str; 16] = [
    "crates/kernel/src/sys",
    "crates/probe/src/loops",
    "crates/alloc/",
    "crates/cache/src/arena.rs",
    "crates/cache/src/copy",
    "crates/cache/src/disk/buffer.rs",
    "crates/cache/src/disk/uring.rs",
    "crates/cache/src/local",
    "crates/nearfar/tests/guest/alloc.rs",
    "crates/nearfar/tests/guest/replicated.rs",
    "artefacts/lab-plugin/src",
    "artefacts/libhmalloc/src",
    "artefacts/libnearfar/src",
    "artefacts/libsmalloc/src",
    "artefacts/preload/src",
    "artefacts/python/src",
];

/// Lines a file may have, tests included; the few above it may not grow.
const LINES_MAX: usize = 500;
const LONGER: [(&str, usize); 0] = [];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn files(extension: &str) -> Vec<(String, String)> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else {
                found.push(path);
            }
        }
    }
    let root = root();
    let mut found = Vec::new();
    for top in ["crates", "artefacts", "lab", "fixtures"] {
        walk(&root.join(top), &mut found);
    }
    found.sort();
    found
        .into_iter()
        .filter(|path| path.extension().is_some_and(|have| have == extension))
        .map(|path| {
            let name = path.strip_prefix(&root).unwrap().display().to_string();
            (name, fs::read_to_string(path).unwrap())
        })
        .collect()
}

fn complain(findings: &[String]) {
    assert!(findings.is_empty(), "\n{}", findings.join("\n"));
}

#[test]
fn every_rust_file_opens_with_a_head() {
    // A licence line may come before: the plugin has one of its own.
    let licence = |line: &&str| line.starts_with("// SPDX-License-Identifier:");
    let headless = |text: &String| {
        !text.lines().find(|line| !licence(line)).unwrap_or_default().starts_with("//!")
    };
    complain(
        &files("rs")
            .into_iter()
            .filter(|(_, text)| headless(text))
            .map(|(name, _)| {
                format!("{name}: no head; open it with //! lines: what is here, what is not")
            })
            .collect::<Vec<_>>(),
    );
}

#[test]
fn unsafe_code_stays_in_its_homes_and_says_why() {
    let mut findings = Vec::new();
    for (name, text) in files("rs") {
        let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
        let used = code.into_iter().any(|line| {
            line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe")
                && !line.contains('"')
        });
        let home = UNSAFE_HOMES.iter().any(|home| name.starts_with(home));
        if used && !home {
            findings.push(format!("{name}: unsafe code outside {UNSAFE_HOMES:?}"));
        }
        if used && !text.contains("unsafe_code, reason = ") && !text.contains("unsafe_code,\n") {
            findings
                .push(format!("{name}: open it with #![expect(unsafe_code, reason = \"...\")]"));
        }
    }
    complain(&findings);
}

#[test]
fn files_stay_readable_in_length() {
    let limit = |name: &str| {
        LONGER.iter().find(|(long, _)| *long == name).map_or(LINES_MAX, |(_, lines)| *lines)
    };
    complain(
        &files("rs")
            .into_iter()
            .map(|(name, text)| (limit(&name), name, text.lines().count()))
            .filter(|(limit, _, lines)| lines > limit)
            .map(|(limit, name, lines)| {
                format!("{name}: {lines} lines, limit {limit}; a file is one idea")
            })
            .collect::<Vec<_>>(),
    );
}

#[test]
fn every_crate_inherits_the_lints_and_stands_in_the_architecture() {
    let architecture = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let mut findings = Vec::new();
    let mut crates = BTreeSet::new();
    for (name, text) in files("toml").into_iter().filter(|(name, _)| name.ends_with("Cargo.toml")) {
        let folder = name.trim_end_matches("/Cargo.toml").to_string();
        if !text.contains("[lints]\nworkspace = true") {
            findings.push(format!("{name}: add [lints] workspace = true; forgetting it is silent"));
        }
        if !architecture.contains(&format!("`{folder}`")) {
            findings.push(format!("{folder}: not in ARCHITECTURE.md's table of crates"));
        }
        crates.insert(folder);
    }
    assert!(crates.len() >= 7, "found only {crates:?}: is the walk broken?");
    complain(&findings);
}

#[test]
fn nothing_names_a_machine_it_was_made_on() {
    // Put together here so that this file does not find itself.
    let words = [["/wo", "rk/"], ["/ro", "ot/."], ["clean", "-room"]].map(|parts| parts.concat());
    let mut findings = Vec::new();
    for extension in ["rs", "toml", "c", "md", "json", "tree"] {
        for (name, text) in files(extension) {
            for word in &words {
                if text.contains(word.as_str()) {
                    findings.push(format!("{name}: mentions {word}"));
                }
            }
        }
    }
    complain(&findings);
}

#[test]
fn a_finding_fails_the_test() {
    // The canary: a checker that can't fail checks nothing.
    let caught = std::panic::catch_unwind(|| complain(&[String::from("canary: expected")]));
    assert!(caught.is_err());
}
