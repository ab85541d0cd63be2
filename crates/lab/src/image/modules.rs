//! Resolves the dependencies of kernel modules, in load order, from depmod's `modules.dep`.
//!
//! A line of it is `FILE: FILE FILE ...`: a module and everything it needs. Built-in modules are listed in
//! `modules.builtin` and need no file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::{ImageError, unpack};
use crate::fetch::{Busybox, Kernel};

/// A kernel's modules.
#[derive(Debug)]
pub(super) struct Index {
    kernel: String,
    dir: PathBuf,
    /// By name: the file and its dependencies.
    files: BTreeMap<String, (String, Vec<String>)>,
    builtin: BTreeSet<String>,
}

impl Index {
    /// Reads the index of a kernel.
    pub(super) fn read(kernel: &Kernel) -> Result<Self, ImageError> {
        let path = kernel.modules.join("modules.dep");
        let dep = fs::read_to_string(&path).map_err(|source| ImageError::Read { path, source })?;
        let builtin =
            fs::read_to_string(kernel.modules.join("modules.builtin")).unwrap_or_default();
        Ok(Self {
            kernel: kernel.version.clone(),
            dir: kernel.modules.clone(),
            files: parse(&dep),
            builtin: builtin.lines().map(name).collect(),
        })
    }

    /// Whether there is a module file of that name.
    pub(super) fn has(&self, module: &str) -> bool {
        self.files.contains_key(module)
    }

    /// The files of `wanted` with their dependencies, each once, dependencies first.
    pub(super) fn in_order(&self, wanted: &[&str]) -> Result<Vec<String>, ImageError> {
        let mut order = Vec::new();
        for module in wanted {
            self.visit(module, &mut order, &mut BTreeSet::new())?;
        }
        Ok(order)
    }

    fn visit(
        &self,
        module: &str,
        order: &mut Vec<String>,
        above: &mut BTreeSet<String>,
    ) -> Result<(), ImageError> {
        let Some((file, needs)) = self.files.get(module) else {
            if self.builtin.contains(module) {
                return Ok(());
            }
            return Err(ImageError::NoModule {
                kernel: self.kernel.clone(),
                module: module.to_owned(),
                dir: self.dir.clone(),
            });
        };
        // A cycle would mean a broken index; the second visit ends it.
        if order.contains(file) || !above.insert(module.to_owned()) {
            return Ok(());
        }
        for need in needs {
            self.visit(&name(need), order, above)?;
        }
        order.push(file.clone());
        Ok(())
    }
}

fn parse(dep: &str) -> BTreeMap<String, (String, Vec<String>)> {
    dep.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(file, needs)| {
            let needs = needs.split_whitespace().map(str::to_owned).collect();
            (name(file), (file.trim().to_owned(), needs))
        })
        .collect()
}

/// A module's name: its file's, without directory and endings, with underscores.
pub(super) fn name(file: &str) -> String {
    let base = file.trim().rsplit('/').next().unwrap_or_default();
    base.split(".ko").next().unwrap_or_default().replace('-', "_")
}

/// A module's content, unpacked if it is compressed.
pub(super) fn unpacked(
    path: &Path,
    read: &dyn Fn(&Path) -> Result<Vec<u8>, ImageError>,
    busybox: &Busybox,
) -> Result<Vec<u8>, ImageError> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => unpack(busybox, "unxz", path),
        Some("gz") => unpack(busybox, "gunzip", path),
        Some("ko") => read(path),
        other => Err(ImageError::Unpack {
            path: path.to_owned(),
            found: format!(
                "compressed as {}, which is not xz or gzip",
                other.unwrap_or("nothing known")
            ),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn index(dep: &str, builtin: &str) -> Index {
        Index {
            kernel: "6.1".to_owned(),
            dir: PathBuf::from("/m"),
            files: parse(dep),
            builtin: builtin.lines().map(name).collect(),
        }
    }

    #[test]
    fn each_dependency_is_loaded_once_before_its_dependents() {
        let index = index(
            "kernel/fs/9p/9p.ko.xz: kernel/net/9p/9pnet.ko.xz kernel/fs/netfs/netfs.ko.xz\n\
             kernel/net/9p/9pnet.ko.xz: kernel/fs/netfs/netfs.ko.xz\nkernel/fs/netfs/netfs.ko.xz:\n\
             kernel/net/9p/9pnet-virtio.ko.xz: kernel/net/9p/9pnet.ko.xz\n",
            "kernel/fs/overlayfs/overlay.ko\n",
        );
        let order = index.in_order(&["9pnet_virtio", "9p", "overlay"]).unwrap();
        let names: Vec<String> = order.iter().map(|file| name(file)).collect();
        assert_eq!(names, ["netfs", "9pnet", "9pnet_virtio", "9p"]);
    }

    #[test]
    fn a_missing_module_is_named_with_the_kernel() {
        let error = index("", "").in_order(&["9p"]).unwrap_err().to_string();
        assert!(error.contains("6.1") && error.contains("9p") && error.contains("/m"), "{error}");
    }

    proptest! {
        #[test]
        fn any_index_yields_dependencies_first_unless_they_are_circular(
            needs in proptest::collection::vec(proptest::collection::vec(0usize..8, 0..4), 8),
        ) {
            let dep: String = needs
                .iter()
                .enumerate()
                .map(|(id, needs)| {
                    let needs: Vec<String> = needs.iter().map(|n| format!("k/m{n}.ko")).collect();
                    format!("k/m{id}.ko: {}\n", needs.join(" "))
                })
                .collect();
            let order = index(&dep, "").in_order(&["m0"]).unwrap();
            let acyclic = needs.iter().enumerate().all(|(id, needs)| needs.iter().all(|n| *n > id));
            let at = |id: usize| order.iter().position(|file| *file == format!("k/m{id}.ko"));
            for (id, needs) in needs.iter().enumerate() {
                if let (true, Some(own)) = (acyclic, at(id)) {
                    prop_assert!(needs.iter().all(|need| at(*need).unwrap() < own));
                }
            }
        }
    }
}
