//! A container's memory policy: mode, nodes and flags of set_mempolicy(2), in the forms in which others write them.
//!
//! The OCI runtime specification (`linux.memoryPolicy`, since 1.3) has names (`MPOL_BIND`), NRI numbers, and
//! `/proc/PID/numa_maps` a text: `bind=static:0-1`. A policy prints as in numa_maps.

use std::fmt;

use nearfar_kernel::mempolicy::{Flags, Policy};
use nearfar_topology::NodeSet;
use serde::{Deserialize, Serialize};

/// A mode of set_mempolicy(2). Numbers are Linux's, which NRI uses too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// None: the system's default.
    Default = 0,
    /// One node while it has room.
    Preferred = 1,
    /// These nodes only.
    Bind = 2,
    /// These nodes, page by page.
    Interleave = 3,
    /// The node of the CPU that touches the page.
    Local = 4,
    /// These nodes while they have room.
    PreferredMany = 5,
    /// These nodes, in proportion to the machine's weights.
    WeightedInterleave = 6,
}

impl Mode {
    /// All modes.
    pub const ALL: [Self; 7] = [
        Self::Default,
        Self::Preferred,
        Self::Bind,
        Self::Interleave,
        Self::Local,
        Self::PreferredMany,
        Self::WeightedInterleave,
    ];

    /// Linux's name, as the OCI specification writes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "MPOL_DEFAULT",
            Self::Preferred => "MPOL_PREFERRED",
            Self::Bind => "MPOL_BIND",
            Self::Interleave => "MPOL_INTERLEAVE",
            Self::Local => "MPOL_LOCAL",
            Self::PreferredMany => "MPOL_PREFERRED_MANY",
            Self::WeightedInterleave => "MPOL_WEIGHTED_INTERLEAVE",
        }
    }

    /// The mode of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }

    /// The words of numa_maps.
    const fn shown(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Preferred => "prefer",
            Self::Bind => "bind",
            Self::Interleave => "interleave",
            Self::Local => "local",
            Self::PreferredMany => "prefer (many)",
            Self::WeightedInterleave => "weighted interleave",
        }
    }

    /// Whether it has nodes.
    #[must_use]
    pub const fn has_nodes(self) -> bool {
        !matches!(self, Self::Default | Self::Local)
    }
}

/// The flags' names, in the order of NRI's numbers.
pub const FLAG_NAMES: [&str; 3] =
    ["MPOL_F_STATIC_NODES", "MPOL_F_RELATIVE_NODES", "MPOL_F_NUMA_BALANCING"];

/// Which of [`FLAG_NAMES`] are set.
#[must_use]
pub const fn flags_set(flags: Flags) -> [bool; 3] {
    [flags.static_nodes, flags.relative_nodes, flags.numa_balancing]
}

/// Flags from their names.
///
/// # Errors
/// The first name that is unknown.
pub fn flags_named<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Flags, &'a str> {
    let mut set = [false; 3];
    for name in names {
        let at = FLAG_NAMES.iter().position(|known| *known == name).ok_or(name)?;
        set[at] = true;
    }
    Ok(Flags { static_nodes: set[0], relative_nodes: set[1], numa_balancing: set[2] })
}

/// A memory policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPolicy {
    /// Its mode.
    pub mode: Mode,
    /// Its nodes; none for the modes without.
    pub nodes: NodeSet,
    /// Its flags.
    pub flags: Flags,
}

/// `linux.memoryPolicy` of an OCI configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OciPolicy {
    /// The mode's name.
    pub mode: String,
    /// The nodes, as a list.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub nodes: String,
    /// The flags' names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<String>,
}

impl MemoryPolicy {
    /// The policy in the OCI specification's form.
    #[must_use]
    pub fn oci(&self) -> OciPolicy {
        let set = FLAG_NAMES.iter().zip(flags_set(self.flags)).filter(|(_, is_set)| *is_set);
        OciPolicy {
            mode: self.mode.name().into(),
            nodes: self.nodes.to_string(),
            flags: set.map(|(name, _)| (*name).to_string()).collect(),
        }
    }

    /// Reads the OCI specification's form; `None` if a part of it is unknown.
    #[must_use]
    pub fn from_oci(oci: &OciPolicy) -> Option<Self> {
        Some(Self {
            mode: Mode::named(&oci.mode)?,
            nodes: NodeSet::parse_list(&oci.nodes)?,
            flags: flags_named(oci.flags.iter().map(String::as_str)).ok()?,
        })
    }

    /// The policy for set_mempolicy(2).
    #[must_use]
    pub fn kernel(&self) -> Policy {
        let nodes = || self.nodes.clone();
        match self.mode {
            Mode::Default => Policy::Default,
            Mode::Local => Policy::Local,
            Mode::Preferred => self.nodes.iter().next().map_or(Policy::Local, Policy::Preferred),
            Mode::Bind => Policy::Bind(nodes()),
            Mode::Interleave => Policy::Interleave(nodes()),
            Mode::PreferredMany => Policy::PreferredMany(nodes()),
            Mode::WeightedInterleave => Policy::WeightedInterleave(nodes()),
        }
    }

    /// Reads a policy as numa_maps shows it (`prefer (many)=static:0-1`), from the start of `text`; also the rest of the
    /// text.
    #[must_use]
    pub fn from_numa_maps(text: &str) -> Option<(Self, &str)> {
        // Longest first: `prefer (many)` before `prefer`.
        let mut modes = Mode::ALL;
        modes.sort_by_key(|mode| std::cmp::Reverse(mode.shown().len()));
        let (mode, rest) = modes
            .into_iter()
            .find_map(|mode| Some((mode, text.strip_prefix(mode.shown())?)))
            .filter(|(_, rest)| rest.is_empty() || rest.starts_with(['=', ':', ' ']))?;
        let end = rest.find(' ').unwrap_or(rest.len());
        let (own, rest) = rest.split_at(end);
        let (flags, nodes) = own.split_once(':').unwrap_or((own, ""));
        let mut policy = Self { mode, nodes: NodeSet::parse_list(nodes)?, flags: Flags::default() };
        let words = flags.strip_prefix('=').unwrap_or_default();
        for word in words.split('|').filter(|word| !word.is_empty()) {
            match word {
                "static" => policy.flags.static_nodes = true,
                "relative" => policy.flags.relative_nodes = true,
                "balancing" => policy.flags.numa_balancing = true,
                _ => return None,
            }
        }
        Some((policy, rest))
    }
}

impl fmt::Display for MemoryPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.mode.shown())?;
        let words = ["static", "relative", "balancing"].into_iter().zip(flags_set(self.flags));
        let words: Vec<_> = words.filter(|(_, is_set)| *is_set).map(|(word, _)| word).collect();
        if !words.is_empty() {
            write!(f, "={}", words.join("|"))?;
        }
        if !self.nodes.is_empty() {
            write!(f, ":{}", self.nodes)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_policy() -> impl Strategy<Value = MemoryPolicy> {
        let nodes = prop::collection::btree_set(0u16..1024, 1..9);
        (0..Mode::ALL.len(), nodes, 0..6u8).prop_map(|(mode, nodes, flags)| {
            let mode = Mode::ALL[mode];
            let nodes: NodeSet = nodes.into_iter().map(nearfar_topology::NodeId).collect();
            MemoryPolicy {
                mode,
                nodes: if mode.has_nodes() { nodes } else { NodeSet::new() },
                flags: Flags {
                    static_nodes: flags % 3 == 1,
                    relative_nodes: flags % 3 == 2,
                    numa_balancing: flags > 2,
                },
            }
        })
    }

    #[test]
    fn policy_texts_match_numa_maps() {
        for (text, mode, nodes, rest) in [
            ("default anon=1", Mode::Default, "", " anon=1"),
            ("bind=static:0 file=/bin/sh", Mode::Bind, "0", " file=/bin/sh"),
            ("prefer:2", Mode::Preferred, "2", ""),
            ("prefer (many):0,2-3 heap", Mode::PreferredMany, "0,2-3", " heap"),
            ("weighted interleave:0-2 stack", Mode::WeightedInterleave, "0-2", " stack"),
            ("local huge", Mode::Local, "", " huge"),
        ] {
            let (policy, after) = MemoryPolicy::from_numa_maps(text).unwrap();
            assert_eq!(
                (policy.mode, policy.nodes.to_string().as_str(), after),
                (mode, nodes, rest)
            );
            assert_eq!(format!("{policy}{rest}"), text);
        }
        for text in ["", "binding:0", "bind=sticky:0", "interleave:x"] {
            assert_eq!(MemoryPolicy::from_numa_maps(text), None, "{text}");
        }
    }

    #[test]
    fn the_oci_form_omits_empty_fields() {
        let bind = MemoryPolicy::from_numa_maps("bind:0-1").unwrap().0;
        let text = serde_json::to_string(&bind.oci()).unwrap();
        assert_eq!(text, r#"{"mode":"MPOL_BIND","nodes":"0-1"}"#);
        let unknown = OciPolicy { mode: "MPOL_NOWHERE".into(), ..OciPolicy::default() };
        assert_eq!(MemoryPolicy::from_oci(&unknown), None);
    }

    proptest! {
        #[test]
        fn both_policy_forms_round_trip(policy in any_policy()) {
            prop_assert_eq!(MemoryPolicy::from_oci(&policy.oci()), Some(policy.clone()));
            let text = format!("{policy} anon=1");
            prop_assert_eq!(MemoryPolicy::from_numa_maps(&text), Some((policy, " anon=1")));
        }
    }
}
