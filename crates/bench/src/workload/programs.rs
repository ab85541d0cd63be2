//! The programs that workloads run: C sources that are part of this program, compiled by the system's compiler and kept
//! in the lab's cache, and the load generator beside this binary.

use crate::demo::beside;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use nearfar_lab::fetch::Cache;

use super::file::Workload;

const HEADERS: [(&str, &str); 2] = [
    ("common.h", include_str!("../../../../lab/programs/common.h")),
    ("workload.h", include_str!("../../../../lab/programs/workload.h")),
];
const PROGRAMS: [(&str, &str); 5] = [
    ("gups", include_str!("../../../../lab/programs/gups.c")),
    ("graph", include_str!("../../../../lab/programs/graph.c")),
    ("scan", include_str!("../../../../lab/programs/scan.c")),
    ("filler", include_str!("../../../../lab/programs/filler.c")),
    ("switches", include_str!("../../../../lab/programs/switches.c")),
];

/// Programs with a team of threads, for traffic management.
const TEAMS: [(&str, &str); 3] = [
    ("streamcluster", include_str!("../../../../lab/programs/streamcluster.c")),
    ("kmeans", include_str!("../../../../lab/programs/kmeans.c")),
    ("jacobi", include_str!("../../../../lab/programs/jacobi.c")),
];
/// Files they share, and those that are not compiled.
const WITH_TEAMS: [(&str, &str); 3] = [
    ("team.h", include_str!("../../../../lab/programs/team.h")),
    ("pca.py", include_str!("../../../../lab/programs/pca.py")),
    ("redis.py", include_str!("../../../../lab/programs/redis.py")),
];

/// Compiles the workloads for tiering into `dir`: static, so that they run in any guest.
pub(crate) fn compile(dir: &Path) -> anyhow::Result<()> {
    compile_all(dir, &HEADERS, &PROGRAMS)
}

/// The same with the programs for teams of threads, and with the Python programs.
pub(crate) fn compile_teams(dir: &Path) -> anyhow::Result<()> {
    compile_all(dir, &[&HEADERS[..], &WITH_TEAMS].concat(), &TEAMS)
}

fn compile_all(
    dir: &Path,
    as_is: &[(&str, &str)],
    programs: &[(&str, &str)],
) -> anyhow::Result<()> {
    let write = |name: &str, text: &str| {
        let file = dir.join(name);
        fs::write(&file, text).with_context(|| format!("writing {}", file.display()))
    };
    for (name, text) in as_is {
        write(name, text)?;
    }
    for (name, text) in programs {
        let source = format!("{name}.c");
        write(&source, text)?;
        let kept = kept(name, as_is, text);
        if kept.as_ref().is_some_and(|kept| fs::copy(kept, dir.join(name)).is_ok()) {
            continue;
        }
        let done = Command::new("cc")
            .current_dir(dir)
            .args(OPTIONS)
            .args(["-o", name, &source])
            .output()
            .context(
                "compiling the workloads with cc; install a C compiler (Debian: gcc and libc6-dev)",
            )?;
        if !done.status.success() {
            bail!("compiling {source} with cc: {}", String::from_utf8_lossy(&done.stderr).trim());
        }
        // Without it the program is compiled again next time.
        let _ = kept.map(|kept| keep(&dir.join(name), &kept));
    }
    Ok(())
}

const OPTIONS: [&str; 7] =
    ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-pthread"];

/// Where a program is kept that was compiled from these sources; `None` if there is no cache.
fn kept(name: &str, headers: &[(&str, &str)], text: &str) -> Option<PathBuf> {
    let mut hasher = DefaultHasher::new();
    (headers, text, OPTIONS).hash(&mut hasher);
    let cache = Cache::from_env().ok()?;
    Some(cache.dir().join("programs").join(format!("{name}-{:016x}", hasher.finish())))
}

/// Copies a program to where it is kept: nobody sees a part of it.
fn keep(program: &Path, kept: &Path) -> std::io::Result<()> {
    let dir = kept.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(dir)?;
    let new = tempfile::NamedTempFile::new_in(dir)?;
    fs::copy(program, new.path())?;
    new.persist(kept)?;
    Ok(())
}

/// `nearfar-load`, which is installed beside this binary; an error if the workload needs it and it is missing.
pub(crate) fn load_generator(workload: &Workload) -> anyhow::Result<PathBuf> {
    if workload.needs_load_generator() {
        return beside::program("nearfar-load");
    }
    Ok(beside::this()?.with_file_name("nearfar-load"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// The command of a program, through Python if it is a Python program.
    fn command(dir: &Path, program: &str) -> Command {
        let file = dir.join(program);
        if !program.ends_with(".py") {
            return Command::new(file);
        }
        let mut python = Command::new("/usr/bin/python3");
        python.arg(file);
        python
    }

    /// The lines of a program's output, in order.
    fn lines(dir: &Path, program: &str, options: &str) -> Vec<Value> {
        let done = command(dir, program).args(options.split_whitespace()).output().unwrap();
        assert!(done.status.success(), "{program} {options}: {done:?}");
        let text = String::from_utf8(done.stdout).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn workload_programs_are_deterministic_and_reject_invalid_options() {
        let dir = tempfile::tempdir().unwrap();
        compile(dir.path()).unwrap();
        for (program, options, sum) in [
            ("gups", "mb=8 hot_mb=1 seconds=0 updates=200000 move_updates=60000", "state"),
            ("gups", "mb=8 hot_mb=1 seconds=0 updates=200000 dependent=1 seed=3", "state"),
            ("graph", "scale=10 seconds=0 searches=5", "sum"),
            ("scan", "mb=4 seconds=0 passes=3 write=1", "sum"),
        ] {
            let (one, other) =
                (lines(dir.path(), program, options), lines(dir.path(), program, options));
            let (one, other) = (one.last().unwrap(), other.last().unwrap());
            assert_eq!(one["done"], true);
            assert_eq!((&one[sum], &one["operations"]), (&other[sum], &other["operations"]));
            assert!(one["operations"].as_u64() > Some(0), "{program}: {one}");
        }
        let gups =
            lines(dir.path(), "gups", "mb=8 hot_mb=1 seconds=0 updates=200000 move_updates=60000");
        assert_eq!(gups.last().unwrap()["moves"], 3);
        for (program, options) in [
            ("gups", "mbb=1"),
            ("graph", "scale=99"),
            ("scan", "mb=x"),
            ("filler", "share=101"),
            ("switches", "ms=0"),
        ] {
            let done = Command::new(dir.path().join(program)).arg(options).output().unwrap();
            assert_eq!(done.status.code(), Some(2), "{program} {options}");
            assert!(!done.stderr.is_empty());
        }
    }

    #[test]
    fn teams_compute_equal_sums_for_serial_and_parallel_allocation() {
        let dir = tempfile::tempdir().unwrap();
        compile_teams(dir.path()).unwrap();
        for (program, mb) in [("streamcluster", 2), ("kmeans", 2), ("jacobi", 2), ("pca.py", 2)] {
            let run = |options: &str| {
                let options = format!("mb={mb} seconds=0 rounds=4 interval_ms=1 {options}");
                let lines = lines(dir.path(), program, &options);
                assert!(lines[0]["began_s"].as_f64() > Some(0.0), "{program}: {lines:?}");
                crate::balance::program_output::understood(
                    &lines.iter().map(|line| format!("{line}\n")).collect::<String>(),
                )
                .unwrap();
                lines.last().unwrap().clone()
            };
            let (one, other) = (run("threads=3"), run("threads=3 parallel=1"));
            assert_eq!((one["done"].as_bool(), &one["sum"]), (Some(true), &other["sum"]));
            assert_eq!(one["operations"], other["operations"]);
            assert!(one["operations"].as_u64() > Some(0), "{program}: {one}");
            if program != "streamcluster" && program != "pca.py" {
                // The assignment of parts to threads does not matter.
                assert_eq!(one["sum"], run("threads=1")["sum"], "{program}");
            }
            for wrong in ["threads=65", "mb=0", "mbb=1", "seconds=x", "parallel=2"] {
                let done = command(dir.path(), program).arg(wrong).output().unwrap();
                assert_eq!(done.status.code(), Some(2), "{program} {wrong}");
                assert!(!done.stderr.is_empty());
            }
        }
    }
}
