//! CPU properties needed by a probe: the CPUs that share a core, and the size of the caches.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_kernel::fs::Fs;
use nearfar_topology::{Bytes, CpuId};

const CPUS: &str = "sys/devices/system/cpu";

/// Caches and cores of some CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Caches {
    /// Sum of the last-level caches of these CPUs; `None` where the kernel does not report them.
    pub(crate) all: Option<Bytes>,
    /// The largest single one.
    pub(crate) one: Option<Bytes>,
}

/// The last-level caches of `cpus`. A cache that several CPUs share counts once.
pub(crate) fn caches(fs: &dyn Fs, cpus: &[CpuId]) -> Caches {
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    for cpu in cpus {
        let dir = format!("{CPUS}/cpu{cpu}/cache");
        let entries = fs.list(&dir).ok().flatten().unwrap_or_default();
        let caches = entries.iter().filter(|entry| entry.name.starts_with("index"));
        let last = caches.filter_map(|entry| cache(fs, &format!("{dir}/{}", entry.name))).max();
        if let Some(last) = last {
            let owner = if last.shared.is_empty() { cpu.to_string() } else { last.shared };
            found.insert(owner, last.bytes);
        }
    }
    let all = (!found.is_empty()).then(|| Bytes(found.values().sum()));
    Caches { all, one: found.values().max().copied().map(Bytes) }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Cache {
    level: u64,
    bytes: u64,
    shared: String,
}

/// A data or unified cache; `None` for an instruction cache or one that the kernel does not describe.
fn cache(fs: &dyn Fs, dir: &str) -> Option<Cache> {
    let text = |name: &str| fs.read(&format!("{dir}/{name}")).ok().flatten();
    let text = |name: &str| text(name).map(|text| text.trim().to_string());
    if text("type")? == "Instruction" {
        return None;
    }
    // 32K or 16M; more than a terabyte is a mistake of firmware.
    let Bytes(bytes) = text("size")?.parse().ok()?;
    if !(1..=1 << 40).contains(&bytes) {
        return None;
    }
    Some(Cache {
        level: text("level")?.parse().ok()?,
        bytes,
        shared: text("shared_cpu_list").unwrap_or_default(),
    })
}

/// The CPUs that share `cpu`'s core, including `cpu` itself if the kernel lists it.
pub(crate) fn siblings(fs: &dyn Fs, cpu: CpuId) -> BTreeSet<CpuId> {
    let path = format!("{CPUS}/cpu{cpu}/topology/thread_siblings_list");
    let text = fs.read(&path).ok().flatten().unwrap_or_default();
    let mut ids = BTreeSet::new();
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        if let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) {
            // Limits a range: no core has more threads than this.
            ids.extend((first..=last.min(first.saturating_add(1023))).map(CpuId));
        }
    }
    ids
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_kernel::fs::TreeFs;
    use nearfar_topology::Tree;

    fn machine() -> TreeFs {
        let mut tree = Tree::new();
        for cpu in 0..4 {
            let half = if cpu < 2 { "0-1" } else { "2-3" };
            for (index, level, kind, size, shared) in [
                (0, 1, "Data", "32K", "x"),
                (1, 1, "Instruction", "900M", "x"),
                (2, 3, "Unified", "16384K", half),
            ] {
                let dir = format!("sys/devices/system/cpu/cpu{cpu}/cache/index{index}");
                tree.insert(&format!("{dir}/level"), &level.to_string());
                tree.insert(&format!("{dir}/type"), kind);
                tree.insert(&format!("{dir}/size"), size);
                tree.insert(&format!("{dir}/shared_cpu_list"), shared);
            }
        }
        tree.insert("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0,2-3\n");
        TreeFs(tree)
    }

    #[test]
    fn shared_last_level_caches_count_once() {
        let cpus = [0, 1, 2, 3].map(CpuId);
        let found = caches(&machine(), &cpus);
        assert_eq!(found, Caches { all: Some(Bytes(32 << 20)), one: Some(Bytes(16 << 20)) });
        assert_eq!(caches(&machine(), &cpus[..1]).all, Some(Bytes(16 << 20)));
    }

    #[test]
    fn a_missing_or_malformed_cache_size_is_unknown() {
        assert_eq!(caches(&TreeFs(Tree::new()), &[CpuId(0)]), Caches::default());
        for odd in ["", "K", "-1K", "0K", "99999999999999999999", "9999999G", "4X"] {
            let mut tree = Tree::new();
            let dir = "sys/devices/system/cpu/cpu0/cache/index0";
            for (file, text) in [("level", "1"), ("type", "Data"), ("size", odd)] {
                tree.insert(&format!("{dir}/{file}"), text);
            }
            assert_eq!(caches(&TreeFs(tree), &[CpuId(0)]), Caches::default(), "{odd}");
        }
    }

    #[test]
    fn siblings_are_parsed_from_lists_and_malformed_entries_are_ignored() {
        assert_eq!(siblings(&machine(), CpuId(0)), [0, 2, 3].map(CpuId).into());
        assert!(siblings(&machine(), CpuId(1)).is_empty());
        let mut tree = Tree::new();
        tree.insert(
            "sys/devices/system/cpu/cpu0/topology/thread_siblings_list",
            "x,7-,5-2,0-4294967295",
        );
        assert_eq!(siblings(&TreeFs(tree), CpuId(0)).len(), 1024);
    }
}
