//! Memory policies: the kernel's placement of pages that a thread touches, or of those of one mapping.
//!
//! A thread's policy is inherited by its children and kept across exec, which is all that `nearfar run` needs. It also
//! governs most of the kernel's allocations on the thread's behalf (page tables, for example). Not here: weights, which
//! are machine-wide ([`crate::weights`]), and descriptions of nodes (crate topology).

use std::fmt;
use std::io;

use libc::c_int;
use nearfar_topology::{NodeId, NodeSet};

use crate::sys::mempolicy as sys;

mod error;
mod flags;

pub use error::PolicyError;
pub use flags::Flags;

/// Linux's modes by number (include/uapi/linux/mempolicy.h).
mod mode {
    use libc::c_int;
    pub(super) const DEFAULT: c_int = 0;
    pub(super) const PREFERRED: c_int = 1;
    pub(super) const BIND: c_int = 2;
    pub(super) const INTERLEAVE: c_int = 3;
    pub(super) const LOCAL: c_int = 4;
    pub(super) const PREFERRED_MANY: c_int = 5;
    pub(super) const WEIGHTED_INTERLEAVE: c_int = 6;
    /// Flags are in the upper bits of a mode that is read.
    pub(super) const FLAGS: c_int = 0xe000;
}

/// A memory policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Policy {
    /// None: the system's default, which is local.
    Default,
    /// The node of the CPU that touches the page; others if it is full.
    Local,
    /// Only these nodes.
    Bind(NodeSet),
    /// This node; others if it is full.
    Preferred(NodeId),
    /// These nodes; others if they are full (Linux 5.15).
    PreferredMany(NodeSet),
    /// These nodes, page by page.
    Interleave(NodeSet),
    /// These nodes, in proportion to their weights (Linux 6.9).
    WeightedInterleave(NodeSet),
}

/// The treatment of pages that are already allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// They stay where they are.
    Stay,
    /// Those mapped only by this process migrate to conform to the policy.
    Move,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("the default policy"),
            Self::Local => f.write_str("local allocation"),
            Self::Bind(nodes) => write!(f, "binding to {}", nodes.named()),
            Self::Preferred(node) => write!(f, "preferring node {node}"),
            Self::PreferredMany(nodes) => write!(f, "preferring {}", nodes.named()),
            Self::Interleave(nodes) => write!(f, "interleaving over {}", nodes.named()),
            Self::WeightedInterleave(nodes) => {
                write!(f, "weighted interleaving over {}", nodes.named())
            }
        }
    }
}

/// A policy prepared to be set repeatedly without allocating, as an allocator needs it.
#[derive(Clone, Copy, Debug)]
pub struct Prepared {
    mode: c_int,
    mask: sys::Mask,
}

impl Prepared {
    /// As [`bind`].
    ///
    /// # Errors
    /// mbind's.
    pub fn bind(&self, address: usize, length: usize, existing: Existing) -> io::Result<()> {
        sys::mbind(address, length, self.mode, &self.mask, existing.flags())
    }
}

impl Existing {
    const fn flags(self) -> libc::c_uint {
        const MPOL_MF_MOVE: libc::c_uint = 2;
        match self {
            Self::Stay => 0,
            Self::Move => MPOL_MF_MOVE,
        }
    }
}

impl Policy {
    /// A policy that prefers these nodes: a single one by the older mode, which every kernel has.
    #[must_use]
    pub fn preferring(nodes: NodeSet) -> Self {
        let first = nodes.iter().next();
        match first.filter(|_| nodes.len() == 1) {
            Some(node) => Self::Preferred(node),
            None => Self::PreferredMany(nodes),
        }
    }

    /// The same policy, prepared.
    #[must_use]
    pub fn prepare(&self) -> Prepared {
        let (mode, mask) = self.raw();
        Prepared { mode, mask }
    }

    fn raw(&self) -> (c_int, sys::Mask) {
        let mut mask = sys::Mask::default();
        let mut add = |nodes: &NodeSet| {
            nodes.iter().for_each(|node| sys::insert(&mut mask, usize::from(node.0) % sys::NODES));
        };
        let mode = match self {
            Self::Default => mode::DEFAULT,
            Self::Local => mode::LOCAL,
            Self::Bind(nodes) => {
                add(nodes);
                mode::BIND
            }
            Self::Preferred(node) => {
                add(&[*node].into_iter().collect());
                mode::PREFERRED
            }
            Self::PreferredMany(nodes) => {
                add(nodes);
                mode::PREFERRED_MANY
            }
            Self::Interleave(nodes) => {
                add(nodes);
                mode::INTERLEAVE
            }
            Self::WeightedInterleave(nodes) => {
                add(nodes);
                mode::WEIGHTED_INTERLEAVE
            }
        };
        (mode, mask)
    }

    fn from_raw(raw: c_int, mask: &sys::Mask) -> Result<Self, PolicyError> {
        let nodes = in_mask(mask);
        Ok(match raw & !mode::FLAGS {
            mode::DEFAULT => Self::Default,
            mode::LOCAL => Self::Local,
            mode::BIND => Self::Bind(nodes),
            // Before Linux 5.14 local allocation read as preferring no node.
            mode::PREFERRED => nodes.iter().next().map_or(Self::Local, Self::Preferred),
            mode::PREFERRED_MANY => Self::PreferredMany(nodes),
            mode::INTERLEAVE => Self::Interleave(nodes),
            mode::WEIGHTED_INTERLEAVE => Self::WeightedInterleave(nodes),
            _ => return Err(PolicyError::Unknown { mode: raw }),
        })
    }

    /// The feature that a kernel may lack, and its first release.
    fn feature(&self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::PreferredMany(_) => Some(("preferred_many", "5.15")),
            Self::WeightedInterleave(_) => Some(("weighted_interleave", "6.9")),
            _ => None,
        }
    }

    fn refused(&self, call: &'static str, source: io::Error) -> PolicyError {
        let policy = self.clone();
        match (source.raw_os_error(), self.feature()) {
            (Some(libc::EINVAL), Some((feature, since)))
                if matches!(knows(self.raw().0), Ok(false)) =>
            {
                PolicyError::Unsupported { policy, feature, since }
            }
            (Some(libc::EINVAL), _) if call == SET => PolicyError::Nodes { policy, source },
            (Some(libc::EPERM), _) => PolicyError::Refused { policy, call, source },
            _ => PolicyError::Call { policy, call, source },
        }
    }
}

const SET: &str = "set_mempolicy";

/// Sets the calling thread's policy, for pages touched from now on. Children and exec inherit it.
///
/// # Errors
/// [`PolicyError`]; the policy is unchanged.
pub fn set(policy: &Policy) -> Result<(), PolicyError> {
    set_flagged(policy, Flags::default())
}

/// As [`set`], with flags.
///
/// # Errors
/// [`PolicyError`]; the policy is unchanged.
pub fn set_flagged(policy: &Policy, flags: Flags) -> Result<(), PolicyError> {
    let (mode, mask) = policy.raw();
    sys::set_mempolicy(mode | flags.raw(), &mask).map_err(|error| policy.refused(SET, error))
}

/// Binds the calling thread's memory to nodes as [`Policy::Bind`] does, but with NUMA balancing (MPOL_F_NUMA_BALANCING,
/// Linux 5.12), which otherwise skips memory with a policy: it migrates pages among these nodes only, and so, with one
/// node, reports their users without migrating them.
///
/// # Errors
/// [`PolicyError`]; the policy is unchanged.
pub fn bind_and_balance(nodes: &NodeSet) -> Result<(), PolicyError> {
    let flags = Flags { numa_balancing: true, ..Flags::default() };
    set_flagged(&Policy::Bind(nodes.clone()), flags)
}

/// The calling thread's policy.
///
/// # Errors
/// [`PolicyError::Get`] and [`PolicyError::Unknown`].
pub fn get() -> Result<Policy, PolicyError> {
    let (mode, mask) = sys::get_mempolicy().map_err(PolicyError::Get)?;
    Policy::from_raw(mode, &mask)
}

/// Sets the policy of this process's mappings from `address` (on a page boundary), over `length` bytes.
///
/// # Errors
/// [`PolicyError`].
pub fn bind(
    address: usize,
    length: usize,
    policy: &Policy,
    existing: Existing,
) -> Result<(), PolicyError> {
    let bound = policy.prepare().bind(address, length, existing);
    bound.map_err(|error| policy.refused("mbind", error))
}

/// Checks that no sandbox refuses mbind(2), by a range of no length, which changes nothing.
///
/// # Errors
/// [`PolicyError::Refused`].
pub fn permitted() -> Result<(), PolicyError> {
    match bind(0, 0, &Policy::Bind(allowed_nodes()), Existing::Stay) {
        Err(error @ PolicyError::Refused { .. }) => Err(error),
        _ => Ok(()),
    }
}

/// Whether the kernel supports preferring several nodes; tested by setting it, in a separate thread.
///
/// # Errors
/// The errno with which a sandbox refuses the call: then support is unknown.
pub fn knows_preferred_many() -> io::Result<bool> {
    knows(mode::PREFERRED_MANY)
}

/// Whether the kernel supports weighted interleave; tested by setting it, in a separate thread.
///
/// # Errors
/// As [`knows_preferred_many`].
pub fn knows_weighted_interleave() -> io::Result<bool> {
    knows(mode::WEIGHTED_INTERLEAVE)
}

/// Whether the kernel has set_mempolicy_home_node(2); tested with flags that no kernel accepts.
///
/// # Errors
/// As [`knows_preferred_many`].
pub fn knows_home_node() -> io::Result<bool> {
    answer(sys::set_mempolicy_home_node(0, 0, 0, 1))
}

/// Whether the kernel has move_pages(2); tested without pages.
///
/// # Errors
/// As [`knows_preferred_many`].
pub fn knows_move_pages() -> io::Result<bool> {
    answer(sys::move_no_pages())
}

/// Whether the kernel supports `mode`. The testing thread ends with the result, so no other thread's policy changes.
fn knows(mode: c_int) -> io::Result<bool> {
    let ask = move || {
        // All nodes: the kernel uses those that exist and are allowed.
        let mut mask = sys::Mask::default();
        allowed_nodes().iter().for_each(|node| sys::insert(&mut mask, usize::from(node.0)));
        match sys::set_mempolicy(mode, &mask) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
            asked => answer(asked),
        }
    };
    std::thread::spawn(ask).join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
}

/// Interprets a tried call: ENOSYS means that the kernel lacks it, EPERM or EACCES that a sandbox refused it.
fn answer(asked: io::Result<()>) -> io::Result<bool> {
    match asked.as_ref().err().and_then(io::Error::raw_os_error) {
        Some(libc::ENOSYS) => Ok(false),
        Some(libc::EPERM | libc::EACCES) => asked.map(|()| true),
        _ => Ok(true),
    }
}

/// The nodes whose memory this process may use; node 0 where the kernel does not report them.
#[must_use]
pub fn allowed_nodes() -> NodeSet {
    nodes_allowed().unwrap_or_else(|| [NodeId(0)].into_iter().collect())
}

/// The nodes whose memory the calling thread's cpuset permits; `None` if neither get_mempolicy(2) nor
/// `Mems_allowed_list` in /proc reports them.
#[must_use]
pub fn nodes_allowed() -> Option<NodeSet> {
    if let Ok(mask) = sys::mems_allowed() {
        return Some(in_mask(&mask));
    }
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"));
    list.and_then(NodeSet::parse_list)
}

fn in_mask(mask: &sys::Mask) -> NodeSet {
    let ids = (0..=NodeId::MAX.0).filter(|node| sys::contains(mask, usize::from(*node)));
    ids.map(NodeId).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn nodes(ids: &[u16]) -> NodeSet {
        ids.iter().copied().map(NodeId).collect()
    }

    /// Runs `check` in a separate thread, whose policy ends with it.
    fn apart<T: Send + 'static>(check: impl FnOnce() -> T + Send + 'static) -> T {
        std::thread::spawn(check).join().unwrap()
    }

    #[test]
    fn bind_with_numa_balancing_sets_the_bind_policy() {
        let bound = std::thread::spawn(|| {
            bind_and_balance(&[NodeId(0)].into_iter().collect()).unwrap();
            get()
        });
        let bound = bound.join().unwrap().unwrap();
        assert_eq!(bound, Policy::Bind([NodeId(0)].into_iter().collect()));
        let none = bind_and_balance(&[NodeId(1023)].into_iter().collect()).unwrap_err();
        assert!(matches!(none, PolicyError::Nodes { .. }), "{none}");
    }

    #[test]
    fn static_nodes_show_in_numa_maps_and_both_kinds_of_nodes_are_refused() {
        let flags = Flags { static_nodes: true, ..Flags::default() };
        let (maps, both) = apart(move || {
            set_flagged(&Policy::Bind(nodes(&[0])), flags).unwrap();
            let maps = std::fs::read_to_string("/proc/thread-self/numa_maps").unwrap();
            let both = Flags { relative_nodes: true, ..flags };
            (maps, set_flagged(&Policy::Bind(nodes(&[0])), both).is_err())
        });
        assert!(maps.contains(" bind=static:0 "), "{maps}");
        assert!(both);
    }

    #[test]
    fn modes_have_linuxs_numbers() {
        for (policy, number) in [
            (Policy::Default, 0),
            (Policy::Preferred(NodeId(1)), 1),
            (Policy::Bind(nodes(&[1])), 2),
            (Policy::Interleave(nodes(&[1])), 3),
            (Policy::Local, 4),
            (Policy::PreferredMany(nodes(&[1])), 5),
            (Policy::WeightedInterleave(nodes(&[1])), 6),
        ] {
            assert_eq!(policy.raw().0, number);
        }
    }

    #[test]
    fn the_node_mask_includes_the_highest_linux_node() {
        let (_, mask) = Policy::Bind(nodes(&[0, 63, 64, 1023])).raw();
        assert_eq!(mask[0], 1 | 1 << 63);
        assert_eq!((mask[1], mask[15]), (1, 1 << 63));
        assert_eq!(mask.iter().map(|word| word.count_ones()).sum::<u32>(), 4);
    }

    #[test]
    fn set_changes_only_the_policy_of_the_calling_thread() {
        let before = get().unwrap();
        let inside = apart(|| {
            set(&Policy::Bind(nodes(&[0]))).unwrap();
            get().unwrap()
        });
        assert_eq!(inside, Policy::Bind(nodes(&[0])));
        assert_eq!(get().unwrap(), before);
    }

    #[test]
    fn local_and_default_take_no_nodes() {
        for policy in [Policy::Local, Policy::Default] {
            let inside = {
                let policy = policy.clone();
                apart(move || {
                    set(&policy).unwrap();
                    get().unwrap()
                })
            };
            assert_eq!(inside, policy);
        }
    }

    #[test]
    fn absent_nodes_are_rejected_with_a_hint_at_the_allowed_list() {
        let error = apart(|| set(&Policy::Bind(nodes(&[1023]))).unwrap_err()).to_string();
        assert!(error.contains("node 1023") && error.contains("Mems_allowed_list"), "{error}");
    }

    #[test]
    fn nodes_allowed_are_those_of_the_threads_cpuset() {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let list = status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"));
        assert_eq!(nodes_allowed(), list.and_then(NodeSet::parse_list));
        assert!(nodes_allowed().unwrap().contains(NodeId(0)));
    }

    #[test]
    fn binding_unmapped_memory_returns_an_error_with_the_call() {
        let error = bind(1 << 12, 1 << 12, &Policy::Bind(nodes(&[0])), Existing::Stay).unwrap_err();
        assert!(error.to_string().contains("mbind"), "{error}");
    }

    #[test]
    fn own_memory_may_be_bound_and_keeps_its_content() {
        let page = 4096;
        let memory = vec![7_u8; 4 * page];
        let start = (memory.as_ptr() as usize).next_multiple_of(page);
        bind(start, 2 * page, &Policy::Bind(nodes(&[0])), Existing::Move).unwrap();
        assert!(memory.iter().all(|byte| *byte == 7));
    }

    proptest! {
        #[test]
        fn every_policy_reads_back(ids in prop::collection::btree_set(0u16..1024, 1..20), flags in 0..8) {
            let set: NodeSet = ids.into_iter().map(NodeId).collect();
            for policy in [
                Policy::Bind(set.clone()),
                Policy::PreferredMany(set.clone()),
                Policy::Interleave(set.clone()),
                Policy::WeightedInterleave(set),
            ] {
                let (mode, mask) = policy.raw();
                prop_assert_eq!(Policy::from_raw(mode | flags << 13, &mask).unwrap(), policy);
            }
        }
    }
}
