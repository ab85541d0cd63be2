//! The cost of emulating timing: the run time of a boot and a fixed memory-bound program, with the plugin relative to
//! without; once as the machine file has it, and once with everything that can be switched on.
//!
//! With the plugin, memory has no latency and no limits, so that only the plugin's own work is added. Runs with and
//! without it alternate, so that all see the same host load.

use std::fmt::Write as _;

use nearfar_topology::median;
use serde::Serialize;

use super::programs::Programs;
use super::{CheckError, Setting, in_guest};
use crate::clock;
use crate::fetch::Say;
use crate::host::Timing;
use crate::machine::Machine;

/// Highest accepted ratio.
pub const RATIO_MAX: f64 = 2.2;
/// Highest accepted ratio with everything switched on.
pub const ALL_RATIO_MAX: f64 = 4.0;
/// TLB entries in a run with everything switched on, if the machine has none.
const TLB_ENTRIES: u32 = 2048;

/// Result of the check.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Overhead {
    /// `nearfar.lab-overhead/1`.
    pub schema: &'static str,
    /// The machine.
    pub machine: String,
    /// Total number of CPUs.
    pub cpus: u32,
    /// Seconds without the plugin, run by run.
    pub without_s: Vec<f64>,
    /// Seconds with it.
    pub with_s: Vec<f64>,
    /// Seconds with address translation and coherence switched on.
    pub all_s: Vec<f64>,
    /// Median over median.
    pub ratio: f64,
    /// The highest accepted ratio.
    pub ratio_max: f64,
    /// Median over median with everything switched on.
    pub all_ratio: f64,
    /// The highest accepted one.
    pub all_ratio_max: f64,
}

impl Overhead {
    /// Whether both ratios are accepted.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.ratio <= self.ratio_max && self.all_ratio <= self.all_ratio_max
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
            "{}, {} CPUs: boot and a memory-bound program, seconds\n  without   with  everything on\n",
            self.machine, self.cpus
        );
        for ((without, with), all) in self.without_s.iter().zip(&self.with_s).zip(&self.all_s) {
            let _ = writeln!(out, "  {without:>7.2}  {with:>5.2}  {all:>13.2}");
        }
        let _ = writeln!(
            out,
            "  median over median {:.2}, at most {:.1}; everything on {:.2}, at most {:.1}",
            self.ratio, self.ratio_max, self.all_ratio, self.all_ratio_max
        );
        out
    }
}

/// Times `pairs` times a run without the plugin, with it, and with everything switched on.
///
/// # Errors
/// [`CheckError`] if a run failed.
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
    // A first run fills the host's page cache.
    time(&plain, machine)?;
    let all = everything_on(free.clone());
    let (mut without_s, mut with_s, mut all_s) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 1..=pairs {
        say.line(&format!("pair {pair} of {pairs}"));
        without_s.push(time(&plain, machine)?);
        with_s.push(time(setting, &free)?);
        all_s.push(time(setting, &all)?);
    }
    let middle = |seconds: &[f64]| median(seconds.iter().copied()).unwrap_or(f64::NAN);
    let ratio = middle(&with_s) / middle(&without_s);
    let all_ratio = middle(&all_s) / middle(&without_s);
    Ok(Overhead {
        schema: "nearfar.lab-overhead/1",
        machine: machine.name.clone(),
        cpus: machine.cpus(),
        without_s,
        with_s,
        all_s,
        ratio,
        ratio_max: RATIO_MAX,
        all_ratio,
        all_ratio_max: ALL_RATIO_MAX,
    })
}

/// The machine with memory of negligible latency and without limits.
fn without_cost(mut machine: Machine) -> Machine {
    machine.slow_motion = 1.0;
    machine.processor.llc_latency_ns = 0.0;
    machine.latency_ns.iter_mut().flatten().for_each(|latency| *latency = 1.0);
    for node in &mut machine.nodes {
        (node.read_gbps, node.write_gbps) = (1000.0, 1000.0);
        node.curves = None;
    }
    machine.paths.clear();
    machine
}

fn everything_on(mut machine: Machine) -> Machine {
    let processor = &mut machine.processor;
    processor.coherence = true;
    processor.tlb_entries = processor.tlb_entries.max(TLB_ENTRIES);
    machine
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::catalog::built_in;

    #[test]
    fn the_plugin_accepts_the_machine_without_costs() {
        let machine = without_cost(built_in("numa-4node").unwrap());
        let clock = nearfar_timing::config::Clock::Virtual;
        assert_eq!(crate::machine::timing::config(&machine, clock, None).check(), Ok(()));
        let all = everything_on(machine);
        assert!(all.processor.coherence && all.processor.tlb_entries >= TLB_ENTRIES);
        assert_eq!(crate::machine::timing::config(&all, clock, None).check(), Ok(()));
    }

    #[test]
    fn each_ratio_has_its_own_limit() {
        let cost = |ratio, all_ratio| Overhead {
            schema: "nearfar.lab-overhead/1",
            machine: "cxl-2tier".to_owned(),
            cpus: 1,
            without_s: vec![1.0],
            with_s: vec![ratio],
            all_s: vec![all_ratio],
            ratio,
            ratio_max: RATIO_MAX,
            all_ratio,
            all_ratio_max: ALL_RATIO_MAX,
        };
        assert!(cost(2.1, 3.9).is_ok() && !cost(2.3, 3.9).is_ok() && !cost(2.1, 4.1).is_ok());
        assert!(cost(2.1, 3.9).text().contains("everything on 3.90, at most 4.0"));
    }
}
