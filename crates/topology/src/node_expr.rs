//! Node sets: one grammar for command line, configuration and C API.
//!
//! `0`, `0,2-3`, `all`, `near`, `far`, `local`, `remote`, `dram`, `cxl`, `hbm`, `pmem`, `gpu`, `tier:N`, and any of them
//! joined by commas; with `!` before, all other nodes, and with `+`, numbers relative to the allowed nodes, as in numactl.
//! Text parses to a [`NodeExpr`], which resolves against a [`Topology`] to a [`NodeSet`]; both print back. A term that
//! matches no node is an error that lists the machine's nodes, even if other terms match. `near` is the machine's fastest
//! tier and `far` all slower ones, for any CPU; `local` and `remote` divide the near nodes by the CPUs passed.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use crate::kind::MemoryKind;
use crate::machine::Topology;
use crate::nodeset::NodeSet;
use crate::units::{CpuId, NodeId};

/// A parsed node set, not yet resolved on a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeExpr {
    terms: Vec<Term>,
    /// Whether the nodes with memory are meant that the terms do not name.
    others: bool,
    /// Whether numbers count the allowed nodes, from 0 on.
    relative: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Term {
    Range(NodeId, NodeId),
    All,
    Near,
    Far,
    Local,
    Remote,
    Kind(MemoryKind),
    Tier(u16),
}

/// Reasons why a node set is refused. The message has the request, the finding and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeSetError {
    /// The text has no terms at all.
    Empty,
    /// A term is neither a known word nor a number.
    BadTerm {
        /// The term as written.
        term: String,
    },
    /// A range with its end before its start.
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
        /// The machine's nodes, in words.
        has: String,
    },
    /// A term that is valid but matches no node of this machine.
    NoSuchNodes {
        /// The expression.
        asked: String,
        /// The term of it.
        term: String,
        /// The machine's nodes, in words.
        has: String,
    },
}

impl fmt::Display for NodeSetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const GRAMMAR: &str = "write nodes as 0 or 0,2-3, or all, near, far, local, remote, dram, cxl, hbm, pmem, gpu, tier:N; before the whole set may stand ! (!0 is all but 0) or + (+0 is the first allowed one)";
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
            Self::NoSuchNodes { asked, term, has } if asked == term => {
                write!(f, "node set `{asked}` names no node here; this machine has {has}")
            }
            Self::NoSuchNodes { asked, term, has } => {
                write!(f, "node set `{asked}`: `{term}` names no node here; this machine has {has}")
            }
        }
    }
}

impl core::error::Error for NodeSetError {}

impl FromStr for NodeExpr {
    type Err = NodeSetError;

    fn from_str(text: &str) -> Result<Self, NodeSetError> {
        let text = text.trim();
        let signed = |text, sign| match str::strip_prefix(text, sign) {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (others, text) = signed(text, '!');
        let (relative, text) = signed(text.trim_start(), '+');
        if text.trim().is_empty() {
            return Err(NodeSetError::Empty);
        }
        let terms: Result<Vec<Term>, _> =
            text.split(',').map(|term| parse_term(term.trim())).collect();
        let terms = terms?;
        match terms.iter().find(|term| relative && !matches!(term, Term::Range(..))) {
            Some(word) => Err(NodeSetError::BadTerm { term: alloc::format!("+{word}") }),
            None => Ok(Self { terms, others, relative }),
        }
    }
}

fn parse_term(term: &str) -> Result<Term, NodeSetError> {
    let word = match term {
        "all" => Some(Term::All),
        "near" => Some(Term::Near),
        "far" => Some(Term::Far),
        "local" => Some(Term::Local),
        "remote" => Some(Term::Remote),
        "dram" => Some(Term::Kind(MemoryKind::Dram)),
        "cxl" => Some(Term::Kind(MemoryKind::Cxl)),
        "hbm" => Some(Term::Kind(MemoryKind::Hbm)),
        "pmem" => Some(Term::Kind(MemoryKind::Pmem)),
        "gpu" => Some(Term::Kind(MemoryKind::Gpu)),
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
        id.ok()
            .and_then(NodeId::new)
            .ok_or_else(|| NodeSetError::TooLarge { term: text.to_string() })
    };
    let (first, last) = (node(first)?, node(last)?);
    if last < first {
        return Err(NodeSetError::BackwardRange { term: term.to_string() });
    }
    Ok(Term::Range(first, last))
}

/// `None` if `text` is not all digits, `Some(Err)` if it is but does not fit.
fn digits<T: FromStr>(text: &str) -> Option<Result<T, ()>> {
    let all = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    all.then(|| text.parse().map_err(|_| ()))
}

impl fmt::Display for NodeExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.others {
            f.write_str("!")?;
        }
        if self.relative {
            f.write_str("+")?;
        }
        for (index, term) in self.terms.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            write!(f, "{term}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range(first, last) if first == last => write!(f, "{first}"),
            Self::Range(first, last) => write!(f, "{first}-{last}"),
            Self::All => f.write_str("all"),
            Self::Near => f.write_str("near"),
            Self::Far => f.write_str("far"),
            Self::Local => f.write_str("local"),
            Self::Remote => f.write_str("remote"),
            Self::Kind(kind) => write!(f, "{kind}"),
            Self::Tier(rank) => write!(f, "tier:{rank}"),
        }
    }
}

impl NodeExpr {
    /// Whether it names nodes by number only, or all of them: without kinds and tiers.
    #[must_use]
    pub fn is_by_number(&self) -> bool {
        self.terms.iter().all(|term| matches!(term, Term::Range(..) | Term::All))
    }

    /// The same with numbers of nodes, if they are relative (`+0`): they count the nodes in `allowed`, from 0 on.
    ///
    /// # Errors
    /// [`NodeSetError::NoSuchNodes`] if there are not as many.
    pub fn absolute(&self, allowed: &NodeSet) -> Result<Self, NodeSetError> {
        if !self.relative {
            return Ok(self.clone());
        }
        let mut terms = Vec::new();
        for term in &self.terms {
            let Term::Range(first, last) = *term else { continue };
            for index in first.0..=last.0 {
                let node = allowed.iter().nth(usize::from(index));
                let node = node.ok_or_else(|| NodeSetError::NoSuchNodes {
                    asked: self.to_string(),
                    term: alloc::format!("+{index}"),
                    has: match allowed.len() {
                        1 => alloc::format!("1 allowed node ({allowed})"),
                        count => alloc::format!("{count} allowed nodes ({allowed})"),
                    },
                })?;
                terms.push(Term::Range(node, node));
            }
        }
        Ok(Self { terms, others: self.others, relative: false })
    }

    /// The nodes with memory that this expression names on `machine`; `local` and `remote` are relative to `cpus`
    /// (empty: any CPU).
    ///
    /// # Errors
    /// [`NodeSetError::Absent`] if a number names a node that is absent or has no memory, and
    /// [`NodeSetError::NoSuchNodes`] if a word matches no node.
    pub fn resolve(&self, machine: &Topology, cpus: &[CpuId]) -> Result<NodeSet, NodeSetError> {
        self.resolve_with(machine, cpus, &machine.near(), &machine.far())
    }

    /// As [`Self::resolve`], for a program on `cpus` (empty: any CPU): `near` is their local near memory, and `far` all other
    /// memory, that of other sockets included.
    ///
    /// # Errors
    /// As [`Self::resolve`].
    pub fn resolve_from(
        &self,
        machine: &Topology,
        cpus: &[CpuId],
    ) -> Result<NodeSet, NodeSetError> {
        if cpus.is_empty() {
            return self.resolve(machine, cpus);
        }
        let near = machine.local(cpus);
        let far = machine.memory_nodes().without(&near);
        self.resolve_with(machine, cpus, &near, &far)
    }

    /// As [`Self::resolve_from`]; relative numbers (`+0`) count the nodes in `allowed`, or those with memory.
    ///
    /// # Errors
    /// As [`Self::resolve`].
    pub fn resolve_among(
        &self,
        machine: &Topology,
        cpus: &[CpuId],
        allowed: Option<&NodeSet>,
    ) -> Result<NodeSet, NodeSetError> {
        match allowed {
            Some(allowed) => self.absolute(allowed)?.resolve_from(machine, cpus),
            None => self.resolve_from(machine, cpus),
        }
    }

    fn resolve_with(
        &self,
        machine: &Topology,
        cpus: &[CpuId],
        near: &NodeSet,
        far: &NodeSet,
    ) -> Result<NodeSet, NodeSetError> {
        if self.relative {
            let nodes = self.absolute(&machine.memory_nodes())?;
            return nodes.resolve_with(machine, cpus, near, far);
        }
        let mut found = NodeSet::new();
        let mut absent = NodeSet::new();
        let (present, gpu) = (machine.memory_nodes(), machine.of_kind(MemoryKind::Gpu));
        for term in &self.terms {
            let nodes = match *term {
                Term::Range(first, last) => {
                    let asked = (first.0..=last.0).map(NodeId);
                    let is_there = |id: &NodeId| present.contains(*id) || gpu.contains(*id);
                    absent.extend(asked.clone().filter(|id| !is_there(id)));
                    asked.filter(is_there).collect()
                }
                Term::All => present.clone(),
                Term::Near => near.clone(),
                Term::Far => far.clone(),
                Term::Local => machine.local(cpus),
                Term::Remote => machine.remote(cpus),
                Term::Kind(kind) => machine.of_kind(kind),
                Term::Tier(rank) => machine.tier(rank),
            };
            if nodes.is_empty() && !matches!(term, Term::Range(..)) {
                let mut has = machine.inventory();
                if matches!(term, Term::Far | Term::Remote) && present.iter().count() > 1 {
                    has.push_str("; nodes of other sockets are `remote` if CPUs are chosen (-N)");
                }
                let (asked, term) = (self.to_string(), term.to_string());
                return Err(NodeSetError::NoSuchNodes { asked, term, has });
            }
            found.extend(nodes.iter());
        }
        if !absent.is_empty() {
            return Err(NodeSetError::Absent {
                asked: self.to_string(),
                absent,
                has: machine.inventory(),
            });
        }
        if !self.others {
            return Ok(found);
        }
        let others: NodeSet = present.without(&found);
        if others.is_empty() {
            let (asked, has) = (self.to_string(), machine.inventory());
            return Err(NodeSetError::NoSuchNodes { term: asked.clone(), asked, has });
        }
        Ok(others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_word_of_the_grammar_prints_back() {
        for text in [
            "0",
            "0,2-3",
            "all",
            "near",
            "far",
            "local,remote",
            "dram,cxl",
            "hbm",
            "pmem",
            "gpu",
            "tier:2,7",
            "!0,2-3",
            "!far",
            "+0,2-3",
            "!+1",
        ] {
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
            ("!", "empty"),
            ("!!0", "`!0`"),
            ("0,!1", "`!1`"),
            ("0,+1", "`+1`"),
            ("+near", "`+near`"),
            ("+", "empty"),
        ] {
            let error = text.parse::<NodeExpr>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_word_without_nodes_is_refused_also_among_others() {
        let machine = crate::testkit::machine([crate::testkit::node(0).cpus(0..4)]);
        for text in ["far", "near,far", "0,remote", "cxl,0", "tier:1"] {
            let error = text.parse::<NodeExpr>().unwrap().resolve(&machine, &[]).unwrap_err();
            assert!(error.to_string().contains("names no node here; this machine has"), "{error}");
        }
        let sockets = crate::testkit::machine(
            [0, 1]
                .map(|id| crate::testkit::node(id).cpus(u32::from(id) * 4..u32::from(id) * 4 + 4)),
        );
        for text in ["far", "remote"] {
            let error = text.parse::<NodeExpr>().unwrap().resolve(&sockets, &[]).unwrap_err();
            assert!(error.to_string().contains("(-N)"), "{error}");
        }
        let local = "local".parse::<NodeExpr>().unwrap().resolve(&machine, &[CpuId(1)]);
        assert_eq!(local.unwrap().to_string(), "0");
    }

    #[test]
    fn an_exclamation_mark_names_all_other_nodes() {
        use crate::testkit::{machine, node};
        let far = node(2).kind(MemoryKind::Cxl);
        let machine = machine([node(0).cpus(0..4), node(1).cpus(4..8), far]);
        let resolve = |text: &str| text.parse::<NodeExpr>().unwrap().resolve(&machine, &[]);
        for (text, nodes) in [("!0", "1-2"), ("!far", "0-1"), ("!0,2", "1"), ("! 0-1", "2")] {
            assert_eq!(resolve(text).map(|found| found.to_string()), Ok(nodes.into()), "{text}");
        }
        assert!(resolve("!all").unwrap_err().to_string().contains("`!all` names no node here"));
        assert!(resolve("!7").unwrap_err().to_string().contains("no node 7"));
    }

    #[test]
    fn a_plus_sign_counts_the_allowed_nodes() {
        use crate::testkit::{machine, node};
        let machine = machine([node(0).cpus(0..4), node(4).cpus(4..8), node(9)]);
        let nodes = |text: &str| text.parse::<NodeExpr>().unwrap();
        for (text, found) in [("+0", "0"), ("+1-2", "4,9"), ("!+1", "0,9")] {
            let resolved = nodes(text).resolve(&machine, &[]);
            assert_eq!(resolved.map(|found| found.to_string()), Ok(found.into()), "{text}");
        }
        let allowed = NodeSet::parse_list("4,9").unwrap();
        assert_eq!(nodes("+0,1").absolute(&allowed).unwrap().to_string(), "4,9");
        assert_eq!(nodes("near").absolute(&allowed).unwrap().to_string(), "near");
        let error = nodes("+2").absolute(&allowed).unwrap_err().to_string();
        assert!(
            error.contains("`+2` names no node here; this machine has 2 allowed nodes (4,9)"),
            "{error}"
        );
        let one = NodeSet::parse_list("4").unwrap();
        let error = nodes("+1").absolute(&one).unwrap_err().to_string();
        assert!(error.ends_with("this machine has 1 allowed node (4)"), "{error}");
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_prints_back_to_the_same_set(text in "!?[+]?[a-z0-9:, -]{0,24}") {
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
