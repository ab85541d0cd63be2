//! From a kind in words to one at work: what is asked of the machine.
#![expect(unsafe_code, reason = "a kind that nobody knows is ended")]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use nearfar_kernel::affinity;
use nearfar_kernel::fs::{self, RootFs};
use nearfar_kernel::mempolicy::{self, Existing, Policy, PolicyError, Prepared};
use nearfar_topology::{Bytes, NodeId, NodeSet, NodeSetError, Overrides, Topology};

use crate::kind::{self, DEFAULT, Plan};
use crate::placing::{Placing, Rounds};
use crate::spec::{Place, Placed, Spec, SpecError};
use crate::{haste, sys};

/// How long what was read of the machine is taken for what it is.
const FRESH_MS: u64 = 1000;

/// Why a kind can't be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KindError {
    /// It is not written as kinds are, or names what is not there.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// This system does not show its nodes.
    #[error("memory nodes can't be read: {0}")]
    Machine(#[from] fs::FsError),
    /// Nodes that are there, of which this process may have no memory.
    #[error(
        "{nodes}: the cpuset of this process lets it have memory of nodes {allowed} only (Mems_allowed_list in \
         /proc/self/status); write those, or have cpuset.mems of its cgroup widened"
    )]
    Cpuset {
        /// Those that were asked for and are not allowed.
        nodes: NamedNodes,
        /// Those that are.
        allowed: NodeSet,
    },
    /// The kernel does not take the policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// There are as many kinds as there can be, or no memory for another.
    #[error("no more memory kinds: there can be {most} at a time, and address space for them is needed", most = kind::KINDS_MOST)]
    TooMany,
}

/// Nodes, named as a sentence begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedNodes(pub NodeSet);

impl core::fmt::Display for NamedNodes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} {}", if self.0.len() == 1 { "node" } else { "nodes" }, self.0)
    }
}

impl KindError {
    /// The errno that says the same.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Spec(
                SpecError::Nodes(NodeSetError::Absent { .. } | NodeSetError::NoSuchNodes { .. })
                | SpecError::Unstated { .. },
            ) => libc::ENODEV,
            Self::Spec(_) => libc::EINVAL,
            Self::Machine(_) | Self::Policy(PolicyError::Unsupported { .. }) => libc::ENOSYS,
            Self::Policy(_) | Self::Cpuset { .. } => libc::EPERM,
            Self::TooMany => libc::ENOMEM,
        }
    }
}

/// Makes a kind that is written in words; its handle.
///
/// # Errors
/// [`KindError`]; nothing is made then.
pub(crate) fn create(text: &str) -> Result<u32, KindError> {
    create_over(text, None)
}

/// As [`create`], with a kind that gives what this one can't, unless its words name one.
///
/// # Errors
/// [`KindError`]; nothing is made then.
pub(crate) fn create_over(text: &str, under: Option<u32>) -> Result<u32, KindError> {
    let Spec { place, limit, spill, huge } = text.parse()?;
    let bytes = |bytes: Bytes| usize::try_from(bytes.0).unwrap_or(usize::MAX);
    let plan = |place: &Place, limit: Option<Bytes>| {
        let placing = placing(place)?;
        let text = text.to_string();
        Ok::<_, KindError>(Plan { placing, text, limit: limit.map(bytes), huge, ..Plan::default() })
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
    kind::create_with_spill(first, second).ok_or(KindError::TooMany)
}

fn placing(place: &Place) -> Result<Placing, KindError> {
    if *place == Place::Default {
        return Ok(Placing::Anywhere);
    }
    let fs = RootFs::live()?;
    let machine = read(&fs);
    let cpus = affinity::get().unwrap_or_default();
    let one = |policy: Policy| Ok(Placing::One(tried(&policy)?));
    let placed = place.on(&machine, &cpus)?;
    all_allowed(&placed, mempolicy::nodes_allowed())?;
    match placed {
        Placed::Default => Ok(Placing::Anywhere),
        Placed::Bind(nodes) => one(Policy::Bind(nodes)),
        Placed::Prefer(nodes) => one(Policy::preferring(nodes)),
        Placed::Interleave(nodes) => one(Policy::Interleave(nodes)),
        Placed::Weighted(nodes) => one(Policy::WeightedInterleave(nodes)),
        Placed::Weights(own) => {
            let part = |(node, weight): (&NodeId, &u8)| {
                Ok((tried(&Policy::Bind([*node].into_iter().collect()))?, *weight))
            };
            let parts = own.iter().map(part).collect::<Result<_, KindError>>()?;
            Ok(Placing::Rounds(Rounds::new(parts)))
        }
    }
}

/// The kernel drops nodes that a cpuset does not allow from a policy, as long as one is left: a kind on the others would be one
/// of fewer nodes than were asked for.
fn all_allowed(placed: &Placed, allowed: Option<NodeSet>) -> Result<(), KindError> {
    let Some(allowed) = allowed else { return Ok(()) };
    let beyond: NodeSet = match placed {
        Placed::Default => return Ok(()),
        Placed::Bind(nodes)
        | Placed::Prefer(nodes)
        | Placed::Interleave(nodes)
        | Placed::Weighted(nodes) => nodes.iter().filter(|node| !allowed.contains(*node)).collect(),
        Placed::Weights(own) => {
            own.keys().copied().filter(|node| !allowed.contains(*node)).collect()
        }
    };
    if beyond.is_empty() {
        return Ok(());
    }
    Err(KindError::Cpuset { nodes: NamedNodes(beyond), allowed })
}

/// Memory for one object, in a place of its own that is written in words, without options.
///
/// # Errors
/// [`KindError`]; [`KindError::TooMany`] also if there is no memory.
pub(crate) fn allocate_placed(text: &str, size: usize) -> Result<NonNull<u8>, KindError> {
    static APART: AtomicU32 = AtomicU32::new(DEFAULT);
    let place = placing(&text.parse()?)?;
    let mut handle = APART.load(Ordering::Acquire);
    if handle == DEFAULT {
        let plan = Plan { placing: Placing::Apart, text: "placed".to_string(), ..Plan::default() };
        let made = kind::create(plan).ok_or(KindError::TooMany)?;
        let (order, otherwise) = (Ordering::AcqRel, Ordering::Acquire);
        handle = APART.compare_exchange(DEFAULT, made, order, otherwise).map_or_else(
            |other| {
                // SAFETY: nothing was allocated from it, and nobody knows it.
                unsafe { kind::destroy(made) };
                other
            },
            |_| made,
        );
    }
    let kind = kind::find(handle).ok_or(KindError::TooMany)?;
    let object = kind.object_placed(size.max(1), 1, Some(&place)).ok_or(KindError::TooMany)?;
    let object = NonNull::new(object as *mut u8);
    #[cfg(feature = "checked")]
    let object = crate::checked::noted(object);
    object.ok_or(KindError::TooMany)
}

/// The machine, read once in a while: a program may make many kinds at a time, and nodes come and go seldom.
pub(crate) fn read(fs: &RootFs) -> Arc<Topology> {
    static READ: Mutex<Option<(u64, Arc<Topology>)>> = Mutex::new(None);
    let now = haste::now_ms();
    // A child of fork may find it locked for ever; then it reads for itself.
    let mut known = READ.try_lock().ok();
    let fresh = known.as_deref().and_then(Option::as_ref).filter(|(at, _)| now - at < FRESH_MS);
    if let Some((_, machine)) = fresh {
        return Arc::clone(machine);
    }
    let machine = Arc::new(fs::topology(fs, &Overrides::new()).0);
    if let Some(known) = &mut known {
        **known = Some((now, Arc::clone(&machine)));
    }
    machine
}

/// A policy that the kernel has taken for a page, so that it takes it later.
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
    fn what_is_wrong_has_its_errno() {
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
            let refused = all_allowed(&placed, allowed()).unwrap_err();
            let said = refused.to_string();
            assert!(
                said.starts_with("node 1: the cpuset") && said.contains("nodes 0,2 only"),
                "{said}"
            );
            assert_eq!(refused.errno(), libc::EPERM);
            // A sandbox that does not say what is allowed forbids nothing.
            assert!(all_allowed(&placed, None).is_ok());
        }
        let said = all_allowed(&Placed::Bind(nodes(&[1, 3])), allowed()).unwrap_err().to_string();
        assert!(said.starts_with("nodes 1,3: "), "{said}");
        for placed in [Placed::Default, Placed::Bind(nodes(&[0, 2])), Placed::Prefer(nodes(&[2]))] {
            assert!(all_allowed(&placed, allowed()).is_ok(), "{placed:?}");
        }
    }
}
