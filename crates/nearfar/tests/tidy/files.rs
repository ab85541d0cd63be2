//! The files of the workspace, for tests of their text.

use std::fs;
use std::path::{Path, PathBuf};

/// The workspace's directory.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Files with this extension below the directories `tops`, in order: paths from the root, and texts.
pub(crate) fn below(tops: &[&str], extension: &str) -> Vec<(String, String)> {
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
    tops.iter().for_each(|top| walk(&root.join(top), &mut found));
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

/// Markdown of the root, and of the directories that have some: paths from the root, and texts.
pub(crate) fn markdown() -> Vec<(String, String)> {
    let mut all = below(&["artefacts", "crates", "docs", "examples", "lab"], "md");
    for entry in fs::read_dir(root()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".md") {
            let text = fs::read_to_string(root().join(&name)).unwrap();
            all.push((name, text));
        }
    }
    assert!(all.len() > 20, "found only {} files: is the walk broken?", all.len());
    all
}

/// Fails with all findings, if there are any.
pub(crate) fn complain(findings: &[String]) {
    assert!(findings.is_empty(), "\n{}", findings.join("\n"));
}
