//! libvirt's domain XML with memory kinds for its NUMA cells.
//!
//! A cell gets `numatune/memnode`, and the guest distances (`cell/distances`) and HMAT (`numa/interconnects`) from the host's
//! figures, unless the document has these. The changes are made by byte ranges of the text, so everything else stays as it
//! is, comments and blanks included. libvirt knows no weighted interleave and has no element for a type, which is why
//! the wish comes from outside the document.

use std::str::FromStr;

use nearfar_topology::{Bytes, NodeSet};
use roxmltree::{Document, Node};

use crate::capacity::{self, Demand};
use crate::error::VmError;
use crate::figures::{self, Figures, Memory};
use crate::policy::Policy;
use crate::splice::{self, Splice};
use crate::wish::{self, Host};

mod layout;

use layout::Layout;

/// A wish for a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The cell's id.
    pub id: u32,
    /// The type of host memory.
    pub kind: String,
    /// The policy over its nodes.
    pub policy: Policy,
}

impl FromStr for Cell {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const FORM: &str = "write CELL=TYPE or CELL=TYPE,POLICY, such as 1=cxl or 1=2-3,interleave";
        let (id, rest) = text.split_once('=').ok_or(FORM)?;
        let id = id.parse().map_err(|_| FORM)?;
        let (kind, policy) = match rest.rsplit_once(',').map(|(kind, last)| (kind, last.parse())) {
            Some((kind, Ok(policy))) => (kind, policy),
            _ => (rest, Policy::Bind),
        };
        if kind.is_empty() {
            return Err(FORM.into());
        }
        Ok(Self { id, kind: kind.to_owned(), policy })
    }
}

/// The changed document, and messages for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// The document.
    pub text: String,
    /// Messages.
    pub notes: Vec<String>,
}

/// A cell of the document.
#[derive(Debug)]
struct Guest<'a, 'x> {
    id: u32,
    node: Node<'a, 'x>,
    memory: Memory,
    is_wished: bool,
    /// Whether the document has nodes for it.
    is_tuned: bool,
}

/// The domain `xml` with the wishes for its cells fulfilled on `host`.
///
/// # Errors
/// The document can't be parsed (with line and column), a cell is absent, or a wish can't be expressed or fulfilled.
pub fn patch(
    xml: &str,
    cells: &[Cell],
    host: &Host<'_>,
    overcommit: bool,
) -> Result<Domain, VmError> {
    let unreadable = |problem: String| VmError::Unreadable { place: "domain XML".into(), problem };
    let document = Document::parse(xml).map_err(|error| unreadable(error.to_string()))?;
    let domain = document.root_element();
    if domain.tag_name().name() != "domain" {
        let found = domain.tag_name().name();
        return Err(unreadable(format!("the document is <{found}>, not <domain>")));
    }
    // Cells, memnode and interconnects are those of QEMU.
    match domain.attribute("type") {
        None | Some("kvm" | "qemu" | "hvf") => {}
        Some(other) => {
            return Err(unreadable(format!(
                "the domain is of type {other}; memory by kind is for QEMU's domains (type kvm or qemu)"
            )));
        }
    }
    let tune = child(domain, "numatune");
    let numa = child(domain, "cpu").and_then(|cpu| child(cpu, "numa"));
    let numa = numa.ok_or_else(|| unreadable("the domain has no cells (cpu/numa/cell)".into()))?;
    let guests = guests((numa, tune), cells, host)?;
    if !overcommit && guests.iter().any(|guest| guest.is_wished) {
        capacity::check(&demands(xml, domain, &guests)?, &host.room, capacity::FREE)?;
    }
    let mut notes = Vec::new();
    let mut changes = memnodes(xml, (domain, tune), (&guests, cells))?;
    if guests.iter().any(|guest| child(guest.node, "distances").is_some()) {
        notes.push("the document has distances; they are left as they are".into());
    } else if guests.len() > 1 {
        changes.extend(distances(xml, &guests, host));
    }
    if guests.len() > 1 {
        changes.extend(interconnects(xml, (numa, &guests), host, &mut notes));
    }
    Ok(Domain { text: splice::apply(xml, changes), notes })
}

fn child<'a, 'x>(of: Node<'a, 'x>, name: &str) -> Option<Node<'a, 'x>> {
    of.children().find(|node| node.has_tag_name(name))
}

fn children<'a, 'x>(of: Node<'a, 'x>, name: &'static str) -> impl Iterator<Item = Node<'a, 'x>> {
    of.children().filter(move |node| node.has_tag_name(name))
}

/// The cells with their host memory: resolved, as tuned by the document, or near.
fn guests<'a, 'x>(
    (numa, tune): (Node<'a, 'x>, Option<Node<'a, 'x>>),
    wishes: &[Cell],
    host: &Host<'_>,
) -> Result<Vec<Guest<'a, 'x>>, VmError> {
    let mut guests = Vec::new();
    for (index, node) in children(numa, "cell").enumerate() {
        let counted = u32::try_from(index).unwrap_or(u32::MAX);
        let id = node.attribute("id").and_then(|id| id.parse().ok()).unwrap_or(counted);
        let wish = wishes.iter().find(|wish| wish.id == id);
        let tuned = tuned(tune, id);
        let (is_wished, is_tuned) = (wish.is_some(), tuned.is_some());
        let memory = match wish {
            Some(wish) => resolve(wish, host)?,
            None => tuned.unwrap_or_else(|| Memory::near(host.machine)),
        };
        guests.push(Guest { id, node, memory, is_wished, is_tuned });
    }
    for (index, wish) in wishes.iter().enumerate() {
        let place = format!("--cell {}", wish.id);
        if wishes[..index].iter().any(|other| other.id == wish.id) {
            return Err(VmError::DuplicateId { place, id: wish.id.to_string() });
        }
        if !guests.iter().any(|guest| guest.id == wish.id) {
            let ids: Vec<_> = guests.iter().map(|guest| guest.id.to_string()).collect();
            let problem = format!("the domain has no such cell; its cells are {}", ids.join(", "));
            return Err(VmError::Unreadable { place, problem });
        }
    }
    Ok(guests)
}

fn resolve(wish: &Cell, host: &Host<'_>) -> Result<Memory, VmError> {
    let place = format!("--cell {}", wish.id);
    if wish.policy == Policy::WeightedInterleave {
        return Err(VmError::Value {
            place,
            key: "policy".into(),
            text: wish.policy.to_string(),
            problem: "libvirt has no such mode, and clears a policy that QEMU would inherit; use interleave, or back the \
                guest's memory with files (memoryBacking/source type='file', memory_backing_dir in qemu.conf) on a tmpfs \
                mounted with mpol='weighted interleave:NODES'"
                .into(),
        });
    }
    Ok(Memory { nodes: wish::nodes(&place, &wish.kind, host.machine)?, policy: wish.policy })
}

/// The memory that the document binds the cell to.
fn tuned(tune: Option<Node<'_, '_>>, id: u32) -> Option<Memory> {
    let memnode = memnode(tune?, id)?;
    let nodes = NodeSet::parse_list(memnode.attribute("nodeset")?)?;
    let policy = match memnode.attribute("mode") {
        Some("interleave") => Policy::Interleave,
        Some("preferred") => Policy::Preferred,
        _ => Policy::Bind,
    };
    (!nodes.is_empty()).then_some(Memory { nodes, policy })
}

fn memnode<'a, 'x>(tune: Node<'a, 'x>, id: u32) -> Option<Node<'a, 'x>> {
    let id = id.to_string();
    children(tune, "memnode").find(|node| node.attribute("cellid") == Some(id.as_str()))
}

/// Memory that is to be bound, by wish or by the document. Huge pages come from a pool of their own, which libvirt checks.
fn demands(
    xml: &str,
    domain: Node<'_, '_>,
    guests: &[Guest<'_, '_>],
) -> Result<Vec<Demand>, VmError> {
    let mut demands = Vec::new();
    for guest in guests {
        let is_placed = guest.is_wished || guest.is_tuned;
        if guest.memory.policy != Policy::Bind || !is_placed || has_huge_pages(domain, guest.id) {
            continue;
        }
        let size = size(guest.node).ok_or_else(|| VmError::Unreadable {
            place: format!(
                "domain XML: {}",
                xml[guest.node.range()].lines().next().unwrap_or_default()
            ),
            problem: "no valid memory and unit".into(),
        })?;
        let nodes = guest.memory.nodes.clone();
        demands.push(Demand { id: format!("cell {}", guest.id), size, nodes });
    }
    Ok(demands)
}

fn has_huge_pages(domain: Node<'_, '_>, cell: u32) -> bool {
    let backing = child(domain, "memoryBacking").and_then(|backing| child(backing, "hugepages"));
    backing.is_some_and(|backing| {
        let mut pages = children(backing, "page").peekable();
        let of_cell = |page: Node<'_, '_>| {
            let cells = page.attribute("nodeset").map(NodeSet::parse_list);
            cells.is_none_or(|cells| {
                let cell = u16::try_from(cell).map(nearfar_topology::NodeId);
                cells.zip(cell.ok()).is_some_and(|(cells, cell)| cells.contains(cell))
            })
        };
        pages.peek().is_none() || pages.any(of_cell)
    })
}

/// The size of a cell, in libvirt's units.
fn size(cell: Node<'_, '_>) -> Option<Bytes> {
    let unit = match cell.attribute("unit").unwrap_or("KiB").to_ascii_lowercase().as_str() {
        "b" | "byte" | "bytes" => 1,
        "kb" => 1_000,
        "k" | "kib" => 1 << 10,
        "mb" => 1_000_000,
        "m" | "mib" => 1 << 20,
        "gb" => 1_000_000_000,
        "g" | "gib" => 1 << 30,
        "tb" => 1_000_000_000_000,
        "t" | "tib" => 1 << 40,
        "pb" => 1_000_000_000_000_000,
        "p" | "pib" => 1 << 50,
        _ => return None,
    };
    cell.attribute("memory")?.trim().parse::<u64>().ok()?.checked_mul(unit).map(Bytes)
}

fn mode(policy: Policy) -> &'static str {
    match policy {
        Policy::Bind => "strict",
        Policy::Preferred => "preferred",
        Policy::Interleave | Policy::WeightedInterleave => "interleave",
    }
}

/// Sets or adds `numatune/memnode` for each wish.
fn memnodes(
    xml: &str,
    (domain, tune): (Node<'_, '_>, Option<Node<'_, '_>>),
    (guests, wishes): (&[Guest<'_, '_>], &[Cell]),
) -> Result<Vec<Splice>, VmError> {
    let automatic = tune.and_then(|tune| child(tune, "memory")?.attribute("placement"));
    if automatic == Some("auto") && !wishes.is_empty() {
        return Err(VmError::Conflict {
            place: "domain XML".into(),
            ours: "--cell".into(),
            theirs: "numatune/memory placement='auto'".into(),
            remedy: "remove the placement".into(),
        });
    }
    let mut changes = Vec::new();
    let mut added = Vec::new();
    for guest in guests.iter().filter(|guest| guest.is_wished) {
        let element = format!(
            "<memnode cellid='{}' mode='{}' nodeset='{}'/>",
            guest.id,
            mode(guest.memory.policy),
            guest.memory.nodes
        );
        match tune.and_then(|tune| memnode(tune, guest.id)) {
            Some(old) => changes.push(Splice::new(old.range(), element)),
            None => added.push(element),
        }
    }
    if added.is_empty() {
        return Ok(changes);
    }
    match tune {
        Some(tune) => changes.push(Layout::of(xml, tune).append(xml, tune, &added)),
        None => {
            let before = child(domain, "cpu").unwrap_or(domain);
            let layout = Layout::of(xml, before);
            let text = layout.element("<numatune>", &added, "</numatune>");
            changes.push(Splice::insert(before.range().start, text + &layout.newline));
        }
    }
    Ok(changes)
}

fn distances(xml: &str, guests: &[Guest<'_, '_>], host: &Host<'_>) -> Vec<Splice> {
    let change = |guest: &Guest<'_, '_>| {
        let sibling = |other: &Guest<'_, '_>| {
            let is_own = other.id == guest.id;
            let value =
                if is_own { 10 } else { guest.memory.distance(&other.memory, host.machine) };
            format!("<sibling id='{}' value='{value}'/>", other.id)
        };
        let siblings: Vec<_> = guests.iter().map(sibling).collect();
        let layout = Layout::of(xml, guest.node);
        let element = layout.inner().element("<distances>", &siblings, "</distances>");
        layout.append(xml, guest.node, &[element])
    };
    guests.iter().map(change).collect()
}

/// Adds the guest's HMAT, which libvirt calls interconnects.
fn interconnects(
    xml: &str,
    (numa, guests): (Node<'_, '_>, &[Guest<'_, '_>]),
    host: &Host<'_>,
    notes: &mut Vec<String>,
) -> Option<Splice> {
    if child(numa, "interconnects").is_some() {
        notes.push("the document has interconnects; they are left as they are".into());
        return None;
    }
    let needed = guests.iter().flat_map(|guest| guest.memory.nodes.iter()).collect();
    let known = host.covering(&needed, notes)?;
    if !guests.iter().any(|guest| guest.node.has_attribute("cpus")) {
        notes.push("the guest is given no HMAT: no cell has CPUs".into());
        return None;
    }
    notes.push(format!("the guest's HMAT has the host's figures, from {}", known.source));
    let elements = attributes(guests, known, host);
    let layout = Layout::of(xml, numa);
    let element = layout.inner().element("<interconnects>", &elements, "</interconnects>");
    Some(layout.append(xml, numa, &[element]))
}

/// Latency in nanoseconds and bandwidth in KiB of each cell with CPUs to each cell.
fn attributes(guests: &[Guest<'_, '_>], known: &Figures, host: &Host<'_>) -> Vec<String> {
    let from = guests.iter().filter(|guest| guest.node.has_attribute("cpus"));
    let pairs = from.flat_map(|from| guests.iter().map(move |to| (from, to)));
    let all: Vec<_> = pairs
        .filter_map(|(from, to)| {
            let figure = to.memory.figure(&from.memory, known, host.machine)?;
            Some((format!("initiator='{}' target='{}' type='access'", from.id, to.id), figure))
        })
        .collect();
    let bandwidths: Vec<_> = all.iter().map(|(_, figure)| figure.bandwidth).collect();
    let latency = all.iter().map(|(pair, figure)| {
        format!("<latency {pair} value='{}'/>", figures::entry(figure.latency))
    });
    let bandwidth = all.iter().zip(figures::compressible(&bandwidths)).map(|((pair, _), value)| {
        format!("<bandwidth {pair} value='{}' unit='KiB'/>", value.saturating_mul(1024))
    });
    latency.chain(bandwidth).collect()
}

/// Fuzz target: a document that is patched is still XML.
#[cfg(any(fuzzing, test))]
pub fn fuzz(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut machine = nearfar_topology::Topology::default();
    let node = nearfar_topology::Node { size: Bytes(1 << 40), ..Default::default() };
    machine.nodes.insert(nearfar_topology::NodeId(0), node);
    let host = Host {
        machine: &machine,
        room: Default::default(),
        huge: Default::default(),
        figures: None,
    };
    let cell = Cell { id: 0, kind: "0".into(), policy: Policy::Preferred };
    if let Ok(domain) = patch(&text, &[cell], &host, true) {
        assert!(Document::parse(&domain.text).is_ok(), "{}", domain.text);
    }
}

#[cfg(test)]
mod tests;
