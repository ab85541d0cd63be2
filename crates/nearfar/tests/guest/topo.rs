//! `nearfar topo` on real kernels: the commands that it prints for CXL memory not in use, as it prints them, make it a node;
//! pages with memory errors are counted.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use nearfar_lab::fetch::Cache;
use serde_json::Value;

use crate::inside::done;

/// A directory with cxl and daxctl, which have their libraries beside them.
fn tools() -> PathBuf {
    let root = Cache::from_env().unwrap().dir().join("peers/ndctl/usr");
    let libraries = root.join("lib/x86_64-linux-gnu").display().to_string();
    let tools = Path::new("/tmp/cxl-tools");
    std::fs::create_dir_all(tools).unwrap();
    for name in ["cxl", "daxctl"] {
        let program = root.join("bin").join(name);
        assert!(program.exists(), "{}: scripts/setup test gets it", program.display());
        let (path, program) = (tools.join(name), program.display());
        let script = format!(
            "#!/bin/sh\nexec {libraries}/ld-linux-x86-64.so.2 --library-path {libraries} {program} \"$@\"\n"
        );
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    tools.to_path_buf()
}

fn run(command: &str) {
    let path = format!("{}:{}", tools().display(), std::env::var("PATH").unwrap());
    let output = Command::new("sh").args(["-c", command]).env("PATH", path).output().unwrap();
    assert!(output.status.success(), "{command}: {output:?}");
}

/// The command in the first note that has one.
fn command(topo: &str) -> Option<String> {
    let notes = topo.split_once("\nnotes\n")?.1.replace("\n    ", " ");
    let between = |note: &str, before: &str, after: &str| {
        let (_, rest) = note.split_once(before)?;
        rest.split_once(after).map(|(command, _)| command.to_owned())
    };
    notes.lines().find_map(|note| {
        between(note, "make one with ", " (cxl")
            .or_else(|| between(note, "; ", " makes it so"))
            .or_else(|| between(note, "; ", " brings it online"))
    })
}

/// Runs printed commands until there is none; returns them.
fn as_printed() -> Vec<String> {
    let mut ran = Vec::new();
    loop {
        let topo = done(&["topo"]);
        let Some(command) = command(&topo) else { break };
        assert!(!ran.contains(&command), "{command} changed nothing: {topo}");
        run(&command);
        ran.push(command);
    }
    let report: Value = serde_json::from_str(&done(&["topo", "--json"])).unwrap();
    let node = &report["nodes"][1];
    assert!(node["kind"] == "cxl" && node["known_by"] == "cxl_region", "{ran:?}: {report}");
    assert!(node["size_bytes"].as_u64().unwrap() > 256 << 20, "{ran:?}: {report}");
    done(&["run", "-m", "cxl", "--", "true"]);
    ran
}

pub(crate) fn the_printed_commands_turn_unused_cxl_memory_into_a_node() {
    std::fs::write("/sys/devices/system/memory/auto_online_blocks", "offline").unwrap();
    let made = as_printed();
    assert!(made[0].starts_with("cxl create-region"), "{made:?}");
    assert_eq!(made[1..], ["daxctl online-memory dax0.0"]);
    run("daxctl offline-memory dax0.0 && daxctl reconfigure-device --mode=devdax dax0.0");
    assert_eq!(as_printed(), ["daxctl reconfigure-device --mode=system-ram dax0.0"]);
}

pub(crate) fn pages_with_memory_errors_are_counted() {
    let errors = || {
        let report: Value = serde_json::from_str(&done(&["topo", "--json"])).unwrap();
        let total = |node: &Value| node["memory_errors"]["total"].as_u64().unwrap();
        report["nodes"].as_array().unwrap().iter().map(total).sum::<u64>()
    };
    let before = errors();
    // The kernel takes a page for corrupted (MADV_HWPOISON), and ends the program that has changed it.
    let poison = "import mmap; m = mmap.mmap(-1, 4096); m[0] = 1; m.madvise(100)";
    let ended = Command::new("python3").args(["-c", poison]).output().unwrap();
    assert!(ended.status.signal().is_some(), "{ended:?}");
    assert_eq!(errors(), before + 1);
    let topo = done(&["topo"]);
    assert!(topo.contains("memory errors on 1 page"), "{topo}");
}
