//! What the hybrid would come to with a real device: *simulated*, with rates that others published.
//!
//! There is no time and no memory here: a [`Model`] says how long device and CPU take for parts of a batch, and the shipped
//! [`split`](super::split) and [`Tuner`] decide. Device: averages of single copies with DSA from DTO's sample histogram (1.2 us
//! at 8 to 12 KB, 1.9 at 32 KB, 2.5 at 54 KB, 5 to 6 at 128 to 147 KB, 15 at 280 KB, 28 at 1 MB, a floor of about 1 us),
//! straight lines between; in a batch, the largest takes that long and the others come at 30 GB/s, where one device is said
//! to saturate. CPU: 10 GB/s, one core. Not in the model: what handing over costs the CPU, page faults, other users of memory.

use std::fmt;

use super::split::{Part, Plan, Rates, SplitConfig, split};
use super::tuner::{self, Tuner};

/// Points of the device's curve: bytes of one copy, nanoseconds.
const PUBLISHED: [(u64, u64); 7] = [
    (0, 1_000),
    (10 << 10, 1_200),
    (32 << 10, 1_900),
    (54 << 10, 2_500),
    (138 << 10, 5_500),
    (280 << 10, 15_000),
    (1 << 20, 28_000),
];
/// Bytes a second at which a device saturates.
const SATURATED: u64 = 30_000_000_000;
/// Bytes a second of one core.
const CORE: u64 = 10_000_000_000;
/// Batches that the hybrid learns from before it is looked at, and then.
const LEARNING: u32 = 256;
const LOOKED_AT: u32 = 1024;

/// A device and a CPU, as times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// Bytes a second of the CPU.
    pub cpu_rate: u64,
    /// Bytes a second of the device for all but the largest of a batch.
    pub device_rate: u64,
}

impl Default for Model {
    fn default() -> Self {
        Self { cpu_rate: CORE, device_rate: SATURATED }
    }
}

fn at_rate(bytes: u64, rate: u64) -> u64 {
    let ns = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

fn bytes(parts: &[Part]) -> u64 {
    parts.iter().map(|part| part.length as u64).sum()
}

impl Model {
    /// Nanoseconds that one copy takes the device.
    #[must_use]
    pub fn one(&self, bytes: u64) -> u64 {
        let pairs = PUBLISHED.windows(2);
        let line = pairs.map(|pair| (pair[0], pair[1])).find(|(_, (to, _))| bytes <= *to);
        match line {
            Some(((from, low), (to, high))) => low + (high - low) * (bytes - from) / (to - from),
            None => {
                let (most, ns) = PUBLISHED[PUBLISHED.len() - 1];
                ns + at_rate(bytes - most, self.device_rate)
            }
        }
    }

    /// Nanoseconds that the device takes for a batch, or nothing for nothing.
    #[must_use]
    pub fn device(&self, parts: &[Part]) -> u64 {
        let largest = parts.iter().map(|part| part.length as u64).max();
        largest.map_or(0, |largest| {
            self.one(largest) + at_rate(bytes(parts) - largest, self.device_rate)
        })
    }

    /// Nanoseconds that the CPU takes.
    #[must_use]
    pub fn cpu(&self, parts: &[Part]) -> u64 {
        at_rate(bytes(parts), self.cpu_rate)
    }

    /// Nanoseconds that a plan takes.
    #[must_use]
    pub fn plan(&self, plan: &Plan) -> u64 {
        self.device(&plan.device).max(self.cpu(&plan.cpu))
    }
}

/// One batch, copied in four ways. All of it is simulated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// What is in the batch.
    pub batch: String,
    /// Bytes in it.
    pub bytes: u64,
    /// Nanoseconds of the CPU alone.
    pub cpu_ns: u64,
    /// Nanoseconds with the device for all that it may have.
    pub device_ns: u64,
    /// Nanoseconds with the best share that is the same each time,
    pub fixed_ns: u64,
    /// and that share of the bytes, in percent.
    pub fixed_percent: u64,
    /// Nanoseconds of the hybrid once it has learnt, its probes included: the average of a batch.
    pub hybrid_ns: u64,
}

/// A batch of so many items of each length.
#[must_use]
pub fn row(model: &Model, items: &[(usize, usize)]) -> Row {
    let config = SplitConfig::default();
    let lengths: Vec<usize> =
        items.iter().flat_map(|(count, length)| std::iter::repeat_n(*length, *count)).collect();
    let total: u64 = lengths.iter().map(|length| *length as u64).sum();
    let mut plan = Plan::default();
    let mut time = |percent: u64| {
        split(&lengths, Rates::fixed(percent), config, &mut plan);
        model.plan(&plan)
    };
    let shares = (0..=100).map(|percent| (time(percent), percent));
    let (fixed_ns, fixed_percent) = shares.min().unwrap_or_default();
    let (cpu_ns, device_ns) = (time(0), time(100));
    let mut tuner = Tuner::default();
    let mut sum = 0;
    for batch in 0..LEARNING + LOOKED_AT {
        let decision = tuner.decide(total);
        split(&lengths, decision.rates, config, &mut plan);
        let part = |parts: &[Part], ns| tuner::Part { bytes: bytes(parts), ns: Some(ns) };
        let (device, cpu) = (model.device(&plan.device), model.cpu(&plan.cpu));
        tuner.note(&decision, part(&plan.device, device), part(&plan.cpu, cpu));
        if batch >= LEARNING {
            sum += device.max(cpu);
        }
    }
    let hybrid_ns = sum / u64::from(LOOKED_AT);
    let batch: Vec<String> =
        items.iter().map(|(count, length)| format!("{count} x {length} B")).collect();
    let batch = batch.join(" + ");
    Row { batch, bytes: total, cpu_ns, device_ns, fixed_ns, fixed_percent, hybrid_ns }
}

/// Batches of one size each, alone and 32 at once, and one of small and large items.
#[must_use]
pub fn table() -> Vec<Row> {
    let model = Model::default();
    let sizes = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024].map(|kib| kib << 10);
    let alone = sizes.iter().map(|size| vec![(1, *size)]);
    let many = sizes.iter().map(|size| vec![(32, *size)]);
    let mixed = vec![(96, 300), (24, 4 << 10), (8, 64 << 10)];
    alone.chain(many).chain([mixed]).map(|items| row(&model, &items)).collect()
}

impl fmt::Display for Row {
    /// A line of the table that [`HEAD`] is the head of.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |ns: u64| format!("{}.{:02}", ns / 1000, ns % 1000 / 10);
        let fixed = format!("{} at {:>2} %", us(self.fixed_ns), self.fixed_percent);
        write!(
            f,
            "{:<36} {:>9} {:>9} {:>17} {:>9}",
            self.batch,
            us(self.cpu_ns),
            us(self.device_ns),
            fixed,
            us(self.hybrid_ns)
        )
    }
}

/// The head of the table.
pub const HEAD: &str =
    "batch (simulated, us)                      cpu    device  best fixed share    hybrid";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hybrid_comes_within_a_tenth_of_the_best_fixed_share_at_each_size() {
        let rows = table();
        assert_eq!(rows.len(), 21);
        for row in rows {
            assert!(row.hybrid_ns * 10 <= row.fixed_ns * 11, "{HEAD}\n{row}");
            assert!(row.fixed_ns <= row.cpu_ns.min(row.device_ns), "{HEAD}\n{row}");
        }
    }

    #[test]
    fn it_does_so_too_where_rates_are_others() {
        for (cpu_rate, device_rate) in
            [(1, 30), (4, 30), (20, 30), (40, 30), (10, 3), (10, 10), (30, 60)]
        {
            let giga = 1_000_000_000;
            let model = Model { cpu_rate: cpu_rate * giga, device_rate: device_rate * giga };
            for count in [1, 2, 3, 8, 32, 128] {
                for length in [1000, 2500, 5000, 20_000, 100_000, 1_000_000] {
                    let row = row(&model, &[(count, length)]);
                    assert!(row.hybrid_ns * 10 <= row.fixed_ns * 11, "{model:?}\n{HEAD}\n{row}");
                }
            }
        }
    }

    #[test]
    fn the_device_is_as_published_and_a_batch_saturates_it() {
        let model = Model::default();
        for (bytes, ns) in PUBLISHED {
            assert_eq!(model.one(bytes), ns);
        }
        assert_eq!(model.one(21 << 10), 1_550);
        assert_eq!(model.one((1 << 20) + 30_000), 29_000);
        assert_eq!(model.device(&[]), 0);
        let parts = [Part { item: 0, from: 0, length: 30_000_000 }; 10];
        let rate = 300_000_000_u64 * 1000 / model.device(&parts);
        assert!((29_000..=30_100).contains(&rate), "MB/s: {rate}");
    }

    #[test]
    fn small_items_alone_are_the_cpus_and_one_large_one_is_cut() {
        let model = Model::default();
        let small = row(&model, &[(128, 1000)]);
        assert_eq!((small.hybrid_ns, small.fixed_percent), (small.cpu_ns, 0));
        let large = row(&model, &[(1, 1 << 20)]);
        assert!(large.hybrid_ns < large.device_ns && large.device_ns < large.cpu_ns);
    }
}
