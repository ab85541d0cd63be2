//! `nearfar tier` on machines with several nodes per tier, with three tiers, and with memory that goes offline and
//! online.

use std::io::Read as _;
use std::process::{Child, Stdio};

use nearfar_kernel::fs::{Fs as _, RootFs};
use nearfar_kernel::residency;
use nearfar_topology::NodeId;

use crate::damon::wait;
use crate::inside::{HOLD, await_up, done, nearfar};
use crate::tier::{START, status, system};

/// Without timing, emulated CPUs are slow: work that takes 5 % of a real CPU would take all of one.
const HURRY: [&str; 4] = [START[0], START[1], "--cpu", "100"];

/// Programs with 64 MiB each, which begins on a node.
struct Programs(Vec<Child>);

impl Programs {
    fn start(how: &str, nodes: &[u16]) -> Self {
        let program = std::env::current_exe().unwrap();
        let start = |node: &u16| {
            let mut command = nearfar(&["run", "-p", &node.to_string(), program.to_str().unwrap()]);
            command.env(HOLD, how).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.stderr(Stdio::null()).spawn().unwrap();
            await_up(&mut child);
            child
        };
        Self(nodes.iter().map(start).collect())
    }

    /// MiB of them all on a node.
    fn mib_on(&self, node: u16) -> u64 {
        let fs = RootFs::live().unwrap();
        let of = |child: &Child| residency::of_process(&fs, child.id()).nodes;
        self.0.iter().map(|child| of(child).get(&NodeId(node)).map_or(0, |b| b.0 >> 20)).sum()
    }

    fn end(mut self) {
        for child in &mut self.0 {
            drop(child.stdin.take());
            assert!(child.wait().unwrap().success());
        }
    }
}

fn moved_mib(status: &serde_json::Value, from: u16, to: u16) -> u64 {
    let pair = |moves: &&serde_json::Value| moves["from"] == from && moves["to"] == to;
    let moves = status["moves"].as_array().unwrap().iter().find(pair);
    moves.map_or(0, |moves| moves["bytes"].as_u64().unwrap() >> 20)
}

/// Waits for something to be so, for a guest's minute.
fn until(what: impl Fn() -> bool) {
    for _ in 0..200 {
        if what() {
            return;
        }
        wait();
    }
}

/// Node 1 is HBM, 0 DRAM, 2 CXL.
pub(crate) fn hot_pages_of_the_slowest_tier_reach_the_fastest_and_cold_ones_are_demoted() {
    let before = system();
    let cold = Programs::start("input", &[1, 1]);
    let hot = Programs::start("touch", &[2]);
    let cold_fast = cold.mib_on(1);
    assert!(cold_fast >= 90, "{cold_fast} MiB of cold memory in the fastest tier");
    assert!(hot.mib_on(2) >= 60, "{} MiB", hot.mib_on(2));
    let said = done(&HURRY);
    assert!(said.contains("nodes 1 over 0 over 2"), "{said}");
    let pairs = [(2, 0), (0, 1), (1, 0)];
    until(|| {
        let status = status();
        hot.mib_on(1) >= 48 && pairs.iter().all(|(from, to)| moved_mib(&status, *from, *to) >= 16)
    });
    let status = status();
    let (hot_fast, cold_left) = (hot.mib_on(1), cold.mib_on(1));
    assert!(hot_fast >= 48, "{hot_fast} MiB of the hot program in the fastest tier: {status}");
    assert!(cold_left + 30 <= cold_fast, "{cold_left} of {cold_fast} MiB cold: {status}");
    let boundaries = status["boundaries"].as_array().unwrap();
    let sides = |one: &serde_json::Value| {
        [&one["near"]["nodes"], &one["far"]["nodes"]]
            .map(|nodes| nodes.as_str().unwrap().to_string())
    };
    assert_eq!(boundaries.iter().map(sides).collect::<Vec<_>>(), [["1", "0"], ["0", "2"]]);
    assert!(boundaries.iter().all(|one| one["reason"] != "starting"), "{status}");
    for (from, to) in pairs {
        assert!(moved_mib(&status, from, to) >= 16, "{from} to {to}: {status}");
    }
    assert_eq!(moved_mib(&status, 2, 1) + moved_mib(&status, 1, 2), 0, "{status}");
    let text = done(&["tier", "status"]);
    assert!(text.contains("1 over 0: ") && text.contains("0 over 2: "), "{text}");
    done(&["tier", "stop"]);
    assert_eq!(system(), before);
    cold.end();
    hot.end();
}

/// Two tiers of three, in an order of one's own.
pub(crate) fn tiering_uses_the_named_tiers() {
    let before = system();
    done(&[&HURRY[..], &["--tiers", "hbm/cxl"]].concat());
    let boundaries = status()["boundaries"].as_array().unwrap().clone();
    assert_eq!(boundaries.len(), 1);
    assert_eq!([&boundaries[0]["near"]["nodes"], &boundaries[0]["far"]["nodes"]], ["1", "2"]);
    done(&["tier", "stop"]);
    for (bad, says) in [("1", "one tier"), ("1/0/1", "can't be both"), ("1/7", "7")] {
        let output = nearfar(&[&HURRY[..], &["--tiers", bad]].concat()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(says), "{bad}: {output:?}");
    }
    assert_eq!(system(), before);
}

/// Nodes 0 and 1 are sockets, 2 and 3 their own expanders, which hold more than a socket can give: none goes to the other's.
pub(crate) fn a_socket_demotes_to_its_own_far_node_first() {
    let before = system();
    let cold = Programs::start("input", &[0, 0, 1, 1, 1]);
    let hot = Programs::start("touch", &[2, 3]);
    done(&HURRY);
    let promoted = |status: &serde_json::Value| -> u64 {
        [2, 3].iter().flat_map(|from| [0, 1].map(|to| moved_mib(status, *from, to))).sum()
    };
    until(|| {
        let status = status();
        let demoted = moved_mib(&status, 0, 2) >= 16 && moved_mib(&status, 1, 3) >= 16;
        demoted && promoted(&status) >= 32
    });
    let status = status();
    for (from, to) in [(0, 2), (1, 3)] {
        assert!(moved_mib(&status, from, to) >= 16, "{from} to {to}: {status}");
    }
    for (from, to) in [(0, 3), (1, 2)] {
        assert_eq!(moved_mib(&status, from, to), 0, "{from} to {to}: {status}");
    }
    assert!(promoted(&status) >= 32, "{status}");
    done(&["tier", "stop"]);
    assert_eq!(system(), before);
    cold.end();
    hot.end();
}

const BLOCKS: &str = "/sys/devices/system/memory";

/// Blocks of a node's memory, by number.
fn blocks(node: u16) -> Vec<u64> {
    let entries = std::fs::read_dir(format!("/sys/devices/system/node/node{node}")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut blocks: Vec<u64> =
        names.filter_map(|name| name.strip_prefix("memory")?.parse().ok()).collect();
    blocks.sort_unstable();
    blocks
}

fn set_block(block: u64, state: &str) -> std::io::Result<()> {
    std::fs::write(format!("{BLOCKS}/memory{block}/state"), state)
}

/// Whether a kdamond watches addresses of this block. Ranges that are being rewritten are read again.
fn is_watched(block: u64) -> bool {
    loop {
        if let Some(watched) = watched(block) {
            return watched;
        }
        std::thread::yield_now();
    }
}

/// `None` if a file has disappeared since its directory was counted, or disappears during the read.
fn watched(block: u64) -> Option<bool> {
    let fs = RootFs::live().unwrap();
    let size = std::fs::read_to_string(format!("{BLOCKS}/block_size_bytes")).unwrap();
    let start = block * u64::from_str_radix(size.trim(), 16).unwrap();
    let kdamonds = nearfar_kernel::damon::KDAMONDS;
    let number = |path: String| -> Option<u64> { fs.read(&path).ok()??.trim().parse().ok() };
    for kdamond in 0..number(format!("{kdamonds}/nr_kdamonds"))? {
        let regions = format!("{kdamonds}/{kdamond}/contexts/0/targets/0/regions");
        for region in 0..number(format!("{regions}/nr_regions"))? {
            let at = |end: &str| number(format!("{regions}/{region}/{end}"));
            if at("start")? <= start && start < at("end")? {
                return Some(true);
            }
        }
    }
    Some(false)
}

/// The blocks of a node without the kernel's own data, now and later. The kernel chooses which blocks it uses,
/// depending on the tests before: they fill nodes, and its data goes to nodes with free memory.
fn movable_blocks(node: u16) -> Vec<u64> {
    let of_node = blocks(node).into_iter();
    let movable = |block: &u64| {
        set_block(*block, "offline").and_then(|()| set_block(*block, "online_movable")).is_ok()
    };
    of_node.filter(movable).collect()
}

fn is_offline(block: u64) -> bool {
    std::fs::read_to_string(format!("{BLOCKS}/memory{block}/state")).unwrap().trim() == "offline"
}

/// A block is busy for as long as one of its pages is held, as those are that are being moved.
fn take_offline(block: u64) {
    until(|| set_block(block, "offline").is_ok() || is_offline(block));
    assert!(is_offline(block), "memory{block} stays busy");
}

pub(crate) fn memory_can_go_offline_and_online_during_tiering() {
    let of_node = blocks(2);
    let mut movable = movable_blocks(2);
    assert!(!movable.is_empty(), "{of_node:?} all hold memory of the kernel's own");
    movable.truncate(of_node.len() - 1);
    let stays = of_node.iter().find(|block| !movable.contains(block)).unwrap();
    let before = system();
    let cold = Programs::start("input", &[2, 2, 2]);
    let hot = Programs::start("touch", &[2]);
    done(&HURRY);
    until(|| moved_mib(&status(), 2, 0) >= 16);
    for block in &movable {
        assert!(is_watched(*block));
        take_offline(*block);
    }
    until(|| movable.iter().all(|block| !is_watched(*block)));
    assert!(movable.iter().all(|block| !is_watched(*block)), "they are watched still");
    assert!(is_watched(*stays));
    assert!(movable.iter().all(|block| is_offline(*block)));
    for block in &movable {
        set_block(*block, "online_movable").unwrap();
    }
    until(|| movable.iter().all(|block| is_watched(*block)));
    assert!(movable.iter().all(|block| is_watched(*block)), "they are not watched again");
    let status = status();
    assert_eq!(status["gone"], "", "{status}");
    assert!(moved_mib(&status, 2, 0) >= 16, "{status}");
    done(&["tier", "stop"]);
    assert_eq!(system(), before);
    cold.end();
    hot.end();
}

/// Node 1 is a CXL device, all of whose memory can go offline; Linux 7.2 keeps data of its own in the first block.
pub(crate) fn without_its_last_far_node_tiering_ends_with_a_message() {
    let before = system();
    let mut command = nearfar(&HURRY);
    let mut tier =
        command.arg("--foreground").stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    until(|| system() != before && nearfar(&["tier", "status"]).output().unwrap().status.success());
    for block in blocks(1) {
        set_block(block, "offline").unwrap();
    }
    let mut said = String::new();
    tier.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(!tier.wait().unwrap().success(), "{said}");
    assert!(said.contains("node 1 has no memory online any more"), "{said}");
    assert_eq!(system(), before);
    for block in blocks(1) {
        set_block(block, "online_movable").unwrap();
    }
}
