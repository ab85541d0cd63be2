//! Weights that the user gives: `0=3,1=1`, or `near=3,far=1`.

use std::collections::BTreeMap;
use std::str::FromStr;

use nearfar_policy::Weights;
use nearfar_topology::{CpuId, NodeExpr, NodeSet, Topology};

use crate::exit::{EndsWith as _, Exit};

/// Node sets with the weight of each of their nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given(Vec<(NodeExpr, u8)>);

impl FromStr for Given {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let pair = |pair: &str| {
            let (nodes, weight) = pair.split_once('=')?;
            let weight = weight.parse().ok().filter(|weight| *weight > 0)?;
            Some((nodes.parse().ok()?, weight))
        };
        let one = |text: &str| {
            pair(text).ok_or_else(|| {
                format!("`{text}` is not NODES=WEIGHT; write 0=3,1=1, with weights of 1 to 255")
            })
        };
        text.split(',').map(one).collect::<Result<_, _>>().map(Self)
    }
}

impl Given {
    /// The weight of each named node of this machine, seen from these CPUs; relative numbers count the nodes in `allowed`,
    /// or those with memory.
    ///
    /// # Errors
    /// It has no such node, or one is named twice.
    pub fn resolve(
        &self,
        machine: &Topology,
        (cpus, allowed): (&[CpuId], Option<&NodeSet>),
    ) -> anyhow::Result<Weights> {
        let mut weights = BTreeMap::new();
        for (nodes, weight) in &self.0 {
            let named = nodes.resolve_among(machine, cpus, allowed);
            for node in named.ends_with(Exit::Usage)?.iter() {
                if weights.insert(node, *weight).is_some() {
                    let error = anyhow::anyhow!("node {node} is given two weights");
                    return Err(error).ends_with(Exit::Usage);
                }
            }
        }
        let none = || anyhow::anyhow!("no node is given a weight");
        Weights::new(weights).ok_or_else(none).ends_with(Exit::Usage)
    }
}
