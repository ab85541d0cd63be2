//! The machine's nodes, and which of them memory is on, for programs that ask.

use std::vec::Vec;

use nearfar_kernel::fs::RootFs;
use nearfar_kernel::{affinity, meminfo, residency};
use nearfar_topology::{MemoryKind, NodeExpr, NodeId};

use crate::machine::{self, KindError};
use crate::spec::SpecError;
use crate::sys;

/// A node, as far as programs that place memory need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct About {
    pub(crate) memory: MemoryKind,
    pub(crate) tier: u32,
    pub(crate) cpus: u32,
    pub(crate) size: u64,
    pub(crate) free: u64,
}

/// Nodes of a set in words, as seen from the calling thread's CPUs.
///
/// # Errors
/// [`KindError`]: not written as sets are, or such nodes are not here.
pub(crate) fn of_set(text: &str) -> Result<Vec<u32>, KindError> {
    let set: NodeExpr = text.parse().map_err(SpecError::from)?;
    let fs = RootFs::live()?;
    let cpus = affinity::get().unwrap_or_default();
    let nodes = set.resolve(&machine::read(&fs), &cpus).map_err(SpecError::from)?;
    Ok(nodes.iter().map(|node| u32::from(node.0)).collect())
}

/// What a node is like; none if it is not there.
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

/// Adds up what is resident of a range, node by node; what is on nodes beyond the slice is left out. The errno if it can't be
/// asked.
pub(crate) fn residency(at: usize, length: usize, bytes: &mut [u64]) -> Result<(), i32> {
    let found = residency::of_range(at, length, sys::PAGE);
    let found = found.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
    for (node, more) in found {
        if let Some(sum) = bytes.get_mut(usize::from(node.0)) {
            *sum += more.0;
        }
    }
    Ok(())
}
