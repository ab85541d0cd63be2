//! Creates a kind from its text: reads the machine and checks that it can provide the kind.
#![expect(unsafe_code, reason = "a kind that nobody knows is ended")]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use nearfar_kernel::affinity;
use nearfar_kernel::fs::{self, Extent, RootFs};
use nearfar_kernel::mempolicy::{self, Existing, Policy, PolicyError, Prepared};
use nearfar_topology::{Bytes, Node, NodeId, NodeSet, NodeSetError, Topology};

use crate::growth::HOOKS;
use crate::kind::{self, DEFAULT, Plan};
use crate::placing::{Placing, Rounds};
use crate::room::Bound;
use crate::spec::{Place, Placed, Spec, SpecError};
use crate::{haste, sys};

/// How long a reading of the machine is reused.
const FRESH_MS: u64 = 1000;

/// Reasons why a kind can't be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KindError {
    /// The text is not a kind, or names nodes that do not exist.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The system does not show its nodes.
    #[error("memory nodes can't be read: {0}")]
    Machine(#[from] fs::FsError),
    /// Existing nodes of which this process may not allocate memory.
    #[error(transparent)]
    Cpuset(#[from] OutsideCpuset),
    /// The kernel rejects the policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// There are too many kinds, or there is no memory for another.
    #[error("no more memory kinds: there can be {most} at a time, and address space for them is needed", most = kind::KINDS_MOST)]
    TooMany,
}

/// Existing nodes of which this process may not allocate memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} {nodes}: the cpuset of this process allows memory of nodes {allowed} only (Mems_allowed_list in \
     /proc/self/status); write those, or have cpuset.mems of its cgroup widened",
    if nodes.len() == 1 { "node" } else { "nodes" }
)]
pub struct OutsideCpuset {
    /// Nodes that were requested and are not allowed.
    pub nodes: NodeSet,
    /// The allowed nodes.
    pub allowed: NodeSet,
}

impl OutsideCpuset {
    /// Refuses `nodes` that are not among the `allowed` ones; no cpuset allows all.
    pub(crate) fn check(nodes: &NodeSet, allowed: Option<NodeSet>) -> Result<(), Self> {
        let Some(allowed) = allowed else { return Ok(()) };
        let nodes = nodes.without(&allowed);
        if nodes.is_empty() { Ok(()) } else { Err(Self { nodes, allowed }) }
    }
}

impl KindError {
    /// The corresponding errno.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Spec(
                SpecError::Nodes(NodeSetError::Absent { .. } | NodeSetError::NoSuchNodes { .. })
                | SpecError::Unstated { .. },
            ) => libc::ENODEV,
            Self::Spec(_) => libc::EINVAL,
            Self::Machine(_) | Self::Policy(PolicyError::Unsupported { .. }) => libc::ENOSYS,
            Self::Policy(_) | Self::Cpuset(_) => libc::EPERM,
            Self::TooMany => libc::ENOMEM,
        }
    }
}

/// Creates a kind from its text; returns its handle.
///
/// # Errors
/// [`KindError`]; nothing is made then.
pub(crate) fn create(text: &str) -> Result<u32, KindError> {
    create_over(text, None)
}

/// As [`create`], spilling to the kind `under` unless the text names another.
///
/// # Errors
/// [`KindError`]; nothing is made then.
pub(crate) fn create_over(text: &str, under: Option<u32>) -> Result<u32, KindError> {
    let Spec { place, limit, spill, huge } = text.parse()?;
    let bytes = |bytes: Bytes| usize::try_from(bytes.0).unwrap_or(usize::MAX);
    let plan = |place: &Place, limit: Option<Bytes>| {
        let (placing, bound) = placing(place)?;
        let (text, limit) = (text.to_string(), limit.map(bytes));
        Ok::<_, KindError>(Plan { placing, bound, text, limit, huge, ..Plan::default() })
    };
    let mut first = plan(&place, limit)?;
    first.spill = under;
    let second = match &spill {
        Some(Place::Default) => {
            first.spill = Some(DEFAULT);
            None
        }
        other => other.as_ref().map(|place| plan(place, None)).transpose()?,
    };
    kind::create_with_spill(first, second, &HOOKS).ok_or(KindError::TooMany)
}

fn placing(place: &Place) -> Result<(Placing, Bound), KindError> {
    if *place == Place::Default {
        return Ok(Default::default());
    }
    let one = |policy: Policy| Ok((Placing::One(tried(&policy)?), Bound::default()));
    // Reading only node numbers keeps program starts cheap. Errors are reported with full knowledge of the machine.
    let by_number = place.is_by_number().then(|| place.on(&numbers()?, &[]).ok()).flatten();
    let placed = match by_number {
        Some(placed) => placed,
        None => place.on(&read(&RootFs::live()?), &affinity::get().unwrap_or_default())?,
    };
    all_allowed(&placed, mempolicy::nodes_allowed())?;
    match placed {
        Placed::Default => Ok(Default::default()),
        Placed::Bind(nodes) => {
            let (placing, _) = one(Policy::Bind(nodes.clone()))?;
            Ok((placing, Bound { nodes, each: false }))
        }
        Placed::Prefer(nodes) => one(Policy::preferring(nodes)),
        Placed::Interleave(nodes) => one(Policy::Interleave(nodes)),
        Placed::Weighted(nodes) => one(Policy::WeightedInterleave(nodes)),
        Placed::Weights(own) => {
            let part = |(node, weight): (&NodeId, &u8)| {
                Ok((tried(&Policy::Bind([*node].into_iter().collect()))?, *weight))
            };
            let parts = own.iter().map(part).collect::<Result<_, KindError>>()?;
            let bound = Bound { nodes: own.keys().copied().collect(), each: true };
            Ok((Placing::Rounds(Rounds::new(parts)), bound))
        }
    }
}

/// Refuses nodes that the cpuset does not allow. The kernel silently drops them from a policy as long as one is left,
/// so the kind would have fewer nodes than requested.
fn all_allowed(placed: &Placed, allowed: Option<NodeSet>) -> Result<(), OutsideCpuset> {
    match placed {
        Placed::Default => Ok(()),
        Placed::Bind(nodes)
        | Placed::Prefer(nodes)
        | Placed::Interleave(nodes)
        | Placed::Weighted(nodes) => OutsideCpuset::check(nodes, allowed),
        Placed::Weights(own) => OutsideCpuset::check(&own.keys().copied().collect(), allowed),
    }
}

/// Allocates one object with its own placement, written as a kind without options.
///
/// # Errors
/// [`KindError`]; [`KindError::TooMany`] also if there is no memory.
pub(crate) fn allocate_placed(text: &str, size: usize) -> Result<NonNull<u8>, KindError> {
    static APART: AtomicU32 = AtomicU32::new(DEFAULT);
    let (place, _) = placing(&text.parse()?)?;
    let mut handle = APART.load(Ordering::Acquire);
    if handle == DEFAULT {
        let plan = Plan { placing: Placing::Apart, text: "placed".to_string(), ..Plan::default() };
        let made = kind::create(plan, &HOOKS).ok_or(KindError::TooMany)?;
        let (order, otherwise) = (Ordering::AcqRel, Ordering::Acquire);
        handle = APART.compare_exchange(DEFAULT, made, order, otherwise).map_or_else(
            |other| {
                // SAFETY: nothing was allocated from it, and no other thread knows it.
                unsafe { kind::destroy(made) };
                other
            },
            |_| made,
        );
    }
    let kind = kind::find(handle).ok_or(KindError::TooMany)?;
    let object = kind.object_placed(size.max(1), 1, Some(&place)).ok_or(KindError::TooMany)?;
    NonNull::new(object as *mut u8).ok_or(KindError::TooMany)
}

/// A topology with only the numbers of the nodes with memory.
fn numbers() -> Option<Topology> {
    let mut text = [0; 1024];
    let length = sys::read_file(c"/sys/devices/system/node/has_memory", &mut text)?;
    let nodes = NodeSet::parse_list(core::str::from_utf8(&text[..length]).ok()?.trim())?;
    let some = Node { size: Bytes(1), ..Node::default() };
    let nodes = nodes.iter().map(|node| (node, some.clone())).collect();
    Some(Topology { nodes, ..Topology::default() })
}

/// Nodes with their kinds and tiers, cached for a while: a program may make many kinds at a time, and nodes rarely
/// change.
pub(crate) fn read(fs: &RootFs) -> Arc<Topology> {
    static READ: Mutex<Option<(u64, Arc<Topology>)>> = Mutex::new(None);
    // Another thread may be quicker from here to the lock, and be later than this.
    let now = haste::now_ms();
    // In a child of fork the lock may be held for ever; then the child reads the machine itself.
    let mut known = READ.try_lock().ok();
    let fresh = known
        .as_deref()
        .and_then(Option::as_ref)
        .filter(|(at, _)| now.saturating_sub(*at) < FRESH_MS);
    if let Some((_, machine)) = fresh {
        return Arc::clone(machine);
    }
    let machine = Arc::new(fs::part(fs, Extent::Ranks));
    if let Some(known) = &mut known {
        **known = Some((now, Arc::clone(&machine)));
    }
    machine
}

/// Tries a policy on a page, so that a policy the kernel rejects is reported now.
fn tried(policy: &Policy) -> Result<Prepared, KindError> {
    let page = sys::map(sys::PAGE).ok_or(KindError::TooMany)?.as_ptr() as usize;
    let taken = mempolicy::bind(page, sys::PAGE, policy, Existing::Stay);
    sys::unmap_own(page, sys::PAGE);
    taken?;
    Ok(policy.prepare())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_has_its_errno() {
        for (text, errno) in
            [("nowhere", libc::EINVAL), ("bind:1000", libc::ENODEV), ("near;limit=x", libc::EINVAL)]
        {
            assert_eq!(create(text).unwrap_err().errno(), errno, "{text}");
        }
    }

    #[test]
    fn nodes_that_the_cpuset_does_not_allow_are_refused_by_name() {
        let nodes = |ids: &[u16]| ids.iter().copied().map(NodeId).collect::<NodeSet>();
        let allowed = || Some(nodes(&[0, 2]));
        for placed in [
            Placed::Bind(nodes(&[0, 1, 2])),
            Placed::Prefer(nodes(&[1])),
            Placed::Interleave(nodes(&[0, 1])),
            Placed::Weighted(nodes(&[1, 2])),
            Placed::Weights([(NodeId(0), 3), (NodeId(1), 1)].into()),
        ] {
            let refused = KindError::from(all_allowed(&placed, allowed()).unwrap_err());
            let said = refused.to_string();
            assert!(
                said.starts_with("node 1: the cpuset") && said.contains("nodes 0,2 only"),
                "{said}"
            );
            assert_eq!(refused.errno(), libc::EPERM);
            // A sandbox that does not show the allowed nodes restricts nothing.
            assert!(all_allowed(&placed, None).is_ok());
        }
        let said = all_allowed(&Placed::Bind(nodes(&[1, 3])), allowed()).unwrap_err().to_string();
        assert!(said.starts_with("nodes 1,3: "), "{said}");
        for placed in [Placed::Default, Placed::Bind(nodes(&[0, 2])), Placed::Prefer(nodes(&[2]))] {
            assert!(all_allowed(&placed, allowed()).is_ok(), "{placed:?}");
        }
    }
}
