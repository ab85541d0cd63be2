//! The placement of memory: checks an option against this machine.

use nearfar_kernel::affinity;
use nearfar_kernel::fs::{self, FsError, RootFs};
use nearfar_kernel::mempolicy::{self, Policy, PolicyError};
use nearfar_topology::{CpuId, NodeExpr, NodeSet, NodeSetError, Overrides, Topology};

/// The kernel's memory policies that take nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Preferred,
    Bind,
    Interleave,
    PreferredMany,
    WeightedInterleave,
}

/// A policy that this process may use, on nodes that exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) mode: Mode,
    pub(crate) nodes: NodeSet,
}

/// The reason why a placement is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error("{option}: {source}")]
    Nodes { option: &'static str, source: NodeSetError },
    #[error("-p {asked}: takes one node, these are {count} ({nodes}); -P prefers several")]
    Several { asked: String, count: usize, nodes: NodeSet },
    #[error(
        "{option} {asked}: this process may use memory of nodes {allowed} only (its cgroup's cpuset, Mems_allowed_list in \
         /proc/self/status)"
    )]
    Kept { option: &'static str, asked: String, allowed: NodeSet },
    #[error("{option}: {source}")]
    Policy { option: &'static str, source: PolicyError },
    #[error("{option}: memory nodes can't be read: {source}")]
    Machine { option: &'static str, source: FsError },
}

impl Refused {
    /// Whether the error is one of usage: other options would have worked.
    pub(crate) fn is_usage(&self) -> bool {
        matches!(self, Self::Nodes { .. } | Self::Several { .. } | Self::Kept { .. })
    }
}

impl Mode {
    /// The kernel's number (include/uapi/linux/mempolicy.h), which is the value of `HMALLOC_MPOL_MODE`.
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Preferred => 1,
            Self::Bind => 2,
            Self::Interleave => 3,
            Self::PreferredMany => 5,
            Self::WeightedInterleave => 6,
        }
    }

    const fn option(self) -> &'static str {
        match self {
            Self::Preferred => "-p",
            Self::Bind => "-m",
            Self::Interleave => "-i",
            Self::PreferredMany => "-P",
            Self::WeightedInterleave => "-w",
        }
    }

    fn policy(self, nodes: &NodeSet) -> Policy {
        match self {
            Self::Preferred => nodes.iter().next().map_or(Policy::Default, Policy::Preferred),
            Self::Bind => Policy::Bind(nodes.clone()),
            Self::Interleave => Policy::Interleave(nodes.clone()),
            Self::PreferredMany => Policy::PreferredMany(nodes.clone()),
            Self::WeightedInterleave => Policy::WeightedInterleave(nodes.clone()),
        }
    }
}

impl Placement {
    /// Resolves the node expression `asked` on this machine and checks the policy.
    pub(crate) fn new(mode: Mode, asked: &NodeExpr) -> Result<Self, Refused> {
        let option = mode.option();
        let fs = RootFs::live().map_err(|source| Refused::Machine { option, source })?;
        let (machine, _) = fs::topology(&fs, &Overrides::new());
        // In a container or under taskset, near nodes are those near to the allowed CPUs.
        let cpus = affinity::get().unwrap_or_default();
        let placement = Self::on(mode, asked, &machine, &cpus)?;
        let allowed = mempolicy::allowed_nodes();
        if placement.nodes.iter().any(|node| !allowed.contains(node)) {
            return Err(Refused::Kept { option, asked: asked.to_string(), allowed });
        }
        placement.tried().map_err(|source| Refused::Policy { option, source })?;
        Ok(placement)
    }

    fn on(
        mode: Mode,
        asked: &NodeExpr,
        machine: &Topology,
        cpus: &[CpuId],
    ) -> Result<Self, Refused> {
        let option = mode.option();
        let nodes = asked.resolve(machine, cpus);
        let nodes = nodes.map_err(|source| Refused::Nodes { option, source })?;
        if mode == Mode::Preferred && nodes.len() > 1 {
            return Err(Refused::Several { asked: asked.to_string(), count: nodes.len(), nodes });
        }
        Ok(Self { mode, nodes })
    }

    /// Tests whether the kernel accepts the policy, in a separate thread so that the program's own policy is not
    /// changed.
    fn tried(&self) -> Result<(), PolicyError> {
        let policy = self.mode.policy(&self.nodes);
        let tried = std::thread::scope(|scope| scope.spawn(|| mempolicy::set(&policy)).join());
        tried.unwrap_or(Ok(()))
    }

    /// The nodes as a bit mask, if all of them are below 64.
    pub(crate) fn mask(&self) -> Option<u64> {
        self.nodes.iter().try_fold(0, |mask, node| Some(mask | 1u64.checked_shl(node.0.into())?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_topology::NodeId;
    use nearfar_topology::testkit::dram_and_cxl;

    fn on(mode: Mode, asked: &str) -> Result<String, String> {
        let placement = Placement::on(mode, &asked.parse().unwrap(), &dram_and_cxl(), &[]);
        placement.map(|found| found.nodes.to_string()).map_err(|refused| refused.to_string())
    }

    #[test]
    fn node_kinds_resolve_to_the_node_numbers_of_the_machine() {
        assert_eq!(on(Mode::Bind, "far"), Ok("1".into()));
        assert_eq!(on(Mode::Preferred, "cxl"), Ok("1".into()));
        assert_eq!(on(Mode::WeightedInterleave, "all"), Ok("0-1".into()));
    }

    #[test]
    fn absent_nodes_and_too_many_are_refused_by_name() {
        let absent = on(Mode::Interleave, "0,7").unwrap_err();
        assert!(absent.starts_with("-i: ") && absent.contains("no node 7"), "{absent}");
        assert!(absent.contains("node 0 (dram") && absent.contains("node 1 (cxl"), "{absent}");
        let several = on(Mode::Preferred, "0-1").unwrap_err();
        assert!(several.starts_with("-p 0-1: takes one node, these are 2"), "{several}");
        assert_eq!(on(Mode::PreferredMany, "0-1"), Ok("0-1".into()));
    }

    fn placement(nodes: &[u16]) -> Placement {
        Placement { mode: Mode::Bind, nodes: nodes.iter().copied().map(NodeId).collect() }
    }

    #[test]
    fn the_node_mask_is_omitted_for_nodes_above_63() {
        assert_eq!(placement(&[0, 2]).mask(), Some(5));
        assert_eq!(placement(&[40]).mask(), Some(1 << 40));
        assert_eq!(placement(&[63]).mask(), Some(1 << 63));
        assert_eq!(placement(&[0, 64]).mask(), None);
    }
}
