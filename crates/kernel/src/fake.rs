//! A fake system for tests: files in memory, the kernel's reactions to writes, and a log of them.
//!
//! Reactions here: DAMON (in `fake/damon.rs`), and weighted interleave (a weight outside 1..=255 gives EINVAL, but
//! kernels without `auto` take 0 for 1; writing one turns `auto` off; turning `auto` on restores the automatic
//! weights). Each reaction has a lab test that shows a real kernel does the same. Not here: permissions and races. To
//! have a write refused, see [`FakeFs::refuse`]; to die at one, `crash_at_write`.

#[cfg(test)]
pub mod crash_at_write;
mod damon;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use nearfar_topology::Tree;
use rustix::io::Errno;

use crate::fs::{Entry, Fs, FsError, TreeFs};
use crate::weights::AUTO;

pub use damon::Damon;

const INTERLEAVE: &str = "sys/kernel/mm/mempolicy/weighted_interleave/";

/// Files in memory that react to writes as a kernel does.
#[derive(Debug, Default)]
pub struct FakeFs {
    tree: RefCell<Tree>,
    /// Automatic weights, by path.
    automatic: BTreeMap<String, String>,
    refused: RefCell<BTreeMap<String, i32>>,
    log: RefCell<Vec<(String, String)>>,
    damon: Option<Damon>,
}

impl FakeFs {
    /// A system with the files of `tree`.
    #[must_use]
    pub fn new(tree: Tree) -> Self {
        let weights =
            tree.iter().filter(|(path, _)| path.starts_with(&format!("{INTERLEAVE}node")));
        let automatic = weights.map(|(path, text)| (path.to_string(), text.to_string())).collect();
        Self { tree: RefCell::new(tree), automatic, ..Self::default() }
    }

    /// A machine with weighted interleave over nodes with these weights; `auto` as on Linux 6.16 and later.
    #[must_use]
    pub fn interleaving(weights: &[(u16, u8)], auto: Option<bool>) -> Self {
        let mut tree = Tree::new();
        for (node, weight) in weights {
            tree.insert(&format!("{INTERLEAVE}node{node}"), &weight.to_string());
        }
        if let Some(auto) = auto {
            tree.insert(AUTO[0], if auto { "true" } else { "false" });
        }
        Self::new(tree)
    }

    /// The same with automatic weights, and their switch at `path`.
    #[must_use]
    pub fn automatic(weights: &[(u16, u8)], path: &str) -> Self {
        let mut tree = Self::interleaving(weights, None).tree();
        tree.insert(path, "true");
        Self::new(tree)
    }

    /// A machine with the DAMON of `kernel`, unused; with [`Damon::Linux7_2`] `damon_stat` holds it.
    #[must_use]
    pub fn damon(kernel: Damon) -> Self {
        Self::with_damon(kernel, kernel.fresh())
    }

    /// The same with the files of `tree`.
    #[must_use]
    pub fn with_damon(kernel: Damon, tree: Tree) -> Self {
        Self { damon: Some(kernel), ..Self::new(tree) }
    }

    /// All files in their present state.
    #[must_use]
    pub fn tree(&self) -> Tree {
        self.tree.borrow().clone()
    }

    /// Adds files as another process would: without reaction or log.
    pub fn plant(&self, files: &[(String, &str)]) {
        let mut tree = self.tree.borrow_mut();
        files.iter().for_each(|(path, text)| tree.insert(path, text));
    }

    /// From now on, writes to `path` fail with `errno`.
    pub fn refuse(&self, path: &str, errno: Errno) {
        self.refused.borrow_mut().insert(path.into(), errno.raw_os_error());
    }

    /// Writes to `path` succeed again.
    pub fn relent(&self, path: &str) {
        self.refused.borrow_mut().remove(path);
    }

    /// Writes `text` to `path` as another process would: without reaction or log.
    pub fn meddle(&self, path: &str, text: &str) {
        self.tree.borrow_mut().insert(path, text);
    }

    /// The present contents of `path`, trimmed.
    #[must_use]
    pub fn value(&self, path: &str) -> Option<String> {
        self.tree.borrow().text(path).map(str::to_string)
    }

    /// All successful writes so far, oldest first.
    #[must_use]
    pub fn writes(&self) -> Vec<(String, String)> {
        self.log.borrow().clone()
    }

    fn react(&self, path: &str, text: &str) -> Result<(), Errno> {
        let mut tree = self.tree.borrow_mut();
        tree.text(path).ok_or(Errno::NOENT)?;
        if let Some(kernel) = self.damon.filter(|_| damon::is_its(path)) {
            return kernel.react(&mut tree, path, text);
        }
        if AUTO.contains(&path) {
            let on = match text {
                "true" | "Y" | "1" => true,
                "false" | "N" | "0" => false,
                _ => return Err(Errno::INVAL),
            };
            tree.insert(path, if on { "true" } else { "false" });
            for (node, weight) in self.automatic.iter().filter(|_| on) {
                tree.insert(node, weight);
            }
            return Ok(());
        }
        if path.starts_with(INTERLEAVE) {
            let weight: u8 = text.parse().map_err(|_| Errno::INVAL)?;
            match (weight, AUTO.into_iter().find(|auto| tree.exists(auto))) {
                (0, Some(_)) => return Err(Errno::INVAL),
                (0, None) => tree.insert(path, "1"),
                (_, Some(auto)) => {
                    tree.insert(auto, "false");
                    tree.insert(path, text);
                }
                (_, None) => tree.insert(path, text),
            }
            return Ok(());
        }
        tree.insert(path, text);
        Ok(())
    }
}

impl Fs for FakeFs {
    fn read(&self, path: &str) -> Result<Option<String>, FsError> {
        let tree = self.tree.borrow();
        Ok(tree.text(path).filter(|_| tree.link(path).is_none()).map(|text| format!("{text}\n")))
    }

    fn write(&self, path: &str, text: &str) -> Result<(), FsError> {
        let text = text.trim();
        let refused = self.refused.borrow().get(path).copied();
        let reaction = match refused {
            Some(errno) => Err(Errno::from_raw_os_error(errno)),
            None => self.react(path, text),
        };
        reaction.map_err(|errno| FsError::Write {
            text: text.into(),
            path: PathBuf::from("/").join(path),
            source: io::Error::from(errno),
        })?;
        self.log.borrow_mut().push((path.into(), text.into()));
        Ok(())
    }

    fn list(&self, path: &str) -> Result<Option<Vec<Entry>>, FsError> {
        TreeFs(self.tree.borrow().clone()).list(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_react_as_each_kernel_does() {
        let (old, new) =
            (FakeFs::interleaving(&[(0, 5)], None), FakeFs::interleaving(&[(0, 5)], Some(true)));
        let file = format!("{INTERLEAVE}node0");
        old.write(&file, "0").unwrap();
        assert_eq!(old.value(&file).as_deref(), Some("1"));
        for (fs, text) in [(&old, "256"), (&new, "256"), (&new, "0"), (&new, "x")] {
            assert!(fs.write(&file, text).is_err(), "{text}");
        }
        new.write(&file, "9").unwrap();
        assert_eq!(new.value(&format!("{INTERLEAVE}auto")).as_deref(), Some("false"));
        new.write(&format!("{INTERLEAVE}auto"), "true").unwrap();
        assert_eq!(new.value(&file).as_deref(), Some("5"));
    }
}
