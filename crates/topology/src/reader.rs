//! Reads single values of a [`Tree`]: text, numbers, nodes and node lists; a value that can't be understood is a finding.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::machine::Finding;
use crate::nodeset::{NodeSet, parse_id_list};
use crate::tree::Tree;
use crate::units::NodeId;

/// A tree being read, and the findings so far.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    pub(crate) tree: &'a Tree,
    pub(crate) findings: Vec<Finding>,
}

/// The directory of nodes in sysfs.
pub(crate) const NODES: &str = "sys/devices/system/node";

impl<'a> Reader<'a> {
    pub(crate) fn note(&mut self, path: &str, message: impl Into<String>) {
        self.findings.push(Finding { path: path.to_string(), message: message.into() });
    }

    /// The text at `path`, if any; an attribute without a value counts as absent.
    pub(crate) fn text(&self, path: &str) -> Option<&'a str> {
        self.tree.text(path).filter(|text| !text.is_empty() && !text.starts_with("-> "))
    }

    /// The number at `path`; a text that is no number is a finding.
    pub(crate) fn number(&mut self, path: &str) -> Option<u64> {
        let text = self.text(path)?;
        let number = self.tree.number(path);
        if number.is_none() {
            self.note(path, format!("`{}` is not a number; ignored", brief(text)));
        }
        number
    }

    /// The node at `path`; the kernel's -1 means none.
    pub(crate) fn node(&mut self, path: &str) -> Option<NodeId> {
        if self.text(path)? == "-1" {
            return None;
        }
        let number = self.number(path)?;
        let node = NodeId::new(number);
        if node.is_none() {
            self.note(path, format!("node {number} is above {}; ignored", NodeId::MAX));
        }
        node
    }

    /// The node list at `path`; a text that is no list is a finding, as are nodes that Linux can't have.
    pub(crate) fn nodes(&mut self, path: &str) -> Option<NodeSet> {
        let ids = self.ids(path)?;
        Some(self.possible(path, &ids))
    }

    /// The numbers of the node list at `path`; a text that is no list is a finding.
    pub(crate) fn ids(&mut self, path: &str) -> Option<BTreeSet<u32>> {
        let text = self.tree.text(path)?;
        let ids = parse_id_list(text);
        if ids.is_none() {
            self.note(path, format!("`{}` is not a list of nodes; ignored", brief(text)));
        }
        ids.map(|ids| ids.into_iter().collect())
    }

    /// Those of the nodes that Linux can have; the others are a finding.
    pub(crate) fn possible(&mut self, path: &str, ids: &BTreeSet<u32>) -> NodeSet {
        let mut beyond = 0;
        let known = |id: &u32| {
            let known = NodeId::new((*id).into());
            beyond += usize::from(known.is_none());
            known
        };
        let set = ids.iter().filter_map(known).collect();
        if beyond > 0 {
            let most = NodeId::MAX;
            self.note(
                path,
                format!("left out: {beyond} with a number above {most}, Linux's greatest"),
            );
        }
        set
    }
}

/// The start of `text`, short enough for a message.
pub(crate) fn brief(text: &str) -> String {
    const CHARS: usize = 40;
    text.chars().take(CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect()
}
