//! Traffic between caches and memory, as resctrl counts it (crate kernel, `resctrl.rs`).
//!
//! `mbm_total_bytes` counts traffic of a node's CPUs to all memory, `mbm_local_bytes` their traffic to the node's own
//! memory. Neither is the traffic *served* by a node's memory if several nodes have CPUs; so this sensor is usable only
//! where one node has them: there local bytes are that node's traffic, and the other nodes have no reading.

use nearfar_kernel::chase;
use nearfar_kernel::fs::Fs;
use nearfar_kernel::resctrl::{self, Counted, Counters};
use nearfar_policy::ports::{
    Cost, Grain, Nature, Reading, Scope, Sees, Sensor, Targets, Unusable, Why,
};
use nearfar_topology::{BasisPoints, Nanoseconds, NodeId, Topology};

use super::{Scene, not_started};

pub(crate) const NAME: &str = "resctrl";
const LOCAL: &str = "mbm_local_bytes";
const LINE: u64 = 64;
/// Lines written by the self-test.
const TEST_LINES: usize = 1 << 19;

/// The sensor.
#[derive(Debug)]
pub(crate) struct Bytes<'a> {
    scene: Scene<'a>,
    nodes: Vec<NodeId>,
    at_work: Option<(Counters, Counted, Nanoseconds)>,
    cost: Cost,
}

impl<'a> Bytes<'a> {
    pub(crate) fn new(scene: Scene<'a>) -> Self {
        Self { scene, nodes: scene.nodes(), at_work: None, cost: Cost::default() }
    }

    fn test(&self, counters: &Counters) -> Result<(), Unusable> {
        let before = counters.read(self.scene.fs);
        let mut memory = vec![0_u64; TEST_LINES * 8];
        memory.iter_mut().step_by(8).for_each(|word| *word = 1);
        std::hint::black_box(&memory);
        let after = counters.read(self.scene.fs);
        if lines(&before, &after).values().any(|lines| *lines > 0) {
            return Ok(());
        }
        let found = format!("{TEST_LINES} lines were written to test it, and none counted");
        Err(Unusable::new(Why::Mute, found))
    }
}

/// The counters, if they count the traffic that a node serves.
fn find(fs: &dyn Fs, machine: &Topology) -> Result<Counters, Unusable> {
    let counters = Counters::find(fs, machine).ok_or_else(|| {
        Unusable::new(Why::Absent, "no bytes counted below /sys/fs/resctrl/mon_data")
            .but("mount -t resctrl resctrl /sys/fs/resctrl, on a processor with memory bandwidth monitoring")
    })?;
    let homes = machine.nodes.values().filter(|node| !node.cpus.is_empty()).count();
    if homes > 1 || counters.file() != LOCAL {
        let found = format!(
            "{} counts requests of the CPUs of {homes} nodes, not accesses served by memory",
            counters.file()
        );
        return Err(Unusable::new(Why::Mute, found));
    }
    Ok(counters)
}

/// Lines by node between two readings; leaves out a node whose counters were reset.
fn lines(before: &Counted, after: &Counted) -> std::collections::BTreeMap<NodeId, u64> {
    // Over one second a rate equals a sum.
    let sums = resctrl::rate(before, after, Nanoseconds(1_000_000_000));
    sums.into_iter().map(|(node, bytes)| (node, bytes.0 / LINE)).collect()
}

impl Sensor for Bytes<'_> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sees(&self) -> Sees {
        Sees {
            addresses: Grain::None,
            writes: false,
            cpu: false,
            traffic: true,
            latency: false,
            scope: Scope::Machine,
            nature: Nature::Measured,
        }
    }

    fn check(&mut self) -> Result<(), Unusable> {
        self.test(&find(self.scene.fs, self.scene.machine)?)
    }

    fn start(&mut self, _: &Targets, now: Nanoseconds) -> Result<(), Unusable> {
        if self.at_work.is_none() {
            let counters = find(self.scene.fs, self.scene.machine)?;
            self.test(&counters)?;
            let before = counters.read(self.scene.fs);
            self.cost = Cost::default();
            self.at_work = Some((counters, before, now));
        }
        Ok(())
    }

    fn read(&mut self, now: Nanoseconds) -> Result<Reading, Unusable> {
        let begun = chase::own_cpu();
        let Some((counters, before, since)) = &mut self.at_work else {
            return Err(not_started(NAME));
        };
        let after = counters.read(self.scene.fs);
        let counted = lines(before, &after);
        let served = self.nodes.iter().map(|node| counted.get(node).copied()).collect();
        let elapsed = Nanoseconds(now.0.saturating_sub(since.0));
        (*before, *since) = (after, now);
        self.cost.cpu.0 += chase::own_cpu().0.saturating_sub(begun.0);
        Ok(Reading { elapsed, coverage: BasisPoints(10_000), served, ..Reading::default() })
    }

    fn cost(&self) -> Cost {
        self.cost
    }

    fn stop(&mut self) -> Result<(), Unusable> {
        self.at_work = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_kernel::fs::TreeFs;
    use nearfar_topology::Tree;
    use nearfar_topology::testkit::{machine, node};

    const RECORDED: &str = include_str!("../../../fixtures/resctrl/two-sockets.tree");

    fn with_local_bytes(bytes: &str) -> TreeFs {
        let mut tree = Tree::parse(RECORDED);
        for id in 0..4 {
            tree.insert(&format!("sys/fs/resctrl/mon_data/mon_L3_0{id}/{LOCAL}"), bytes);
            tree.insert(&format!("sys/fs/resctrl/batch/mon_data/mon_L3_0{id}/{LOCAL}"), "0");
        }
        TreeFs(tree)
    }

    #[test]
    fn bytes_become_lines_of_a_node_only_if_all_cpus_are_on_it() {
        let alone = machine([node(0).cpus(0..8), node(1)]);
        let (before, after) = (with_local_bytes("64"), with_local_bytes("6400"));
        let counters = find(&before, &alone).unwrap();
        let found = lines(&counters.read(&before), &counters.read(&after));
        assert_eq!(found, [(NodeId(0), 4 * 99)].into());
        let sockets = machine([node(0).cpus(0..4), node(1).cpus(4..8)]);
        let said = find(&before, &sockets).unwrap_err();
        assert_eq!(said.why, Why::Mute);
        assert!(said.to_string().contains("CPUs of 2 nodes"), "{said}");
        assert_eq!(find(&TreeFs(Tree::new()), &alone).unwrap_err().why, Why::Absent);
    }
}
