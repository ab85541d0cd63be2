//! Libraries that are linked into other programs read the environment through one function, which ignores it in
//! programs with elevated privileges (`nearfar_kernel::environment`; in the C libraries secure_getenv(3), which does
//! the same).

use std::fs;
use std::path::{Path, PathBuf};

/// Sources that are linked into other programs.
const LIBRARIES: [&str; 13] = [
    "crates/alloc/src",
    "crates/cache-disk/src",
    "crates/cache/src",
    "crates/kernel/src",
    "crates/policy/src",
    "crates/spec/src",
    "crates/topology/src",
    "artefacts/libhmalloc/src",
    "artefacts/libnearfar/src",
    "artefacts/libsmalloc/src",
    "artefacts/libsmalloc-static/src",
    "artefacts/preload/src",
    "artefacts/python/src",
];
/// The function itself, and code compiled only for tests.
const MAY: [&str; 4] = ["kernel/src/environment.rs", "kernel/src/fake/", "/tests/", "/testkit/"];

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("sources are there") {
        let path = entry.expect("sources are there").path();
        if path.is_dir() {
            sources(&path, found);
        } else {
            found.push(path);
        }
    }
}

#[test]
fn libraries_read_variables_only_through_the_secure_wrapper() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Vec::new();
    LIBRARIES.iter().for_each(|dir| sources(&root.join(dir), &mut found));
    let mut read = 0;
    for path in &found {
        let name = path.display().to_string();
        let text = fs::read_to_string(path).expect("a source is text");
        let lines = text.lines().map(|line| line.replace("secure_getenv", ""));
        let is_read = |line: &String| {
            ["env::var", "env::vars", "getenv(", "environ"].iter().any(|word| line.contains(word))
                && !line.contains("getenv_")
                && !line.contains("environment")
                && !line.trim_start().starts_with("//")
        };
        read += usize::from(text.contains("environment::var("));
        if MAY.iter().any(|may| name.contains(may)) {
            continue;
        }
        let wrong: Vec<_> = lines.filter(is_read).collect();
        assert!(wrong.is_empty(), "{name}: use nearfar_kernel::environment::var: {wrong:?}");
    }
    assert!(read >= 3, "the function has another name by now: {read}");
}
