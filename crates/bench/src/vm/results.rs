//! Results: JSON `nearfar.bench-vm/1`.

use nearfar_report::model::Machine;
use serde::{Deserialize, Serialize};

use crate::saved::Kept;

/// The `schema` of a [`Found`].
pub(crate) const SCHEMA: &str = "nearfar.bench-vm/1";

/// The memory of virtual machines, as they measure it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Found {
    /// [`SCHEMA`].
    pub(crate) schema: String,
    /// Version of nearfar.
    pub(crate) nearfar: String,
    /// The first of them.
    pub(crate) machine: Machine,
    /// In display order.
    pub(crate) rows: Vec<Row>,
    /// Redis in the first of them, by size of values.
    #[serde(default)]
    pub(crate) redis: Vec<RedisRow>,
}

impl Kept for Found {
    const BENCH: &str = "vm";
    const SCHEMA: &str = SCHEMA;

    fn schema(&self) -> &str {
        &self.schema
    }
}

/// Memory of a virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Setup {
    /// In the host's near memory.
    Dram,
    /// A node without CPUs, in the host's CXL memory.
    CxlNode,
    /// A CXL type-3 device, in the host's CXL memory.
    CxlDevice,
}

impl Setup {
    /// All of them, in display order.
    pub(crate) const ALL: [Self; 3] = [Self::Dram, Self::CxlNode, Self::CxlDevice];

    /// Its name for people.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Dram => "DRAM",
            Self::CxlNode => "CXL as a node",
            Self::CxlDevice => "CXL as a type-3 device",
        }
    }

    /// The idle latency that the proposal of host-mem-type published for this set-up in a guest, in ns: Intel MLC, real
    /// hardware (qemu-devel, RFC PATCH 0/1 "Introduce HostMemType", 2024-01-01).
    pub(crate) const fn published_ns(self) -> f64 {
        match self {
            Self::Dram => 116.1,
            Self::CxlNode => 269.7,
            Self::CxlDevice => 266.8,
        }
    }
}

/// The figures of a set-up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// The set-up.
    pub(crate) setup: Setup,
    /// Latency of a dependent load, in ns.
    pub(crate) latency_ns: Option<f64>,
    /// Bandwidth that one thread reads, in GB/s.
    pub(crate) gbps: Option<f64>,
    /// The output of its programs where they failed.
    pub(crate) failed: Option<String>,
}

/// The memory of a Redis server in a virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Memory {
    /// The guest's DRAM alone.
    Dram,
    /// Its CXL memory alone.
    Cxl,
    /// Its CXL memory at first, then both, by `nearfar run --tier`.
    Tiered,
}

impl Memory {
    /// All of them, in display order.
    pub(crate) const ALL: [Self; 3] = [Self::Dram, Self::Cxl, Self::Tiered];

    /// Its name for people.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Dram => "DRAM only",
            Self::Cxl => "CXL only",
            Self::Tiered => "tiered",
        }
    }

    /// The P50 of reads that the proposal published, in ms: memtier, values of 800 B or of 70 kB, real hardware (as
    /// [`Setup::published_ns`]).
    pub(crate) const fn published_ms(self, value_bytes: u64) -> f64 {
        match (self, value_bytes < 10_000) {
            (Self::Dram, true) => 13.43,
            (Self::Cxl, true) => 29.18,
            (Self::Tiered, true) => 13.76,
            (Self::Dram, false) => 342.01,
            (Self::Cxl, false) => 696.32,
            (Self::Tiered, false) => 610.30,
        }
    }
}

/// The figures of a Redis server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RedisRow {
    /// Its memory.
    pub(crate) memory: Memory,
    /// Bytes of a value.
    pub(crate) value_bytes: u64,
    /// P50 of reads, in ns.
    pub(crate) p50_ns: Option<u64>,
    /// The reason, where it failed.
    pub(crate) failed: Option<String>,
}

impl Row {
    /// The figures in the output of the programs: a line of JSON each, otherwise an error.
    pub(crate) fn of<'a>(setup: Setup, lines: impl Iterator<Item = &'a str>) -> Self {
        let mut row = Self { setup, latency_ns: None, gbps: None, failed: None };
        for line in lines {
            let value: Option<serde_json::Value> = serde_json::from_str(line).ok();
            let figure = |key: &str| value.as_ref()?.get(key)?.as_f64();
            match (figure("latency_ns"), figure("gbps")) {
                (Some(latency), _) => row.latency_ns = Some(latency),
                (_, Some(gbps)) => row.gbps = Some(gbps),
                _ => row.failed = row.failed.or_else(|| Some(line.into())),
            }
        }
        if row.latency_ns.is_none() || row.gbps.is_none() {
            row.failed = row.failed.or_else(|| Some("it printed no figures".into()));
        }
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_come_from_the_lines_of_programs() {
        let lines =
            [r#"{"program":"chase","latency_ns":266.8}"#, r#"{"program":"bandwidth","gbps":13.5}"#];
        let row = Row::of(Setup::CxlNode, lines.into_iter());
        assert_eq!((row.latency_ns, row.gbps, row.failed), (Some(266.8), Some(13.5), None));
    }

    #[test]
    fn a_failed_program_is_reported_with_its_output() {
        let row = Row::of(Setup::CxlDevice, ["binding to node 2: Invalid argument"].into_iter());
        assert_eq!(row.failed.as_deref(), Some("binding to node 2: Invalid argument"));
        let silent = Row::of(Setup::Dram, std::iter::empty());
        assert_eq!(silent.failed.as_deref(), Some("it printed no figures"));
    }
}
