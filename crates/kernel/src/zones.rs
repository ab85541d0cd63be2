//! Free memory of nodes that is available as a target of migration.
//!
//! Not all free memory of a node is available: below each zone's `high` watermark the kernel reclaims in the
//! background, and below `low` an allocation that may not wait, such as the target of a migration, falls back to
//! another node. A zone's `protection` is reserved for allocations that can't use a higher zone. `/proc/zoneinfo` has,
//! per node and zone and in pages:
//!
//! ```text
//! Node 0, zone    DMA32
//!   pages free     42050
//!         low      3042
//!         high     3650
//!         protection: (0, 0, 0, 0, 0)
//! ```
//!
//! Source: Linux 6.12, Documentation/admin-guide/sysctl/vm.rst (min_free_kbytes, lowmem_reserve_ratio), mm/page_alloc.c
//! (`zone_watermark_ok`).

use std::collections::BTreeMap;

use nearfar_topology::{Bytes, NodeId};

use crate::fs::{Fs, FsError};

const PAGE: u64 = 4096;

#[derive(Clone, Copy, Default)]
struct Zone {
    node: Option<NodeId>,
    free: u64,
    high: u64,
    protection: u64,
}

impl Zone {
    fn usable(self) -> u64 {
        self.free.saturating_sub(self.high.saturating_add(self.protection)).saturating_mul(PAGE)
    }
}

/// Bytes available as a target of migration, by node, now. Nodes without a zone are left out; empty if the kernel does
/// not report zones.
///
/// # Errors
/// [`FsError`], if `/proc/zoneinfo` is there but can't be read.
pub fn usable_free(fs: &dyn Fs) -> Result<BTreeMap<NodeId, Bytes>, FsError> {
    let text = fs.read("proc/zoneinfo")?.unwrap_or_default();
    let mut nodes = BTreeMap::new();
    let mut add = |zone: Zone| {
        if let Some(node) = zone.node {
            let Bytes(sum) = nodes.entry(node).or_default();
            *sum = sum.saturating_add(zone.usable());
        }
    };
    let mut zone = Zone::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("Node"), Some(node)) => {
                add(zone);
                let node = node.trim_end_matches(',').parse().ok().map(NodeId);
                zone = Zone { node, ..Zone::default() };
            }
            (Some("pages"), Some("free")) => zone.free = number(words.next()),
            (Some("high"), high @ Some(_)) => zone.high = number(high),
            (Some("protection:"), _) => zone.protection = highest(line),
            _ => {}
        }
    }
    add(zone);
    Ok(nodes)
}

fn number(word: Option<&str>) -> u64 {
    word.and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// The highest number in brackets: the pages reserved from allocations that could use any zone.
fn highest(line: &str) -> u64 {
    let numbers = line.split(['(', ',', ')']).filter_map(|part| part.trim().parse().ok());
    numbers.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::TreeFs;
    use nearfar_topology::Tree;

    #[test]
    fn usable_free_memory_excludes_watermarks_and_lowmem_reserves() {
        let text = "Node 0, zone      DMA\n  per-node stats\n      nr_inactive_anon 7\n  pages free     3840\n        boost    0\n        min      9\n        low      12\n        high     15\n        promo    18\n        protection: (0, 1500, 4000, 4000, 4000)\n      nr_free_pages 3840\n    cpu: 0\n              count: 0\n              high:  0\n\
            Node 0, zone    DMA32\n  pages free     42050\n        low      3042\n        high     3650\n        protection: (0, 0, 0, 0, 0)\n    cpu: 0\n              high:  5000\n\
            Node 12, zone  Movable\n  pages free     10\n        high     32\n        protection: (0, 0, 0, 0, 0)\n";
        let mut tree = Tree::new();
        tree.insert("proc/zoneinfo", text);
        let usable = usable_free(&TreeFs(tree)).unwrap();
        let wanted = [(NodeId(0), Bytes(38_400 * PAGE)), (NodeId(12), Bytes(0))];
        assert_eq!(usable, BTreeMap::from(wanted));
    }

    #[test]
    fn malformed_zoneinfo_counts_as_zero() {
        let mut tree = Tree::new();
        tree.insert("proc/zoneinfo", "pages free 7\nNode x, zone DMA\n pages free -1\nNode\n protection: (,)\nNode 3, zone\n pages free 99999999999999999999\n");
        assert_eq!(usable_free(&TreeFs(tree)).unwrap(), [(NodeId(3), Bytes(0))].into());
        assert_eq!(usable_free(&TreeFs(Tree::new())).unwrap(), BTreeMap::new());
    }
}
