//! Memory of a cache's tiers: kinds and sizes as text, resolved against the machine; likewise the disk's.
//!
//! A tier whose nodes have less free memory than its maximum size is refused before anything is created: the kernel
//! kills a process bound to a full node when it grows, at an unpredictable time.

use std::path::PathBuf;
use std::str::FromStr;

use nearfar_kernel::fs::Fs;
use nearfar_kernel::meminfo;
use nearfar_kernel::mempolicy::Policy;
use nearfar_spec::spec::{self, Place, Placed, SpecError};
use nearfar_topology::{Bytes, CpuId, NodeSet, Topology};

use crate::config::{DiskTier, TIERS_MAX};
use crate::disk::{self, AfterCrash};

/// Bytes of a page of a disk.
const PAGE: u64 = 4096;
/// Default share of a disk for small objects: one part in this many.
const SMALL_SHARE: u64 = 16;

/// A tier's memory, as typed: `near=4g`, or `64m` for memory of any kind. A number without a unit is MiB, as
/// memcached's `-m`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryExpr {
    /// The kind, in the syntax of `docs/alloc.md`.
    pub kind: Option<(String, Place)>,
    /// The size.
    pub bytes: Bytes,
}

impl FromStr for MemoryExpr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let said = |error: SpecError| error.to_string();
        let (kind, size) = match text.rsplit_once('=') {
            None => (None, text),
            Some((kind, size)) => {
                let place = kind.parse().map_err(|error| several(text).unwrap_or(said(error)))?;
                (Some((kind.to_owned(), place)), size)
            }
        };
        let bytes = match size.parse::<u64>() {
            Ok(mib) => mib.checked_mul(1 << 20).map(Bytes).ok_or_else(|| {
                format!("`{size}` is MiB, as it has no unit, and too much; write 64m or 4g")
            })?,
            Err(_) => spec::size(size).map_err(said)?,
        };
        Ok(Self { kind, bytes })
    }
}

/// The suggestion for several tiers written as one.
fn several(text: &str) -> Option<String> {
    let all: Vec<_> = text.split(',').collect();
    let is_tier = |one: &&str| one.contains('=') && one.parse::<MemoryExpr>().is_ok();
    (all.len() > 1 && all.iter().all(is_tier))
        .then(|| format!("a tier each, fastest first: write -m {}", all.join(" -m ")))
}

/// A tier's memory on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// As typed.
    pub name: String,
    /// The size.
    pub bytes: Bytes,
    /// Memory policy of its pages.
    pub policy: Policy,
}

/// Reasons why the memory of a tier is unavailable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TierError {
    /// A kind that this machine does not have.
    #[error("{kind}: {source}")]
    Kind {
        /// As typed.
        kind: String,
        /// The cause.
        source: SpecError,
    },
    /// A kind, without a machine to resolve it on.
    #[error("{0}: there is no machine to find it on")]
    Nowhere(String),
    /// Weights of its own.
    #[error(
        "{0}: a cache's memory takes the machine's weights; set them with nearfar weights, and write weighted:NODES"
    )]
    Weights(String),
    /// Nodes with less free memory.
    #[error(
        "{kind}={bytes}: {} {free} free; name a smaller size, or other nodes",
        if nodes.len() == 1 { format!("node {nodes} has") } else { format!("nodes {nodes} have") }
    )]
    Full {
        /// As typed.
        kind: String,
        /// Requested size.
        bytes: Bytes,
        /// The nodes.
        nodes: NodeSet,
        /// Their free memory.
        free: Bytes,
    },
}

/// A disk tier, as typed: `/var/cache/below=200g`, and its other settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskExpr {
    /// The file or block device.
    pub path: PathBuf,
    /// Its size.
    pub bytes: Bytes,
    /// Share of it for objects of at most 1 KiB; `None`: a sixteenth.
    pub small: Option<Bytes>,
    /// Maximum bytes written in 24 hours; 0: no limit.
    pub writes: Bytes,
    /// Reads before an item is demoted to it; `None`: 0, or 1 where writes are limited.
    pub reads: Option<u32>,
    /// Objects to keep after a crash.
    pub after_crash: AfterCrash,
    /// Whether a file or device with data other than a cache or known formats may be overwritten.
    pub format: bool,
}

impl FromStr for DiskExpr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (path, bytes) =
            text.rsplit_once('=').ok_or("write it as PATH=SIZE, such as /var/cache/items=100g")?;
        if path.is_empty() {
            return Err("a file or block device is wanted before =SIZE".into());
        }
        let bytes = spec::size(bytes).map_err(|error| error.to_string())?;
        let (path, after_crash) = (path.into(), AfterCrash::default());
        let (small, writes, reads, format) = (None, Bytes(0), None, false);
        Ok(Self { path, bytes, small, writes, reads, after_crash, format })
    }
}

impl DiskExpr {
    /// The tier, for a cache whose clock was 0 in this Unix second ([`DiskTier::clock_zero`]).
    #[must_use]
    pub fn tier(&self, clock_zero: u32) -> DiskTier {
        let small = self.small.map_or(self.bytes.0 / SMALL_SHARE, |small| small.0);
        let config = disk::Config {
            bytes: self.bytes.0,
            small_bytes: small / PAGE * PAGE,
            budget_per_day: self.writes.0,
            least_hits: self.reads.unwrap_or_else(|| u32::from(self.writes.0 > 0)),
            after_crash: self.after_crash,
            format: self.format,
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
/// A kind is named.
pub fn plain(memory: &[MemoryExpr]) -> Result<Vec<Memory>, TierError> {
    let plain = |one: &MemoryExpr| match &one.kind {
        None => Ok(any(one.bytes)),
        Some((kind, _)) => Err(TierError::Nowhere(kind.clone())),
    };
    memory.iter().map(plain).collect()
}

/// Tiers on a machine, relative to `cpus`.
///
/// # Errors
/// Kinds that the machine does not have, or that have too little free memory.
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
    // The tiers within some nodes must fit there together: within those of each tier, and of several that overlap.
    let placed = tiers.iter().filter_map(|tier| Some((tier, nodes(&tier.policy)?)));
    let placed: Vec<(&Memory, &NodeSet)> = placed.take(TIERS_MAX).collect();
    for group in 1_u32..1 << placed.len() {
        let members = placed.iter().enumerate().filter(|(at, _)| group >> at & 1 == 1);
        let union: NodeSet = members.flat_map(|(_, (_, nodes))| nodes.iter()).collect();
        let is_within = |(_, nodes): &&(&Memory, &NodeSet)| nodes.without(&union).is_empty();
        let within = || placed.iter().filter(is_within);
        let wanted = within().fold(0, |sum: u64, (tier, _)| sum.saturating_add(tier.bytes.0));
        let free = |id| meminfo::of_node(fs, id).map_or(0, |has| has.free.0 + has.cached.0);
        let free = Bytes(union.iter().map(free).sum());
        if let Some((tier, _)) = within().next_back().filter(|_| wanted > free.0) {
            let (kind, bytes) = (tier.name.clone(), tier.bytes);
            return Err(TierError::Full { kind, bytes, nodes: union, free });
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
    fn a_memory_kind_is_the_text_before_the_last_equals_sign() {
        let near: MemoryExpr = "near=4g".parse().unwrap();
        assert_eq!((near.kind.unwrap().0.as_str(), near.bytes), ("near", Bytes(4 << 30)));
        let own: MemoryExpr = "weighted:0=3,1=1=16g".parse().unwrap();
        assert_eq!(own.kind.unwrap().0, "weighted:0=3,1=1");
    }

    #[test]
    fn a_number_without_a_unit_is_mebibytes() {
        let bytes = |text: &str| text.parse::<MemoryExpr>().unwrap().bytes;
        assert_eq!(bytes("1024"), Bytes(1 << 30));
        assert_eq!(bytes("near=16"), Bytes(16 << 20));
        for text in ["64m", "64M", "64mb", "64MB", "64MiB"] {
            assert_eq!(bytes(text), Bytes(64 << 20), "{text}");
        }
        assert_eq!(bytes("4096b"), Bytes(4096));
    }

    #[test]
    fn invalid_memory_expressions_are_rejected_with_the_input() {
        for (text, said) in [
            ("near=", "``"),
            ("fast=1g", "fast"),
            ("", "``"),
            ("1x", "1x"),
            ("=1g", "``"),
            ("99999999999999", "MiB"),
            ("near=64m,far=64m", "write -m near=64m -m far=64m"),
            ("near=64m,far", "64m,far"),
        ] {
            let error = text.parse::<MemoryExpr>().unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
