//! The settings the lab hands to the timing plugin: one JSON file, written by the lab, read by the plugin.
//!
//! Figures are the real machine's; with [`Clock::Wait`] the whole machine is paced `slow_motion` times slower than
//! them. Nodes are referred to by their guest node id, vCPUs by index.
//!
//! Which clock is in force is known before the guest runs: the plugin settles it as the first vCPU appears, writes the
//! statistics file once right then (`"clock"`, `"slow_motion"`, `"complete": false`, all counts zero), and again when
//! QEMU ends. So `qemu-system-x86_64 -machine q35 -accel tcg,thread=multi -nodefaults -display none -S -plugin
//! libnearfar_lab_plugin.so,config=FILE` asks a QEMU what it can do, without a guest. The guest kernel wants
//! [`KERNEL_PARAMETERS`] besides.

use serde::{Deserialize, Serialize};

/// What the guest kernel must be told under the virtual clock: the time-stamp counter runs at 1 GHz and needs neither
/// calibration nor a watchdog, and an idle CPU halts (only then does time follow real time while it waits).
pub const KERNEL_PARAMETERS: &str = "tsc=reliable tsc_early_khz=1000000 idle=halt";

/// The most vCPUs the plugin serves.
pub const CPUS_MAX: usize = 16;

/// Everything the model needs to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// How the guest is made to feel time.
    pub clock: Clock,
    /// The node of each vCPU, by vCPU index.
    pub cpu_nodes: Vec<u16>,
    /// Memory nodes.
    pub nodes: Vec<MemoryNode>,
    /// Guest-physical ranges; what lies in none belongs to the first node.
    pub ranges: Vec<Range>,
    /// Access paths, one per CPU node and memory node.
    pub paths: Vec<Path>,
    /// Interconnect links by index, each one direction.
    pub links: Vec<Link>,
    /// The processor.
    pub processor: Processor,
    /// Where to write statistics as JSON, `nearfar.labstats/1`, when the clock is settled and at exit.
    pub stats: Option<std::path::PathBuf>,
    /// How often their counts so far are kept, in milliseconds of modelled time; not at all if absent.
    #[serde(default)]
    pub stats_every_ms: Option<u64>,
    /// The socket at whose other end the guest asks the emulated PMU ([`crate::pmu`]); nobody asks if absent.
    #[serde(default)]
    pub pmu: Option<std::path::PathBuf>,
}

/// How guest time passes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Clock {
    /// Guest clocks show modelled time where the emulator allows it, else as `Wait` with `fallback_slow_motion`.
    Auto {
        /// Slow motion of the fallback.
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
    /// True: reads and writes have a capacity each. False: they share one; a read takes 64 B / `read_gbps` of it and
    /// a write 64 B / `write_gbps`.
    pub duplex: bool,
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
    /// The most this CPU node can draw from that memory node, reads and writes together; no limit if absent.
    pub gbps_max: Option<f64>,
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

/// What the CPUs are like.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Processor {
    /// Time of one instruction that hits the first cache, in picoseconds.
    pub instruction_ps: u64,
    /// First-level cache per vCPU, KiB (a power of two).
    pub l1_kib: u64,
    /// Last-level cache shared by the CPUs of a node, KiB (a power of two).
    pub llc_kib: u64,
    /// Latency of a hit there.
    pub llc_latency_ns: f64,
    /// Lines a vCPU can have under way (streams and stores; a lone dependent load has one), 1..=1024. One vCPU draws
    /// at most this many times 64 B per latency; so to saturate a node, the vCPUs' lines together must cover its
    /// capacity at its loaded latency.
    pub lines_in_flight: u32,
    /// Shape of the loaded latency: latency = idle * (1 + load_factor * u^load_power / (1 - u)), u the utilisation,
    /// up to `load_limit` times the idle latency before queueing.
    pub load_factor: f64,
    /// See `load_factor`.
    pub load_power: f64,
    /// See `load_factor`.
    pub load_limit: f64,
}

impl Config {
    /// Reads the JSON text the lab wrote.
    ///
    /// # Errors
    /// What is wrong with it, in one line that names the field.
    pub fn parse(text: &str) -> Result<Self, String> {
        let config: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        config.check()?;
        Ok(config)
    }

    /// Whether every figure is one the model can work with, and every node, path and link that is named exists.
    ///
    /// # Errors
    /// The first thing that is wrong, in one line that names the field.
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
        within(f64::from(processor.lines_in_flight), 1.0, 1024.0, "processor: lines_in_flight")?;
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
    fn what_is_written_reads_back_the_same() {
        let config = crate::testkit::two_tiers();
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(Config::parse(&text), Ok(config));
    }

    type Change = fn(&mut Config);

    #[test]
    fn each_wrong_figure_is_named() {
        let wrong: [(&str, Change); 9] = [
            ("fallback_slow_motion", |c| c.clock = Clock::Auto { fallback_slow_motion: 0.5 }),
            ("l1_kib", |c| c.processor.l1_kib = 48),
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
