//! Readings besides accesses: residency of memory, and the overhead of recording.

use std::collections::BTreeMap;

use nearfar_kernel::damon::Session;
use nearfar_kernel::fs::Fs;
use nearfar_kernel::{process, residency};
use nearfar_record::Resident;
use nearfar_topology::NodeId;

use super::plan::{Plan, Who};
use nearfar_daemon::recording;

/// Bytes per node: of these processes, or all memory in use on each node.
pub(super) fn residency(fs: &dyn Fs, plan: &Plan, processes: &[u32]) -> Option<Vec<Resident>> {
    if let Who::Machine(_) = plan.who {
        return recording::in_use(fs, &plan.header);
    }
    let mut sums: BTreeMap<NodeId, u64> = BTreeMap::new();
    for pid in processes {
        for (node, bytes) in residency::of_process(fs, *pid).nodes {
            *sums.entry(node).or_default() += bytes.0;
        }
    }
    let nodes: Vec<Resident> =
        sums.into_iter().map(|(node, bytes)| Resident { node, bytes }).collect();
    (!nodes.is_empty()).then_some(nodes)
}

/// CPU time of kdamonds. The kernel drops a thread's figure when it ends, so the last one read is kept.
#[derive(Debug, Default)]
pub(super) struct Cost {
    /// By thread: the last figure read.
    threads: BTreeMap<u32, u64>,
}

impl Cost {
    /// Reads the figures of the present threads.
    pub(super) fn look(&mut self, fs: &dyn Fs, session: &Session<'_>) {
        let threads = (0..session.len()).filter_map(|index| session.thread(index).ok().flatten());
        for thread in threads {
            let last = self.threads.entry(thread).or_default();
            *last = process::cpu_ns(fs, &thread.to_string()).max(*last);
        }
    }

    /// CPU time of all threads so far, in nanoseconds.
    pub(super) fn kernel_ns(&self) -> u64 {
        self.threads.values().sum()
    }
}

/// CPU time of this process, in nanoseconds.
pub(super) fn own_cpu(fs: &dyn Fs) -> u64 {
    process::cpu_ns(fs, "self")
}
