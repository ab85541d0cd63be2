//! Figures of a node's memory: `/sys/devices/system/node/nodeN/meminfo`, lines like `Node 0 MemFree:  1024 kB`.

use nearfar_topology::{BasisPoints, Bytes, NodeId};

use crate::fs::Fs;

/// Figures of a node's memory. Missing ones are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meminfo {
    /// Online memory.
    pub total: Bytes,
    /// Free memory; the kernel reserves part of it.
    pub free: Bytes,
    /// Memory that is not free.
    pub used: Bytes,
    /// Memory of programs: pages on reclaim lists. The kernel's own pages are on none.
    pub taken: Bytes,
    /// Of those, file pages, which the kernel reclaims for others.
    pub cached: Bytes,
}

impl Meminfo {
    /// Parses the text.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let bytes = |name: &str| {
            let kib = |line: &str| {
                line.split_once(name)?.1.split_whitespace().next()?.parse::<u64>().ok()
            };
            Bytes(text.lines().find_map(kib).unwrap_or(0).saturating_mul(1024))
        };
        let taken = bytes("Active:").0.saturating_add(bytes("Inactive:").0);
        let cached = bytes("Active(file):").0.saturating_add(bytes("Inactive(file):").0);
        Self {
            total: bytes("MemTotal:"),
            free: bytes("MemFree:"),
            used: bytes("MemUsed:"),
            taken: Bytes(taken),
            cached: Bytes(cached),
        }
    }

    /// The share of online memory available to programs: free memory plus file pages, which fill all unused memory on a
    /// machine that has run for a while. 0 without online memory.
    #[must_use]
    pub fn room(&self) -> BasisPoints {
        let room = u128::from(self.free.0.saturating_add(self.cached.0));
        let share = (room * 10_000).checked_div(u128::from(self.total.0));
        BasisPoints(u32::try_from(share.unwrap_or(0)).unwrap_or(10_000).min(10_000))
    }
}

/// A node's figures; `None` if the node does not exist.
#[must_use]
pub fn of_node(fs: &dyn Fs, node: NodeId) -> Option<Meminfo> {
    let text = fs.read(&format!("sys/devices/system/node/node{node}/meminfo")).ok().flatten()?;
    Some(Meminfo::parse(&text))
}

/// Free huge pages of a node in bytes, by page size, where the kernel has pools of them (hugetlbpage.rst).
#[must_use]
pub fn huge_pages(fs: &dyn Fs, node: NodeId) -> Vec<(Bytes, Bytes)> {
    let dir = format!("sys/devices/system/node/node{node}/hugepages");
    let pools = fs.list(&dir).ok().flatten().unwrap_or_default();
    let pool = |name: &str| {
        let kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<u64>().ok()?;
        let free = fs.read(&format!("{dir}/{name}/free_hugepages")).ok().flatten()?;
        let size = kib.checked_mul(1024)?;
        Some((Bytes(size), Bytes(free.trim().parse::<u64>().ok()?.checked_mul(size)?)))
    };
    pools.iter().filter_map(|entry| pool(&entry.name)).collect()
}

/// The default size of huge pages.
#[must_use]
pub fn huge_page_size(fs: &dyn Fs) -> Option<Bytes> {
    let text = fs.read("proc/meminfo").ok().flatten()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Hugepagesize:"))?;
    let kib = line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?;
    kib.checked_mul(1024).map(Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::TreeFs;
    use nearfar_topology::Tree;
    use proptest::prelude::*;

    #[test]
    fn figures_are_read_in_bytes() {
        let text = "Node 0 MemTotal:  2048 kB\nNode 0 MemFree:  1024 kB\nNode 0 MemUsed:  1000 kB\n\
                    Node 0 Active:  300 kB\nNode 0 Inactive:  200 kB\nNode 0 Active(anon):  9 kB\n\
                    Node 0 Active(file):  30 kB\nNode 0 Inactive(file):  12 kB\n";
        let found = Meminfo::parse(text);
        assert_eq!((found.total, found.free), (Bytes(2 << 20), Bytes(1 << 20)));
        assert_eq!((found.used, found.taken), (Bytes(1_024_000), Bytes(500 << 10)));
        assert_eq!(found.cached, Bytes(42 << 10));
        assert_eq!(found.room(), BasisPoints(5205));
        assert_eq!(Meminfo { free: Bytes(u64::MAX), ..found }.room(), BasisPoints(10_000));
        assert_eq!(Meminfo::default().room(), BasisPoints(0));
    }

    #[test]
    fn huge_pages_are_read_by_their_size() {
        let mut tree = Tree::new();
        let dir = "sys/devices/system/node/node1/hugepages";
        tree.insert(&format!("{dir}/hugepages-2048kB/free_hugepages"), "3\n");
        tree.insert(&format!("{dir}/hugepages-1048576kB/free_hugepages"), "0\n");
        tree.insert(&format!("{dir}/hugepages-64kB/free_hugepages"), "none\n");
        tree.insert("proc/meminfo", "MemFree: 1 kB\nHugepagesize:       2048 kB\n");
        let fs = TreeFs(tree);
        let expected = [(Bytes(1 << 30), Bytes(0)), (Bytes(2 << 20), Bytes(6 << 20))];
        let mut found = huge_pages(&fs, NodeId(1));
        found.sort_by(|a, b| b.cmp(a));
        assert_eq!(found, expected);
        assert_eq!(huge_pages(&fs, NodeId(0)), []);
        assert_eq!(huge_page_size(&fs), Some(Bytes(2 << 20)));
    }

    #[test]
    fn missing_meminfo_values_are_zero() {
        assert_eq!(Meminfo::parse("Node 0 MemTotal: x kB\nNode 0 MemFree:"), Meminfo::default());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "((Node 0 )?(MemTotal|Active|Inactive|MemFree):? *[0-9]{0,20}( kB)?\n){0,6}") {
            let _ = Meminfo::parse(&text);
        }
    }
}
