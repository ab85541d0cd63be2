//! What tests that kill the tier or the cache share: this program once more as a child, which says each step when it is done.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The child's file, and the number of its first step.
const FILE: &str = "NEARFAR_TEST_CACHE_CHILD_FILE";
const FIRST: &str = "NEARFAR_TEST_CACHE_CHILD_FIRST";

/// In a child: its file, and the number of its first step.
pub(crate) fn of_parent() -> Option<(PathBuf, u64)> {
    let path = std::env::var_os(FILE)?;
    Some((path.into(), std::env::var(FIRST).unwrap().parse().unwrap()))
}

/// Starts this test in a child, lets that do so many steps, kills it, and gives the last step it said.
pub(crate) fn kill_after(child: &str, path: &Path, first: u64, steps: u64) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", child, "--nocapture", "--test-threads=1"])
        .env(FILE, path)
        .env(FIRST, first.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let said =
        |line: String| line.split("step ").nth(1).and_then(|number| number.parse::<u64>().ok());
    let mut last = first - 1;
    while last < first + steps {
        let line = lines.next().expect("the child goes on until it is killed");
        last = said(line).unwrap_or(last);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    lines.filter_map(said).last().unwrap_or(last)
}
