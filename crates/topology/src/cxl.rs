//! CXL regions and devices, and dax devices: the devices that provide a node's memory.
//!
//! Formats, below `sys/bus/cxl/devices` (each entry a link into sys/devices):
//! `memN/{serial,firmware_version,numa_node}` and `memN/{ram,pmem}/size`;
//! `decoder0.N/cap_{ram,pmem}` of root decoders;
//! `regionN/{size,mode,commit,interleave_ways,interleave_granularity,resource}` and `regionN/targetK`, which names an
//! endpoint decoder; that decoder's link leads through its endpoint, whose `uport` link names the memory device.
//! `sys/bus/dax/devices/daxX.Y` links through the region it belongs to and has `size`, `target_node` and a `driver`
//! link, and on later kernels `hotplug` and `uuid`. Source: Linux, Documentation/ABI/testing/sysfs-bus-cxl and sysfs-bus-dax.
//!
//! A region that firmware set up as plain system RAM has no dax device; its node is then that of the memory block at
//! its start (`sys/devices/system/memory/memoryK/nodeN`, where K is the address divided by the block size).

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::machine::{CxlDecoder, CxlDevice, CxlRegion, Dax, Topology};
use crate::reader::Reader;
use crate::units::{Bytes, NodeId};

const CXL: &str = "sys/bus/cxl/devices";
const DAX: &str = "sys/bus/dax/devices";
const MEMORY: &str = "sys/devices/system/memory";

/// Fills in the CXL and dax parts of `machine`.
pub(crate) fn read(reader: &mut Reader<'_>, machine: &mut Topology) {
    let tree = reader.tree;
    machine.dax = named(tree.children(DAX), "dax").map(|name| dax(reader, name)).collect();
    machine.cxl_devices =
        named(tree.children(CXL), "mem").map(|name| device(reader, name)).collect();
    machine.cxl_decoders =
        named(tree.children(CXL), "decoder").filter_map(|name| decoder(reader, name)).collect();
    machine.cxl_regions = named(tree.children(CXL), "region")
        .map(|name| region(reader, name, &machine.dax))
        .collect();
}

/// The names that consist of `prefix` and a number (`mem0`, `dax0.1`), in order of their numbers.
fn named<'a>(names: impl Iterator<Item = &'a str>, prefix: &str) -> impl Iterator<Item = &'a str> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let key = |name: &str| {
        let rest = name.strip_prefix(prefix)?;
        let (major, minor) = rest.split_once('.').unwrap_or((rest, "0"));
        (digits(major) && digits(minor)).then(|| (number(major), number(minor)))
    };
    let mut known: Vec<_> = names.filter_map(|name| Some((key(name)?, name))).collect();
    known.sort_unstable();
    known.into_iter().map(|(_, name)| name)
}

/// A sort key; a number that does not fit sorts last.
fn number(digits: &str) -> u64 {
    digits.parse().unwrap_or(u64::MAX)
}

fn dax(reader: &mut Reader<'_>, name: &str) -> Dax {
    let path = format!("{DAX}/{name}");
    let link = reader.tree.link(&path).unwrap_or_default();
    let persistent = segments(link, "ndbus").next().is_some();
    Dax {
        name: name.to_string(),
        size: reader.number(&format!("{path}/size")).map(Bytes),
        target_node: reader.node(&format!("{path}/target_node")),
        driver: reader.tree.link(&format!("{path}/driver")).map(|link| last(link).to_string()),
        // An nd region has the same name; only a CXL region is below a decoder.
        region: segments(link, "region").next().filter(|_| !persistent).map(ToString::to_string),
        persistent,
        hotplug: reader.text(&format!("{path}/hotplug")).map(ToString::to_string),
        uuid: reader
            .text(&format!("{path}/uuid"))
            .filter(|uuid| uuid.bytes().any(|byte| !matches!(byte, b'0' | b'-')))
            .map(ToString::to_string),
    }
}

fn device(reader: &mut Reader<'_>, name: &str) -> CxlDevice {
    let path = format!("{CXL}/{name}");
    let size = |reader: &mut Reader<'_>, part: &str| {
        reader.number(&format!("{path}/{part}/size")).filter(|size| *size > 0).map(Bytes)
    };
    let link = reader.tree.link(&path).unwrap_or_default();
    CxlDevice {
        name: name.to_string(),
        serial: reader.number(&format!("{path}/serial")),
        ram_size: size(reader, "ram"),
        pmem_size: size(reader, "pmem"),
        firmware: reader.text(&format!("{path}/firmware_version")).map(ToString::to_string),
        numa_node: reader.node(&format!("{path}/numa_node")),
        pci: link.split('/').rfind(|part| is_pci(part)).map(ToString::to_string),
    }
}

/// A root decoder; `None` for one of a port or device, which has no capabilities of a window.
fn decoder(reader: &mut Reader<'_>, name: &str) -> Option<CxlDecoder> {
    let path = format!("{CXL}/{name}");
    let mut takes = |what: &str| reader.number(&format!("{path}/cap_{what}"));
    let (ram, pmem) = (takes("ram"), takes("pmem"));
    let is_root = ram.is_some() || pmem.is_some();
    is_root.then(|| CxlDecoder { name: name.into(), ram: ram == Some(1), pmem: pmem == Some(1) })
}

fn region(reader: &mut Reader<'_>, name: &str, dax: &[Dax]) -> CxlRegion {
    let path = format!("{CXL}/{name}");
    let ways = reader.number(&format!("{path}/interleave_ways"));
    let own: Vec<&Dax> = dax.iter().filter(|dax| dax.region.as_deref() == Some(name)).collect();
    let by_dax = own.iter().find_map(|dax| dax.target_node);
    CxlRegion {
        name: name.to_string(),
        size: reader.number(&format!("{path}/size")).filter(|size| *size > 0).map(Bytes),
        mode: reader.text(&format!("{path}/mode")).map(ToString::to_string),
        interleave_ways: ways.and_then(|ways| u32::try_from(ways).ok()),
        interleave_granularity: reader.number(&format!("{path}/interleave_granularity")).map(Bytes),
        committed: reader.number(&format!("{path}/commit")) == Some(1),
        devices: devices(reader, &path),
        dax: own.iter().map(|dax| dax.name.clone()).collect(),
        target_node: by_dax.or_else(|| block_node(reader, &path)),
    }
}

/// The memory devices behind a region, in the order of its targets.
fn devices(reader: &mut Reader<'_>, region: &str) -> Vec<String> {
    let tree = reader.tree;
    let mut found = Vec::new();
    for target in named(tree.children(region), "target") {
        let Some(decoder) = reader.text(&format!("{region}/{target}")) else { continue };
        let link = tree.link(&format!("{CXL}/{decoder}")).unwrap_or_default();
        let uport = segments(link, "endpoint")
            .next()
            .and_then(|endpoint| tree.link(&format!("{CXL}/{endpoint}/uport")).map(last));
        match uport {
            Some(device) => found.push(device.to_string()),
            None => reader.note(
                &format!("{region}/{target}"),
                format!("the device behind {decoder} is not to be found"),
            ),
        }
    }
    found
}

/// The node of the memory block at a region's start.
fn block_node(reader: &mut Reader<'_>, region: &str) -> Option<NodeId> {
    let start = reader.number(&format!("{region}/resource"))?;
    node_of_address(reader, start)
}

/// The node of the memory block at a physical address.
pub(crate) fn node_of_address(reader: &Reader<'_>, start: u64) -> Option<NodeId> {
    let block = reader.text(&format!("{MEMORY}/block_size_bytes"))?;
    let index = start.checked_div(u64::from_str_radix(block, 16).ok()?)?;
    let tree = reader.tree;
    let mut names = tree.children(&format!("{MEMORY}/memory{index}"));
    NodeId::new(names.find_map(|name| name.strip_prefix("node")?.parse().ok())?)
}

/// The segments of `path` that consist of `prefix` and a number, last first.
fn segments<'a>(path: &'a str, prefix: &str) -> impl Iterator<Item = &'a str> {
    path.rsplit('/').filter(move |part| {
        part.strip_prefix(prefix)
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
    })
}

fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// `0000:0d:00.0`
fn is_pci(part: &str) -> bool {
    let hex = |text: &str, digits: usize| {
        text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let mut fields = part.split([':', '.']);
    let widths = [4, 2, 2, 1];
    part.matches(':').count() == 2
        && widths.iter().all(|width| fields.next().is_some_and(|field| hex(field, *width)))
        && fields.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KnownBy, MemoryKind, Tree};

    fn machine(name: &str) -> Topology {
        let text = crate::recorded::ALL.iter().find(|(have, _)| *have == name).unwrap().1;
        let (machine, findings) = Topology::read(&Tree::parse(text));
        assert_eq!(findings, [], "{name}");
        machine
    }

    #[test]
    fn a_region_over_two_devices_names_both_in_turn_and_its_node() {
        let machine = machine("cxl-region-two-devices");
        let region = &machine.cxl_regions[0];
        assert_eq!(region.devices, ["mem0", "mem1"]);
        assert_eq!((region.interleave_ways, region.committed), (Some(2), true));
        assert_eq!(
            (region.target_node, region.dax.clone()),
            (Some(NodeId(2)), ["dax0.0".into()].into())
        );
        assert_eq!(machine.dax[0].driver.as_deref(), Some("kmem"));
        assert_eq!(machine.cxl_devices[1].pci.as_deref(), Some("0000:38:00.0"));
        let node = &machine.nodes[&NodeId(2)];
        assert_eq!((node.kind, node.known_by), (MemoryKind::Cxl, KnownBy::CxlRegion));
    }

    #[test]
    fn a_region_set_up_by_firmware_is_assigned_to_the_node_of_its_first_block() {
        let mut tree = Tree::new();
        for (path, text) in [
            ("sys/bus/cxl/devices/region0/resource", "0x1080000000"),
            ("sys/bus/cxl/devices/region0/mode", "ram"),
            ("sys/devices/system/memory/block_size_bytes", "80000000"),
            ("sys/devices/system/memory/memory33/node3", "-> ../../node/node3"),
        ] {
            tree.insert(path, text);
        }
        let (machine, _) = Topology::read(&tree);
        assert_eq!(machine.cxl_regions[0].target_node, Some(NodeId(3)));
    }

    #[test]
    fn a_dax_device_has_tag_and_state_if_the_kernel_shows_them() {
        let mut tree = Tree::new();
        for (path, text) in [
            ("dax0.0/size", "1073741824"),
            ("dax0.0/hotplug", "unplugged"),
            ("dax0.0/uuid", "6c5b3f0e-8a53-4d2a-9f0e-2d8a1a3c9b11"),
            ("dax0.1/size", "1073741824"),
            ("dax0.1/uuid", "00000000-0000-0000-0000-000000000000"),
        ] {
            tree.insert(&format!("{DAX}/{path}"), text);
        }
        let (machine, _) = Topology::read(&tree);
        let [tagged, plain] = &machine.dax[..] else { panic!("{:?}", machine.dax) };
        assert_eq!(tagged.hotplug.as_deref(), Some("unplugged"));
        assert!(tagged.uuid.as_deref().is_some_and(|uuid| uuid.starts_with("6c5b3f0e")));
        assert_eq!((&plain.hotplug, &plain.uuid), (&None, &None));
    }

    #[test]
    fn a_target_without_its_device_is_a_finding() {
        let mut tree = Tree::new();
        tree.insert("sys/bus/cxl/devices/region0/target0", "decoder9.0");
        let (machine, findings) = Topology::read(&tree);
        assert!(machine.cxl_regions[0].devices.is_empty());
        assert!(findings[0].message.contains("decoder9.0"), "{findings:?}");
    }

    #[test]
    fn names_are_in_order_of_their_numbers() {
        let names = ["mem10", "mem2", "mem", "memory1", "mem1"];
        assert_eq!(named(names.into_iter(), "mem").collect::<Vec<_>>(), ["mem1", "mem2", "mem10"]);
        assert!(is_pci("0000:0d:00.0") && !is_pci("pci0000:0c") && !is_pci("0000:0d:00:0"));
    }
}
