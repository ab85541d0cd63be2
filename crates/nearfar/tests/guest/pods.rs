//! Pods of a real kubelet, containerd and runc: redis is placed by each annotation, ignored policies are found, and
//! nothing is left after removal.
//!
//! The programs are in the directory of [`BIN`], as `make kubernetes` builds them; only it runs these tests. The kubelet
//! has no API server: it starts the pods of a directory. Pods use the guest's network, since it has no other.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::inside::{STATE, done};
use crate::tier::{START, system};

mod node;

use node::{CURRENT, Node, Versions, shell, within_time};

/// Environment variable with the directory of kubelet, containerd, runc, and older versions of these.
pub(crate) const BIN: &str = "NEARFAR_KUBERNETES_BIN";
const MIB: u64 = 1 << 20;

/// The redis server of this pod: its parent, the container's shell, has the name in its environment. That of redis itself
/// is overwritten by its title.
fn redis_of(pod: &str) -> Option<u32> {
    let mark = format!("POD={pod}");
    let is_it = |process: &Path| {
        let stat = fs::read_to_string(process.join("stat")).ok()?;
        let parent = stat.strip_suffix('\n')?.split_once("(redis-server) ")?.1.split(' ').nth(1)?;
        let variables = fs::read(format!("/proc/{parent}/environ")).ok()?;
        variables.split(|byte| *byte == 0).any(|one| one == mark.as_bytes()).then_some(())
    };
    let mut found = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let path = entry.ok()?.path();
        let pid = path.file_name()?.to_str()?.parse().ok()?;
        is_it(&path).map(|()| pid)
    });
    found.next()
}

fn numa_maps(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/numa_maps")).unwrap_or_default()
}

/// Bytes of anonymous pages by node.
fn anonymous(pid: u32) -> BTreeMap<u32, u64> {
    let mut nodes = BTreeMap::new();
    for line in numa_maps(pid).lines().filter(|line| line.contains(" anon=")) {
        for word in line.split_whitespace().filter_map(|word| word.strip_prefix('N')) {
            if let Some((node, pages)) = word.split_once('=') {
                *nodes.entry(node.parse().unwrap()).or_insert(0) +=
                    pages.parse::<u64>().unwrap() * 4096;
            }
        }
    }
    nodes
}

/// Policies of its anonymous mappings.
fn policies(pid: u32) -> Vec<String> {
    let maps = numa_maps(pid);
    let of = |line: &str| {
        // A policy may have a space: `weighted interleave:0-1`.
        let words: Vec<&str> = line.split_whitespace().skip(1).collect();
        let end = words.iter().position(|word| word.contains('=') && !word.contains(':'));
        let end = end.or_else(|| words.iter().position(|word| *word == "heap" || *word == "stack"));
        words[..end.unwrap_or(words.len())].join(" ")
    };
    let mut all: Vec<String> =
        maps.lines().filter(|line| line.contains(" anon=")).map(of).collect();
    all.sort();
    all.dedup();
    all
}

/// A pod: its name, annotations, the policy that its mappings have, and the share of its pages on node 1 in per cent.
type Placed = (&'static str, Value, &'static str, [u64; 2]);

fn placed() -> Vec<Placed> {
    let intel = "mode: MPOL_INTERLEAVE\nnodes: allowed-mems\n";
    let class = "class.memory-policy.nri.io/container.redis";
    vec![
        ("far", json!({"nearfar.io/memory": "far"}), "bind=static:1", [100, 100]),
        ("prefer", json!({"nearfar.io/memory": "prefer:cxl"}), "prefer=static:1", [100, 100]),
        ("tier", json!({"nearfar.io/memory": "tier:1"}), "bind=static:1", [100, 100]),
        (
            "spread",
            json!({"nearfar.io/memory": "interleave:near,far"}),
            "interleave=static:0-1",
            [40, 60],
        ),
        (
            "weighted",
            json!({"nearfar.io/memory": "weighted:near,far"}),
            "weighted interleave=static:0-1",
            [15, 60],
        ),
        (
            "own",
            json!({"nearfar.io/memory": "near", "memory.nearfar.io/container.redis": "far"}),
            "bind=static:1",
            [100, 100],
        ),
        ("intel", json!({"policy.memory-policy.nri.io": intel}), "interleave=static:0-1", [40, 60]),
        ("class", json!({class: "far-first"}), "prefer=static:1", [100, 100]),
    ]
}

fn far_share(pid: u32) -> u64 {
    let nodes = anonymous(pid);
    let all: u64 = nodes.values().sum();
    nodes.get(&1).copied().unwrap_or(0) * 100 / all.max(1)
}

pub(crate) fn redis_in_a_pod_is_placed_by_each_annotation_and_leaves_nothing() {
    let before = system();
    let classes = Path::new("/tmp/classes.json");
    fs::write(classes, r#"{"far-first": {"mode": "MPOL_PREFERRED", "nodes": "1"}}"#).unwrap();
    done(&[&START[..], &["--near-attributes"]].concat());
    let node = Node::start("placed", &CURRENT, &["--classes", classes.to_str().unwrap()]);
    let all = placed();
    for (name, annotations, _, _) in &all {
        node.pod(name, annotations, &json!({}), 24);
    }
    for (name, annotations, policy, [least, most]) in &all {
        let pid = node.redis(name, 24);
        let (policies, share) = (policies(pid), far_share(pid));
        println!("{name} {annotations}: {policies:?}, {share} % on node 1");
        let log = node.nri.text();
        assert!(policies.iter().any(|one| one == policy), "{name}: {policies:?}\n{log}");
        assert!((*least..=*most).contains(&share), "{name}: {share} % on node 1");
        let verified = node.verified(name);
        assert!(!verified.contains("result=wrong"), "{verified}");
        node.remove(name);
    }
    heaps_and_budgets(&node);
    cpusets(&node);
    refused(&node);
    all_gone();
    let metrics = fs::read_to_string(node.dir.join("nri.prom")).unwrap();
    println!("{metrics}");
    assert!(metrics.contains("nearfar_nri_verified_total{result=\"wrong\"} 0"), "{metrics}");
    // The kubelet removes them when it next looks.
    let groups = || shell("find /sys/fs/cgroup/kubepods -name 'pod*' -type d").trim().to_owned();
    let removed = within_time(|| groups().is_empty().then_some(()));
    assert!(removed.is_some(), "cgroups of pods: {}", groups());
    let dir = node.dir.clone();
    drop(node);
    done(&["tier", "stop"]);
    assert_eq!(system(), before);
    let journal = Path::new(STATE).join("journal");
    let entries = shell(&format!("ls {} | grep -v lock || true", journal.display()));
    assert_eq!(entries.trim(), "", "the journal");
    assert!(!shell("cat /proc/self/mountinfo").contains("libnearfar_preload"));
    shell(&format!("umount -R {}/run", dir.display()));
}

/// `nearfar.io/heap` places malloc alone; `near-max` is kept by tiering.
fn heaps_and_budgets(node: &Node) {
    node.pod("heap", &json!({"nearfar.io/heap": "far"}), &json!({}), 24);
    let limits = json!({"nearfar.io/near-max": "40m", "nearfar.io/near-min": "8m"});
    node.pod("budget", &limits, &json!({}), 64);
    let pid = node.redis("heap", 24);
    // The library's own tables are near.
    let far = || anonymous(pid).get(&1).copied().unwrap_or(0);
    let filled = within_time(|| (far() >= 24 * MIB).then_some(()));
    let (nodes, policies) = (anonymous(pid), policies(pid));
    println!("heap: {nodes:?} {policies:?}");
    assert!(filled.is_some(), "{nodes:?}");
    assert!(policies.iter().any(|policy| policy == "default"), "{policies:?}");
    let pid = node.redis("budget", 64);
    node.nri.line(&["event=budget", "default/budget-lab", "near_max=41943040", "result=set"]);
    let near = || anonymous(pid).get(&0).copied().unwrap_or(0);
    let reached = within_time(|| (near() <= 40 * MIB).then_some(()));
    println!("budget: {:?}", anonymous(pid));
    assert!(reached.is_some(), "{:?} {}", anonymous(pid), done(&["tier", "status"]));
    ["heap", "budget"].into_iter().for_each(|name| node.remove(name));
}

/// The memory manager gives a Guaranteed pod near nodes only: far memory is refused, or its cpuset widened.
fn cpusets(node: &Node) {
    let amount = json!({"cpu": "1", "memory": "200Mi"});
    let resources = json!({"requests": amount, "limits": amount});
    let widened = json!({"nearfar.io/memory": "far", "nearfar.io/mems": "widen"});
    node.pod("kept", &json!({"nearfar.io/memory": "far"}), &resources, 24);
    node.pod("widened", &widened, &resources, 24);
    let pid = node.redis("widened", 24);
    println!("widened: {:?} {}", policies(pid), far_share(pid));
    assert_eq!(far_share(pid), 100);
    let why = node.nri.line(&["event=refused", "default/kept-lab"]);
    assert!(why.contains("outside the container's cpuset") && why.contains("widen"), "{why}");
    assert_eq!(redis_of("kept"), None);
    ["kept", "widened"].into_iter().for_each(|name| node.remove(name));
}

/// Annotations that can't be met: no process is started, and the kubelet's events have the reason.
fn refused(node: &Node) {
    let both = json!({"nearfar.io/memory": "far", "policy.memory-policy.nri.io": "mode: MPOL_BIND\nnodes: 0\n"});
    for (name, annotations, reason) in [
        ("absent", json!({"nearfar.io/memory": "hbm"}), "cxl"),
        ("unknown", json!({"nearfar.io/memmory": "far"}), "there is no such key"),
        ("both", both, "contradict"),
        ("least", json!({"nearfar.io/near-max": "1m", "nearfar.io/near-min": "2m"}), "contradict"),
    ] {
        node.pod(name, &annotations, &json!({}), 24);
        let why = node.nri.line(&["event=refused", &format!("default/{name}-lab")]);
        println!("{why}");
        assert!(why.contains(reason), "{why}");
        node.kubelet.line(&["nearfar: container redis", reason]);
        assert_eq!(redis_of(name), None);
        node.remove(name);
    }
}

/// All pods have ended.
fn all_gone() {
    let count = || shell("pgrep -c redis-server || true").trim().parse::<u32>().unwrap();
    let gone = within_time(|| (count() == 0).then_some(()));
    assert!(gone.is_some(), "{} of redis", count());
}

/// A runtime ignores a policy that it does not know, without an error: the plugin says so.
pub(crate) fn policies_ignored_by_the_runtime_are_detected() {
    let old_runc = Versions { runc: "old/runc", ..CURRENT };
    let node = Node::start("old-runc", &old_runc, &[]);
    node.pod("far", &json!({"nearfar.io/memory": "far"}), &json!({}), 24);
    let pid = node.redis("far", 24);
    let verified = node.verified("far");
    println!("{verified}\n{:?}", policies(pid));
    assert!(verified.contains("result=wrong"), "{verified}");
    assert!(far_share(pid) < 100);
    node.remove("far");
    all_gone();
    drop(node);
    let old = Versions { containerd: "old/containerd", ..CURRENT };
    let node = Node::start("old-containerd", &old, &[]);
    println!("{}", node.nri.line(&["event=configured"]));
    node.nri.line(&["event=configured", "policies=cpuset-only"]);
    node.pod("far", &json!({"nearfar.io/memory": "far"}), &json!({}), 24);
    node.pod("spread", &json!({"nearfar.io/memory": "interleave:near,far"}), &json!({}), 24);
    let pid = node.redis("far", 24);
    let verified = node.verified("far");
    println!("{verified}\n{:?}", anonymous(pid));
    assert_eq!(far_share(pid), 100, "bound by its cpuset");
    assert!(!verified.contains("result=wrong"), "{verified}");
    let why = node.nri.line(&["event=refused", "default/spread-lab"]);
    assert!(why.contains("NRI 0.12"), "{why}");
    ["far", "spread"].into_iter().for_each(|name| node.remove(name));
    all_gone();
}
