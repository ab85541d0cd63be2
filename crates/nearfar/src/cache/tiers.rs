//! Which memory a cache's tiers are to have: kinds in words and sizes, resolved against the machine.
//!
//! A tier whose nodes have less free than it may grow to is refused before anything is made: what is bound to a full node is
//! killed by the kernel when it grows, at a time nobody chose.

use std::str::FromStr;

use nearfar_kernel::fs::Fs;
use nearfar_kernel::meminfo;
use nearfar_kernel::mempolicy::Policy;
use nearfar_spec::spec::{self, Place, Placed};
use nearfar_topology::{Bytes, CpuId, NodeSet, Topology};

/// A tier's memory, as written: `near=4g`, or `64m` for memory of any kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemoryExpr {
    /// The kind, in the words of `docs/alloc.md`.
    pub(crate) kind: Option<(String, Place)>,
    /// How much.
    pub(crate) bytes: Bytes,
}

impl FromStr for MemoryExpr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, size) = match text.rsplit_once('=') {
            None => (None, text),
            Some((kind, size)) => {
                let place: Place = kind.parse().map_err(|error| format!("{error}"))?;
                (Some((kind.to_owned(), place)), size)
            }
        };
        let bytes = spec::size(size).map_err(|error| error.to_string())?;
        Ok(Self { kind, bytes })
    }
}

/// A tier's memory on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    /// As written.
    pub(crate) name: String,
    /// How much.
    pub(crate) bytes: Bytes,
    /// Where it comes from.
    pub(crate) policy: Policy,
}

/// Tiers of memory of any kind.
///
/// # Errors
/// A kind that is named.
pub(crate) fn plain(memory: &[MemoryExpr]) -> anyhow::Result<Vec<Memory>> {
    let plain = |one: &MemoryExpr| match &one.kind {
        None => Ok(Memory { name: "any".into(), bytes: one.bytes, policy: Policy::Default }),
        Some((kind, _)) => Err(anyhow::anyhow!("{kind}: there is no machine to find it on")),
    };
    memory.iter().map(plain).collect()
}

/// Tiers on a machine, as seen from `cpus`.
///
/// # Errors
/// Kinds that the machine does not have, or has too little of.
pub(crate) fn resolve(
    memory: &[MemoryExpr],
    machine: &Topology,
    (cpus, fs): (&[CpuId], &dyn Fs),
) -> anyhow::Result<Vec<Memory>> {
    let tiers = memory.iter().map(|one| {
        let Some((kind, place)) = &one.kind else {
            return Ok(Memory { name: "any".into(), bytes: one.bytes, policy: Policy::Default });
        };
        let placed = place.on(machine, cpus);
        let placed = placed.map_err(|error| anyhow::anyhow!("--memory {kind}: {error}"))?;
        Ok(Memory { name: kind.clone(), bytes: one.bytes, policy: policy(kind, placed)? })
    });
    let tiers = tiers.collect::<anyhow::Result<Vec<_>>>()?;
    for (at, tier) in tiers.iter().enumerate() {
        let Some(nodes) = nodes(&tier.policy) else { continue };
        // What tiers before it take from the same nodes is not free for it.
        let others = tiers[..at].iter().filter(|other| self::nodes(&other.policy) == Some(nodes));
        let wanted = tier.bytes.0 + others.map(|other| other.bytes.0).sum::<u64>();
        let free = |id| meminfo::of_node(fs, id).map_or(0, |has| has.free.0 + has.cached.0);
        let free: u64 = nodes.iter().map(free).sum();
        anyhow::ensure!(
            wanted <= free,
            "--memory {}={}: nodes {nodes} have {} free; name a smaller size, or other nodes",
            tier.name,
            tier.bytes,
            Bytes(free)
        );
    }
    Ok(tiers)
}

fn policy(kind: &str, placed: Placed) -> anyhow::Result<Policy> {
    Ok(match placed {
        Placed::Default => Policy::Default,
        Placed::Bind(nodes) => Policy::Bind(nodes),
        Placed::Prefer(nodes) => {
            let one = (nodes.len() == 1).then(|| nodes.iter().next()).flatten();
            one.map_or(Policy::PreferredMany(nodes), Policy::Preferred)
        }
        Placed::Interleave(nodes) => Policy::Interleave(nodes),
        Placed::Weighted(nodes) => Policy::WeightedInterleave(nodes),
        Placed::Weights(_) => anyhow::bail!(
            "--memory {kind}: a cache's memory takes the machine's weights; set them with nearfar weights, and write weighted:NODES"
        ),
    })
}

/// The nodes a policy names.
fn nodes(policy: &Policy) -> Option<&NodeSet> {
    match policy {
        Policy::Bind(nodes) | Policy::Interleave(nodes) | Policy::WeightedInterleave(nodes) => {
            Some(nodes)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_alone_is_memory_of_any_kind() {
        let any: MemoryExpr = "64m".parse().unwrap();
        assert_eq!(any, MemoryExpr { kind: None, bytes: Bytes(64 << 20) });
        let tiers = plain(&[any]).unwrap();
        assert_eq!((tiers.len(), &tiers[0].policy), (1, &Policy::Default));
    }

    #[test]
    fn a_kind_is_whatever_stands_before_the_last_equals_sign() {
        let near: MemoryExpr = "near=4g".parse().unwrap();
        assert_eq!((near.kind.unwrap().0.as_str(), near.bytes), ("near", Bytes(4 << 30)));
        let own: MemoryExpr = "weighted:0=3,1=1=16g".parse().unwrap();
        assert_eq!(own.kind.unwrap().0, "weighted:0=3,1=1");
    }

    #[test]
    fn what_is_neither_a_kind_nor_a_size_is_refused_with_what_was_written() {
        for (text, said) in
            [("near=", "``"), ("fast=1g", "fast"), ("", "``"), ("1x", "1x"), ("=1g", "``")]
        {
            let error = text.parse::<MemoryExpr>().unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
