//! Options of Cloud Hypervisor for memory zones by kind.
//!
//! A zone is bound to one host node (`host_numa_node`), always under a strict policy. Cloud Hypervisor gives the guest
//! distances, but no HMAT.

use std::str::FromStr;

use nearfar_topology::{Bytes, NodeSet};

use crate::capacity::{self, Demand};
use crate::error::VmError;
use crate::figures::Memory;
use crate::policy::Policy;
use crate::size;
use crate::wish::{self, Host};

/// A memory zone, which becomes a node of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    /// Its id.
    pub id: String,
    /// Its size.
    pub size: Bytes,
    /// The type of host memory.
    pub kind: String,
    /// The guest's CPUs of its node, as `0-3`.
    pub cpus: Option<String>,
}

impl FromStr for Zone {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const FORM: &str = "write id=far0,size=2G,type=cxl, with cpus=0-3 for a node that has CPUs";
        let (mut id, mut size, mut kind, mut cpus) = (None, None, None, None);
        for part in text.split(',') {
            let (key, value) = part.split_once('=').ok_or(FORM)?;
            let place = match key {
                "id" => &mut id,
                "size" => &mut size,
                "type" => &mut kind,
                "cpus" => &mut cpus,
                _ => return Err(format!("{key} is unknown; {FORM}")),
            };
            if place.replace(value.to_owned()).is_some() {
                return Err(format!("{key} is given twice; {FORM}"));
            }
        }
        let id = id.filter(|id| is_plain(id)).ok_or(FORM)?;
        let size = size.and_then(|text| size::parse(&text, 1));
        let size = size.filter(|size| size.0 > 0 && size.0.is_multiple_of(1 << 20));
        let size = size.ok_or_else(|| format!("size must be whole MiB; {FORM}"))?;
        if cpus
            .as_deref()
            .is_some_and(|cpus| NodeSet::parse_list(cpus).is_none_or(|all| all.is_empty()))
        {
            return Err(format!("cpus must be a number or a range; {FORM}"));
        }
        Ok(Self { id, size, kind: kind.ok_or(FORM)?, cpus })
    }
}

fn is_plain(id: &str) -> bool {
    !id.is_empty() && id.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

/// The options for `zones`.
///
/// # Errors
/// A type that does not name exactly one node, two zones with one id, or too little free memory.
pub fn arguments(
    zones: &[Zone],
    host: &Host<'_>,
    overcommit: bool,
) -> Result<Vec<String>, VmError> {
    let mut demands: Vec<Demand> = Vec::new();
    for zone in zones {
        let place = format!("--zone {}", zone.id);
        if demands.iter().any(|demand| demand.id == zone.id) {
            return Err(VmError::DuplicateId { place, id: zone.id.clone() });
        }
        let nodes = wish::nodes(&place, &zone.kind, host.machine)?;
        if nodes.len() != 1 {
            return Err(VmError::Value {
                place,
                key: "type".into(),
                text: zone.kind.clone(),
                problem: format!(
                    "these are nodes {nodes}, but a zone of Cloud Hypervisor is on one node; write one zone for each"
                ),
            });
        }
        demands.push(Demand { id: zone.id.clone(), size: zone.size, nodes });
    }
    if !overcommit {
        capacity::check(&demands, &host.room, capacity::FREE)?;
    }
    let memory = |demand: &Demand| Memory { nodes: demand.nodes.clone(), policy: Policy::Bind };
    let all: Vec<Memory> = demands.iter().map(memory).collect();
    let mut words: Vec<String> = ["--memory", "size=0", "--memory-zone"].map(String::from).into();
    for (zone, memory) in zones.iter().zip(&all) {
        let node = memory.seat(host.machine);
        words.push(format!("id={},size={},host_numa_node={node}", zone.id, mebibytes(zone.size)));
    }
    words.push("--numa".into());
    for (index, (zone, memory)) in zones.iter().zip(&all).enumerate() {
        let cpus = zone.cpus.as_ref().map(|cpus| format!(",cpus=[{cpus}]")).unwrap_or_default();
        let others = all.iter().enumerate().filter(|(other, _)| *other != index);
        let distances =
            others.map(|(other, to)| format!("{other}@{}", memory.distance(to, host.machine)));
        let distances: Vec<_> = distances.collect();
        let mut word = format!("guest_numa_id={index}{cpus},memory_zones=[{}]", zone.id);
        if !distances.is_empty() {
            word.push_str(&format!(",distances=[{}]", distances.join(",")));
        }
        words.push(word);
    }
    Ok(words)
}

fn mebibytes(size: Bytes) -> String {
    if size.0.is_multiple_of(1 << 30) {
        format!("{}G", size.0 >> 30)
    } else {
        format!("{}M", size.0 >> 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_topology::MemoryKind;
    use nearfar_topology::testkit::{dram_and_cxl, machine, node};

    fn host(machine: &nearfar_topology::Topology) -> Host<'_> {
        let room = machine.nodes.iter().map(|(id, node)| (*id, node.free)).collect();
        Host { machine, room, huge: Default::default(), figures: None }
    }

    fn zones(texts: &[&str]) -> Vec<Zone> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn each_zone_is_a_node_of_the_guest_on_one_node_of_the_host() {
        let machine = dram_and_cxl();
        let zones =
            zones(&["id=near0,size=1G,type=dram,cpus=0-3", "id=far0,size=512M,type=cxlram"]);
        let words = arguments(&zones, &host(&machine), false).unwrap();
        let expected = [
            "--memory",
            "size=0",
            "--memory-zone",
            "id=near0,size=1G,host_numa_node=0",
            "id=far0,size=512M,host_numa_node=1",
            "--numa",
            "guest_numa_id=0,cpus=[0-3],memory_zones=[near0],distances=[1@20]",
            "guest_numa_id=1,memory_zones=[far0],distances=[0@20]",
        ];
        assert_eq!(words, expected);
    }

    #[test]
    fn a_type_with_several_nodes_is_refused() {
        let cxl = |id| node(id).kind(MemoryKind::Cxl);
        let machine = machine([node(0).cpus(0..4), cxl(1), cxl(2)]);
        let error =
            arguments(&zones(&["id=a,size=1G,type=cxl"]), &host(&machine), false).unwrap_err();
        assert!(
            error.to_string().contains("nodes 1-2")
                && error.to_string().contains("one zone for each"),
            "{error}"
        );
        assert!(arguments(&zones(&["id=a,size=1G,type=2"]), &host(&machine), false).is_ok());
        let full = arguments(&zones(&["id=a,size=3G,type=2"]), &host(&machine), false).unwrap_err();
        assert!(full.to_string().contains("a: 3 GiB are to be bound to node 2"), "{full}");
        assert!(arguments(&zones(&["id=a,size=3G,type=2"]), &host(&machine), true).is_ok());
        let twice = zones(&["id=a,size=1G,type=1", "id=a,size=1G,type=2"]);
        assert!(arguments(&twice, &host(&machine), false).is_err());
    }

    #[test]
    fn a_zone_that_is_incomplete_is_refused_with_the_form() {
        for text in [
            "",
            "id=a",
            "id=a,size=1G",
            "id=a,size=1,type=cxl",
            "id=a,size=1G,type=cxl,x=1",
            "id=a b,size=1G,type=1",
        ] {
            let error = text.parse::<Zone>().unwrap_err();
            assert!(error.contains("id=far0,size=2G,type=cxl"), "{text}: {error}");
        }
    }
}
