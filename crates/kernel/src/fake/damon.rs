//! DAMON's sysfs interface of several kernels, for tests.
//!
//! Reactions: writing `nr_*` removes previous directories and creates numbered ones with defaults (from
//! `fixtures/damon/`, recorded); `nr_kdamonds` is EBUSY while a kdamond is on; invalid numbers, words and flags are
//! EINVAL; `state` takes its commands only in suitable states; a module of the kernel's and kdamonds exclude each other
//! (EBUSY). Nothing is monitored: counters and regions stay as a test plants them. Kernels return EPERM to a second
//! `off`, as to a kdamond that has ended; here it is EINVAL, as to one that was never on.

use nearfar_topology::Tree;
use rustix::io::Errno;

use crate::damon::KDAMONDS;

const STAT: &str = "sys/module/damon_stat/parameters/enabled";

/// A kernel with a known DAMON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damon {
    /// Without goals of nodes, several destinations, tuned intervals.
    Linux6_12,
    /// With all of these, and `damon_stat` on from boot.
    Linux7_2,
    /// As 7.2, without the schemes' directory `filters`, which 7.2 deprecates in favour of `core_filters` and `ops_filters`.
    WithoutFilters,
    /// As 7.2, built without `CONFIG_DAMON_VADDR`.
    WithoutVaddr,
}

const METRICS: [&str; 9] = [
    "user_input",
    "some_mem_psi_us",
    "node_mem_used_bp",
    "node_mem_free_bp",
    "node_memcg_used_bp",
    "node_memcg_free_bp",
    "active_mem_bp",
    "inactive_mem_bp",
    "node_eligible_mem_bp",
];

const ACTIONS: [&str; 11] = [
    "willneed",
    "cold",
    "pageout",
    "hugepage",
    "nohugepage",
    "lru_prio",
    "lru_deprio",
    "migrate_hot",
    "migrate_cold",
    "stat",
    "collapse",
];

const FILTERS: [&str; 8] =
    ["anon", "memcg", "young", "addr", "target", "hugepage_size", "unmapped", "active"];

pub(super) fn is_its(path: &str) -> bool {
    path.starts_with(KDAMONDS) || path == STAT
}

impl Damon {
    /// The files of a system without kdamonds.
    pub(super) fn fresh(self) -> Tree {
        let mut tree = Tree::new();
        tree.insert(&format!("{KDAMONDS}/nr_kdamonds"), "0");
        if self != Self::Linux6_12 {
            tree.insert(STAT, "Y");
        }
        tree
    }

    /// A kdamond with one of everything.
    fn template(self) -> Tree {
        let mut tree = Tree::parse(match self {
            Self::Linux6_12 => include_str!("../../../../fixtures/damon/linux-6.12.tree"),
            Self::Linux7_2 | Self::WithoutFilters | Self::WithoutVaddr => {
                include_str!("../../../../fixtures/damon/linux-7.2.tree")
            }
        });
        if self == Self::WithoutFilters {
            let mut kept = Tree::new();
            for (path, text) in
                tree.iter().filter(|(path, _)| !path.contains("/schemes/0/filters/"))
            {
                kept.insert(path, text);
            }
            tree = kept;
        }
        if self == Self::WithoutVaddr {
            tree.insert("0/contexts/0/avail_operations", "paddr");
        }
        tree
    }

    pub(super) fn react(self, tree: &mut Tree, path: &str, text: &str) -> Result<(), Errno> {
        if path == STAT {
            let wanted = flag(text)?;
            if wanted == "Y" && running(tree) {
                return Err(Errno::BUSY);
            }
            tree.insert(path, wanted);
            return Ok(());
        }
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        match name {
            "state" => return Self::command(tree, parent, text),
            "nr_kdamonds" if running(tree) => return Err(Errno::BUSY),
            _ if name.starts_with("nr_") && !name.ends_with("_permil") => {
                return self.make(tree, path, text);
            }
            _ => {}
        }
        let word = |words: &[&str]| {
            if words.contains(&text) { Ok(text) } else { Err(Errno::INVAL) }
        };
        let old = self == Self::Linux6_12;
        let reads = match name {
            "operations" => word(&["vaddr", "fvaddr", "paddr"])?,
            "action" => word(if old { &ACTIONS[..10] } else { &ACTIONS })?,
            "target_metric" if parent.contains("goals") => {
                word(if old { &METRICS[..2] } else { &METRICS })?
            }
            "goal_tuner" => word(&["consist", "temporal"])?,
            "metric" => word(&["none", "free_mem_rate"])?,
            "type" => word(filters(parent, old))?,
            "matching" | "allow" | "pause" | "obsolete_target" => flag(text)?,
            "memcg_path" | "path" => text,
            _ if text.parse::<i64>().is_ok() || text.parse::<u64>().is_ok() => text,
            _ => return Err(Errno::INVAL),
        };
        tree.insert(path, reads);
        Ok(())
    }

    fn command(tree: &mut Tree, kdamond: &str, command: &str) -> Result<(), Errno> {
        let at = |file: &str| format!("{kdamond}/{file}");
        let number = |tree: &Tree, file: &str| tree.number(&at(file)).unwrap_or(0);
        let on = tree.text(&at("state")) == Some("on");
        match command {
            "on" if on => return Err(Errno::BUSY),
            "on" | "commit" => {
                let few = number(tree, "contexts/0/monitoring_attrs/nr_regions/min") < 3;
                if number(tree, "contexts/nr_contexts") != 1 || few {
                    return Err(Errno::INVAL);
                }
                if command == "commit" {
                    return if on { Ok(()) } else { Err(Errno::INVAL) };
                }
                if tree.text(STAT) == Some("Y") {
                    return Err(Errno::BUSY);
                }
                tree.insert(&at("pid"), "4711");
                tree.insert(&at("state"), "on");
            }
            "off" => {
                if !on {
                    return Err(Errno::INVAL);
                }
                tree.insert(&at("pid"), "-1");
                tree.insert(&at("state"), "off");
            }
            "update_schemes_stats"
            | "update_schemes_tried_regions"
            | "clear_schemes_tried_regions"
            | "update_schemes_effective_quotas"
            | "update_tuned_intervals"
            | "commit_schemes_quota_goals"
                if on => {}
            _ => return Err(Errno::INVAL),
        }
        Ok(())
    }

    /// Creates the directories of an `nr_` file.
    fn make(self, tree: &mut Tree, path: &str, text: &str) -> Result<(), Errno> {
        let count: usize = text.parse().map_err(|_| Errno::INVAL)?;
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        if name == "nr_contexts" && count > 1 {
            return Err(Errno::INVAL);
        }
        let numbered = |below: &str| {
            below.split('/').next().is_some_and(|first| first.parse::<usize>().is_ok())
        };
        let mut kept = Tree::new();
        for (entry, text) in tree.iter() {
            let below = entry.strip_prefix(&format!("{parent}/"));
            if !below.is_some_and(numbered) {
                kept.insert(entry, text);
            }
        }
        // Every directory of a kind is like the template's first.
        let inside = parent.strip_prefix(KDAMONDS).unwrap_or(parent).trim_start_matches('/');
        let first = |part: &str| if numbered(part) { "0".to_string() } else { part.to_string() };
        let mut base: Vec<String> =
            inside.split('/').filter(|part| !part.is_empty()).map(first).collect();
        base.push("0/".into());
        let base = base.join("/");
        for (entry, text) in self.template().iter() {
            let Some(below) = entry.strip_prefix(&base) else { continue };
            if below.split('/').any(numbered) {
                continue;
            }
            for index in 0..count {
                kept.insert(&format!("{parent}/{index}/{below}"), text);
            }
        }
        kept.insert(path, &count.to_string());
        *tree = kept;
        Ok(())
    }
}

fn filters(parent: &str, old: bool) -> &'static [&'static str] {
    if parent.contains("core_filters") {
        &FILTERS[3..5]
    } else if parent.contains("ops_filters") {
        &["anon", "memcg", "young", "hugepage_size", "unmapped", "active"]
    } else if old {
        &FILTERS[..5]
    } else {
        &FILTERS
    }
}

fn flag(text: &str) -> Result<&'static str, Errno> {
    match text {
        "Y" | "y" | "1" => Ok("Y"),
        "N" | "n" | "0" => Ok("N"),
        _ => Err(Errno::INVAL),
    }
}

fn running(tree: &Tree) -> bool {
    tree.iter()
        .any(|(path, text)| path.starts_with(KDAMONDS) && path.ends_with("/state") && text == "on")
}
