//! The daemon on machines with near and far memory: what it says of them, who follows it, and that nothing of it is left.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use nearfar_kernel::advice::{Publisher, Reader, default_path};
use nearfar_kernel::chase;
use nearfar_policy::advice::{Advice, Page, Traffic};
use nearfar_topology::{BasisPoints, Nanoseconds, NodeId};
use serde_json::Value;

use crate::inside::{HOLD, await_up, done, held_by, libraries, nearfar};

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

pub(crate) fn each_node_is_told_of_and_nothing_is_left() {
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

/// A page that says of each node how much pressure it is under.
fn page(pressures: [u32; 2]) -> Page {
    let node = |(id, pressure): (u16, u32)| Advice {
        node: NodeId(id),
        idle: Nanoseconds(100),
        load: Nanoseconds(u64::from(pressure)),
        pressure,
        used: None,
        read: None,
        write: None,
        free: BasisPoints(9000),
        weight: 8,
    };
    Page {
        heartbeat: chase::now(),
        interval: Nanoseconds(60_000_000_000),
        pid: std::process::id(),
        traffic: Traffic::Unknown,
        cpu: Nanoseconds(0),
        begun: Nanoseconds(0),
        looks: 1,
        nodes: [(0, pressures[0]), (1, pressures[1])].map(node).into(),
    }
}

pub(crate) fn a_heap_that_adapts_goes_where_the_page_says_memory_is_idle() {
    for (pressures, node) in [([400, 100], 1), ([100, 100], 0), ([100, 400], 0)] {
        let publisher = Publisher::start(&default_path(), page(pressures)).unwrap();
        let mut holder = Command::new(std::env::current_exe().unwrap());
        holder.env(HOLD, "input").env("NEARFAR_CONF", "adapt=bw_saturation");
        holder.env("LD_PRELOAD", libraries().join("libnearfar_preload.so"));
        let found = held_by(&mut holder);
        assert!(found[node] >= 64 && found[1 - node] < 32, "{pressures:?}: {found:?} MiB");
        drop(publisher);
    }
}

/// Pressure on near and far memory, as it is published.
fn pressures() -> [u32; 2] {
    let page = Reader::open(&default_path()).unwrap().unwrap().read().unwrap();
    [0, 1].map(|node| page.of(NodeId(node)).unwrap().pressure)
}

/// With timing on, memory that is used heavily is slower; with it off nothing is.
pub(crate) fn memory_that_is_used_heavily_is_under_pressure_and_the_rest_is_not() {
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
