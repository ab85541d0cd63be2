//! Verification: compares the memory policy that a container's first process has with the one it should have.
//!
//! `/proc/PID/numa_maps` shows for each mapping its policy, which is the process's unless the mapping has one of its own
//! (mbind(2)), and its pages on each node. So the process has the policy if any mapping shows it. Pages that are shared
//! with other processes, such as those of a program's file, are where their first user placed them: only anonymous ones
//! are counted. Old runtimes ignore `linux.memoryPolicy` without an error: then all mappings show `default`.

use std::collections::BTreeMap;
use std::fmt;

use nearfar_kernel::fs::Fs;
use nearfar_kernel::mapped::{self, Line};
use nearfar_topology::{NodeId, NodeSet};

use crate::policy::{MemoryPolicy, Mode};

/// The result of a verification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The process has the policy, and its anonymous pages are where the policy permits.
    AsAsked,
    /// The process has the policy, but no anonymous page yet.
    NotTouched,
    /// The process has another policy, or pages on nodes that the policy does not permit.
    Wrong(String),
    /// It has ended, or can't be read.
    Unknown(String),
}

/// A verification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The policy it should have.
    pub wanted: MemoryPolicy,
    /// The result.
    pub verdict: Verdict,
    /// Anonymous pages by node, in mappings with the policy; huge ones count as the pages that they are made of.
    pub pages: BTreeMap<NodeId, u64>,
}

impl Verdict {
    /// A word for logs and metrics.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::AsAsked => "as_asked",
            Self::NotTouched => "not_touched",
            Self::Wrong(_) => "wrong",
            Self::Unknown(_) => "unknown",
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.verdict {
            Verdict::AsAsked if self.pages.is_empty() => write!(f, "as asked: {}", self.wanted),
            Verdict::AsAsked => {
                write!(f, "as asked: {}, anonymous pages ", self.wanted)?;
                for (index, (node, pages)) in self.pages.iter().enumerate() {
                    write!(f, "{}N{node}={pages}", if index > 0 { " " } else { "" })?;
                }
                Ok(())
            }
            Verdict::NotTouched => write!(f, "not yet touched: {}, no anonymous page", self.wanted),
            Verdict::Wrong(why) => write!(f, "wrong: {why}"),
            Verdict::Unknown(why) => write!(f, "not verified: {why}"),
        }
    }
}

/// Verifies the process `pid` as seen through `fs`.
#[must_use]
pub fn verify(fs: &dyn Fs, pid: u32, wanted: &MemoryPolicy) -> Report {
    let path = format!("proc/{pid}/numa_maps");
    match fs.read(&path) {
        Ok(Some(text)) if !text.trim().is_empty() => judge(&text, wanted),
        Ok(_) => unknown(wanted, format!("process {pid} has ended, or /{path} is missing")),
        Err(error) => unknown(wanted, error.to_string()),
    }
}

/// Verifies that the cpuset of the process `pid` permits the nodes of a binding and no other: the placement where a
/// container runtime can't set policies.
#[must_use]
pub fn confined(fs: &dyn Fs, pid: u32, wanted: &MemoryPolicy) -> Report {
    let path = format!("proc/{pid}/status");
    let text = match fs.read(&path) {
        Ok(text) => text.unwrap_or_default(),
        Err(error) => return unknown(wanted, error.to_string()),
    };
    let list = text.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"));
    let Some(nodes) = list.and_then(NodeSet::parse_list) else {
        return unknown(wanted, format!("process {pid} has ended, or /{path} shows no nodes"));
    };
    let verdict = if nodes == wanted.nodes {
        Verdict::AsAsked
    } else {
        let why = format!("the cpuset permits nodes {nodes}, not {}", wanted.nodes);
        Verdict::Wrong(why)
    };
    Report { wanted: wanted.clone(), verdict, pages: BTreeMap::new() }
}

fn unknown(wanted: &MemoryPolicy, why: String) -> Report {
    Report { wanted: wanted.clone(), verdict: Verdict::Unknown(why), pages: BTreeMap::new() }
}

/// Verifies the text of numa_maps.
#[must_use]
pub fn judge(numa_maps: &str, wanted: &MemoryPolicy) -> Report {
    let mut pages = BTreeMap::new();
    let mut policies: BTreeMap<String, usize> = BTreeMap::new();
    let mut having = 0_usize;
    for line in numa_maps.lines().filter_map(mapped::line) {
        let Some((policy, _)) = MemoryPolicy::from_numa_maps(&line.policy) else { continue };
        if fits(&policy, wanted) {
            having += 1;
            add(&mut pages, &line);
        } else {
            *policies.entry(policy.to_string()).or_default() += 1;
        }
    }
    let most = policies.iter().max_by_key(|(_, count)| **count);
    let verdict = match (having, most) {
        (0, None) => Verdict::Unknown("numa_maps has no mapping".into()),
        (0, Some((found, _))) => Verdict::Wrong(format!(
            "the process has the policy {found}, not {wanted}{}",
            if found == "default" {
                "; the runtime ignored it, as versions without memoryPolicy do"
            } else {
                ""
            }
        )),
        _ if pages.is_empty() => Verdict::NotTouched,
        _ => match elsewhere(&pages, wanted) {
            Some(why) => Verdict::Wrong(why),
            None => Verdict::AsAsked,
        },
    };
    Report { wanted: wanted.clone(), verdict, pages }
}

/// Whether a policy in force is the one wanted. Relative nodes are shown resolved, so their number counts at most.
fn fits(found: &MemoryPolicy, wanted: &MemoryPolicy) -> bool {
    if wanted.flags.relative_nodes {
        let has_nodes = found.nodes.is_empty() == wanted.nodes.is_empty();
        return found.mode == wanted.mode && found.flags == wanted.flags && has_nodes;
    }
    found == wanted
}

/// Adds the anonymous pages of a mapping. Those of a private file mapping can't be distinguished by node, so that a
/// mapping counts only if all its pages are anonymous.
fn add(pages: &mut BTreeMap<NodeId, u64>, line: &Line<'_>) {
    let is_mixed = line.file.is_some() || line.has_mapped;
    if !line.has_anon || is_mixed {
        return;
    }
    for (node, count) in &line.pages {
        let sum: &mut u64 = pages.entry(*node).or_default();
        *sum = sum.saturating_add(*count);
    }
}

/// Pages on nodes that a binding does not permit; the other policies fall back when their nodes are full.
fn elsewhere(pages: &BTreeMap<NodeId, u64>, wanted: &MemoryPolicy) -> Option<String> {
    if wanted.mode != Mode::Bind || wanted.flags.relative_nodes {
        return None;
    }
    let outside: NodeSet =
        pages.keys().filter(|node| !wanted.nodes.contains(**node)).copied().collect();
    let count: u64 = outside.iter().filter_map(|node| pages.get(&node)).sum();
    (count > 0).then(|| format!("{count} anonymous pages are on nodes {outside}, outside {wanted}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_kernel::fake::FakeFs;
    use nearfar_topology::Tree;
    use proptest::prelude::*;

    const BOUND: &str = "\
55d4c0000000 bind=static:1 file=/bin/busybox mapped=200 N0=200 kernelpagesize_kB=4
55d4c0200000 bind=static:1 heap anon=12 dirty=12 N1=12 kernelpagesize_kB=4
7f0000000000 interleave:0-1 anon=2 dirty=2 N0=1 N1=1 kernelpagesize_kB=4
7ffd00000000 bind=static:1 stack anon=3 dirty=3 N1=3 kernelpagesize_kB=4
7ffd00100000 bind=static:1
";

    fn policy(text: &str) -> MemoryPolicy {
        MemoryPolicy::from_numa_maps(text).unwrap().0
    }

    #[test]
    fn pages_of_the_policys_own_mappings_are_counted() {
        let report = judge(BOUND, &policy("bind=static:1"));
        assert_eq!(report.verdict, Verdict::AsAsked);
        assert_eq!(report.pages, [(NodeId(1), 15)].into());
        assert_eq!(report.to_string(), "as asked: bind=static:1, anonymous pages N1=15");
    }

    #[test]
    fn a_policy_mismatch_is_reported_with_the_policy_in_force() {
        let ignored = BOUND.replace("bind=static:1", "default");
        for (maps, wanted, part) in [
            (ignored.as_str(), "bind=static:1", "policy default, not bind=static:1; the runtime"),
            (BOUND, "bind=static:0-1", "policy bind=static:1, not bind=static:0-1"),
            (BOUND, "prefer=static:1", "not prefer=static:1"),
            (BOUND, "bind:1", "not bind:1"),
        ] {
            let report = judge(maps, &policy(wanted));
            assert_eq!(report.verdict.word(), "wrong");
            assert!(report.to_string().contains(part), "{report}");
        }
    }

    #[test]
    fn misplaced_pages_are_wrong_under_bind_and_allowed_under_interleave() {
        let moved = BOUND.replace("N1=3", "N0=3");
        let report = judge(&moved, &policy("bind=static:1"));
        assert!(report.to_string().contains("3 anonymous pages are on nodes 0"), "{report}");
        let interleaved = moved.replace("bind=static:1", "interleave=static:1");
        let report = judge(&interleaved, &policy("interleave=static:1"));
        assert_eq!(report.verdict, Verdict::AsAsked);
    }

    #[test]
    fn untouched_memory_is_distinguished_from_unreadable_maps() {
        let maps = "7f0000000000 interleave:0-1\n";
        assert_eq!(judge(maps, &policy("interleave:0-1")).verdict, Verdict::NotTouched);
        assert_eq!(judge("", &policy("bind:0")).verdict.word(), "unknown");
        let fs = FakeFs::new(Tree::new());
        let gone = verify(&fs, 7, &policy("bind:0"));
        assert!(gone.to_string().contains("process 7 has ended"), "{gone}");
        fs.plant(&[("proc/8/numa_maps".into(), BOUND)]);
        assert_eq!(verify(&fs, 8, &policy("bind=static:1")).verdict, Verdict::AsAsked);
    }

    #[test]
    fn a_cpuset_must_permit_the_nodes_and_no_other() {
        let fs = FakeFs::new(Tree::new());
        fs.plant(&[("proc/7/status".into(), "Name:\tx\nMems_allowed_list:\t0-1\n")]);
        let both = confined(&fs, 7, &policy("bind=static:0-1"));
        assert_eq!(both.verdict, Verdict::AsAsked);
        let wrong = confined(&fs, 7, &policy("bind=static:1")).to_string();
        assert!(wrong.contains("permits nodes 0-1, not 1"), "{wrong}");
        assert_eq!(confined(&fs, 8, &policy("bind:0")).verdict.word(), "unknown");
    }

    #[test]
    fn relative_nodes_are_shown_resolved() {
        let maps = "7f0000000000 bind=relative:2 anon=1 N2=1\n";
        assert_eq!(judge(maps, &policy("bind=relative:0")).verdict, Verdict::AsAsked);
    }

    proptest! {
        #[test]
        fn any_text_has_a_verdict(text in "[0-9a-f ]{0,9}(bind|default|prefer \\(many\\))?[=:a-zN0-9 \n-]{0,60}") {
            let report = judge(&text, &policy("bind:0"));
            prop_assert!(!report.to_string().is_empty());
        }
    }
}
