//! Memory kinds written as text, and their resolution on a machine.
//!
//! ```text
//! kind    = place *( ";" option )
//! place   = "default" | nodes | policy ":" nodes | "weighted:" node "=" weight *( "," node "=" weight )
//!         | "capacity" | "latency" | "bandwidth"
//! policy  = "bind" | "prefer" | "interleave" | "weighted"
//! nodes   = a node set: 0,2-3, all, near, far, dram, cxl, hbm, pmem, tier:N
//! option  = "limit=" size | "spill=" kind without options | "huge=" ( "yes" | "no" )
//! ```
//!
//! Nodes without a policy are bound to. `weighted:` with nodes only uses the machine's weights; with weights they are
//! the kind's own. `capacity`, `latency` and `bandwidth` are the nodes with the most memory, the lowest read latency
//! and the highest read bandwidth that firmware reports; if it reports none, that is an error.

use std::collections::BTreeMap;
use std::string::{String, ToString as _};
use std::vec::Vec;

use nearfar_topology::{Bytes, CpuId, Node, NodeExpr, NodeId, NodeSet, NodeSetError, Topology};

/// A parsed kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The placement of its memory.
    pub place: Place,
    /// The most that is set aside for it.
    pub limit: Option<Bytes>,
    /// The placement used beyond the limit.
    pub spill: Option<Place>,
    /// Transparent huge pages: requested, refused, or the system's default.
    pub huge: Option<bool>,
}

/// A placement of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// By the process's policy.
    Default,
    /// On these nodes only.
    Bind(NodeExpr),
    /// On these nodes while they have room.
    Prefer(NodeExpr),
    /// Interleaved over these nodes.
    Interleave(NodeExpr),
    /// Interleaved over these nodes by the machine's weights.
    Weighted(NodeExpr),
    /// Interleaved over these nodes by weights of its own.
    Weights(BTreeMap<NodeId, u8>),
    /// On the nodes with the best value of a property.
    Best(Quality),
}

/// The property for which the best nodes are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quality {
    /// The most memory.
    Capacity,
    /// The lowest read latency.
    Latency,
    /// The highest read bandwidth.
    Bandwidth,
}

/// A placement resolved on a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placed {
    /// By the process's policy.
    Default,
    /// On these nodes only.
    Bind(NodeSet),
    /// On these nodes while they have room.
    Prefer(NodeSet),
    /// Interleaved over these nodes.
    Interleave(NodeSet),
    /// Interleaved over these nodes by the machine's weights.
    Weighted(NodeSet),
    /// Interleaved over these nodes by weights of its own.
    Weights(BTreeMap<NodeId, u8>),
}

/// Reasons why a kind is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The text is neither a placement nor an option.
    #[error(
        "`{found}` is not a memory kind; write default, a node set (near, far, cxl, 0,2-3), bind:, prefer:, interleave: or \
         weighted: with one, weighted:0=3,1=1, capacity, latency or bandwidth"
    )]
    Place {
        /// The text given.
        found: String,
    },
    /// The nodes are not a node set, or do not exist.
    #[error(transparent)]
    Nodes(#[from] NodeSetError),
    /// A weight is invalid.
    #[error(
        "`{found}` is not a node with a weight; write 0=3,1=1 with weights of 1 to 255, each node once"
    )]
    Weight {
        /// The text given.
        found: String,
    },
    /// There is no such option.
    #[error(
        "`{found}` is no option of a memory kind; there are limit=SIZE, spill=KIND, huge=yes and huge=no"
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
    /// A size is invalid.
    #[error("`{found}` is not a size; write a number with a unit: 512k, 64m, 4g, 1t")]
    Size {
        /// The text given.
        found: String,
    },
    /// The limit is nothing at all.
    #[error("limit=0 allows no memory at all; name a size, or leave limit= out for no limit")]
    NoRoom,
    /// Firmware does not report the property.
    #[error(
        "{quality}: this machine's firmware states none for its nodes (no HMAT); name the nodes instead"
    )]
    Unstated {
        /// The requested property.
        quality: &'static str,
    },
}

impl core::str::FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let mut parts = text.split(';').map(str::trim);
        let place = parts.next().unwrap_or_default().parse()?;
        let mut spec = Self { place, limit: None, spill: None, huge: None };
        for part in parts {
            let found = || part.to_string();
            let (key, value) = part.split_once('=').ok_or(SpecError::Option { found: found() })?;
            let twice = match key {
                "limit" => match size(value)? {
                    Bytes(0) => return Err(SpecError::NoRoom),
                    limit => spec.limit.replace(limit).is_some(),
                },
                "spill" => spec.spill.replace(value.parse()?).is_some(),
                "huge" => {
                    let no = || SpecError::Option { found: found() };
                    let huge =
                        ["no", "yes"].iter().position(|word| *word == value).ok_or_else(no)?;
                    spec.huge.replace(huge == 1).is_some()
                }
                _ => return Err(SpecError::Option { found: found() }),
            };
            if twice {
                return Err(SpecError::Twice { found: found() });
            }
        }
        Ok(spec)
    }
}

impl core::str::FromStr for Place {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let best = match text {
            "default" => return Ok(Self::Default),
            "capacity" => Some(Quality::Capacity),
            "latency" => Some(Quality::Latency),
            "bandwidth" => Some(Quality::Bandwidth),
            _ => None,
        };
        if let Some(best) = best {
            return Ok(Self::Best(best));
        }
        match text.split_once(':') {
            Some(("bind", nodes)) => Ok(Self::Bind(nodes.parse()?)),
            Some(("prefer", nodes)) => Ok(Self::Prefer(nodes.parse()?)),
            Some(("interleave", nodes)) => Ok(Self::Interleave(nodes.parse()?)),
            Some(("weighted", nodes)) if nodes.contains('=') => weights(nodes).map(Self::Weights),
            Some(("weighted", nodes)) => Ok(Self::Weighted(nodes.parse()?)),
            _ => text.parse().map(Self::Bind).map_err(|_| SpecError::Place { found: text.into() }),
        }
    }
}

fn weights(text: &str) -> Result<BTreeMap<NodeId, u8>, SpecError> {
    let mut weights = BTreeMap::new();
    for part in text.split(',') {
        let wrong = || SpecError::Weight { found: part.to_string() };
        let (node, weight) = part.split_once('=').ok_or_else(wrong)?;
        let node = node.trim().parse().ok().and_then(NodeId::new);
        let weight = weight.trim().parse().ok().filter(|weight| *weight > 0);
        let (node, weight) = node.zip(weight).ok_or_else(wrong)?;
        if weights.insert(node, weight).is_some() {
            return Err(wrong());
        }
    }
    Ok(weights)
}

/// Parses a size as [`Bytes`] does: bytes, or `512k`, `64m`, `4g`, `1t`.
///
/// # Errors
/// [`SpecError::Size`].
pub fn size(text: &str) -> Result<Bytes, SpecError> {
    text.parse().map_err(|_| SpecError::Size { found: text.to_string() })
}

impl Place {
    /// Whether it names nodes by number only, or all of them: without types, tiers or properties.
    #[must_use]
    pub fn is_by_number(&self) -> bool {
        match self {
            Self::Default | Self::Weights(_) => true,
            Self::Bind(nodes)
            | Self::Prefer(nodes)
            | Self::Interleave(nodes)
            | Self::Weighted(nodes) => nodes.is_by_number(),
            Self::Best(_) => false,
        }
    }

    /// Resolves it to nodes of a machine, seen from `cpus`.
    ///
    /// # Errors
    /// [`SpecError::Nodes`] if nodes do not exist, [`SpecError::Unstated`].
    pub fn on(&self, machine: &Topology, cpus: &[CpuId]) -> Result<Placed, SpecError> {
        let nodes = |nodes: &NodeExpr| nodes.resolve(machine, cpus).map_err(SpecError::from);
        Ok(match self {
            Self::Default => Placed::Default,
            Self::Bind(expr) => Placed::Bind(nodes(expr)?),
            Self::Prefer(expr) => Placed::Prefer(nodes(expr)?),
            Self::Interleave(expr) => Placed::Interleave(nodes(expr)?),
            Self::Weighted(expr) => Placed::Weighted(nodes(expr)?),
            Self::Weights(weights) => {
                let named: Vec<_> = weights.keys().map(|node| node.0.to_string()).collect();
                nodes(&named.join(",").parse()?)?;
                Placed::Weights(weights.clone())
            }
            Self::Best(quality) => Placed::Bind(best(*quality, machine)?),
        })
    }
}

fn best(quality: Quality, machine: &Topology) -> Result<NodeSet, SpecError> {
    // As seen from the nearest CPUs, as a value of which more is better.
    let stated = |node: &Node| {
        let attributes = node.access().map(|near| near.attributes);
        match quality {
            Quality::Capacity => Some(node.size.0),
            Quality::Latency => Some(u64::MAX - attributes?.read_latency?.0),
            Quality::Bandwidth => Some(attributes?.read_bandwidth?.0),
        }
    };
    let present = machine.nodes.iter().filter(|(_, node)| node.size.0 > 0);
    let values: Vec<_> = present.filter_map(|(id, node)| Some((*id, stated(node)?))).collect();
    let most = values.iter().map(|(_, value)| *value).max();
    let quality = match quality {
        Quality::Capacity => "capacity",
        Quality::Latency => "latency",
        Quality::Bandwidth => "bandwidth",
    };
    let most = most.ok_or(SpecError::Unstated { quality })?;
    Ok(values.into_iter().filter(|(_, value)| *value == most).map(|(id, _)| id).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spec(text: &str) -> Result<Spec, SpecError> {
        text.parse()
    }

    #[test]
    fn nodes_without_a_policy_are_bound() {
        let far = spec("far").unwrap();
        assert_eq!(far.place, Place::Bind("far".parse().unwrap()));
        assert_eq!(far.place, spec("bind:far").unwrap().place);
        assert_eq!((far.limit, far.spill, far.huge), (None, None, None));
    }

    #[test]
    fn options_follow_the_place() {
        let all = spec("cxl; limit=4g; spill=near;huge=yes").unwrap();
        assert_eq!(all.limit, Some(Bytes(4 << 30)));
        assert_eq!(all.spill, Some(Place::Bind("near".parse().unwrap())));
        assert_eq!(all.huge, Some(true));
    }

    #[test]
    fn weights_may_be_given_or_the_machines() {
        let own = spec("weighted:0=3,1=1").unwrap().place;
        assert_eq!(own, Place::Weights([(NodeId(0), 3), (NodeId(1), 1)].into()));
        let machines = spec("weighted:near,far").unwrap().place;
        assert_eq!(machines, Place::Weighted("near,far".parse().unwrap()));
    }

    #[test]
    fn invalid_values_are_named() {
        for (text, named) in [
            ("", "``"),
            ("nowhere", "`nowhere`"),
            ("bind:", "empty"),
            ("bind:9-2", "9-2"),
            ("weighted:0=0", "`0=0`"),
            ("weighted:0=256", "`0=256`"),
            ("weighted:0=1,0=2", "`0=2`"),
            ("weighted:0=1,x", "`x`"),
            ("far;limit=4q", "`4q`"),
            ("far;limit=", "``"),
            ("far;limit=0", "leave limit= out for no limit"),
            ("far;limit=99999999999t", "99999999999t"),
            ("far;limit=1g;limit=2g", "twice"),
            ("far;huge=maybe", "`huge=maybe`"),
            ("far;colour=red", "`colour=red`"),
            ("far;spill", "`spill`"),
            ("far;spill=nowhere", "`nowhere`"),
        ] {
            let said = spec(text).unwrap_err().to_string();
            assert!(said.contains(named), "{text}: {said}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,40}") {
            let _ = spec(&text);
        }

        #[test]
        fn nothing_near_the_grammar_panics(
            text in "(bind|weighted|far|spill|limit|huge)?[:=;,0-9a-z]{0,20}"
        ) {
            let _ = spec(&text);
        }
    }
}
