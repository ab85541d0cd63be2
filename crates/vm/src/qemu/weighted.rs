//! Weighted interleave, which QEMU lacks: the ways to have it, and the choice of one.
//!
//! Pages of a backend without a policy of its own follow the policy of the process, which QEMU inherits when it is started.
//! That is enough if all such memory is to be interleaved over the same nodes. Else each backend gets a file on a tmpfs
//! whose mount option is the policy. A QEMU with a policy of that name uses it. If the user asks for it, a preloaded
//! library turns QEMU's policy `interleave` into the weighted one instead: for huge pages of hugetlbfs, and without root.

use nearfar_topology::{Bytes, NodeSet};

use super::object::{Object, Target};
use super::words::Opt;
use super::{Placed, keyval};
use crate::error::VmError;
use crate::policy::Policy;
use crate::wish::POLICY;

/// Directory of the mounts, each below it by the id of its backend.
const DIR: &str = "/run/nearfar/vm";

/// The way to weighted interleave.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// QEMU's own policy, by its name.
    Native(String),
    /// The policy of the process, inherited by QEMU.
    Process,
    /// A file on a tmpfs with a policy.
    Tmpfs,
    /// QEMU's policy `interleave`, turned into the weighted one by a preloaded library.
    Preload,
}

/// A tmpfs to mount before QEMU starts.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Mount {
    /// The backend.
    pub id: String,
    /// The path of the file in the rewritten text. The directory of it is the place to mount.
    pub file: String,
    /// The mount option `mpol`.
    pub mpol: String,
    /// The size of the file.
    #[serde(rename = "size_bytes")]
    pub size: Bytes,
}

impl Mount {
    fn new(placed: &Placed) -> Self {
        Self {
            id: placed.id.clone(),
            file: format!("{DIR}/{}/memory", placed.id),
            mpol: format!("weighted interleave:{}", placed.nodes),
            size: placed.size,
        }
    }

    /// The directory to mount on.
    #[must_use]
    pub fn dir(&self) -> &str {
        self.file.trim_end_matches("/memory")
    }
}

/// The way for all backends under weighted interleave, and why; `None` if there are none.
pub(super) fn way(
    wished: &[(&Object, Placed)],
    (objects, options): (&[Object], &[Opt]),
    (native, preload): (Option<&str>, bool),
) -> Result<Option<(Way, String)>, VmError> {
    let is_weighted = |placed: &&Placed| placed.policy == Policy::WeightedInterleave;
    let weighted: Vec<_> = wished.iter().map(|(_, placed)| placed).filter(is_weighted).collect();
    let Some(first) = weighted.first() else { return Ok(None) };
    if let Some(native) = native {
        let why = "this QEMU has such a policy itself";
        return Ok(Some((Way::Native(native.to_owned()), why.to_owned())));
    }
    if preload {
        only_weighted(objects)?;
        return Ok(Some((Way::Preload, "requested by --preload".to_owned())));
    }
    let other = weighted.iter().find(|placed| placed.nodes != first.nodes);
    let has_policy = |object: &&Object| object.has_wish() || object.has_own_nodes();
    let mut memory = objects.iter().filter(|object| object.is_memory());
    let free = memory.find(|object| !has_policy(object));
    let is_whole = options.iter().any(|opt| {
        let fields = keyval::parse(&opt.value, Some("type"));
        let key = match opt.name.as_str() {
            "machine" => "memory-backend",
            "numa" => "memdev",
            _ => return false,
        };
        keyval::get(&fields, key).is_some()
    });
    let why = match (other, free) {
        (Some(other), _) => format!(
            "{} and {} have different nodes, and a process has one policy",
            first.id, other.id
        ),
        (None, Some(free)) => format!("{} has no policy, and would follow that of the process", free.place),
        (None, None) if !is_whole => {
            "the guest has memory besides these backends, which would follow the policy of the process".to_owned()
        }
        (None, None) => {
            let why = "all of the guest's memory has a policy, and QEMU inherits that of its process";
            return Ok(Some((Way::Process, why.to_owned())));
        }
    };
    Ok(Some((Way::Tmpfs, why)))
}

/// Refuses backends that are interleaved without weights: the library can't tell them from the others.
fn only_weighted(objects: &[Object]) -> Result<(), VmError> {
    let plain = Policy::Interleave.word();
    let is_plain =
        |object: &&Object| [POLICY, "policy"].iter().any(|key| object.get(key) == Some(plain));
    objects.iter().find(is_plain).map_or(Ok(()), |object| {
        Err(VmError::Conflict {
            place: object.place.clone(),
            ours: "--preload".into(),
            theirs: format!("policy {plain}"),
            remedy: "the library makes every interleaved backend weighted; leave one of them out"
                .into(),
        })
    })
}

/// The target of a backend under weighted interleave.
pub(super) fn target(
    object: &Object,
    placed: &Placed,
    way: &Way,
    mounts: &mut Vec<Mount>,
) -> Result<Target, VmError> {
    match way {
        Way::Native(name) => {
            Ok(Target::Nodes { nodes: placed.nodes.clone(), policy: Some(name.clone()) })
        }
        Way::Preload => {
            let policy = Some(Policy::Interleave.word().to_owned());
            Ok(Target::Nodes { nodes: placed.nodes.clone(), policy })
        }
        Way::Process => Ok(Target::Inherit),
        Way::Tmpfs => {
            for key in ["mem-path", "hugetlb", "hugetlbsize", "seal"] {
                if object.get(key).is_some_and(|value| !keyval::is_off(value)) {
                    return Err(VmError::Conflict {
                        place: object.place.clone(),
                        ours: format!("{POLICY}=weighted-interleave"),
                        theirs: key.into(),
                        remedy: "it needs a file on a tmpfs of its own, as not all of the guest's memory is to be \
                            interleaved over the same nodes; or use --preload"
                            .into(),
                    });
                }
            }
            let mount = Mount::new(placed);
            let target = Target::File { path: mount.file.clone() };
            mounts.push(mount);
            Ok(target)
        }
    }
}

/// The policy of the process: these nodes under weighted interleave.
pub(super) fn process(wished: &[(&Object, Placed)], way: Option<&Way>) -> Option<NodeSet> {
    let weighted = wished.iter().find(|(_, placed)| placed.policy == Policy::WeightedInterleave);
    weighted.filter(|_| way == Some(&Way::Process)).map(|(_, placed)| placed.nodes.clone())
}
