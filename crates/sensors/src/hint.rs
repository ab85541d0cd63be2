//! NUMA hint faults: sampled accesses from a stock kernel without any PMU.
//!
//! NUMA balancing periodically unmaps parts of each busy process's memory; the next access to each page faults, and the
//! tracepoint `exceptions:page_fault_user` reports its address, its CPU, and in the error code whether it was a write
//! (bit 1). Faults on present pages with other rights (bit 0: copies on write) are not hint faults and are left out.
//! First touches of fresh memory look the same and are counted as accesses, which they are. If the tracepoint does not
//! exist (not on x86) or is not permitted, the kernel's event `page-faults` is used, which does not distinguish reads
//! from writes.
//!
//! While it is active the kernel itself migrates pages towards the CPUs that use them, which is the purpose of NUMA
//! balancing. It is switched on, if it is off, through the journal. Its first scan of a process is after a second of
//! run time; later scans become rarer while it finds nothing to migrate. While dense sampling is requested it is set to
//! scan every second ([`balancing::scan_steadily`]), through the journal as well; that is undone with sparse sampling,
//! because each scan costs the process a fault per page.
//!
//! Faults come in bursts. If the buffer overflows, it would contain only the start of each burst; so from then on only
//! every second fault is recorded, or every fourth, and so on, until none is lost ([`Thinning`]). Samples are of pages,
//! at most one per scan of a page, so a hot page counts no more than one that is used now and then.

use nearfar_kernel::balancing::{self, Migrations, NumaBalancing};
use nearfar_kernel::chase;
use nearfar_kernel::features::Asked;
use nearfar_kernel::journal::OnConflict;
use nearfar_kernel::perf::tracepoint::Tracepoint;
use nearfar_kernel::perf::{self, Event, Parts, Sampler, kind};
use nearfar_policy::ports::{
    Cost, Counts, Grain, Nature, Reading, Scope, Sees, Sensor, Targets, Unusable, Why,
};
use nearfar_policy::traffic::carrefour::Sampling;
use nearfar_topology::{BasisPoints, CpuId, Nanoseconds};

use super::place::{Access, Placer};
use super::{Scene, not_started, refused};

pub(crate) const NAME: &str = "hint-faults";
/// With dense sampling every fault is a sample, else every fourth.
const SPARSE: u64 = 4;
/// Largest further factor of thinning after overflows, and the number of readings without overflow after which it is
/// reduced.
const THINNEST: u64 = 64;
const CALM: u32 = 64;
/// Bits of the error code: the page was present; it was a write.
const THERE: u64 = 1;
const WRITE: u64 = 2;
/// Pages touched by the self-test.
const TEST_PAGES: usize = 16;
/// This many faults counted by the kernel for each that a CPU may leave out, without a sample, mean that sampling does not
/// work.
const MUTE: u64 = 64;

/// Source of the faults.
#[derive(Clone, Debug)]
enum By {
    /// The tracepoint, with its fields.
    Tracepoint(Tracepoint),
    /// The kernel's event, and the reason why the tracepoint is not used.
    Event,
}

impl By {
    fn event(&self, period: u64) -> Event {
        let parts = Parts::THREAD.and(Parts::CPU);
        match self {
            Self::Tracepoint(point) => Event {
                kind: kind::TRACEPOINT,
                config: point.id,
                period,
                parts: parts.and(Parts::RAW),
                ..Event::default()
            },
            Self::Event => Event {
                kind: kind::SOFTWARE,
                config: perf::PAGE_FAULTS,
                period,
                parts: parts.and(Parts::ADDRESS),
                user_only: true,
                ..Event::default()
            },
        }
    }

    /// The address and whether it was a write, if the sample is a hint fault.
    fn fault(&self, sample: &perf::Sample) -> Option<(u64, bool)> {
        match self {
            Self::Tracepoint(point) => {
                let code = point.field(&sample.raw, "error_code")?;
                let address = point.field(&sample.raw, "address")?;
                (code & THERE == 0).then_some((address, code & WRITE != 0))
            }
            Self::Event => sample.user.then_some((sample.address, false)),
        }
    }
}

/// The journal owner of the changed scan rate of NUMA balancing, for settings of `by`: it is restored separately.
#[must_use]
pub fn pace(by: &str) -> String {
    format!("{by}-pace")
}

/// The sensor.
#[derive(Debug)]
pub(crate) struct HintFaults<'a> {
    scene: Scene<'a>,
    placer: Placer,
    by: Option<By>,
    at_work: Option<AtWork>,
    cost: Cost,
    /// Whether the setting was changed.
    set: bool,
}

#[derive(Debug)]
struct AtWork {
    sampler: Sampler,
    targets: Targets,
    since: Nanoseconds,
    /// Faults per sample, as requested.
    asked: u64,
    thinning: Thinning,
    /// The kernel's count at the last reading, and the faults since the last sample.
    counted: u64,
    unseen: u64,
    /// CPUs that are sampled, each of which counts by itself.
    cpus: u64,
}

/// Factor by which fewer samples are taken than requested, so that none is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Thinning {
    times: u64,
    /// Readings since the last loss.
    calm: u32,
}

impl Thinning {
    const NONE: Self = Self { times: 1, calm: 0 };

    /// The state after a reading with this many lost samples.
    const fn after(self, lost: u64) -> Self {
        match lost {
            0 if self.times > 1 && self.calm + 1 >= CALM => Self { times: self.times / 2, calm: 0 },
            0 => Self { calm: self.calm.saturating_add(1), ..self },
            _ if self.times < THINNEST => Self { times: self.times * 2, calm: 0 },
            _ => Self { calm: 0, ..self },
        }
    }
}

impl<'a> HintFaults<'a> {
    pub(crate) fn new(scene: Scene<'a>) -> Self {
        let placer = Placer::new(&scene);
        Self { scene, placer, by: None, at_work: None, cost: Cost::default(), set: false }
    }

    /// The usable source of faults on this machine.
    fn find(&self) -> Result<By, Unusable> {
        let point =
            Tracepoint::find(self.scene.fs, Asked::Live, "exceptions", "page_fault_user").ok();
        let first = self.scene.cpus().into_iter().take(1).collect::<Vec<CpuId>>();
        let mut why = None;
        for by in point.map(By::Tracepoint).into_iter().chain([By::Event]) {
            match Sampler::open(NAME, by.event(1), &perf::Scope::Cpus(first.clone())) {
                Ok(_) => return Ok(by),
                Err(error) => why = Some(refused(self.scene.fs, &error)),
            }
        }
        Err(why.unwrap_or_else(|| not_started(NAME)))
    }

    /// Checks that our own faults are seen correctly.
    fn test(&self, by: &By) -> Result<(), Unusable> {
        let failed = |error: perf::PerfError| refused(self.scene.fs, &error);
        let mut sampler = Sampler::open(NAME, by.event(1), &perf::Scope::Own).map_err(failed)?;
        sampler.start().map_err(failed)?;
        let touched = perf::touch_fresh(TEST_PAGES);
        sampler.stop().map_err(failed)?;
        let (from, to) = touched.map_err(|error| {
            Unusable::new(Why::Failed, format!("no memory for its self-test: {error}"))
        })?;
        let faults = sampler.read().samples;
        let faults: Vec<_> = faults.iter().filter_map(|sample| by.fault(sample)).collect();
        let ours = faults.iter().filter(|(address, _)| (from..to).contains(address));
        let tells = matches!(by, By::Tracepoint(_));
        let right = ours.filter(|(_, write)| *write == tells).count();
        if right == TEST_PAGES {
            return Ok(());
        }
        let found =
            format!("of {TEST_PAGES} faults made to test it, {right} were seen as they are");
        Err(Unusable::new(Why::Mute, found))
    }

    /// Switches NUMA balancing on, if it is off.
    fn switch_on(&mut self) -> Result<(), Unusable> {
        let failed = |error: &dyn std::fmt::Display| {
            let found = format!("NUMA balancing can't be switched on: {error}");
            Unusable::new(Why::Forbidden, found)
                .but("sudo nearfar sense, or sudo sysctl kernel.numa_balancing=1")
        };
        // First restores settings left by a killed process of the same name.
        let journal = self.scene.journal;
        for by in [self.scene.by, &self.pace()] {
            journal.restore(by, OnConflict::Refuse).map_err(|error| failed(&error))?;
        }
        let mode = balancing::numa_balancing(self.scene.fs).map_err(|error| failed(&error))?;
        let mode = mode.unwrap_or_default();
        if !mode.has(NumaBalancing::NORMAL) {
            let mode = NumaBalancing(mode.0 | NumaBalancing::NORMAL.0);
            balancing::set_numa_balancing(journal, self.scene.by, mode)
                .map_err(|error| failed(&error))?;
            self.set = true;
        }
        self.look_often(Sampling::Dense)
    }

    /// The journal owner of the scan rate: it changes and is restored while the other settings stay.
    fn pace(&self) -> String {
        pace(self.scene.by)
    }

    /// Adapts the kernel's scan rate to the requested sampling.
    fn look_often(&self, sampling: Sampling) -> Result<(), Unusable> {
        let journal = self.scene.journal;
        let changed = match sampling {
            Sampling::Dense => {
                balancing::scan_steadily(self.scene.fs, journal, &self.pace()).map(drop)
            }
            Sampling::Sparse => journal.restore(&self.pace(), OnConflict::Refuse).map(drop),
        };
        changed.map_err(|error| {
            let found = format!("how often NUMA balancing looks can't be changed: {error}");
            Unusable::new(Why::Failed, found)
        })
    }

    fn counted(&self) -> u64 {
        Migrations::read(self.scene.fs).map_or(0, |counts| counts.numa_hint_faults)
    }
}

impl Sensor for HintFaults<'_> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sees(&self) -> Sees {
        Sees {
            addresses: Grain::Pages,
            writes: !matches!(self.by, Some(By::Event)),
            cpu: true,
            traffic: false,
            latency: false,
            scope: Scope::Processes,
            nature: Nature::Measured,
        }
    }

    fn check(&mut self) -> Result<(), Unusable> {
        let mode = balancing::numa_balancing(self.scene.fs);
        if !matches!(mode, Ok(Some(_))) {
            let found = "this kernel has no NUMA balancing (no /proc/sys/kernel/numa_balancing)";
            return Err(Unusable::new(Why::Absent, found).but("CONFIG_NUMA_BALANCING has it"));
        }
        if self.scene.machine.nodes.len() < 2 {
            let found = "one node: NUMA balancing looks at nothing";
            return Err(Unusable::new(Why::Absent, found));
        }
        let by = self.find()?;
        self.test(&by)?;
        self.by = Some(by);
        Ok(())
    }

    fn start(&mut self, targets: &Targets, now: Nanoseconds) -> Result<(), Unusable> {
        if let Some(at_work) = &mut self.at_work {
            at_work.targets = targets.clone();
            return Ok(());
        }
        self.check()?;
        let Some(by) = &self.by else { return Err(not_started(NAME)) };
        let failed = |error: perf::PerfError| refused(self.scene.fs, &error);
        let cpus = self.scene.cpus();
        let count = cpus.len() as u64;
        let sampler = Sampler::open(NAME, by.event(1), &perf::Scope::Cpus(cpus)).map_err(failed)?;
        sampler.start().map_err(failed)?;
        self.switch_on()?;
        let (targets, counted) = (targets.clone(), self.counted());
        self.cost = Cost::default();
        let (asked, thinning, cpus, unseen) = (1, Thinning::NONE, count, 0);
        self.at_work =
            Some(AtWork { sampler, targets, since: now, asked, thinning, counted, unseen, cpus });
        Ok(())
    }

    fn read(&mut self, now: Nanoseconds) -> Result<Reading, Unusable> {
        let counted = self.counted();
        let (Some(at_work), Some(by)) = (&mut self.at_work, &self.by) else {
            return Err(not_started(NAME));
        };
        let begun = chase::own_cpu();
        let drained = at_work.sampler.read();
        let accesses: Vec<Access> = drained
            .samples
            .iter()
            .filter_map(|sample| {
                let (address, write) = by.fault(sample)?;
                Some(Access { process: sample.pid, address, cpu: sample.cpu, write })
            })
            .collect();
        at_work.unseen += counted.saturating_sub(at_work.counted);
        at_work.counted = counted;
        // Before the first sample, each CPU may have left out nearly a period.
        let left_out = at_work.sampler.period().saturating_mul(at_work.cpus);
        if !drained.samples.is_empty() {
            at_work.unseen = 0;
        } else if at_work.unseen >= MUTE.saturating_mul(left_out) {
            let found = format!(
                "the kernel counts {} hinting faults (numa_hint_faults in /proc/vmstat), and none is seen",
                at_work.unseen
            );
            return Err(Unusable::new(Why::Mute, found));
        }
        let interruptions = drained.samples.len() as u64 * at_work.sampler.period();
        let mut counts =
            Counts { lost: drained.lost, throttled: drained.throttled, ..Counts::default() };
        let thinning = at_work.thinning.after(drained.lost);
        if thinning.times != at_work.thinning.times {
            counts.throttled += u64::from(thinning.times > at_work.thinning.times);
            let set = at_work.sampler.set_period(at_work.asked * thinning.times);
            set.map_err(|error| refused(self.scene.fs, &error))?;
        }
        at_work.thinning = thinning;
        counts.unplaced += drained.odd;
        let samples = self.placer.samples(self.scene.fs, &at_work.targets, &accesses, &mut counts);
        let elapsed = Nanoseconds(now.0.saturating_sub(at_work.since.0));
        at_work.since = now;
        self.cost.interruptions += interruptions;
        self.cost.cpu.0 += chase::own_cpu().0.saturating_sub(begun.0);
        let coverage = BasisPoints(10_000);
        Ok(Reading { elapsed, coverage, samples, counts, ..Reading::default() })
    }

    fn set_sampling(&mut self, sampling: Sampling) -> Result<(), Unusable> {
        let Some(at_work) = &mut self.at_work else { return Err(not_started(NAME)) };
        at_work.asked = if sampling == Sampling::Dense { 1 } else { SPARSE };
        let set = at_work.sampler.set_period(at_work.asked * at_work.thinning.times);
        set.map_err(|error| refused(self.scene.fs, &error))?;
        self.look_often(sampling)
    }

    fn cost(&self) -> Cost {
        self.cost
    }

    fn stop(&mut self) -> Result<(), Unusable> {
        if self.at_work.take().is_some() {
            self.look_often(Sampling::Sparse)?;
        }
        if !std::mem::take(&mut self.set) {
            return Ok(());
        }
        let restored = self.scene.journal.restore(self.scene.by, OnConflict::Refuse);
        let left = |found: String| Err(Unusable::new(Why::Failed, found));
        match restored {
            Ok(report) => match report.conflicts.first() {
                None => Ok(()),
                Some(conflict) => left(format!(
                    "/{} reads {}, not the {} that was written for {NAME}: someone else has changed it since, so it is \
                     left as it is",
                    conflict.recorded.path, conflict.found, conflict.recorded.new
                )),
            },
            Err(error) => left(format!("NUMA balancing can't be put back: {error}")),
        }
    }
}

impl Drop for HintFaults<'_> {
    fn drop(&mut self) {
        // A setting that can't be restored now stays in the journal for the next start.
        let _ = self.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point() -> By {
        let fields = [("address".into(), (8, 8)), ("error_code".into(), (24, 8))].into();
        By::Tracepoint(Tracepoint { id: 7, fields })
    }

    fn sample(address: u64, code: u64) -> perf::Sample {
        let words = [0, address, 0, code];
        let raw = words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        perf::Sample { raw, address, user: true, ..perf::Sample::default() }
    }

    #[test]
    fn the_fault_code_shows_writes_and_copies_on_write_are_omitted() {
        let by = point();
        assert_eq!(by.fault(&sample(0x5000, 4)), Some((0x5000, false)));
        assert_eq!(by.fault(&sample(0x5000, 6)), Some((0x5000, true)));
        assert_eq!(by.fault(&sample(0x5000, 7)), None, "the page was there");
        assert_eq!(by.fault(&perf::Sample::default()), None, "no fields");
        assert_eq!(By::Event.fault(&sample(0x5000, 6)), Some((0x5000, false)));
        let kernel = perf::Sample { user: false, ..sample(0x5000, 6) };
        assert_eq!(By::Event.fault(&kernel), None);
    }

    #[test]
    fn the_sample_rate_falls_while_samples_are_lost_and_recovers_later() {
        let mut thinning = Thinning::NONE;
        let mut seen = Vec::new();
        for lost in [0, 5, 1, 0] {
            thinning = thinning.after(lost);
            seen.push(thinning.times);
        }
        assert_eq!(seen, [1, 2, 4, 4]);
        (0..CALM).for_each(|_| thinning = thinning.after(0));
        assert_eq!(thinning.times, 2);
        (0..20).for_each(|_| thinning = thinning.after(1));
        assert_eq!(thinning.times, THINNEST);
        (0..20 * CALM).for_each(|_| thinning = thinning.after(0));
        assert_eq!(thinning.times, 1);
    }

    #[test]
    fn the_event_requests_the_fields_of_a_sample() {
        assert!(point().event(1).parts.has(Parts::RAW));
        let event = By::Event.event(4);
        assert!(event.parts.has(Parts::ADDRESS.and(Parts::THREAD).and(Parts::CPU)));
        assert_eq!(event.period, 4);
    }
}
