//! The JSON of `nearfar topo`, schema `nearfar.topo/2`. Key names are stable; new keys may be added.
//!
//! Sizes are bytes, latencies nanoseconds, bandwidths bytes per second. Unknown values are `null`. A serial number is
//! text (`0x...`): it is a name, and may not fit a double.

use super::notes;
use nearfar_kernel::smbios::{Module, Modules};
use nearfar_topology::{
    Attributes, Bytes, Controller, CpuId, CxlDecoder, CxlDevice, CxlRegion, Dax, Failures, Finding,
    Initiator, KnownBy, MemoryKind, Node, NodeId, NodeSet, SideCache, Topology, View,
};
use serde::Serialize;

/// A machine.
#[derive(Debug, Serialize)]
pub struct Report {
    schema: &'static str,
    /// Vendor and product name from firmware.
    product: Option<String>,
    /// The kernel's release.
    kernel: Option<String>,
    /// In a guest of the lab, the lab's description of it (machine, clock, slow_motion): all figures are emulated. Else
    /// null.
    lab: Option<serde_json::Value>,
    /// Equal for equal nodes, CPUs, sizes and kinds; saved measurements are found by it.
    fingerprint: String,
    /// Memory modules by firmware's table (SMBIOS), alike ones together; empty unless root reads it on the machine itself.
    memory_modules: Vec<ModuleReport>,
    /// Online nodes, by id.
    nodes: Vec<NodeReport>,
    /// Possible nodes that are not online.
    offline_nodes: Vec<NodeId>,
    /// Tiers, fastest first.
    tiers: Vec<TierReport>,
    /// The nodes of the fastest tier, and all others with memory.
    near: Vec<NodeId>,
    far: Vec<NodeId>,
    /// Local and remote near nodes, relative to the CPUs of each node that has some.
    near_from: Vec<NearFrom>,
    /// For each node with CPUs: the near nodes closest to it, and all others for any program, other sockets' near memory
    /// among them, as `run -N NODE` takes `near` and `far`.
    near_far: Vec<NearFar>,
    cxl_regions: Vec<RegionReport>,
    cxl_devices: Vec<DeviceReport>,
    cxl_root_decoders: Vec<DecoderReport>,
    dax: Vec<DaxReport>,
    /// Memory of CXL and dax devices that is not in use, each with the commands that make it system memory.
    unused_memory: Vec<String>,
    /// Memory controllers with their errors since the restart (EDAC).
    memory_controllers: Vec<Controller>,
    /// Files that could not be read, and contradictions between them.
    findings: Vec<FindingReport>,
}

/// A node.
#[derive(Debug, Serialize)]
struct NodeReport {
    id: NodeId,
    kind: MemoryKind,
    /// The evidence for the kind: user, cxl_region, nd_region, driver, hmat, cpu_model, memory_tier, probe, cpus,
    /// nothing.
    known_by: KnownBy,
    size_bytes: Bytes,
    free_bytes: Bytes,
    cpus: Vec<CpuId>,
    /// The rank of its tier, as in `tier:N`; null for a node without memory, or with memory of a GPU.
    tier: Option<usize>,
    /// SLIT distances from this node.
    distances: Vec<Distance>,
    /// Firmware's figures (HMAT, CDAT) from the best initiators of any kind.
    access0: Option<Access>,
    /// Firmware's figures from the best CPUs.
    access1: Option<Access>,
    /// Figures of a saved probe from its best CPUs.
    measured: Option<MeasuredReport>,
    /// Caches in front of its memory, which are no part of any node.
    memory_side_caches: Vec<CacheReport>,
    /// Whether its memory is its driver's and no program's.
    private: bool,
    /// Pages with memory errors since the restart; null where the kernel does not count them.
    memory_errors: Option<Failures>,
}

#[derive(Debug, Serialize)]
struct Distance {
    node: NodeId,
    distance: u32,
}

#[derive(Debug, Serialize)]
struct Access {
    initiators: Vec<NodeId>,
    read_latency_ns: Option<u64>,
    write_latency_ns: Option<u64>,
    read_bandwidth_bytes_per_second: Option<u64>,
    write_bandwidth_bytes_per_second: Option<u64>,
}

#[derive(Debug, Serialize)]
struct MeasuredReport {
    latency_ns: u64,
    read_bandwidth_bytes_per_second: u64,
}

#[derive(Debug, Serialize)]
struct TierReport {
    rank: usize,
    nodes: Vec<NodeId>,
    /// Evidence for the ranking: probe, memory_tier (the kernel's own), else the evidence for the kinds, or distance.
    known_by: KnownBy,
    /// N of the kernel's memory_tierN that contains these nodes.
    kernel_tier: Option<u32>,
}

#[derive(Debug, Serialize)]
struct NearFrom {
    cpu_node: NodeId,
    local: Vec<NodeId>,
    remote: Vec<NodeId>,
}

#[derive(Debug, Serialize)]
struct NearFar {
    cpu_node: NodeId,
    near: Vec<NodeId>,
    far: Vec<NodeId>,
    /// All of them, cheapest first.
    by_cost: Vec<NodeId>,
}

#[derive(Debug, Serialize)]
struct RegionReport {
    name: String,
    size_bytes: Option<Bytes>,
    mode: Option<String>,
    interleave_ways: Option<u32>,
    interleave_granularity_bytes: Option<Bytes>,
    committed: bool,
    devices: Vec<String>,
    dax: Vec<String>,
    target_node: Option<NodeId>,
}

#[derive(Debug, Serialize)]
struct DeviceReport {
    name: String,
    serial: Option<String>,
    ram_bytes: Option<Bytes>,
    pmem_bytes: Option<Bytes>,
    firmware: Option<String>,
    /// The node its host bridge is nearest to.
    numa_node: Option<NodeId>,
    pci: Option<String>,
}

/// A window of addresses in which regions can be made.
#[derive(Debug, Serialize)]
struct DecoderReport {
    name: String,
    /// Whether it takes volatile memory.
    ram: bool,
    /// Whether it takes persistent memory.
    pmem: bool,
}

impl From<&CxlDecoder> for DecoderReport {
    fn from(decoder: &CxlDecoder) -> Self {
        let CxlDecoder { name, ram, pmem } = decoder.clone();
        Self { name, ram, pmem }
    }
}

/// A memory-side cache.
#[derive(Debug, Serialize)]
struct CacheReport {
    level: u32,
    size_bytes: Option<Bytes>,
    line_bytes: Option<Bytes>,
    associativity: Option<String>,
    write_policy: Option<String>,
}

#[derive(Debug, Serialize)]
struct DaxReport {
    name: String,
    size_bytes: Option<Bytes>,
    target_node: Option<NodeId>,
    driver: Option<String>,
    region: Option<String>,
    /// Whether it is persistent memory.
    persistent: bool,
    /// The state of its memory blocks: unplugged, offline, online, online_kernel, online_movable.
    hotplug: Option<String>,
    /// The tag of its extents, on a device of dynamic capacity.
    uuid: Option<String>,
}

#[derive(Debug, Serialize)]
struct ModuleReport {
    count: usize,
    size_bytes: Bytes,
    /// `DDR5` and the like; null for another type.
    #[serde(rename = "type")]
    kind: Option<&'static str>,
    /// Rated and configured speed, in MT/s.
    speed_mt_s: Option<u32>,
    configured_mt_s: Option<u32>,
}

impl From<(&Module, &usize)> for ModuleReport {
    fn from((module, count): (&Module, &usize)) -> Self {
        Self {
            count: *count,
            size_bytes: module.size,
            kind: module.kind,
            speed_mt_s: module.speed,
            configured_mt_s: module.configured,
        }
    }
}

#[derive(Debug, Serialize)]
struct FindingReport {
    path: String,
    message: String,
}

impl Report {
    /// The report of `machine`.
    #[must_use]
    pub fn of(
        machine: &Topology,
        lab: Option<serde_json::Value>,
        findings: &[Finding],
        modules: &Modules,
    ) -> Self {
        let views = machine.views();
        let tiers = machine.tiers.iter().enumerate().map(|(rank, tier)| TierReport {
            rank,
            nodes: ids(&tier.nodes),
            known_by: tier.known_by,
            kernel_tier: tier.kernel_id,
        });
        Self {
            schema: "nearfar.topo/2",
            product: machine.product.clone(),
            kernel: machine.kernel.clone(),
            lab,
            fingerprint: machine.fingerprint(),
            memory_modules: modules.iter().map(ModuleReport::from).collect(),
            nodes: machine.nodes.iter().map(|(id, node)| node_report(machine, *id, node)).collect(),
            offline_nodes: ids(&machine.offline),
            tiers: tiers.collect(),
            near: ids(&machine.near()),
            far: ids(&machine.far()),
            near_far: views.iter().map(|view| near_far(machine, view)).collect(),
            near_from: views.iter().map(near_from).collect(),
            cxl_regions: machine.cxl_regions.iter().map(RegionReport::from).collect(),
            cxl_devices: machine.cxl_devices.iter().map(DeviceReport::from).collect(),
            cxl_root_decoders: machine.cxl_decoders.iter().map(DecoderReport::from).collect(),
            dax: machine.dax.iter().map(DaxReport::from).collect(),
            unused_memory: notes::unused(machine)
                .iter()
                .map(|note| note.replace('\u{a0}', " "))
                .collect(),
            memory_controllers: machine.controllers.clone(),
            findings: findings.iter().map(FindingReport::from).collect(),
        }
    }
}

fn ids(nodes: &NodeSet) -> Vec<NodeId> {
    nodes.iter().collect()
}

fn node_report(machine: &Topology, id: NodeId, node: &Node) -> NodeReport {
    let row = machine.distances.get(&id).into_iter().flatten();
    let distances = row.map(|(to, distance)| Distance { node: *to, distance: *distance });
    NodeReport {
        id,
        kind: node.kind,
        known_by: node.known_by,
        size_bytes: node.size,
        free_bytes: node.free,
        cpus: node.cpus.clone(),
        tier: machine.tier_of(id),
        distances: distances.collect(),
        access0: node.access0.as_ref().map(Access::from),
        access1: node.access1.as_ref().map(Access::from),
        measured: node.measured.map(|of| MeasuredReport {
            latency_ns: of.latency.0,
            read_bandwidth_bytes_per_second: of.read_bandwidth.0,
        }),
        memory_side_caches: node.caches.iter().map(CacheReport::from).collect(),
        private: node.private,
        memory_errors: node.failures,
    }
}

fn near_far(machine: &Topology, view: &View) -> NearFar {
    let near = machine.nearest_first(&view.near, &NodeSet::from_iter([view.cpu_node]));
    let others = machine.others(view);
    let far: NodeSet = others.iter().copied().collect();
    NearFar {
        cpu_node: view.cpu_node,
        near: ids(&view.near),
        far: ids(&far),
        by_cost: near.into_iter().chain(others).collect(),
    }
}

impl From<&SideCache> for CacheReport {
    fn from(cache: &SideCache) -> Self {
        let cache = cache.clone();
        Self {
            level: cache.level,
            size_bytes: cache.size,
            line_bytes: cache.line,
            associativity: cache.associativity,
            write_policy: cache.write,
        }
    }
}

fn near_from(view: &View) -> NearFrom {
    NearFrom { cpu_node: view.cpu_node, local: ids(&view.near), remote: ids(&view.remote) }
}

impl From<&Initiator> for Access {
    fn from(access: &Initiator) -> Self {
        let Attributes { read_latency, write_latency, read_bandwidth, write_bandwidth } =
            access.attributes;
        Self {
            initiators: ids(&access.nodes),
            read_latency_ns: read_latency.map(|ns| ns.0),
            write_latency_ns: write_latency.map(|ns| ns.0),
            read_bandwidth_bytes_per_second: read_bandwidth.map(|rate| rate.0),
            write_bandwidth_bytes_per_second: write_bandwidth.map(|rate| rate.0),
        }
    }
}

impl From<&CxlRegion> for RegionReport {
    fn from(region: &CxlRegion) -> Self {
        let region = region.clone();
        Self {
            name: region.name,
            size_bytes: region.size,
            mode: region.mode,
            interleave_ways: region.interleave_ways,
            interleave_granularity_bytes: region.interleave_granularity,
            committed: region.committed,
            devices: region.devices,
            dax: region.dax,
            target_node: region.target_node,
        }
    }
}

impl From<&CxlDevice> for DeviceReport {
    fn from(device: &CxlDevice) -> Self {
        let device = device.clone();
        Self {
            name: device.name,
            serial: device.serial.map(|serial| format!("{serial:#x}")),
            ram_bytes: device.ram_size,
            pmem_bytes: device.pmem_size,
            firmware: device.firmware,
            numa_node: device.numa_node,
            pci: device.pci,
        }
    }
}

impl From<&Dax> for DaxReport {
    fn from(dax: &Dax) -> Self {
        let dax = dax.clone();
        Self {
            name: dax.name,
            size_bytes: dax.size,
            target_node: dax.target_node,
            driver: dax.driver,
            region: dax.region,
            persistent: dax.persistent,
            hotplug: dax.hotplug,
            uuid: dax.uuid,
        }
    }
}

impl From<&Finding> for FindingReport {
    fn from(finding: &Finding) -> Self {
        Self { path: finding.path.clone(), message: finding.message.clone() }
    }
}
