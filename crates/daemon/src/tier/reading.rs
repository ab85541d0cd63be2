//! Reads a node's memory, and the CPU time of processes and threads.

use nearfar_kernel::fs::Fs;
use nearfar_kernel::meminfo::{self, Meminfo};
use nearfar_kernel::process;
use nearfar_policy::tiering::TierUsage;
use nearfar_topology::{Bytes, NodeId};

use nearfar_policy::tiering::clock_hand::PAGE;

/// A tick is a hundredth of a second on all Linux systems (USER_HZ).
const TICK_NS: u64 = 10_000_000;

/// The memory of a node that programs have or may get, of which `free` is free for migrated pages.
pub(super) fn side(node: Meminfo, free: Bytes) -> TierUsage {
    TierUsage { total: Bytes(free.0.saturating_add(node.taken.0)), free }
}

/// The memory of a node, as the kernel reports it; zeros if the node has gone.
pub(super) fn meminfo(fs: &dyn Fs, node: NodeId) -> Meminfo {
    meminfo::of_node(fs, node).unwrap_or_default()
}

/// Memory meant for a node but allocated on another one, since boot (`numa_foreign`,
/// Documentation/admin-guide/numastat.rst); zero if the kernel does not count it (`vm.numa_stat` is 0).
pub(super) fn foreign(fs: &dyn Fs, node: NodeId) -> Bytes {
    let path = format!("sys/devices/system/node/node{node}/numastat");
    let text = fs.read(&path).ok().flatten().unwrap_or_default();
    let pages = text.lines().find_map(|line| line.strip_prefix("numa_foreign ")?.parse().ok());
    Bytes(pages.unwrap_or(0u64).saturating_mul(PAGE))
}

/// User and system time of a process with all its threads, in nanoseconds, to the kernel's resolution of ticks.
pub(super) fn process_cpu_ns(fs: &dyn Fs, pid: &str) -> u64 {
    let text = fs.read(&format!("proc/{pid}/stat")).ok().flatten().unwrap_or_default();
    let ticks = process::stat_fields(&text).skip(11).take(2);
    ticks.filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>() * TICK_NS
}

/// The same of a thread, exact if the kernel reports it.
pub(super) fn thread_cpu_ns(fs: &dyn Fs, thread: &str) -> u64 {
    match process::cpu_ns(fs, thread) {
        0 => process_cpu_ns(fs, thread),
        exact => exact,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_kernel::fs::TreeFs;
    use nearfar_topology::Tree;

    #[test]
    fn memory_and_cpu_time_are_read_and_missing_files_count_as_zero() {
        let mut tree = Tree::new();
        tree.insert(
            "sys/devices/system/node/node1/meminfo",
            "Node 1 MemTotal:  100 kB\nNode 1 MemFree: 45 kB\nNode 1 Active: 20 kB\nNode 1 Inactive: 30 kB\n",
        );
        tree.insert("sys/devices/system/node/node1/numastat", "numa_hit 9\nnuma_foreign 3\n");
        tree.insert("proc/7/stat", "7 (a b) c) S 1 2 3 4 5 6 7 8 9 10 30 12 13 14");
        tree.insert("proc/8/stat", "8 (a) S 1 2 3 4 5 6 7 8 9 10 0 1 13 14");
        tree.insert("proc/8/schedstat", "123 4 5");
        let fs = TreeFs(tree);
        let (there, free) = (meminfo(&fs, NodeId(1)), Bytes(40 << 10));
        assert_eq!(side(there, free), TierUsage { total: Bytes(90 << 10), free });
        assert_eq!((there.total, there.free), (Bytes(100 << 10), Bytes(45 << 10)));
        assert_eq!([1, 2].map(|node| foreign(&fs, NodeId(node)).0), [3 * PAGE, 0]);
        assert_eq!(side(meminfo(&fs, NodeId(2)), Bytes(0)), TierUsage::default());
        let both = |pid: &str| [process_cpu_ns(&fs, pid), thread_cpu_ns(&fs, pid)];
        assert_eq!(["7", "8"].map(both), [[420_000_000, 420_000_000], [10_000_000, 123]]);
    }
}
