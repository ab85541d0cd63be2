//! Residency: how many bytes of a process, or of a tree of processes, lie on each node now.
//!
//! `/proc/PID/numa_maps` has, a mapping a line, the pages on each node:
//! `7f12a8000000 bind:0-1 anon=512 dirty=512 N0=256 N1=256 kernelpagesize_kB=4`. It counts a page in every process that
//! maps it. `/proc/PID/smaps` has the same mappings with `Rss` and `Pss`, where a page counts by its share (a third in
//! each of three processes). Node bytes here are numa_maps scaled by Pss / Rss, mapping by mapping: memory shared
//! within a tree counts once, and a library that the whole system shares hardly at all. Where smaps says nothing
//! (hugetlb, or a mapping that has just changed) the pages count whole.
//!
//! Both files walk the page tables when read, which takes milliseconds per gigabyte: the caller paces itself.

use std::collections::BTreeMap;
use std::io;

use nearfar_topology::{Bytes, NodeId};

use crate::fs::{Fs, FsError};
use crate::process;
use crate::sys::mempolicy as sys;

/// Bytes per node, now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Residency {
    /// By node; nodes without a byte are left out.
    pub nodes: BTreeMap<NodeId, Bytes>,
    /// Of these, what lies in huge pages (transparent or hugetlb).
    pub huge: Bytes,
    /// How many processes were counted.
    pub processes: usize,
    /// How many could not be read (another user's, or one that can't be traced).
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

/// Residency of `root` and its descendants together.
///
/// # Errors
/// [`FsError`], if `/proc` itself can't be listed.
pub fn of_tree(fs: &dyn Fs, root: u32) -> Result<Residency, FsError> {
    let mut sum = Residency::default();
    for pid in process::tree(fs, root)? {
        sum.add(&of_process(fs, pid));
    }
    Ok(sum)
}

/// Residency of one process; nothing for one that has ended.
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

/// Pages asked for at a time.
const PAGES: usize = 512;

/// Bytes of this process's memory from `address` on, over `length` bytes, by node: what is resident, page by page, as
/// move_pages(2) tells when it is to move nothing. `page` is the size of a page.
///
/// # Errors
/// The call's.
pub fn of_range(address: usize, length: usize, page: usize) -> io::Result<BTreeMap<NodeId, Bytes>> {
    let mut found = BTreeMap::new();
    let mut at = address / page * page;
    let end = address.saturating_add(length);
    while at < end {
        let (mut pages, mut nodes) = ([0; PAGES], [0; PAGES]);
        let count = (end - at).div_ceil(page).min(PAGES);
        pages.iter_mut().take(count).enumerate().for_each(|(n, place)| *place = at + n * page);
        sys::nodes_of_pages(0, &pages[..count], &mut nodes)?;
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

/// Understands the two texts; lines that are neither are passed over.
#[must_use]
pub fn understand(numa_maps: &str, smaps: &str) -> Residency {
    let shares = shares(smaps);
    let mut found = Residency { processes: 1, ..Residency::default() };
    for line in numa_maps.lines() {
        let Some(mapping) = mapping(line) else { continue };
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

/// A line of numa_maps.
#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    start: u64,
    pages: Vec<(NodeId, u64)>,
    /// Bytes of each of `pages`.
    page: u64,
    /// Whether these are hugetlb pages.
    huge: bool,
}

/// Reads a line. The second word is the policy, which may hold spaces (`weighted interleave:0-1`, `prefer (many):0`), so
/// words are told by their own form; a file's name comes escaped and is one word.
fn mapping(line: &str) -> Option<Mapping> {
    let mut words = line.split_ascii_whitespace();
    let start = u64::from_str_radix(words.next()?, 16).ok()?;
    let mut mapping = Mapping { start, pages: Vec::new(), page: 4096, huge: false };
    for word in words {
        if word == "huge" {
            mapping.huge = true;
        } else if let Some((key, value)) = word.split_once('=') {
            let Ok(value) = value.parse::<u64>() else { continue };
            if key == "kernelpagesize_kB" {
                mapping.page = value.saturating_mul(1024);
            } else if let Some(Ok(node)) = key.strip_prefix('N').map(str::parse) {
                mapping.pages.push((NodeId(node), value));
            }
        }
    }
    Some(mapping)
}

/// What smaps says of a mapping, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    rss: u64,
    pss: u64,
    huge: u64,
}

impl Share {
    /// `bytes` by this mapping's share; whole where nothing is known.
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
            // `7f12a8000000-7f12a8200000 rw-p ...` opens a mapping.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::{RootFs, TreeFs};
    use nearfar_topology::Tree;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_range_counts_what_was_touched_to_the_byte() {
        let mut memory = vec![0_u8; 64 << 20];
        let at = memory.as_ptr() as usize;
        memory[..10 << 20].fill(1);
        let bytes = |from, length| {
            let found = of_range(at + from, length, 4096).unwrap();
            found.values().map(|bytes| bytes.0).sum::<u64>()
        };
        assert_eq!(bytes(5, 10_000), 10_000);
        assert_eq!(bytes(0, 10 << 20), 10 << 20);
        assert_eq!(bytes(0, 0), 0);
        // A huge page may reach beyond what was touched.
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
    fn a_tree_adds_up_and_says_whom_it_could_not_read() {
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
            let found = understand(&maps, &smaps);
            prop_assert!(found.huge <= found.total());
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
