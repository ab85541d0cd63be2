//! The memory of processes and cgroups, near and far, as JSON `nearfar.ps/1` and as tables.
//!
//! Of a process, shared pages count in full, so processes do not add up to the machine's memory; of a cgroup, each page counts once,
//! where it was touched first, and page cache counts, too. [`nearfar_kernel::usage`] and [`nearfar_kernel::cgroup`] read.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use nearfar_kernel::cgroup::NodeMemory;
use nearfar_kernel::usage::{self, Usage};
use nearfar_topology::{Bytes, NodeId, NodeSet};
use serde::Serialize;

use crate::output;

/// The JSON of `nearfar.ps/1`.
#[derive(Debug, Serialize)]
pub struct Report {
    /// `nearfar.ps/1`.
    pub schema: &'static str,
    /// In display order.
    pub processes: Vec<Process>,
    /// Instead of processes, if asked for; in display order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroups: Option<Vec<Group>>,
    /// Processes that this user may not read.
    pub unreadable: usize,
}

/// A process.
#[derive(Debug, Serialize)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Its name.
    pub command: String,
    /// All of it, and its parts near and far.
    #[serde(flatten)]
    pub memory: Memory,
    nodes: Vec<OnNode>,
    policies: Vec<WithPolicy>,
    /// Memory in transparent huge pages, where it was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transparent_huge_bytes: Option<u64>,
}

/// A cgroup with its descendants.
#[derive(Debug, Serialize)]
pub struct Group {
    /// Its path below the root of the hierarchy.
    pub cgroup: String,
    /// All of it, and its parts near and far.
    #[serde(flatten)]
    pub memory: Memory,
    nodes: Vec<GroupOnNode>,
}

/// Bytes of memory; those of kinds that are neither near nor far count in all only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Memory {
    /// Far memory.
    pub far_bytes: u64,
    /// All memory.
    pub bytes: u64,
    /// Near memory.
    pub near_bytes: u64,
}

/// Memory of a process on a node.
#[derive(Debug, Serialize)]
struct OnNode {
    node: u16,
    anonymous_bytes: u64,
    file_bytes: u64,
    shared_bytes: u64,
    hugetlb_bytes: u64,
}

/// Memory of a cgroup on a node.
#[derive(Debug, Serialize)]
struct GroupOnNode {
    node: u16,
    anonymous_bytes: u64,
    file_bytes: u64,
}

/// Memory of a process under a memory policy.
#[derive(Debug, Serialize)]
struct WithPolicy {
    policy: String,
    bytes: u64,
}

impl Process {
    /// A process with this memory, on a machine with these near and far nodes.
    #[must_use]
    pub fn new(
        pid: u32,
        command: String,
        usage: &Usage,
        (near, far): (&NodeSet, &NodeSet),
    ) -> Self {
        let on_node = |(node, kinds): (&NodeId, &usage::Kinds)| OnNode {
            node: node.0,
            anonymous_bytes: kinds.anonymous.0,
            file_bytes: kinds.file.0,
            shared_bytes: kinds.shared.0,
            hugetlb_bytes: kinds.hugetlb.0,
        };
        let policy = |(policy, bytes): (&String, &Bytes)| WithPolicy {
            policy: policy.clone(),
            bytes: bytes.0,
        };
        Self {
            pid,
            command,
            memory: Memory::of((near, far), |is_counted| usage.on(is_counted)),
            nodes: usage.nodes.iter().map(on_node).collect(),
            policies: usage.policies.iter().map(policy).collect(),
            transparent_huge_bytes: None,
        }
    }
}

impl Group {
    /// A cgroup with this memory, on a machine with these near and far nodes.
    #[must_use]
    pub fn new(
        cgroup: String,
        nodes: &BTreeMap<NodeId, NodeMemory>,
        (near, far): (&NodeSet, &NodeSet),
    ) -> Self {
        let memory = Memory::of((near, far), |is_counted| {
            let counted = nodes.iter().filter(|(node, _)| is_counted(**node));
            Bytes(counted.fold(0, |sum: u64, (_, memory)| sum.saturating_add(memory.total().0)))
        });
        let on_node = |(node, memory): (&NodeId, &NodeMemory)| GroupOnNode {
            node: node.0,
            anonymous_bytes: memory.anon.0,
            file_bytes: memory.file.0,
        };
        Self { cgroup, memory, nodes: nodes.iter().map(on_node).collect() }
    }
}

impl Memory {
    /// From the bytes `on` the nodes that a test names.
    fn of(
        (near, far): (&NodeSet, &NodeSet),
        on: impl Fn(&dyn Fn(NodeId) -> bool) -> Bytes,
    ) -> Self {
        Self {
            far_bytes: on(&|node| far.contains(node)).0,
            bytes: on(&|_| true).0,
            near_bytes: on(&|node| near.contains(node)).0,
        }
    }

    /// The share that is far, in percent.
    fn far_percent(self) -> u64 {
        self.far_bytes.saturating_mul(100) / self.bytes.max(1)
    }

    /// The cells of a table.
    fn cells(self) -> String {
        let [bytes, near, far] =
            [self.bytes, self.near_bytes, self.far_bytes].map(|bytes| Bytes(bytes).to_string());
        format!("{bytes:>11} {near:>11} {far:>11} {:>5}", self.far_percent())
    }
}

/// A line for each cgroup.
#[must_use]
pub fn groups(report: &Report) -> String {
    let mut out = format!("{:>11} {:>11} {:>11} {:>5}  CGROUP\n", "MEMORY", "NEAR", "FAR", "FAR%");
    for one in report.cgroups.iter().flatten() {
        let _ = writeln!(out, "{}  {}", one.memory.cells(), one.cgroup);
    }
    out
}

/// A line for each process.
#[must_use]
pub fn table(report: &Report) -> String {
    let mut out = format!(
        "{:>8} {:>11} {:>11} {:>11} {:>5}  COMMAND\n",
        "PID", "MEMORY", "NEAR", "FAR", "FAR%"
    );
    for one in &report.processes {
        let _ = writeln!(out, "{:>8} {}  {}", one.pid, one.memory.cells(), one.command);
    }
    if report.unreadable > 0 {
        let count = report.unreadable;
        let text = match rustix::process::geteuid().is_root() {
            true => format!(
                "not shown: {count} (this container or kernel does not let even root read their memory)"
            ),
            false => format!("not shown: {count} of other users (sudo nearfar ps)"),
        };
        output::wrapped(&mut out, "", &text, 0);
    }
    out
}

/// Each process by node, kind of page and policy.
#[must_use]
pub fn details(report: &Report) -> String {
    let mut out = String::new();
    for one in &report.processes {
        let (bytes, percent) = (Bytes(one.memory.bytes), one.memory.far_percent());
        let _ = writeln!(out, "{} {}: {bytes}, {percent} % far", one.pid, one.command);
        let _ = writeln!(
            out,
            "  {:<6} {:>11} {:>11} {:>11} {:>11}",
            "node", "anonymous", "file", "shared", "hugetlb"
        );
        for on in &one.nodes {
            let [anonymous, file, shared, hugetlb] =
                [on.anonymous_bytes, on.file_bytes, on.shared_bytes, on.hugetlb_bytes]
                    .map(|bytes| Bytes(bytes).to_string());
            let _ = writeln!(
                out,
                "  {:<6} {anonymous:>11} {file:>11} {shared:>11} {hugetlb:>11}",
                on.node
            );
        }
        for with in &one.policies {
            let _ = writeln!(out, "  policy {}: {}", with.policy, Bytes(with.bytes));
        }
        if let Some(bytes) = one.transparent_huge_bytes {
            let _ = writeln!(out, "  in transparent huge pages: {}", Bytes(bytes));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_has_its_memory_by_node_and_kind_of_page() {
        let memory =
            |anon: u64, file: u64| NodeMemory { anon: Bytes(anon << 20), file: Bytes(file << 20) };
        let nodes = BTreeMap::from([
            (NodeId(0), memory(3, 1)),
            (NodeId(1), memory(12, 0)),
            (NodeId(2), memory(4, 0)),
        ]);
        let [near, far] = [0, 1].map(|node| NodeSet::from_iter([NodeId(node)]));
        let group = Group::new("/app".into(), &nodes, (&near, &far));
        // Node 2 is neither: a GPU's.
        let expected = Memory { far_bytes: 12 << 20, bytes: 20 << 20, near_bytes: 4 << 20 };
        assert_eq!(group.memory, expected);
        let json = serde_json::to_value(&group).unwrap();
        assert_eq!((&json["far_bytes"], &json["cgroup"]), (&(12 << 20).into(), &"/app".into()));
        assert_eq!(json["nodes"][0]["file_bytes"], 1 << 20);
        let report = Report {
            schema: "nearfar.ps/1",
            processes: Vec::new(),
            cgroups: Some(vec![group]),
            unreadable: 0,
        };
        let shown = groups(&report);
        assert!(shown.ends_with("     20 MiB       4 MiB      12 MiB    60  /app\n"), "{shown}");
    }
}
