//! The machine's nodes, and the nodes memory is on, for programs.

use std::vec::Vec;

use nearfar_kernel::fs::RootFs;
use nearfar_kernel::{affinity, meminfo, residency};
use nearfar_topology::{MemoryKind, NodeExpr, NodeId};

use crate::machine::{self, KindError};
use crate::spec::SpecError;
use crate::sys;

/// Properties of a node for programs that place memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct About {
    pub(crate) memory: MemoryKind,
    pub(crate) tier: u32,
    pub(crate) cpus: u32,
    pub(crate) size: u64,
    pub(crate) free: u64,
}

/// Nodes of a set written as text, seen from the calling thread's CPUs.
///
/// # Errors
/// [`KindError`]: the text is not a set, or such nodes do not exist.
pub(crate) fn of_set(text: &str) -> Result<Vec<u32>, KindError> {
    let set: NodeExpr = text.parse().map_err(SpecError::from)?;
    let fs = RootFs::live()?;
    let cpus = affinity::get().unwrap_or_default();
    let nodes = set.resolve(&machine::read(&fs), &cpus).map_err(SpecError::from)?;
    Ok(nodes.iter().map(|node| u32::from(node.0)).collect())
}

/// The properties of a node; `None` if it does not exist.
pub(crate) fn about(node: u32) -> Option<About> {
    let id = u16::try_from(node).ok().map(NodeId)?;
    let fs = RootFs::live().ok()?;
    let machine = machine::read(&fs);
    let found = machine.nodes.get(&id)?;
    let now = meminfo::of_node(&fs, id)?;
    let tier = machine.tier_of(id);
    let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    Some(About {
        memory: found.kind,
        tier: tier.map_or(u32::MAX, small),
        cpus: small(found.cpus.len()),
        size: now.total.0,
        free: now.free.0,
    })
}

/// Adds the resident bytes of a range to `bytes`, by node; nodes beyond the slice are left out. Returns the errno if
/// the kernel refuses.
pub(crate) fn residency(at: usize, length: usize, bytes: &mut [u64]) -> Result<(), i32> {
    let found = residency::of_range(None, at, length, sys::PAGE);
    let found = found.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
    for (node, more) in found {
        if let Some(sum) = bytes.get_mut(usize::from(node.0)) {
            *sum += more.0;
        }
    }
    Ok(())
}
