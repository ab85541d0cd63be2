//! Memory of a process by node and kind of page, for an overview of many processes.
//!
//! `/proc/PID/numa_maps` alone is read. A page counts in every process that maps it, as in RSS; [`crate::residency`]
//! has proportional shares for twice the cost. Transparent huge pages do not appear in numa_maps: only hugetlb pages
//! are apart, and [`transparent_huge`] has the sum of a process. Reading walks the page tables, milliseconds per gigabyte.

use std::collections::BTreeMap;

use nearfar_topology::{Bytes, NodeId};

use crate::fs::{Fs, FsError};
use crate::mapped;

/// Memory on one node, by kind of page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds {
    /// Heaps, stacks and anonymous mappings.
    pub anonymous: Bytes,
    /// Mapped files, private copies of their pages included.
    pub file: Bytes,
    /// Shared memory: tmpfs, memfd, System V, anonymous shared mappings.
    pub shared: Bytes,
    /// hugetlb pages.
    pub hugetlb: Bytes,
}

impl Kinds {
    /// All kinds together.
    #[must_use]
    pub fn total(&self) -> Bytes {
        let all = [self.anonymous, self.file, self.shared, self.hugetlb];
        Bytes(all.iter().fold(0, |sum, bytes| sum.saturating_add(bytes.0)))
    }

    fn of(&mut self, line: &mapped::Line<'_>) -> &mut Bytes {
        match line.file {
            _ if line.huge => &mut self.hugetlb,
            None => &mut self.anonymous,
            Some(file) if is_shared_memory(file) => &mut self.shared,
            Some(_) => &mut self.file,
        }
    }
}

/// Whether numa_maps gives this name to shared memory.
fn is_shared_memory(file: &str) -> bool {
    ["/memfd:", "/dev/shm/", "/SYSV", "/dev/zero"].iter().any(|start| file.starts_with(start))
}

/// Memory of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// By node; nodes without a byte are left out.
    pub nodes: BTreeMap<NodeId, Kinds>,
    /// By memory policy, as the kernel writes it; policies without a byte are left out.
    pub policies: BTreeMap<String, Bytes>,
}

impl Usage {
    /// Bytes on these nodes.
    #[must_use]
    pub fn on(&self, is_counted: impl Fn(NodeId) -> bool) -> Bytes {
        let counted = self.nodes.iter().filter(|(node, _)| is_counted(**node));
        Bytes(counted.fold(0, |sum, (_, kinds)| sum.saturating_add(kinds.total().0)))
    }
}

/// The memory of a process; `None` if it has ended or has none, as a thread of the kernel.
///
/// # Errors
/// [`FsError`], above all for another user's process.
pub fn of_process(fs: &dyn Fs, pid: u32) -> Result<Option<Usage>, FsError> {
    let text = fs.read(&format!("proc/{pid}/numa_maps"))?;
    Ok(text.map(|text| understand(&text)).filter(|usage| !usage.nodes.is_empty()))
}

/// Bytes of a process in transparent huge pages, of all nodes together; `None` if the kernel does not report them.
#[must_use]
pub fn transparent_huge(fs: &dyn Fs, pid: u32) -> Option<Bytes> {
    let text = fs.read(&format!("proc/{pid}/smaps_rollup")).ok().flatten()?;
    let kilobytes = |line: &str| -> Option<u64> {
        let (name, value) = line.split_once(':')?;
        let is_huge = ["AnonHugePages", "ShmemPmdMapped", "FilePmdMapped"].contains(&name);
        is_huge.then(|| value.trim().strip_suffix(" kB")?.parse().ok()).flatten()
    };
    let found: Vec<u64> = text.lines().filter_map(kilobytes).collect();
    (!found.is_empty())
        .then(|| Bytes(found.iter().fold(0, |sum: u64, one| sum.saturating_add(*one)) << 10))
}

/// Parses numa_maps; other lines are skipped.
#[must_use]
pub fn understand(numa_maps: &str) -> Usage {
    let mut usage = Usage::default();
    for line in numa_maps.lines().filter_map(mapped::line) {
        for (node, pages) in &line.pages {
            let bytes = pages.saturating_mul(line.page);
            let kind = usage.nodes.entry(*node).or_default().of(&line);
            kind.0 = kind.0.saturating_add(bytes);
            let policy = usage.policies.entry(line.policy.clone()).or_default();
            policy.0 = policy.0.saturating_add(bytes);
        }
    }
    usage.nodes.retain(|_, kinds| kinds.total() > Bytes(0));
    usage.policies.retain(|_, bytes| *bytes > Bytes(0));
    usage
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::RootFs;

    #[test]
    fn pages_count_by_node_kind_and_policy() {
        let text = "7f0000000000 bind:1 anon=512 dirty=512 N0=2 N1=510 kernelpagesize_kB=4\n\
            7f1000000000 default file=/usr/lib/libc.so.6 mapped=20 N0=20 kernelpagesize_kB=4\n\
            7f2000000000 default file=/memfd:x\\040(deleted) dirty=3 N1=3 kernelpagesize_kB=4\n\
            7f3000000000 default file=/dev/hugepages/a huge dirty=2 N1=2 kernelpagesize_kB=2048\n\
            7f4000000000 default stack anon=1 N0=1 kernelpagesize_kB=4\n7f5000000000 default\nnot a line\n";
        let usage = understand(text);
        let near = Kinds { anonymous: Bytes(3 * 4096), file: Bytes(20 * 4096), ..Kinds::default() };
        let far = Kinds {
            anonymous: Bytes(510 * 4096),
            shared: Bytes(3 * 4096),
            hugetlb: Bytes(4 << 20),
            ..Kinds::default()
        };
        assert_eq!(usage.nodes, BTreeMap::from([(NodeId(0), near), (NodeId(1), far)]));
        let policies = [("bind:1", 512 * 4096), ("default", 24 * 4096 + (4 << 20))];
        let policies = policies.map(|(policy, bytes)| (policy.to_owned(), Bytes(bytes)));
        assert_eq!(usage.policies, BTreeMap::from(policies));
        assert_eq!(usage.on(|node| node == NodeId(1)), far.total());
    }

    #[test]
    fn transparent_huge_pages_of_all_kinds_are_summed() {
        let mut tree = nearfar_topology::Tree::new();
        let text = "5600-7ff0 ---p 00000000 00:00 0 [rollup]\nRss: 9000 kB\nAnonHugePages:    4096 kB\n\
            ShmemPmdMapped:  2048 kB\nFilePmdMapped: 0 kB\n";
        tree.insert("proc/7/smaps_rollup", text);
        tree.insert("proc/8/smaps_rollup", "Rss: 9000 kB\n");
        let fs = crate::fake::FakeFs::new(tree);
        assert_eq!(transparent_huge(&fs, 7), Some(Bytes(6 << 20)));
        assert_eq!([8, 9].map(|pid| transparent_huge(&fs, pid)), [None, None]);
    }

    #[test]
    fn this_process_has_anonymous_memory_and_a_file() {
        let fs = RootFs::live().unwrap();
        let memory = std::hint::black_box(vec![1_u8; 8 << 20]);
        let usage = of_process(&fs, std::process::id()).unwrap().unwrap();
        let (anonymous, file) = usage.nodes.values().fold((0, 0), |(anonymous, file), kinds| {
            (anonymous + kinds.anonymous.0, file + kinds.file.0)
        });
        assert!(anonymous >= 8 << 20 && file > 0, "{usage:?}");
        assert_eq!(memory[3], 1);
        assert_eq!(of_process(&fs, u32::MAX).unwrap(), None, "no such process");
    }
}
