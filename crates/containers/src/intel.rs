//! The annotation of the memory-policy plugin of containers/nri-plugins, so that pods written for it run unchanged.
//!
//! ```text
//! policy.memory-policy.nri.io: |
//!   mode: MPOL_INTERLEAVE
//!   nodes: max-dist:19
//!   flags: [MPOL_F_STATIC_NODES]
//! ```
//!
//! The value is YAML; here these three keys are understood, in block or flow style, with flags as a list of either style.
//! Nodes are `all`, `allowed-mems`, `cpu-packages`, `cpu-nodes`, `max-dist:N` or numbers. Not here: other YAML.

use nearfar_kernel::mempolicy::Flags;
use nearfar_topology::{CpuId, NodeId, NodeSet};

use crate::policy::{FLAG_NAMES, Mode, flags_named};

/// A parsed annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntelPolicy {
    /// The mode.
    pub mode: Mode,
    /// The nodes.
    pub nodes: Nodes,
    /// The flags.
    pub flags: Flags,
}

/// The nodes of an annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nodes {
    /// None given, for the modes without.
    None,
    /// All nodes with memory.
    All,
    /// Those of the container's cpuset.
    AllowedMems,
    /// Those in the packages of the container's CPUs; a node without CPUs belongs to its nearest ones.
    CpuPackages,
    /// Those with CPUs of the container.
    CpuNodes,
    /// Those at most this far (SLIT) from the container's CPUs.
    MaxDistance(u32),
    /// These.
    List(NodeSet),
}

/// Reasons why an annotation is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IntelError {
    /// A line is not one of the three keys.
    #[error("`{0}` is not understood; write the keys mode, nodes and flags, each once")]
    Line(String),
    /// There is no mode.
    #[error("it has no mode; write one of {modes}", modes = modes())]
    NoMode,
    /// The mode is unknown.
    #[error("mode `{0}` is unknown; write one of {modes}", modes = modes())]
    Mode(String),
    /// The nodes are unknown.
    #[error(
        "nodes `{0}` are unknown; write all, allowed-mems, cpu-packages, cpu-nodes, max-dist:N or numbers as 0,2-3"
    )]
    Nodes(String),
    /// The mode needs nodes.
    #[error("mode {0} needs nodes")]
    NoNodes(&'static str),
    /// A flag is unknown.
    #[error("flag `{0}` is unknown; there are {flags}", flags = FLAG_NAMES.join(", "))]
    Flag(String),
    /// Nodes can't be both static and relative.
    #[error("nodes can't be static and relative at once; remove one of these flags")]
    StaticAndRelative,
}

fn modes() -> String {
    Mode::ALL.map(Mode::name).join(", ")
}

impl std::str::FromStr for IntelPolicy {
    type Err = IntelError;

    fn from_str(text: &str) -> Result<Self, IntelError> {
        let Keys { mode, nodes, flags } = keys(text)?;
        let mode = mode.ok_or(IntelError::NoMode)?;
        let mode = Mode::named(&mode).ok_or(IntelError::Mode(mode))?;
        let nodes = nodes.filter(|nodes| !nodes.is_empty());
        let nodes = nodes.map_or(Ok(Nodes::None), |nodes| parse_nodes(&nodes))?;
        if nodes == Nodes::None && mode.has_nodes() {
            return Err(IntelError::NoNodes(mode.name()));
        }
        let flags = flags.unwrap_or_default();
        let flags = flags_named(flags.iter().map(String::as_str))
            .map_err(|unknown| IntelError::Flag(unknown.into()))?;
        if flags.static_nodes && flags.relative_nodes {
            return Err(IntelError::StaticAndRelative);
        }
        Ok(Self { mode, nodes, flags })
    }
}

#[derive(Default)]
struct Keys {
    mode: Option<String>,
    nodes: Option<String>,
    flags: Option<Vec<String>>,
}

/// The three keys of a block, or of a flow mapping in braces.
fn keys(text: &str) -> Result<Keys, IntelError> {
    let trimmed = text.trim();
    let flow = trimmed.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
    let entries: Vec<String> = match flow {
        Some(inside) => split_flow(inside),
        None => text.lines().map(without_comment).collect(),
    };
    let mut keys = Keys::default();
    let mut in_flags = false;
    for entry in entries.iter().map(|entry| entry.trim()) {
        let wrong = || IntelError::Line(entry.to_string());
        if entry.is_empty() || matches!(entry, "---" | "...") {
            continue;
        }
        if let Some(item) = entry.strip_prefix("- ").filter(|_| in_flags) {
            keys.flags.get_or_insert_default().push(unquoted(item));
            continue;
        }
        let (key, value) = entry.split_once(':').ok_or_else(wrong)?;
        let value = value.trim();
        let twice = match unquoted(key).as_str() {
            "mode" => keys.mode.replace(unquoted(value)).is_some(),
            "nodes" => keys.nodes.replace(unquoted(value)).is_some(),
            "flags" => keys.flags.replace(list(value).ok_or_else(wrong)?).is_some(),
            _ => return Err(wrong()),
        };
        in_flags = unquoted(key) == "flags" && value.is_empty();
        if twice {
            return Err(wrong());
        }
    }
    Ok(keys)
}

/// Entries between commas outside brackets and quotes.
fn split_flow(text: &str) -> Vec<String> {
    let (mut entries, mut depth, mut quote) = (vec![String::new()], 0_i32, None);
    for c in text.chars() {
        match (c, quote) {
            ('"' | '\'', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            ('[', None) => depth += 1,
            (']', None) => depth -= 1,
            _ => {}
        }
        match entries.last_mut() {
            Some(entry) if !(c == ',' && depth == 0 && quote.is_none()) => entry.push(c),
            _ => entries.push(String::new()),
        }
    }
    entries
}

fn without_comment(line: &str) -> String {
    let start = if line.trim_start().starts_with('#') { Some(0) } else { line.find(" #") };
    start.map_or(line, |at| &line[..at]).to_string()
}

fn unquoted(text: &str) -> String {
    let text = text.trim();
    let inside = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
    inside('"').or_else(|| inside('\'')).unwrap_or(text).to_string()
}

/// A flow list, or nothing (null).
fn list(text: &str) -> Option<Vec<String>> {
    if matches!(text, "" | "null" | "~") {
        return Some(Vec::new());
    }
    let inside = text.strip_prefix('[')?.strip_suffix(']')?;
    Some(inside.split(',').map(unquoted).filter(|item| !item.is_empty()).collect())
}

fn parse_nodes(text: &str) -> Result<Nodes, IntelError> {
    let wrong = || IntelError::Nodes(text.to_string());
    Ok(match text {
        "all" => Nodes::All,
        "allowed-mems" => Nodes::AllowedMems,
        "cpu-packages" => Nodes::CpuPackages,
        "cpu-nodes" => Nodes::CpuNodes,
        _ => match text.strip_prefix("max-dist:") {
            Some(distance) => Nodes::MaxDistance(distance.parse().map_err(|_| wrong())?),
            None => {
                let list = NodeSet::parse_list(text).filter(|list| !list.is_empty());
                Nodes::List(list.ok_or_else(wrong)?)
            }
        },
    })
}

/// The container's place on a machine, as far as node words refer to it.
pub(crate) struct Around<'a> {
    pub(crate) machine: &'a nearfar_topology::Topology,
    pub(crate) mems: &'a NodeSet,
    pub(crate) cpus: &'a [CpuId],
    pub(crate) packages: &'a std::collections::BTreeMap<CpuId, u32>,
}

impl Nodes {
    /// The nodes with memory that it names.
    pub(crate) fn on(&self, around: &Around<'_>) -> NodeSet {
        let machine = around.machine;
        let with_memory = machine.memory_nodes();
        let has = |id: &NodeId, cpus: &[CpuId]| {
            let own = machine.nodes.get(id).map(|node| node.cpus.as_slice()).unwrap_or_default();
            own.iter().any(|cpu| cpus.is_empty() || cpus.contains(cpu))
        };
        let homes: NodeSet =
            machine.nodes.keys().filter(|id| has(id, around.cpus)).copied().collect();
        let distance = |from, to| machine.distance(from, to);
        match self {
            Self::None => NodeSet::new(),
            Self::All => with_memory,
            Self::AllowedMems => around.mems.clone(),
            Self::CpuNodes => homes.iter().filter(|id| with_memory.contains(*id)).collect(),
            Self::MaxDistance(most) => {
                let is_near = |to: &NodeId| {
                    homes.iter().any(|from| distance(from, *to).is_some_and(|far| far <= *most))
                };
                with_memory.iter().filter(is_near).collect()
            }
            Self::CpuPackages => {
                let package = |cpu: &CpuId| around.packages.get(cpu);
                let of_node = |id: NodeId| machine.nodes[&id].cpus.first().and_then(package);
                let ours: Vec<_> = homes.iter().map(of_node).collect();
                let all = machine.cpu_nodes();
                let nearest = |id: NodeId| {
                    if all.contains(id) {
                        return vec![id];
                    }
                    let least = all.iter().filter_map(|from| distance(from, id)).min();
                    all.iter().filter(|from| distance(*from, id) == least).collect()
                };
                let belongs =
                    |id: &NodeId| nearest(*id).iter().any(|home| ours.contains(&of_node(*home)));
                with_memory.iter().filter(belongs).collect()
            }
            Self::List(list) => list.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_topology::testkit::{machine, node};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn parsed(text: &str) -> Result<IntelPolicy, IntelError> {
        text.parse()
    }

    #[test]
    fn block_and_flow_style_mean_the_same() {
        let block = parsed(
            "mode: MPOL_INTERLEAVE\nnodes: max-dist:19 # near\nflags: [MPOL_F_STATIC_NODES]\n",
        );
        let list =
            parsed("mode: MPOL_INTERLEAVE\nnodes: max-dist:19\nflags:\n- MPOL_F_STATIC_NODES");
        let flow = parsed(
            "{\"mode\": \"MPOL_INTERLEAVE\", nodes: 'max-dist:19', flags: [\"MPOL_F_STATIC_NODES\"]}",
        );
        let block = block.unwrap();
        assert_eq!(block.nodes, Nodes::MaxDistance(19));
        assert!(block.flags.static_nodes);
        assert_eq!((Ok(&block), Ok(&block)), (list.as_ref(), flow.as_ref()));
        assert_eq!(parsed("mode: MPOL_BIND\nnodes: 0,2-3").unwrap().nodes, {
            Nodes::List(NodeSet::parse_list("0,2-3").unwrap())
        });
        assert_eq!(parsed("mode: MPOL_LOCAL").unwrap().nodes, Nodes::None);
    }

    #[test]
    fn refusals_name_the_part() {
        for (text, part) in [
            ("", "no mode"),
            ("mode: BIND", "`BIND`"),
            ("mode: MPOL_BIND", "needs nodes"),
            ("mode: MPOL_BIND\nnodes: near", "`near`"),
            ("mode: MPOL_BIND\nnodes: max-dist:x", "`max-dist:x`"),
            ("mode: MPOL_BIND\nnodes: 0\nflags: [X]", "`X`"),
            ("mode: MPOL_BIND\nnodes: 0\ncolour: red", "`colour: red`"),
            ("mode: MPOL_BIND\nmode: MPOL_LOCAL", "each once"),
            (
                "mode: MPOL_BIND\nnodes: 0\nflags: [MPOL_F_STATIC_NODES, MPOL_F_RELATIVE_NODES]",
                "remove one",
            ),
        ] {
            let said = parsed(text).unwrap_err().to_string();
            assert!(said.contains(part), "{text}: {said}");
        }
    }

    #[test]
    fn node_keywords_resolve_relative_to_the_containers_cpus() {
        let mut machine = machine([node(0).cpus(0..2), node(1).cpus(2..4), node(2), node(3)]);
        for (from, to, distance) in [
            (0, 0, 10),
            (0, 1, 21),
            (0, 2, 17),
            (0, 3, 28),
            (1, 0, 21),
            (1, 1, 10),
            (1, 2, 28),
            (1, 3, 17),
        ] {
            machine.distances.entry(NodeId(from)).or_default().insert(NodeId(to), distance);
        }
        let packages: BTreeMap<_, _> = (0..4).map(|cpu| (CpuId(cpu), cpu / 2)).collect();
        let mems = NodeSet::parse_list("0,2").unwrap();
        let cpus = [CpuId(3)];
        let around = Around { machine: &machine, mems: &mems, cpus: &cpus, packages: &packages };
        for (words, nodes) in [
            ("all", "0-3"),
            ("allowed-mems", "0,2"),
            ("cpu-nodes", "1"),
            ("cpu-packages", "1,3"),
            ("max-dist:17", "1,3"),
            ("max-dist:21", "0-1,3"),
            ("5", "5"),
        ] {
            assert_eq!(parse_nodes(words).unwrap().on(&around).to_string(), nodes, "{words}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_understood_or_refused(text in "[modenslag:{}\\[\\], \n\"'#0-9MPOL_BIND-]{0,60}") {
            let _ = parsed(&text);
        }
    }
}
