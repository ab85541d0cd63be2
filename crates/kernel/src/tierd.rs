//! The files of SMDK's daemon, `/run/tierd/nodeN/*`, for allocators that follow them: SMDK's and ours.
//!
//! | file | contents |
//! |---|---|
//! | `idle_state_bandwidth`, `idle_state_capacity` | `true` or `false`: whether the node has bandwidth, room left |
//! | `max_read_bw`, `max_write_bw`, `max_bw` | its maximum bandwidth in MB/s; `-1.0` if unknown |
//! | `remain_read_bandwidth`, `remain_write_bandwidth`, `remain_bandwidth` | the unused part of it; likewise |
//! | `fallback_order_tier`, `fallback_order_bandwidth` | on nodes with CPUs: all nodes, nearest first, and by bandwidth |
//!
//! SMDK's allocator opens all of them at its start and watches for changes in place (IN_MODIFY), so they are written in
//! place and only if they change; the new text is written before the file is truncated to its length, so no reader
//! finds an empty file. They are created with a claim and removed with it.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use nearfar_topology::{BytesPerSecond, NodeId};

use crate::claim::{Claim, ClaimError};

/// Default directory.
pub const DIR: &str = "/run/tierd";
/// The way out, if such files exist already.
const FOREIGN: &str = "another daemon (SMDK's tierd?) writes there; end that and remove its files, or name another directory; \
                       nearfar daemon --recover removes the files of a killed nearfar daemon";

const STATES: [&str; 2] = ["idle_state_bandwidth", "idle_state_capacity"];
const MOST: [&str; 3] = ["max_read_bw", "max_write_bw", "max_bw"];
const REMAIN: [&str; 3] = ["remain_read_bandwidth", "remain_write_bandwidth", "remain_bandwidth"];
const ORDERS: [&str; 2] = ["fallback_order_tier", "fallback_order_bandwidth"];

/// Figures of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Whether it has bandwidth left.
    pub has_bandwidth: bool,
    /// Whether it has free memory left.
    pub has_room: bool,
    /// Maximum read bandwidth.
    pub read: Option<BytesPerSecond>,
    /// Maximum write bandwidth.
    pub write: Option<BytesPerSecond>,
    /// Used bandwidth.
    pub used: Option<BytesPerSecond>,
    /// On a node with CPUs: all nodes, nearest first and by bandwidth.
    pub orders: Option<[Vec<NodeId>; 2]>,
}

impl Figures {
    /// Each file's text.
    fn texts(&self) -> Vec<(&'static str, String)> {
        let yes = |is: bool| if is { "true\n" } else { "false\n" }.to_string();
        let mbps = |bandwidth: Option<u64>| match bandwidth {
            Some(bytes) => format!("{}.{:02}\n", bytes / 1_000_000, bytes % 1_000_000 / 10_000),
            None => "-1.0\n".into(),
        };
        let [read, write] = [self.read, self.write].map(|most| most.map(|most| most.0));
        let all = [read, write, read.max(write)];
        let left = |most: &Option<u64>| Some(most.as_ref()?.saturating_sub(self.used?.0));
        let mut texts: Vec<_> =
            STATES.into_iter().zip([self.has_bandwidth, self.has_room].map(yes)).collect();
        texts.extend(MOST.into_iter().zip(all.map(mbps)));
        texts.extend(REMAIN.into_iter().zip(all.iter().map(|most| mbps(left(most)))));
        let list = |nodes: &Vec<NodeId>| {
            let nodes: Vec<_> = nodes.iter().map(NodeId::to_string).collect();
            nodes.join(",") + "\n"
        };
        if let Some(orders) = &self.orders {
            texts.extend(ORDERS.into_iter().zip(orders.iter().map(list)));
        }
        texts
    }
}

/// The open files.
#[derive(Debug)]
pub struct Tierd {
    files: BTreeMap<PathBuf, (File, String)>,
    dir: PathBuf,
}

impl Tierd {
    /// Creates the files below `dir`, with these first figures.
    ///
    /// # Errors
    /// [`ClaimError`], also if such files exist already; created files are removed with the claim.
    pub fn start(
        dir: &Path,
        first: &BTreeMap<NodeId, Figures>,
        claim: &mut Claim,
    ) -> Result<Self, ClaimError> {
        let mut tierd = Self { files: BTreeMap::new(), dir: dir.into() };
        claim.create_dir(dir)?;
        for (node, figures) in first {
            claim.create_dir(&tierd.of(*node))?;
            for (name, _) in figures.texts() {
                let path = tierd.of(*node).join(name);
                let file = claim.create(&path, FOREIGN)?;
                tierd.files.insert(path, (file, String::new()));
            }
            tierd.publish(*node, figures)?;
        }
        Ok(tierd)
    }

    fn of(&self, node: NodeId) -> PathBuf {
        self.dir.join(format!("node{node}"))
    }

    /// Writes the changed figures of a node. Figures without a file are left out.
    ///
    /// # Errors
    /// [`ClaimError::Call`].
    pub fn publish(&mut self, node: NodeId, figures: &Figures) -> Result<(), ClaimError> {
        for (name, text) in figures.texts() {
            let path = self.of(node).join(name);
            let Some((file, last)) = self.files.get_mut(&path) else { continue };
            if *last == text {
                continue;
            }
            let written = file.write_all_at(text.as_bytes(), 0).and_then(|()| {
                if text.len() < last.len() { file.set_len(text.len() as u64) } else { Ok(()) }
            });
            written.map_err(|source| ClaimError::Call { call: "write", path, source })?;
            *last = text;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn figures(is_idle: bool, used: Option<u64>) -> Figures {
        Figures {
            has_bandwidth: is_idle,
            has_room: true,
            read: Some(BytesPerSecond(60_006_000_000)),
            write: Some(BytesPerSecond(30_000_000_000)),
            used: used.map(BytesPerSecond),
            orders: Some([vec![NodeId(0), NodeId(1)], vec![NodeId(1), NodeId(0)]]),
        }
    }

    #[test]
    fn the_files_match_smdks_daemon_and_are_updated() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("tierd");
        let mut claim = Claim::take(&dir.path().join("page")).unwrap();
        let far = Figures { orders: None, read: None, write: None, ..figures(true, None) };
        let nodes = BTreeMap::from([(NodeId(0), figures(true, None)), (NodeId(1), far)]);
        let mut tierd = Tierd::start(&below, &nodes, &mut claim).unwrap();
        let text = |name: &str| fs::read_to_string(below.join(name)).unwrap();
        for (name, expected) in [
            ("node0/idle_state_bandwidth", "true\n"),
            ("node0/idle_state_capacity", "true\n"),
            ("node0/max_read_bw", "60006.00\n"),
            ("node0/max_write_bw", "30000.00\n"),
            ("node0/max_bw", "60006.00\n"),
            ("node0/remain_bandwidth", "-1.0\n"),
            ("node0/fallback_order_tier", "0,1\n"),
            ("node0/fallback_order_bandwidth", "1,0\n"),
            ("node1/max_bw", "-1.0\n"),
        ] {
            assert_eq!(text(name), expected, "{name}");
        }
        assert!(!below.join("node1/fallback_order_tier").exists());
        tierd.publish(NodeId(0), &figures(false, Some(59_000_000_000))).unwrap();
        assert_eq!(text("node0/idle_state_bandwidth"), "false\n");
        assert_eq!(text("node0/remain_read_bandwidth"), "1006.00\n");
        assert_eq!(text("node0/remain_write_bandwidth"), "0.00\n");
        tierd.publish(NodeId(0), &figures(true, Some(59_999_999_999))).unwrap();
        assert_eq!(
            text("node0/idle_state_bandwidth"),
            "true\n",
            "nothing is left of the longer text"
        );
        assert_eq!(text("node0/remain_bandwidth"), "6.00\n");
        claim.end().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn files_of_another_daemon_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("tierd/node1")).unwrap();
        fs::write(dir.path().join("tierd/node1/max_bw"), "7\n").unwrap();
        let mut claim = Claim::take(&dir.path().join("page")).unwrap();
        let nodes =
            BTreeMap::from([(NodeId(0), figures(true, None)), (NodeId(1), figures(true, None))]);
        let error = Tierd::start(&dir.path().join("tierd"), &nodes, &mut claim).unwrap_err();
        assert!(error.to_string().contains("node1/max_bw is there already"), "{error}");
        drop(claim);
        assert!(!dir.path().join("tierd/node0").exists());
        assert_eq!(fs::read_to_string(dir.path().join("tierd/node1/max_bw")).unwrap(), "7\n");
        assert_eq!(fs::read_dir(dir.path().join("tierd/node1")).unwrap().count(), 1);
    }
}
