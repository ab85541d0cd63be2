//! Replicated regions written as text, and the nodes of their copies.
//!
//! ```text
//! region  = [ nodes ] *( ";" option )
//! nodes   = a node set (see `spec`); none: all nodes that have CPUs and memory
//! option  = "home=" node       the node that is written first; default: the first of the nodes
//!         | "granule=" size    unit of copying, a power of two of 256 to 2m; 4k
//!         | "quiet=" time      time without writes before a granule is copied again ("100ms", "2s"); 100ms
//!         | "collapses=" ( number | "any" ) after this many collapses a granule is never copied again; 16
//! ```

use std::string::{String, ToString as _};
use std::vec::Vec;

use nearfar_topology::{CpuId, NodeExpr, NodeId, NodeSet, NodeSetError, Topology};

use crate::spec::size;

/// A parsed region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionSpec {
    /// Nodes with a copy; `None`: those with CPUs.
    pub nodes: Option<NodeExpr>,
    /// The node that is written first.
    pub home: Option<NodeId>,
    /// Unit of copying, in bytes.
    pub granule: usize,
    /// Time without writes before a granule is copied again, in milliseconds.
    pub quiet_ms: u64,
    /// Collapses after which a granule is never copied again.
    pub collapses: Option<u64>,
}

/// Reasons why a region is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionSpecError {
    /// The nodes are not a node set, or do not exist.
    #[error(transparent)]
    Nodes(#[from] NodeSetError),
    /// There is no such option.
    #[error(
        "`{found}` is no option of a replicated region; there are home=NODE, granule=SIZE, quiet=TIME and collapses=NUMBER"
    )]
    Option {
        /// The text given.
        found: String,
    },
    /// An option is given twice.
    #[error("`{found}`: the option is there twice")]
    Twice {
        /// The text given.
        found: String,
    },
    /// An option has an invalid value.
    #[error("`{found}`: write {allowed}")]
    Value {
        /// The text given.
        found: String,
        /// The allowed values.
        allowed: &'static str,
    },
    /// The home is none of the nodes.
    #[error("home={home}: the region's nodes are {nodes}; name one of them, or this one with them")]
    Home {
        /// The requested home.
        home: NodeId,
        /// The nodes.
        nodes: NodeSet,
    },
    /// No node has CPUs and memory.
    #[error(
        "no node of this machine has both CPUs and memory; name the nodes that are to have a copy"
    )]
    NoNodes,
}

impl Default for RegionSpec {
    fn default() -> Self {
        Self { nodes: None, home: None, granule: 4096, quiet_ms: 100, collapses: Some(16) }
    }
}

const GRANULE: &str = "granule=SIZE, a power of two of 256 to 2m";
const QUIET: &str = "quiet=TIME, as in 100ms or 2s, of at most a day";
const COLLAPSES: &str = "collapses=NUMBER, of 1 to 65535, or collapses=any";
const HOME: &str = "home=NODE, a node's number";
const DAY_MS: u64 = 86_400_000;

impl core::str::FromStr for RegionSpec {
    type Err = RegionSpecError;

    fn from_str(text: &str) -> Result<Self, RegionSpecError> {
        let mut parts = text.split(';').map(str::trim);
        let nodes = parts.next().filter(|nodes| !nodes.is_empty()).map(str::parse).transpose()?;
        let mut spec = Self { nodes, ..Self::default() };
        let mut seen = Vec::new();
        for part in parts {
            let found = || part.to_string();
            let wrong = |allowed| RegionSpecError::Value { found: found(), allowed };
            let (key, value) =
                part.split_once('=').ok_or_else(|| RegionSpecError::Option { found: found() })?;
            if seen.contains(&key) {
                return Err(RegionSpecError::Twice { found: found() });
            }
            seen.push(key);
            match key {
                "home" => {
                    let node = value.parse().ok().and_then(NodeId::new);
                    spec.home = Some(node.ok_or_else(|| wrong(HOME))?);
                }
                "granule" => spec.granule = granule(value).ok_or_else(|| wrong(GRANULE))?,
                "quiet" => spec.quiet_ms = milliseconds(value).ok_or_else(|| wrong(QUIET))?,
                "collapses" if value == "any" => spec.collapses = None,
                "collapses" => {
                    let number = value.parse().ok().filter(|number| (1..=65535).contains(number));
                    spec.collapses = Some(number.ok_or_else(|| wrong(COLLAPSES))?);
                }
                _ => return Err(RegionSpecError::Option { found: found() }),
            }
        }
        Ok(spec)
    }
}

fn granule(text: &str) -> Option<usize> {
    let bytes = usize::try_from(size(text).ok()?.0).ok()?;
    (bytes.is_power_of_two() && (256..=2 << 20).contains(&bytes)).then_some(bytes)
}

fn milliseconds(text: &str) -> Option<u64> {
    let (number, unit) = text
        .strip_suffix("ms")
        .map(|number| (number, 1))
        .or(text.strip_suffix('s').map(|number| (number, 1000)))?;
    number.parse::<u64>().ok()?.checked_mul(unit).filter(|time| *time <= DAY_MS)
}

impl RegionSpec {
    /// The nodes of the copies, home first, on a machine as seen from `cpus`. If the text names no nodes, they are
    /// chosen from `allowed`.
    ///
    /// # Errors
    /// [`RegionSpecError`]: such nodes do not exist, or the home is none of them.
    pub fn on(
        &self,
        machine: &Topology,
        cpus: &[CpuId],
        allowed: Option<&NodeSet>,
    ) -> Result<Vec<NodeId>, RegionSpecError> {
        let nodes: NodeSet = match &self.nodes {
            Some(nodes) => nodes.resolve(machine, cpus)?,
            None => {
                let with_memory = machine.memory_nodes();
                let may = |node: &NodeId| {
                    with_memory.contains(*node) && allowed.is_none_or(|nodes| nodes.contains(*node))
                };
                machine.cpu_nodes().iter().filter(may).collect()
            }
        };
        let first = nodes.iter().next().ok_or(RegionSpecError::NoNodes)?;
        let home = self.home.unwrap_or(first);
        if !nodes.contains(home) {
            return Err(RegionSpecError::Home { home, nodes });
        }
        Ok([home].into_iter().chain(nodes.iter().filter(|node| *node != home)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_topology::testkit;
    use proptest::prelude::*;

    fn spec(text: &str) -> Result<RegionSpec, RegionSpecError> {
        text.parse()
    }

    #[test]
    fn an_empty_specification_copies_to_each_node_with_cpus() {
        assert_eq!(spec("").unwrap(), RegionSpec::default());
        let machine = testkit::dram_and_cxl();
        let on = |text: &str| spec(text).unwrap().on(&machine, &[], None).unwrap();
        assert_eq!(on(""), [NodeId(0)]);
        // Far memory gets a copy only if it is named.
        assert_eq!(on("all"), [NodeId(0), NodeId(1)]);
        assert_eq!(on("all;home=1"), [NodeId(1), NodeId(0)]);
    }

    #[test]
    fn options_follow_the_nodes() {
        let all = spec("0-3; home=2;granule=64k; quiet=2s;collapses=any").unwrap();
        assert_eq!(all.nodes, Some("0-3".parse().unwrap()));
        assert_eq!((all.home, all.granule), (Some(NodeId(2)), 64 << 10));
        assert_eq!((all.quiet_ms, all.collapses), (2000, None));
        let some = spec(";quiet=0ms;collapses=3").unwrap();
        assert_eq!((some.nodes, some.quiet_ms, some.collapses), (None, 0, Some(3)));
    }

    #[test]
    fn invalid_values_are_named() {
        for (text, named) in [
            ("nowhere", "nowhere"),
            ("0;home=x", "home=NODE"),
            ("0;home=1024", "home=NODE"),
            ("0;granule=100", "power of two"),
            ("0;granule=128", "power of two"),
            ("0;granule=4m", "power of two"),
            ("0;quiet=5", "100ms or 2s"),
            ("0;quiet=-1s", "100ms or 2s"),
            ("0;quiet=90000s", "at most a day"),
            ("0;collapses=0", "1 to 65535"),
            ("0;collapses=65536", "1 to 65535"),
            ("0;colour=red", "`colour=red`"),
            ("0;quiet", "`quiet`"),
            ("0;", "``"),
            ("0;quiet=1s;quiet=1s", "twice"),
        ] {
            let said = spec(text).unwrap_err().to_string();
            assert!(said.contains(named), "{text}: {said}");
        }
    }

    #[test]
    fn nodes_that_are_not_there_are_refused() {
        let machine = testkit::dram_and_cxl();
        let refused =
            |text: &str| spec(text).unwrap().on(&machine, &[], None).unwrap_err().to_string();
        assert!(refused("7").contains('7'));
        assert!(refused("0;home=1").contains("home=1: the region's nodes are 0"));
        let none = NodeSet::new();
        let nowhere = spec("").unwrap().on(&machine, &[], Some(&none)).unwrap_err();
        assert_eq!(nowhere, RegionSpecError::NoNodes);
    }

    proptest! {
        #[test]
        fn any_text_is_understood_or_refused(text in "[0-9a-z;=,: -]{0,40}") {
            if let Ok(spec) = spec(&text) {
                prop_assert!(spec.granule.is_power_of_two() && spec.quiet_ms <= DAY_MS);
            }
        }
    }
}
