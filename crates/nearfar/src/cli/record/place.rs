//! What is read beside accesses: where memory is, and what recording costs.

use std::collections::BTreeMap;

use nearfar_kernel::damon::Session;
use nearfar_kernel::fs::Fs;
use nearfar_kernel::{process, residency};
use nearfar_record::Resident;
use nearfar_topology::NodeId;

use super::plan::{Plan, Who};
use crate::recording;

/// Bytes per node: of these processes, or all that is in use on each node.
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

/// CPU time of kdamonds. A thread that ended takes its figure with it, so it is kept from look to look.
#[derive(Debug, Default)]
pub(super) struct Cost {
    /// By thread: the last figure.
    threads: BTreeMap<u32, u64>,
}

impl Cost {
    /// Looks at the threads there are.
    pub(super) fn look(&mut self, fs: &dyn Fs, session: &Session<'_>) {
        let threads = (0..session.len()).filter_map(|index| session.thread(index).ok().flatten());
        for thread in threads {
            let last = self.threads.entry(thread).or_default();
            *last = process::cpu_ns(fs, &thread.to_string()).max(*last);
        }
    }

    /// Of all so far, in nanoseconds.
    pub(super) fn kernel_ns(&self) -> u64 {
        self.threads.values().sum()
    }
}

/// Our own CPU time, in nanoseconds.
pub(super) fn own_cpu(fs: &dyn Fs) -> u64 {
    process::cpu_ns(fs, "self")
}
