//! Memory that Kubernetes has allocated to a container's resource claims (DRA), as environment variables.
//!
//! The DRA driver (crate kubernetes) writes a CDI file for each claim; the container runtime adds its variables to the
//! containers that use the claim, and the NRI plugin reads them: `NEARFAR_CLAIM_<claim>_<number>=policy:bind;nodes:2;
//! bytes:17179869184;key:<hex>`. A pod can set such a variable itself, so a variable counts only if the claim's CDI file
//! on this machine has exactly the same one. The key is random: a claim's placement can't be guessed from its uid.
//!
//! Several shares of a container, from one or more claims, are one placement over all their nodes.

use std::fmt;
use std::str::FromStr;

use nearfar_kernel::fs::{Fs, FsError};
use nearfar_topology::{Bytes, NodeSet, Topology};
use serde::{Deserialize, Serialize};

/// The start of the variables' names.
pub const VARIABLE: &str = "NEARFAR_CLAIM_";
/// The kind of CDI devices that the driver defines.
pub const CDI_KIND: &str = "nearfar.io/memory";
/// The start of the CDI files' names.
pub const CDI_PREFIX: &str = "nearfar.io-memory_";
/// The directory of CDI files that container runtimes read by default, below the root.
pub const CDI_DIR: &str = "/var/run/cdi";

/// Longest uid of a claim.
const UID_MAX: usize = 64;
/// Longest key.
const KEY_MAX: usize = 64;

/// The memory policy of a claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClaimPolicy {
    /// Its nodes only.
    #[default]
    Bind,
    /// Its nodes while they have room.
    Prefer,
    /// Its nodes, page by page.
    Interleave,
    /// Its nodes, in proportion to the machine's weights.
    Weighted,
}

impl ClaimPolicy {
    /// All policies.
    pub const ALL: [Self; 4] = [Self::Bind, Self::Prefer, Self::Interleave, Self::Weighted];

    /// The word in a claim's configuration; the same as in a memory kind.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Bind => "bind",
            Self::Prefer => "prefer",
            Self::Interleave => "interleave",
            Self::Weighted => "weighted",
        }
    }

    /// The policy of this word.
    #[must_use]
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.word() == word)
    }
}

/// Memory allocated to a request of a claim: the value of a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The policy.
    pub policy: ClaimPolicy,
    /// The nodes; at least one.
    pub nodes: NodeSet,
    /// The size.
    pub bytes: Bytes,
    /// The random key of the claim, in hexadecimal.
    pub key: String,
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, nodes, bytes, key } = self;
        write!(f, "policy:{};nodes:{nodes};bytes:{};key:{key}", policy.word(), bytes.0)
    }
}

/// A value that is no share.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no memory share: write policy:bind;nodes:0,2-3;bytes:N;key:HEX")]
pub struct ShareError {
    text: String,
}

impl FromStr for Share {
    type Err = ShareError;

    fn from_str(text: &str) -> Result<Self, ShareError> {
        let read = || {
            let mut parts = text.split(';');
            let mut part = |name: &str| parts.next()?.strip_prefix(name)?.strip_prefix(':');
            let policy = ClaimPolicy::named(part("policy")?)?;
            let nodes = NodeSet::parse_list(part("nodes")?).filter(|nodes| !nodes.is_empty())?;
            let bytes = part("bytes")?.parse().ok().map(Bytes)?;
            let key = part("key")?;
            let is_hex = key.bytes().all(|digit| digit.is_ascii_hexdigit());
            let is_key = is_hex && !key.is_empty() && key.len() <= KEY_MAX;
            let share = is_key.then(|| Self { policy, nodes, bytes, key: key.into() })?;
            parts.next().is_none().then_some(share)
        };
        read().ok_or_else(|| ShareError { text: text.chars().take(200).collect() })
    }
}

/// The identity of a share: the claim's uid, and the share's number within the claim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShareId {
    uid: String,
    number: u16,
}

impl ShareId {
    /// The share `number` of the claim `uid`; `None` if that is no uid.
    #[must_use]
    pub fn new(uid: &str, number: u16) -> Option<Self> {
        is_uid(uid).then(|| Self { uid: uid.into(), number })
    }

    /// The share of a variable with this name.
    #[must_use]
    pub fn of_variable(name: &str) -> Option<Self> {
        let (uid, number) = name.strip_prefix(VARIABLE)?.rsplit_once('_')?;
        let is_plain = number.bytes().all(|digit| digit.is_ascii_digit());
        let number = number.parse().ok().filter(|_| is_plain)?;
        Self::new(&uid.replace('_', "-"), number).filter(|id| id.variable() == name)
    }

    /// The name of its variable.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("{VARIABLE}{}_{}", self.uid.replace('-', "_"), self.number)
    }

    /// The name of its CDI device within [`CDI_KIND`].
    #[must_use]
    pub fn device(&self) -> String {
        format!("{}-{}", self.uid, self.number)
    }

    /// The claim.
    #[must_use]
    pub fn uid(&self) -> &str {
        &self.uid
    }
}

/// Whether this is the uid of a claim: letters, digits and hyphens, so that it can be part of a file's name.
#[must_use]
pub fn is_uid(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    let is_word = bytes.iter().all(|byte| is_word(*byte)) && bytes.len() <= UID_MAX;
    is_word && ends(bytes.first()) && ends(bytes.last())
}

/// The name of a claim's CDI file.
#[must_use]
pub fn cdi_file(uid: &str) -> String {
    format!("{CDI_PREFIX}{uid}.json")
}

/// A CDI file, as far as the driver writes and reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CdiSpec {
    /// The version of the specification that it needs.
    pub cdi_version: String,
    /// The kind of its devices.
    pub kind: String,
    /// Notes for the driver.
    #[serde(default)]
    pub annotations: std::collections::BTreeMap<String, String>,
    /// Its devices.
    #[serde(default)]
    pub devices: Vec<CdiDevice>,
}

/// A device of a CDI file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CdiDevice {
    /// Its name.
    pub name: String,
    /// Its effect on a container.
    pub container_edits: CdiEdits,
}

/// Changes of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CdiEdits {
    /// Variables, `KEY=VALUE`.
    #[serde(default)]
    pub env: Vec<String>,
}

/// Memory claimed for a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The claims' uids in words, for messages.
    pub names: String,
    /// The policy.
    pub policy: ClaimPolicy,
    /// The nodes of all shares.
    pub nodes: NodeSet,
    /// Sizes, each with its nodes.
    sizes: Vec<(NodeSet, Bytes)>,
}

/// Reasons to refuse the claims of a container.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// The variable is none that the driver writes.
    #[error("{variable}={text}: the DRA driver writes no such variable; remove it from the pod")]
    Form {
        /// The variable.
        variable: String,
        /// Its value.
        text: String,
    },
    /// The variable is not in the claim's CDI file.
    #[error(
        "{variable}: {file} has no such variable, so the DRA driver did not set it; remove it from the pod, or claim the memory \
         (resources.claims)"
    )]
    Forged {
        /// The variable.
        variable: String,
        /// The CDI file.
        file: String,
    },
    /// The file can't be read.
    #[error("{variable}: {why}")]
    File {
        /// The variable.
        variable: String,
        /// The reason.
        why: FsError,
    },
    /// Two shares with different policies.
    #[error(
        "claim {first} has the policy {one} and claim {second} {other}; a container has one policy: state the same in both"
    )]
    Policies {
        /// A claim.
        first: String,
        /// Its policy.
        one: &'static str,
        /// Another claim.
        second: String,
        /// Its policy.
        other: &'static str,
    },
}

impl Claimed {
    /// The memory claimed for a container with these variables (`KEY=VALUE`), by the CDI files of `dir`; `None` if it
    /// claims none.
    ///
    /// # Errors
    /// [`ClaimError`].
    pub fn read(env: &[String], dir: &str, fs: &dyn Fs) -> Result<Option<Self>, ClaimError> {
        let mut shares: Vec<(ShareId, Share)> = Vec::new();
        for entry in env.iter().filter(|entry| entry.starts_with(VARIABLE)) {
            let (name, value) = entry.split_once('=').unwrap_or((entry, ""));
            let id = ShareId::of_variable(name);
            let share = value.parse().ok();
            let (id, share) = id.zip(share).ok_or_else(|| ClaimError::Form {
                variable: name.chars().take(200).collect(),
                text: value.chars().take(200).collect(),
            })?;
            check(&id, entry, dir, fs)?;
            shares.push((id, share));
        }
        shares.sort_by(|a, b| a.0.cmp(&b.0));
        Self::merged(&shares)
    }

    fn merged(shares: &[(ShareId, Share)]) -> Result<Option<Self>, ClaimError> {
        let Some((first, share)) = shares.first() else { return Ok(None) };
        let other = shares.iter().find(|(_, other)| other.policy != share.policy);
        if let Some((second, other)) = other {
            return Err(ClaimError::Policies {
                first: first.uid.clone(),
                one: share.policy.word(),
                second: second.uid.clone(),
                other: other.policy.word(),
            });
        }
        let mut names: Vec<&str> = shares.iter().map(|(id, _)| id.uid()).collect();
        names.dedup();
        Ok(Some(Self {
            names: names.join(", "),
            policy: share.policy,
            nodes: shares.iter().flat_map(|(_, share)| share.nodes.iter()).collect(),
            sizes: shares.iter().map(|(_, share)| (share.nodes.clone(), share.bytes)).collect(),
        }))
    }

    /// The placement as a memory kind: `bind:0,2`.
    #[must_use]
    pub fn kind(&self) -> String {
        format!("{}:{}", self.policy.word(), self.nodes)
    }

    /// The budget of near memory: the near part of the claims, if far memory is claimed, too.
    #[must_use]
    pub fn near_max(&self, machine: &Topology) -> Option<Bytes> {
        let near = machine.near();
        let is_near = |nodes: &NodeSet| nodes.iter().all(|node| near.contains(node));
        let sum = |wanted: bool| {
            let sizes = self.sizes.iter().filter(|(nodes, _)| is_near(nodes) == wanted);
            sizes.fold(0u64, |sum, (_, bytes)| sum.saturating_add(bytes.0))
        };
        let (near, far) = (sum(true), sum(false));
        (near > 0 && far > 0).then_some(Bytes(near))
    }
}

/// Refuses a variable that is not in its claim's CDI file.
fn check(id: &ShareId, entry: &str, dir: &str, fs: &dyn Fs) -> Result<(), ClaimError> {
    let file = format!("{}/{}", dir.trim_end_matches('/'), cdi_file(id.uid()));
    let text = fs.read(file.trim_start_matches('/'));
    let text = text.map_err(|why| ClaimError::File { variable: id.variable(), why })?;
    let spec = text.and_then(|text| serde_json::from_str::<CdiSpec>(&text).ok());
    let devices = spec.filter(|spec| spec.kind == CDI_KIND).map(|spec| spec.devices);
    let mut env = devices.iter().flatten().flat_map(|device| &device.container_edits.env);
    if env.any(|known| known == entry) {
        return Ok(());
    }
    Err(ClaimError::Forged { variable: id.variable(), file })
}

/// Arbitrary text as a CDI file, which is written again with the same content.
#[cfg(fuzzing)]
pub(crate) fn fuzz(text: &str) {
    if let Ok(spec) = serde_json::from_str::<CdiSpec>(text) {
        let written = serde_json::to_string(&spec).unwrap_or_default();
        let read = serde_json::from_str::<CdiSpec>(&written);
        assert!(read.is_ok_and(|read| read == spec), "{written}");
    }
}

#[cfg(test)]
#[path = "claims/tests.rs"]
mod tests;
