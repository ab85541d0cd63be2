//! Counters in memory controllers and in CXL devices: lines that each node's memory serves, for all requesters.
//!
//! A controller's PMU counts for all CPUs of its package, on the CPU that sysfs names for it; that CPU's node is the
//! node. Where a package is several nodes (sub-NUMA clusters), sysfs names one CPU for all of them, and the traffic per
//! node is not available: then the sensor is unusable, with this reason. A CXL device's PMU (`cxl_pmu_memN.M`) counts
//! for the node whose region is on the device `memN`.
//!
//! | PMU | reads | writes | a count is |
//! |---|---|---|---|
//! | `uncore_imc_*` | `cas_count_read` or `data_read` | `cas_count_write` or `data_write` | its `.scale` in MiB, else a
//! line |
//! | `amd_umc_*` | event 0x0a, `rdwrmask` 1 | the same, 2 | a line |
//! | `cxl_pmu_mem*` | `s2m_drs_memdata` | `m2s_rwd_memwr` | a line |
//!
//! Not yet run on such hardware, which was not available. The self-test generates traffic and checks that it is
//! counted.

use nearfar_kernel::chase;
use nearfar_kernel::fs::Fs;
use nearfar_kernel::perf::pmu::Pmu;
use nearfar_kernel::perf::{Count, Counter, Event};
use nearfar_policy::ports::{
    Cost, Grain, Nature, Reading, Scope, Sees, Sensor, Targets, Unusable, Why,
};
use nearfar_policy::traffic::Reads;
use nearfar_topology::{BasisPoints, CpuId, Nanoseconds, NodeId, Topology};

use super::{Scene, not_started, refused};

const LINE: f64 = 64.0;
/// Lines read and written by the self-test, and the least number that must be counted.
const TEST_LINES: usize = 1 << 19;
const TEST_LEAST: f64 = (TEST_LINES / 64) as f64;

/// Location of the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Where {
    /// In memory controllers.
    Controllers,
    /// In CXL devices.
    Cxl,
}

impl Where {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Controllers => "controllers",
            Self::Cxl => "cxl-pmu",
        }
    }
}

/// An event to count.
#[derive(Clone, Debug, PartialEq)]
struct Wanted {
    name: String,
    event: Event,
    cpu: CpuId,
    /// Index of the node.
    node: usize,
    writes: bool,
    /// Lines per count.
    lines: f64,
}

/// The sensor.
#[derive(Debug)]
pub(crate) struct Controllers<'a> {
    scene: Scene<'a>,
    kind: Where,
    nodes: Vec<NodeId>,
    at_work: Option<AtWork>,
    cost: Cost,
}

#[derive(Debug)]
struct AtWork {
    counters: Vec<(Wanted, Counter, Count)>,
    since: Nanoseconds,
}

impl<'a> Controllers<'a> {
    pub(crate) fn new(scene: Scene<'a>, kind: Where) -> Self {
        Self { scene, kind, nodes: scene.nodes(), at_work: None, cost: Cost::default() }
    }

    fn open(&self) -> Result<Vec<(Wanted, Counter, Count)>, Unusable> {
        let wanted = wanted(self.scene.fs, self.scene.machine, self.kind)?;
        let mut open = Vec::with_capacity(wanted.len());
        for wanted in wanted {
            let counter = Counter::open(&wanted.name, wanted.event, wanted.cpu);
            let counter = counter.map_err(|error| refused(self.scene.fs, &error))?;
            let first = counter.read().map_err(|error| gone(&wanted, &error))?;
            open.push((wanted, counter, first));
        }
        Ok(open)
    }

    fn test(&self, counters: &mut [(Wanted, Counter, Count)]) -> Result<(), Unusable> {
        let mut memory = vec![0_u64; TEST_LINES * 8];
        memory.iter_mut().step_by(8).for_each(|word| *word = 1);
        std::hint::black_box(&memory);
        let mut lines = 0.0;
        for (wanted, counter, before) in counters {
            let now = counter.read().map_err(|error| gone(wanted, &error))?;
            lines += now.value.saturating_sub(before.value) as f64 * wanted.lines;
            *before = now;
        }
        // A CXL device need not see the test's traffic: our own memory is near.
        if lines >= TEST_LEAST || self.kind == Where::Cxl {
            return Ok(());
        }
        let found = format!("{TEST_LINES} lines were written to test it, and {lines:.0} counted");
        Err(Unusable::new(Why::Mute, found))
    }
}

fn gone(wanted: &Wanted, error: &std::io::Error) -> Unusable {
    Unusable::new(Why::Failed, format!("{} can't be read: {error}", wanted.name))
}

/// All counters of this machine in one location.
fn wanted(fs: &dyn Fs, machine: &Topology, kind: Where) -> Result<Vec<Wanted>, Unusable> {
    let pmus = |prefix: &str| {
        Pmu::named(fs, prefix).map_err(|error| Unusable::new(Why::Forbidden, error.to_string()))
    };
    match kind {
        Where::Cxl => {
            let pmus = pmus("cxl_pmu_mem")?;
            let wanted: Vec<Wanted> = pmus.iter().flat_map(|pmu| of_cxl(pmu, machine)).collect();
            absent_if(
                wanted,
                "no CXL device of this machine has a PMU (cxl_pmu_mem*) and memory of a node",
            )
        }
        Where::Controllers => {
            let mut pmus = [pmus("uncore_imc")?, pmus("amd_umc_")?].concat();
            // Fixed counters come second: they are for events that the others do not have.
            let (free, own): (Vec<_>, Vec<_>) =
                pmus.drain(..).partition(|pmu| pmu.name.contains("free_running"));
            let pmus = if own.is_empty() { free } else { own };
            let mut wanted = Vec::new();
            for pmu in &pmus {
                wanted.extend(of_controller(pmu, machine));
            }
            let wanted = absent_if(
                wanted,
                "no PMU of memory controllers (uncore_imc*, amd_umc_*) in /sys/bus/event_source/devices",
            )?;
            let counted: std::collections::BTreeSet<_> = wanted.iter().map(|of| of.node).collect();
            let homes = machine.nodes.values().filter(|node| !node.cpus.is_empty()).count();
            if counted.len() < homes {
                let found = format!(
                    "{homes} nodes have CPUs, and controllers of {} are told apart (sub-NUMA clusters)",
                    counted.len()
                );
                return Err(Unusable::new(Why::Mute, found));
            }
            Ok(wanted)
        }
    }
}

fn absent_if(wanted: Vec<Wanted>, found: &str) -> Result<Vec<Wanted>, Unusable> {
    if wanted.is_empty() { Err(Unusable::new(Why::Absent, found)) } else { Ok(wanted) }
}

/// Reads and writes of a controller, on each CPU that represents a package.
fn of_controller(pmu: &Pmu, machine: &Topology) -> Vec<Wanted> {
    const READS: [&str; 3] = ["cas_count_read", "data_read", "read"];
    const WRITES: [&str; 3] = ["cas_count_write", "data_write", "write"];
    let named = |names: &[&str]| {
        let name = names.iter().find(|name| pmu.events.contains_key(**name))?;
        let lines = match pmu.units.get(*name) {
            Some((scale, unit)) if unit == "MiB" => scale * 1_048_576.0 / LINE,
            _ => 1.0,
        };
        Some((pmu.event(&pmu.events[*name]).ok()?, lines))
    };
    let amd = |mask: u32| {
        let event = pmu.event(&format!("event=0x0a,rdwrmask={mask}")).ok()?;
        pmu.name.starts_with("amd_umc_").then_some((event, 1.0))
    };
    let both =
        [(named(&READS).or_else(|| amd(1)), false), (named(&WRITES).or_else(|| amd(2)), true)];
    let mut wanted = Vec::new();
    for cpu in &pmu.cpus {
        let node = machine.nodes.values().position(|node| node.cpus.contains(cpu));
        for (found, writes) in both {
            if let (Some(node), Some((event, lines))) = (node, found) {
                wanted.push(Wanted {
                    name: pmu.name.clone(),
                    event,
                    cpu: *cpu,
                    node,
                    writes,
                    lines,
                });
            }
        }
    }
    wanted
}

/// Reads and writes of a CXL device that provides a node's memory.
fn of_cxl(pmu: &Pmu, machine: &Topology) -> Vec<Wanted> {
    let device = pmu.name.strip_prefix("cxl_pmu_").and_then(|rest| rest.split('.').next());
    let Some(device) = device else { return Vec::new() };
    let region =
        machine.cxl_regions.iter().find(|region| region.devices.iter().any(|of| of == device));
    let node = region.and_then(|region| region.target_node);
    let place = node.and_then(|node| machine.nodes.keys().position(|here| *here == node));
    let (Some(node), Some(cpu)) = (place, pmu.cpus.first()) else { return Vec::new() };
    let both = [("s2m_drs_memdata", false), ("m2s_rwd_memwr", true)];
    let of = |(name, writes): (&str, bool)| {
        let event = pmu.event(pmu.events.get(name)?).ok()?;
        Some(Wanted { name: pmu.name.clone(), event, cpu: *cpu, node, writes, lines: 1.0 })
    };
    both.into_iter().filter_map(of).collect()
}

impl Sensor for Controllers<'_> {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn sees(&self) -> Sees {
        Sees {
            addresses: Grain::None,
            writes: true,
            cpu: false,
            traffic: true,
            latency: false,
            scope: Scope::Machine,
            nature: Nature::Measured,
        }
    }

    fn check(&mut self) -> Result<(), Unusable> {
        let mut counters = self.open()?;
        self.test(&mut counters)
    }

    fn start(&mut self, _: &Targets, now: Nanoseconds) -> Result<(), Unusable> {
        if self.at_work.is_none() {
            let mut counters = self.open()?;
            self.test(&mut counters)?;
            self.cost = Cost::default();
            self.at_work = Some(AtWork { counters, since: now });
        }
        Ok(())
    }

    fn read(&mut self, now: Nanoseconds) -> Result<Reading, Unusable> {
        let begun = chase::own_cpu();
        let name = self.name();
        let Some(at_work) = &mut self.at_work else { return Err(not_started(name)) };
        let mut served = vec![None; self.nodes.len()];
        let (mut reads, mut writes, mut coverage) = (0, 0, BasisPoints(10_000));
        for (wanted, counter, before) in &mut at_work.counters {
            let count = counter.read().map_err(|error| gone(wanted, &error))?;
            let (lines, covered) = between(*before, count, wanted.lines);
            *before = count;
            coverage = coverage.min(covered);
            let sum: &mut Option<u64> = &mut served[wanted.node];
            *sum = Some(sum.unwrap_or(0).saturating_add(lines));
            let way = if wanted.writes { &mut writes } else { &mut reads };
            *way = lines.saturating_add(*way);
        }
        let elapsed = Nanoseconds(now.0.saturating_sub(at_work.since.0));
        at_work.since = now;
        self.cost.cpu.0 += chase::own_cpu().0.saturating_sub(begun.0);
        let reads = Reads::Lines { reads, writes };
        Ok(Reading { elapsed, coverage, served, reads, ..Reading::default() })
    }

    fn cost(&self) -> Cost {
        self.cost
    }

    fn stop(&mut self) -> Result<(), Unusable> {
        self.at_work = None;
        Ok(())
    }
}

/// Lines between two counts, and the share of the time in which the event was scheduled; the lines are corrected for
/// it.
fn between(before: Count, now: Count, lines: f64) -> (u64, BasisPoints) {
    let counted = now.value.saturating_sub(before.value);
    let enabled = now.enabled_ns.saturating_sub(before.enabled_ns);
    let running = now.running_ns.saturating_sub(before.running_ns).min(enabled);
    if running == 0 {
        return (0, BasisPoints(if enabled == 0 { 10_000 } else { 0 }));
    }
    let all = counted as f64 * lines * (enabled as f64 / running as f64);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates, not below 0"
    )]
    let all = all.round() as u64;
    let share = u128::from(running) * 10_000 / u128::from(enabled);
    (all, BasisPoints(u32::try_from(share).unwrap_or(10_000)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_kernel::fs::TreeFs;
    use nearfar_topology::testkit::{machine, node};
    use nearfar_topology::{CxlRegion, Tree};

    const RECORDED: &str = include_str!("../../../fixtures/perf/pmus.tree");

    fn fs(of: &str) -> TreeFs {
        let all = Tree::parse(RECORDED);
        let mut some = Tree::new();
        let dir = format!("sys/bus/event_source/devices/{of}");
        all.iter()
            .filter(|(path, _)| path.starts_with(&dir))
            .for_each(|(path, text)| some.insert(path, text));
        TreeFs(some)
    }

    fn two_sockets() -> Topology {
        let mut machine = machine([node(0).cpus(0..24), node(1).cpus(24..48), node(2)]);
        machine.cxl_regions = vec![CxlRegion {
            devices: vec!["mem0".into()],
            target_node: Some(NodeId(2)),
            ..CxlRegion::default()
        }];
        machine
    }

    #[test]
    fn each_controller_is_read_and_written_at_the_node_of_its_packages_cpu() {
        let found = wanted(&fs("uncore_imc"), &two_sockets(), Where::Controllers).unwrap();
        let of = |found: &Vec<Wanted>, node| found.iter().filter(|of| of.node == node).count();
        // Two channels, reads and writes, on two sockets.
        assert_eq!((found.len(), of(&found, 0), of(&found, 1)), (8, 4, 4));
        assert!(found.iter().all(|of| (of.lines - 1.0).abs() < 1e-9), "64 B a count: {found:?}");
        let found = wanted(&fs("amd_umc"), &two_sockets(), Where::Controllers).unwrap();
        assert_eq!((found.len(), of(&found, 1)), (4, 2));
        assert_eq!(found[1].event.config, 0x0a | 2 << 8);
    }

    #[test]
    fn a_cxl_devices_lines_belong_to_the_node_of_its_region() {
        let found = wanted(&fs("cxl_pmu"), &two_sockets(), Where::Cxl).unwrap();
        assert_eq!(
            found.iter().map(|of| (of.node, of.writes)).collect::<Vec<_>>(),
            [(2, false), (2, true)]
        );
        let alone = machine([node(0).cpus(0..24)]);
        assert_eq!(wanted(&fs("cxl_pmu"), &alone, Where::Cxl).unwrap_err().why, Why::Absent);
        assert_eq!(wanted(&fs("none"), &alone, Where::Controllers).unwrap_err().why, Why::Absent);
    }

    #[test]
    fn nodes_sharing_a_controller_count_are_not_split_by_guess() {
        let clusters = machine([node(0).cpus(0..12), node(1).cpus(12..24), node(2).cpus(24..48)]);
        let said = wanted(&fs("uncore_imc"), &clusters, Where::Controllers).unwrap_err();
        assert_eq!(said.why, Why::Mute);
        assert!(said.to_string().contains("3 nodes have CPUs, and controllers of 2"), "{said}");
    }

    #[test]
    fn multiplexed_counts_are_scaled_to_the_whole_time() {
        let count = |value, enabled_ns, running_ns| Count { value, enabled_ns, running_ns };
        let (lines, covered) = between(count(100, 10, 10), count(300, 110, 60), 2.0);
        assert_eq!((lines, covered), (800, BasisPoints(5_000)));
        assert_eq!(between(count(1, 1, 1), count(1, 2, 1), 1.0), (0, BasisPoints(0)));
        assert_eq!(between(Count::default(), Count::default(), 1.0), (0, BasisPoints(10_000)));
    }
}
