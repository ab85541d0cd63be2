//! Performance of the guest's memory nodes, as reported to the guest: HMAT and distances from figures of the host.
//!
//! A guest with a node on far memory ranks its nodes by HMAT; without it, every node is in the tier of DRAM. This step adds
//! `hmat=on`, the initiator of each node, `hmat-lb` for each CPU node and memory node, and distances, in so far as the user
//! has written none of these.

use std::collections::BTreeMap;
use std::ffi::OsString;

use nearfar_topology::Topology;

use super::object::Object;
use super::words::{self, Opt};
use super::{Placed, keyval};
use crate::figures::{self, Figures, Memory};
use crate::policy::Policy;
use crate::splice::{self, Splice};
use crate::wish::Host;

/// A node of the guest.
#[derive(Clone, Debug)]
struct Guest {
    id: u16,
    word: usize,
    has_cpus: bool,
    /// The host's memory under it.
    memory: Memory,
}

/// Settings that the user has written.
#[derive(Clone, Copy, Debug, Default)]
struct Own {
    hmat: Option<&'static str>,
    has_distances: bool,
}

/// Adds the description to `words`, if a node of the guest has memory of `placed`.
pub(super) fn describe(
    words: &mut Vec<OsString>,
    (placed, objects): (&[Placed], &[Object]),
    host: &Host<'_>,
    notes: &mut Vec<String>,
) {
    let options = words::options(words);
    let memdevs = memdevs(&options);
    let is_ours = |memdev: &String| placed.iter().any(|one| one.id == *memdev);
    if memdevs.len() < 2 || !memdevs.iter().any(is_ours) {
        return;
    }
    let Some(guests) = guests(&options, (placed, objects), host.machine) else {
        notes.push(
            "the guest is given no HMAT: a -numa node has no memdev or an invalid nodeid".into(),
        );
        return;
    };
    if guests.iter().all(|guest| guest.has_cpus) || guests.iter().all(|guest| !guest.has_cpus) {
        notes.push(
            "the guest is given no HMAT: that needs a node with cpus= and one without".into(),
        );
        return;
    }
    let own = own(&options);
    if own.has_distances {
        notes.push("-numa dist is given; distances are left as they are".into());
    } else {
        words.extend(distances(&guests, host.machine));
    }
    if let Some(theirs) = own.hmat {
        notes.push(format!("{theirs} is given; the guest's HMAT is left to the command line"));
        return;
    }
    let needed = guests.iter().flat_map(|guest| guest.memory.nodes.iter()).collect();
    let Some(known) = host.covering(&needed, notes) else { return };
    notes.push(format!("the guest's HMAT has the host's figures, from {}", known.source));
    initiators(words, &guests, host.machine);
    words.extend(["-machine".into(), "hmat=on".into()]);
    words.extend(attributes(&guests, known, host.machine));
}

fn memdevs(options: &[Opt]) -> Vec<String> {
    let nodes = options.iter().filter(|opt| opt.name == "numa");
    let memdev = |opt: &Opt| {
        let fields = keyval::parse(&opt.value, Some("type"));
        (keyval::get(&fields, "type") == Some("node"))
            .then(|| keyval::get(&fields, "memdev").map(str::to_owned))?
    };
    nodes.filter_map(memdev).collect()
}

/// The guest's nodes, by number; `None` if one can't be understood.
fn guests(
    options: &[Opt],
    (placed, objects): (&[Placed], &[Object]),
    machine: &Topology,
) -> Option<Vec<Guest>> {
    let mut guests: BTreeMap<u16, Guest> = BTreeMap::new();
    let mut with_cpus = Vec::new();
    for opt in options.iter().filter(|opt| opt.name == "numa") {
        let fields = keyval::parse(&opt.value, Some("type"));
        let get = |key| keyval::get(&fields, key);
        match get("type") {
            Some("node") => {
                let counted = u16::try_from(guests.len()).ok();
                let id = get("nodeid").map_or(counted, |id| id.parse().ok())?;
                let memory = memory(get("memdev")?, (placed, objects), machine);
                let has_cpus = get("cpus").is_some();
                guests.insert(id, Guest { id, word: opt.word, has_cpus, memory });
            }
            Some("cpu") => with_cpus.push(get("node-id")?.parse::<u16>().ok()?),
            _ => {}
        }
    }
    for id in with_cpus {
        guests.get_mut(&id)?.has_cpus = true;
    }
    Some(guests.into_values().collect())
}

/// The host's nodes of a backend: resolved, as written by the user, or, without a policy, near ones.
fn memory(id: &str, (placed, objects): (&[Placed], &[Object]), machine: &Topology) -> Memory {
    if let Some(placed) = placed.iter().find(|one| one.id == id) {
        return Memory { nodes: placed.nodes.clone(), policy: placed.policy };
    }
    let object = objects.iter().find(|object| object.id.as_deref() == Some(id));
    let own = object.map(Object::own_nodes).filter(|nodes| !nodes.is_empty());
    let policy = object.and_then(|object| object.get("policy")?.parse().ok());
    match own {
        Some(nodes) => Memory { nodes, policy: policy.unwrap_or(Policy::Bind) },
        None => Memory::near(machine),
    }
}

fn own(options: &[Opt]) -> Own {
    let mut own = Own::default();
    for opt in options {
        let fields = keyval::parse(&opt.value, Some("type"));
        let has = |key| keyval::get(&fields, key).is_some();
        match opt.name.as_str() {
            "machine" if has("hmat") => own.hmat = Some("-machine hmat="),
            "numa" if has("initiator") && keyval::get(&fields, "type") == Some("node") => {
                own.hmat = Some("-numa node,initiator=");
            }
            "numa" => match keyval::get(&fields, "type") {
                Some("hmat-lb") => own.hmat = Some("-numa hmat-lb"),
                Some("dist") => own.has_distances = true,
                _ => {}
            },
            _ => {}
        }
    }
    own
}

/// Distances of each pair of nodes, once: QEMU takes the other direction as equal.
fn distances(guests: &[Guest], machine: &Topology) -> Vec<OsString> {
    let mut words = Vec::new();
    for (index, from) in guests.iter().enumerate() {
        for to in &guests[index + 1..] {
            let value = from.memory.distance(&to.memory, machine);
            let text = format!("dist,src={},dst={},val={value}", from.id, to.id);
            words.extend(["-numa".into(), text.into()]);
        }
    }
    words
}

/// The CPU node with the lowest distance to `guest`; itself, if it has CPUs.
fn initiator(guest: &Guest, guests: &[Guest], machine: &Topology) -> u16 {
    if guest.has_cpus {
        return guest.id;
    }
    let with_cpus = guests.iter().filter(|other| other.has_cpus);
    let distance = |other: &&Guest| other.memory.distance(&guest.memory, machine);
    with_cpus.min_by_key(|other| (distance(other), other.id)).map_or(0, |other| other.id)
}

fn initiators(words: &mut [OsString], guests: &[Guest], machine: &Topology) {
    for guest in guests {
        if let Some(text) = words[guest.word].to_str() {
            let added = format!(",initiator={}", initiator(guest, guests, machine));
            // A comma may follow the last parameter.
            let end =
                keyval::parse(text, Some("type")).last().map_or(text.len(), |last| last.span.end);
            words[guest.word] = splice::apply(text, vec![Splice::insert(end, added)]).into();
        }
    }
}

/// Latency and bandwidth of each CPU node to each memory node.
fn attributes(guests: &[Guest], known: &Figures, machine: &Topology) -> Vec<OsString> {
    let from = guests.iter().filter(|guest| guest.has_cpus);
    let pairs = from.flat_map(|from| guests.iter().map(move |to| (from, to)));
    let all: Vec<_> = pairs
        .filter_map(|(from, to)| {
            Some((from.id, to.id, to.memory.figure(&from.memory, known, machine)?))
        })
        .collect();
    let bandwidths: Vec<_> = all.iter().map(|(_, _, figure)| figure.bandwidth).collect();
    let mut words = Vec::new();
    for ((from, to, figure), bandwidth) in all.iter().zip(figures::compressible(&bandwidths)) {
        let latency = figures::entry(figure.latency);
        let base =
            format!("hmat-lb,initiator={from},target={to},hierarchy=memory,data-type=access-");
        let texts = [
            format!("{base}latency,latency={latency}"),
            format!("{base}bandwidth,bandwidth={bandwidth}M"),
        ];
        words.extend(texts.into_iter().flat_map(|text| ["-numa".into(), text.into()]));
    }
    words
}
