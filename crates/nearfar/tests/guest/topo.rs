//! `nearfar topo` on real kernels: the commands that it prints for a CXL device in no region, as it prints them, make its memory
//! a node; pages with memory errors are counted.

use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;

use serde_json::Value;

use crate::inside::done;

/// The command in the first note that has one.
fn command(topo: &str) -> Option<String> {
    let notes = topo.split_once("\nnotes\n")?.1.replace("\n    ", " ");
    let between = |note: &str, before: &str, after: &str| {
        let (_, rest) = note.split_once(before)?;
        rest.split_once(after).map(|(command, _)| command.to_owned())
    };
    notes.lines().find_map(|note| {
        between(note, "make one with ", " (package")
            .or_else(|| between(note, "; ", " makes it so"))
            .or_else(|| between(note, "; ", " brings it online"))
    })
}

pub(crate) fn printed_commands_make_memory_of_a_cxl_device_in_no_region() {
    let mut ran = Vec::new();
    let topo = loop {
        let topo = done(&["topo"]);
        let Some(command) = command(&topo) else { break topo };
        assert!(!ran.contains(&command), "{command} changed nothing: {topo}");
        let output = Command::new("sh").args(["-c", &command]).output().unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
        ran.push(command);
    };
    assert!(ran.first().is_some_and(|first| first.starts_with("cxl create-region")), "{ran:?}");
    let report: Value = serde_json::from_str(&done(&["topo", "--json"])).unwrap();
    let node = &report["nodes"][1];
    assert!(node["kind"] == "cxl" && node["known_by"] == "cxl_region", "{ran:?}: {topo}");
    assert!(node["size_bytes"].as_u64().unwrap() > 256 << 20, "{ran:?}: {topo}");
    done(&["run", "-m", "cxl", "--", "true"]);
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
