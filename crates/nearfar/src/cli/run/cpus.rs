//! CPUs for a program: `-N` and `-C` resolved against the machine.

use std::collections::BTreeSet;
use std::str::FromStr;

use nearfar_topology::{CpuId, CpuList, NodeExpr, NodeSet, Topology};

use nearfar_command::exit::{Exit, WithExit};

/// The value of `-C`: `all`, or numbers and ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CpuExpr {
    All,
    These(BTreeSet<CpuId>),
}

impl FromStr for CpuExpr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        /// More than any machine has.
        const MAX: u32 = 8191;
        if text == "all" {
            return Ok(Self::All);
        }
        let bad = || format!("`{text}` is not a set of CPUs; write CPUs as 0 or 0,2-3, or all");
        let mut cpus = BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| {
                let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
                digits.then(|| text.parse::<u32>().ok().filter(|cpu| *cpu <= MAX)).flatten()
            };
            let (first, last) = (number(first).ok_or_else(bad)?, number(last).ok_or_else(bad)?);
            if last < first {
                return Err(format!("`{part}` ends before it starts; write the smaller CPU first"));
            }
            cpus.extend((first..=last).map(CpuId));
        }
        Ok(Self::These(cpus))
    }
}

fn usage(message: String) -> anyhow::Error {
    WithExit { exit: Exit::Usage, error: anyhow::Error::msg(message) }.into()
}

/// The nodes with CPUs that `-N` names. A node given by number needs no memory.
pub(crate) fn cpu_nodes(named: &NodeExpr, machine: &Topology) -> anyhow::Result<NodeSet> {
    let have = machine.cpu_nodes();
    let named = &named.absolute(&have).map_err(|error| usage(format!("-N: {error}")))?;
    let text = named.to_string();
    let without = |node: &_| !have.contains(*node);
    let nodes = match NodeSet::parse_list(&text) {
        Some(list) => {
            if let Some(absent) = list.iter().find(|node| !machine.nodes.contains_key(node)) {
                let has = machine.inventory();
                return Err(usage(format!(
                    "-N {text}: no node {absent} here; this machine has {has}"
                )));
            }
            if let Some(node) = list.iter().find(without) {
                return Err(usage(format!(
                    "-N {text}: node {node} has no CPUs; nodes {have} have"
                )));
            }
            list
        }
        None if text == "all" => have.clone(),
        None => {
            let nodes = super::resolve("-N", named, machine, (&[], None))?;
            nodes.iter().filter(|node| have.contains(*node)).collect()
        }
    };
    if nodes.is_empty() {
        return Err(usage(format!("-N {text} names no node with CPUs; nodes {have} have")));
    }
    Ok(nodes)
}

/// The CPUs of these nodes.
pub(crate) fn cpus_of(nodes: &NodeSet, machine: &Topology) -> BTreeSet<CpuId> {
    let known = nodes.iter().filter_map(|id| machine.nodes.get(&id));
    known.flat_map(|node| node.cpus.iter().copied()).collect()
}

/// The CPUs to run on; `None` without either option, which leaves the affinity unchanged.
pub(super) fn resolve(
    nodes: Option<&NodeExpr>,
    cpus: Option<&CpuExpr>,
    machine: &Topology,
) -> anyhow::Result<Option<Vec<CpuId>>> {
    let all = cpus_of(&machine.cpu_nodes(), machine);
    let by_node = nodes.map(|named| cpu_nodes(named, machine)).transpose()?;
    let by_node = by_node.map(|nodes| cpus_of(&nodes, machine));
    let wanted = match (cpus, by_node) {
        (None, None) => return Ok(None),
        (None | Some(CpuExpr::All), Some(by_node)) => by_node,
        (Some(CpuExpr::All), None) => all,
        (Some(CpuExpr::These(these)), by_node) => {
            if let Some(absent) = these.difference(&all).next() {
                let have = CpuList(&all);
                return Err(usage(format!(
                    "-C {}: no CPU {absent} here; CPUs are {have}",
                    CpuList(these)
                )));
            }
            if let Some(outside) = by_node.iter().find_map(|nodes| these.difference(nodes).next()) {
                return Err(usage(format!(
                    "-C {}: CPU {outside} is not on the nodes that -N names; give one of the two",
                    CpuList(these)
                )));
            }
            these.clone()
        }
    };
    Ok(Some(wanted.into_iter().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_topology::testkit::{machine, node};

    fn sockets() -> Topology {
        machine([node(0).cpus(0..4), node(1).cpus(4..8), node(2), node(3).cpus(8..10).gib(0)])
    }

    fn resolved(nodes: Option<&str>, cpus: Option<&str>) -> Result<String, String> {
        let (nodes, cpus) = (nodes.map(|n| n.parse().unwrap()), cpus.map(|c| c.parse().unwrap()));
        let found = resolve(nodes.as_ref(), cpus.as_ref(), &sockets());
        found
            .map(|cpus| CpuList(&cpus.unwrap_or_default()).to_string())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn nodes_and_cpus_resolve_to_cpus() {
        for (nodes, cpus, expected) in [
            (Some("1"), None, "4-7"),
            (Some("0,3"), None, "0-3,8-9"),
            (Some("all"), None, "0-9"),
            (None, Some("all"), "0-9"),
            (None, Some("0,2-3,9"), "0,2-3,9"),
            (Some("1"), Some("5"), "5"),
            (Some("1"), Some("all"), "4-7"),
            (None, None, ""),
        ] {
            assert_eq!(resolved(nodes, cpus).as_deref(), Ok(expected), "{nodes:?} {cpus:?}");
        }
    }

    #[test]
    fn refusals_name_the_option_and_the_available_nodes_and_cpus() {
        for (nodes, cpus, part) in [
            (Some("7"), None, "-N 7: no node 7 here"),
            (Some("2"), None, "node 2 has no CPUs; nodes 0-1,3 have"),
            (Some("cxl"), None, "-N: node set `cxl`"),
            (None, Some("12"), "no CPU 12 here; CPUs are 0-9"),
            (Some("0"), Some("3-4"), "CPU 4 is not on the nodes that -N names"),
        ] {
            let error = resolved(nodes, cpus).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn invalid_sets_of_cpus_are_refused() {
        for text in ["", "a", "1-", "-1", "0x1", "3-1", "1,,2", "99999", "+1", "near"] {
            let error = text.parse::<CpuExpr>().unwrap_err();
            assert!(error.contains("CPU"), "{text}: {error}");
        }
    }
}
