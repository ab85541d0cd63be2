//! The structure of the workspace, as tests: limits on the size of crates, and on the direction of imports between
//! modules. cargo-deny checks the directions between crates (deny.toml), tidy.rs the form of files.
//!
//! Code is read as text: an import is `crate::NAME`, also in braces, or `super::NAME` that reaches the top of a crate.
//! Test modules and comments are left out. Paths built by a macro are not found.

#![expect(clippy::unwrap_used, reason = "a check that can't read the repository should stop")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

#[path = "tidy/code.rs"]
mod code;

use code::{code, is_test};

/// Lines of code a crate may have: neither blank, nor comments, nor tests.
const CODE_MAX: usize = 10_000;

fn crates() -> Vec<(String, PathBuf)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut all: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().join("src/lib.rs").is_file())
        .map(|entry| (entry.file_name().into_string().unwrap(), entry.path().join("src")))
        .collect();
    all.sort();
    assert!(all.len() >= 15, "{all:?}: is the walk broken?");
    all
}

/// The files of a crate that are no tests, by their path below `src`, and their code without comments and test modules.
fn sources(src: &Path) -> BTreeMap<String, String> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(src, &mut found);
    let name = |path: &Path| path.strip_prefix(src).unwrap().to_str().unwrap().to_string();
    let all = found.iter().map(|path| (name(path), code(&fs::read_to_string(path).unwrap())));
    all.filter(|(name, _)| !is_test(name)).collect()
}

/// The top-level modules that the code of the file `name` names.
fn imports(name: &str, code: &str) -> BTreeSet<String> {
    let word = |text: &str| -> String {
        text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    // A file `a/b.rs` is two levels below the top, `a.rs` and `a/mod.rs` one.
    let depth = name.trim_end_matches("/mod.rs").split('/').count();
    let mut all = BTreeSet::new();
    for prefix in ["crate::".to_string(), "super::".repeat(depth)] {
        for (at, _) in code.match_indices(&prefix) {
            if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            let rest = &code[at + prefix.len()..];
            if let Some(braced) = rest.strip_prefix('{') {
                let mut level = 0;
                let mut start = true;
                for (place, c) in braced.char_indices() {
                    match c {
                        '}' if level == 0 => break,
                        '{' => level += 1,
                        '}' => level -= 1,
                        ',' if level == 0 => start = true,
                        c if start && !c.is_whitespace() => {
                            all.insert(word(&braced[place..]));
                            start = false;
                        }
                        _ => {}
                    }
                }
            } else {
                all.insert(word(rest));
            }
        }
    }
    all
}

fn top(name: &str) -> &str {
    name.split(['/', '.']).next().unwrap_or_default()
}

/// For each top-level module those that it names.
fn graph(sources: &BTreeMap<String, String>) -> BTreeMap<String, BTreeSet<String>> {
    let modules: BTreeSet<_> = sources.keys().map(|name| top(name).to_string()).collect();
    let mut graph = BTreeMap::<String, BTreeSet<String>>::new();
    for (name, code) in sources {
        let own = top(name);
        if !["lib", "main", "bin"].contains(&own) {
            let named = imports(name, code).into_iter();
            let named = named.filter(|module| module != own && modules.contains(module));
            graph.entry(own.into()).or_default().extend(named);
        }
    }
    graph
}

/// Whether `to` is reached from `from` in one step or more.
fn reaches(graph: &BTreeMap<String, BTreeSet<String>>, from: &str, to: &str) -> bool {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(at) = next.pop() {
        for below in graph.get(at).into_iter().flatten() {
            if below == to {
                return true;
            }
            if seen.insert(below.as_str()) {
                next.push(below);
            }
        }
    }
    false
}

/// Pairs of modules that reach each other.
fn circles(graph: &BTreeMap<String, BTreeSet<String>>) -> Vec<(&str, &str)> {
    let pairs = graph.keys().flat_map(|a| graph.keys().map(move |b| (a.as_str(), b.as_str())));
    pairs.filter(|(a, b)| a < b && reaches(graph, a, b) && reaches(graph, b, a)).collect()
}

/// A finding on a crate with so many lines of code.
fn too_large(name: &str, lines: usize) -> Option<String> {
    let text = || format!("crates/{name}: {lines} lines of code, limit {CODE_MAX}: split it");
    (lines > CODE_MAX).then(text)
}

/// Whether a file that is not part of the command line imports it.
fn knows_arguments(file: &str, code: &str) -> bool {
    let is_above = ["cli", "lib", "main", "bin"].contains(&top(file));
    !is_above && imports(file, code).contains("cli")
}

#[test]
fn no_crate_exceeds_its_size_limit() {
    for (name, src) in crates() {
        let lines: usize = sources(&src).values().map(|code| code.lines().count()).sum();
        assert_eq!(too_large(&name, lines), None);
    }
    assert!(too_large("broken", CODE_MAX + 1).is_some());
}

#[test]
fn modules_of_a_crate_have_no_import_cycles() {
    let mut findings = Vec::new();
    for (name, src) in crates() {
        for (a, b) in circles(&graph(&sources(&src))) {
            findings.push(format!("crates/{name}: {a} and {b} import each other"));
        }
    }
    assert!(findings.is_empty(), "\n{}", findings.join("\n"));
}

#[test]
fn nothing_below_the_command_line_imports_it() {
    let mut findings = Vec::new();
    for (name, src) in crates() {
        for (file, code) in sources(&src) {
            if knows_arguments(&file, &code) {
                findings.push(format!("crates/{name}/src/{file}: imports crate::cli; take values"));
            }
        }
    }
    assert!(findings.is_empty(), "\n{}", findings.join("\n"));
}

#[test]
fn an_import_of_the_command_line_is_found_only_below_it() {
    assert!(knows_arguments("serve.rs", "use crate::cli::cache::Args;"));
    assert!(knows_arguments("serve/plan.rs", "super::super::cli::run();"));
    assert!(!knows_arguments("cli/cache.rs", "use crate::cli::machine;"));
    assert!(!knows_arguments("serve.rs", "use crate::client;"));
}

#[test]
fn imports_are_found_however_they_are_written() {
    let found = |name: &str, code: &str| imports(name, code).into_iter().collect::<Vec<_>>();
    assert_eq!(found("a.rs", "use crate::b::C;"), ["b"]);
    assert_eq!(found("a/x.rs", "use crate::{b::{C, D}, e, f::G};"), ["b", "e", "f"]);
    assert_eq!(found("a.rs", "super::b::c(); use super::{d, e};"), ["b", "d", "e"]);
    assert_eq!(found("a/mod.rs", "super::b::c();"), ["b"]);
    assert_eq!(found("a/x.rs", "super::b::c(); super::super::d::e();"), ["d"]);
    assert!(found("a.rs", "my_crate::b(); nearfar_cli::c();").is_empty());
}

#[test]
fn a_circle_through_several_modules_is_found() {
    let of = |text: &str| -> BTreeMap<String, BTreeSet<String>> {
        let of = |line: &str| {
            let (from, to) = line.split_once(':').unwrap();
            (from.to_string(), to.split_whitespace().map(str::to_string).collect())
        };
        text.split(',').map(of).collect()
    };
    assert_eq!(circles(&of("a:b,b:c,c:a,d:a")), [("a", "b"), ("a", "c"), ("b", "c")]);
    assert!(circles(&of("a:b c,b:c,c:")).is_empty());
}
