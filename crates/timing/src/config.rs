//! The settings of the timing plugin: one JSON file, written by the lab, read by the plugin.
//!
//! Values are the real machine's; with [`Clock::Wait`] the whole machine runs `slow_motion` times slower. Nodes are
//! identified by their guest node id, vCPUs by index.
//!
//! The clock in force is known before the guest runs: the plugin determines it when the first vCPU is created, writes
//! the statistics file at once (`"clock"`, `"slow_motion"`, `"complete": false`, all counts zero), and again when QEMU
//! ends. So `qemu-system-x86_64 -machine q35 -accel tcg,thread=multi -nodefaults -display none -S -plugin
//! libnearfar_lab_plugin.so,config=FILE` shows the abilities of a QEMU, without a guest. The guest kernel also needs
//! [`KERNEL_PARAMETERS`].

use nearfar_topology::Curves;
use serde::{Deserialize, Serialize};

/// Parameters of the guest kernel under the virtual clock: the time-stamp counter runs at 1 GHz and needs neither
/// calibration nor a watchdog, and an idle CPU halts (only then does time stand until the next timer).
pub const KERNEL_PARAMETERS: &str = "tsc=reliable tsc_early_khz=1000000 idle=halt";

/// The most vCPUs the plugin supports.
pub const CPUS_MAX: usize = 16;

/// Whether a TLB can have this many entries: none, or a power of two from 16 to 65,536.
#[must_use]
pub fn tlb_size_is_possible(entries: u32) -> bool {
    entries == 0 || entries.is_power_of_two() && (16..=65_536).contains(&entries)
}

/// All inputs of the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// How guest time passes.
    pub clock: Clock,
    /// The node of each vCPU, by vCPU index.
    pub cpu_nodes: Vec<u16>,
    /// Memory nodes.
    pub nodes: Vec<MemoryNode>,
    /// Guest-physical ranges; addresses outside of all belong to the first node.
    pub ranges: Vec<Range>,
    /// Access paths, one per CPU node and memory node.
    pub paths: Vec<Path>,
    /// Interconnect links by index, each one direction.
    pub links: Vec<Link>,
    /// The processor.
    pub processor: Processor,
    /// Path of the statistics as JSON, `nearfar.labstats/1`, written when the clock is known and at exit.
    pub stats: Option<std::path::PathBuf>,
    /// Interval of intermediate counts in them, in milliseconds of modelled time; none if absent.
    #[serde(default)]
    pub stats_every_ms: Option<u64>,
    /// The socket over which the guest queries the emulated PMU ([`crate::pmu`]); no PMU if absent.
    #[serde(default)]
    pub pmu: Option<std::path::PathBuf>,
    /// The socket on which the lab says that the guest is up; until then instructions alone take time. If absent, memory is
    /// modelled from the start.
    #[serde(default)]
    pub begins: Option<std::path::PathBuf>,
}

/// How guest time passes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Clock {
    /// Guest clocks show modelled time where the emulator allows it, else as `Wait` with `fallback_slow_motion`.
    Auto {
        /// Slow-motion factor of the fallback.
        fallback_slow_motion: f64,
    },
    /// Guest clocks show modelled time; the plugin refuses to load where the emulator does not allow it.
    Virtual,
    /// Real waits: the whole machine runs `slow_motion` times slower than the real one.
    Wait {
        /// Factor, at least 1.
        slow_motion: f64,
    },
}

/// A memory controller, or a CXL device with its link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryNode {
    /// Guest node id.
    pub id: u16,
    /// Read capacity, 10^9 bytes per second.
    pub read_gbps: f64,
    /// Write capacity, 10^9 bytes per second.
    pub write_gbps: f64,
    /// True: reads and writes have separate capacities. False: they share one; a read takes 64 B / `read_gbps` of it
    /// and a write 64 B / `write_gbps`.
    pub duplex: bool,
    /// Measured loaded latency and peak bandwidth by share of reads, instead of the three figures above and of the
    /// formula of [`Processor::load_factor`]. Paths to this node then have their latency times loaded over idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub curves: Option<Curves>,
}

/// A guest-physical range `[start, end)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Guest node id.
    pub node: u16,
}

/// From the CPUs of one node to the memory of one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Path {
    /// CPU node.
    pub from: u16,
    /// Memory node.
    pub to: u16,
    /// Unloaded latency of a dependent load.
    pub latency_ns: f64,
    /// The most bandwidth between this CPU node and that memory node, reads and writes together; no limit if absent.
    pub gbps_max: Option<f64>,
    /// The same as measured, with the loaded latency, by share of reads; then without `gbps_max`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub curves: Option<Curves>,
    /// Links crossed by data on its way to the CPU (reads).
    pub read_links: Vec<u16>,
    /// Links crossed by data on its way to the memory (writes).
    pub write_links: Vec<u16>,
}

/// One direction of an interconnect link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Name for statistics, such as `0>1`.
    pub name: String,
    /// Capacity, 10^9 bytes per second.
    pub gbps: f64,
}

/// Properties of the CPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Processor {
    /// Time of one instruction that hits the first cache, in picoseconds.
    pub instruction_ps: u64,
    /// First-level cache per vCPU, KiB (a power of two).
    pub l1_kib: u64,
    /// Last-level cache shared by the CPUs of a node, KiB (a power of two).
    pub llc_kib: u64,
    /// Latency of a hit in it.
    pub llc_latency_ns: f64,
    /// Outstanding lines per vCPU for streams and stores, 1..=1024. One vCPU transfers at most this many times 64 B per
    /// latency; so to saturate a node, the vCPUs' lines together must cover its capacity at its loaded latency.
    pub lines_in_flight: u32,
    /// Outstanding lines per vCPU for all other loads (the L1 cache's fill buffers), 1..=1024.
    #[serde(default = "fill_buffers")]
    pub loads_in_flight: u32,
    /// Instructions that a vCPU may execute beyond a load in flight, up to 10,000. With 0 every load outside of streams
    /// waits for its line, as in a CPU that executes in order.
    #[serde(default = "reorder_buffer")]
    pub reorder_buffer: u32,
    /// Entries of each vCPU's TLB, for pages of all sizes: 0, or a power of two from 16 to 65,536. With 0, translation
    /// costs nothing.
    #[serde(default = "tlb_entries")]
    pub tlb_entries: u32,
    /// Whether caches know of each other: a line that another vCPU's cache holds modified, or that is written while
    /// another holds it, is transferred at a cost.
    #[serde(default)]
    pub coherence: bool,
    /// Shape of the loaded latency: latency = idle * (1 + load_factor * u^load_power / (1 - u)), u the utilisation, up
    /// to `load_limit` times the idle latency, before queueing.
    pub load_factor: f64,
    /// See `load_factor`.
    pub load_power: f64,
    /// See `load_factor`.
    pub load_limit: f64,
}

/// As many as a core of Intel's from Nehalem to Broadwell has; those after it have up to 16.
const fn fill_buffers() -> u32 {
    10
}

/// Golden Cove's second level.
const fn tlb_entries() -> u32 {
    2048
}

/// Golden Cove's.
const fn reorder_buffer() -> u32 {
    512
}

impl Config {
    /// Parses the JSON text that the lab wrote.
    ///
    /// # Errors
    /// The error, in one line that names the field.
    pub fn parse(text: &str) -> Result<Self, String> {
        let config: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        config.check()?;
        Ok(config)
    }

    /// Checks that the model supports every value, and that every node, path and link that is named exists.
    ///
    /// # Errors
    /// The first error, in one line that names the field.
    pub fn check(&self) -> Result<(), String> {
        self.check_clock()?;
        self.check_processor()?;
        self.check_nodes()?;
        for range in &self.ranges {
            self.known(range.node, "ranges")?;
            if range.start >= range.end {
                return Err(format!("ranges: {:#x}..{:#x} is empty", range.start, range.end));
            }
        }
        for link in &self.links {
            positive(link.gbps, &format!("links: gbps of {}", link.name))?;
        }
        for path in &self.paths {
            self.check_path(path)?;
        }
        self.check_every_path_exists()
    }

    /// The path from the CPUs of `from` to the memory of `to`.
    #[must_use]
    pub fn path(&self, from: u16, to: u16) -> Option<&Path> {
        self.paths.iter().find(|path| path.from == from && path.to == to)
    }

    fn check_clock(&self) -> Result<(), String> {
        let (name, factor) = match self.clock {
            Clock::Auto { fallback_slow_motion } => ("fallback_slow_motion", fallback_slow_motion),
            Clock::Wait { slow_motion } => ("slow_motion", slow_motion),
            Clock::Virtual => return Ok(()),
        };
        within(factor, 1.0, 100_000.0, &format!("clock: {name}"))
    }

    fn check_processor(&self) -> Result<(), String> {
        let processor = &self.processor;
        for (name, kib, most) in
            [("l1_kib", processor.l1_kib, 4096), ("llc_kib", processor.llc_kib, 1 << 21)]
        {
            if !kib.is_power_of_two() || !(16..=most).contains(&kib) {
                return Err(format!(
                    "processor: {name} is {kib}, not a power of two from 16 to {most}"
                ));
            }
        }
        if processor.instruction_ps > 1_000_000 {
            return Err(format!(
                "processor: instruction_ps is {}, more than a microsecond",
                processor.instruction_ps
            ));
        }
        if !tlb_size_is_possible(processor.tlb_entries) {
            return Err(format!(
                "processor: tlb_entries is {}, not 0 or a power of two from 16 to 65536",
                processor.tlb_entries
            ));
        }
        within(f64::from(processor.lines_in_flight), 1.0, 1024.0, "processor: lines_in_flight")?;
        within(f64::from(processor.loads_in_flight), 1.0, 1024.0, "processor: loads_in_flight")?;
        within(f64::from(processor.reorder_buffer), 0.0, 10_000.0, "processor: reorder_buffer")?;
        within(processor.llc_latency_ns, 0.0, 1e6, "processor: llc_latency_ns")?;
        within(processor.load_factor, 0.0, 1e3, "processor: load_factor")?;
        within(processor.load_power, 0.0, 1e3, "processor: load_power")?;
        within(processor.load_limit, 1.0, 1e3, "processor: load_limit")
    }

    fn check_nodes(&self) -> Result<(), String> {
        if self.nodes.is_empty() {
            return Err("nodes: none".to_owned());
        }
        if !(1..=CPUS_MAX).contains(&self.cpu_nodes.len()) {
            return Err(format!("cpu_nodes: {} vCPUs, not 1 to {CPUS_MAX}", self.cpu_nodes.len()));
        }
        for (index, node) in self.nodes.iter().enumerate() {
            if self.nodes[..index].iter().any(|other| other.id == node.id) {
                return Err(format!("nodes: {} twice", node.id));
            }
            positive(node.read_gbps, &format!("nodes: read_gbps of {}", node.id))?;
            positive(node.write_gbps, &format!("nodes: write_gbps of {}", node.id))?;
        }
        Ok(())
    }

    fn check_path(&self, path: &Path) -> Result<(), String> {
        let name = format!("paths: {} to {}", path.from, path.to);
        self.known(path.to, &name)?;
        within(path.latency_ns, 0.0, 1e6, &format!("{name}: latency_ns"))?;
        if let Some(gbps) = path.gbps_max {
            positive(gbps, &format!("{name}: gbps_max"))?;
        }
        match path.read_links.iter().chain(&path.write_links).find(|link| !self.has_link(**link)) {
            Some(link) => Err(format!("{name}: link {link}, of {}", self.links.len())),
            None => Ok(()),
        }
    }

    fn check_every_path_exists(&self) -> Result<(), String> {
        for from in &self.cpu_nodes {
            for node in &self.nodes {
                if self.path(*from, node.id).is_none() {
                    return Err(format!("paths: none from {from} to {}", node.id));
                }
            }
        }
        Ok(())
    }

    fn has_link(&self, link: u16) -> bool {
        usize::from(link) < self.links.len()
    }

    fn known(&self, node: u16, name: &str) -> Result<(), String> {
        if self.nodes.iter().any(|known| known.id == node) {
            Ok(())
        } else {
            Err(format!("{name}: node {node} is not in nodes"))
        }
    }
}

/// A capacity in 10^9 bytes per second that the model's picoseconds can express.
fn positive(gbps: f64, name: &str) -> Result<(), String> {
    within(gbps, 0.01, 10_000.0, name)
}

fn within(value: f64, least: f64, most: f64, name: &str) -> Result<(), String> {
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        Err(format!("{name} is {value}, not from {least} to {most}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_read_back_as_written() {
        let config = crate::testkit::two_tiers();
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(Config::parse(&text), Ok(config));
    }

    type Change = fn(&mut Config);

    #[test]
    fn each_wrong_figure_is_named() {
        let wrong: [(&str, Change); 10] = [
            ("fallback_slow_motion", |c| c.clock = Clock::Auto { fallback_slow_motion: 0.5 }),
            ("l1_kib", |c| c.processor.l1_kib = 48),
            ("tlb_entries", |c| c.processor.tlb_entries = 1536),
            ("load_limit", |c| c.processor.load_limit = f64::NAN),
            ("lines_in_flight", |c| c.processor.lines_in_flight = 0),
            ("read_gbps of 1", |c| c.nodes[1].read_gbps = 0.0),
            ("cpu_nodes", |c| c.cpu_nodes = vec![0; CPUS_MAX + 1]),
            ("none from 0 to 1", |c| c.paths.truncate(1)),
            ("link 7", |c| c.paths[0].read_links.push(7)),
            ("node 9", |c| c.ranges[0].node = 9),
        ];
        for (name, change) in wrong {
            let mut config = crate::testkit::two_tiers();
            change(&mut config);
            let refused = config.check().unwrap_err();
            assert!(refused.contains(name), "{refused:?} does not name {name}");
        }
    }

    #[test]
    fn unknown_fields_are_refused() {
        let text = serde_json::to_string(&crate::testkit::two_tiers()).unwrap();
        let refused = Config::parse(&text.replacen("\"clock\"", "\"klock\"", 1)).unwrap_err();
        assert!(refused.contains("klock"), "{refused}");
    }
}
