//! Creates replicated regions from text, and lists all that exist.
#![expect(unsafe_code, reason = "a lock is held across forks")]

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::string::ToString as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::vec::Vec;

use nearfar_kernel::fs::{Fs, FsError, RootFs};
use nearfar_kernel::mempolicy::{self, PolicyError};
use nearfar_kernel::{affinity, meminfo};
use nearfar_topology::{Bytes, NodeId, NodeSetError, Topology};

use crate::arena;
use crate::granule::Rule;
use crate::machine::{self, OutsideCpuset};
use crate::region::Region;
use crate::shared::{Layout, Refused, Shared};
use nearfar_spec::region::{RegionSpec, RegionSpecError};

/// Reasons why a replicated region can't be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplicatedError {
    /// The text is not a region, or names nodes that do not exist.
    #[error(transparent)]
    Spec(#[from] RegionSpecError),
    /// The system does not show its nodes.
    #[error("memory nodes can't be read: {0}")]
    Machine(#[from] FsError),
    /// Existing nodes of which this process may not allocate memory.
    #[error(transparent)]
    Cpuset(#[from] OutsideCpuset),
    /// Nothing to replicate.
    #[error("a replicated region of 0 bytes; it must have one at least")]
    Empty,
    /// A copy is larger than all memory of its node.
    #[error(
        "a copy of {size} bytes: node {node} has {memory} in all; make it smaller, or name nodes with more memory"
    )]
    TooLarge {
        /// Requested bytes.
        size: usize,
        /// The node that is too small.
        node: NodeId,
        /// Its memory.
        memory: Bytes,
    },
    /// Not enough address space.
    #[error("{copies} copies of {size} bytes are more than a process has addresses for")]
    Addresses {
        /// Requested bytes.
        size: usize,
        /// Number of copies.
        copies: usize,
    },
    /// The kernel provides no memory, or no file for it.
    #[error("{copies} copies of {size} bytes: {call} failed: {source}")]
    Call {
        /// Requested bytes.
        size: usize,
        /// Number of copies.
        copies: usize,
        /// The failed system call.
        call: &'static str,
        /// The errno.
        source: std::io::Error,
    },
    /// The kernel does not bind memory to a node.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

impl ReplicatedError {
    /// The corresponding errno.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Spec(
                RegionSpecError::Nodes(
                    NodeSetError::Absent { .. } | NodeSetError::NoSuchNodes { .. },
                )
                | RegionSpecError::NoNodes,
            ) => libc::ENODEV,
            Self::Spec(_) | Self::Empty => libc::EINVAL,
            Self::Machine(_) => libc::ENOSYS,
            Self::TooLarge { .. } | Self::Addresses { .. } => libc::ENOMEM,
            Self::Call { source, .. } | Self::Policy(PolicyError::Call { source, .. }) => {
                source.raw_os_error().unwrap_or(libc::EIO)
            }
            Self::Cpuset(_) | Self::Policy(_) => libc::EPERM,
        }
    }
}

/// All regions of the process by order of creation, and the number created.
type All = (u64, BTreeMap<u64, Weak<Region>>);

static ALL: Mutex<All> = Mutex::new((0, BTreeMap::new()));

/// Holds the lock on [`ALL`] while the process forks.
struct AcrossFork(UnsafeCell<Option<MutexGuard<'static, All>>>);

// SAFETY: accessed only with the lock held: by [`before_fork`], which takes it, and after the fork by the thread that
// holds it still.
unsafe impl Sync for AcrossFork {}

static ACROSS_FORK: AcrossFork = AcrossFork(UnsafeCell::new(None));

/// Takes the lock. No fork happens while it is held, so that no child finds it locked for ever.
fn lock() -> MutexGuard<'static, All> {
    static FORKS_WAIT: AtomicBool = AtomicBool::new(false);
    if !FORKS_WAIT.swap(true, Ordering::Relaxed) {
        // jemalloc's handlers come first, so that before a fork this lock is taken before jemalloc's.
        arena::wake();
        // SAFETY: functions that may be called around any fork. A child that is forked before they are registered may
        // find the lock held.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork)) };
    }
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

unsafe extern "C" fn before_fork() {
    let held = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: this thread holds the lock.
    unsafe { *ACROSS_FORK.0.get() = Some(held) };
}

unsafe extern "C" fn after_fork() {
    // SAFETY: this thread, or its copy in the child, holds the lock.
    drop(unsafe { (*ACROSS_FORK.0.get()).take() });
}

/// Creates a region of `size` zeroes from its text.
///
/// # Errors
/// [`ReplicatedError`]; nothing is made then.
pub(crate) fn create(text: &str, size: usize) -> Result<Arc<Region>, ReplicatedError> {
    let spec: RegionSpec = text.parse()?;
    if size == 0 {
        return Err(ReplicatedError::Empty);
    }
    let fs = RootFs::live()?;
    let machine = machine::read(&fs);
    let cpus = affinity::get().unwrap_or_default();
    let allowed = mempolicy::nodes_allowed();
    let nodes = spec.on(&machine, &cpus, allowed.as_ref())?;
    OutsideCpuset::check(&nodes.iter().copied().collect(), allowed)?;
    let copies = nodes.len();
    let layout = Layout::new(size, spec.granule, copies)
        .ok_or(ReplicatedError::Addresses { size, copies })?;
    fits(&fs, &layout, &nodes, size)?;
    let memory = Shared::new(layout, &nodes).map_err(|refused| match refused {
        Refused::Policy(error) => error.into(),
        Refused::Call(call, errno) => {
            let source = std::io::Error::from_raw_os_error(errno);
            ReplicatedError::Call { size, copies, call, source }
        }
    })?;
    let region = Arc::new(Region {
        memory,
        size,
        granule_bits: spec.granule.trailing_zeros(),
        rule: Rule { quiet_ms: spec.quiet_ms, collapses_most: spec.collapses.unwrap_or(u64::MAX) },
        text: text.to_string(),
        here: by_cpu(&machine, &nodes),
        nodes,
    });
    let mut all = lock();
    let (made, known) = &mut *all;
    *made += 1;
    // Removes dead entries from time to time, all at once, so that dropping a region needs no search.
    if known.len() >= 64 && made.is_multiple_of(64) {
        known.retain(|_, region| region.strong_count() > 0);
    }
    known.insert(*made, Arc::downgrade(&region));
    drop(all);
    Ok(region)
}

/// Refuses copies that are larger than all memory of a node.
fn fits(
    fs: &dyn Fs,
    layout: &Layout,
    nodes: &[NodeId],
    size: usize,
) -> Result<(), ReplicatedError> {
    for node in nodes {
        let Some(found) = meminfo::of_node(fs, *node) else { continue };
        if layout.of_copy() as u64 > found.total.0 {
            return Err(ReplicatedError::TooLarge { size, node: *node, memory: found.total });
        }
    }
    Ok(())
}

/// By CPU, the copy of its node or the nearest by the firmware's distances.
fn by_cpu(machine: &Topology, nodes: &[NodeId]) -> Vec<u16> {
    let mut here = Vec::new();
    for (from, node) in &machine.nodes {
        let distance = |to: &NodeId| {
            let stated = machine.distance(*from, *to);
            if from == to { 0 } else { stated.unwrap_or(u32::MAX) }
        };
        let nearest = nodes.iter().enumerate().min_by_key(|(_, to)| distance(to));
        let copy = nearest.and_then(|(copy, _)| u16::try_from(copy).ok()).unwrap_or(0);
        for cpu in &node.cpus {
            let Ok(cpu) = usize::try_from(cpu.0) else { continue };
            if here.len() <= cpu {
                here.resize(cpu + 1, 0);
            }
            here[cpu] = copy;
        }
    }
    here
}

/// All existing regions.
pub(crate) fn all() -> Vec<Arc<Region>> {
    lock().1.values().filter_map(Weak::upgrade).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_topology::testkit;

    #[test]
    fn every_cpu_has_the_copy_of_its_node_or_the_nearest() {
        let mut machine = testkit::dram_and_cxl();
        let cpus = machine.nodes[&NodeId(0)].cpus.clone();
        assert_eq!(by_cpu(&machine, &[NodeId(0), NodeId(1)]), vec![0; cpus.len()]);
        assert_eq!(by_cpu(&machine, &[NodeId(1), NodeId(0)]), vec![1; cpus.len()]);
        // Two nodes with CPUs but without a copy, and copies on a near and a far node.
        for (id, cpu) in [(2, 70), (3, 71)] {
            let node = nearfar_topology::Node {
                cpus: vec![nearfar_topology::CpuId(cpu)],
                ..machine.nodes[&NodeId(0)].clone()
            };
            machine.nodes.insert(NodeId(id), node);
        }
        for (from, to, distance) in [(2, 0, 30), (2, 1, 20), (3, 0, 11), (3, 1, 40)] {
            machine.distances.entry(NodeId(from)).or_default().insert(NodeId(to), distance);
        }
        let here = by_cpu(&machine, &[NodeId(0), NodeId(1)]);
        assert_eq!((here.len(), here[70], here[71]), (72, 1, 0));
    }

    #[test]
    fn each_error_has_its_errno() {
        for (text, size, errno) in [
            ("nowhere", 1, libc::EINVAL),
            (";granule=3", 1, libc::EINVAL),
            ("0;home=5", 1, libc::EINVAL),
            ("1000", 1, libc::ENODEV),
            ("", 0, libc::EINVAL),
            ("", usize::MAX, libc::ENOMEM),
            ("0", 1 << 50, libc::ENOMEM),
        ] {
            let error = create(text, size).unwrap_err();
            assert_eq!(error.errno(), errno, "{text}, {size}: {error}");
        }
        assert!(
            create("0", 1 << 50)
                .unwrap_err()
                .to_string()
                .starts_with("a copy of 1125899906842624 bytes: node 0 has")
        );
    }
}
