//! Looking at nodes: a chain of loads on each, and now and then what is free and what is in use.
//!
//! What has to be read from files is read once a second at most, as that costs more than the loads.

use std::collections::BTreeMap;

use nearfar_kernel::chase::{self, Chase};
use nearfar_kernel::fs::Fs;
use nearfar_kernel::resctrl::{self, Counted, Counters};
use nearfar_kernel::{affinity, meminfo};
use nearfar_policy::advisor::Look;
use nearfar_topology::{BasisPoints, BytesPerSecond, CpuId, Nanoseconds, NodeId, Topology};

use super::plan::Plan;

/// Chains of loads of a look, of which the one in the middle counts.
const LOOKS: usize = 3;
/// So often files are read.
const FILES: Nanoseconds = Nanoseconds(1_000_000_000);
/// So often regions are brought back to their nodes, from which tiering may have moved them.
const SETTLE: Nanoseconds = Nanoseconds(10_000_000_000);

/// What is needed to look.
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
    /// For these nodes.
    ///
    /// # Errors
    /// A node that gives no memory to look at.
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
            // Where it is refused, looks are from wherever this runs.
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

    /// The file by which bandwidth in use is counted, if it is.
    pub(crate) fn counts_by(&self) -> Option<&'static str> {
        self.counters.as_ref().map(Counters::file)
    }

    /// A look at each node, in the plan's order; and whether files were read.
    pub(crate) fn look(&mut self, fs: &dyn Fs) -> (Vec<Look>, bool) {
        let now = chase::now();
        let passed = Nanoseconds(now.0.saturating_sub(self.read.0));
        let is_time = passed >= FILES;
        if is_time {
            self.read_files(fs, passed);
            self.read = now;
        }
        if now.0.saturating_sub(self.settled.0) >= SETTLE.0 {
            self.nodes.iter().for_each(|(_, chase)| chase.settle());
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
        let look = |((node, _), load): (&(NodeId, Chase), Nanoseconds)| Look {
            load,
            free: self.free.get(node).copied().unwrap_or(BasisPoints(10_000)),
            used: self.used.get(node).copied(),
        };
        (self.nodes.iter().zip(loads).map(look).collect(), is_time)
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

/// What a load takes: of a few chains the one in the middle, as one may be interrupted.
fn middle(chase: &Chase) -> Nanoseconds {
    let mut loads = [Nanoseconds(0); LOOKS];
    loads.fill_with(|| chase.measure());
    loads.sort();
    loads[LOOKS / 2]
}
