//! Resolution of a container's request on a machine, within its cpuset: pure.
//!
//! The container must stay within its `cpuset.mems`. A policy whose nodes are partly outside gets those inside, with a
//! note; wholly outside is an error, since the kernel would refuse it as the container starts (EINVAL). With
//! `nearfar.io/mems: widen` the cpuset gets the missing nodes instead.
//!
//! Nodes are physical, so policies with nodes have the flag MPOL_F_STATIC_NODES: without it the kernel maps the nodes of
//! a policy set outside the container's cpuset to other ones as the container enters it, and again whenever the cpuset
//! changes. Relative nodes of a memory-policy plugin's annotation are left as they are.

use nearfar_kernel::mempolicy::Flags;
use nearfar_spec::HeapError;
use nearfar_spec::spec::{Placed, SpecError};
use nearfar_topology::{Bytes, NodeSet};

use crate::annotations::{Memory, Named, Request};
use crate::intel::{Around, IntelPolicy, Nodes};
use crate::policy::{MemoryPolicy, Mode};
use crate::seat::Seat;

/// The settings with which a container starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    /// The policy of its memory; `None` leaves the runtime's.
    pub policy: Option<MemoryPolicy>,
    /// A wider `cpuset.mems`, if it must change.
    pub mems: Option<NodeSet>,
    /// `NEARFAR_CONF` of the preload library.
    pub heap: Option<String>,
    /// Budget of near memory, as maximum and minimum.
    pub near: Option<(Option<Bytes>, Option<Bytes>)>,
    /// Messages for the user.
    pub notes: Vec<String>,
}

/// Reasons why a request can't be met on this machine. Each names the annotation and its value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// The kind names nodes that do not exist here.
    #[error("{key}={text}: {why}")]
    Kind {
        /// The annotation.
        key: String,
        /// Its value.
        text: String,
        /// The reason.
        why: Box<SpecError>,
    },
    /// The heap is not possible here.
    #[error("{key}={text}: {why}")]
    Heap {
        /// The annotation.
        key: String,
        /// Its value.
        text: String,
        /// The reason.
        why: Box<HeapError>,
    },
    /// No node is left.
    #[error("{key}={text}: {found}; this machine has {has}")]
    NoNodes {
        /// The annotation.
        key: String,
        /// Its value.
        text: String,
        /// The reason.
        found: String,
        /// The machine's nodes, in words.
        has: String,
    },
    /// All nodes are outside the cpuset.
    #[error(
        "{key}={text}: its nodes {nodes} are outside the container's cpuset (mems {mems}); name nodes within it, or add the \
         annotation nearfar.io/mems: widen"
    )]
    Outside {
        /// The annotation.
        key: String,
        /// Its value.
        text: String,
        /// Its nodes.
        nodes: NodeSet,
        /// The cpuset's.
        mems: NodeSet,
    },
}

/// The settings that meet `request` for the container at `seat`.
///
/// # Errors
/// [`ResolveError`].
pub fn resolve(request: &Request, seat: &Seat<'_>) -> Result<Resolved, ResolveError> {
    let budget = (request.near_max, request.near_min);
    let near = (budget != (None, None)).then_some(budget);
    let mut resolved = Resolved { near, ..Resolved::default() };
    if let Some(memory) = &request.memory {
        place(memory, request.widens, seat, &mut resolved)?;
    }
    if let Some(heap) = &request.heap {
        let checked = nearfar_spec::check(&heap.value, seat.machine, &seat.cpus);
        let refused = |why| ResolveError::Heap {
            key: heap.key.clone(),
            text: heap.text.clone(),
            why: Box::new(why),
        };
        resolved.heap = Some(checked.map_err(refused)?);
    }
    Ok(resolved)
}

fn place(
    memory: &Named<Memory>,
    widens: bool,
    seat: &Seat<'_>,
    resolved: &mut Resolved,
) -> Result<(), ResolveError> {
    let mut policy = match &memory.value {
        Memory::Kind(kind) => {
            let refused = |why| ResolveError::Kind {
                key: memory.key.clone(),
                text: memory.text.clone(),
                why: Box::new(why),
            };
            of_kind(kind.on(seat.machine, &seat.cpus).map_err(refused)?)
        }
        Memory::Policy(policy) => of_intel(policy, seat),
    };
    let none = |found: String| ResolveError::NoNodes {
        key: memory.key.clone(),
        text: memory.text.clone(),
        found,
        has: seat.machine.inventory(),
    };
    if policy.mode.has_nodes() && policy.nodes.is_empty() {
        return Err(none("it names no node with memory here".into()));
    }
    if policy.flags.relative_nodes {
        // Counted within the cpuset, so there is nothing to intersect.
        resolved.policy = Some(policy);
        return Ok(());
    }
    let with_memory = seat.machine.memory_nodes();
    let absent: NodeSet = policy.nodes.without(&with_memory);
    if !absent.is_empty() {
        return Err(none(format!("no node {absent} with memory here")));
    }
    within(memory, widens, seat, (&mut policy, resolved))?;
    if policy.mode == Mode::Preferred {
        // The kernel has one preferred node: the first.
        policy.nodes = policy.nodes.iter().take(1).collect();
    }
    policy.flags.static_nodes = policy.mode.has_nodes();
    resolved.policy = Some(policy);
    Ok(())
}

/// Keeps the policy within the cpuset, or widens that.
fn within(
    memory: &Named<Memory>,
    widens: bool,
    seat: &Seat<'_>,
    (policy, resolved): (&mut MemoryPolicy, &mut Resolved),
) -> Result<(), ResolveError> {
    let Some(mems) = &seat.mems else { return Ok(()) };
    let outside: NodeSet = policy.nodes.without(mems);
    if outside.is_empty() {
        return Ok(());
    }
    let (key, text) = (&memory.key, &memory.text);
    if widens {
        let mems: NodeSet = mems.iter().chain(outside.iter()).collect();
        resolved.notes.push(format!("{key}={text}: the cpuset gets nodes {outside} (mems {mems})"));
        resolved.mems = Some(mems);
        return Ok(());
    }
    let inside: NodeSet = policy.nodes.iter().filter(|id| mems.contains(*id)).collect();
    if inside.is_empty() {
        let (nodes, mems) = (policy.nodes.clone(), mems.clone());
        return Err(ResolveError::Outside { key: key.clone(), text: text.clone(), nodes, mems });
    }
    resolved.notes.push(format!(
        "{key}={text}: nodes {outside} are outside the container's cpuset (mems {mems}) and left out"
    ));
    policy.nodes = inside;
    if policy.mode == Mode::PreferredMany && policy.nodes.len() == 1 {
        policy.mode = Mode::Preferred;
    }
    Ok(())
}

fn of_kind(placed: Placed) -> MemoryPolicy {
    let (mode, nodes) = match placed {
        Placed::Default => (Mode::Default, NodeSet::new()),
        Placed::Bind(nodes) => (Mode::Bind, nodes),
        Placed::Prefer(nodes) if nodes.len() == 1 => (Mode::Preferred, nodes),
        Placed::Prefer(nodes) => (Mode::PreferredMany, nodes),
        Placed::Interleave(nodes) => (Mode::Interleave, nodes),
        Placed::Weighted(nodes) => (Mode::WeightedInterleave, nodes),
        // Refused as annotations are read; the nodes are the best approximation.
        Placed::Weights(weights) => (Mode::WeightedInterleave, weights.into_keys().collect()),
    };
    MemoryPolicy { mode, nodes, flags: Flags::default() }
}

fn of_intel(policy: &IntelPolicy, seat: &Seat<'_>) -> MemoryPolicy {
    let all = seat.machine.memory_nodes();
    let around = Around {
        machine: seat.machine,
        mems: seat.mems.as_ref().unwrap_or(&all),
        cpus: &seat.cpus,
        packages: &seat.packages,
    };
    let has_nodes = policy.mode.has_nodes();
    let nodes = if has_nodes { policy.nodes.on(&around) } else { Nodes::None.on(&around) };
    MemoryPolicy { mode: policy.mode, nodes, flags: policy.flags }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::annotations::Classes;
    use nearfar_topology::testkit::dram_and_cxl;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn request(pairs: &[(&str, &str)]) -> Request {
        let pairs = pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        Request::read(&pairs, None, &Classes::new()).unwrap()
    }

    fn on(pairs: &[(&str, &str)], mems: Option<&str>) -> Result<Resolved, ResolveError> {
        let machine = dram_and_cxl();
        let mems = mems.map(|mems| NodeSet::parse_list(mems).unwrap());
        let seat = Seat { machine: &machine, mems, cpus: Vec::new(), packages: BTreeMap::new() };
        resolve(&request(pairs), &seat)
    }

    fn memory(text: &str, mems: Option<&str>) -> Result<String, String> {
        let resolved = on(&[("nearfar.io/memory", text)], mems).map_err(|why| why.to_string())?;
        Ok(resolved.policy.unwrap().to_string())
    }

    #[test]
    fn kinds_become_policies_with_physical_nodes() {
        for (text, policy) in [
            ("far", "bind=static:1"),
            ("bind:cxl", "bind=static:1"),
            ("prefer:far", "prefer=static:1"),
            ("prefer:all", "prefer (many)=static:0-1"),
            ("interleave:near,far", "interleave=static:0-1"),
            ("weighted:near,far", "weighted interleave=static:0-1"),
            ("default", "default"),
        ] {
            assert_eq!(memory(text, None).as_deref(), Ok(policy), "{text}");
        }
    }

    #[test]
    fn a_policy_stays_within_the_cpuset() {
        assert_eq!(memory("interleave:all", Some("0")).as_deref(), Ok("interleave=static:0"));
        assert_eq!(memory("prefer:all", Some("1")).as_deref(), Ok("prefer=static:1"));
        let notes = on(&[("nearfar.io/memory", "all")], Some("0")).unwrap().notes;
        assert!(notes[0].contains("nodes 1 are outside"), "{notes:?}");
        let outside = memory("far", Some("0")).unwrap_err();
        for part in ["nearfar.io/memory=far", "nodes 1", "mems 0", "widen"] {
            assert!(outside.contains(part), "{outside}");
        }
    }

    #[test]
    fn a_cpuset_is_widened_if_asked_and_needed() {
        let widen = ("nearfar.io/mems", "widen");
        let resolved = on(&[("nearfar.io/memory", "far"), widen], Some("0")).unwrap();
        assert_eq!(resolved.policy.unwrap().to_string(), "bind=static:1");
        assert_eq!(resolved.mems.unwrap().to_string(), "0-1");
        let resolved = on(&[("nearfar.io/memory", "near"), widen], Some("0")).unwrap();
        assert_eq!(resolved.mems, None);
    }

    #[test]
    fn absent_kinds_are_reported_with_the_annotation_and_the_existing_nodes() {
        for text in ["hbm", "bind:7", "interleave:near,pmem", "capacity-ish"] {
            let request = Request::read(
                &[("nearfar.io/memory".to_string(), text.to_string())].into(),
                None,
                &Classes::new(),
            );
            let Ok(request) = request else { continue };
            let machine = dram_and_cxl();
            let (cpus, packages) = (Vec::new(), BTreeMap::new());
            let seat = Seat { machine: &machine, mems: None, cpus, packages };
            let said = resolve(&request, &seat).unwrap_err().to_string();
            assert!(said.starts_with(&format!("nearfar.io/memory={text}: ")), "{said}");
            assert!(said.contains("this machine has"), "{said}");
        }
    }

    #[test]
    fn the_memory_policy_plugins_annotation_is_understood() {
        let policy = |text: &str, mems| {
            let resolved = on(&[("policy.memory-policy.nri.io", text)], mems);
            resolved.map(|resolved| resolved.policy.unwrap().to_string())
        };
        let text = "mode: MPOL_INTERLEAVE\nnodes: allowed-mems";
        assert_eq!(policy(text, None).unwrap(), "interleave=static:0-1");
        assert_eq!(policy(text, Some("1")).unwrap(), "interleave=static:1");
        let relative = "mode: MPOL_BIND\nnodes: 0-3\nflags: [MPOL_F_RELATIVE_NODES]";
        assert_eq!(policy(relative, Some("1")).unwrap(), "bind=relative:0-3");
        let preferred = "mode: MPOL_PREFERRED\nnodes: all";
        assert_eq!(policy(preferred, None).unwrap(), "prefer=static:0");
        assert_eq!(policy(preferred, Some("1")).unwrap(), "prefer=static:1");
        let absent = policy("mode: MPOL_BIND\nnodes: 0,9", None).unwrap_err().to_string();
        assert!(absent.contains("no node 9 with memory"), "{absent}");
    }

    #[test]
    fn a_heap_becomes_the_configuration_of_the_preload_library() {
        let resolved = on(&[("nearfar.io/heap", "far")], None).unwrap();
        assert_eq!(resolved.heap.as_deref(), Some("heap=far;spill=default"));
        let absent = on(&[("nearfar.io/heap", "hbm")], None).unwrap_err().to_string();
        assert!(absent.starts_with("nearfar.io/heap=hbm: "), "{absent}");
    }

    proptest! {
        #[test]
        fn a_resolved_policy_is_never_outside_the_final_cpuset(
            kind in prop::sample::select(vec!["far", "near", "all", "prefer:all", "interleave:all", "weighted:0,1"]),
            mems in prop::sample::select(vec!["0", "1", "0-1"]),
            widens in any::<bool>(),
        ) {
            let mut pairs = vec![("nearfar.io/memory", kind)];
            pairs.extend(widens.then_some(("nearfar.io/mems", "widen")));
            if let Ok(resolved) = on(&pairs, Some(mems)) {
                let mems = resolved.mems.unwrap_or_else(|| NodeSet::parse_list(mems).unwrap());
                let policy = resolved.policy.unwrap();
                prop_assert!(!policy.nodes.is_empty());
                prop_assert!(policy.nodes.iter().all(|node| mems.contains(node)));
            } else {
                prop_assert!(!widens);
            }
        }
    }
}
