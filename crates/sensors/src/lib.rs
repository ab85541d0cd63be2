//! Sensors of memory traffic on the live system, behind the trait [`Sensor`].
//!
//! | sensor | source | file |
//! |---|---|---|
//! | `hint-faults` | NUMA balancing unmaps pages; each fault that follows is recorded | `hint.rs` |
//! | `ibs`, `pebs`, `spe` | memory access sampling by the processor | `hardware.rs` |
//! | `latency` | timed loads issued by nearfar itself | `latency.rs` |
//! | `controllers`, `cxl-pmu` | counters in memory controllers and CXL devices | `controllers.rs` |
//! | `resctrl` | bytes exchanged between caches and memory (MBM) | `bytes.rs` |
//! | `damon` | accessed bits, by region of memory | `regions.rs` |
//! | `lab` | the lab's emulated counters and samples | `lab.rs` |
//!
//! [`all`] gives every sensor for a [`Scene`]; most are unusable on any one machine, and each gives the reason. `place.rs` turns
//! sampled addresses into samples of pages.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use nearfar_kernel::fs::{Fs, RootFs};
use nearfar_kernel::journal::Journal;
use nearfar_kernel::perf::PerfError;
use nearfar_policy::ports::{Sensor, Unusable, Why};
use nearfar_topology::{CpuId, NodeId, Topology};

mod bytes;
mod controllers;
mod hardware;
mod hint;
mod lab;
mod latency;
mod place;
mod regions;

use controllers::Where;
use hardware::Make;
pub use hint::pace;

/// The machine that sensors read, and the journal for settings they change.
#[derive(Clone, Copy, Debug)]
pub struct Scene<'a> {
    /// The live system's files.
    pub fs: &'a RootFs,
    /// The nodes and CPUs.
    pub machine: &'a Topology,
    /// The journal for changed settings.
    pub journal: &'a Journal<'a>,
    /// The owner of those changes in the journal.
    pub by: &'a str,
}

impl Scene<'_> {
    /// The nodes, in the order in which sensors index them.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeId> {
        self.machine.nodes.keys().copied().collect()
    }

    /// The index of each CPU's node in that order.
    pub(crate) fn places(&self) -> BTreeMap<u32, usize> {
        let nodes = self.machine.nodes.values().enumerate();
        nodes.flat_map(|(place, node)| node.cpus.iter().map(move |cpu| (cpu.0, place))).collect()
    }

    /// All CPUs.
    pub(crate) fn cpus(&self) -> Vec<CpuId> {
        self.machine.nodes.values().flat_map(|node| node.cpus.iter().copied()).collect()
    }
}

/// All sensors, in order of preference among those that give the same kind of reading.
#[must_use]
pub fn all<'a>(scene: Scene<'a>) -> Vec<Box<dyn Sensor + 'a>> {
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

/// The names of the sensors that [`all`] gives, in that order.
pub const NAMES: [&str; 10] = [
    Make::Ibs.name(),
    Make::Pebs.name(),
    Make::Spe.name(),
    lab::NAME,
    hint::NAME,
    latency::NAME,
    Where::Controllers.name(),
    Where::Cxl.name(),
    bytes::NAME,
    regions::NAME,
];

/// The reason why perf refused an event.
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

/// The error of a sensor that is read before it is started.
pub(crate) fn not_started(name: &str) -> Unusable {
    Unusable::new(Why::Failed, format!("{name} is not at work")).but("start it first")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_those_of_all_sensors() {
        let (fs, machine) = (RootFs::live().unwrap(), Topology::default());
        let journal = Journal::new(Journal::default_dir(), &fs, "/");
        let all = all(Scene { fs: &fs, machine: &machine, journal: &journal, by: "test" });
        assert_eq!(all.iter().map(|sensor| sensor.name()).collect::<Vec<_>>(), NAMES);
    }
}
