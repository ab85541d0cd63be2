//! Which memory a cache's tiers are to have: kinds in words and sizes, resolved against the machine; and a disk's, likewise.
//!
//! A tier whose nodes have less free than it may grow to is refused before anything is made: what is bound to a full node is
//! killed by the kernel when it grows, at a time nobody chose.

use std::path::PathBuf;
use std::str::FromStr;

use nearfar_kernel::fs::Fs;
use nearfar_kernel::meminfo;
use nearfar_kernel::mempolicy::Policy;
use nearfar_spec::spec::{self, Place, Placed, SpecError};
use nearfar_topology::{Bytes, CpuId, NodeSet, Topology};

use crate::config::DiskTier;
use crate::disk::{self, Recover};

/// Bytes of a page of a disk.
const PAGE: u64 = 4096;
/// What of a disk is for small objects: one part in so many.
const SMALL_SHARE: u64 = 16;

/// A tier's memory, as written: `near=4g`, or `64m` for memory of any kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryExpr {
    /// The kind, in the words of `docs/alloc.md`.
    pub kind: Option<(String, Place)>,
    /// How much.
    pub bytes: Bytes,
}

impl FromStr for MemoryExpr {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let (kind, size) = match text.rsplit_once('=') {
            None => (None, text),
            Some((kind, size)) => (Some((kind.to_owned(), kind.parse()?)), size),
        };
        Ok(Self { kind, bytes: spec::size(size)? })
    }
}

/// A tier's memory on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// As written.
    pub name: String,
    /// How much.
    pub bytes: Bytes,
    /// Where it comes from.
    pub policy: Policy,
}

/// Why a tier can't have its memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TierError {
    /// A kind that this machine does not have.
    #[error("{kind}: {source}")]
    Kind {
        /// As written.
        kind: String,
        /// Why.
        source: SpecError,
    },
    /// A kind, where there is no machine to find it on.
    #[error("{0}: there is no machine to find it on")]
    Nowhere(String),
    /// Weights of its own.
    #[error(
        "{0}: a cache's memory takes the machine's weights; set them with nearfar weights, and write weighted:NODES"
    )]
    Weights(String),
    /// Nodes that have less.
    #[error("{kind}={bytes}: nodes {nodes} have {free} free; name a smaller size, or other nodes")]
    Full {
        /// As written.
        kind: String,
        /// How much is asked for.
        bytes: Bytes,
        /// Of which nodes.
        nodes: NodeSet,
        /// What these have.
        free: Bytes,
    },
}

/// A tier on disk, as written: `/var/cache/below=200g`, and what else was said of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskExpr {
    /// The file or block device.
    pub path: PathBuf,
    /// Its size.
    pub bytes: Bytes,
    /// What of it is for objects of at most 1 KiB; none: a sixteenth.
    pub small: Option<Bytes>,
    /// What may be written in 24 hours; 0: no limit.
    pub writes: Bytes,
    /// Reads before an item goes there; none: 0, or 1 where writes are limited.
    pub reads: Option<u32>,
    /// What is taken over after a crash.
    pub after_crash: Recover,
}

impl FromStr for DiskExpr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (path, bytes) = text.rsplit_once('=').ok_or("write it as PATH=SIZE")?;
        if path.is_empty() {
            return Err("a file or block device is wanted before =SIZE".into());
        }
        let bytes = spec::size(bytes).map_err(|error| error.to_string())?;
        let (path, after_crash) = (path.into(), Recover::default());
        Ok(Self { path, bytes, small: None, writes: Bytes(0), reads: None, after_crash })
    }
}

impl DiskExpr {
    /// The tier, of a cache whose clock stands at 0 in this Unix second ([`DiskTier::clock_zero`]).
    #[must_use]
    pub fn tier(&self, clock_zero: u32) -> DiskTier {
        let small = self.small.map_or(self.bytes.0 / SMALL_SHARE, |small| small.0);
        let config = disk::Config {
            bytes: self.bytes.0,
            small_bytes: small / PAGE * PAGE,
            budget_per_day: self.writes.0,
            least_hits: self.reads.unwrap_or_else(|| u32::from(self.writes.0 > 0)),
            recover: self.after_crash,
            ..disk::Config::default()
        };
        DiskTier { path: self.path.clone(), config, clock_zero }
    }
}

fn any(bytes: Bytes) -> Memory {
    Memory { name: "any".into(), bytes, policy: Policy::Default }
}

/// Tiers of memory of any kind.
///
/// # Errors
/// A kind that is named.
pub fn plain(memory: &[MemoryExpr]) -> Result<Vec<Memory>, TierError> {
    let plain = |one: &MemoryExpr| match &one.kind {
        None => Ok(any(one.bytes)),
        Some((kind, _)) => Err(TierError::Nowhere(kind.clone())),
    };
    memory.iter().map(plain).collect()
}

/// Tiers on a machine, as seen from `cpus`.
///
/// # Errors
/// Kinds that the machine does not have, or has too little of.
pub fn resolve(
    memory: &[MemoryExpr],
    machine: &Topology,
    (cpus, fs): (&[CpuId], &dyn Fs),
) -> Result<Vec<Memory>, TierError> {
    let tiers = memory.iter().map(|one| {
        let Some((kind, place)) = &one.kind else { return Ok(any(one.bytes)) };
        let placed = place.on(machine, cpus);
        let placed = placed.map_err(|source| TierError::Kind { kind: kind.clone(), source })?;
        Ok(Memory { name: kind.clone(), bytes: one.bytes, policy: policy(kind, placed)? })
    });
    let tiers = tiers.collect::<Result<Vec<_>, _>>()?;
    for (at, tier) in tiers.iter().enumerate() {
        let Some(nodes) = nodes(&tier.policy) else { continue };
        // What tiers before it take from the same nodes is not free for it.
        let others = tiers[..at].iter().filter(|other| self::nodes(&other.policy) == Some(nodes));
        let wanted = others.fold(tier.bytes.0, |sum, other| sum.saturating_add(other.bytes.0));
        let free = |id| meminfo::of_node(fs, id).map_or(0, |has| has.free.0 + has.cached.0);
        let free = Bytes(nodes.iter().map(free).sum());
        if wanted > free.0 {
            let (kind, bytes, nodes) = (tier.name.clone(), tier.bytes, nodes.clone());
            return Err(TierError::Full { kind, bytes, nodes, free });
        }
    }
    Ok(tiers)
}

fn policy(kind: &str, placed: Placed) -> Result<Policy, TierError> {
    Ok(match placed {
        Placed::Default => Policy::Default,
        Placed::Bind(nodes) => Policy::Bind(nodes),
        Placed::Prefer(nodes) => Policy::preferring(nodes),
        Placed::Interleave(nodes) => Policy::Interleave(nodes),
        Placed::Weighted(nodes) => Policy::WeightedInterleave(nodes),
        Placed::Weights(_) => return Err(TierError::Weights(kind.to_owned())),
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
            let error = text.parse::<MemoryExpr>().unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
