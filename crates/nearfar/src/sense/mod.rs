//! The live system's sensors of memory traffic, behind crate control's trait.
//!
//! | sensor | what it rests on | file |
//! |---|---|---|
//! | `hint-faults` | NUMA balancing unmaps pages, and the faults that follow are seen one by one | `hint.rs` |
//! | `ibs`, `pebs`, `spe` | processors that sample accesses | `hardware.rs` |
//! | `latency` | timed loads of our own | `latency.rs` |
//! | `controllers`, `cxl-pmu` | counters in memory controllers and CXL devices | `controllers.rs` |
//! | `resctrl` | bytes that caches exchange with memory | `bytes.rs` |
//! | `damon` | accessed bits, by stretches of memory | `regions.rs` |
//! | `lab` | the lab's emulated counters and samples | `lab.rs` |
//!
//! What they share: [`Scene`], the machine they are for; [`place`], which makes samples of addresses.

use std::collections::BTreeMap;

use nearfar_control::sense::{Sensor, Unusable, Why};
use nearfar_kernel::fs::{Fs, RootFs};
use nearfar_kernel::journal::Journal;
use nearfar_kernel::perf::PerfError;
use nearfar_topology::{CpuId, NodeId, Topology};

mod bytes;
mod controllers;
mod hardware;
pub(crate) mod hint;
mod lab;
mod latency;
mod place;
mod regions;

use controllers::Where;
use hardware::Make;

/// The machine that sensors are for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene<'a> {
    pub(crate) fs: &'a RootFs,
    pub(crate) machine: &'a Topology,
    /// Where settings that are changed are journaled, and in whose name.
    pub(crate) journal: &'a Journal<'a>,
    pub(crate) by: &'a str,
}

impl Scene<'_> {
    /// The nodes, in the order in which sensors count them.
    pub(crate) fn nodes(&self) -> Vec<NodeId> {
        self.machine.nodes.keys().copied().collect()
    }

    /// The place of each CPU's node in that order.
    pub(crate) fn places(&self) -> BTreeMap<u32, usize> {
        let nodes = self.machine.nodes.values().enumerate();
        nodes.flat_map(|(place, node)| node.cpus.iter().map(move |cpu| (cpu.0, place))).collect()
    }

    /// All CPUs.
    pub(crate) fn cpus(&self) -> Vec<CpuId> {
        self.machine.nodes.values().flat_map(|node| node.cpus.iter().copied()).collect()
    }
}

/// All sensors, in the order in which one is chosen before another for the same thing; most will not be usable on any one
/// machine.
pub(crate) fn all<'a>(scene: Scene<'a>) -> Vec<Box<dyn Sensor + 'a>> {
    vec![
        Box::new(hardware::Hardware::new(scene, Make::Ibs)),
        Box::new(hardware::Hardware::new(scene, Make::Pebs)),
        Box::new(hardware::Hardware::new(scene, Make::Spe)),
        Box::new(lab::Lab::new(scene)),
        Box::new(hint::HintFaults::new(scene)),
        Box::new(latency::Latency::new(scene)),
        Box::new(controllers::Controllers::new(scene, Where::Controllers)),
        Box::new(controllers::Controllers::new(scene, Where::Cxl)),
        Box::new(bytes::Bytes::new(scene)),
        Box::new(regions::Regions::new(scene)),
    ]
}

/// Why perf gave no event.
pub(crate) fn refused(fs: &dyn Fs, error: &PerfError) -> Unusable {
    if error.is_forbidden() {
        let level = fs.read("proc/sys/kernel/perf_event_paranoid").ok().flatten();
        let level = level.as_deref().map_or("unknown", str::trim);
        let found = format!("{error} (perf_event_paranoid is {level})");
        return Unusable::new(Why::Forbidden, found).but("run with CAP_PERFMON, or as root");
    }
    if error.is_taken() {
        return Unusable::new(Why::Taken, error.to_string()).but("stop the other user of the PMU");
    }
    Unusable::new(Why::Absent, error.to_string())
}

/// A sensor that was asked for readings and is not at work.
pub(crate) fn not_started(name: &str) -> Unusable {
    Unusable::new(Why::Failed, format!("{name} is not at work")).but("start it first")
}
