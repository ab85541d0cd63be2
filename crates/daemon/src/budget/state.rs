//! The state of running budgets, in a file beside the journal: `nearfar.tier-budgets/1`. It serves `status` only.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use nearfar_kernel::process::Identity;
use nearfar_policy::budget::{Budget, Usage};
use nearfar_topology::Bytes;
use serde::{Deserialize, Serialize};

use crate::tier::state::{put, read_as};

/// The `schema` of a [`State`].
pub const SCHEMA: &str = "nearfar.tier-budgets/1";

/// The status of budgets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    pub(crate) schema: String,
    /// The process that keeps them.
    #[serde(flatten)]
    pub identity: Identity,
    /// Seconds since it began.
    pub running_s: u64,
    /// Near nodes.
    pub near: String,
    /// Far nodes.
    pub far: String,
    /// Whether cgroups with attributes have budgets.
    pub attributes: bool,
    /// By path.
    pub groups: Vec<GroupState>,
    /// Attributes that make no budget.
    pub problems: Vec<String>,
}

/// A cgroup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupState {
    /// Its path.
    pub cgroup: String,
    /// Its limits.
    pub near_max_bytes: Option<u64>,
    /// Near memory up to which pages are promoted.
    pub near_min_bytes: u64,
    /// Its memory.
    pub near_bytes: u64,
    /// In far memory.
    pub far_bytes: u64,
    /// Largest near memory since the limit was first kept.
    pub near_peak_bytes: u64,
    /// Bytes migrated so far.
    pub demoted_bytes: u64,
    /// The same, upwards.
    pub promoted_bytes: u64,
    /// Why the last migration moved nothing, if it did not.
    pub blocked: Option<String>,
    /// Whether near memory has been within the limit since the budget was set.
    #[serde(skip)]
    kept: bool,
}

impl GroupState {
    pub(crate) fn new(path: &str, budget: Budget) -> Self {
        let mut state = Self { cgroup: path.to_owned(), ..Self::default() };
        state.set_budget(budget);
        state
    }

    pub(crate) fn set_budget(&mut self, budget: Budget) {
        let max = budget.max().map(|max| max.0);
        if max != self.near_max_bytes {
            (self.kept, self.near_peak_bytes) = (false, 0);
        }
        self.near_max_bytes = max;
        self.near_min_bytes = budget.min().0;
    }

    pub(crate) fn see(&mut self, usage: Usage) {
        (self.near_bytes, self.far_bytes) = (usage.near.0, usage.far.0);
        self.kept |= self.near_max_bytes.is_none_or(|max| self.near_bytes <= max);
        if self.kept {
            self.near_peak_bytes = self.near_peak_bytes.max(self.near_bytes);
        }
    }

    pub(crate) fn add(&mut self, demoted: Bytes, promoted: Bytes) {
        self.demoted_bytes = self.demoted_bytes.saturating_add(demoted.0);
        self.promoted_bytes = self.promoted_bytes.saturating_add(promoted.0);
    }
}

impl State {
    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = format!(
            "Budgets of near memory (nodes {} over {}) for {} s (process {})\n",
            self.near, self.far, self.running_s, self.identity.pid
        );
        if self.groups.is_empty() {
            out.push_str("  no cgroup has a budget\n");
        }
        for group in &self.groups {
            let share = group.near_max_bytes.map(|max| {
                let percent = group.near_bytes.saturating_mul(100) / max.max(1);
                format!(" of at most {} ({percent} %)", Bytes(max))
            });
            let least = match group.near_min_bytes {
                0 => String::new(),
                min => format!(", at least {}", Bytes(min)),
            };
            let _ = writeln!(
                out,
                "  {}: {} near{}{least}, {} far; demoted {}, promoted {}, peak {}",
                group.cgroup,
                Bytes(group.near_bytes),
                share.unwrap_or_default(),
                Bytes(group.far_bytes),
                Bytes(group.demoted_bytes),
                Bytes(group.promoted_bytes),
                Bytes(group.near_peak_bytes),
            );
            if let Some(reason) = &group.blocked {
                let _ = writeln!(out, "    nothing could be moved: {reason}");
            }
        }
        for problem in &self.problems {
            let _ = writeln!(out, "  no budget for {problem}");
        }
        out
    }
}

/// Path of the file.
#[must_use]
pub fn path(dir: &Path) -> PathBuf {
    dir.join("tier-budgets.json")
}

pub(crate) fn write(dir: &Path, state: &State) -> anyhow::Result<()> {
    put(&path(dir), state)
}

/// Reads the file; `None` if there is none.
///
/// # Errors
/// It can't be read, or is of another version.
pub fn read(dir: &Path) -> anyhow::Result<Option<State>> {
    read_as(&path(dir), SCHEMA)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn usage(near: u64) -> Usage {
        Usage { near: Bytes(near * MIB), far: Bytes(0) }
    }

    #[test]
    fn the_peak_counts_from_when_the_limit_is_first_kept() {
        let of = |max: u64| Budget::new(Some(Bytes(max * MIB)), None, Bytes(1 << 40)).unwrap();
        let mut group = GroupState::new("/a", of(100));
        for near in [500, 99, 101, 98] {
            group.see(usage(near));
        }
        assert_eq!(group.near_peak_bytes, 101 * MIB);
        group.set_budget(of(50));
        group.see(usage(98));
        assert_eq!(group.near_peak_bytes, 0);
    }

    #[test]
    fn a_budget_state_round_trips_and_shows_problems() {
        let budget = Budget::new(Some(Bytes(100 * MIB)), Some(Bytes(MIB)), Bytes(1 << 40)).unwrap();
        let mut group = GroupState::new("/a", budget);
        group.blocked = Some("node 1 has no free memory".into());
        let state = State {
            schema: SCHEMA.into(),
            identity: Identity::default(),
            running_s: 3,
            near: "0".into(),
            far: "1".into(),
            attributes: true,
            groups: vec![group],
            problems: vec!["cgroup /b: `x`".into()],
        };
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &state).unwrap();
        assert_eq!(read(dir.path()).unwrap(), Some(state.clone()));
        let text = state.text();
        for says in [
            "/a: 0 B near of at most 100 MiB (0 %), at least 1 MiB",
            "no free memory",
            "no budget for cgroup /b",
        ] {
            assert!(text.contains(says), "{text}");
        }
    }
}
