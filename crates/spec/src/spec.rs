//! A kind in words, and what it comes to on a machine.
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
//! Nodes alone are bound to. `weighted:` over nodes takes the machine's weights; with weights they are the kind's own.
//! `capacity`, `latency` and `bandwidth` are the nodes with the most memory, the lowest read latency and the highest read
//! bandwidth that firmware states; where it states none, that is an error.

use std::collections::BTreeMap;
use std::string::{String, ToString as _};
use std::vec::Vec;

use nearfar_topology::{Bytes, CpuId, Node, NodeExpr, NodeId, NodeSet, NodeSetError, Topology};

/// A kind as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Where its memory is to be.
    pub place: Place,
    /// The most that is set aside for it.
    pub limit: Option<Bytes>,
    /// What gives once that is reached.
    pub spill: Option<Place>,
    /// Transparent huge pages: asked for, refused, or as the machine has it.
    pub huge: Option<bool>,
}

/// Where its memory is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Where the process's policy has it.
    Default,
    /// On these nodes only.
    Bind(NodeExpr),
    /// On these if they have room.
    Prefer(NodeExpr),
    /// On these in turn.
    Interleave(NodeExpr),
    /// On these in turn, by the machine's weights.
    Weighted(NodeExpr),
    /// On these, by weights of its own.
    Weights(BTreeMap<NodeId, u8>),
    /// On the nodes that are best in something.
    Best(Quality),
}

/// What nodes are best in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quality {
    /// The most memory.
    Capacity,
    /// The lowest read latency.
    Latency,
    /// The highest read bandwidth.
    Bandwidth,
}

/// A place on a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placed {
    /// Where the process's policy has it.
    Default,
    /// On these nodes only.
    Bind(NodeSet),
    /// On these if they have room.
    Prefer(NodeSet),
    /// On these in turn.
    Interleave(NodeSet),
    /// On these in turn, by the machine's weights.
    Weighted(NodeSet),
    /// On these, by weights of its own.
    Weights(BTreeMap<NodeId, u8>),
}

/// Why a kind can't be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// Neither a place nor an option.
    #[error(
        "`{found}` is not a memory kind; write default, a node set (near, far, cxl, 0,2-3), bind:, prefer:, interleave: or \
         weighted: with one, weighted:0=3,1=1, capacity, latency or bandwidth"
    )]
    Place {
        /// What was written.
        found: String,
    },
    /// The nodes are not a node set, or not here.
    #[error(transparent)]
    Nodes(#[from] NodeSetError),
    /// A weight that is none.
    #[error(
        "`{found}` is not a node with a weight; write 0=3,1=1 with weights of 1 to 255, each node once"
    )]
    Weight {
        /// What was written.
        found: String,
    },
    /// An option that there is not.
    #[error(
        "`{found}` is no option of a memory kind; there are limit=SIZE, spill=KIND, huge=yes and huge=no"
    )]
    Option {
        /// What was written.
        found: String,
    },
    /// An option that is there twice.
    #[error("`{found}`: the option is there twice")]
    Twice {
        /// What was written.
        found: String,
    },
    /// A size that is none.
    #[error("`{found}` is not a size; write bytes, or 512k, 64m, 4g, 1t")]
    Size {
        /// What was written.
        found: String,
    },
    /// Firmware does not say which nodes are best.
    #[error(
        "{quality}: this machine's firmware states none for its nodes (no HMAT); name the nodes instead"
    )]
    Unstated {
        /// What was asked for.
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
                "limit" => spec.limit.replace(size(value)?).is_some(),
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
        let node = node.trim().parse().ok().map(NodeId).filter(|node| *node <= NodeId::MAX);
        let weight = weight.trim().parse().ok().filter(|weight| *weight > 0);
        let (node, weight) = node.zip(weight).ok_or_else(wrong)?;
        if weights.insert(node, weight).is_some() {
            return Err(wrong());
        }
    }
    Ok(weights)
}

/// A size in words: bytes, or `512k`, `64m`, `4g`, `1t`.
///
/// # Errors
/// [`SpecError::Size`].
pub fn size(text: &str) -> Result<Bytes, SpecError> {
    let wrong = || SpecError::Size { found: text.to_string() };
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).map(Bytes).ok_or_else(wrong)
}

impl Place {
    /// The nodes it comes to on a machine, seen from `cpus`.
    ///
    /// # Errors
    /// [`SpecError::Nodes`] if nodes are not there, [`SpecError::Unstated`].
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
    // As seen from the nearest CPUs; a value that is the greater the better.
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
    fn nodes_alone_are_bound_to() {
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
    fn weights_may_be_its_own_or_the_machines() {
        let own = spec("weighted:0=3,1=1").unwrap().place;
        assert_eq!(own, Place::Weights([(NodeId(0), 3), (NodeId(1), 1)].into()));
        let machines = spec("weighted:near,far").unwrap().place;
        assert_eq!(machines, Place::Weighted("near,far".parse().unwrap()));
    }

    #[test]
    fn what_is_wrong_is_named() {
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
