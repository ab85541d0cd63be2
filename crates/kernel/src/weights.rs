//! The machine-wide weights of weighted interleave: `/sys/kernel/mm/mempolicy/weighted_interleave/`.
//!
//! `nodeN` contains 1..=255 pages per round. `auto` (Linux 6.16) reads `true` while the kernel derives them from
//! firmware's bandwidths, and turns `false` when one is written; so it is turned off first, by an explicit write, so
//! that the journal restores it last. Weights apply to pages placed from then on, in every process with weighted
//! interleaving. Kernels that define `auto` as C23 does, 6.18 among them, name the file `__auto_type`: the macro was expanded
//! in its name.

use std::collections::BTreeMap;

use nearfar_policy::Weights;
use nearfar_topology::NodeId;

use crate::fs::{Fs, FsError};
use crate::journal::{Change, Journal, JournalError, Recorded};

/// The directory.
pub const DIR: &str = "sys/kernel/mm/mempolicy/weighted_interleave";
/// Paths of the switch for automatic weights; a kernel has one of them, or none.
pub const AUTO: [&str; 2] = [
    "sys/kernel/mm/mempolicy/weighted_interleave/auto",
    "sys/kernel/mm/mempolicy/weighted_interleave/__auto_type",
];

/// The kernel's present weights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Current {
    /// Pages per round, by node.
    pub nodes: BTreeMap<NodeId, u8>,
    /// The switch for automatic weights; `None` before 6.16.
    pub auto: Option<Auto>,
}

/// The switch for automatic weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Auto {
    /// One of [`AUTO`].
    pub path: &'static str,
    /// Whether the kernel derives the weights.
    pub is_on: bool,
}

/// Reasons why weights could not be read or set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The kernel has no weighted interleave.
    #[error("no /{DIR} here: this kernel lacks weighted_interleave (it needs Linux 6.9 or later)")]
    Unsupported,
    /// The kernel has no weight for a node.
    #[error("the kernel has no weight for node {node}: no /{DIR}/node{node}")]
    NoNode {
        /// The node.
        node: NodeId,
    },
    /// A file without a valid weight.
    #[error("/{DIR}/node{node} reads `{found}`, which is not 1 to 255")]
    Malformed {
        /// The node.
        node: NodeId,
        /// Its text.
        found: String,
    },
    /// The directory or a file in it can't be read.
    #[error(transparent)]
    Read(#[from] FsError),
    /// The journal or the write failed.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl Current {
    /// The weights of `nodes`; `None` if the kernel has none for one of them.
    pub fn over(&self, nodes: impl IntoIterator<Item = NodeId>) -> Option<Weights> {
        let pick = |node| Some((node, *self.nodes.get(&node)?));
        Weights::new(nodes.into_iter().map(pick).collect::<Option<_>>()?)
    }
}

/// The kernel's present weights.
///
/// # Errors
/// [`WeightsError::Unsupported`] where there is no weighted interleave, [`WeightsError::Malformed`] and
/// [`WeightsError::Read`].
pub fn read(fs: &dyn Fs) -> Result<Current, WeightsError> {
    let mut current = Current::default();
    for entry in fs.list(DIR)?.ok_or(WeightsError::Unsupported)? {
        let path = format!("{DIR}/{}", entry.name);
        let text = fs.read(&path)?.unwrap_or_default();
        let text = text.trim();
        if let Some(path) = AUTO.into_iter().find(|auto| *auto == path) {
            current.auto = Some(Auto { path, is_on: matches!(text, "true" | "1" | "Y") });
        } else if let Some(Ok(node)) = entry.name.strip_prefix("node").map(str::parse) {
            let node = NodeId(node);
            let weight = text.parse().ok().filter(|weight| *weight > 0);
            let malformed = || WeightsError::Malformed { node, found: text.into() };
            current.nodes.insert(node, weight.ok_or_else(malformed)?);
        }
    }
    Ok(current)
}

/// The writes that turn `current` into `wanted`, in order; none if they are equal. Other nodes' weights stay.
///
/// # Errors
/// [`WeightsError::NoNode`].
pub fn changes(current: &Current, wanted: &Weights) -> Result<Vec<Change>, WeightsError> {
    let mut changes = Vec::new();
    for (node, weight) in wanted.iter() {
        let now = *current.nodes.get(&node).ok_or(WeightsError::NoNode { node })?;
        if now != weight {
            changes.push(Change { path: format!("{DIR}/node{node}"), new: weight.to_string() });
        }
    }
    if let Some(auto) = current.auto.filter(|auto| auto.is_on && !changes.is_empty()) {
        changes.insert(0, Change { path: auto.path.into(), new: "false".into() });
    }
    Ok(changes)
}

/// Sets `wanted` through the journal, with owner `by`; returns the writes.
///
/// # Errors
/// [`WeightsError`]; nothing is changed then, except as [`JournalError::Stuck`] says.
pub fn apply(
    journal: &Journal<'_>,
    fs: &dyn Fs,
    by: &str,
    wanted: &Weights,
) -> Result<Vec<Recorded>, WeightsError> {
    let changes = changes(&read(fs)?, wanted)?;
    Ok(if changes.is_empty() { Vec::new() } else { journal.change(by, &changes)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeFs;
    use crate::journal::OnConflict;

    fn weights(pairs: &[(u16, u8)]) -> Weights {
        Weights::new(pairs.iter().map(|(node, weight)| (NodeId(*node), *weight)).collect()).unwrap()
    }

    #[test]
    fn setting_and_restoring_gives_the_automatic_weights_back() {
        for path in AUTO {
            let dir = tempfile::tempdir().unwrap();
            let fs = FakeFs::automatic(&[(0, 24), (1, 7)], path);
            let journal = Journal::new(dir.path(), &fs, "/");
            apply(&journal, &fs, "weights", &weights(&[(0, 3), (1, 1)])).unwrap();
            let current = |zero, one, is_on| Current {
                nodes: [(NodeId(0), zero), (NodeId(1), one)].into(),
                auto: Some(Auto { path, is_on }),
            };
            assert_eq!(read(&fs).unwrap(), current(3, 1, false));
            journal.restore("weights", OnConflict::Refuse).unwrap();
            assert_eq!(read(&fs).unwrap(), current(24, 7, true));
            let last = fs.writes().pop().unwrap();
            assert_eq!(last, (path.into(), "true".into()), "auto goes back on last");
        }
    }

    #[test]
    fn weights_that_stand_already_are_not_written_and_auto_stays_on() {
        let dir = tempfile::tempdir().unwrap();
        let fs = FakeFs::interleaving(&[(0, 3), (1, 1)], Some(true));
        let journal = Journal::new(dir.path(), &fs, "/");
        assert_eq!(apply(&journal, &fs, "weights", &weights(&[(0, 3), (1, 1)])).unwrap(), []);
        assert_eq!(fs.writes(), []);
    }

    #[test]
    fn a_kernel_without_auto_gets_the_weights_alone() {
        let dir = tempfile::tempdir().unwrap();
        let fs = FakeFs::interleaving(&[(0, 1), (1, 1), (2, 1)], None);
        let journal = Journal::new(dir.path(), &fs, "/");
        apply(&journal, &fs, "weights", &weights(&[(0, 3), (2, 2)])).unwrap();
        let files: Vec<_> = fs
            .writes()
            .into_iter()
            .map(|(path, text)| (path[DIR.len() + 1..].to_string(), text))
            .collect();
        assert_eq!(files, [("node0".into(), "3".into()), ("node2".into(), "2".to_string())]);
    }

    #[test]
    fn a_kernel_without_weighted_interleave_reports_the_required_version() {
        let fs = FakeFs::default();
        let error = read(&fs).unwrap_err().to_string();
        assert!(error.contains("6.9") && error.contains("weighted_interleave"), "{error}");
    }

    #[test]
    fn nodes_without_weights_and_invalid_weights_are_reported() {
        let fs = FakeFs::interleaving(&[(0, 1)], None);
        let error = changes(&read(&fs).unwrap(), &weights(&[(7, 1)])).unwrap_err().to_string();
        assert!(error.contains("node7"), "{error}");
        for bad in ["0", "256", "", "one"] {
            fs.meddle(&format!("{DIR}/node0"), bad);
            let error = read(&fs).unwrap_err().to_string();
            assert!(error.contains("node0") && error.contains(&format!("`{bad}`")), "{error}");
        }
    }
}
