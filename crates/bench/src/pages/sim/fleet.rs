//! A fleet's day, as JSON and as text.

use std::fmt::Write as _;

use nearfar_sim::fleet::{Estimate, Fleet, Options, QUANTILES, STRATA, WINDOW_S};
use serde::Serialize;

use super::SIMULATED;
use nearfar_command::output::wrapped;

/// The results: JSON `nearfar.sim-fleet/1`.
#[derive(Debug, Serialize)]
pub struct Document {
    schema: &'static str,
    simulated: bool,
    nearfar: &'static str,
    policy: &'static str,
    hosts: u32,
    seed: u64,
    rate_gbps: f64,
    sampled_host_hours: u64,
    speedup_vs_off: Sampled,
    moved_bytes_per_host_day: Sampled,
    host_speedups: Vec<Quantile>,
    hosts_slower_by_2_percent: f64,
    hosts_faster_by_2_percent: f64,
    seconds: f64,
}

/// A figure and twice its standard error.
#[derive(Debug, Serialize)]
struct Sampled {
    mean: f64,
    error: f64,
}

#[derive(Debug, Serialize)]
struct Quantile {
    quantile: f64,
    speedup: f64,
}

impl Document {
    /// The document of a fleet, with the duration of its simulation.
    pub fn of(options: &Options, fleet: &Fleet, seconds: f64) -> Self {
        let sampled = |of: Estimate| Sampled { mean: of.mean, error: of.error };
        let quantiles = QUANTILES.into_iter().zip(fleet.percentiles);
        Self {
            schema: "nearfar.sim-fleet/1",
            simulated: true,
            nearfar: env!("CARGO_PKG_VERSION"),
            policy: options.policy.name(),
            hosts: options.hosts,
            seed: options.seed,
            rate_gbps: options.rate_gbps,
            sampled_host_hours: fleet.sampled_hours,
            speedup_vs_off: sampled(fleet.speedup),
            moved_bytes_per_host_day: sampled(fleet.moved_bytes),
            host_speedups: quantiles
                .map(|(quantile, speedup)| Quantile { quantile, speedup })
                .collect(),
            hosts_slower_by_2_percent: fleet.worse,
            hosts_faster_by_2_percent: fleet.better,
            seconds,
        }
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "SIMULATED fleet: {} hosts of 1 TiB for a day under {}, seed {}: {} of {} host-hours, in {:.0} s",
            self.hosts,
            self.policy,
            self.seed,
            self.sampled_host_hours,
            u64::from(self.hosts) * 24,
            self.seconds
        );
        let Sampled { mean, error } = self.speedup_vs_off;
        let _ = writeln!(out, "\nthroughput over that of moving nothing  {mean:.3} ± {error:.3}");
        let Sampled { mean, error } = self.moved_bytes_per_host_day;
        let _ =
            writeln!(out, "moved on a host in the day   {:.0} ± {:.0} GB", mean / 1e9, error / 1e9);
        let _ = write!(out, "hosts over the day          ");
        for of in &self.host_speedups {
            let name = match of.quantile {
                0.0 => "least".to_owned(),
                1.0 => "most".to_owned(),
                part => format!("P{:.0}", part * 100.0),
            };
            let _ = write!(out, " {name} {:.3}", of.speedup);
        }
        let _ = writeln!(
            out,
            "\nhosts slower by more than 2 %  {:.1} %, faster by more than 2 %  {:.1} %",
            100.0 * self.hosts_slower_by_2_percent,
            100.0 * self.hosts_faster_by_2_percent
        );
        let method = format!(
            "Sampled: a page stands for 256 MiB that are alike; loads last an hour; of {STRATA} parts of the day every host \
             draws one hour each, of which {WINDOW_S} s are simulated, the rest being taken to be as their last quarter. ± is \
             two standard errors of that sample. The fleet is assumed: nobody published one (docs/sim.md)."
        );
        wrapped(&mut out, "\n", &method, 0);
        wrapped(&mut out, "", SIMULATED, 0);
        out
    }
}
