//! Residency: bytes of a process, or of a tree of processes, on each node at present.
//!
//! `/proc/PID/numa_maps` has one mapping per line, with the pages on each node: `7f12a8000000 bind:0-1 anon=512
//! dirty=512 N0=256 N1=256 kernelpagesize_kB=4`. It counts a page in every process that maps it. `/proc/PID/smaps` has
//! the same mappings with `Rss` and `Pss`, where a page counts proportionally (a third in each of three processes).
//! Node bytes here are numa_maps scaled by Pss / Rss, per mapping: memory shared within a tree counts once, and a
//! library shared by the whole system hardly at all. Where smaps has no figures (hugetlb, or a mapping that has just
//! changed) the pages count fully.
//!
//! Both files walk the page tables when read, which takes milliseconds per gigabyte: the caller limits the rate.

use std::collections::BTreeMap;
use std::io;

use nearfar_topology::{Bytes, NodeId};

use crate::fs::{Fs, FsError};
use crate::sys::mempolicy as sys;
use crate::sys::process::share_memory;
use crate::{mapped, process};

/// Bytes per node, now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Residency {
    /// By node; nodes without a byte are left out.
    pub nodes: BTreeMap<NodeId, Bytes>,
    /// Of these, bytes in huge pages (transparent or hugetlb).
    pub huge: Bytes,
    /// Number of processes counted.
    pub processes: usize,
    /// Number of processes that could not be read (another user's, or one that can't be traced).
    pub unreadable: usize,
}

impl Residency {
    /// All nodes together.
    #[must_use]
    pub fn total(&self) -> Bytes {
        Bytes(self.nodes.values().fold(0, |sum, bytes| sum.saturating_add(bytes.0)))
    }

    fn add(&mut self, other: &Self) {
        for (node, bytes) in &other.nodes {
            let sum = self.nodes.entry(*node).or_default();
            sum.0 = sum.0.saturating_add(bytes.0);
        }
        self.huge.0 = self.huge.0.saturating_add(other.huge.0);
        self.processes += other.processes;
        self.unreadable += other.unreadable;
    }
}

/// Residency of `root` and its descendants together. Processes that share one address space, as after vfork(2), are
/// counted once.
///
/// # Errors
/// [`FsError`], if `/proc` itself can't be listed.
pub fn of_tree(fs: &dyn Fs, root: u32) -> Result<Residency, FsError> {
    let mut sum = Residency::default();
    let mut counted: Vec<u32> = Vec::new();
    for pid in process::tree(fs, root)? {
        let same = |other: &u32| share_memory(*other, pid) == Some(true);
        if fs.is_live() && counted.iter().any(same) {
            sum.processes += 1;
            continue;
        }
        counted.push(pid);
        sum.add(&of_process(fs, pid));
    }
    Ok(sum)
}

/// Residency of one process; empty if it has ended.
#[must_use]
pub fn of_process(fs: &dyn Fs, pid: u32) -> Residency {
    let maps = match fs.read(&format!("proc/{pid}/numa_maps")) {
        Ok(Some(text)) => text,
        Err(error) if error.is_permission() => {
            return Residency { unreadable: 1, ..Residency::default() };
        }
        Ok(None) | Err(_) => return Residency::default(),
    };
    let shares = fs.read(&format!("proc/{pid}/smaps")).ok().flatten();
    understand(&maps, shares.as_deref().unwrap_or_default())
}

/// Pages queried at a time.
const PAGES: usize = 512;

/// Resident bytes of a process's memory (this one's for `None`) from `address` on, over `length` bytes, by node, page by
/// page, by move_pages(2) without target nodes. `page` is the size of a page.
///
/// # Errors
/// The call's.
pub fn of_range(
    process: Option<u32>,
    address: usize,
    length: usize,
    page: usize,
) -> io::Result<BTreeMap<NodeId, Bytes>> {
    let process = process.map_or(0, |process| i32::try_from(process).unwrap_or(i32::MAX));
    let mut found = BTreeMap::new();
    let mut at = address / page * page;
    let end = address.saturating_add(length);
    while at < end {
        let (mut pages, mut nodes) = ([0; PAGES], [0; PAGES]);
        let count = (end - at).div_ceil(page).min(PAGES);
        pages.iter_mut().take(count).enumerate().for_each(|(n, place)| *place = at + n * page);
        sys::nodes_of_pages(process, &pages[..count], &mut nodes)?;
        for (first, node) in pages.iter().zip(nodes).take(count) {
            let Some(node) = u16::try_from(node).ok().map(NodeId) else { continue };
            let within = end.min(first + page) - address.max(*first);
            let sum: &mut Bytes = found.entry(node).or_default();
            sum.0 += within as u64;
        }
        at += count * page;
    }
    Ok(found)
}

/// Parses the two texts; other lines are skipped.
#[must_use]
pub fn understand(numa_maps: &str, smaps: &str) -> Residency {
    let shares = shares(smaps);
    let mut found = Residency { processes: 1, ..Residency::default() };
    for line in numa_maps.lines() {
        let Some(mapping) = mapped::line(line) else { continue };
        let share = shares.get(&mapping.start).copied().unwrap_or_default();
        let mut total = 0_u64;
        for (node, pages) in mapping.pages {
            let bytes = share.of(pages.saturating_mul(mapping.page));
            total = total.saturating_add(bytes);
            let sum = found.nodes.entry(node).or_default();
            sum.0 = sum.0.saturating_add(bytes);
        }
        let huge = if mapping.huge { total } else { share.of(share.huge).min(total) };
        found.huge.0 = found.huge.0.saturating_add(huge);
    }
    found.nodes.retain(|_, bytes| bytes.0 > 0);
    found
}

/// The figures of smaps for a mapping, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    rss: u64,
    pss: u64,
    huge: u64,
}

impl Share {
    /// `bytes` scaled by this mapping's share; all of them if the share is unknown.
    fn of(self, bytes: u64) -> u64 {
        if self.rss == 0 {
            return bytes;
        }
        let scaled = u128::from(bytes) * u128::from(self.pss.min(self.rss)) / u128::from(self.rss);
        u64::try_from(scaled).unwrap_or(bytes)
    }
}

/// Shares by start address.
fn shares(smaps: &str) -> BTreeMap<u64, Share> {
    let mut shares = BTreeMap::new();
    let mut current: Option<(u64, Share)> = None;
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(first) = words.next() else { continue };
        let Some(key) = first.strip_suffix(':') else {
            // `7f12a8000000-7f12a8200000 rw-p ...` begins a mapping.
            let start =
                first.split_once('-').and_then(|(start, _)| u64::from_str_radix(start, 16).ok());
            if let Some(start) = start {
                shares.extend(current.replace((start, Share::default())));
            }
            continue;
        };
        let Some((_, share)) = &mut current else { continue };
        let kib: u64 = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        let bytes = kib.saturating_mul(1024);
        match key {
            "Rss" => share.rss = bytes,
            "Pss" => share.pss = bytes,
            "AnonHugePages" | "ShmemPmdMapped" | "FilePmdMapped" => {
                share.huge = share.huge.saturating_add(bytes);
            }
            _ => {}
        }
    }
    shares.extend(current);
    shares
}

/// Arbitrary bytes as numa_maps and, after a zero byte, smaps, for fuzz targets: huge pages are part of all.
#[cfg(any(fuzzing, test))]
pub fn fuzz(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (maps, shares) = text.split_once('\0').unwrap_or((&text, ""));
    let found = understand(maps, shares);
    assert!(found.huge <= found.total());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::{RootFs, TreeFs};
    use nearfar_topology::Tree;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn range_residency_counts_touched_bytes_exactly() {
        let mut memory = vec![0_u8; 64 << 20];
        let at = memory.as_ptr() as usize;
        memory[..10 << 20].fill(1);
        let bytes = |from, length| {
            let found = of_range(None, at + from, length, 4096).unwrap();
            found.values().map(|bytes| bytes.0).sum::<u64>()
        };
        assert_eq!(bytes(5, 10_000), 10_000);
        assert_eq!(bytes(0, 10 << 20), 10 << 20);
        assert_eq!(bytes(0, 0), 0);
        // A huge page may extend beyond the touched range.
        assert!((10 << 20..=12 << 20).contains(&bytes(0, 64 << 20)));
    }

    fn by_node(residency: &Residency) -> Vec<(u16, u64)> {
        residency.nodes.iter().map(|(node, bytes)| (node.0, bytes.0)).collect()
    }

    #[test]
    fn pages_count_by_node_and_page_size() {
        let maps = "\
5560a0000000 default file=/usr/bin/redis-server mapped=3 N0=2 N1=1 kernelpagesize_kB=4
7f0000000000 weighted interleave:0-1 anon=1024 dirty=1024 N0=768 N1=256 kernelpagesize_kB=4
7f1000000000 prefer (many):1 file=/dev/hugepages/a\\040b huge dirty=2 N1=2 kernelpagesize_kB=2048
7ffc00000000 default stack anon=1 N1023=1 kernelpagesize_kB=4
7ffd00000000 default
";
        let found = understand(maps, "");
        let n1 = 4096 + MIB + 4 * MIB;
        assert_eq!(by_node(&found), [(0, 2 * 4096 + 3 * MIB), (1, n1), (1023, 4096)]);
        assert_eq!(found.huge, Bytes(4 * MIB));
    }

    #[test]
    fn shared_pages_count_by_their_share() {
        let maps = "7f0000000000 default anon=512 N0=256 N1=256 kernelpagesize_kB=4\n";
        let smaps = "\
7f0000000000-7f0000200000 rw-s 00000000 00:01 1 /dev/shm/x
Size: 2048 kB
Rss: 2048 kB
Pss: 1024 kB
Pss_Dirty: 1024 kB
AnonHugePages: 2048 kB
VmFlags: rd wr sh
";
        let found = understand(maps, smaps);
        assert_eq!(by_node(&found), [(0, MIB / 2), (1, MIB / 2)]);
        assert_eq!(found.huge, Bytes(MIB));
    }

    #[test]
    fn tree_residency_is_summed_and_unreadable_processes_are_counted() {
        struct Closed(TreeFs);
        impl Fs for Closed {
            fn read(&self, path: &str) -> Result<Option<String>, FsError> {
                if path.starts_with("proc/12/") && path != "proc/12/stat" {
                    let source = rustix::io::Errno::ACCESS.into();
                    return Err(FsError::Call { call: "open", path: path.into(), source });
                }
                self.0.read(path)
            }
            fn write(&self, path: &str, text: &str) -> Result<(), FsError> {
                self.0.write(path, text)
            }
            fn list(&self, path: &str) -> Result<Option<Vec<crate::fs::Entry>>, FsError> {
                self.0.list(path)
            }
        }
        let mut tree = Tree::new();
        for (pid, parent) in [(10, 1), (11, 10), (12, 10)] {
            tree.insert(&format!("proc/{pid}/stat"), &format!("{pid} (x) S {parent} 1"));
            let maps = "400000 default anon=1 N0=1 kernelpagesize_kB=4\n";
            tree.insert(&format!("proc/{pid}/numa_maps"), maps);
        }
        let found = of_tree(&Closed(TreeFs(tree)), 10).unwrap();
        assert_eq!(by_node(&found), [(0, 2 * 4096)]);
        assert_eq!((found.processes, found.unreadable), (2, 1));
    }

    #[test]
    fn our_own_memory_is_found_where_it_is() {
        let memory = std::hint::black_box(vec![1_u8; 16 << 20]);
        let found = of_process(&RootFs::live().unwrap(), std::process::id());
        assert!(found.total().0 >= 16 * MIB, "{found:?}");
        assert_eq!((found.processes, found.unreadable, memory[5]), (1, 0, 1));
    }

    #[test]
    fn a_process_that_ended_has_nothing() {
        assert_eq!(of_process(&TreeFs(Tree::new()), 5), Residency::default());
    }

    proptest! {
        #[test]
        fn any_text_is_understood_or_passed_over(
            maps in "([0-9a-f]{1,18}|default|N[0-9]{1,6}=[0-9]{1,20}|kernelpagesize_kB=[0-9]{1,20}|huge|[ -~]{0,9}|[ \n]){0,60}",
            smaps in "([0-9a-f]{1,17}-[0-9a-f]{1,4} |Rss: +[0-9]{1,20} kB|Pss: +[0-9]{1,20} kB|AnonHugePages: 9 kB|[ -~]{0,9}|\n){0,60}",
        ) {
            fuzz(format!("{maps}\0{smaps}").as_bytes());
        }

        #[test]
        fn every_page_on_a_line_is_counted_once(pages in prop::collection::btree_map(0u16..1024, 1u64..1_000_000, 0..8)) {
            let counts: String = pages.iter().map(|(node, pages)| format!(" N{node}={pages}")).collect();
            let found = understand(&format!("7f00 bind:0-3 anon=5{counts} kernelpagesize_kB=4\n"), "");
            let expected: Vec<_> = pages.iter().map(|(node, pages)| (*node, pages * 4096)).collect();
            prop_assert_eq!(by_node(&found), expected);
        }
    }
}
