//! The daemon on machines with near and far memory: its published values, and no files left behind.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use nearfar_kernel::advice::{Reader, default_path};
use nearfar_topology::NodeId;
use serde_json::Value;

use crate::inside::{HOLD, await_up, done, nearfar};

/// A daemon with the usual paths, once it has published.
fn start(options: &[&str]) -> Child {
    let mut daemon = nearfar(&[&["daemon"], options].concat());
    let mut daemon = daemon.stderr(Stdio::null()).spawn().unwrap();
    while status().is_none() {
        assert_eq!(daemon.try_wait().unwrap(), None, "it has ended");
        nap();
    }
    daemon
}

fn nap() {
    Command::new("sleep").arg("0.2").status().unwrap();
}

fn status() -> Option<Value> {
    let output = nearfar(&["daemon", "status", "--json"]).output().unwrap();
    output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
}

fn end(mut daemon: Child) {
    let pid = rustix::process::Pid::from_child(&daemon);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(daemon.wait().unwrap().code(), Some(0));
    assert_nothing_is_left();
}

/// The lab itself has more in /run/nearfar.
fn assert_nothing_is_left() {
    for name in ["/run/nearfar/advice", "/run/nearfar/advice.claim", "/run/tierd"] {
        assert!(!Path::new(name).exists(), "{name}");
    }
}

pub(crate) fn each_node_is_published_and_no_files_remain() {
    let daemon = start(&["--tierd"]);
    let found = status().unwrap();
    let ids: Vec<_> = found["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| node["node"].as_u64().unwrap())
        .collect();
    assert_eq!(ids, [0, 1]);
    let read = |name: &str| {
        std::fs::read_to_string(format!("/run/tierd/{name}")).unwrap().trim().to_string()
    };
    for node in ["node0", "node1"] {
        assert_eq!(read(&format!("{node}/idle_state_capacity")), "true");
        assert!(read(&format!("{node}/max_bw")).parse::<f64>().unwrap() > 1000.0, "from firmware");
    }
    assert_eq!(read("node0/fallback_order_tier"), "0,1");
    assert!(!Path::new("/run/tierd/node1/fallback_order_tier").exists(), "it has no CPUs");
    end(daemon);
    let mut killed = start(&["--tierd"]);
    killed.kill().unwrap();
    killed.wait().unwrap();
    done(&["daemon", "--recover"]);
    assert_nothing_is_left();
}

/// Pressure on near and far memory, as it is published.
fn pressures() -> [u32; 2] {
    let page = Reader::open(&default_path()).unwrap().unwrap().read().unwrap();
    [0, 1].map(|node| page.of(NodeId(node)).unwrap().pressure)
}

/// With timing on, memory that is used heavily is slower; with it off nothing is.
pub(crate) fn heavily_used_memory_is_under_pressure_and_other_memory_is_not() {
    assert_ne!(std::env::var("NEARFAR_LAB_TIMING").as_deref(), Ok("off"), "no plugin: make plugin");
    let daemon = start(&["--interval", "50"]);
    let idle = pressures();
    let program = std::env::current_exe().unwrap();
    let mut copying = nearfar(&["run", "-m", "near", program.to_str().unwrap()]);
    copying.env(HOLD, "copy").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut copying = copying.spawn().unwrap();
    await_up(&mut copying);
    // As long as it takes; a daemon that sees nothing ends the boot by its time limit.
    let busy = loop {
        let now = pressures();
        if now[0] >= 150 {
            break now;
        }
        nap();
    };
    drop(copying.stdin.take());
    assert!(copying.wait().unwrap().success());
    assert!(idle[0] < 150 && busy[1] < busy[0], "idle {idle:?}, busy {busy:?}");
    end(daemon);
}
