//! Sets of node ids, and the kernel's list format (`0,2-3`).

use alloc::vec::Vec;
use core::fmt;

use crate::units::{CpuId, NodeId};

/// A set of nodes, in order. Prints as the kernel does: `0,2-3`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeSet(alloc::collections::BTreeSet<NodeId>);

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

    /// Number of nodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the set is empty.
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

impl Extend<NodeId> for NodeSet {
    fn extend<I: IntoIterator<Item = NodeId>>(&mut self, nodes: I) {
        self.0.extend(nodes);
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
    fn maps_that_are_none_are_refused() {
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

    proptest! {
        #[test]
        fn a_map_and_a_list_of_the_same_cpus_are_read_alike(cpus in proptest::collection::btree_set(0_u32..2000, 0..40)) {
            let mut words = std::vec![0_u32; 64];
            cpus.iter().for_each(|cpu| words[(cpu / 32) as usize] |= 1 << (cpu % 32));
            let map: Vec<_> = words.iter().rev().map(|word| std::format!("{word:08x}")).collect();
            let list: Vec<_> = cpus.iter().map(std::string::ToString::to_string).collect();
            prop_assert_eq!(CpuId::parse_map(&map.join(",")), CpuId::parse_list(&list.join(",")));
        }
    }
}
