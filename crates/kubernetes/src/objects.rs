//! Objects of the Kubernetes API that describe a node's memory: slices of devices, device classes, node labels. Pure.
//!
//! Memory is consumable capacity (`allowMultipleAllocations`): the scheduler gives parts of one device to several claims,
//! in steps of a MiB, and accounts for them.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{
    CELDeviceSelector, CapacityRequestPolicy, CapacityRequestPolicyRange, Device as ApiDevice,
    DeviceAttribute, DeviceCapacity, DeviceClass, DeviceClassSpec, DeviceSelector, ResourcePool,
    ResourceSlice, ResourceSliceSpec,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use nearfar_topology::{Bytes, MemoryKind, Topology};

use crate::DRIVER;
use crate::devices::{Device, STEP};
use crate::quantity;

/// The capacity's name.
pub const MEMORY: &str = "memory";
/// The attribute by which drivers of other devices state their NUMA node, too.
pub const NUMA_NODE: &str = "resource.kubernetes.io/numaNode";
/// Memory that a request without a size gets, or all if there is less.
pub const DEFAULT: Bytes = Bytes(1 << 30);
/// The most devices that a slice may have.
const SLICE_MAX: usize = 128;
/// Kinds that have a label.
const KINDS: [MemoryKind; 4] =
    [MemoryKind::Dram, MemoryKind::Cxl, MemoryKind::Hbm, MemoryKind::Pmem];

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRef {
    /// Its name.
    pub name: String,
    /// Its uid, if known: slices of a node with a uid are removed with it.
    pub uid: Option<String>,
}

/// The slices of a node, which are one pool.
#[must_use]
pub fn slices(devices: &[Device], node: &NodeRef, generation: i64) -> Vec<ResourceSlice> {
    let parts: Vec<&[Device]> = devices.chunks(SLICE_MAX).collect();
    let count = i64::try_from(parts.len()).unwrap_or(i64::MAX);
    let slice = |part: &&[Device]| {
        let owner = node.uid.as_ref().map(|uid| OwnerReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: node.name.clone(),
            uid: uid.clone(),
            controller: Some(true),
            block_owner_deletion: None,
        });
        let metadata = ObjectMeta {
            generate_name: Some(format!("{}-{DRIVER}-", node.name)),
            owner_references: owner.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        };
        let spec = ResourceSliceSpec {
            driver: DRIVER.into(),
            node_name: Some(node.name.clone()),
            pool: ResourcePool { name: node.name.clone(), generation, resource_slice_count: count },
            devices: Some(part.iter().map(device).collect()),
            ..ResourceSliceSpec::default()
        };
        ResourceSlice { metadata, spec }
    };
    parts.iter().map(slice).collect()
}

fn device(device: &Device) -> ApiDevice {
    let mut attributes = BTreeMap::new();
    let mut int = |name: &str, value: Option<u64>| {
        let value = value.and_then(|value| i64::try_from(value).ok());
        if let Some(value) = value {
            let attribute = DeviceAttribute { int: Some(value), ..DeviceAttribute::default() };
            attributes.insert(name.to_string(), attribute);
        }
    };
    int("node", Some(device.node.0.into()));
    int(NUMA_NODE, Some(device.node.0.into()));
    int("tier", device.tier.map(|tier| tier as u64));
    int("readLatencyNs", device.read_latency.map(|latency| latency.0));
    int("readBandwidthMBps", device.read_bandwidth.map(|rate| rate.0 / 1_000_000));
    int("writeBandwidthMBps", device.write_bandwidth.map(|rate| rate.0 / 1_000_000));
    int("nearestNode", device.nearest.map(|(node, _)| node.0.into()));
    int("distance", device.nearest.map(|(_, distance)| distance.into()));
    let kind = Some(device.kind.word().to_string());
    attributes.insert("kind".into(), DeviceAttribute { string: kind, ..Default::default() });
    let near = Some(device.near);
    attributes.insert("near".into(), DeviceAttribute { bool: near, ..Default::default() });
    let size = |bytes: Bytes| Quantity(quantity::text(bytes));
    let policy = CapacityRequestPolicy {
        default: Some(size(device.capacity.min(DEFAULT))),
        valid_range: Some(CapacityRequestPolicyRange {
            min: size(STEP),
            max: Some(size(device.capacity)),
            step: Some(size(STEP)),
        }),
        valid_values: None,
    };
    let capacity = DeviceCapacity { request_policy: Some(policy), value: size(device.capacity) };
    ApiDevice {
        name: device.name(),
        attributes: Some(attributes),
        capacity: Some([(MEMORY.to_string(), capacity)].into()),
        allow_multiple_allocations: Some(true),
        ..ApiDevice::default()
    }
}

/// The device classes: all memory, and CXL memory.
#[must_use]
pub fn classes() -> Vec<DeviceClass> {
    let any = format!("device.driver == \"{DRIVER}\"");
    let cxl = format!("{any} && device.attributes[\"{DRIVER}\"].kind == \"cxl\"");
    let class = |(name, expression): (&str, String)| DeviceClass {
        metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
        spec: DeviceClassSpec {
            selectors: Some(vec![DeviceSelector { cel: Some(CELDeviceSelector { expression }) }]),
            ..DeviceClassSpec::default()
        },
    };
    [(DRIVER, any), ("cxl.nearfar.io", cxl)].map(class).into()
}

/// The labels of a node: a value, or `None` for one that it must not have.
#[must_use]
pub fn labels(machine: &Topology) -> BTreeMap<String, Option<String>> {
    let size = |nodes: nearfar_topology::NodeSet| {
        let sizes = nodes.iter().filter_map(|node| machine.nodes.get(&node));
        let bytes = sizes.fold(0u64, |sum, node| sum.saturating_add(node.size.0));
        (bytes > 0).then(|| label(Bytes(bytes)))
    };
    let kinds = KINDS.map(|kind| {
        let is_there = !machine.of_kind(kind).is_empty();
        (kind.word().to_string(), is_there.then(|| "true".to_string()))
    });
    let tiers = (!machine.tiers.is_empty()).then(|| machine.tiers.len().to_string());
    let others = [
        ("tiers".to_string(), tiers),
        ("near-memory".into(), size(machine.near())),
        ("far-memory".into(), size(machine.far())),
    ];
    kinds
        .into_iter()
        .chain(others)
        .map(|(key, value)| (format!("nearfar.io/{key}"), value))
        .collect()
}

/// No label: those of [`labels`], to be removed.
#[must_use]
pub fn no_labels() -> BTreeMap<String, Option<String>> {
    labels(&Topology::default()).into_keys().map(|key| (key, None)).collect()
}

/// A size as a label's value, which has no room for spaces: whole GiB or MiB, rounded down.
fn label(bytes: Bytes) -> String {
    if bytes.0 >= 1 << 30 { format!("{}Gi", bytes.0 >> 30) } else { format!("{}Mi", bytes.0 >> 20) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::{Reserves, devices};
    use nearfar_topology::testkit::{dram_and_cxl, machine, node};

    fn node_ref() -> NodeRef {
        NodeRef { name: "worker".into(), uid: Some("u".into()) }
    }

    #[test]
    fn a_slice_states_facts_and_capacity_of_each_node() {
        let slices = slices(&devices(&dram_and_cxl(), &Reserves::new()), &node_ref(), 3);
        assert_eq!(slices.len(), 1);
        let json = serde_json::to_value(&slices[0]).unwrap();
        assert_eq!(json["apiVersion"], "resource.k8s.io/v1");
        assert_eq!(json["metadata"]["ownerReferences"][0]["name"], "worker");
        let pool = serde_json::json!({"name": "worker", "generation": 3, "resourceSliceCount": 1});
        assert_eq!(json["spec"]["pool"], pool);
        let cxl = &json["spec"]["devices"][1];
        assert_eq!(cxl["attributes"]["kind"]["string"], "cxl");
        assert_eq!(cxl["attributes"]["near"]["bool"], false);
        assert_eq!(cxl["attributes"][NUMA_NODE]["int"], 1);
        assert_eq!(cxl["attributes"]["readLatencyNs"]["int"], 250);
        assert_eq!(cxl["attributes"]["readBandwidthMBps"]["int"], 13_000);
        assert_eq!(cxl["capacity"]["memory"]["value"], "8Gi");
        assert_eq!(cxl["allowMultipleAllocations"], true);
    }

    #[test]
    fn unknown_facts_are_left_out() {
        let plain = machine([node(0).cpus(0..2).gib(4)]);
        let slices = slices(&devices(&plain, &Reserves::new()), &node_ref(), 1);
        let json = serde_json::to_value(&slices[0].spec.devices).unwrap();
        assert!(json[0]["attributes"].get("readLatencyNs").is_none(), "{json}");
    }

    #[test]
    fn a_pool_of_many_devices_is_divided_into_slices() {
        let many = machine((0..130).map(node));
        let slices = slices(&devices(&many, &Reserves::new()), &node_ref(), 1);
        let counts: Vec<_> =
            slices.iter().map(|slice| slice.spec.devices.as_ref().unwrap().len()).collect();
        assert_eq!(counts, [128, 2]);
        assert!(slices.iter().all(|slice| slice.spec.pool.resource_slice_count == 2));
    }

    #[test]
    fn labels_have_valid_values_and_absent_kinds_have_no_label() {
        let labels = labels(&dram_and_cxl());
        let value = |key: &str| labels[&format!("nearfar.io/{key}")].as_deref();
        assert_eq!((value("dram"), value("cxl"), value("hbm")), (Some("true"), Some("true"), None));
        assert_eq!((value("tiers"), value("far-memory")), (Some("2"), Some("8Gi")));
        let is_valid = |value: &str| value.chars().all(char::is_alphanumeric);
        assert!(labels.values().flatten().all(|value| is_valid(value)), "{labels:?}");
        assert!(no_labels().values().all(Option::is_none) && no_labels().len() == labels.len());
    }
}
