//! Other movers of pages on this machine: mechanisms of the kernel that are on, and managers of memory placement.
//!
//! Each row is evidence from a file or a process, its effect, and how to end it; a mechanism that is off, or can't be
//! read, has none. Only reads. Sources: Documentation/admin-guide/sysctl (numa_balancing, zone_reclaim_mode), mm/ksm.rst,
//! mm/zswap.rst, mm/damon; kernel 6.16's changes "vmscan: enforce mems_effective during demote_folio_list" and "zsmalloc:
//! prefer the original page's node for compressed data".

use nearfar_kernel::balancing::{self, NumaBalancing};
use nearfar_kernel::damon::{Holder, holders};
use nearfar_kernel::fs::Fs;
use nearfar_kernel::process;
use nearfar_topology::Topology;
use serde::Serialize;

/// A mechanism or process that moves pages.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Mover {
    /// Its name.
    pub name: String,
    /// Its effect on pages.
    pub effect: String,
    /// How to end it.
    pub off: String,
}

fn mover(name: &str, effect: &str, off: &str) -> Mover {
    Mover { name: name.into(), effect: effect.into(), off: off.into() }
}

/// All of a machine; processes only if it is the running one.
#[must_use]
pub fn all(fs: &dyn Fs, machine: &Topology, is_live: bool) -> Vec<Mover> {
    let mut movers = balancing(fs);
    movers.extend(demotion(fs, machine));
    movers.extend(zswap(fs, machine));
    movers.extend(ksm(fs));
    movers.extend(zone_reclaim(fs));
    movers.extend(damon(fs));
    if is_live {
        movers.extend(managers(fs));
    }
    movers
}

fn is_on(fs: &dyn Fs, path: &str) -> bool {
    fs.read(path).ok().flatten().is_some_and(|text| matches!(text.trim(), "Y" | "1"))
}

/// Whether the kernel is older than a release. An unknown one is not.
fn is_before(kernel: Option<&str>, release: (u32, u32)) -> bool {
    let mut numbers = kernel.unwrap_or_default().split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next().and_then(|number| number.parse::<u32>().ok());
    next().zip(next()).is_some_and(|found| found < release)
}

fn balancing(fs: &dyn Fs) -> Vec<Mover> {
    let bits = balancing::numa_balancing(fs).ok().flatten().unwrap_or_default();
    let off = "sysctl kernel.numa_balancing=0";
    let rows = [
        (
            NumaBalancing::NORMAL,
            "numa_balancing",
            "pages without a memory policy migrate to the node of the CPUs that use them",
        ),
        (
            NumaBalancing::TIERING,
            "numa_balancing (tiering)",
            "hot pages are promoted from slower nodes",
        ),
    ];
    let on = rows.into_iter().filter(|(bit, ..)| bits.has(*bit));
    on.map(|(_, name, effect)| mover(name, effect, off)).collect()
}

fn demotion(fs: &dyn Fs, machine: &Topology) -> Option<Mover> {
    let is_on = balancing::demotion_enabled(fs).ok().flatten()?;
    if !is_on || machine.tiers.len() < 2 {
        return None;
    }
    let everywhere = is_before(machine.kernel.as_deref(), (6, 16));
    let effect = match everywhere {
        true => {
            "reclaim demotes cold pages to slower nodes, before Linux 6.16 also to nodes outside a cgroup's cpuset.mems"
        }
        false => "reclaim demotes cold pages to slower nodes",
    };
    Some(mover("demotion", effect, "echo 0 >/sys/kernel/mm/numa/demotion_enabled"))
}

fn zswap(fs: &dyn Fs, machine: &Topology) -> Option<Mover> {
    let effect = match is_before(machine.kernel.as_deref(), (6, 16)) {
        true => {
            "pages that are swapped out stay in memory, compressed, before Linux 6.16 on the reclaiming CPU's node: far pages come near"
        }
        false => "pages that are swapped out stay in memory, compressed",
    };
    let switch = "/sys/module/zswap/parameters/enabled";
    is_on(fs, &switch[1..]).then(|| mover("zswap", effect, &format!("echo N >{switch}")))
}

fn ksm(fs: &dyn Fs) -> Option<Mover> {
    let merges =
        is_on(fs, "sys/kernel/mm/ksm/run") && is_on(fs, "sys/kernel/mm/ksm/merge_across_nodes");
    merges.then(|| {
        mover(
            "ksm",
            "equal pages of different nodes are merged into one, near or far",
            "echo 2 >/sys/kernel/mm/ksm/run, then 0 to merge_across_nodes and 1 to run",
        )
    })
}

fn zone_reclaim(fs: &dyn Fs) -> Option<Mover> {
    let mode = fs.read("proc/sys/vm/zone_reclaim_mode").ok().flatten()?;
    (mode.trim() != "0").then(|| {
        mover(
            "zone_reclaim_mode",
            "a full node reclaims its own pages before memory of another node is used",
            "sysctl vm.zone_reclaim_mode=0",
        )
    })
}

/// Users of DAMON that act on pages; `damon_stat` only counts.
fn damon(fs: &dyn Fs) -> Vec<Mover> {
    let holders = holders(fs).unwrap_or_default();
    let acting = holders.iter().filter_map(|holder| {
        let effect = match holder {
            Holder::Module { name, .. } => match name.as_str() {
                "damon_reclaim" => "cold pages are reclaimed before memory is short",
                "damon_lru_sort" => "hot pages are kept and cold pages reclaimed first",
                _ => return None,
            },
            _ => "DAMON is in use by another program, whose schemes may move or reclaim pages",
        };
        Some(mover(&holder.name(), effect, &holder.way_out()))
    });
    acting.collect()
}

/// Other managers of memory placement, by the names of their processes.
const MANAGERS: &[(&str, &str)] = &[
    ("memtierd", "migrates pages between nodes by their accesses"),
    ("tierd", "SMDK's daemon: balances allocations over nodes"),
    ("numad", "moves processes and their pages to nodes"),
    ("damo", "runs DAMON's schemes"),
];

fn managers(fs: &dyn Fs) -> Vec<Mover> {
    let found = process::all(fs).unwrap_or_default().into_iter().filter_map(|pid| {
        let comm = fs.read(&format!("proc/{pid}/comm")).ok()??;
        let (name, effect) = MANAGERS.iter().find(|(name, _)| *name == comm.trim())?;
        Some(mover(&format!("{name} ({pid})"), effect, &format!("end process {pid}")))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_kernel::fs::TreeFs;
    use nearfar_topology::{KnownBy, NodeSet, Tier, Topology, Tree};

    fn names_of(kernel: &str, entries: &[(&str, &str)]) -> Vec<(String, String)> {
        let mut tree = Tree::new();
        entries.iter().for_each(|(path, text)| tree.insert(path, text));
        let mut machine = Topology { kernel: Some(kernel.into()), ..Topology::default() };
        let tier = Tier { kernel_id: None, nodes: NodeSet::default(), known_by: KnownBy::Cpus };
        machine.tiers = vec![tier; 2];
        all(&TreeFs(tree), &machine, true)
            .into_iter()
            .map(|mover| (mover.name, mover.effect))
            .collect()
    }

    #[test]
    fn mechanisms_that_are_off_or_absent_are_not_listed() {
        assert_eq!(names_of("6.12.1", &[]), []);
        let off = [
            ("proc/sys/kernel/numa_balancing", "0"),
            ("sys/kernel/mm/numa/demotion_enabled", "false"),
            ("sys/module/zswap/parameters/enabled", "N"),
            ("sys/kernel/mm/ksm/run", "0"),
            ("sys/kernel/mm/ksm/merge_across_nodes", "1"),
            ("proc/sys/vm/zone_reclaim_mode", "0"),
            ("sys/module/damon_stat/parameters/enabled", "Y"),
            ("sys/module/damon_reclaim/parameters/enabled", "N"),
            ("proc/17/comm", "bash"),
        ];
        assert_eq!(names_of("6.12.1", &off), []);
    }

    #[test]
    fn enabled_mechanisms_are_listed_with_effects_by_kernel_version() {
        let on = [
            ("proc/sys/kernel/numa_balancing", "3"),
            ("sys/kernel/mm/numa/demotion_enabled", "true"),
            ("sys/module/zswap/parameters/enabled", "Y"),
            ("sys/kernel/mm/ksm/run", "1"),
            ("sys/kernel/mm/ksm/merge_across_nodes", "1"),
            ("proc/sys/vm/zone_reclaim_mode", "1"),
            ("sys/module/damon_reclaim/parameters/enabled", "Y"),
            ("proc/17/comm", "memtierd"),
        ];
        let names = |kernel| -> Vec<String> {
            names_of(kernel, &on).into_iter().map(|(name, _)| name).collect()
        };
        let all = [
            "numa_balancing",
            "numa_balancing (tiering)",
            "demotion",
            "zswap",
            "ksm",
            "zone_reclaim_mode",
            "damon_reclaim",
            "memtierd (17)",
        ];
        assert_eq!(names("6.12.41+deb13-amd64"), all);
        assert_eq!(names("7.2.12"), all);
        let old = |kernel| {
            names_of(kernel, &on)
                .iter()
                .filter(|(_, effect)| effect.contains("before Linux 6.16"))
                .count()
        };
        assert_eq!(
            [old("6.12.41+deb13-amd64"), old("6.15"), old("6.16.0"), old("7.2.12")],
            [2, 2, 0, 0]
        );
    }
}
