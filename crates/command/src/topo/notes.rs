//! Notes below the text of `nearfar topo`: findings, and CXL and dax memory that is not in use, with the commands that make it
//! system memory. A guest test runs these commands as they are printed, on a device of the machine `cxl-idle`.
//!
//! Sources: the manuals of cxl-create-region, daxctl-reconfigure-device and daxctl-online-memory; Linux,
//! Documentation/ABI/testing/sysfs-bus-dax.

use nearfar_topology::{CxlDecoder, CxlDevice, Dax, Finding, Node, Topology};

use crate::output::tied;

/// All notes.
pub(super) fn of(machine: &Topology, findings: &[Finding]) -> Vec<String> {
    findings.iter().map(ToString::to_string).chain(unused(machine)).collect()
}

/// Those on memory that is not in use.
pub(super) fn unused(machine: &Topology) -> Vec<String> {
    let behind = |name: &String| machine.cxl_regions.iter().any(|r| r.devices.contains(name));
    let idle = machine.cxl_devices.iter().filter(|device| !behind(&device.name));
    let devices = idle.flat_map(|device| in_no_region(machine, device));
    devices.chain(machine.dax.iter().filter_map(|dax| offline(machine, dax))).collect()
}

/// A note for each sort of memory on the device.
fn in_no_region(machine: &Topology, device: &CxlDevice) -> Vec<String> {
    let name = &device.name;
    let note = |kind: &str, takes: fn(&&CxlDecoder) -> bool, then: &str| {
        let able: Vec<&str> =
            machine.cxl_decoders.iter().filter(takes).map(|one| one.name.as_str()).collect();
        let (decoder, which) = match able.as_slice() {
            [] => ("DECODER", "; cxl list -D names the root decoders".to_owned()),
            [one] => (*one, String::new()),
            several => ("DECODER", format!("; DECODER is one of {}", several.join(", "))),
        };
        let make = tied(format_args!("cxl create-region -m -t {kind} -d {decoder} {name}"));
        format!(
            "{name} is in no region, so its {kind} memory is not in use; make one with {make} (cxl 77 or later, in package ndctl or cxl-cli{which}){then}"
        )
    };
    let mut notes = Vec::new();
    if device.ram_size.is_some() || device.pmem_size.is_none() {
        notes.push(note("ram", |decoder| decoder.ram, "; then see here if more is needed"));
    }
    if device.pmem_size.is_some() {
        notes.push(note("pmem", |decoder| decoder.pmem, ""));
    }
    notes
}

/// How a dax device's memory becomes system memory, if it is not.
fn offline(machine: &Topology, dax: &Dax) -> Option<String> {
    let name = &dax.name;
    let path = format!("/sys/bus/dax/devices/{name}/hotplug");
    let online = tied(format_args!("echo online_movable >{path}"));
    let has_memory = |id| machine.nodes.get(&id).is_some_and(Node::has_memory);
    match (dax.driver.as_deref(), dax.hotplug.as_deref()) {
        (Some("device_dax"), _) => {
            let tag = dax.uuid.as_ref().map(|uuid| format!(" (tag {uuid})")).unwrap_or_default();
            let node = dax.target_node.filter(|node| !machine.nodes.contains_key(node));
            let node = node.map(|node| format!(", on a new node {node}")).unwrap_or_default();
            let make = tied(format_args!("daxctl reconfigure-device --mode=system-ram {name}"));
            Some(format!(
                "{name}{tag} is no system memory; {make} makes it so{node} (package daxctl)"
            ))
        }
        (_, Some("unplugged" | "unplug")) => {
            Some(format!("{name}'s memory is unplugged; {online} brings it online"))
        }
        (_, Some("offline")) => {
            let unplug = tied(format_args!("echo unplugged >{path}"));
            Some(format!("{name}'s memory is offline; {unplug} and {online} bring it online"))
        }
        (Some("kmem"), None) if dax.target_node.is_some_and(|node| !has_memory(node)) => {
            let online = tied(format_args!("daxctl online-memory {name}"));
            Some(format!("{name}'s memory is offline; {online} brings it online (package daxctl)"))
        }
        _ => None,
    }
}
