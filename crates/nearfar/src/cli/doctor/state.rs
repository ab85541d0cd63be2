//! Settings of the kernel and privileges of this process: values read, each with its meaning.
//!
//! Only reads, and never fails: a setting that does not exist is left out, one that this user may
//! not read has no value. Not here: the consequences for commands (`verdict.rs`).

use nearfar_kernel::damon::{Holder, holders};
use nearfar_kernel::fs::Fs;
use nearfar_kernel::process;
use nearfar_kernel::weights::AUTO;
use serde::Serialize;

use super::Scene;

/// A setting of the kernel.
#[derive(Debug, Serialize)]
pub(super) struct Setting {
    /// The setting's name, as in the kernel's documentation.
    pub(super) name: String,
    /// The file it was read from.
    path: String,
    /// Its value; null if the file exists but this user may not read it.
    pub(super) value: Option<String>,
    /// The meaning of the value.
    pub(super) meaning: String,
}

/// A capability.
#[derive(Debug, Serialize)]
pub(super) struct Privilege {
    pub(super) name: &'static str,
    pub(super) held: bool,
    /// The uses of the capability.
    pub(super) needed_for: &'static str,
}

/// Every setting that exists on this machine.
pub(super) fn settings(scene: &Scene<'_>) -> Vec<Setting> {
    let plain =
        PLAIN.iter().filter_map(|(name, path, meaning)| setting(scene.fs, name, path, *meaning));
    let mut settings: Vec<Setting> = plain.collect();
    settings.extend(weights(scene.fs));
    settings.extend(huge_pages(scene.fs));
    settings.extend(memory_pmus(scene.fs));
    settings.extend(damon_holder(scene));
    if scene.live {
        settings.extend(limits(scene.fs));
    }
    settings
}

type Meaning = fn(&str) -> &'static str;

/// Settings of one file each: name, file, and the meaning of the value.
const PLAIN: &[(&str, &str, Meaning)] = &[
    ("numa_balancing", "proc/sys/kernel/numa_balancing", |value| match value {
        "0" => "off: the kernel moves no pages towards their users",
        "1" => "on: pages move towards the CPUs that use them",
        "2" => "tiering: hot pages are promoted from slower nodes",
        "3" => "on, and tiering: hot pages are promoted from slower nodes",
        _ => "unknown mode",
    }),
    ("demotion_enabled", "sys/kernel/mm/numa/demotion_enabled", |value| match value {
        "true" | "1" => "reclaim moves cold pages to slower nodes",
        _ => "reclaim drops or swaps cold pages; write true there to have them demoted",
    }),
    ("weighted_interleave/auto", AUTO[0], automatic_weights),
    ("weighted_interleave/auto", AUTO[1], automatic_weights),
    (
        "transparent_hugepage",
        "sys/kernel/mm/transparent_hugepage/enabled",
        |value| match bracketed(value) {
            "always" => "huge pages wherever they fit",
            "madvise" => "huge pages for programs that ask",
            "never" => "no huge pages: latencies include page table walks",
            _ => "unknown mode",
        },
    ),
    ("auto_online_blocks", "sys/devices/system/memory/auto_online_blocks", |value| match value {
        "offline" => "new memory stays offline until someone brings it online",
        _ => "new memory comes online by itself",
    }),
    ("perf_event_paranoid", "proc/sys/kernel/perf_event_paranoid", |value| {
        match value.parse::<i32>() {
            Ok(..=0) => "counters of the whole machine without privilege",
            Ok(_) => "counters of the whole machine need CAP_PERFMON",
            Err(_) => "unknown value",
        }
    }),
    ("cgroup.controllers", "sys/fs/cgroup/cgroup.controllers", |value| {
        let has = |name| value.split_whitespace().any(|word| word == name);
        match (has("memory"), has("cpuset")) {
            (true, true) => "cgroups can account for memory and confine to nodes",
            (true, false) => "cgroups can account for memory, not confine to nodes (no cpuset)",
            (false, true) => "cgroups can confine to nodes, not account for memory",
            (false, false) => "cgroups can neither account for memory nor confine to nodes",
        }
    }),
];

fn automatic_weights(value: &str) -> &'static str {
    match value {
        "true" | "Y" | "1" => "weights come from firmware's bandwidths until one is written",
        _ => "weights were written by a user",
    }
}

/// The word in brackets, as in `always [madvise] never`.
fn bracketed(value: &str) -> &str {
    value.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or("", |(word, _)| word)
}

fn setting(fs: &dyn Fs, name: &str, path: &str, meaning: Meaning) -> Option<Setting> {
    let name = name.to_string();
    let shown = |value: Option<String>, meaning: &str| {
        Some(Setting { name, path: format!("/{path}"), value, meaning: meaning.to_string() })
    };
    match fs.read(path) {
        Ok(Some(text)) => shown(Some(text.trim().to_string()), meaning(text.trim())),
        Ok(None) => None,
        Err(error) if error.is_permission() => shown(None, "only root may read it"),
        Err(error) => shown(None, &error.to_string()),
    }
}

fn weights(fs: &dyn Fs) -> Option<Setting> {
    const DIRECTORY: &str = "sys/kernel/mm/mempolicy/weighted_interleave";
    let entries = fs.list(DIRECTORY).ok()??;
    let mut weights: Vec<(u16, String)> = Vec::new();
    for entry in entries {
        let node = entry.name.strip_prefix("node").and_then(|id| id.parse().ok());
        let text = fs.read(&format!("{DIRECTORY}/{}", entry.name)).ok().flatten();
        weights.extend(node.zip(text.map(|text| text.trim().to_string())));
    }
    weights.sort();
    let shown: Vec<String> =
        weights.iter().map(|(node, weight)| format!("{node}:{weight}")).collect();
    (!shown.is_empty()).then(|| Setting {
        name: "weighted_interleave".into(),
        path: format!("/{DIRECTORY}"),
        value: Some(shown.join(" ")),
        meaning: "node:weight, pages per round".into(),
    })
}

fn huge_pages(fs: &dyn Fs) -> Vec<Setting> {
    const DIRECTORY: &str = "sys/kernel/mm/hugepages";
    let entries = fs.list(DIRECTORY).ok().flatten().unwrap_or_default();
    let sized = entries.into_iter().filter_map(|entry| {
        let name = format!("hugepages {}", entry.name.strip_prefix("hugepages-")?);
        let path = format!("{DIRECTORY}/{}/nr_hugepages", entry.name);
        setting(fs, &name, &path, |value| match value {
            "0" => "none set aside; transparent ones are used",
            _ => "pages set aside",
        })
    });
    sized.collect()
}

/// Perf counters of memory traffic, by their drivers' names.
fn memory_pmus(fs: &dyn Fs) -> Option<Setting> {
    const DIRECTORY: &str = "sys/bus/event_source/devices";
    const MEMORY: [&str; 8] =
        ["cpu", "uncore_imc", "uncore_cxl", "cxl_pmu", "amd_umc", "amd_df", "arm_cmn", "ibs_op"];
    let entries = fs.list(DIRECTORY).ok()??;
    let of_memory = |name: &&str| MEMORY.iter().any(|start| name.starts_with(start));
    let names: Vec<&str> =
        entries.iter().map(|entry| entry.name.as_str()).filter(of_memory).collect();
    let meaning = match names.iter().any(|name| *name != "cpu") {
        true => "counters that see memory traffic or samples",
        false if names.is_empty() => "no hardware counters, as in most virtual machines",
        false => "the CPU's own counters only; memory controllers are not seen",
    };
    Some(Setting {
        name: "perf PMUs".into(),
        path: format!("/{DIRECTORY}"),
        value: Some(if names.is_empty() { "none".into() } else { names.join(" ") }),
        meaning: meaning.into(),
    })
}

/// The holder of DAMON, which only one user at a time can hold.
fn damon_holder(scene: &Scene<'_>) -> Option<Setting> {
    const ADMIN: &str = "sys/kernel/mm/damon/admin";
    if !scene.fs.exists(ADMIN).ok()? {
        return None;
    }
    let (value, meaning) = match holders(scene.fs) {
        Ok(holders) => {
            let names: Vec<String> = holders.iter().map(Holder::name).collect();
            let said = holders.first().map(|holder| match holder {
                Holder::Module { .. } => {
                    format!("held by the kernel; {} releases it", holder.way_out())
                }
                _ => format!("held: {holder}; to release it: {}", holder.way_out()),
            });
            (names.join(", "), said)
        }
        // Only root may read the owners.
        Err(_) => {
            let threads = if scene.live { kdamonds(scene.fs) } else { Vec::new() };
            let names = if threads.is_empty() { "not free".into() } else { threads.join(", ") };
            (names, Some("in use, or configured; root sees details".into()))
        }
    };
    Some(Setting {
        name: "damon".into(),
        path: format!("/{ADMIN}"),
        value: Some(if meaning.is_none() { "free".into() } else { value }),
        meaning: meaning.unwrap_or_else(|| "not in use".into()),
    })
}

/// The names of DAMON's threads.
fn kdamonds(fs: &dyn Fs) -> Vec<String> {
    let processes = process::all(fs).unwrap_or_default().into_iter();
    let names = processes.filter_map(|pid| fs.read(&format!("proc/{pid}/comm")).ok()?);
    names.map(|name| name.trim().to_string()).filter(|name| name.starts_with("kdamond")).collect()
}

/// The cpuset and cgroup limits of this process.
fn limits(fs: &dyn Fs) -> Vec<Setting> {
    let status = fs.read("proc/self/status").ok().flatten().unwrap_or_default();
    let shown = |name: &str, path: &str, value: Option<&str>, meaning: &str| Setting {
        name: name.into(),
        path: path.into(),
        value: value.map(ToString::to_string),
        meaning: meaning.into(),
    };
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    let limits = fs.read("proc/self/limits").ok().flatten().unwrap_or_default();
    let locked = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let locked = locked.and_then(|rest| rest.split_whitespace().next());
    vec![
        shown(
            "allowed nodes",
            "/proc/self/status",
            field("Mems_allowed_list"),
            "nodes this process may use (cpuset)",
        ),
        shown(
            "allowed CPUs",
            "/proc/self/status",
            field("Cpus_allowed_list"),
            "CPUs this process may use (cpuset, affinity)",
        ),
        shown("locked memory", "/proc/self/limits", locked, "most bytes this process may lock"),
    ]
}

/// The privilege to write files that are reserved for root.
pub(super) const ROOT: &str = "root";

/// The capabilities that nearfar uses, by bit (linux/capability.h).
const CAPABILITIES: &[(u32, &str, &str)] = &[
    (23, "CAP_SYS_NICE", "moving pages of other users' processes"),
    (19, "CAP_SYS_PTRACE", "reading the residency of other users' processes"),
    (21, "CAP_SYS_ADMIN", "mounting resctrl and cgroups"),
    (38, "CAP_PERFMON", "performance counters of the whole machine"),
];

/// The privileges of this process.
pub(super) fn privileges(scene: &Scene<'_>) -> Vec<Privilege> {
    const CAP_DAC_OVERRIDE: u32 = 1;
    let status = scene.fs.read("proc/self/status").ok().flatten().unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let mask = field("CapEff:").and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0);
    let held = |bit: u32| mask >> bit & 1 == 1;
    // Real, effective, saved, file system.
    let user = field("Uid:").and_then(|ids| ids.split_whitespace().nth(1));
    let root = Privilege {
        name: ROOT,
        held: user == Some("0") || held(CAP_DAC_OVERRIDE),
        needed_for: "settings of the whole system: weights, DAMON, demotion",
    };
    let privilege = |(bit, name, needed_for): &(u32, &'static str, &'static str)| Privilege {
        name,
        held: held(*bit),
        needed_for,
    };
    std::iter::once(root).chain(CAPABILITIES.iter().map(privilege)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_kernel::features::Features;
    use nearfar_kernel::fs::TreeFs;
    use nearfar_topology::{Topology, Tree};

    fn settings_of(entries: &[(&str, &str)]) -> Vec<Setting> {
        let mut tree = Tree::new();
        entries.iter().for_each(|(path, text)| tree.insert(path, text));
        let (fs, machine, features) = (TreeFs(tree), Topology::default(), Features::only(&[]));
        settings(&Scene {
            fs: &fs,
            machine: &machine,
            features: &features,
            live: false,
            refused: None,
        })
    }

    #[test]
    fn absent_settings_are_omitted() {
        assert!(settings_of(&[]).is_empty());
    }

    #[test]
    fn damon_stat_is_reported_as_the_user_of_damon() {
        let admin = ("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "0");
        let holder = |enabled| {
            let module = ("sys/module/damon_stat/parameters/enabled", enabled);
            settings_of(&[admin, module]).pop().and_then(|setting| setting.value)
        };
        assert_eq!(holder("Y").as_deref(), Some("damon_stat"));
        assert_eq!(holder("N").as_deref(), Some("free"));
    }

    #[test]
    fn weights_are_in_order_of_node() {
        let at = |node| format!("sys/kernel/mm/mempolicy/weighted_interleave/{node}");
        let (ten, two, auto) = (at("node10"), at("node2"), at("auto"));
        let settings = settings_of(&[(&ten, "1"), (&two, "24"), (&auto, "true")]);
        let values: Vec<_> = settings.iter().filter_map(|s| s.value.as_deref()).collect();
        assert_eq!(values, ["true", "2:24 10:1"]);
    }

    #[test]
    fn the_chosen_word_is_the_one_in_brackets() {
        assert_eq!(bracketed("always [madvise] never"), "madvise");
        assert_eq!(bracketed("always"), "");
    }
}
