//! Memory policies over the nodes of a wish.

use std::fmt;
use std::str::FromStr;

/// The policy for several nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Only these nodes.
    #[default]
    Bind,
    /// These nodes first, others if they are full.
    Preferred,
    /// Page by page in turn.
    Interleave,
    /// Page by page, by the machine's weights.
    WeightedInterleave,
}

impl Policy {
    const ALL: [Self; 4] =
        [Self::Bind, Self::Preferred, Self::Interleave, Self::WeightedInterleave];

    /// The word used in options.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Bind => "bind",
            Self::Preferred => "preferred",
            Self::Interleave => "interleave",
            Self::WeightedInterleave => "weighted-interleave",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// A text that is no policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("policies are bind, preferred, interleave and weighted-interleave")]
pub struct UnknownPolicy;

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL.into_iter().find(|policy| policy.word() == text).ok_or(UnknownPolicy)
    }
}
