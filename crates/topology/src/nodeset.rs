//! Node sets: one grammar for command line, configuration and C API.
//!
//! `0`, `0,2-3`, `all`, `near`, `far`, `dram`, `cxl`, `hbm`, `pmem`, `tier:N`, and any of them joined by commas.
//! Text parses to a [`NodeExpr`], which resolves against a [`Topology`] to a [`NodeSet`]; both print back. An empty
//! result is an error that names what the machine has. `near` and `far` are as seen from a set of CPUs: the nodes of
//! its fastest tier, and all slower ones.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use crate::kind::MemoryKind;
use crate::machine::Topology;
use crate::units::{CpuId, NodeId};

/// A set of nodes, in order. Prints as the kernel does: `0,2-3`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeSet(alloc::collections::BTreeSet<NodeId>);

/// What a user wrote, before it is held against a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeExpr(Vec<Term>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Term {
    Range(NodeId, NodeId),
    All,
    Near,
    Far,
    Kind(MemoryKind),
    Tier(u16),
}

/// Why a node set was refused. The text says what was asked, what was found and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeSetError {
    /// The text has no terms at all.
    Empty,
    /// A term is none of the grammar's words or numbers.
    BadTerm {
        /// The term as written.
        term: String,
    },
    /// A range whose end comes before its start.
    BackwardRange {
        /// The range as written.
        term: String,
    },
    /// A number above the largest node id.
    TooLarge {
        /// The number as written.
        term: String,
    },
    /// Nodes that the machine does not have.
    Absent {
        /// The expression.
        asked: String,
        /// The nodes it names that are absent.
        absent: NodeSet,
        /// What the machine has, in words.
        has: String,
    },
    /// An expression that is valid but names nothing on this machine.
    NoSuchNodes {
        /// The expression.
        asked: String,
        /// What the machine has, in words.
        has: String,
    },
}

impl fmt::Display for NodeSetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const GRAMMAR: &str =
            "write nodes as 0 or 0,2-3, or all, near, far, dram, cxl, hbm, pmem, tier:N";
        match self {
            Self::Empty => write!(f, "the node set is empty; {GRAMMAR}"),
            Self::BadTerm { term } => write!(f, "`{term}` is not a node set; {GRAMMAR}"),
            Self::BackwardRange { term } => {
                write!(f, "node range `{term}` ends before it starts; write the smaller node first")
            }
            Self::TooLarge { term } => {
                write!(f, "node `{term}` is out of range; nodes are 0 to {}", NodeId::MAX)
            }
            Self::Absent { asked, absent, has } => {
                write!(
                    f,
                    "node set `{asked}`: no node {absent} with memory here; this machine has {has}"
                )
            }
            Self::NoSuchNodes { asked, has } => {
                write!(f, "node set `{asked}` names no node here; this machine has {has}")
            }
        }
    }
}

impl core::error::Error for NodeSetError {}

impl NodeSet {
    /// An empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self(alloc::collections::BTreeSet::new())
    }

    /// Whether `node` is in the set.
    #[must_use]
    pub fn contains(&self, node: NodeId) -> bool {
        self.0.contains(&node)
    }

    /// Adds `node`; false if it was there.
    pub fn insert(&mut self, node: NodeId) -> bool {
        self.0.insert(node)
    }

    /// The nodes, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = NodeId> + '_ {
        self.0.iter().copied()
    }

    /// How many nodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads the kernel's list format (`0-1,4`, or nothing); `None` for any other text.
    #[must_use]
    pub fn parse_list(text: &str) -> Option<Self> {
        let ids = parse_id_list(text)?;
        ids.into_iter()
            .map(|id| u16::try_from(id).ok().map(NodeId).filter(|id| *id <= NodeId::MAX))
            .collect::<Option<_>>()
            .map(Self)
    }
}

impl FromIterator<NodeId> for NodeSet {
    fn from_iter<I: IntoIterator<Item = NodeId>>(nodes: I) -> Self {
        Self(nodes.into_iter().collect())
    }
}

impl fmt::Display for NodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_list(f, self.0.iter().map(|id| u32::from(id.0)))
    }
}

/// Reads the kernel's list format of numbers (`0-3,8`, or nothing), at most 65,536 of them.
pub(crate) fn parse_id_list(text: &str) -> Option<Vec<u32>> {
    const LIMIT: usize = 65_536;
    let mut ids = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        let span = usize::try_from(last.checked_sub(first)?).ok()?;
        if ids.len().saturating_add(span) >= LIMIT {
            return None;
        }
        ids.extend(first..=last);
    }
    Some(ids)
}

/// Writes increasing numbers as the kernel does: runs joined by `-`, the rest by `,`.
pub(crate) fn write_list(
    f: &mut fmt::Formatter<'_>,
    ids: impl Iterator<Item = u32>,
) -> fmt::Result {
    let mut ids = ids.peekable();
    let mut comma = "";
    while let Some(first) = ids.next() {
        let mut last = first;
        while ids.peek() == Some(&(last + 1)) {
            last += 1;
            ids.next();
        }
        match last - first {
            0 => write!(f, "{comma}{first}")?,
            _ => write!(f, "{comma}{first}-{last}")?,
        }
        comma = ",";
    }
    Ok(())
}

impl core::str::FromStr for NodeExpr {
    type Err = NodeSetError;

    fn from_str(text: &str) -> Result<Self, NodeSetError> {
        if text.trim().is_empty() {
            return Err(NodeSetError::Empty);
        }
        text.split(',').map(|term| parse_term(term.trim())).collect::<Result<_, _>>().map(Self)
    }
}

fn parse_term(term: &str) -> Result<Term, NodeSetError> {
    let word = match term {
        "all" => Some(Term::All),
        "near" => Some(Term::Near),
        "far" => Some(Term::Far),
        "dram" => Some(Term::Kind(MemoryKind::Dram)),
        "cxl" => Some(Term::Kind(MemoryKind::Cxl)),
        "hbm" => Some(Term::Kind(MemoryKind::Hbm)),
        "pmem" => Some(Term::Kind(MemoryKind::Pmem)),
        _ => None,
    };
    if let Some(word) = word {
        return Ok(word);
    }
    let bad = || NodeSetError::BadTerm { term: term.to_string() };
    if let Some(rank) = term.strip_prefix("tier:") {
        return digits(rank).ok_or_else(bad)?.map(Term::Tier).map_err(|()| bad());
    }
    let (first, last) = term.split_once('-').unwrap_or((term, term));
    let node = |text: &str| {
        let id = digits(text).ok_or_else(bad)?;
        let id = id.ok().map(NodeId).filter(|id| *id <= NodeId::MAX);
        id.ok_or_else(|| NodeSetError::TooLarge { term: text.to_string() })
    };
    let (first, last) = (node(first)?, node(last)?);
    if last < first {
        return Err(NodeSetError::BackwardRange { term: term.to_string() });
    }
    Ok(Term::Range(first, last))
}

/// `None` if `text` is not all digits, `Some(Err)` if it is but does not fit.
fn digits(text: &str) -> Option<Result<u16, ()>> {
    let all = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    all.then(|| text.parse().map_err(|_| ()))
}

impl fmt::Display for NodeExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, term) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            match term {
                Term::Range(first, last) if first == last => write!(f, "{first}")?,
                Term::Range(first, last) => write!(f, "{first}-{last}")?,
                Term::All => f.write_str("all")?,
                Term::Near => f.write_str("near")?,
                Term::Far => f.write_str("far")?,
                Term::Kind(kind) => write!(f, "{kind}")?,
                Term::Tier(rank) => write!(f, "tier:{rank}")?,
            }
        }
        Ok(())
    }
}

impl NodeExpr {
    /// The nodes with memory that this expression names on `machine`, seen from `cpus` (none: from any CPU).
    ///
    /// # Errors
    /// [`NodeSetError::Absent`] if a number names a node that is absent or has no memory, and
    /// [`NodeSetError::NoSuchNodes`] if nothing is left.
    pub fn resolve(&self, machine: &Topology, cpus: &[CpuId]) -> Result<NodeSet, NodeSetError> {
        let mut found = NodeSet::new();
        let mut absent = NodeSet::new();
        let present = machine.memory_nodes();
        for term in &self.0 {
            let nodes = match *term {
                Term::Range(first, last) => {
                    let asked = (first.0..=last.0).map(NodeId);
                    absent.0.extend(asked.clone().filter(|id| !present.contains(*id)));
                    asked.filter(|id| present.contains(*id)).collect()
                }
                Term::All => present.clone(),
                Term::Near => machine.near(cpus),
                Term::Far => machine.far(cpus),
                Term::Kind(kind) => machine.of_kind(kind),
                Term::Tier(rank) => machine.tier(rank),
            };
            found.0.extend(nodes.0);
        }
        if !absent.is_empty() {
            return Err(NodeSetError::Absent {
                asked: self.to_string(),
                absent,
                has: machine.inventory(),
            });
        }
        if found.is_empty() {
            return Err(NodeSetError::NoSuchNodes {
                asked: self.to_string(),
                has: machine.inventory(),
            });
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_word_of_the_grammar_prints_back() {
        for text in ["0", "0,2-3", "all", "near", "far", "dram,cxl", "hbm", "pmem", "tier:2,7"] {
            assert_eq!(text.parse::<NodeExpr>().map(|expr| expr.to_string()), Ok(text.into()));
        }
    }

    #[test]
    fn refusals_name_the_term() {
        for (text, part) in [
            ("", "empty"),
            ("0,,1", "`` is not"),
            ("cxI", "`cxI`"),
            ("3-1", "ends before"),
            ("1024", "0 to 1023"),
            ("tier:", "`tier:`"),
            ("-1", "`-1`"),
            ("0x1", "`0x1`"),
        ] {
            let error = text.parse::<NodeExpr>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_parses_or_is_refused_and_what_parses_prints_to_the_same(text in "[a-z0-9:, -]{0,24}") {
            if let Ok(expr) = text.parse::<NodeExpr>() {
                prop_assert_eq!(expr.to_string().parse::<NodeExpr>(), Ok(expr));
            }
        }

        #[test]
        fn kernel_lists_print_back(ids in proptest::collection::btree_set(0u16..=1023, 0..40)) {
            let set: NodeSet = ids.into_iter().map(NodeId).collect();
            prop_assert_eq!(NodeSet::parse_list(&set.to_string()), Some(set));
        }
    }
}
