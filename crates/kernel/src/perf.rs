//! Sampling of accesses, and counting of events: perf_event_open(2).
//!
//! An [`Event`] selects what to measure, a [`Sampler`] samples it on CPUs, a [`Counter`] only counts. The events of
//! this machine are in [`pmu`] (hardware) and [`tracepoint`] (the kernel's own); the contents of records are in
//! [`record`], the sources of data in [`source`], and Arm's packets in [`spe`].
//!
//! The kernel controls access: `perf_event_paranoid` above -1 reserves tracepoints with their fields, and above 0 other
//! processes' events, for `CAP_PERFMON` ([`PerfError::is_forbidden`]).

use std::fs::File;
use std::io::{self, Read as _};

use nearfar_topology::CpuId;

use crate::sys::perf as sys;

pub mod pmu;
pub mod record;
pub mod source;
pub mod spe;
pub mod tracepoint;

pub use record::{Parts, Record, Sample};

/// Kinds of events that every kernel has (include/uapi/linux/perf_event.h).
pub mod kind {
    /// Counted by the kernel in software.
    pub const SOFTWARE: u32 = 1;
    /// The kernel's tracepoints.
    pub const TRACEPOINT: u32 = 2;
}

/// All page faults, of [`kind::SOFTWARE`].
pub const PAGE_FAULTS: u64 = 2;

/// Pages of records per CPU: some thousand samples;
const RING_PAGES: usize = 128;
/// and for a thread of this process, within every user's limit.
const OWN_PAGES: usize = 16;
/// Pages of hardware traces.
const AUX_PAGES: usize = 64;

/// Selection of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The kind of event: one of [`kind`], or a PMU's number.
    pub kind: u32,
    /// The event of that kind.
    pub config: u64,
    /// Further configuration.
    pub config1: u64,
    /// Further configuration.
    pub config2: u64,
    /// Events per sample.
    pub period: u64,
    /// The fields of a sample.
    pub parts: Parts,
    /// Required precision of the instruction address, 0 to 3.
    pub precise: u8,
    /// Excludes events in the kernel.
    pub user_only: bool,
    /// Whether hardware writes a trace besides the records.
    pub traces: bool,
}

impl Event {
    fn attributes(&self) -> sys::Attr {
        const DISABLED: u64 = 1;
        const EXCLUDE_KERNEL: u64 = 1 << 5;
        const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
        let excluded = if self.user_only { EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR } else { 0 };
        sys::Attr {
            kind: self.kind,
            config: self.config,
            config1: self.config1,
            config2: self.config2,
            sample_period: self.period,
            sample_type: self.parts.0,
            flags: DISABLED | excluded | u64::from(self.precise & 3) << 15,
            ..sys::Attr::default()
        }
    }
}

/// An unavailable event.
#[derive(Debug, thiserror::Error)]
#[error("perf_event_open of {event}: {source}")]
pub struct PerfError {
    /// The requested event.
    pub event: String,
    /// The errno.
    pub source: io::Error,
}

impl PerfError {
    /// Whether it exists, but permission is missing.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        matches!(self.source.raw_os_error(), Some(libc::EACCES | libc::EPERM))
    }

    /// Whether another process uses it.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.source.raw_os_error() == Some(libc::EBUSY)
    }
}

/// Scope of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All processes on these CPUs.
    Cpus(Vec<CpuId>),
    /// The calling thread, on any CPU.
    Own,
}

/// The samples since the last read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Samples, CPU by CPU, each in order of time.
    pub samples: Vec<Sample>,
    /// Hardware's traces, by CPU.
    pub traces: Vec<(u32, Vec<u8>)>,
    /// Lost records.
    pub lost: u64,
    /// Times that the kernel throttled sampling.
    pub throttled: u64,
    /// Records that could not be parsed.
    pub odd: u64,
}

impl Drained {
    /// Counts saturate: values from the kernel's buffer are not trusted.
    fn take(&mut self, record: Record) {
        let lost = match record {
            Record::Sample(sample) => return self.samples.push(sample),
            Record::Throttled => return self.throttled += 1,
            Record::Lost(lost) => lost,
            Record::Trace { truncated, collisions, .. } => {
                u64::from(truncated) + u64::from(collisions)
            }
        };
        self.lost = self.lost.saturating_add(lost);
    }
}

/// Samples an event, and keeps samples until they are read.
#[derive(Debug)]
pub struct Sampler {
    name: String,
    event: Event,
    rings: Vec<OnCpu>,
    bytes: Vec<u8>,
}

/// An event on a CPU.
#[derive(Debug)]
struct OnCpu {
    cpu: u32,
    event: File,
    ring: sys::Ring,
    /// The leader of its group.
    leader: Option<File>,
}

impl Sampler {
    /// A sampler that is not started. `name` is for errors.
    ///
    /// # Errors
    /// [`PerfError`].
    pub fn open(name: &str, event: Event, scope: &Scope) -> Result<Self, PerfError> {
        Self::open_beside(name, None, event, scope)
    }

    /// The same in a group with another event as leader: some processors sample loads only so.
    ///
    /// # Errors
    /// [`PerfError`].
    pub fn open_beside(
        name: &str,
        leader: Option<Event>,
        event: Event,
        scope: &Scope,
    ) -> Result<Self, PerfError> {
        let refused = |source| PerfError { event: name.into(), source };
        let places: Vec<(i32, i32)> = match scope {
            Scope::Own => vec![(0, -1)],
            Scope::Cpus(cpus) => {
                cpus.iter().map(|cpu| (-1, i32::try_from(cpu.0).unwrap_or(i32::MAX))).collect()
            }
        };
        let pages = if *scope == Scope::Own { OWN_PAGES } else { RING_PAGES };
        let mut rings = Vec::with_capacity(places.len());
        for (process, cpu) in places {
            let leader = leader.map(|leader| sys::open(&leader.attributes(), process, cpu, None));
            let leader = leader.transpose().map_err(refused)?;
            let attributes = event.attributes();
            let file = sys::open(&attributes, process, cpu, leader.as_ref()).map_err(refused)?;
            let mut ring = sys::Ring::map(&file, pages).map_err(refused)?;
            if event.traces {
                ring.map_aux(&file, AUX_PAGES).map_err(refused)?;
            }
            let cpu = u32::try_from(cpu).unwrap_or(0);
            rings.push(OnCpu { cpu, event: file, ring, leader });
        }
        Ok(Self { name: name.into(), event, rings, bytes: Vec::new() })
    }

    fn ask(&self, what: sys::Ask) -> Result<(), PerfError> {
        let leaders = self.rings.iter().filter_map(|of| of.leader.as_ref());
        let leaders = leaders.filter(|_| !matches!(what, sys::Ask::Period(_)));
        let mut all = leaders.chain(self.rings.iter().map(|of| &of.event));
        let asked = all.try_for_each(|file| sys::ask(file, what));
        asked.map_err(|source| PerfError { event: self.name.clone(), source })
    }

    /// Starts sampling.
    ///
    /// # Errors
    /// [`PerfError`].
    pub fn start(&self) -> Result<(), PerfError> {
        self.ask(sys::Ask::Enable)
    }

    /// Stops sampling; earlier samples can still be read.
    ///
    /// # Errors
    /// [`PerfError`].
    pub fn stop(&self) -> Result<(), PerfError> {
        self.ask(sys::Ask::Disable)
    }

    /// Sets the number of events per sample.
    ///
    /// # Errors
    /// [`PerfError`].
    pub fn set_period(&mut self, period: u64) -> Result<(), PerfError> {
        self.ask(sys::Ask::Period(period))?;
        self.event.period = period;
        Ok(())
    }

    /// Events per sample.
    #[must_use]
    pub fn period(&self) -> u64 {
        self.event.period
    }

    /// The samples since the last call.
    pub fn read(&mut self) -> Drained {
        let mut drained = Drained::default();
        for OnCpu { cpu, ring, .. } in &mut self.rings {
            self.bytes.clear();
            ring.drain(&mut self.bytes);
            let (records, odd) = record::records(&self.bytes, self.event.parts);
            drained.odd += odd;
            records.into_iter().for_each(|record| drained.take(record));
            if self.event.traces {
                let mut trace = Vec::new();
                ring.drain_aux(&mut trace);
                drained.traces.push((*cpu, trace));
            }
        }
        drained
    }
}

/// A reading of a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Events while it counted.
    pub value: u64,
    /// Nanoseconds since it was opened,
    pub enabled_ns: u64,
    /// and those in which it counted: counters are multiplexed if there are fewer than events.
    pub running_ns: u64,
}

/// Counts an event.
#[derive(Debug)]
pub struct Counter(File);

impl Counter {
    /// Starts counting: the events of all processes on this CPU, which for a memory controller is any of its node's.
    ///
    /// # Errors
    /// [`PerfError`].
    pub fn open(name: &str, event: Event, cpu: CpuId) -> Result<Self, PerfError> {
        const ENABLED_AND_RUNNING: u64 = 3;
        let refused = |source| PerfError { event: name.into(), source };
        let event = Event { period: 0, parts: Parts::default(), ..event };
        let attributes = sys::Attr { read_format: ENABLED_AND_RUNNING, ..event.attributes() };
        let file = sys::open(&attributes, -1, i32::try_from(cpu.0).unwrap_or(i32::MAX), None);
        let file = file.map_err(refused)?;
        sys::ask(&file, sys::Ask::Enable).map_err(refused)?;
        Ok(Self(file))
    }

    /// The count so far.
    ///
    /// # Errors
    /// The read's.
    pub fn read(&self) -> io::Result<Count> {
        let mut bytes = [0; 24];
        (&self.0).read_exact(&mut bytes)?;
        let (words, _) = bytes.as_chunks();
        let word = |at: usize| words.get(at).copied().map_or(0, u64::from_ne_bytes);
        Ok(Count { value: word(0), enabled_ns: word(1), running_ns: word(2) })
    }
}

/// Writes once to each of `pages` fresh pages, never huge ones, to test a sensor: returns the start address and the end
/// address. They are unmapped when this returns.
///
/// # Errors
/// Unavailable memory.
pub fn touch_fresh(pages: usize) -> io::Result<(u64, u64)> {
    sys::touch_fresh(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: Parts = Parts::THREAD.and(Parts::ADDRESS).and(Parts::CPU).and(Parts::TIME);

    fn faults(period: u64) -> Event {
        let kind = kind::SOFTWARE;
        Event { kind, config: PAGE_FAULTS, period, parts: PARTS, ..Event::default() }
    }

    #[test]
    fn the_loss_count_saturates() {
        let mut drained = Drained::default();
        drained.take(Record::Trace { length: u64::MAX, truncated: true, collisions: true });
        assert_eq!(drained.lost, 2);
        for lost in [u64::MAX, 5] {
            drained.take(Record::Lost(lost));
        }
        drained.take(Record::Trace { length: 0, truncated: true, collisions: false });
        assert_eq!(drained.lost, u64::MAX);
    }

    #[test]
    fn faults_are_sampled_with_address_only_between_start_and_stop() {
        let mut sampler = Sampler::open("page-faults", faults(1), &Scope::Own).unwrap();
        touch_fresh(64).unwrap();
        assert_eq!(sampler.read(), Drained::default(), "not started");
        sampler.start().unwrap();
        let (from, to) = touch_fresh(256).unwrap();
        sampler.stop().unwrap();
        touch_fresh(256).unwrap();
        let drained = sampler.read();
        let within = |sample: &&Sample| (from..to).contains(&sample.address);
        assert_eq!(drained.samples.iter().filter(within).count(), 256);
        assert!(drained.samples.len() < 400, "{}", drained.samples.len());
        assert!(drained.samples.iter().all(|sample| sample.pid == std::process::id()));
        assert_eq!((drained.odd, drained.lost), (0, 0));
        assert_eq!(sampler.read(), Drained::default(), "each is read once");
    }

    #[test]
    fn longer_periods_yield_fewer_samples_and_full_rings_report_losses() {
        let count = |period, pages| {
            let mut sampler = Sampler::open("page-faults", faults(period), &Scope::Own).unwrap();
            sampler.start().unwrap();
            touch_fresh(pages).unwrap();
            let first = sampler.read();
            // Lost records are reported with the next record that fits.
            touch_fresh(32).unwrap();
            let next = sampler.read();
            (first.samples.len() as u64, first.lost + next.lost)
        };
        let (all, few) = (count(1, 512).0, count(16, 512).0);
        assert!(all >= 512 && (32..=all / 8).contains(&few), "{all} and {few}");
        let (kept, lost) = count(1, 16 << 10);
        assert!(kept > 500 && lost > 500 && kept + lost >= 16 << 10, "{kept} kept, {lost} lost");
    }

    #[test]
    fn counters_are_readable_and_unknown_events_are_rejected_by_name() {
        let context_switches = Event { kind: kind::SOFTWARE, config: 3, ..Event::default() };
        let counter = Counter::open("context-switches", context_switches, CpuId(0));
        match counter {
            Ok(counter) => {
                let count = counter.read().unwrap();
                assert!(count.running_ns <= count.enabled_ns, "{count:?}");
            }
            Err(error) => assert!(error.is_forbidden(), "{error}"),
        }
        let none = Event { kind: 0x7fff_0000, ..Event::default() };
        let error = Sampler::open("nothing", none, &Scope::Own).unwrap_err();
        assert!(error.to_string().starts_with("perf_event_open of nothing: "), "{error}");
        assert!(!error.is_forbidden() && !error.is_taken());
    }
}
