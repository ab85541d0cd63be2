//! What it costs to emulate timing: the time of a boot and a fixed memory-bound program, with the plugin over without.
//!
//! With the plugin, on a machine whose memory takes no time and has no limits, so that only the plugin's own work is
//! added. Runs with and without take turns, so that both see the same host.

use std::fmt::Write as _;

use serde::Serialize;

use super::programs::Programs;
use super::{CheckError, Setting, in_guest};
use crate::clock;
use crate::fetch::Say;
use crate::host::Timing;
use crate::machine::Machine;

/// The most it may cost.
pub const RATIO_MAX: f64 = 2.0;

/// What it cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Overhead {
    /// `nearfar.lab-overhead/1`.
    pub schema: &'static str,
    /// The machine.
    pub machine: String,
    /// CPUs in all.
    pub cpus: u32,
    /// Seconds without the plugin, run by run.
    pub without_s: Vec<f64>,
    /// Seconds with it.
    pub with_s: Vec<f64>,
    /// Median over median.
    pub ratio: f64,
    /// The most that is accepted.
    pub ratio_max: f64,
}

impl Overhead {
    /// Whether it is accepted.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.ratio <= self.ratio_max
    }

    /// As JSON.
    #[must_use]
    pub fn json(&self) -> String {
        // Strings and finite numbers always become JSON.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// As text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = format!(
            "{}, {} CPUs: boot and a memory-bound program, seconds\n  without  with\n",
            self.machine, self.cpus
        );
        for (without, with) in self.without_s.iter().zip(&self.with_s) {
            let _ = writeln!(out, "  {without:>7.2}  {with:>5.2}");
        }
        let _ =
            writeln!(out, "  median over median {:.2}, at most {:.1}", self.ratio, self.ratio_max);
        out
    }
}

/// Takes the time of `pairs` pairs of runs.
///
/// # Errors
/// [`CheckError`] where a run failed.
pub fn check(
    setting: &Setting,
    machine: &Machine,
    pairs: usize,
    say: &dyn Say,
) -> Result<Overhead, CheckError> {
    let programs = Programs::compile()?;
    let plain = Setting { timing: Timing::Off, ..setting.clone() };
    let free = without_cost(machine.clone());
    let time = |setting: &Setting, machine: &Machine| {
        let began = clock::now();
        in_guest(setting, machine, &programs, "/out/membound >/out/results", say)?;
        Ok::<f64, CheckError>(began.elapsed().as_secs_f64())
    };
    // The first run finds nothing in the host's page cache.
    time(&plain, machine)?;
    let (mut without_s, mut with_s) = (Vec::new(), Vec::new());
    for pair in 1..=pairs {
        say.line(&format!("pair {pair} of {pairs}"));
        without_s.push(time(&plain, machine)?);
        with_s.push(time(setting, &free)?);
    }
    let ratio = median(&with_s) / median(&without_s);
    Ok(Overhead {
        schema: "nearfar.lab-overhead/1",
        machine: machine.name.clone(),
        cpus: machine.cpus(),
        without_s,
        with_s,
        ratio,
        ratio_max: RATIO_MAX,
    })
}

/// The machine with memory that takes no time to speak of and has no limits.
fn without_cost(mut machine: Machine) -> Machine {
    machine.slow_motion = 1.0;
    machine.processor.llc_latency_ns = 0.0;
    machine.latency_ns.iter_mut().flatten().for_each(|latency| *latency = 1.0);
    for node in &mut machine.nodes {
        (node.read_gbps, node.write_gbps) = (1000.0, 1000.0);
    }
    machine.paths.clear();
    machine
}

fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::catalog::built_in;

    #[test]
    fn the_costless_machine_is_one_the_plugin_accepts() {
        let machine = without_cost(built_in("numa-4node").unwrap());
        let clock = nearfar_timing::config::Clock::Virtual;
        assert_eq!(crate::machine::timing::config(&machine, clock, None).check(), Ok(()));
    }

    #[test]
    fn a_median_is_not_moved_by_one_slow_run() {
        assert_eq!(median(&[3.0, 90.0, 2.0]), 3.0);
    }
}
