//! For tests that kill the tier or the cache: runs this program as a child that prints each completed step.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The child's file, and the number of its first step.
const FILE: &str = "NEARFAR_TEST_CACHE_CHILD_FILE";
const FIRST: &str = "NEARFAR_TEST_CACHE_CHILD_FIRST";

/// In a child: its file, and the number of its first step.
#[must_use]
pub fn of_parent() -> Option<(PathBuf, u64)> {
    let path = std::env::var_os(FILE)?;
    let first = std::env::var(FIRST).ok()?.parse().ok()?;
    Some((path.into(), first))
}

/// Starts this test in a child, waits for `steps` steps, kills it, and returns the last step printed.
///
/// # Panics
/// If the child can't be started or ends by itself.
#[must_use]
pub fn kill_after(child: &str, path: &Path, first: u64, steps: u64) -> u64 {
    let mut child = Command::new(std::env::current_exe().expect("the path of this program"))
        .args(["--exact", child, "--nocapture", "--test-threads=1"])
        .env(FILE, path)
        .env(FIRST, first.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .expect("a child of this program");
    let out = child.stdout.take().expect("its output is a pipe");
    let mut lines = BufReader::new(out).lines().map_while(Result::ok);
    let said =
        |line: String| line.split("step ").nth(1).and_then(|number| number.parse::<u64>().ok());
    let mut last = first - 1;
    while last < first + steps {
        let line = lines.next().expect("the child goes on until it is killed");
        last = said(line).unwrap_or(last);
    }
    child.kill().expect("it can be killed");
    child.wait().expect("it has ended");
    lines.filter_map(said).last().unwrap_or(last)
}
