//! Adversaries: conditions under which a controller that migrates memory does harm, measured against no migration.
//!
//! All use Colloid's two tiers ([`crate::published::colloid`]): contention by other programs as a square wave, faster
//! and slower than memory can follow; a hot set that wanders; sensors that lose half of their readings, or have a
//! constant error of 20 %; moves that fail despite free memory; a second controller of the same pages, unaware of the
//! first. The baseline is the same run without migration: near memory filled with the pages that were hottest at
//! first.

use crate::live::{Both, Controller, Settings, Still, World};
use crate::pages::Pages;
use crate::policy::Policy;
use crate::published::colloid::{self, CONTENDING_LINES};
use crate::unable::Unable;
use crate::{threads, workload};

/// Periods of the square waves, ms.
const PERIODS_MS: [u32; 8] = [200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 60_000];

/// A condition that a policy has to withstand.
#[derive(Clone, Debug, PartialEq)]
pub struct Adversary {
    /// Its description.
    pub what: String,
    /// Latency of far memory.
    pub far_ns: f64,
    /// Contention in one half of each period, none in the other. With a period of 0, contention all the time.
    contention: f64,
    period_ms: u32,
    /// Seconds after which a third of the hot set moves elsewhere; 0 is never.
    wanders_s: u32,
    /// Sensor errors, and the share of refused moves.
    loss: f64,
    bias: f64,
    refused: f64,
    /// Whether there are two controllers.
    two: bool,
}

/// All of them.
#[must_use]
pub fn all() -> Vec<Adversary> {
    let steady = |what: &str, contention: f64| Adversary {
        what: what.to_owned(),
        far_ns: 135.0,
        contention,
        period_ms: 0,
        wanders_s: 0,
        loss: 0.0,
        bias: 0.0,
        refused: 0.0,
        two: false,
    };
    let mut found = Vec::new();
    for (far_ns, contention) in [(135.0, 1.0), (135.0, 3.0), (192.0, 3.0)] {
        for period_ms in PERIODS_MS {
            let seconds = f64::from(period_ms) / 1000.0;
            let what = format!("contention of {contention} every other half of {seconds} s");
            found.push(Adversary { far_ns, period_ms, ..steady(&what, contention) });
        }
    }
    for contention in [0.0, 1.0] {
        for wanders_s in [2, 10, 30] {
            let what = format!(
                "a third of the hot set elsewhere every {wanders_s} s, contention {contention}"
            );
            found.push(Adversary { wanders_s, ..steady(&what, contention) });
        }
    }
    for contention in [0.0, 1.0, 3.0] {
        let named = |what: &str| steady(&format!("{what}, contention {contention}"), contention);
        found.push(Adversary { loss: 0.5, ..named("half of all readings and samples lost") });
        found.push(Adversary { bias: 0.2, ..named("latencies 20 % too high") });
        found.push(Adversary { bias: -0.2, ..named("latencies 20 % too low") });
        found.push(Adversary { refused: 0.5, ..named("half of all moves refused") });
        found.push(Adversary { two: true, ..named("two controllers at once") });
    }
    found
}

/// The result of a policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Stood {
    /// Throughput of the whole run, relative to no migration.
    pub of_off: f64,
    /// Migration in 10^9 bytes per second, over the whole run.
    pub moved_gbps: f64,
    /// The same in its second half, as a share of the workload's own traffic.
    pub churn: f64,
}

/// A policy against each of `adversaries`, over `seconds` or three periods, the longer of them.
///
/// # Errors
/// The study's machine or workload is invalid.
pub fn stand(
    policy: Policy,
    adversaries: &[Adversary],
    seconds: u32,
    settings: &Settings,
) -> Result<Vec<Stood>, Unable> {
    let one = |of: &Adversary| {
        let mut controller = policy.controller().unwrap_or_else(|| Box::new(Still));
        if let (true, Some(other)) = (of.two, policy.controller()) {
            controller = Box::new(Both(controller, other));
        }
        of.stand(controller.as_mut(), seconds, settings)
    };
    threads::map(adversaries, one).into_iter().collect()
}

/// Mean bytes per nanosecond of the workload and of migration: over the whole run, and over its second half.
type Run = [(f64, f64); 2];

impl Adversary {
    fn stand(
        &self,
        controller: &mut dyn Controller,
        seconds: u32,
        settings: &Settings,
    ) -> Result<Stood, Unable> {
        let [(off, _), _] = self.run(&mut Still, seconds, settings)?;
        let [(gbps, moved_gbps), (late, churn)] = self.run(controller, seconds, settings)?;
        Ok(Stood { of_off: gbps / off, moved_gbps, churn: churn / late })
    }

    fn run(
        &self,
        controller: &mut dyn Controller,
        seconds: u32,
        settings: &Settings,
    ) -> Result<Run, Unable> {
        let machine = colloid::machine(self.far_ns)?;
        let workload = workload::find("hot-set", &machine)?;
        let mut pages = Pages::of(&workload, settings.seed);
        pages.first_touch(&workload, &machine);
        let hot = workload.regions[0].pages as usize;
        let mut settings = Settings { refused: self.refused, ..settings.clone() };
        (settings.sensors.loss, settings.sensors.bias) = (self.loss, self.bias);
        let epoch_ms = settings.epoch_ms.max(1);
        let ms = (seconds * 1000).max(3 * self.period_ms);
        let mut world = World::new(&machine, &workload, pages, settings);
        let mut sums = [(0.0, 0.0); 2];
        let epochs = ms / epoch_ms;
        for epoch in 0..epochs {
            let now_ms = epoch * epoch_ms;
            let on = self.period_ms == 0 || now_ms % self.period_ms >= self.period_ms / 2;
            world.contend(if on { self.contention * CONTENDING_LINES } else { 0.0 });
            if self.wanders_s > 0 && epoch > 0 && now_ms.is_multiple_of(1000 * self.wanders_s) {
                world.rotate(hot / 3);
            }
            let done = world.step(controller)?;
            #[expect(clippy::cast_precision_loss, reason = "bytes, for a mean")]
            let moved = done.moved_bytes as f64 / (f64::from(epoch_ms) * 1e6);
            for (at, sum) in sums.iter_mut().enumerate() {
                if at == 0 || epoch >= epochs / 2 {
                    *sum = (sum.0 + done.figures.gbps, sum.1 + moved);
                }
            }
        }
        let mean = |(gbps, moved): (f64, f64), count: u32| {
            (gbps / f64::from(count.max(1)), moved / f64::from(count.max(1)))
        };
        Ok([mean(sums[0], epochs), mean(sums[1], epochs - epochs / 2)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::{Act, Readings};

    /// Moves pages back and forth for ever.
    #[derive(Default)]
    struct Restless(u32);

    impl Controller for Restless {
        fn tick(&mut self, readings: &Readings<'_>) -> Vec<Act> {
            self.0 += 1;
            let to = u16::from(self.0.is_multiple_of(2));
            if readings.waiting > 0 {
                Vec::new()
            } else {
                (0..100).map(|page| Act::Move { page, to }).collect()
            }
        }
    }

    #[test]
    fn useless_migration_is_reported_as_a_loss() {
        let settings = Settings::default();
        let one = &all()[0];
        let found = one.stand(&mut Restless::default(), 3, &settings).unwrap();
        assert!(found.of_off < 0.99 && found.moved_gbps > 1.0 && found.churn > 0.01, "{found:?}");
        let still = one.stand(&mut Still, 3, &settings).unwrap();
        assert!((still.of_off - 1.0).abs() < 1e-12 && still.moved_gbps.abs() < 1e-12);
    }

    #[test]
    fn a_wandering_hot_set_lowers_throughput_without_migration() {
        let one =
            |wanders_s| Adversary { wanders_s, contention: 0.0, period_ms: 0, ..all()[0].clone() };
        let gbps = |wanders| one(wanders).run(&mut Still, 6, &Settings::default()).unwrap()[0].0;
        assert!(gbps(2) < 0.95 * gbps(0), "{} {}", gbps(2), gbps(0));
    }
}
