//! Sets of node ids, and the kernel's list format (`0,2-3`).

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::fmt;

use crate::units::{CpuId, NodeId};

/// A set of nodes, in order. Prints as the kernel does: `0,2-3`.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct NodeSet {
    /// A bit for each node, as far as the last one: a machine of a thousand nodes has thousands of sets of them.
    words: Vec<u64>,
}

impl NodeSet {
    /// An empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self { words: Vec::new() }
    }

    /// Whether `node` is in the set.
    #[must_use]
    pub fn contains(&self, node: NodeId) -> bool {
        let (word, bit) = place(node);
        self.words.get(word).is_some_and(|word| word & bit != 0)
    }

    /// Adds `node`; false if it was there.
    pub fn insert(&mut self, node: NodeId) -> bool {
        let (word, bit) = place(node);
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        let Some(word) = self.words.get_mut(word) else { return false };
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    /// For a sentence: `node 0`, or `nodes 0,2-3`.
    #[must_use]
    pub fn named(&self) -> String {
        let nodes = if self.iter().nth(1).is_none() { "node" } else { "nodes" };
        format!("{nodes} {self}")
    }

    /// The nodes, in order.
    #[must_use]
    pub fn iter(&self) -> Nodes<'_> {
        Nodes { words: &self.words, first: 0, rest: 0 }
    }

    /// Those of its nodes that are not in `other`.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        let others = other.words.iter().chain(core::iter::repeat(&0));
        let words = self.words.iter().zip(others).map(|(word, other)| word & !other);
        Self::of(words.collect())
    }

    /// The set with these bits.
    fn of(mut words: Vec<u64>) -> Self {
        let last = words.iter().rposition(|word| *word != 0);
        words.truncate(last.map_or(0, |last| last + 1));
        Self { words }
    }

    /// Number of nodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Reads the kernel's list format (`0-1,4`, or nothing); `None` for any other text.
    #[must_use]
    pub fn parse_list(text: &str) -> Option<Self> {
        let ids = parse_id_list(text)?;
        ids.into_iter().map(|id| NodeId::new(id.into())).collect()
    }
}

/// Bits of a word.
const BITS: usize = u64::BITS as usize;

/// The word of a node's bit, and the bit.
const fn place(node: NodeId) -> (usize, u64) {
    (node.0 as usize / BITS, 1 << (node.0 as usize % BITS))
}

/// The nodes of a set, in order.
#[derive(Clone, Debug)]
pub struct Nodes<'a> {
    /// Words to come.
    words: &'a [u64],
    /// The number after those of the word that is under way.
    first: u32,
    /// Its bits to come.
    rest: u64,
}

impl Iterator for Nodes<'_> {
    type Item = NodeId;

    fn next(&mut self) -> Option<NodeId> {
        while self.rest == 0 {
            (self.rest, self.words) =
                self.words.split_first().map(|(word, words)| (*word, words))?;
            self.first += u64::BITS;
        }
        let bit = self.rest.trailing_zeros();
        self.rest &= self.rest - 1;
        u16::try_from(self.first - u64::BITS + bit).ok().map(NodeId)
    }
}

/// As a set of numbers.
impl fmt::Debug for NodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// By the first node that differs, as sequences of numbers.
impl Ord for NodeSet {
    fn cmp(&self, other: &Self) -> Ordering {
        self.iter().cmp(other.iter())
    }
}

impl PartialOrd for NodeSet {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Extend<NodeId> for NodeSet {
    fn extend<I: IntoIterator<Item = NodeId>>(&mut self, nodes: I) {
        for node in nodes {
            self.insert(node);
        }
    }
}

impl FromIterator<NodeId> for NodeSet {
    fn from_iter<I: IntoIterator<Item = NodeId>>(nodes: I) -> Self {
        let mut set = Self::new();
        set.extend(nodes);
        set
    }
}

impl fmt::Display for NodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_list(f, self.iter().map(|id| u32::from(id.0)))
    }
}

/// CPUs in ascending order, printed as the kernel does: `0-3,8`.
#[derive(Clone, Copy, Debug)]
pub struct CpuList<I>(
    /// The CPUs.
    pub I,
);

impl<'a, I: IntoIterator<Item = &'a CpuId> + Clone> fmt::Display for CpuList<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_list(f, self.0.clone().into_iter().map(|cpu| cpu.0))
    }
}

impl CpuId {
    /// Reads the kernel's list format (`0-3,8`, or nothing), in order; `None` for any other text.
    #[must_use]
    pub fn parse_list(text: &str) -> Option<Vec<Self>> {
        let mut ids = parse_id_list(text)?;
        ids.sort_unstable();
        ids.dedup();
        Some(ids.into_iter().map(Self).collect())
    }

    /// Reads the kernel's map format (`00000000,0000000f`: words of 32 bits, the last has CPU 0), in order; `None` for any
    /// other text, or more than 65,536 CPUs.
    #[must_use]
    pub fn parse_map(text: &str) -> Option<Vec<Self>> {
        const WORDS: usize = 65_536 / 32;
        let words: Vec<&str> = text.trim().split(',').collect();
        let is_hex =
            |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        let mut ids = Vec::new();
        for (at, word) in (0_u32..).zip(words.iter().rev()) {
            if words.len() > WORDS || word.len() > 8 || !is_hex(word) {
                return None;
            }
            let bits = u32::from_str_radix(word, 16).ok()?;
            ids.extend((0..32).filter(|bit| bits >> bit & 1 == 1).map(|bit| Self(at * 32 + bit)));
        }
        Some(ids)
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
fn write_list(f: &mut fmt::Formatter<'_>, ids: impl Iterator<Item = u32>) -> fmt::Result {
    let mut ids = ids.peekable();
    let mut comma = "";
    while let Some(first) = ids.next() {
        let mut last = first;
        while last.checked_add(1).is_some_and(|next| ids.peek() == Some(&next)) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn invalid_maps_are_refused() {
        for text in ["", ",", "0000000g", "-1", "000000001", "0,,1", "+1"] {
            assert_eq!(CpuId::parse_map(text), None, "{text}");
        }
        assert_eq!(CpuId::parse_map("0"), Some(Vec::new()));
        assert_eq!(
            CpuId::parse_map("8000,00000000,00000003\n"),
            Some([0, 1, 79].map(CpuId).to_vec())
        );
        assert_eq!(CpuId::parse_map(&"f,".repeat(3000)), None);
    }

    #[test]
    fn a_node_with_the_greatest_number_is_in_a_set_like_any_other() {
        let set = NodeSet::from_iter([NodeId(u16::MAX), NodeId(64), NodeId(63)]);
        assert_eq!(std::format!("{set}"), "63-64,65535");
        assert_eq!(set.len(), 3);
    }

    proptest! {
        #[test]
        fn a_set_is_as_an_ordered_list_of_its_nodes(
            one in proptest::collection::vec(0_u16..200, 0..40),
            other in proptest::collection::vec(0_u16..200, 0..40),
        ) {
            let list = |of: &[u16]| of.iter().copied().collect::<std::collections::BTreeSet<_>>();
            let set = |of: &[u16]| of.iter().copied().map(NodeId).collect::<NodeSet>();
            let (lists, sets) = ((list(&one), list(&other)), (set(&one), set(&other)));
            prop_assert!(sets.0.iter().map(|id| id.0).eq(lists.0.iter().copied()));
            prop_assert_eq!(sets.0.len(), lists.0.len());
            prop_assert_eq!(sets.0.is_empty(), lists.0.is_empty());
            prop_assert!((0..200).all(|id| sets.0.contains(NodeId(id)) == lists.0.contains(&id)));
            prop_assert_eq!(sets.0.cmp(&sets.1), lists.0.cmp(&lists.1));
            prop_assert_eq!(sets.0 == sets.1, lists.0 == lists.1);
            let rest: NodeSet = lists.0.difference(&lists.1).copied().map(NodeId).collect();
            prop_assert_eq!(sets.0.without(&sets.1), rest);
            let mut grown = sets.0;
            for id in &other {
                let was_there = grown.contains(NodeId(*id));
                prop_assert_eq!(grown.insert(NodeId(*id)), !was_there);
            }
            prop_assert!(grown.iter().map(|id| id.0).eq(lists.0.union(&lists.1).copied()));
        }

        #[test]
        fn a_map_and_a_list_of_the_same_cpus_parse_alike(cpus in proptest::collection::btree_set(0_u32..2000, 0..40)) {
            let mut words = std::vec![0_u32; 64];
            cpus.iter().for_each(|cpu| words[(cpu / 32) as usize] |= 1 << (cpu % 32));
            let map: Vec<_> = words.iter().rev().map(|word| std::format!("{word:08x}")).collect();
            let list: Vec<_> = cpus.iter().map(std::string::ToString::to_string).collect();
            prop_assert_eq!(CpuId::parse_map(&map.join(",")), CpuId::parse_list(&list.join(",")));
        }
    }
}
