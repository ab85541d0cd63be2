//! Physical memory of each node, as address ranges: the memory that DAMON monitors for a node.
//!
//! They come from the memory blocks in sysfs: a node's directory has a link `memoryN` for each block of
//! `block_size_bytes` with memory of it, block N beginning at N times that size. Blocks that are not online are left
//! out, so unplugged memory is not monitored, and reading again after a hotplug event gives the new state.
//! `/proc/iomem`, whose addresses only root can read, excludes holes and device memory within blocks. A block with
//! memory of two nodes counts for both. Without memory blocks (a kernel without hotplug) a single node has all of
//! `System RAM`.

use std::collections::BTreeMap;

use nearfar_topology::NodeId;

use crate::damon::spec::AddrRange;
use crate::fs::{Fs, FsError};

const NODES: &str = "sys/devices/system/node";
const MEMORY: &str = "sys/devices/system/memory";
const PAGE: u64 = 4096;

/// Reasons why the ranges are unknown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RangesError {
    /// Neither memory blocks nor a single node, to which all memory would belong.
    #[error(
        "can't tell which physical memory belongs to which node: /{MEMORY} has no blocks (CONFIG_MEMORY_HOTPLUG), and \
         {nodes} nodes share the ranges of /proc/iomem; as root, name the ranges by hand"
    )]
    Unknown {
        /// Number of nodes.
        nodes: usize,
    },
    /// A file that contains no size.
    #[error("/{MEMORY}/block_size_bytes reads `{found}`, which is no hexadecimal size")]
    Malformed {
        /// Its text.
        found: String,
    },
    /// A file exists but can't be read.
    #[error(transparent)]
    Read(#[from] FsError),
}

/// The ranges of each node with memory online now, in order and disjoint.
///
/// # Errors
/// [`RangesError`].
pub fn of_nodes(fs: &dyn Fs) -> Result<BTreeMap<NodeId, Vec<AddrRange>>, RangesError> {
    let ram = fs.read("proc/iomem")?.map(|text| system_ram(&text)).unwrap_or_default();
    let mut nodes = BTreeMap::new();
    for entry in fs.list(NODES)?.unwrap_or_default() {
        let Some(Ok(id)) = entry.name.strip_prefix("node").map(str::parse) else { continue };
        nodes.insert(NodeId(id), Vec::new());
    }
    let Some(text) = fs.read(&format!("{MEMORY}/block_size_bytes"))? else {
        let count = nodes.len();
        return match nodes.first_entry() {
            Some(mut only) if count == 1 && !ram.is_empty() => {
                only.get_mut().extend(ram);
                Ok(nodes)
            }
            _ => Err(RangesError::Unknown { nodes: count }),
        };
    };
    let malformed = || RangesError::Malformed { found: text.trim().into() };
    let size = u64::from_str_radix(text.trim().trim_start_matches("0x"), 16);
    let size = size.ok().filter(|size| *size > 0).ok_or_else(malformed)?;
    for (node, ranges) in &mut nodes {
        let blocks = merged(blocks(fs, *node, size)?);
        *ranges = if ram.is_empty() { blocks } else { both(&blocks, &ram) };
    }
    nodes.retain(|_, ranges| !ranges.is_empty());
    Ok(nodes)
}

/// A node's online blocks.
fn blocks(fs: &dyn Fs, node: NodeId, size: u64) -> Result<Vec<AddrRange>, FsError> {
    let mut blocks = Vec::new();
    for entry in fs.list(&format!("{NODES}/node{node}"))?.unwrap_or_default() {
        let index = entry.name.strip_prefix("memory").and_then(|index| index.parse::<u64>().ok());
        let Some(start) = index.and_then(|index| index.checked_mul(size)) else { continue };
        let Some(end) = start.checked_add(size) else { continue };
        let state = fs.read(&format!("{MEMORY}/{}/state", entry.name))?;
        if state.is_some_and(|state| state.trim() == "online") {
            blocks.push(AddrRange { start, end });
        }
    }
    Ok(blocks)
}

/// The lines of `/proc/iomem` that are system memory, in whole pages: `100000000-1ffffffff : System RAM`, also nested
/// in others, as for CXL memory: `    ... : System RAM (kmem)`. Addresses read 0 without privilege.
fn system_ram(iomem: &str) -> Vec<AddrRange> {
    let range = |line: &str| {
        let (range, name) = line.split_once(" : ")?;
        let (first, last) = range.trim().split_once('-')?;
        let address = |text| u64::from_str_radix(text, 16).ok();
        let end = address(last)?.checked_add(1)? / PAGE * PAGE;
        let range = AddrRange { start: address(first)?.checked_next_multiple_of(PAGE)?, end };
        (name.starts_with("System RAM") && !range.is_empty()).then_some(range)
    };
    merged(iomem.lines().filter_map(range).collect())
}

/// Sorts ranges and merges adjacent or overlapping ones.
fn merged(mut ranges: Vec<AddrRange>) -> Vec<AddrRange> {
    ranges.sort_unstable();
    let mut merged: Vec<AddrRange> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// The intersection of two sorted lists of disjoint ranges.
fn both(one: &[AddrRange], other: &[AddrRange]) -> Vec<AddrRange> {
    let (mut a, mut b) = (0, 0);
    let mut both = Vec::new();
    while let (Some(here), Some(there)) = (one.get(a), other.get(b)) {
        let range = AddrRange { start: here.start.max(there.start), end: here.end.min(there.end) };
        if !range.is_empty() {
            both.push(range);
        }
        if here.end <= there.end { a += 1 } else { b += 1 }
    }
    both
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::TreeFs;
    use nearfar_topology::Tree;
    use proptest::prelude::*;

    const BLOCK: u64 = 0x800_0000;
    const IOMEM: &str = "\
00000000-00000fff : Reserved
00001000-0009fbff : System RAM
000a0000-000bffff : PCI Bus 0000:00
00100000-0ffdffff : System RAM
  01000000-01ffffff : Kernel code
100000000-107ffffff : CXL Window 0
  100000000-107ffffff : region0
    100000000-107ffffff : dax0.0
      100000000-107ffffff : System RAM (kmem)
";

    fn machine(blocks: &[(u64, u16, &str)], iomem: Option<&str>) -> TreeFs {
        let mut tree = Tree::new();
        tree.insert(&format!("{MEMORY}/block_size_bytes"), "8000000");
        for (index, node, state) in blocks {
            tree.insert(&format!("{NODES}/node{node}/memory{index}"), "-> ../../memory/x");
            tree.insert(&format!("{MEMORY}/memory{index}/state"), state);
        }
        tree.insert(&format!("{NODES}/node9/cpulist"), "");
        if let Some(iomem) = iomem {
            tree.insert("proc/iomem", iomem);
        }
        TreeFs(tree)
    }

    fn range(start: u64, end: u64) -> AddrRange {
        AddrRange { start, end }
    }

    const BLOCKS: &[(u64, u16, &str)] =
        &[(0, 0, "online"), (1, 0, "online"), (32, 1, "online"), (33, 1, "offline")];

    #[test]
    fn a_node_has_its_online_blocks_without_the_holes() {
        let found = of_nodes(&machine(BLOCKS, Some(IOMEM))).unwrap();
        let near = vec![range(0x1000, 0x9_f000), range(0x10_0000, 0xffe_0000)];
        let far = vec![range(0x1_0000_0000, 0x1_0800_0000)];
        assert_eq!(found, [(NodeId(0), near), (NodeId(1), far)].into());
    }

    #[test]
    fn without_addresses_in_iomem_whole_blocks_count() {
        let hidden = "00000000-00000000 : System RAM\n";
        for iomem in [None, Some(hidden)] {
            let found = of_nodes(&machine(BLOCKS, iomem)).unwrap();
            assert_eq!(found[&NodeId(0)], [range(0, 2 * BLOCK)], "{iomem:?}");
        }
    }

    #[test]
    fn offline_memory_blocks_are_excluded() {
        let blocks = [(0, 0, "online"), (32, 1, "going-offline"), (33, 1, "offline")];
        assert!(!of_nodes(&machine(&blocks, None)).unwrap().contains_key(&NodeId(1)));
    }

    #[test]
    fn without_memory_blocks_a_single_node_has_all_ranges() {
        let mut tree = Tree::new();
        tree.insert("proc/iomem", IOMEM);
        tree.insert(&format!("{NODES}/node0/cpulist"), "0");
        assert_eq!(of_nodes(&TreeFs(tree.clone())).unwrap()[&NodeId(0)].len(), 3);
        tree.insert(&format!("{NODES}/node1/cpulist"), "1");
        let error = of_nodes(&TreeFs(tree)).unwrap_err().to_string();
        assert!(error.contains("2 nodes"), "{error}");
    }

    #[test]
    fn an_invalid_block_size_is_reported() {
        let mut fs = machine(BLOCKS, None);
        for bad in ["0", "", "big"] {
            fs.0.insert(&format!("{MEMORY}/block_size_bytes"), bad);
            let error = of_nodes(&fs).unwrap_err().to_string();
            assert!(error.contains(&format!("`{bad}`")), "{error}");
        }
    }

    proptest! {
        #[test]
        fn an_address_is_in_both_if_it_is_in_each(
            one in prop::collection::vec((0u64..200, 1u64..20), 0..12),
            other in prop::collection::vec((0u64..200, 1u64..20), 0..12),
        ) {
            let ranges = |pairs: Vec<(u64, u64)>| {
                merged(pairs.into_iter().map(|(start, len)| range(start, start + len)).collect())
            };
            let (one, other) = (ranges(one), ranges(other));
            let common = both(&one, &other);
            let has = |ranges: &[AddrRange], at| ranges.iter().any(|r| r.start <= at && at < r.end);
            for at in 0..230 {
                prop_assert_eq!(has(&common, at), has(&one, at) && has(&other, at), "{}", at);
            }
            prop_assert!(common.windows(2).all(|pair| pair[0].end <= pair[1].start));
        }

        #[test]
        fn parsing_any_iomem_text_does_not_panic(text in "([0-9a-f]{1,17}-[0-9a-f]{1,17} : System RAM\n|[ -~]{0,20}\n){0,20}") {
            let ranges = system_ram(&text);
            prop_assert!(ranges.iter().all(|range| !range.is_empty() && range.start % PAGE == 0));
        }
    }
}
