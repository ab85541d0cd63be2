//! tidy: rules for every file of the workspace, as tests. Each finding names the file and the way out.
//!
//! Here: heads, unsafe code, length, manifests, unused modules, names of machines and of files, temporary files. Directions
//! and sizes of modules are in structure.rs, the English of comments in prose.rs.

#![expect(clippy::unwrap_used, reason = "a check that can't read the repository should stop")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

#[path = "tidy/files.rs"]
mod files;
#[path = "tidy/modules.rs"]
mod modules;

use files::{complain, markdown, root};

/// Modules that may hold unsafe code, each opened by a reasoned `expect`.
const UNSAFE_HOMES: [&str; 18] = [
    "crates/kernel/src/chase",
    "crates/kernel/src/sys",
    "crates/probe/src/loops",
    "crates/alloc/",
    "crates/cache/src/arena.rs",
    "crates/cache/src/copy",
    "crates/cache-disk/src/buffer.rs",
    "crates/cache-disk/src/uring.rs",
    "crates/cache/src/local",
    "crates/nearfar/tests/guest/alloc.rs",
    "crates/nearfar/tests/guest/replicated.rs",
    "artefacts/lab-plugin/src",
    "artefacts/libhmalloc/src",
    "artefacts/libnearfar/src",
    "artefacts/libsmalloc/src",
    "artefacts/preload/src",
    "artefacts/python/src",
    "artefacts/vm-interleave/src",
];

/// Lines a file may have, tests included; the few above it may not grow.
const LINES_MAX: usize = 500;
const LONGER: [(&str, usize); 0] = [];

fn files(extension: &str) -> Vec<(String, String)> {
    files::below(&["crates", "artefacts", "lab", "fixtures"], extension)
}

#[test]
fn every_rust_file_begins_with_a_head() {
    // A licence line may precede the head: the plugin has its own licence.
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

/// Names of Rust files that a text sets in backquotes, without placeholders (`NAME.rs`, `a/b.rs`, `a.rs`).
fn named(text: &str) -> impl Iterator<Item = &str> {
    let names = text.split('`').skip(1).step_by(2).filter(|name| name.ends_with(".rs"));
    names.filter(|name| {
        !name.contains("NAME") && !name.starts_with("a/") && name.len() > "a.rs".len()
    })
}

#[test]
fn files_named_in_comments_and_documents_exist() {
    let sources = files("rs");
    let exists = |name: &str| {
        sources.iter().any(|(path, _)| *path == name || path.ends_with(&format!("/{name}")))
    };
    let comments = |text: &str| {
        text.lines()
            .filter(|line| line.trim_start().starts_with("//"))
            .collect::<Vec<_>>()
            .join("\n")
    };
    let texts = sources.iter().map(|(path, text)| (path.clone(), comments(text)));
    let (mut findings, mut count) = (Vec::new(), 0);
    for (path, text) in texts.chain(markdown()) {
        count += named(&text).count();
        let absent =
            named(&text).filter(|name| !exists(name) && !exists(&format!("crates/{name}")));
        findings.extend(absent.map(|name| format!("{path}: there is no {name}")));
    }
    assert!(count > 200, "{count}: are names found?");
    complain(&findings);
}

#[test]
fn unsafe_code_is_only_in_listed_modules_with_reasons() {
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
fn files_are_within_their_length_limits() {
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
fn every_crate_inherits_the_lints_and_is_in_the_architecture() {
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
fn every_module_is_used_by_something_outside_it() {
    let unused = modules::unused(&files("rs"), &modules::Crates::of(&files("toml")));
    let says =
        |name: &String| format!("{name}: no path outside it leads there; use it or remove it");
    let findings: Vec<_> = unused.iter().map(says).collect();
    complain(&findings);
}

#[test]
fn an_unused_module_is_found_however_it_is_declared() {
    let files = |root: &str| {
        let file = |name: &str, text: &str| (format!("crates/one/src/{name}"), text.to_owned());
        [
            file("lib.rs", root),
            file("dead.rs", "pub fn run() { crate::dead::inner::run() }"),
            file("dead/inner.rs", "pub fn run() {}"),
            file(
                "live.rs",
                "impl crate::Thing { fn run() { let _ = \"dead::run\"; } } // dead::run",
            ),
        ]
    };
    let manifest = [("crates/one/Cargo.toml".to_owned(), "name = \"one\"\n".to_owned())];
    let unused = |root: &str| modules::unused(&files(root), &modules::Crates::of(&manifest));
    for declared in ["mod dead;", "pub mod dead;", "pub(crate) mod dead;"] {
        assert_eq!(unused(&format!("{declared}\nmod live;\npub struct Thing;")), ["one::dead"]);
    }
    for used in ["use dead::run;", "pub use self::dead::{self as other};", "fn f() { dead::run() }"]
    {
        assert_eq!(unused(&format!("pub mod dead;\n{used}\nmod live;")), [""; 0], "{used}");
    }
    assert_eq!(unused("#[cfg(test)]\nmod dead;\nmod live;"), [""; 0]);
}

#[test]
fn no_file_names_the_machine_it_was_made_on() {
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
fn temporary_files_have_unpredictable_names() {
    // Put together here so that this file does not find itself.
    let joined = |parts: [&str; 2]| parts.concat();
    let of_anyone = [["create", "_dir"], ["temp_dir()", ".join"], ["{}", ".tmp\""]].map(joined);
    let forms = [["temp_dir", "()"], ["\"/t", "mp/"], ["\"/var/t", "mp/"], ["{}", ".tmp\""]];
    let forms = forms.map(joined);
    // They use tempfile, and name the directory in a message.
    let tempfile = ["crates/lab/src/host/files.rs", "crates/lab/src/check/programs.rs"];
    let mut findings = Vec::new();
    for (name, text) in files("rs").into_iter().filter(|(name, _)| !name.contains("/tests/")) {
        // Tests of a module come last in its file.
        let code = text.rsplit_once("\n#[cfg(test)]").map_or(&*text, |(code, _)| code);
        let forms = if tempfile.contains(&name.as_str()) { &of_anyone[..] } else { &forms[..] };
        if forms.iter().any(|form| code.contains(form)) {
            findings
                .push(format!("{name}: a name in /tmp that others can take first; use tempfile"));
        }
    }
    complain(&findings);
}

#[test]
fn scripts_install_pinned_versions_only_and_make_temporary_files_by_mktemp() {
    let mut findings = Vec::new();
    let mut installs = 0;
    for file in fs::read_dir(root().join("scripts")).unwrap().map(|entry| entry.unwrap().path()) {
        if file.is_dir() {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap().replace("\\\n", " ");
        let code = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        for line in code {
            let wanted: &[&str] = match line {
                _ if line.contains("pip install") || line.contains("pip download") => {
                    &["--require-hashes"]
                }
                _ if line.contains("cargo install") => &["--locked", "--version \"="],
                _ if line.contains("/tmp/") => &["mktemp"],
                _ => continue,
            };
            installs += 1;
            let missing = wanted.iter().filter(|word| !line.contains(**word));
            findings
                .extend(missing.map(|word| format!("{}: without {word}: {line}", file.display())));
        }
    }
    complain(&findings);
    assert!(installs >= 5, "{installs}: are they found?");
}

#[test]
fn every_machine_of_the_lab_is_in_its_document() {
    let mut findings = Vec::new();
    let lab = fs::read_to_string(root().join("docs/lab.md")).unwrap();
    let machines = files("toml").into_iter().filter(|(name, _)| name.starts_with("lab/machines/"));
    for (name, _) in machines {
        let machine = Path::new(&name).file_stem().unwrap().to_str().unwrap();
        if !lab.contains(&format!("`{machine}`")) {
            findings.push(format!("docs/lab.md: does not name the machine {machine}"));
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
