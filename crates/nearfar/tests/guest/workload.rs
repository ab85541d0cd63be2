//! Workloads on real kernels: the program waits with its memory while the compared service starts, and its pages, which
//! it locates itself, have the intended placement.

use serde_json::Value;

use crate::inside::{bench, printed};

pub(crate) fn a_waiting_program_keeps_its_memory_and_finds_its_hot_pages_as_placed() {
    let waiting =
        "cut -d')' -f2 /proc/$NEARFAR_DATA_PID/stat; readlink /proc/$NEARFAR_DATA_PID/exe";
    let words = "workload gups-steady --here --json --near-mib 16 --seconds 2 --busy-percent 50 --switch-ms 20";
    let words: Vec<_> =
        words.split(' ').chain(["--placement", "near,far", "--before", waiting]).collect();
    let found: Value = serde_json::from_str(&printed(bench(&words))).unwrap();
    assert_eq!(found["machine"]["emulation"]["machine"], "cxl-2tier");
    assert_eq!(found["set_bytes"], 32 << 20);
    let runs = found["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2);
    for (run, node) in runs.iter().zip([0, 1]) {
        let before = run["said_before"].as_str().unwrap();
        assert!(before.trim_start().starts_with('T') && before.contains("/gups"), "{before}");
        let last = run["intervals"].as_array().unwrap().last().unwrap();
        let pages = last["hot_pages_by_node"].as_object().unwrap();
        assert_eq!(pages.keys().collect::<Vec<_>>(), [&node.to_string()], "{run}");
        let looks = run["residency"].as_array().unwrap();
        let on_node = |look: &Value| {
            let nodes = look["nodes"].as_array().unwrap().iter();
            let bytes = |of: &Value| of["bytes"].as_u64().unwrap();
            let on = nodes.filter(|of| of["node"] == node).map(bytes).sum::<u64>();
            on >= 32 << 20
        };
        // A sample may find it ending.
        assert!(looks.iter().any(on_node), "{run}");
        assert!(run["operations_per_s"].as_f64() > Some(0.0), "{run}");
    }
}
