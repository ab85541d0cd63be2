//! What is read beside accesses: where memory is, and what recording costs.

use nearfar_kernel::damon::Session;
use nearfar_kernel::fs::Fs;
use nearfar_kernel::residency;
use nearfar_record::{Residency, Resident};
use nearfar_topology::NodeId;

use super::plan::Plan;

/// Bytes per node: of the processes, or all that is in use on each node.
pub(super) fn residency(fs: &dyn Fs, plan: &Plan, at_ns: u64) -> Option<Residency> {
    let mut sums: std::collections::BTreeMap<NodeId, u64> = std::collections::BTreeMap::new();
    for pid in &plan.processes {
        for (node, bytes) in residency::of_process(fs, *pid).nodes {
            *sums.entry(node).or_default() += bytes.0;
        }
    }
    if plan.processes.is_empty() {
        for node in &plan.header.nodes {
            let text =
                fs.read(&format!("sys/devices/system/node/node{}/meminfo", node.id)).ok()??;
            sums.insert(node.id, used(&text)?);
        }
    }
    let nodes: Vec<Resident> =
        sums.into_iter().map(|(node, bytes)| Resident { node, bytes }).collect();
    (!nodes.is_empty()).then_some(Residency { at_ns, nodes })
}

/// `MemUsed` of a node's meminfo, in bytes.
fn used(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.contains(" MemUsed:"))?;
    let kib: u64 = line.split_whitespace().rev().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

/// CPU time of all kdamonds so far, in nanoseconds.
pub(super) fn cpu_of_kdamonds(fs: &dyn Fs, session: &Session<'_>) -> u64 {
    let threads = (0..session.len()).filter_map(|index| session.thread(index).ok().flatten());
    threads.map(|pid| cpu(fs, &pid.to_string())).sum()
}

/// Our own, likewise.
pub(super) fn own_cpu(fs: &dyn Fs) -> u64 {
    cpu(fs, "self")
}

/// The first figure of schedstat is time on a CPU.
fn cpu(fs: &dyn Fs, process: &str) -> u64 {
    let text = fs.read(&format!("proc/{process}/schedstat")).ok().flatten().unwrap_or_default();
    text.split_whitespace().next().and_then(|figure| figure.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_memory_is_read_in_bytes() {
        let text =
            "Node 0 MemTotal:  2048 kB\nNode 0 MemFree:  1024 kB\nNode 0 MemUsed:  1000 kB\n";
        assert_eq!(used(text), Some(1_024_000));
        assert_eq!(used("Node 0 MemTotal: 1 kB"), None);
    }
}
