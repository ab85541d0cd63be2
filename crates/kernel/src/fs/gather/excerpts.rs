//! The parts of two long files of procfs that describe memory: the model of the CPUs, and memory that drivers have added.

use super::Gather;

/// The model of the CPUs, and the bytes of it that are read.
const CPUINFO: &str = "proc/cpuinfo";
const CPUINFO_HEAD: usize = 4096;
/// Physical addresses and the owners of them.
const IOMEM: &str = "proc/iomem";

impl Gather<'_> {
    /// The lines of /proc/cpuinfo that name the first CPU's model: the whole has a part for each CPU.
    pub(super) fn cpu_model(&mut self) {
        const MODEL: [&str; 6] =
            ["vendor_id", "cpu family", "model", "model name", "CPU implementer", "CPU part"];
        let head = self.fs.read_parts(CPUINFO, &[0], CPUINFO_HEAD).ok().flatten();
        let text = match head {
            Some(head) => String::from_utf8_lossy(&head).into_owned(),
            None => self.fs.read(CPUINFO).ok().flatten().unwrap_or_default(),
        };
        let first = text.split("\n\n").next().unwrap_or_default().lines();
        let is_model =
            |line: &&str| line.split_once(':').is_some_and(|(key, _)| MODEL.contains(&key.trim()));
        let model: Vec<&str> = first.filter(is_model).collect();
        if !model.is_empty() {
            self.record(CPUINFO, &(model.join("\n") + "\n"));
        }
    }

    /// The lines of /proc/iomem with memory that a GPU's driver has added. Addresses are zero for other users than root.
    pub(super) fn added_memory(&mut self) {
        let text = self.fs.read(IOMEM).ok().flatten().unwrap_or_default();
        let is_added = |line: &&str| line.ends_with(": System RAM (NVIDIA)");
        let added: Vec<&str> = text.lines().map(str::trim).filter(is_added).collect();
        if !added.is_empty() {
            self.record(IOMEM, &(added.join("\n") + "\n"));
        }
    }

    /// The addresses at which such memory begins.
    pub(super) fn added(&self) -> Vec<u64> {
        let lines = self.tree.text(IOMEM).unwrap_or_default().lines();
        let start = |line: &str| u64::from_str_radix(line.split('-').next()?, 16).ok();
        lines.filter_map(start).filter(|start| *start > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use nearfar_topology::{KnownBy, MemoryKind, NodeId, Topology, Tree};

    use crate::fs::{TreeFs, gather};

    #[test]
    fn memory_that_a_gpus_driver_has_added_is_gathered_with_its_node() {
        let mut tree = Tree::new();
        for (path, text) in [
            ("sys/devices/system/node/online", "0-1"),
            ("sys/devices/system/node/node0/cpulist", "0"),
            (
                "sys/devices/system/node/node0/meminfo",
                "Node 0 MemTotal: 8 kB\nNode 0 MemFree: 4 kB",
            ),
            ("sys/devices/system/node/node1/cpulist", ""),
            (
                "sys/devices/system/node/node1/meminfo",
                "Node 1 MemTotal: 8 kB\nNode 1 MemFree: 4 kB",
            ),
            ("sys/devices/system/memory/block_size_bytes", "8000000"),
            ("sys/devices/system/memory/memory32/node1", "-> ../../node/node1"),
            (
                "proc/iomem",
                "00001000-0009ffff : System RAM\n100000000-107ffffff : System RAM (NVIDIA)\n200000000-207ffffff : System RAM (kmem)",
            ),
            (
                "proc/cpuinfo",
                "processor\t: 0\nmodel name\t: A CPU\nflags\t: fpu\n\nprocessor\t: 1\nmodel name\t: A CPU\n",
            ),
        ] {
            tree.insert(path, text);
        }
        let (gathered, findings) = gather(&TreeFs(tree));
        assert_eq!(findings, []);
        assert_eq!(gathered.text("proc/iomem"), Some("100000000-107ffffff : System RAM (NVIDIA)"));
        assert_eq!(gathered.text("proc/cpuinfo"), Some("model name\t: A CPU"));
        let node = Topology::read(&gathered).0.nodes[&NodeId(1)].clone();
        assert_eq!((node.kind, node.known_by), (MemoryKind::Gpu, KnownBy::Driver));
    }
}
