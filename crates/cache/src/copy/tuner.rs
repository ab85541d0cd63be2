//! How fast device and CPU are, learnt from how long both took.
//!
//! Rates are bytes a second, kept apart by how large a batch is (a power of two). A device takes a while whatever it moves,
//! about as long as the shortest of its batches took; the rest of its time counts for its rate. With what is learnt at one
//! share, the next is where both would be done at once ([`Rates`]), until they are. Samples are smoothed. A batch in which the
//! device met page faults, or left something to the CPU, says nothing about its rate and is left out.
//! Who had nothing of so many batches gets some of the next, to see whether things have changed.

use std::cmp::Ordering;

use super::split::Rates;

/// Classes of batches: by the power of two that their bytes reach.
const CLASSES: usize = 40;
/// The floor is at most so many of 16 parts of a batch's time.
const FLOOR_PARTS: u64 = 15;
/// With each sample the floor rises by one of so many parts, so that it is not for ever what it was once.
const FLOOR_RISES: u64 = 1024;
/// Batches of a class that are sampled, all of them, before only some are.
const SAMPLED_FIRST: u64 = 32;

/// How rates are learnt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunerConfig {
    /// Bytes a second of the device, until one is measured.
    pub device_rate: u64,
    /// Bytes a second of the CPU, until one is measured.
    pub cpu_rate: u64,
    /// A sample counts one part in so many, those before it the others.
    pub smoothing: u32,
    /// One batch in so many is sampled.
    pub sample_every: u32,
    /// Who had nothing for so many batches of a class gets some of the next.
    pub probe_every: u32,
}

impl Default for TunerConfig {
    fn default() -> Self {
        Self {
            device_rate: 10_000_000_000,
            cpu_rate: 10_000_000_000,
            smoothing: 4,
            sample_every: 4,
            probe_every: 256,
        }
    }
}

/// What is to be done with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// By which it is to be split.
    pub rates: Rates,
    /// Whether it is to be timed.
    pub is_sampled: bool,
    class: usize,
}

/// What came of a batch, for one of both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Bytes it had.
    pub bytes: u64,
    /// How long it took, if that says anything about its rate.
    pub ns: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Side {
    /// Bytes a second, once measured.
    rate: Option<u64>,
    /// Batches since it had any bytes.
    idle: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Class {
    device: Side,
    cpu: Side,
    batches: u64,
}

/// Whether somebody is to get something again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    No,
    /// A quarter.
    Some,
    /// The larger part: a quarter was none of what can't be cut.
    Most,
}

/// Learns rates.
#[derive(Clone, Debug)]
pub struct Tuner {
    config: TunerConfig,
    /// The shortest that the device took, of late.
    floor_ns: Option<u64>,
    classes: [Class; CLASSES],
}

impl Side {
    fn note(&mut self, part: Part, smoothing: u32) {
        self.idle = if part.bytes > 0 { 0 } else { self.idle.saturating_add(1) };
        let (Some(ns), 1..) = (part.ns, part.bytes) else { return };
        let sample = u128::from(part.bytes) * 1_000_000_000 / u128::from(ns.max(1));
        let sample = u64::try_from(sample).unwrap_or(u64::MAX);
        let parts = u64::from(smoothing.max(1));
        self.rate = Some(match self.rate {
            Some(rate) => rate - rate / parts + sample / parts,
            None => sample,
        });
    }
}

impl Tuner {
    /// Knows nothing yet.
    #[must_use]
    pub fn new(config: TunerConfig) -> Self {
        Self { config, floor_ns: None, classes: [Class::default(); CLASSES] }
    }

    fn class(total: u64) -> usize {
        usize::try_from(total.max(1).ilog2()).unwrap_or(0).min(CLASSES - 1)
    }

    /// What is to be done with a batch of `total` bytes.
    #[must_use]
    pub fn decide(&self, total: u64) -> Decision {
        let class = Self::class(total);
        let Class { device, cpu, batches } = self.classes[class];
        let (device_due, cpu_due) = (self.due(device), self.due(cpu));
        let rates = match (device_due, cpu_due) {
            (Due::Some, _) | (Due::No, Due::Most) => Rates::fixed(25),
            (Due::Most, _) | (Due::No, Due::Some) => Rates::fixed(75),
            (Due::No, Due::No) => self.rates(total),
        };
        let is_probe = device_due != Due::No || cpu_due != Due::No;
        let is_turn = batches.is_multiple_of(u64::from(self.config.sample_every.max(1)));
        let is_sampled = is_turn || batches < SAMPLED_FIRST || is_probe;
        Decision { rates, is_sampled, class }
    }

    fn due(&self, side: Side) -> Due {
        match side.idle.cmp(&self.config.probe_every) {
            Ordering::Less => Due::No,
            Ordering::Equal => Due::Some,
            Ordering::Greater => Due::Most,
        }
    }

    /// What came of it.
    pub fn note(&mut self, decision: &Decision, device: Part, cpu: Part) {
        let mut device = device;
        if let (Some(ns), 1..) = (device.ns, device.bytes) {
            let floor = self.floor_ns.map_or(ns, |floor| ns.min(floor + floor / FLOOR_RISES + 1));
            self.floor_ns = Some(floor);
            device.ns = Some(ns - floor.min(ns / 16 * FLOOR_PARTS));
        }
        let class = &mut self.classes[decision.class];
        class.device.note(device, self.config.smoothing);
        class.cpu.note(cpu, self.config.smoothing);
        class.batches += 1;
    }

    /// What is known of batches of so many bytes.
    #[must_use]
    pub fn rates(&self, total: u64) -> Rates {
        let Class { device, cpu, .. } = self.classes[Self::class(total)];
        Rates {
            floor_ns: self.floor_ns.unwrap_or(0),
            device: device.rate.unwrap_or(self.config.device_rate),
            cpu: cpu.rate.unwrap_or(self.config.cpu_rate),
        }
    }
}

impl Default for Tuner {
    fn default() -> Self {
        Self::new(TunerConfig::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn timed(bytes: u64, ns: u64) -> Part {
        Part { bytes, ns: Some(ns) }
    }

    /// Bytes of the device, where it may have all.
    fn share(tuner: &Tuner, total: u64) -> u64 {
        tuner.decide(total).rates.share(total, total)
    }

    #[test]
    fn shares_follow_what_was_measured_for_batches_of_that_size_alone() {
        let mut tuner = Tuner::default();
        let first = tuner.decide(MIB);
        assert_eq!((share(&tuner, MIB), first.is_sampled), (MIB / 2, true));
        tuner.note(&first, timed(16, 16_000), timed(MIB, 100_000));
        for _ in 0..100 {
            tuner.note(&first, timed(MIB, 116_000), timed(MIB, 100_000));
        }
        let Rates { floor_ns, device, cpu } = tuner.rates(MIB);
        assert!((16_000..18_000).contains(&floor_ns), "{floor_ns}");
        assert!(device.abs_diff(cpu) < cpu / 20, "{device} {cpu}");
        assert!(share(&tuner, MIB) < MIB / 2, "the floor counts");
        let others = tuner.rates(4 * MIB);
        assert_eq!((others.device, others.cpu), tuner_starts());
    }

    fn tuner_starts() -> (u64, u64) {
        let config = TunerConfig::default();
        (config.device_rate, config.cpu_rate)
    }

    #[test]
    fn a_sample_moves_a_rate_by_its_part_and_one_without_a_time_not_at_all() {
        let mut tuner = Tuner::default();
        let decision = tuner.decide(MIB);
        let untimed = Part { bytes: 5000, ns: None };
        tuner.note(&decision, untimed, timed(1000, 100));
        tuner.note(&decision, untimed, timed(2000, 100));
        tuner.note(&decision, timed(0, 100), untimed);
        let Rates { floor_ns, device, cpu } = tuner.rates(MIB);
        assert_eq!((floor_ns, device, cpu), (0, tuner_starts().0, 12_500_000_000));
        tuner.note(&decision, timed(1000, 0), timed(1000, 0));
        assert!(tuner.rates(MIB).cpu > cpu, "no time at all is a nanosecond");
    }

    #[test]
    fn who_had_nothing_for_long_gets_some_again_and_then_more() {
        let config = TunerConfig { probe_every: 5, ..TunerConfig::default() };
        for idle in [0, 1] {
            let mut tuner = Tuner::new(config);
            let untimed = Part { bytes: MIB, ns: None };
            let parts = [untimed, Part::default()];
            for _ in 0..5 {
                let decision = tuner.decide(MIB);
                assert_eq!(decision.rates, Tuner::default().rates(MIB));
                tuner.note(&decision, parts[1 - idle], parts[idle]);
            }
            for percent in if idle == 1 { [75, 25] } else { [25, 75] } {
                let probe = tuner.decide(MIB);
                assert_eq!((probe.rates, probe.is_sampled), (Rates::fixed(percent), true));
                tuner.note(&probe, parts[1 - idle], parts[idle]);
            }
        }
    }

    #[test]
    fn after_the_first_batches_only_some_are_timed_and_no_size_is_out_of_range() {
        let mut tuner = Tuner::default();
        for _ in 0..SAMPLED_FIRST {
            let decision = tuner.decide(MIB);
            assert!(decision.is_sampled);
            tuner.note(&decision, timed(1, 1), timed(1, 1));
        }
        let mut sampled = 0;
        for _ in 0..40 {
            let decision = tuner.decide(MIB);
            sampled += u32::from(decision.is_sampled);
            tuner.note(&decision, timed(1, 1), timed(1, 1));
        }
        assert_eq!(sampled, 10);
        assert_eq!(share(&tuner, 0), 0);
        let decision = tuner.decide(u64::MAX);
        tuner.note(&decision, timed(u64::MAX, u64::MAX), timed(u64::MAX, 0));
        assert!(share(&tuner, u64::MAX) < u64::MAX);
    }
}
