//! A fleet: many hosts of 1 TiB for a day, by sampling. Measures the gain of a policy over all hosts, and the share of
//! hosts that it slows down.
//!
//! # The fleet
//! Each host is drawn from a seed (`host.rs`): the share of near memory, the latency of far memory, the bandwidth of
//! both, the heat of its hot set, its demand, and the demand of others on near memory. Through the day its demand
//! follows its own curve, and others come and go. No published data exist for such a fleet: all parameters are
//! assumptions, and marked as such.
//!
//! # Sampling
//! - *Memory*: a page of the simulation represents 256 MiB of uniform heat, 4096 of them a host's 1 TiB.
//! - *Time*: loads are constant for an hour. The day's 24 hours form [`STRATA`] strata, and every host draws one hour
//!   of each; of that hour the first [`WINDOW_S`] seconds are simulated, starting from the memory and controller state
//!   at the end of the previous one. The window's last quarter represents the rest of the hour.
//! - *Hosts*: all of them are simulated, since hosts differ most.
//!
//! Figures are means over strata and hosts; their error is twice the standard error of a stratified sample, with hosts
//! drawn independently in each stratum. The baseline ("off") does not migrate and has no change within an hour, so its
//! hour is one steady state.

use crate::compare::steady;
use crate::live::{Sensors, Settings, Still, World};
use crate::policy::Policy;
use crate::rng::Rng;
use crate::threads;
use crate::unable::Unable;

mod host;

use host::Host;

/// Parts of the day; one hour of each is simulated.
pub const STRATA: u32 = 3;
/// Simulated seconds of that hour.
pub const WINDOW_S: u32 = 120;
/// Hours per stratum.
const HOURS: u32 = 24 / STRATA;
/// Seconds at the end of a window that represent the rest of the hour.
const LATE_S: u32 = WINDOW_S / 4;
const EPOCH_MS: u32 = 200;

/// Parameters of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Number of hosts.
    pub hosts: u32,
    /// Policy that migrates pages.
    pub policy: Policy,
    /// Maximal migration rate per host, 10^9 bytes/s.
    pub rate_gbps: f64,
    /// Seed of all random draws.
    pub seed: u64,
}

/// A figure with its sampling error.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Two standard errors.
    pub error: f64,
}

/// Results of a simulated day.
#[derive(Clone, Debug, PartialEq)]
pub struct Fleet {
    /// Simulated host-hours, of 24 per host.
    pub sampled_hours: u64,
    /// Throughput of the policy over the baseline, by host-hour.
    pub speedup: Estimate,
    /// Bytes migrated per host and day.
    pub moved_bytes: Estimate,
    /// Speedups of hosts over the day: minimum, 1 %, 10 %, median, 90 %, 99 %, maximum.
    pub percentiles: [f64; 7],
    /// Share of hosts that the policy slowed down by more than 2 %.
    pub worse: f64,
    /// Share of hosts that it sped up by more than 2 %.
    pub better: f64,
}

/// Quantiles of [`Fleet::percentiles`].
pub const QUANTILES: [f64; 7] = [0.0, 0.01, 0.1, 0.5, 0.9, 0.99, 1.0];

/// One hour: throughput with the policy and of the baseline, bytes migrated.
#[derive(Clone, Copy, Debug)]
struct Hour {
    gbps: f64,
    off: f64,
    moved: f64,
}

/// Simulates the day.
///
/// # Errors
/// A drawn host is invalid, which the present ranges exclude, or the controller can't work on it.
pub fn day(options: &Options) -> Result<Fleet, Unable> {
    let hosts: Vec<u64> = (0..u64::from(options.hosts)).collect();
    let days: Result<Vec<Vec<Hour>>, Unable> =
        threads::map(&hosts, |host| of_host(*host, options)).into_iter().collect();
    Ok(summary(&days?))
}

fn of_host(number: u64, options: &Options) -> Result<Vec<Hour>, Unable> {
    let mut rng = Rng::new(options.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (number + 1));
    let host = Host::draw(&mut rng);
    let machine = host.machine()?;
    let workload = host.workload();
    let mut pages = crate::pages::Pages::of(&workload, rng.bits());
    pages.hottest_near(&workload, &machine, 1.0);
    let settings = Settings {
        epoch_ms: EPOCH_MS,
        tick_epochs: 1,
        rate_gbps: options.rate_gbps,
        sensors: Sensors { noise: 0.05, samples: 600, ..Sensors::default() },
        seed: rng.bits(),
        ..Settings::default()
    };
    let off = pages.clone();
    let mut world = World::new(&machine, &workload, pages, settings);
    let mut controller = options.policy.controller().unwrap_or_else(|| Box::new(Still));
    let mut hours = Vec::new();
    for stratum in 0..STRATA {
        let at = stratum * HOURS + rng.below(HOURS);
        let (own, others) = host.load(at, &mut rng);
        world.work(own);
        world.contend(others);
        let mut loaded = workload.clone().contended(others);
        loaded.workers.iter_mut().for_each(|worker| worker.lines = own);
        let (mut all, mut late, epochs) = ((0.0, 0.0), (0.0, 0.0), WINDOW_S * 1000 / EPOCH_MS);
        for epoch in 0..epochs {
            let done = world.step(controller.as_mut())?;
            #[expect(clippy::cast_precision_loss, reason = "bytes, for a mean")]
            let moved = done.moved_bytes as f64;
            all = (all.0 + done.figures.gbps, all.1 + moved);
            if epoch >= epochs - LATE_S * 1000 / EPOCH_MS {
                late = (late.0 + done.figures.gbps, late.1 + moved);
            }
        }
        // The end of the window represents the rest of the hour.
        let rest = f64::from(3600 - WINDOW_S) / f64::from(LATE_S);
        let an_epoch = f64::from(EPOCH_MS) / 1000.0;
        hours.push(Hour {
            gbps: (all.0 + rest * late.0) * an_epoch / 3600.0,
            off: steady(&machine, &loaded, &off).gbps,
            moved: all.1 + rest * late.1,
        });
    }
    Ok(hours)
}

#[expect(clippy::cast_precision_loss, reason = "counts, for means")]
fn summary(days: &[Vec<Hour>]) -> Fleet {
    let mut hosts: Vec<f64> = days
        .iter()
        .map(|hours| {
            let sum = |of: fn(&Hour) -> f64| hours.iter().map(of).sum::<f64>();
            sum(|hour| hour.gbps) / sum(|hour| hour.off)
        })
        .collect();
    hosts.sort_by(f64::total_cmp);
    let quantile = |of: f64| {
        let at = (of * (hosts.len().max(1) - 1) as f64).round();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
        hosts.get(at as usize).copied().unwrap_or(1.0)
    };
    let part = |of: &dyn Fn(f64) -> bool| {
        hosts.iter().filter(|speedup| of(**speedup)).count() as f64 / hosts.len().max(1) as f64
    };
    let of_day = |figure: &dyn Fn(&Hour) -> f64, times: f64| {
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
        let strata: Vec<Vec<f64>> = (0..STRATA as usize)
            .map(|at| days.iter().filter_map(|hours| hours.get(at)).map(figure).collect())
            .collect();
        let means: Vec<f64> = strata.iter().map(|values| mean(values)).collect();
        let variance: f64 = strata
            .iter()
            .zip(&means)
            .map(|(values, mean)| {
                let squares: f64 = values.iter().map(|one| (one - mean) * (one - mean)).sum();
                let count = values.len() as f64;
                squares / (count - 1.0).max(1.0) / count.max(1.0)
            })
            .sum();
        let error = 2.0 * variance.sqrt() / f64::from(STRATA);
        Estimate { mean: times * mean(&means), error: times * error }
    };
    Fleet {
        sampled_hours: days.iter().map(|hours| hours.len() as u64).sum(),
        speedup: of_day(&|hour| hour.gbps / hour.off, 1.0),
        moved_bytes: of_day(&|hour| hour.moved, 24.0),
        percentiles: QUANTILES.map(quantile),
        worse: part(&|speedup| speedup < 0.98),
        better: part(&|speedup| speedup > 1.02),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(policy: Policy, seed: u64) -> Options {
        Options { hosts: 3, policy, rate_gbps: 8.0, seed }
    }

    #[test]
    fn a_fleet_without_migration_has_a_speedup_of_one() {
        let fleet = day(&options(Policy::FirstTouch, 1)).unwrap();
        assert_eq!((fleet.sampled_hours, fleet.worse, fleet.better), (9, 0.0, 0.0));
        assert!((fleet.speedup.mean - 1.0).abs() < 1e-6 && fleet.speedup.error < 1e-6, "{fleet:?}");
        assert!(fleet.moved_bytes.mean.abs() < 1e-9);
    }

    #[test]
    fn a_day_is_determined_by_its_seed() {
        let run = |seed| day(&options(Policy::Balanced, seed)).unwrap();
        let found = run(1);
        assert_eq!(found, run(1));
        assert_ne!(found, run(2));
        assert!(found.percentiles.is_sorted() && found.moved_bytes.mean > 0.0, "{found:?}");
    }

    #[test]
    fn an_estimate_is_stratified_and_has_an_error() {
        let hour = |gbps| Hour { gbps, off: 1.0, moved: 1.0 };
        // Strata differ, hosts do not: the error is zero.
        let alike: Vec<Vec<Hour>> =
            vec![(0..STRATA).map(|at| hour(1.0 + f64::from(at))).collect(); 10];
        let found = summary(&alike);
        assert!((found.speedup.mean - 2.0).abs() < 1e-9 && found.speedup.error < 1e-9);
        assert!((found.moved_bytes.mean - 24.0).abs() < 1e-9);
        let apart: Vec<Vec<Hour>> =
            (0..10).map(|host| vec![hour(f64::from(host)); STRATA as usize]).collect();
        let found = summary(&apart);
        // Ten values of variance 9.17 in each of three strata: 2 sqrt(9.17 / 10 / 3).
        assert!((found.speedup.error - 1.106).abs() < 0.01, "{found:?}");
        assert!((found.worse - 0.1).abs() < 1e-9 && (found.better - 0.8).abs() < 1e-9);
    }

    #[test]
    fn percentiles_are_over_hosts_by_the_ratio_of_daily_sums() {
        let hour = |gbps, off| Hour { gbps, off, moved: 0.0 };
        // Host n: n % faster, in reverse order.
        let days: Vec<Vec<Hour>> =
            (0..=100).rev().map(|host| vec![hour(100.0 + f64::from(host), 100.0); 3]).collect();
        let found = summary(&days);
        for (found, expected) in
            found.percentiles.iter().zip([0.0, 1.0, 10.0, 50.0, 90.0, 99.0, 100.0])
        {
            assert!((found - 1.0 - expected / 100.0).abs() < 1e-9, "{found} {expected}");
        }
        // 3 to 100 % faster are better, none is slower.
        assert!(
            (found.better - 98.0 / 101.0).abs() < 1e-9 && found.worse.abs() < 1e-12,
            "{found:?}"
        );
        // Half of little and three times of much: 1 + 30 + 1 over 2 + 10 + 2.
        let found = summary(&[vec![hour(1.0, 2.0), hour(30.0, 10.0), hour(1.0, 2.0)]]);
        assert!((found.percentiles[3] - 32.0 / 14.0).abs() < 1e-9);
        assert!((found.speedup.mean - 4.0 / 3.0).abs() < 1e-9, "the mean over host-hours");
        assert!(found.speedup.error.abs() < 1e-12, "one host has no deviation");
    }
}
