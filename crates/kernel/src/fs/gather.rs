//! Reads the part of a root that describes the machine into a [`Tree`].
//!
//! The files are given by a list of patterns, not "all of sysfs": a large machine has a link per 128 MiB of memory in
//! every node's directory, and some files do work when read. A `*` in a segment stands for any text; a last segment
//! `**` for everything below, to a small depth. Patterns follow symbolic links as the kernel does, so a CXL device's
//! files appear under `sys/bus/cxl/devices/mem0/`; a link that ends a pattern, or that is met on the way, is also
//! recorded as `-> target`. Everything is bounded: depth, text per file, and number of entries.

use std::collections::BTreeMap;

use nearfar_topology::{Finding, Overrides, Topology, Tree, measured};

use super::{Entry, EntryKind, Fs, FsError};

/// Below a `**`.
const DEPTH_MAX: usize = 5;
/// Longer texts are left out with a finding.
const TEXT_BYTES_MAX: usize = 256 << 10;
/// Further entries are left out with a finding.
const ENTRIES_MAX: usize = 200_000;

/// The part of the machine to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extent {
    /// Nodes with their CPUs, memory and distances, and the evidence for the kind and tier of their memory.
    Ranks,
    /// All that a [`Topology`] has.
    Machine,
    /// Evidence of the kernel's features besides: for a recording.
    Whole,
}

mod excerpts;

/// Nodes, and the evidence for their kinds and tiers: access attributes, the kernel's tiers, and CXL and dax devices'
/// nodes.
const RANKS: &[&str] = &[
    "sys/devices/system/node/online",
    "sys/devices/system/node/has_private_memory",
    "sys/devices/system/node/node*/cpulist",
    "sys/devices/system/node/node*/distance",
    "sys/devices/system/node/node*/meminfo",
    "sys/devices/system/node/node*/access0/initiators/*",
    "sys/devices/system/node/node*/access1/initiators/*",
    "sys/devices/system/cpu/online",
    "sys/devices/system/memory/block_size_bytes",
    "sys/devices/virtual/memory_tiering/memory_tier*/nodelist",
    "sys/bus/cxl/devices/region*/resource",
    "sys/bus/dax/devices/*/target_node",
    "proc/driver/nvidia/gpus/*/numa_status",
    // Figures of a saved probe.
    measured::FILE,
];

/// The product, to which a saved probe belongs.
const PRODUCT: [&str; 2] = ["sys/class/dmi/id/product_name", "sys/class/dmi/id/sys_vendor"];

/// Everything else of a topology. All of it is readable without privilege on an ordinary system.
const MACHINE: &[&str] = &[
    // Other attributes of nodes.
    "sys/devices/system/node/has_*",
    // In place of cpulist, which live kernels have, in some copies.
    "sys/devices/system/node/node*/cpumap",
    "sys/devices/system/node/possible",
    "sys/devices/system/node/node*/memory_side_cache/*/*",
    "sys/devices/system/node/node*/memory_failure/*",
    "sys/devices/system/edac/mc/mc*/mc_name",
    "sys/devices/system/edac/mc/mc*/ce_count",
    "sys/devices/system/edac/mc/mc*/ue_count",
    // CXL, dax and persistent memory. Devices are links; their files are read through them.
    "sys/bus/cxl/devices/*/*",
    "sys/bus/cxl/devices/*/ram/*",
    "sys/bus/cxl/devices/*/pmem/*",
    "sys/bus/cxl/devices/*/dax_region*/*/target_node",
    "sys/bus/dax/devices/*/*",
    "sys/bus/nd/devices/*/size",
    "sys/bus/nd/devices/*/target_node",
    "sys/bus/nd/devices/*/mode",
    "proc/sys/kernel/osrelease",
];

/// What tells of the kernel's features. Patterns that end in a directory without entries record its existence: an empty
/// bus is a feature, too.
const REST: &[&str] = &[
    "sys/devices/system/node/node*/hugepages/*/*",
    "sys/devices/system/cpu/possible",
    "sys/devices/system/cpu/present",
    "sys/devices/system/memory/auto_online_blocks",
    "sys/bus/cxl/*",
    "sys/bus/cxl/drivers/*",
    "sys/bus/dax/*",
    "sys/bus/dax/drivers/*",
    // The kernel's settings.
    "sys/kernel/mm/mempolicy/**",
    "sys/kernel/mm/numa/**",
    "sys/kernel/mm/transparent_hugepage/enabled",
    "sys/kernel/mm/transparent_hugepage/defrag",
    "sys/kernel/mm/hugepages/*/*",
    "proc/sys/kernel/numa_balancing",
    "proc/sys/kernel/perf_event_paranoid",
    "proc/meminfo",
    "proc/vmstat",
    "proc/self/numa_maps",
    "proc/filesystems",
    // The lab's description of its guest: a recording of an emulated machine must not pass for a real one.
    "run/nearfar-lab",
    // Evidence of features: presence and state, no payload.
    "sys/kernel/mm/damon/**",
    "sys/module/damon_*/parameters/enabled",
    "sys/fs/cgroup/cgroup.controllers",
    "sys/fs/resctrl/info/**",
    "sys/bus/event_source/devices/*/type",
    "sys/kernel/mm/page_idle/bitmap",
];

/// Files that are not text, are large, or do work when read.
const NEVER: &[&str] = &["sys/kernel/mm/page_idle/bitmap", "proc/self/numa_maps"];

/// Reads the machine below `fs` into a tree. Unreadable files become findings; absent ones do not.
#[must_use]
pub fn gather(fs: &dyn Fs) -> (Tree, Vec<Finding>) {
    gather_part(fs, Extent::Whole)
}

fn gather_part(fs: &dyn Fs, extent: Extent) -> (Tree, Vec<Finding>) {
    let (tree, listed) = (Tree::new(), BTreeMap::new());
    let mut gather = Gather { fs, tree, listed, findings: Vec::new(), full: false };
    let parts = [(Extent::Ranks, RANKS), (Extent::Machine, MACHINE), (Extent::Whole, REST)];
    for (_, patterns) in parts.iter().filter(|(part, _)| *part <= extent) {
        for pattern in *patterns {
            let segments: Vec<&str> = pattern.split('/').collect();
            gather.matching("", &segments);
        }
    }
    if extent > Extent::Ranks || gather.tree.text(measured::FILE).is_some() {
        PRODUCT.iter().for_each(|file| gather.file(file));
    }
    gather.cpu_model();
    gather.added_memory();
    gather.blocks();
    (gather.tree, gather.findings)
}

/// The topology of the machine below `fs`, with the kinds the user states, and the findings of reading and of
/// interpretation.
#[must_use]
pub fn topology(fs: &dyn Fs, overrides: &Overrides) -> (Topology, Vec<Finding>) {
    let (tree, mut findings) = gather_part(fs, Extent::Machine);
    let (machine, more) = Topology::read_with(&tree, overrides);
    findings.extend(more);
    (machine, findings)
}

/// The requested part of the machine: for a library that reads it in every process. Below [`Extent::Machine`] devices
/// are incomplete.
#[must_use]
pub fn part(fs: &dyn Fs, extent: Extent) -> Topology {
    Topology::read(&gather_part(fs, extent).0).0
}

struct Gather<'a> {
    fs: &'a dyn Fs,
    tree: Tree,
    /// Directories that several patterns use.
    listed: BTreeMap<String, Vec<Entry>>,
    findings: Vec<Finding>,
    full: bool,
}

impl Gather<'_> {
    /// Records the matches of `segments` below the directory `base`.
    fn matching(&mut self, base: &str, segments: &[&str]) {
        let Some((first, rest)) = segments.split_first() else { return };
        if *first == "**" {
            return self.everything(base, DEPTH_MAX);
        }
        if !first.contains('*') && !rest.is_empty() {
            return self.matching(&join(base, first), rest);
        }
        // Directories of memory have an entry per block: they are not listed for a name that is known.
        if !first.contains('*') && self.is_file(&join(base, first)) {
            return;
        }
        for entry in self.list(base) {
            if !glob(first, &entry.name) {
                continue;
            }
            let path = join(base, &entry.name);
            if let EntryKind::Link(target) = &entry.kind {
                self.record(&path, &format!("-> {target}"));
            }
            if !rest.is_empty() {
                self.matching(&path, rest);
            } else if entry.kind == EntryKind::File {
                self.file(&path);
            } else if entry.kind == EntryKind::Directory {
                self.empty_directory(&path);
            }
        }
    }

    /// Records the file at `path`; false if its directory must be listed instead.
    fn is_file(&mut self, path: &str) -> bool {
        if NEVER.contains(&path) {
            return false;
        }
        let read = self.fs.read(path);
        match read {
            Err(FsError::NotAFile { .. }) => false,
            read => {
                self.text(path, read);
                true
            }
        }
    }

    /// Records everything below `path`, without following links.
    fn everything(&mut self, path: &str, depth: usize) {
        self.empty_directory(path);
        for Entry { name, kind } in self.list(path) {
            let below = join(path, &name);
            match kind {
                EntryKind::File => self.file(&below),
                EntryKind::Link(target) => self.record(&below, &format!("-> {target}")),
                EntryKind::Directory if depth > 1 => self.everything(&below, depth - 1),
                EntryKind::Directory | EntryKind::Other => {}
            }
        }
    }

    fn empty_directory(&mut self, path: &str) {
        if self.fs.list(path).is_ok_and(|listed| listed.is_some_and(|entries| entries.is_empty())) {
            self.record(&format!("{path}/"), "");
        }
    }

    /// The nodes of the first memory blocks of CXL regions and of memory that drivers have added: this ties memory
    /// without a dax device to its node.
    fn blocks(&mut self) {
        let memory = "sys/devices/system/memory";
        let block = self.tree.text(&format!("{memory}/block_size_bytes"));
        let Some(block) = block.and_then(|text| u64::from_str_radix(text, 16).ok()) else { return };
        let cxl = "sys/bus/cxl/devices";
        let regions: Vec<u64> = self
            .tree
            .children(cxl)
            .filter(|name| name.starts_with("region"))
            .filter_map(|name| self.tree.number(&format!("{cxl}/{name}/resource")))
            .collect();
        let added = self.added();
        for start in regions.into_iter().chain(added) {
            if let Some(index) = start.checked_div(block) {
                let base = format!("{memory}/memory{index}");
                self.matching(&base, &["node*"]);
            }
        }
    }

    fn list(&mut self, path: &str) -> Vec<Entry> {
        if let Some(listed) = self.listed.get(path) {
            return listed.clone();
        }
        let listed = self.fs.list(path);
        let listed = self.noted(path, listed).unwrap_or_default();
        self.listed.insert(path.to_string(), listed.clone());
        listed
    }

    fn file(&mut self, path: &str) {
        if NEVER.contains(&path) {
            return self.record(path, "");
        }
        let read = self.fs.read(path);
        self.text(path, read);
    }

    fn text(&mut self, path: &str, read: Result<Option<String>, FsError>) {
        match self.noted(path, read) {
            Some(text) if text.len() > TEXT_BYTES_MAX => {
                self.note(path, format!("{} bytes are more than expected; left out", text.len()));
            }
            Some(text) => match text.trim_end_matches('\0') {
                // Devices have files that are no text at all.
                text if text.contains('\0') => {
                    if path.starts_with("sys/devices/system/") {
                        self.note(path, "has bytes of zero within its text; left out".to_owned());
                    }
                }
                text => self.record(path, text),
            },
            None => {}
        }
    }

    fn record(&mut self, path: &str, text: &str) {
        if self.tree.len() < ENTRIES_MAX {
            self.tree.insert(path, text);
        } else if !self.full {
            self.full = true;
            self.note(path, format!("more than {ENTRIES_MAX} entries; the rest is left out"));
        }
    }

    /// Turns an error into a finding, except for attributes that exist but have no value now or for this user: those
    /// are recorded without text, so that their presence is visible.
    fn noted<T>(&mut self, path: &str, result: Result<Option<T>, FsError>) -> Option<T> {
        match result {
            Ok(value) => value,
            Err(error) if has_no_value(&error) => {
                self.record(path, "");
                None
            }
            Err(error) => {
                self.note(path, error.to_string());
                None
            }
        }
    }

    fn note(&mut self, path: &str, message: String) {
        self.findings.push(Finding { path: path.to_string(), message });
    }
}

/// ENXIO, ENODEV and similar errnos mean that an attribute of the device type has no value at present; a file only root
/// may read counts the same for an ordinary user.
fn has_no_value(error: &FsError) -> bool {
    use rustix::io::Errno;
    let absent =
        [Errno::NXIO, Errno::NODEV, Errno::OPNOTSUPP, Errno::IO, Errno::INVAL, Errno::BUSY];
    error.is_permission() || absent.iter().any(|errno| Some(errno.raw_os_error()) == error.errno())
}

fn join(base: &str, name: &str) -> String {
    if base.is_empty() { name.to_string() } else { format!("{base}/{name}") }
}

/// Whether `name` matches `pattern`, in which each `*` stands for any text.
fn glob(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, tail)) => name.strip_prefix(head).is_some_and(|rest| {
            (0..=rest.len()).any(|at| rest.is_char_boundary(at) && glob(tail, &rest[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::{RootFs, TreeFs, plant};
    use nearfar_topology::NodeId;

    const MACHINE: &str = "\
@ sys/devices/system/node/online
0
@ sys/devices/system/node/node0/meminfo
Node 0 MemTotal: 4 kB
@ sys/devices/system/node/node0/memory7
-> ../../memory/memory7
@ sys/devices/system/memory/block_size_bytes
8000000
@ sys/devices/system/memory/memory32/node1
-> ../../node/node1
@ sys/devices/system/memory/memory33/node0
-> ../../node/node0
@ sys/devices/platform/root0/mem0/ram/size
0x10000000
@ sys/devices/platform/root0/mem0/serial
0x17
@ sys/bus/cxl/devices/mem0
-> ../../../devices/platform/root0/mem0
@ sys/bus/cxl/devices/region0/resource
0x100000000
@ sys/kernel/mm/mempolicy/weighted_interleave/node0
1
";

    #[test]
    fn files_behind_links_are_read_and_the_links_recorded() {
        let dir = tempfile::tempdir().unwrap();
        plant(&Tree::parse(MACHINE), dir.path()).unwrap();
        let (tree, findings) = gather(&RootFs::new(dir.path()).unwrap());
        assert_eq!(findings, []);
        let cxl = "sys/bus/cxl/devices";
        assert_eq!(tree.link(&format!("{cxl}/mem0")), Some("../../../devices/platform/root0/mem0"));
        assert_eq!(tree.number(&format!("{cxl}/mem0/serial")), Some(0x17));
        assert_eq!(tree.number(&format!("{cxl}/mem0/ram/size")), Some(1 << 28));
        assert_eq!(tree.text("sys/kernel/mm/mempolicy/weighted_interleave/node0"), Some("1"));
    }

    #[test]
    fn only_memory_blocks_at_region_starts_are_read() {
        let (tree, _) = gather(&TreeFs(Tree::parse(MACHINE)));
        assert!(tree.exists("sys/devices/system/memory/memory32/node1"));
        assert!(!tree.exists("sys/devices/system/memory/memory33"));
        assert!(!tree.exists("sys/devices/system/node/node0/memory7"));
    }

    #[test]
    fn gathering_a_recording_reproduces_it() {
        let dir = tempfile::tempdir().unwrap();
        plant(&Tree::parse(MACHINE), dir.path()).unwrap();
        let (once, _) = gather(&RootFs::new(dir.path()).unwrap());
        let (twice, _) = gather(&TreeFs(once.clone()));
        assert_eq!(once, twice);
    }

    /// Recorded machines, all of them.
    fn recorded() -> Vec<TreeFs> {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/machines");
        let paths = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        let trees = paths.filter(|path| path.extension().is_some_and(|end| end == "tree"));
        let read = |path| TreeFs(Tree::parse(&std::fs::read_to_string(path).unwrap()));
        trees.map(read).collect()
    }

    #[test]
    fn node_ranks_need_only_a_partial_gather() {
        assert!(recorded().len() > 5);
        for mut fs in recorded() {
            let machine = part(&fs, Extent::Whole);
            let figures = |id: NodeId| format!("node {id} {} 1000\n", 900 - id.0.min(800));
            let figures: String = machine.memory_nodes().iter().map(figures).collect();
            fs.0.insert(measured::FILE, &format!("machine {}\n{figures}", machine.fingerprint()));
            let (whole, ranks) = (part(&fs, Extent::Whole), part(&fs, Extent::Ranks));
            assert!(whole.nodes.values().any(|node| node.measured.is_some()));
            assert_eq!(part(&fs, Extent::Machine), whole);
            assert_eq!(ranks.nodes, whole.nodes);
            assert_eq!(ranks.tiers, whole.tiers);
            assert_eq!(ranks.distances, whole.distances);
        }
    }

    #[test]
    fn node_directories_with_memory_block_links_are_not_listed() {
        let dir = tempfile::tempdir().unwrap();
        plant(&Tree::parse(MACHINE), dir.path()).unwrap();
        let root = RootFs::new(dir.path()).unwrap();
        let counting = Counting { root, listed: std::cell::RefCell::default() };
        let _ = gather(&counting);
        let listed = counting.listed.into_inner();
        assert!(listed.iter().any(|path| path == "sys/devices/system/node"), "{listed:?}");
        assert!(!listed.iter().any(|path| path == "sys/devices/system/node/node0"), "{listed:?}");
    }

    /// A root that counts which directories were listed.
    struct Counting {
        root: RootFs,
        listed: std::cell::RefCell<Vec<String>>,
    }

    impl Fs for Counting {
        fn read(&self, path: &str) -> Result<Option<String>, FsError> {
            self.root.read(path)
        }

        fn write(&self, path: &str, text: &str) -> Result<(), FsError> {
            self.root.write(path, text)
        }

        fn list(&self, path: &str) -> Result<Option<Vec<Entry>>, FsError> {
            self.listed.borrow_mut().push(path.to_string());
            self.root.list(path)
        }
    }

    #[test]
    fn a_bus_without_devices_is_recorded_as_there() {
        let mut machine = Tree::parse(MACHINE);
        machine.insert("sys/bus/dax/devices/", "");
        let (tree, _) = gather(&TreeFs(machine));
        assert!(tree.exists("sys/bus/dax") && tree.exists("sys/bus/dax/devices"));
    }

    #[test]
    fn an_unreasonably_long_file_is_left_out_with_a_finding() {
        let mut tree = Tree::new();
        tree.insert("proc/meminfo", &"x".repeat(TEXT_BYTES_MAX + 1));
        let (tree, findings) = gather(&TreeFs(tree));
        assert!(!tree.exists("proc/meminfo"));
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].path, "proc/meminfo");
    }

    #[test]
    fn asterisks_match_any_text() {
        for (pattern, name, fits) in [
            ("node*", "node0", true),
            ("node*", "nod", false),
            ("*", "", true),
            ("a*c", "abc", true),
            ("a*c", "abd", false),
            ("*b*", "abc", true),
            ("x", "x", true),
        ] {
            assert_eq!(glob(pattern, name), fits, "{pattern} {name}");
        }
    }
}
