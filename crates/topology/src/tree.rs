//! A machine's sysfs and procfs as paths and text, from any source.
//!
//! Keys are paths without the leading `/` (`sys/devices/system/node/node0/meminfo`). A file maps to its text, a
//! symbolic link to `-> target`, a directory without children to the empty text under `path/`.
//!
//! Format of a recorded tree (`*.tree`): one entry after another. An entry starts with a line `@ PATH`; the lines
//! after it, up to the next line that starts with `@ `, are the file's text. A text line that itself starts with `@`
//! is written with one more `@` in front. The text's last newline is not part of it. Lines before the first entry
//! that start with `#` are comments.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use core::fmt::Write as _;

/// Paths and their text: the project's only description of a machine before parsing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    entries: BTreeMap<String, String>,
}

impl Tree {
    /// An empty tree.
    #[must_use]
    pub const fn new() -> Self {
        Self { entries: BTreeMap::new() }
    }

    /// Adds or replaces the text at `path`; a leading `/` is dropped, as is one trailing newline of the text.
    pub fn insert(&mut self, path: &str, text: &str) {
        let text = text.strip_suffix('\n').unwrap_or(text);
        self.entries.insert(path.trim_start_matches('/').to_string(), text.to_string());
    }

    /// The text at `path`, trimmed of surrounding white space; `None` where there is no such file.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<&str> {
        self.entries.get(path.trim_start_matches('/')).map(|text| text.trim())
    }

    /// The number at `path`, decimal or `0x` hexadecimal; `None` where there is no such file or no number in it.
    #[must_use]
    pub fn number(&self, path: &str) -> Option<u64> {
        let text = self.text(path)?;
        match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        }
    }

    /// The target of the symbolic link at `path`.
    #[must_use]
    pub fn link(&self, path: &str) -> Option<&str> {
        self.text(path)?.strip_prefix("-> ")
    }

    /// Whether anything exists at or below `path`.
    #[must_use]
    pub fn exists(&self, path: &str) -> bool {
        let path = path.trim_matches('/');
        self.entries.contains_key(path) || self.below(path).next().is_some()
    }

    /// The names directly below the directory `path`, each once, in order.
    pub fn children<'a>(&'a self, path: &str) -> impl Iterator<Item = &'a str> + use<'a> {
        let path = path.trim_matches('/');
        let names = self.below(path).filter_map(|rest| rest.split('/').next());
        // A set, because the order of paths is `a`, `a-b`, `a/c`: a name's entries need not be adjacent.
        let names: BTreeSet<&str> = names.filter(|name| !name.is_empty()).collect();
        names.into_iter()
    }

    /// The part after `path/` of every entry below it; an empty text for a directory without children.
    fn below<'a>(&'a self, path: &str) -> impl Iterator<Item = &'a str> {
        let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
        let skip = prefix.len();
        self.entries
            .range(prefix.clone()..)
            .take_while(move |(key, _)| key.starts_with(&prefix))
            .map(move |(key, _)| &key[skip..])
    }

    /// Every entry, in order of path.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.entries.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// The number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Reads the recorded format (head of this file). Any text gives a tree.
    #[must_use]
    pub fn parse(recorded: &str) -> Self {
        let mut tree = Self::new();
        let mut open: Option<(&str, String)> = None;
        for line in recorded.lines() {
            if let Some(path) = line.strip_prefix("@ ") {
                let path =
                    path.trim_end().trim_start_matches(|c: char| c == '/' || c.is_whitespace());
                if let Some((path, text)) = open.replace((path, String::new())) {
                    tree.insert(path, &text);
                }
            } else if let Some((_, text)) = &mut open {
                text.push_str(line.strip_prefix('@').unwrap_or(line));
                text.push('\n');
            }
        }
        if let Some((path, text)) = open {
            tree.insert(path, &text);
        }
        tree
    }

    /// Writes the recorded format; [`Tree::parse`] reads it back the same.
    #[must_use]
    pub fn record(&self) -> String {
        let mut out = String::new();
        for (path, text) in &self.entries {
            let _ = writeln!(out, "@ {path}");
            if text.is_empty() {
                continue;
            }
            for line in text.split('\n') {
                let escape = if line.starts_with('@') { "@" } else { "" };
                let _ = writeln!(out, "{escape}{line}");
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn small() -> Tree {
        let mut tree = Tree::new();
        tree.insert("/sys/node/node0/meminfo", "Node 0 MemTotal: 4 kB\n@odd\n");
        tree.insert("sys/node/node0/cpulist", "0-3\n");
        tree.insert("sys/node/node10/cpulist", "\n");
        tree.insert("sys/node/online", "0,10\n");
        tree
    }

    #[test]
    fn children_are_listed_once_and_in_order() {
        let tree = small();
        assert_eq!(tree.children("sys/node").collect::<Vec<_>>(), ["node0", "node10", "online"]);
        assert_eq!(tree.children("/sys/node/node0/").count(), 2);
        assert_eq!(tree.children("sys/none").count(), 0);
        assert!(tree.exists("sys/node/node0") && !tree.exists("sys/nod"));
        assert_eq!(tree.children("").collect::<Vec<_>>(), ["sys"]);
    }

    #[test]
    fn a_name_that_is_a_prefix_of_others_is_listed_once() {
        let mut tree = Tree::new();
        for path in ["d/a", "d/a-b", "d/a/c", "d/empty/"] {
            tree.insert(path, "");
        }
        assert_eq!(tree.children("d").collect::<Vec<_>>(), ["a", "a-b", "empty"]);
        assert!(tree.exists("d/empty") && tree.children("d/empty").next().is_none());
    }

    #[test]
    fn a_recording_reads_back_the_same() {
        let tree = small();
        assert_eq!(Tree::parse(&tree.record()), tree);
    }

    proptest! {
        #[test]
        fn a_path_without_slash_or_with_blanks_reads_the_same(path in "[/ ]{0,4}[a-z]{1,3}[/ ]{0,4}") {
            let tree = Tree::parse(&std::format!("@ {path}"));
            prop_assert_eq!(Tree::parse(&tree.record()), tree);
        }

        #[test]
        fn any_text_parses_and_a_recording_of_it_is_stable(text in "(@ ?[a-z/]{0,6}|[ -~]{0,9}|\n){0,40}") {
            let tree = Tree::parse(&text);
            prop_assert_eq!(Tree::parse(&tree.record()), tree);
        }
    }
}
