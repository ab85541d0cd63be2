//! An emulated machine as described by a TOML file: nodes, latencies, bandwidths, links, the processor.
//!
//! Here: the type and values derived from it (CPU numbers, physical ranges, distances). [`mod@file`] reads and checks
//! the file, [`catalog`] holds the built-in machines, [`report`] prints, [`timing`] writes the plugin's settings. All
//! values are the real machine's; only one field holds the slow-motion factor, which is not applied here.

use nearfar_timing::config::Processor;
use nearfar_topology::{Bytes, Curves, MemoryKind};

pub mod catalog;
pub mod file;
pub mod report;
pub mod timing;

pub use catalog::MachineError;

/// A machine description; every value has been checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// The real machine it models, in a sentence.
    pub description: String,
    /// Sources of the values.
    pub sources: Vec<String>,
    /// Slow-motion factor where guest clocks can't show modelled time.
    pub slow_motion: f64,
    /// How long a CPU keeps address translations at most, milliseconds; 0: no limit beyond the emulator's.
    pub translations_ms: u32,
    /// Nodes; the index is the guest's node id.
    pub nodes: Vec<Node>,
    /// Unloaded latency of a dependent load, a row for each node with CPUs, a column for each node.
    pub latency_ns: Vec<Vec<f64>>,
    /// Interconnect links, each one direction.
    pub links: Vec<Link>,
    /// Limits and routes between CPU nodes and memory nodes, if any.
    pub paths: Vec<Path>,
    /// The processor.
    pub processor: Processor,
    /// Parameters needed only to simulate its traffic, where the simulation has been calibrated. Not used by the lab.
    pub traffic: Option<Traffic>,
}

/// Costs of traffic beyond latencies and capacities, for simulators.
#[derive(Clone, Copy, Debug, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Traffic {
    /// Clock rate, in cycles per nanosecond.
    pub clock_ghz: f64,
    /// Latency that concurrent operation adds to every access.
    pub concurrent_ns: f64,
    /// Coherence probes of an access, in lines, spread evenly over all links.
    pub coherence_lines: f64,
}

/// A node of the machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The type of its memory.
    pub kind: MemoryKind,
    /// Number of its CPUs.
    pub cpus: u32,
    /// Its memory.
    pub size: Bytes,
    /// Read capacity, 10^9 bytes per second.
    pub read_gbps: f64,
    /// Write capacity; with curves, that of the most writes that were measured.
    pub write_gbps: f64,
    /// Whether reads and writes have separate capacities.
    pub duplex: bool,
    /// Measured loaded latency and peak bandwidth, instead of the three capacities and the processor's formula.
    pub curves: Option<Curves>,
    /// A CXL memory device that the guest's driver brings up, instead of memory that firmware reports.
    pub cxl_device: Option<CxlDevice>,
}

/// A CXL type-3 device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CxlDevice {
    /// Its serial number.
    pub serial: u64,
    /// Consecutive bytes on one device of an interleaved region.
    pub granularity: u32,
    /// Whether it is left in no region, so that its memory is on no node.
    pub idle: bool,
}

/// One direction of an interconnect link.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Its name, such as `0>1`.
    pub name: String,
    /// Capacity, 10^9 bytes per second.
    pub gbps: f64,
}

/// From the CPUs of one node to the memory of another.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    /// The node with the CPUs.
    pub from: u16,
    /// The node with the memory.
    pub to: u16,
    /// The most bandwidth between these CPUs and that memory.
    pub gbps_max: Option<f64>,
    /// The same as measured, with the loaded latency.
    pub curves: Option<Curves>,
    /// Links crossed by reads, as indices of [`Machine::links`].
    pub read_links: Vec<u16>,
    /// Links crossed by writes.
    pub write_links: Vec<u16>,
}

impl Path {
    /// The most bandwidth of reads alone.
    #[must_use]
    pub fn reads_gbps(&self) -> Option<f64> {
        self.gbps_max.or_else(|| self.curves.as_ref().map(|curves| curves.peak_gbps(1.0)))
    }
}

/// A range of guest-physical addresses, `start` included, `end` not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// Its node.
    pub node: u16,
}

/// Start of the RAM above the hole for devices.
const HIGH: u64 = 4 << 30;
/// QEMU's q35 board puts this much RAM below the hole if all of it fits there, else 2 GiB (hw/i386/pc_q35.c).
const LOW_IF_ALL_FITS: u64 = 0xb000_0000;
const LOW_ELSE: u64 = 2 << 30;

impl Machine {
    /// Nodes that have CPUs, in order: the rows of the latency matrix.
    pub fn cpu_nodes(&self) -> impl Iterator<Item = u16> + '_ {
        (0u16..).zip(&self.nodes).filter(|(_, node)| node.cpus > 0).map(|(id, _)| id)
    }

    /// Total number of CPUs.
    #[must_use]
    pub fn cpus(&self) -> u32 {
        self.nodes.iter().map(|node| node.cpus).sum()
    }

    /// The node of each CPU, by number: a node's CPUs are numbered consecutively.
    #[must_use]
    pub fn node_of_cpu(&self) -> Vec<u16> {
        (0u16..).zip(&self.nodes).flat_map(|(id, node)| (0..node.cpus).map(move |_| id)).collect()
    }

    /// The same machine with `cpus` CPUs, spread evenly over the nodes that have some; `None` if that is not possible.
    #[must_use]
    pub fn with_cpus(mut self, cpus: u32) -> Option<Self> {
        let share = u32::try_from(self.cpu_nodes().count()).ok().filter(|nodes| cpus >= *nodes)?;
        let mut more = cpus % share;
        for node in self.nodes.iter_mut().filter(|node| node.cpus > 0) {
            node.cpus = cpus / share + u32::from(more > 0);
            more = more.saturating_sub(1);
        }
        Some(self)
    }

    /// Memory that firmware reports, in bytes: the machine's RAM in QEMU's terms.
    #[must_use]
    pub fn ram(&self) -> u64 {
        self.nodes.iter().filter(|node| node.cxl_device.is_none()).map(|node| node.size.0).sum()
    }

    /// The range of each node's memory in the guest's physical address space. CXL devices are not included: the driver
    /// chooses their addresses.
    #[must_use]
    pub fn ranges(&self) -> Vec<Range> {
        let low = if self.ram() < LOW_IF_ALL_FITS { LOW_IF_ALL_FITS } else { LOW_ELSE };
        let mut ranges = Vec::new();
        let mut at = 0;
        for (node, spec) in (0u16..).zip(&self.nodes) {
            let mut left = if spec.cxl_device.is_none() { spec.size.0 } else { 0 };
            while left > 0 {
                let room = if at < low { low - at } else { left };
                let taken = left.min(room);
                ranges.push(Range { start: at, end: at + taken, node });
                left -= taken;
                at += taken;
                if at == low {
                    at = HIGH;
                }
            }
        }
        ranges
    }

    /// Nodes whose accesses are timed: all but those of CXL devices.
    pub fn modelled_nodes(&self) -> impl Iterator<Item = u16> + '_ {
        let nodes = (0u16..).zip(&self.nodes);
        nodes.filter(|(_, node)| node.cxl_device.is_none()).map(|(id, _)| id)
    }

    /// The limits and routes from the CPUs of `from` to the memory of `to`, if the machine has any.
    #[must_use]
    pub fn path(&self, from: u16, to: u16) -> Option<&Path> {
        self.paths.iter().find(|path| (path.from, path.to) == (from, to))
    }

    /// Unloaded latency from the CPUs of `from`; `None` if it has no CPUs.
    #[must_use]
    pub fn latency(&self, from: u16, to: u16) -> Option<f64> {
        let row = self.cpu_nodes().position(|node| node == from)?;
        self.latency_ns.get(row)?.get(usize::from(to)).copied()
    }

    /// Unloaded latency from the nearest CPUs.
    #[must_use]
    pub fn latency_nearest(&self, to: u16) -> f64 {
        self.latency_ns
            .iter()
            .filter_map(|row| row.get(usize::from(to)))
            .copied()
            .fold(f64::INFINITY, f64::min)
    }

    /// The node whose CPUs are nearest to `to`: itself if it has some.
    #[must_use]
    pub fn initiator(&self, to: u16) -> u16 {
        if self.nodes.get(usize::from(to)).is_some_and(|node| node.cpus > 0) {
            return to;
        }
        let nearest = self.latency_nearest(to);
        self.cpu_nodes().find(|from| self.latency(*from, to) == Some(nearest)).unwrap_or_default()
    }

    /// The distance firmware reports: 10 within a node, proportional to latency elsewhere.
    #[must_use]
    pub fn distance(&self, from: u16, to: u16) -> u8 {
        if from == to {
            return 10;
        }
        match (self.ratio(from, to), self.ratio(to, from)) {
            (Some(ratio), _) | (None, Some(ratio)) => tenths(ratio),
            // Between two nodes without CPUs: from the first to its nearest CPUs, and from those to the second.
            (None, None) => {
                let by = self.initiator(from);
                let there = self.ratio(by, from).unwrap_or(1.0);
                tenths(there + self.ratio(by, to).unwrap_or(1.0) - 1.0)
            }
        }
    }

    fn ratio(&self, from: u16, to: u16) -> Option<f64> {
        Some(self.latency(from, to)? / self.latency(from, from)?)
    }
}

/// Converts to firmware's unit, within the values allowed for a remote node.
fn tenths(ratio: f64) -> u8 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to 11..=254"
    )]
    let distance = (ratio * 10.0).round().clamp(11.0, 254.0) as u8;
    distance
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn built_in(name: &str) -> Machine {
        catalog::built_in(name).unwrap()
    }

    #[test]
    fn memory_beyond_the_pci_hole_continues_above_four_gib() {
        let ranges = built_in("cxl-2tier").ranges();
        assert_eq!(
            ranges,
            [
                Range { start: 0, end: 2 << 30, node: 0 },
                Range { start: 4 << 30, end: 8 << 30, node: 1 }
            ]
        );
    }

    #[test]
    fn a_machine_below_the_pci_hole_has_one_address_range() {
        let mut machine = built_in("cxl-2tier");
        machine.nodes[0].size = Bytes(1 << 30);
        machine.nodes[1].size = Bytes(1 << 30);
        let ends: Vec<u64> = machine.ranges().iter().map(|range| range.end).collect();
        assert_eq!(ends, [1 << 30, 2 << 30]);
    }

    #[test]
    fn a_node_across_the_pci_hole_has_two_address_ranges() {
        let mut machine = built_in("cxl-2tier");
        machine.nodes[0].size = Bytes(3 << 30);
        let ranges = machine.ranges();
        assert_eq!(ranges[0], Range { start: 0, end: 2 << 30, node: 0 });
        assert_eq!(ranges[1], Range { start: 4 << 30, end: 5 << 30, node: 0 });
        assert_eq!(ranges[2].start, 5 << 30);
    }

    #[test]
    fn distances_are_proportional_to_latencies() {
        let machine = built_in("numa-4node");
        assert_eq!(
            (machine.distance(0, 0), machine.distance(0, 1), machine.distance(0, 3)),
            (10, 13, 15)
        );
        let machine = built_in("cxl-2tier");
        assert_eq!((machine.distance(0, 1), machine.distance(1, 0)), (22, 22));
    }

    #[test]
    fn cpus_are_divided_among_the_nodes_with_cpus() {
        let machine = built_in("numa-4node").with_cpus(6).unwrap();
        assert_eq!(machine.node_of_cpu(), [0, 0, 1, 1, 2, 3]);
        assert!(built_in("numa-4node").with_cpus(3).is_none());
        assert_eq!(built_in("cxl-2tier").with_cpus(1).unwrap().node_of_cpu(), [0]);
    }

    proptest! {
        #[test]
        fn ranges_cover_every_byte_once_and_exclude_the_pci_hole(sizes in proptest::collection::vec(1u64..40, 1..6)) {
            let mut machine = built_in("cxl-2tier");
            let node = machine.nodes[0].clone();
            machine.nodes =
                sizes.iter().map(|size| Node { size: Bytes(size << 27), ..node.clone() }).collect();
            let ranges = machine.ranges();
            for (id, size) in (0u16..).zip(&sizes) {
                let own = ranges.iter().filter(|range| range.node == id);
                prop_assert_eq!(own.map(|range| range.end - range.start).sum::<u64>(), size << 27);
            }
            for pair in ranges.windows(2) {
                prop_assert!(pair[0].end <= pair[1].start);
            }
            for range in ranges {
                prop_assert!(range.end <= LOW_IF_ALL_FITS || range.start >= HIGH);
            }
        }
    }
}
