//! Samples nodes: a chain of dependent loads on each, and at longer intervals free memory and used
//! bandwidth.
//!
//! Files are read at most once a second, as that costs more than the loads.

use std::collections::BTreeMap;

use nearfar_kernel::chase::{self, Chase};
use nearfar_kernel::fs::Fs;
use nearfar_kernel::resctrl::{self, Counted, Counters};
use nearfar_kernel::{affinity, meminfo};
use nearfar_policy::advisor::Look;
use nearfar_topology::{BasisPoints, BytesPerSecond, CpuId, Nanoseconds, NodeId, Topology};

use super::plan::Plan;

/// Chains of loads per sample; the median counts.
const LOOKS: usize = 3;
/// Interval at which files are read.
const FILES: Nanoseconds = Nanoseconds(1_000_000_000);
/// Interval at which sampled regions are migrated back to their nodes, in case tiering has moved
/// them.
const SETTLE: Nanoseconds = Nanoseconds(10_000_000_000);

/// State of the sampling.
#[derive(Debug)]
pub(crate) struct Eyes {
    nodes: Vec<(NodeId, Chase)>,
    views: Vec<(Vec<CpuId>, Vec<usize>)>,
    counters: Option<Counters>,
    free: BTreeMap<NodeId, BasisPoints>,
    counted: Option<Counted>,
    used: BTreeMap<NodeId, BytesPerSecond>,
    read: Nanoseconds,
    settled: Nanoseconds,
}

impl Eyes {
    /// Prepares sampling of the plan's nodes.
    ///
    /// # Errors
    /// A node on which this process can allocate no memory.
    pub(crate) fn new(fs: &dyn Fs, machine: &Topology, plan: &Plan) -> anyhow::Result<Self> {
        let mut nodes = Vec::new();
        for node in plan.known().iter().map(|known| known.node) {
            let chase = Chase::new(node).ok_or_else(|| {
                anyhow::anyhow!(
                    "node {node} gives this process no memory (Mems_allowed_list in /proc/self/status); allow it, as a \
                     daemon looks at all nodes"
                )
            })?;
            nodes.push((node, chase));
        }
        let views = plan.views();
        if let [(cpus, _)] = &views[..] {
            // If this fails, samples are taken from any CPU that this process runs on.
            let _ = affinity::set(cpus);
        }
        Ok(Self {
            nodes,
            views,
            counters: Counters::find(fs, machine),
            free: BTreeMap::new(),
            counted: None,
            used: BTreeMap::new(),
            read: Nanoseconds(0),
            settled: chase::now(),
        })
    }

    /// The file that counts used bandwidth; `None` without counters.
    pub(crate) fn counts_by(&self) -> Option<&'static str> {
        self.counters.as_ref().map(Counters::file)
    }

    /// Samples each node, in the plan's order; the flag is true if files were read.
    pub(crate) fn look(&mut self, fs: &dyn Fs) -> (Vec<Look>, bool) {
        let now = chase::now();
        let passed = Nanoseconds(now.0.saturating_sub(self.read.0));
        let is_time = passed >= FILES;
        if is_time {
            self.read_files(fs, passed);
            self.read = now;
        }
        let mut strayed = vec![false; self.nodes.len()];
        if now.0.saturating_sub(self.settled.0) >= SETTLE.0 {
            strayed = self.nodes.iter().map(|(_, chase)| chase.settle()).collect();
            self.settled = now;
        }
        let mut loads = vec![Nanoseconds(0); self.nodes.len()];
        for (cpus, places) in &self.views {
            if self.views.len() > 1 {
                let _ = affinity::set(cpus);
            }
            for at in places {
                loads[*at] = middle(&self.nodes[*at].1);
            }
        }
        let seen = self.nodes.iter().zip(loads).zip(strayed);
        let look = |(((node, _), load), strayed): ((&(NodeId, Chase), _), _)| Look {
            load,
            free: self.free.get(node).copied().unwrap_or(BasisPoints(10_000)),
            used: self.used.get(node).copied(),
            strayed,
        };
        (seen.map(look).collect(), is_time)
    }

    fn read_files(&mut self, fs: &dyn Fs, passed: Nanoseconds) {
        for (node, _) in &self.nodes {
            if let Some(found) = meminfo::of_node(fs, *node) {
                self.free.insert(*node, found.room());
            }
        }
        if let Some(counters) = &self.counters {
            let counted = counters.read(fs);
            let before = self.counted.replace(counted.clone());
            self.used = before
                .map_or_else(BTreeMap::new, |before| resctrl::rate(&before, &counted, passed));
        }
    }
}

/// Load latency: the median of several chains, as one may be interrupted.
fn middle(chase: &Chase) -> Nanoseconds {
    let mut loads = [Nanoseconds(0); LOOKS];
    loads.fill_with(|| chase.measure());
    loads.sort();
    loads[LOOKS / 2]
}
