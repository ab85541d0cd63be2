//! The memory of a machine as devices: one for each node with memory, with the facts by which claims select it. Pure.
//!
//! Every fact comes from the topology; one that is unknown is left out, never estimated. A device's capacity is the
//! node's memory less a reserve that the administrator states, in whole MiB.

use std::collections::BTreeMap;

use nearfar_topology::{Bytes, BytesPerSecond, MemoryKind, Nanoseconds, NodeId, Topology};

/// The unit in which memory is allocated.
pub const STEP: Bytes = Bytes(1 << 20);

/// Nodes for which a reserve is stated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// One node.
    Node(NodeId),
    /// Each node of a kind.
    Kind(MemoryKind),
}

/// Memory that is not offered, for each node; a node's own reserve overrides that of its kind.
pub type Reserves = BTreeMap<Place, Bytes>;

/// Parses `NODE=SIZE` or `KIND=SIZE`.
///
/// # Errors
/// The text is not of that form, with the valid forms.
pub fn reserve(text: &str) -> Result<(Place, Bytes), String> {
    let (place, size) = text
        .split_once('=')
        .ok_or("write it as NODE=SIZE or KIND=SIZE, for example 0=4g or dram=4g")?;
    let size = size.parse::<Bytes>().map_err(|error| error.to_string())?;
    if let Some(id) = place.parse().ok().and_then(NodeId::new) {
        return Ok((Place::Node(id), size));
    }
    let kind = place.parse::<MemoryKind>();
    let kind = kind.map_err(|why| format!("`{place}` is no node, and {why}"))?;
    Ok((Place::Kind(kind), size))
}

/// The memory of a node as a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The node.
    pub node: NodeId,
    /// Its kind of memory.
    pub kind: MemoryKind,
    /// Whether it is near memory.
    pub near: bool,
    /// The rank of its tier, if it is in one; 0 is the fastest.
    pub tier: Option<usize>,
    /// Latency of reads from the best CPUs.
    pub read_latency: Option<Nanoseconds>,
    /// Bandwidth of reads from the best CPUs.
    pub read_bandwidth: Option<BytesPerSecond>,
    /// Bandwidth of writes from the best CPUs.
    pub write_bandwidth: Option<BytesPerSecond>,
    /// The nearest node with CPUs, and its distance (10 is local).
    pub nearest: Option<(NodeId, u32)>,
    /// The memory that claims can have.
    pub capacity: Bytes,
}

impl Device {
    /// Its name in the pool.
    #[must_use]
    pub fn name(&self) -> String {
        name(self.node)
    }
}

fn name(node: NodeId) -> String {
    format!("node{node}")
}

/// The node of a device's name.
#[must_use]
pub fn node_of(device: &str) -> Option<NodeId> {
    let node = NodeId::new(device.strip_prefix("node")?.parse().ok()?)?;
    (name(node) == device).then_some(node)
}

/// A reserve that can't be right on this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// There is no such node with memory.
    #[error("--reserve {node}={size}: there is no node {node} with memory; this machine has {has}")]
    Absent {
        /// The node.
        node: NodeId,
        /// The reserve.
        size: Bytes,
        /// The machine's nodes, in words.
        has: String,
    },
    /// The node is smaller.
    #[error("--reserve {node}={size}: node {node} has {has} only; state less")]
    TooLarge {
        /// The node.
        node: NodeId,
        /// The reserve.
        size: Bytes,
        /// The node's memory.
        has: Bytes,
    },
}

/// Checks stated reserves of nodes on the machine as it is at start; nodes may go later.
///
/// # Errors
/// [`ReserveError`].
pub fn check(machine: &Topology, reserves: &Reserves) -> Result<(), ReserveError> {
    for (place, size) in reserves {
        let Place::Node(node) = *place else { continue };
        let has = machine.nodes.get(&node).map_or(Bytes(0), |node| node.size);
        if has == Bytes(0) {
            return Err(ReserveError::Absent { node, size: *size, has: machine.inventory() });
        }
        if *size > has {
            return Err(ReserveError::TooLarge { node, size: *size, has });
        }
    }
    Ok(())
}

/// The devices of a machine, in order of node. Nodes of which the reserve leaves less than two steps have none.
#[must_use]
pub fn devices(machine: &Topology, reserves: &Reserves) -> Vec<Device> {
    let near = machine.near();
    let device = |node: NodeId| {
        let found = machine.nodes.get(&node)?;
        let own = reserves.get(&Place::Node(node));
        let reserve = own.or_else(|| reserves.get(&Place::Kind(found.kind)));
        let left = found.size.0.saturating_sub(reserve.map_or(0, |size| size.0));
        let capacity = Bytes(left / STEP.0 * STEP.0);
        let access = found.access().map(|access| access.attributes).unwrap_or_default();
        let device = Device {
            node,
            kind: found.kind,
            near: near.contains(node),
            tier: machine.tier_of(node),
            read_latency: access.read_latency,
            read_bandwidth: access.read_bandwidth,
            write_bandwidth: access.write_bandwidth,
            nearest: nearest(machine, node),
            capacity,
        };
        // Kubernetes wants room for the smallest allocation and one step.
        (capacity.0 >= 2 * STEP.0).then_some(device)
    };
    machine.memory_nodes().iter().filter_map(device).collect()
}

/// The node with CPUs that is nearest to `node`.
fn nearest(machine: &Topology, node: NodeId) -> Option<(NodeId, u32)> {
    let cpus = machine.cpu_nodes();
    let distances = cpus.iter().filter_map(|from| {
        let distance = machine.distance(from, node)?;
        Some((distance, from))
    });
    distances.min().map(|(distance, from)| (from, distance))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_topology::testkit::{dram_and_cxl, machine, node};
    use proptest::prelude::*;

    #[test]
    fn each_node_with_memory_is_a_device_with_its_facts() {
        let devices = devices(&dram_and_cxl(), &Reserves::new());
        let [dram, cxl] = &devices[..] else { panic!("{devices:?}") };
        assert_eq!((dram.name().as_str(), dram.kind, dram.near), ("node0", MemoryKind::Dram, true));
        assert_eq!((cxl.kind, cxl.near, cxl.tier), (MemoryKind::Cxl, false, Some(1)));
        assert_eq!(cxl.read_latency, Some(Nanoseconds(250)));
        assert_eq!(cxl.read_bandwidth, Some(BytesPerSecond(13_000_000_000)));
        assert_eq!((cxl.nearest, cxl.capacity), (Some((NodeId(0), 20)), Bytes(8 << 30)));
    }

    #[test]
    fn unknown_attributes_are_omitted_and_nodes_without_memory_are_no_devices() {
        let plain = machine([node(0).cpus(0..2).gib(4), node(1).gib(0), node(2).mib(1)]);
        let devices = devices(&plain, &Reserves::new());
        assert_eq!(devices.len(), 1, "{devices:?}");
        assert_eq!((devices[0].read_latency, devices[0].read_bandwidth), (None, None));
    }

    #[test]
    fn a_reserve_of_a_node_overrides_that_of_its_kind() {
        let read = |text: &str| reserve(text).unwrap();
        let reserves = [read("dram=1g"), read("1=1g"), read("hbm=9g")].into();
        let capacities: Vec<_> =
            devices(&dram_and_cxl(), &reserves).iter().map(|device| device.capacity.0).collect();
        assert_eq!(capacities, [15 << 30, 7 << 30]);
        assert_eq!(check(&dram_and_cxl(), &reserves), Ok(()));
        for (text, part) in [("7=1g", "no node 7"), ("1=9g", "8 GiB only")] {
            let why = check(&dram_and_cxl(), &[read(text)].into()).unwrap_err().to_string();
            assert!(why.contains(part), "{why}");
        }
        for text in ["0", "0=", "0=x", "fast=1g", "2000=1g"] {
            assert!(reserve(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_capacity_is_a_multiple_of_the_step_within_the_node(sizes in prop::collection::vec(0u64..1 << 40, 1..6), reserved in 0u64..1 << 40) {
            let nodes = sizes.iter().zip(0u16..).map(|(size, id)| node(id).bytes(*size));
            let machine = machine(nodes);
            let reserves = [(Place::Kind(MemoryKind::Dram), Bytes(reserved))].into();
            for device in devices(&machine, &reserves) {
                let size = machine.nodes[&device.node].size.0;
                prop_assert!(device.capacity.0 + reserved <= size);
                prop_assert!(device.capacity.0.is_multiple_of(STEP.0) && device.capacity.0 > STEP.0);
                prop_assert_eq!(node_of(&device.name()), Some(device.node));
            }
        }
    }
}
