//! `nearfar-bench balance` on real kernels: programs run under each row with the intended placement, and the kernel's
//! NUMA balancing is restored, also after a kill.

use std::process::Stdio;

use serde_json::Value;

use crate::damon::wait;
use crate::inside::{bench, printed};
use crate::tier::system;

const BALANCING: &str = "/proc/sys/kernel/numa_balancing";
const COMPARE: [&str; 7] =
    ["balance", "--here", "--smoke", "--json", "--settle", "0", "--programs"];

fn balancing() -> String {
    std::fs::read_to_string(BALANCING).unwrap().trim().to_string()
}

fn compare(words: &[&str]) -> Value {
    serde_json::from_str(&printed(bench(&[&COMPARE[..], words].concat()))).unwrap()
}

pub(crate) fn programs_run_under_each_row_and_settings_are_restored() {
    let before = system();
    let rows = "first-touch,interleave,node-3,local,numa-balancing,carrefour";
    let found = compare(&["kmeans,settled", "--rows", rows, "--seconds", "2"]);
    assert_eq!(system(), before);
    assert_eq!(found["node_of_cpu"], serde_json::json!([0, 1, 2, 3]));
    for (tried, wanted) in found["programs"].as_array().unwrap().iter().zip([6, 2]) {
        let rows = tried["rows"].as_array().unwrap();
        assert_eq!(rows.len(), wanted, "{tried}");
        for ran in rows {
            assert_eq!(ran["failed"], Value::Null, "{ran}");
            let run = &ran["runs"][0];
            assert!(run["operations_per_s"].as_f64() > Some(0.0), "{ran}");
            assert!(run["windows"].as_array().unwrap().len() > 1, "{ran}");
            let ours = ran["kind"] == "carrefour";
            assert_eq!(run["balancing"]["sensors"].is_array(), ours, "{ran}");
        }
    }
}

pub(crate) fn settings_of_a_killed_comparison_are_restored_by_the_next() {
    let was = balancing();
    std::fs::write(BALANCING, "0").unwrap();
    let words = ["kmeans", "--rows", "numa-balancing", "--seconds", "1000"];
    let mut killed = bench(&[&COMPARE[..], &words].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while balancing() != "1" {
        assert_eq!(killed.try_wait().unwrap(), None, "it ended before it set anything");
        wait();
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!(balancing(), "1");
    let found = compare(&["kmeans", "--rows", "first-touch", "--seconds", "1"]);
    assert_eq!(found["programs"][0]["rows"][0]["failed"], Value::Null, "{found}");
    assert_eq!(balancing(), "0");
    std::fs::write(BALANCING, was).unwrap();
}
