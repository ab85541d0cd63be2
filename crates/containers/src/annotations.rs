//! A container's request, as annotations of the container or of its pod.
//!
//! | annotation | value |
//! |---|---|
//! | `nearfar.io/memory` | a memory kind: `far`, `bind:cxl`, `prefer:far`, `interleave:near,far`, `weighted:near,far` |
//! | `nearfar.io/heap` | a kind or configuration for malloc, as for `nearfar run --heap` |
//! | `nearfar.io/mems` | `widen`: add the memory's nodes to a cpuset that lacks them |
//! | `nearfar.io/near-max`, `nearfar.io/near-min` | bounds on near memory, for tiering |
//! | `policy.memory-policy.nri.io`, `class.memory-policy.nri.io` | see [`intel`](crate::intel) |
//!
//! For one container of a pod the key is `memory.nearfar.io/container.NAME`, since a key of Kubernetes has at most one
//! slash; it overrides the pod's. Unknown keys of these domains are refused, as a misspelt one would do nothing.

use std::collections::BTreeMap;

use nearfar_spec::spec::{Place, Spec, SpecError};
use nearfar_topology::Bytes;

use crate::claims::Claimed;
use crate::intel::{IntelError, IntelPolicy};

/// Annotations by key.
pub type Annotations = BTreeMap<String, String>;
/// Policies by the name of their class, for `class.memory-policy.nri.io`.
pub type Classes = BTreeMap<String, IntelPolicy>;

const DOMAIN: &str = "nearfar.io";
const KEYS: [&str; 5] = ["memory", "heap", "mems", "near-max", "near-min"];
const INTEL: &str = "memory-policy.nri.io";
const INTEL_KEYS: [&str; 2] = ["policy", "class"];

/// A container's request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Placement of all its memory.
    pub memory: Option<Named<Memory>>,
    /// Placement of its heap: a kind or a configuration of the preload library.
    pub heap: Option<Named<String>>,
    /// Whether the cpuset is widened by nodes that the placement names and it lacks.
    pub widens: bool,
    /// The most near memory it should have. Tiering enforces it, not the memory policy.
    pub near_max: Option<Bytes>,
    /// Near memory that it should keep at least.
    pub near_min: Option<Bytes>,
}

/// A value with the key that it was given by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named<T> {
    /// The annotation or option.
    pub key: String,
    /// Its text, on one line.
    pub text: String,
    /// Its meaning.
    pub value: T,
}

/// A placement of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Memory {
    /// By a kind.
    Kind(Place),
    /// By a policy of the memory-policy plugin's form.
    Policy(IntelPolicy),
}

/// Annotations that are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AnnotationError {
    /// There is no such key.
    #[error(
        "annotation {key}: there is no such key; there are {known}, each also for one container: {example}"
    )]
    Key {
        /// The key.
        key: String,
        /// Those of the domain.
        known: String,
        /// One for a single container.
        example: String,
    },
    /// The value is no memory kind.
    #[error("{key}={text}: {why}")]
    Kind {
        /// The key.
        key: String,
        /// The value.
        text: String,
        /// The reason.
        why: Box<SpecError>,
    },
    /// A kind that a memory policy can't express.
    #[error("{key}={text}: {why}; as a heap it is possible: nearfar.io/heap={text}")]
    Inexpressible {
        /// The key.
        key: String,
        /// The value.
        text: String,
        /// The part, and the reason.
        why: &'static str,
    },
    /// The value is no policy of the memory-policy plugin.
    #[error("{key}: {why}")]
    Intel {
        /// The key.
        key: String,
        /// The reason.
        why: IntelError,
    },
    /// There is no such class.
    #[error(
        "{key}={text}: there is no such class (there are: {known}); define it in the file of --classes"
    )]
    Class {
        /// The key.
        key: String,
        /// The value.
        text: String,
        /// Those defined.
        known: String,
    },
    /// The value is not one of the key's.
    #[error("{key}={text}: write {valid}")]
    Value {
        /// The key.
        key: String,
        /// The value.
        text: String,
        /// The valid values.
        valid: &'static str,
    },
    /// Two keys that exclude each other.
    #[error("{first} and {second} contradict each other: {why}")]
    Contradiction {
        /// A key with its value.
        first: String,
        /// Another.
        second: String,
        /// The reason and the remedy.
        why: &'static str,
    },
}

/// The value of a key for a container, and whether it is for this container alone.
struct Found<'a> {
    key: String,
    text: &'a str,
    is_own: bool,
}

impl Request {
    /// The request in `annotations` for the container `name`.
    ///
    /// # Errors
    /// [`AnnotationError`].
    pub fn read(
        annotations: &Annotations,
        name: Option<&str>,
        classes: &Classes,
    ) -> Result<Self, AnnotationError> {
        annotations.keys().try_for_each(|key| known(key))?;
        let find = |domain: &str, key: &str, pod: String| -> Option<Found<'_>> {
            let own = name.map(|name| format!("{key}.{domain}/container.{name}"));
            let own = own.and_then(|key| Some((annotations.get(&key)?, key)));
            let own = own.map(|(text, key)| Found { key, text, is_own: true });
            own.or_else(|| {
                let text = annotations.get(&pod)?;
                Some(Found { key: pod, text, is_own: false })
            })
        };
        let ours = |key: &str| find(DOMAIN, key, format!("{DOMAIN}/{key}"));
        let intels = |key: &str| find(INTEL, key, format!("{key}.{INTEL}"));
        let memory = ours("memory").map(|found| {
            memory(&found.key, found.text).map(|value| (named(&found, value), found.is_own))
        });
        let policy = intel(intels("policy"), intels("class"), classes)?;
        let memory = one_of(memory.transpose()?, policy)?;
        let heap = ours("heap").map(|found| named(&found, found.text.to_string()));
        let size = |key: &str| ours(key).map(|found| size(&found).map(|size| (found, size)));
        let (near_max, near_min) = (size("near-max").transpose()?, size("near-min").transpose()?);
        if let (Some((max, most)), Some((min, least))) = (&near_max, &near_min)
            && least > most
        {
            return Err(AnnotationError::Contradiction {
                first: format!("{}={}", min.key, min.text),
                second: format!("{}={}", max.key, max.text),
                why: "the least is above the most; swap them",
            });
        }
        let widens = match ours("mems") {
            None => false,
            Some(Found { text: "widen", .. }) => true,
            Some(Found { key, text, .. }) => {
                let (text, valid) = (text.into(), "widen, or remove it");
                return Err(AnnotationError::Value { key, text, valid });
            }
        };
        let (near_max, near_min) = (near_max.map(|(_, size)| size), near_min.map(|(_, size)| size));
        Ok(Self { memory, heap, widens, near_max, near_min })
    }

    /// This request; where it says nothing about memory, `default` does (`NEARFAR_OCI_MEMORY=far`).
    ///
    /// # Errors
    /// [`AnnotationError`]: the default is no kind, or none that a policy can express.
    pub fn or_memory(mut self, key: &str, default: Option<&str>) -> Result<Self, AnnotationError> {
        if let Some(text) = default.filter(|_| self.memory.is_none()) {
            let value = memory(key, text)?;
            self.memory = Some(Named { key: key.into(), text: text.into(), value });
        }
        Ok(self)
    }

    /// This request with the memory that the container has claimed: its placement, with the claim as permission for nodes
    /// outside the cpuset, and a budget of near memory if it has claimed both near and far memory (`near_max`).
    ///
    /// # Errors
    /// An annotation places the memory as well, or allows more near memory than claimed.
    pub fn with_claimed(
        mut self,
        claimed: &Claimed,
        near_max: Option<Bytes>,
    ) -> Result<Self, AnnotationError> {
        let key = format!("claim {}", claimed.names);
        let text = claimed.kind();
        if let Some(memory) = &self.memory {
            return Err(AnnotationError::Contradiction {
                first: format!("{}={}", memory.key, memory.text),
                second: format!("{key} ({text})"),
                why: "both place the container's memory; remove the annotation, or state the policy in the claim",
            });
        }
        for (name, asked, why) in [
            (
                "near-max",
                self.near_max,
                "the budget is above the claim; lower it, or claim more near memory",
            ),
            (
                "near-min",
                self.near_min,
                "the least is above the claim; lower it, or claim more near memory",
            ),
        ] {
            if let (Some(asked), Some(claim)) = (asked, near_max)
                && asked > claim
            {
                return Err(AnnotationError::Contradiction {
                    first: format!("nearfar.io/{name}={asked}"),
                    second: format!("{key} ({claim} of near memory)"),
                    why,
                });
            }
        }
        let value = memory(&key, &text)?;
        self.memory = Some(Named { key, text, value });
        self.widens = true;
        self.near_max = self.near_max.or(near_max);
        Ok(self)
    }

    /// Whether there are none that concern a container's start.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.memory.is_none()
            && self.heap.is_none()
            && self.near_max.is_none()
            && self.near_min.is_none()
    }
}

fn named<T>(found: &Found<'_>, value: T) -> Named<T> {
    let text = found.text.split_whitespace().collect::<Vec<_>>().join(" ");
    Named { key: found.key.clone(), text, value }
}

/// Refuses unknown keys of the two domains.
fn known(key: &str) -> Result<(), AnnotationError> {
    let (prefix, name) = key.split_once('/').unwrap_or((key, ""));
    let is_container = name.strip_prefix("container.").is_some_and(|name| !name.is_empty());
    let of = |domain: &str| prefix.strip_suffix(domain).and_then(|rest| rest.strip_suffix('.'));
    let unknown = |known: String, example: &str| {
        Err(AnnotationError::Key { key: key.into(), known, example: example.into() })
    };
    if (prefix == DOMAIN && !KEYS.contains(&name))
        || of(DOMAIN).is_some_and(|key| !KEYS.contains(&key) || !is_container)
    {
        let known = KEYS.map(|key| format!("{DOMAIN}/{key}")).join(", ");
        return unknown(known, "memory.nearfar.io/container.NAME");
    }
    let is_whole = is_container || !key.contains('/');
    if of(INTEL).is_some_and(|word| !INTEL_KEYS.contains(&word) || !is_whole) {
        let known = INTEL_KEYS.map(|key| format!("{key}.{INTEL}")).join(", ");
        return unknown(known, "policy.memory-policy.nri.io/container.NAME");
    }
    Ok(())
}

/// The value of `nearfar.io/memory`.
fn memory(key: &str, text: &str) -> Result<Memory, AnnotationError> {
    let spec: Result<Spec, SpecError> = text.trim().parse();
    let spec = spec.map_err(|why| AnnotationError::Kind {
        key: key.into(),
        text: text.into(),
        why: Box::new(why),
    })?;
    let part = if spec.limit.is_some() {
        Some("a memory policy has no limit=; limit the container's memory instead")
    } else if spec.spill.is_some() {
        Some("a memory policy has no spill=; prefer: falls back to other nodes when they are full")
    } else if spec.huge.is_some() {
        Some("a memory policy does not set huge=")
    } else if matches!(spec.place, Place::Weights(_)) {
        Some("a memory policy uses the machine's weights (weighted:0,1), not its own")
    } else {
        None
    };
    match part {
        None => Ok(Memory::Kind(spec.place)),
        Some(why) => {
            Err(AnnotationError::Inexpressible { key: key.into(), text: text.into(), why })
        }
    }
}

type Sourced = Option<(Named<Memory>, bool)>;

/// The policy of the memory-policy plugin's annotations. As there, an empty value is none, and the policy of a
/// container overrides the class of its pod.
fn intel(
    policy: Option<Found<'_>>,
    class: Option<Found<'_>>,
    classes: &Classes,
) -> Result<Sourced, AnnotationError> {
    let (policy, class) = match (policy, class) {
        (Some(policy), Some(class)) if policy.is_own && !class.is_own => (Some(policy), None),
        (Some(policy), Some(class)) if class.is_own && !policy.is_own => (None, Some(class)),
        (Some(policy), Some(class)) => {
            return Err(AnnotationError::Contradiction {
                first: policy.key,
                second: class.key,
                why: "a container has one policy; remove one of them",
            });
        }
        one => one,
    };
    if let Some(found) = policy.filter(|found| !found.text.trim().is_empty()) {
        let parsed: Result<IntelPolicy, _> = found.text.parse();
        let parsed =
            parsed.map_err(|why| AnnotationError::Intel { key: found.key.clone(), why })?;
        return Ok(Some((named(&found, Memory::Policy(parsed)), found.is_own)));
    }
    let Some(found) = class.filter(|found| !found.text.trim().is_empty()) else { return Ok(None) };
    let Some(policy) = classes.get(found.text.trim()) else {
        let known = classes.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        let known = if known.is_empty() { "none".into() } else { known };
        return Err(AnnotationError::Class { key: found.key, text: found.text.into(), known });
    };
    Ok(Some((named(&found, Memory::Policy(policy.clone())), found.is_own)))
}

/// The placement of two families of keys: that for the container alone, if one is; both at one level contradict.
fn one_of(ours: Sourced, intel: Sourced) -> Result<Option<Named<Memory>>, AnnotationError> {
    match (ours, intel) {
        (Some((ours, own)), Some((intel, intel_own))) if own == intel_own => {
            Err(AnnotationError::Contradiction {
                first: format!("{}={}", ours.key, ours.text),
                second: intel.key,
                why: "both place the container's memory; remove one of them",
            })
        }
        (Some((ours, true)), Some(_)) => Ok(Some(ours)),
        (_, Some((intel, _))) => Ok(Some(intel)),
        (ours, None) => Ok(ours.map(|(ours, _)| ours)),
    }
}

fn size(found: &Found<'_>) -> Result<Bytes, AnnotationError> {
    let valid = "a size above zero: 512m, 4g";
    let parsed = found.text.trim().parse().ok().filter(|size: &Bytes| size.0 > 0);
    let wrong =
        || AnnotationError::Value { key: found.key.clone(), text: found.text.into(), valid };
    parsed.ok_or_else(wrong)
}

/// Reads classes from JSON: `{"interleave-all": {"mode": "MPOL_INTERLEAVE", "nodes": "allowed-mems"}}`.
///
/// # Errors
/// The text is not of this form, with the name of the class.
pub fn classes(text: &str) -> Result<Classes, String> {
    let raw: BTreeMap<String, crate::policy::OciPolicy> =
        serde_json::from_str(text).map_err(|error| error.to_string())?;
    let class = |(name, raw): (String, crate::policy::OciPolicy)| {
        let text =
            format!("mode: {}\nnodes: {}\nflags: [{}]", raw.mode, raw.nodes, raw.flags.join(","));
        let parsed = text.parse().map_err(|why: IntelError| format!("class {name}: {why}"));
        parsed.map(|policy| (name, policy))
    };
    raw.into_iter().map(class).collect()
}

#[cfg(test)]
#[path = "annotations/tests.rs"]
mod tests;
