//! Processors that sample accesses: AMD's IBS, Intel's PEBS, Arm's SPE.
//!
//! | sensor | PMU | what is sampled |
//! |---|---|---|
//! | `ibs` | `ibs_op` | micro-operations; only those that missed the last cache, from Zen 4 on (`l3missonly`) |
//! | `pebs` | `cpu_core` or `cpu` | loads that took 64 cycles (`ldlat`), and stores |
//! | `spe` | `arm_spe_0` | loads and stores that took as long (`min_latency`), from a trace (`spe.rs` of crate kernel) |
//!
//! Without filtering in hardware, samples include accesses served by caches, as in Carrefour. Samples have virtual
//! addresses; the kernel is asked for the node page by page. The kernel's own accesses are left out here, because IBS
//! can't exclude them. The dense sampling period is 65,536, the sparse one four times that, as published for Carrefour;
//! PEBS counts only slow loads, so there it is 2,003.
//!
//! Not yet run on such hardware, which was not available. The decoders of samples have tests of their own, and rings
//! are tested with events that every kernel has; the self-test makes accesses and checks that some are sampled.

use nearfar_kernel::chase;
use nearfar_kernel::fs::Fs;
use nearfar_kernel::perf::pmu::Pmu;
use nearfar_kernel::perf::source::{Level, Source};
use nearfar_kernel::perf::{self, Drained, Event, Parts, Sampler, spe};
use nearfar_policy::ports::{
    Cost, Counts, Grain, Nature, Reading, Scope, Sees, Sensor, Targets, Unusable, Why,
};
use nearfar_policy::traffic::carrefour::Sampling;
use nearfar_topology::{BasisPoints, Nanoseconds};

use super::place::{Access, Placer};
use super::{Scene, not_started, refused};

/// Cycles from which on a load counts as slow: it missed the near caches.
const SLOW: u32 = 64;
/// Sampling period, and the factor by which it is longer while few samples are needed.
const PERIOD: u64 = 65_536;
const SLOW_LOADS: u64 = 2_003;
const STORES: u64 = 100_003;
const SPARSE: u64 = 4;
/// Lines that the self-test reads and writes; and its sampling period.
const TEST_LINES: usize = 1 << 19;
const TEST_PERIOD: u64 = 4_096;

/// The processor's vendor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Make {
    Ibs,
    Pebs,
    Spe,
}

/// An event to sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Looked {
    event: Event,
    leader: Option<Event>,
    /// Whether the sampling period counts accesses to memory, so that a sample represents that many.
    counts: bool,
}

impl Make {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ibs => "ibs",
            Self::Pebs => "pebs",
            Self::Spe => "spe",
        }
    }

    const fn pmus(self) -> &'static [&'static str] {
        match self {
            Self::Ibs => &["ibs_op"],
            Self::Pebs => &["cpu_core", "cpu"],
            Self::Spe => &["arm_spe_0"],
        }
    }

    /// The events to sample on this machine.
    fn looked(self, fs: &dyn Fs) -> Result<Vec<Looked>, Unusable> {
        let absent = |found: String| Unusable::new(Why::Absent, found);
        let name = self.pmus().join(", ");
        for pmu in self.pmus() {
            let pmu = Pmu::read(fs, pmu).map_err(|error| absent(error.to_string()))?;
            let looked = pmu.map(|pmu| self.of(&pmu)).unwrap_or_default();
            if !looked.is_empty() {
                return Ok(looked);
            }
        }
        Err(absent(format!("no such PMU: {name} (in /sys/bus/event_source/devices)")))
    }

    /// The events of a PMU to sample; empty if it has none.
    fn of(self, pmu: &Pmu) -> Vec<Looked> {
        const PARTS: Parts = Parts::THREAD.and(Parts::TIME).and(Parts::ADDRESS).and(Parts::CPU);
        let parts = PARTS.and(Parts::WEIGHT).and(Parts::SOURCE);
        let alone = |event: Event, counts| Looked { event, leader: None, counts };
        match self {
            Self::Ibs => {
                let has = |term: &str| pmu.has(term).then(|| format!("{term}=1"));
                let terms: Vec<_> = ["cnt_ctl", "l3missonly"].into_iter().filter_map(has).collect();
                let event = pmu.event(&terms.join(",")).ok();
                let parts = parts.and(Parts::PHYSICAL);
                let event = event.map(|event| Event { period: PERIOD, parts, ..event });
                event.map(|event| alone(event, pmu.has("l3missonly"))).into_iter().collect()
            }
            Self::Pebs => {
                let sampled = |terms: &str, period| {
                    let event = pmu.event(terms).ok()?;
                    Some(Event { period, parts, precise: 2, user_only: true, ..event })
                };
                let loads = pmu.events.get("mem-loads").and_then(|terms| {
                    let kept = terms.split(',').filter(|term| !term.starts_with("ldlat"));
                    let slow = format!("ldlat={SLOW}");
                    let terms: Vec<&str> = kept.chain([slow.as_str()]).collect();
                    sampled(&terms.join(","), SLOW_LOADS)
                });
                let leader =
                    pmu.events.get("mem-loads-aux").and_then(|terms| pmu.event(terms).ok());
                let leader = leader.map(|leader| Event { user_only: true, ..leader });
                let stores = pmu.events.get("mem-stores").and_then(|terms| sampled(terms, STORES));
                let loads = loads.map(|event| Looked { event, leader, counts: false });
                loads.into_iter().chain(stores.map(|event| alone(event, false))).collect()
            }
            Self::Spe => {
                let wanted =
                    ["ts_enable=1", "load_filter=1", "store_filter=1", "pa_enable=1", "jitter=1"];
                let has = |term: &&&str| term.split('=').next().is_some_and(|name| pmu.has(name));
                let mut terms: Vec<String> =
                    wanted.iter().filter(has).map(|term| (*term).into()).collect();
                terms.extend(pmu.has("min_latency").then(|| format!("min_latency={SLOW}")));
                let event = pmu.event(&terms.join(",")).ok();
                let parts = Parts::THREAD.and(Parts::TIME).and(Parts::CPU);
                let traced =
                    |event| Event { period: PERIOD, parts, traces: true, user_only: true, ..event };
                event.map(|event| alone(traced(event), false)).into_iter().collect()
            }
        }
    }
}

/// Programs' accesses among the drained samples, and the number of samples that could not be decoded.
fn accesses(drained: &Drained) -> (Vec<Access>, u64) {
    let mut found = Vec::new();
    let mut odd = drained.odd;
    for sample in drained.samples.iter().filter(|sample| sample.user && sample.address != 0) {
        let source = Source::of(sample.source);
        let Some(write) = source.write.filter(|_| source.level != Level::Device) else { continue };
        let (process, address, cpu) = (sample.pid, sample.address, sample.cpu);
        found.push(Access { process, address, cpu, write });
    }
    for (cpu, trace) in &drained.traces {
        let (traced, no_packets) = spe::accesses(trace);
        odd += no_packets;
        for of in traced {
            let (address, write, cpu) = (of.address, of.write, *cpu);
            // Process 0 does not exist, so the sample is not placed.
            found.push(Access { process: of.context.unwrap_or(0), address, cpu, write });
        }
    }
    (found, odd)
}

/// The sensor.
#[derive(Debug)]
pub(crate) struct Hardware<'a> {
    scene: Scene<'a>,
    make: Make,
    placer: Placer,
    at_work: Option<AtWork>,
    cost: Cost,
}

#[derive(Debug)]
struct AtWork {
    samplers: Vec<(Sampler, Looked)>,
    targets: Targets,
    since: Nanoseconds,
}

impl<'a> Hardware<'a> {
    pub(crate) fn new(scene: Scene<'a>, make: Make) -> Self {
        Self { scene, make, placer: Placer::new(&scene), at_work: None, cost: Cost::default() }
    }

    fn open(&self, looked: Looked, scope: &perf::Scope) -> Result<Sampler, Unusable> {
        let opened = Sampler::open_beside(self.make.name(), looked.leader, looked.event, scope);
        opened.map_err(|error| refused(self.scene.fs, &error))
    }

    /// Checks that some of our own accesses are sampled, at their addresses.
    fn test(&self, looked: Looked) -> Result<(), Unusable> {
        let failed = |error: perf::PerfError| refused(self.scene.fs, &error);
        let period = looked.event.period.min(TEST_PERIOD);
        let event = Event { period, ..looked.event };
        let mut sampler = self.open(Looked { event, ..looked }, &perf::Scope::Own)?;
        let mut memory = vec![0_u64; TEST_LINES * 8];
        sampler.start().map_err(failed)?;
        memory.iter_mut().step_by(8).for_each(|word| *word = 1);
        std::hint::black_box(memory.iter().step_by(8).sum::<u64>());
        sampler.stop().map_err(failed)?;
        let ours = memory.as_ptr_range();
        let ours = ours.start.addr() as u64..ours.end.addr() as u64;
        let (found, _) = accesses(&sampler.read());
        let seen = found.iter().filter(|access| ours.contains(&access.address)).count();
        if seen > 0 {
            return Ok(());
        }
        let found = format!(
            "of accesses to {TEST_LINES} lines that were made to test it none was seen, and {} others",
            found.len()
        );
        Err(Unusable::new(Why::Mute, found))
    }
}

impl Sensor for Hardware<'_> {
    fn name(&self) -> &'static str {
        self.make.name()
    }

    fn sees(&self) -> Sees {
        Sees {
            addresses: Grain::Pages,
            writes: true,
            cpu: true,
            traffic: false,
            latency: false,
            scope: Scope::Processes,
            nature: Nature::Measured,
        }
    }

    fn check(&mut self) -> Result<(), Unusable> {
        let looked = self.make.looked(self.scene.fs)?;
        looked.iter().try_for_each(|looked| self.test(*looked))
    }

    fn start(&mut self, targets: &Targets, now: Nanoseconds) -> Result<(), Unusable> {
        if let Some(at_work) = &mut self.at_work {
            at_work.targets = targets.clone();
            return Ok(());
        }
        self.check()?;
        let cpus = perf::Scope::Cpus(self.scene.cpus());
        let mut samplers = Vec::new();
        for looked in self.make.looked(self.scene.fs)? {
            samplers.push((self.open(looked, &cpus)?, looked));
        }
        for (sampler, _) in &samplers {
            sampler.start().map_err(|error| refused(self.scene.fs, &error))?;
        }
        self.cost = Cost::default();
        self.at_work = Some(AtWork { samplers, targets: targets.clone(), since: now });
        Ok(())
    }

    fn read(&mut self, now: Nanoseconds) -> Result<Reading, Unusable> {
        let begun = chase::own_cpu();
        let name = self.make.name();
        let Some(at_work) = &mut self.at_work else { return Err(not_started(name)) };
        let mut counts = Counts::default();
        let (mut all, mut per_sample) = (Vec::new(), None);
        for (sampler, looked) in &mut at_work.samplers {
            let drained = sampler.read();
            self.cost.interruptions += drained.samples.len() as u64;
            counts.lost = counts.lost.saturating_add(drained.lost);
            counts.throttled += drained.throttled;
            let (found, odd) = accesses(&drained);
            counts.unplaced += odd;
            all.extend(found);
            per_sample = looked.counts.then(|| sampler.period());
        }
        let elapsed = Nanoseconds(now.0.saturating_sub(at_work.since.0));
        at_work.since = now;
        let samples = self.placer.samples(self.scene.fs, &at_work.targets, &all, &mut counts);
        self.cost.cpu.0 += chase::own_cpu().0.saturating_sub(begun.0);
        let coverage = BasisPoints(10_000);
        Ok(Reading { elapsed, coverage, samples, per_sample, counts, ..Reading::default() })
    }

    fn set_sampling(&mut self, sampling: Sampling) -> Result<(), Unusable> {
        let name = self.make.name();
        let Some(at_work) = &mut self.at_work else { return Err(not_started(name)) };
        for (sampler, looked) in &mut at_work.samplers {
            let times = if sampling == Sampling::Dense { 1 } else { SPARSE };
            let set = sampler.set_period(looked.event.period * times);
            set.map_err(|error| refused(self.scene.fs, &error))?;
        }
        Ok(())
    }

    fn cost(&self) -> Cost {
        self.cost
    }

    fn stop(&mut self) -> Result<(), Unusable> {
        self.at_work = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_kernel::fs::TreeFs;
    use nearfar_topology::Tree;

    const RECORDED: &str = include_str!("../../../fixtures/perf/pmus.tree");

    fn looked(make: Make) -> Vec<Looked> {
        make.looked(&TreeFs(Tree::parse(RECORDED))).unwrap()
    }

    #[test]
    fn each_cpu_vendor_samples_slow_or_missed_accesses() {
        let ibs = looked(Make::Ibs);
        assert_eq!((ibs.len(), ibs[0].event.config, ibs[0].counts), (1, 1 << 19 | 1 << 16, true));
        assert!(ibs[0].event.parts.has(Parts::PHYSICAL) && !ibs[0].event.user_only);
        let pebs = looked(Make::Pebs);
        let of: Vec<_> = pebs.iter().map(|of| (of.event.config, of.event.config1)).collect();
        assert_eq!(of, [(0x1cd, u64::from(SLOW)), (0x2cd, 0)]);
        assert!(pebs.iter().all(|of| of.event.precise == 2 && !of.counts && of.leader.is_none()));
        let spe = looked(Make::Spe);
        assert_eq!(
            (spe.len(), spe[0].event.config2, spe[0].event.traces),
            (1, u64::from(SLOW), true)
        );
        assert_eq!(spe[0].event.config & (3 << 33), 3 << 33, "loads and stores");
        let none = Make::Pebs.looked(&TreeFs(Tree::new())).unwrap_err();
        assert_eq!(none.why, Why::Absent);
        assert!(none.to_string().starts_with("no such PMU: cpu_core, cpu"), "{none}");
    }

    #[test]
    fn only_user_accesses_to_memory_and_caches_are_kept() {
        const LOAD_FROM_MEMORY: u64 = 2 | 0xd << 33;
        let sample = |address, source, user| perf::Sample {
            address,
            source,
            user,
            pid: 7,
            cpu: 3,
            ..perf::Sample::default()
        };
        let samples = vec![
            sample(0x5000, LOAD_FROM_MEMORY, true),
            sample(0x6000, LOAD_FROM_MEMORY, false),
            sample(0, LOAD_FROM_MEMORY, true),
            sample(0x7000, 1, true),
            sample(0x8000, 4 | 0xa << 33, true),
        ];
        // A store of process 9, as encoded by SPE.
        let mut trace = vec![0x65, 9, 0, 0, 0, 0x49, 1, 0xb2];
        trace.extend(0x9000_u64.to_le_bytes());
        trace.push(0x01);
        let drained = Drained { samples, traces: vec![(1, trace)], odd: 2, ..Drained::default() };
        let (found, odd) = accesses(&drained);
        let first = Access { process: 7, address: 0x5000, cpu: 3, write: false };
        let second = Access { process: 9, address: 0x9000, cpu: 1, write: true };
        assert_eq!((found, odd), (vec![first, second], 2));
    }
}
