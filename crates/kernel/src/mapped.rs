//! The mappings of a process with the policy and the nodes of each: `/proc/PID/maps` joined with `/proc/PID/numa_maps`.
//!
//! numa_maps has a mapping's start, policy and pages by node, but not its end, which maps has. The kernel merges
//! neighbouring mappings of equal policy, so a range of interest may be a part of a mapping; its pages are then known
//! only page by page ([`crate::pages`]). Both files are read one after the other: a mapping that changes in between is
//! left out. Counts are those of this process's page tables: pages of a shared file that only others have touched do
//! not appear. Reading numa_maps walks the page tables, milliseconds per gigabyte.

use std::collections::BTreeMap;

use nearfar_topology::{Bytes, NodeId};

use crate::fs::{Fs, FsError};

/// A mapping of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Its first address.
    pub start: u64,
    /// The address after its last.
    pub end: u64,
    /// Its memory policy as the kernel writes it: `default`, `bind:1`, `weighted interleave:0-1`.
    pub policy: String,
    /// Resident bytes by node.
    pub nodes: BTreeMap<NodeId, Bytes>,
    /// The mapped file, as numa_maps escapes it.
    pub file: Option<String>,
    /// Whether it has private pages, and none of hugetlbfs.
    pub is_private: bool,
}

impl Mapping {
    /// Resident bytes of all nodes.
    #[must_use]
    pub fn resident(&self) -> Bytes {
        Bytes(self.nodes.values().fold(0, |sum, bytes| sum.saturating_add(bytes.0)))
    }
}

/// The mappings of a process, by address; empty if it has ended.
///
/// # Errors
/// [`FsError`], above all for another user's process.
pub fn of_process(fs: &dyn Fs, pid: u32) -> Result<Vec<Mapping>, FsError> {
    let maps = fs.read(&format!("proc/{pid}/maps"))?.unwrap_or_default();
    let numa_maps = fs.read(&format!("proc/{pid}/numa_maps"))?.unwrap_or_default();
    Ok(join(&maps, &numa_maps))
}

/// Joins the two texts by start address; other lines are skipped.
#[must_use]
pub fn join(maps: &str, numa_maps: &str) -> Vec<Mapping> {
    let end = |line: &str| {
        let (start, end) = line.split_ascii_whitespace().next()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some((number(start)?, number(end)?))
    };
    let ends: BTreeMap<u64, u64> = maps.lines().filter_map(end).collect();
    let mapping = |text: &str| {
        let line = line(text)?;
        let (start, end) = (line.start, *ends.get(&line.start)?);
        let mut nodes: BTreeMap<NodeId, Bytes> = BTreeMap::new();
        for (node, count) in &line.pages {
            let sum = nodes.entry(*node).or_default();
            sum.0 = sum.0.saturating_add(count.saturating_mul(line.page));
        }
        let file = line.file.map(str::to_owned);
        let is_private = line.has_anon && !line.huge;
        let mapping = Mapping { start, end, policy: line.policy, nodes, file, is_private };
        (end > start).then_some(mapping)
    };
    let mut all: Vec<Mapping> = numa_maps.lines().filter_map(mapping).collect();
    all.sort_by_key(|mapping| mapping.start);
    all
}

/// Words that begin the part after the policy, which may itself have spaces and equals signs (`prefer (many):0`,
/// `bind=static:1`).
const KEYS: [&str; 9] = [
    "file",
    "anon",
    "dirty",
    "mapped",
    "mapmax",
    "swapcache",
    "active",
    "writeback",
    "kernelpagesize_kB",
];

/// A line of numa_maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// The mapping's first address.
    pub start: u64,
    /// Its policy.
    pub policy: String,
    /// Bytes per page.
    pub page: u64,
    /// Whether these are hugetlb pages.
    pub huge: bool,
    /// Pages by node.
    pub pages: Vec<(NodeId, u64)>,
    /// The mapped file, escaped.
    pub file: Option<&'a str>,
    /// Whether some pages are anonymous.
    pub has_anon: bool,
    /// Whether some pages are a file's.
    pub has_mapped: bool,
}

/// Parses a line of numa_maps; unknown words are skipped.
#[must_use]
pub fn line(text: &str) -> Option<Line<'_>> {
    let mut words = text.split_ascii_whitespace();
    let start = u64::from_str_radix(words.next()?, 16).ok()?;
    let mut line = Line {
        start,
        policy: String::new(),
        page: 4096,
        huge: false,
        pages: Vec::new(),
        file: None,
        has_anon: false,
        has_mapped: false,
    };
    let mut is_policy = true;
    for word in words {
        let pair = word.split_once('=');
        let node = pair.and_then(|(key, _)| key.strip_prefix('N')?.parse().ok());
        let ends_policy = pair.is_some_and(|(key, _)| KEYS.contains(&key))
            || node.is_some()
            || matches!(word, "heap" | "stack" | "huge");
        is_policy &= !ends_policy;
        if is_policy {
            let space = if line.policy.is_empty() { "" } else { " " };
            line.policy.push_str(space);
            line.policy.push_str(word);
            continue;
        }
        line.huge |= word == "huge";
        let Some((key, value)) = pair else { continue };
        match (key, node, value.parse::<u64>()) {
            ("file", ..) => line.file = Some(value),
            ("anon", _, Ok(_)) => line.has_anon = true,
            ("mapped", ..) => line.has_mapped = true,
            ("kernelpagesize_kB", _, Ok(kib)) => line.page = kib.saturating_mul(1024),
            (_, Some(node), Ok(count)) => line.pages.push((NodeId(node), count)),
            _ => {}
        }
    }
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::RootFs;
    use proptest::prelude::*;

    #[test]
    fn policies_with_spaces_and_flags_are_one_text() {
        let maps = "7f0000000000-7f0000400000 rw-p 0 0:0 0\n7f1000000000-7f1000200000 rw-s 0 0:1 7 /memfd:x\n\
            7ffc00000000-7ffc00021000 rw-p 0 0:0 0 [stack]\n7ffd00000000-7ffd00001000 r--p 0 0:0 0\n";
        let numa_maps = "7f0000000000 weighted interleave:0-1 anon=1024 dirty=1024 N0=768 N1=256 kernelpagesize_kB=4\n\
            7f1000000000 bind=static:1 file=/memfd:x\\040y huge dirty=1 N1=1 kernelpagesize_kB=2048\n\
            7ffc00000000 prefer (many):0 stack anon=1 N0=1 kernelpagesize_kB=4\n7ffd00000000 default\n7ffe00000000 default\n";
        let found = join(maps, numa_maps);
        let policies: Vec<&str> = found.iter().map(|mapping| mapping.policy.as_str()).collect();
        assert_eq!(
            policies,
            ["weighted interleave:0-1", "bind=static:1", "prefer (many):0", "default"]
        );
        assert_eq!(found[0].nodes[&NodeId(0)], Bytes(768 * 4096));
        assert_eq!(found[1].resident(), Bytes(2 << 20));
        assert_eq!(
            found.iter().map(|one| one.is_private).collect::<Vec<_>>(),
            [true, false, true, false]
        );
        assert_eq!(found[1].file.as_deref(), Some("/memfd:x\\040y"));
        assert_eq!((found[3].end - found[3].start, found[3].resident()), (4096, Bytes(0)));
    }

    #[test]
    fn our_own_memory_is_in_a_mapping() {
        let memory = std::hint::black_box(vec![1_u8; 16 << 20]);
        let at = memory.as_ptr().addr() as u64;
        let found = of_process(&RootFs::live().unwrap(), std::process::id()).unwrap();
        let has = |mapping: &&Mapping| mapping.start <= at && at < mapping.end;
        assert!(found.iter().find(has).is_some_and(|mapping| mapping.resident().0 >= 15 << 20));
        assert_eq!(memory[3], 1);
    }

    proptest! {
        #[test]
        fn any_text_is_understood_or_passed_over(
            maps in "([0-9a-f]{1,17}-[0-9a-f]{1,17}|[ -~]{0,9}|[ \n]){0,40}",
            numa in "([0-9a-f]{1,18}|bind:0|N[0-9]{1,6}=[0-9]{1,20}|kernelpagesize_kB=[0-9]{1,20}|[ -~]{0,9}|[ \n]){0,60}",
        ) {
            for mapping in join(&maps, &numa) {
                prop_assert!(mapping.start < mapping.end);
            }
        }
    }
}
