//! Plans the measurements before any runs: CPUs, nodes, duration, sizes.
//!
//! All invalid requests are refused here. A pair that can't be measured (this process may use no CPU of the node, or
//! the memory node has no room) is skipped with the reason, and the others are measured.

use std::collections::BTreeSet;
use std::fmt;

use nearfar_kernel::fs::Fs;
use nearfar_topology::{Bytes, CpuId, Mix, NodeId, NodeSet, Topology};

use crate::budget::{Budget, LLC_ASSUMED, Outgrown, Pace, Sizes, room};
use crate::cpus::{self, Caches};
use crate::report::{Lab, Skipped};

/// A user's request, with nodes already resolved.
#[derive(Clone, Debug)]
pub struct Request {
    /// Memory nodes to measure.
    pub nodes: NodeSet,
    /// CPU nodes to measure from.
    pub cpu_nodes: NodeSet,
    /// Mixes, in the order of measurement and output.
    pub mixes: Vec<Mix>,
    /// Whether to take a short measurement.
    pub quick: bool,
    /// The most CPUs of a node to use; by default all.
    pub cpus_max: Option<usize>,
    /// The CPUs this process may use; by default all.
    pub cpus_allowed: Option<BTreeSet<CpuId>>,
    /// The lab's description, if this is its guest.
    pub lab: Option<Lab>,
}

/// Reasons why a request is invalid, or can't be carried out on this machine.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// There are no mixes.
    #[error("no mix to measure; give some as 1:0,2:1,1:1")]
    NoMixes,
    /// The mix has more writes than reads.
    #[error(
        "mix {0}: a line is read before it is modified, so a mix has at least as many reads as writes; the most write-heavy one is 1:1"
    )]
    TooManyWrites(Mix),
    /// The limit is no CPUs.
    #[error("at most 0 CPUs a node: nothing could be measured; give 1 or more")]
    NoCpus,
    /// The node has no CPUs.
    #[error("node {node} has no CPUs; CPU nodes here: {has}")]
    NotACpuNode {
        /// The node.
        node: NodeId,
        /// The nodes that have CPUs.
        has: NodeSet,
    },
    /// Every pair was skipped.
    #[error("nothing can be measured: {}", reasons(.0))]
    Nothing(Vec<Skipped>),
}

fn reasons(skipped: &[Skipped]) -> String {
    let each: BTreeSet<&str> = skipped.iter().map(|pair| pair.reason.as_str()).collect();
    if each.is_empty() {
        return "no pair of nodes was requested".into();
    }
    each.into_iter().collect::<Vec<_>>().join("; ")
}

/// The measurements to make.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(crate) targets: Vec<Target>,
    pub(crate) mixes: Vec<Mix>,
    pub(crate) budget: Budget,
    pub(crate) quick: bool,
    pub(crate) llc: Bytes,
    pub(crate) lab: Option<Lab>,
    pub(crate) skipped: Vec<Skipped>,
    pub(crate) warnings: Vec<String>,
}

/// A memory node and the CPU nodes to measure it from.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) node: NodeId,
    /// No other node has memory, so failure to bind is ignored.
    pub(crate) only_node: bool,
    pub(crate) sizes: Sizes,
    pub(crate) views: Vec<View>,
}

/// The CPUs of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) node: NodeId,
    pub(crate) cpus: Vec<CpuId>,
    /// The CPU that measures latency.
    pub(crate) chaser: CpuId,
    /// The CPUs that load the memory meanwhile; none if there is only one CPU.
    pub(crate) loaders: Vec<CpuId>,
    pub(crate) caches: Caches,
}

impl Plan {
    /// Validates a request for the machine, and plans it.
    ///
    /// # Errors
    /// [`PlanError`], if nothing can be measured or part of the request is invalid.
    pub fn new(machine: &Topology, fs: &dyn Fs, request: Request) -> Result<Self, PlanError> {
        check(machine, &request)?;
        let allowed = request.cpus_allowed;
        let mut plan = Self {
            targets: Vec::new(),
            budget: Budget::new(Pace::Quick, 1, 1),
            quick: request.quick,
            llc: Bytes(0),
            skipped: Vec::new(),
            warnings: Vec::new(),
            mixes: request.mixes,
            lab: request.lab,
        };
        let mut views = Vec::new();
        for node in request.cpu_nodes.iter() {
            let known =
                machine.nodes.get(&node).map(|node| node.cpus.as_slice()).unwrap_or_default();
            let mut cpus = known.to_vec();
            cpus.retain(|cpu| allowed.as_ref().is_none_or(|allowed| allowed.contains(cpu)));
            cpus.truncate(request.cpus_max.unwrap_or(usize::MAX));
            match View::new(node, cpus, fs) {
                Some(view) => views.push(view),
                None => plan.skip(
                    node,
                    &request.nodes,
                    "no CPU of that node is allowed to this process",
                ),
            }
        }
        plan.find_cache(&views);
        for node in request.nodes.iter() {
            plan.add_target(machine, node, &views);
        }
        let pairs: usize = plan.targets.iter().map(|target| target.views.len()).sum();
        if pairs == 0 {
            return Err(PlanError::Nothing(plan.skipped));
        }
        let modelled = plan.lab.as_ref().is_some_and(|lab| lab.clock == "virtual");
        let pace = match (plan.quick, modelled) {
            (true, false) => Pace::Quick,
            (false, false) => Pace::Full,
            (true, true) => Pace::QuickModelled,
            (false, true) => Pace::FullModelled,
        };
        plan.budget = Budget::new(pace, pairs, plan.mixes.len());
        Ok(plan)
    }

    fn skip(&mut self, cpu_node: NodeId, memory: &NodeSet, reason: &str) {
        let pairs = memory.iter().map(|memory_node| Skipped {
            cpu_node,
            memory_node,
            reason: reason.into(),
        });
        self.skipped.extend(pairs);
    }

    /// Determines the cache sizes for all buffer sizes: from the lab, else from the kernel, else an assumption.
    fn find_cache(&mut self, views: &[View]) {
        let told = self
            .lab
            .as_ref()
            .and_then(|lab| lab.llc_kib)
            .map(|kib| Bytes(kib.saturating_mul(1024)));
        let largest = |of: fn(&Caches) -> Option<Bytes>| {
            views.iter().filter_map(|view| of(&view.caches)).max()
        };
        let found = told.or_else(|| largest(|caches| caches.all));
        if found.is_none() && !views.is_empty() {
            self.warnings.push(format!(
                "the kernel does not say how large caches are; {LLC_ASSUMED} assumed"
            ));
        }
        self.llc = found.unwrap_or(LLC_ASSUMED);
    }

    fn add_target(&mut self, machine: &Topology, node: NodeId, views: &[View]) {
        let free = machine.nodes.get(&node).map(|node| node.free).unwrap_or_default();
        let one = views.iter().filter_map(|view| view.caches.one).max();
        let one = one.unwrap_or(self.llc).min(self.llc);
        let threads = views.iter().map(|view| view.cpus.len()).max().unwrap_or(1);
        let caches = Outgrown { one, all: self.llc, threads };
        let Some(sizes) = Sizes::fit(caches, room(free)) else {
            let least = Sizes::least(caches);
            let reason = format!(
                "node {node} has {free} free; buffers that outgrow the caches ({}) take {least} and an eighth and 32 MiB stay free",
                self.llc
            );
            for view in views {
                self.skipped.push(Skipped {
                    cpu_node: view.node,
                    memory_node: node,
                    reason: reason.clone(),
                });
            }
            return;
        };
        let only_node = machine.memory_nodes().len() == 1;
        self.targets.push(Target { node, only_node, sizes, views: views.to_vec() });
    }

    /// Total number of steps that [`crate::measure()`] reports.
    #[must_use]
    pub fn steps(&self) -> usize {
        let view = |view: &View| 1 + self.mixes.len() + usize::from(!view.loaders.is_empty());
        self.targets.iter().flat_map(|target| &target.views).map(view).sum()
    }

    /// Pairs that will not be measured, with the reason.
    #[must_use]
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }
}

impl View {
    /// `None` without a CPU.
    fn new(node: NodeId, cpus: Vec<CpuId>, fs: &dyn Fs) -> Option<Self> {
        let chaser = *cpus.first()?;
        let core = cpus::siblings(fs, chaser);
        let others = |apart: bool| {
            let cpus = cpus.iter().copied().filter(|cpu| *cpu != chaser);
            cpus.filter(|cpu| !apart || !core.contains(cpu)).collect::<Vec<_>>()
        };
        // A loader on the chaser's own core would slow it more than memory does.
        let loaders = if others(true).is_empty() { others(false) } else { others(true) };
        let caches = cpus::caches(fs, &cpus);
        Some(Self { node, chaser, loaders, caches, cpus })
    }
}

fn check(machine: &Topology, request: &Request) -> Result<(), PlanError> {
    if request.mixes.is_empty() {
        return Err(PlanError::NoMixes);
    }
    if let Some(mix) = request.mixes.iter().find(|mix| mix.writes() > mix.reads()) {
        return Err(PlanError::TooManyWrites(*mix));
    }
    if request.cpus_max == Some(0) {
        return Err(PlanError::NoCpus);
    }
    let has = machine.cpu_nodes();
    match request.cpu_nodes.iter().find(|node| !has.contains(*node)) {
        Some(node) => Err(PlanError::NotACpuNode { node, has }),
        None => Ok(()),
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mixes: Vec<String> = self.mixes.iter().map(Mix::to_string).collect();
        writeln!(f, "measure idle latency, bandwidth at {}, loaded latency:", mixes.join(", "))?;
        for target in &self.targets {
            let Sizes { chase, stream } = target.sizes;
            for view in &target.views {
                writeln!(
                    f,
                    "  CPU node {} ({} CPUs), memory node {}: {chase} to chase, {stream} to stream over",
                    view.node,
                    view.cpus.len(),
                    target.node
                )?;
            }
        }
        for pair in &self.skipped {
            writeln!(
                f,
                "  not CPU node {}, memory node {}: {}",
                pair.cpu_node, pair.memory_node, pair.reason
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_kernel::fs::TreeFs;
    use nearfar_topology::{Node, Tree};

    fn machine(far_free: Bytes) -> Topology {
        let node = |cpus: &[u32], free| Node {
            cpus: cpus.iter().copied().map(CpuId).collect(),
            size: Bytes(8 << 30),
            free,
            ..Node::default()
        };
        let mut machine = Topology::default();
        machine.nodes.insert(NodeId(0), node(&[0], Bytes(4 << 30)));
        machine.nodes.insert(NodeId(1), node(&[], far_free));
        machine
    }

    fn request(machine: &Topology) -> Request {
        Request {
            nodes: machine.memory_nodes(),
            cpu_nodes: machine.cpu_nodes(),
            mixes: vec![Mix::READS, Mix::ONE_TO_ONE],
            quick: true,
            cpus_max: None,
            cpus_allowed: Some([CpuId(0)].into()),
            lab: None,
        }
    }

    fn plan(machine: &Topology, request: Request) -> Result<Plan, PlanError> {
        Plan::new(machine, &TreeFs(Tree::new()), request)
    }

    #[test]
    fn pairs_with_free_memory_are_planned_and_full_nodes_skipped() {
        let roomy = machine(Bytes(4 << 30));
        let planned = plan(&roomy, request(&roomy)).unwrap();
        assert_eq!(planned.targets.len(), 2);
        assert!(planned.skipped().is_empty() && planned.to_string().contains("memory node 1"));
        let full = machine(Bytes(64 << 20));
        let planned = plan(&full, request(&full)).unwrap();
        assert_eq!(planned.targets.len(), 1);
        assert!(planned.skipped()[0].reason.contains("node 1 has 64 MiB free"));
        assert!(planned.to_string().contains("not CPU node 0, memory node 1"));
    }

    #[test]
    fn an_invalid_request_is_rejected_with_the_invalid_part() {
        let machine = machine(Bytes(4 << 30));
        let refuse = |change: fn(&mut Request)| {
            let mut request = request(&machine);
            change(&mut request);
            plan(&machine, request).unwrap_err().to_string()
        };
        assert!(refuse(|request| request.mixes.clear()).contains("no mix"));
        assert!(refuse(|request| request.mixes = vec!["1:2".parse().unwrap()]).contains("mix 1:2"));
        assert!(refuse(|request| request.cpus_max = Some(0)).contains("0 CPUs"));
        assert!(
            refuse(|request| request.cpu_nodes = [NodeId(1)].into_iter().collect())
                .contains("CPU nodes here: 0")
        );
        assert!(refuse(|request| request.nodes = NodeSet::new()).contains("no pair"));
    }

    #[test]
    fn a_plan_without_pairs_is_rejected_with_the_reason() {
        let mut machine = machine(Bytes(0));
        machine.nodes.get_mut(&NodeId(0)).unwrap().free = Bytes(0);
        let error = plan(&machine, request(&machine)).unwrap_err().to_string();
        assert!(error.contains("node 0 has 0 B free"), "{error}");
    }

    #[test]
    fn cpus_outside_the_allowed_set_are_not_used() {
        let machine = machine(Bytes(4 << 30));
        let mut request = request(&machine);
        request.cpus_allowed = Some([CpuId(9)].into());
        let error = plan(&machine, request).unwrap_err().to_string();
        assert!(error.contains("no CPU of that node"), "{error}");
    }

    #[test]
    fn the_cache_size_of_the_lab_overrides_that_of_the_kernel() {
        let machine = machine(Bytes(4 << 30));
        let mut request = request(&machine);
        request.lab = Some(Lab {
            machine: "m".into(),
            clock: "virtual".into(),
            slow_motion: 1.0,
            llc_kib: Some(4096),
        });
        let planned = plan(&machine, request).unwrap();
        assert_eq!(planned.llc, Bytes(4 << 20));
        assert_eq!(planned.targets[0].sizes.chase, Bytes(16 << 20));
        assert!(
            planned.budget.bandwidth.window_ns < 10_000_000,
            "a modelled clock has short windows"
        );
    }

    #[test]
    fn loaders_avoid_the_core_of_the_chaser_if_possible() {
        let mut tree = Tree::new();
        tree.insert("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0,2");
        let fs = TreeFs(tree);
        let loaders = |cpus: &[u32]| {
            let cpus = cpus.iter().copied().map(CpuId).collect();
            View::new(NodeId(0), cpus, &fs)
                .unwrap()
                .loaders
                .iter()
                .map(|cpu| cpu.0)
                .collect::<Vec<_>>()
        };
        assert_eq!(loaders(&[0, 1, 2, 3]), [1, 3]);
        assert_eq!(loaders(&[0, 2]), [2]);
        assert!(loaders(&[0]).is_empty());
        assert!(View::new(NodeId(0), Vec::new(), &fs).is_none());
    }
}
