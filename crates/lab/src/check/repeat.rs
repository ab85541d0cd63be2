//! Checks that results in a guest do not depend on the host: the same programs, boot after boot, on an idle host and
//! beside busy loops of this process.
//!
//! Each boot measures the bandwidth of each path and the latency of one chain. The middle of the boots on the idle host
//! is the reference; each value beside the load is compared with it. A boot that fails is counted and has no values, and
//! so is one that counts as invalid by its own statistics, because the host has distorted its time.

use std::fmt::Write as _;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};

use nearfar_topology::median;
use serde::Serialize;

use super::accuracy::paths;
use super::array_mib;
use super::programs::Programs;
use super::{CheckError, Results, STATISTICS, Setting, in_guest};
use crate::fetch::Say;
use crate::host;
use crate::machine::Machine;

/// Largest accepted difference from the reference.
pub const OFF_PERCENT_MAX: f64 = 1.0;
/// Boots on the idle host.
const REFERENCES: usize = 3;

/// Results of one quantity.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The quantity.
    pub what: String,
    /// Its unit.
    pub unit: &'static str,
    /// Values on the idle host.
    pub idle: Vec<f64>,
    /// Values beside the load.
    pub loaded: Vec<f64>,
    /// Largest difference of a value beside the load from the middle of those on the idle host, in per cent.
    pub off_percent: f64,
}

/// Results of all boots.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Repeat {
    /// `nearfar.lab-repeat/1`.
    pub schema: &'static str,
    /// The machine.
    pub machine: String,
    /// The kernel.
    pub kernel: String,
    /// Busy loops.
    pub load: usize,
    /// Boots beside them.
    pub boots: usize,
    /// Boots that ended without a result.
    pub failed: Vec<String>,
    /// Boots that are invalid by their own statistics, because the host has distorted their time.
    pub distorted: usize,
    /// Quantities.
    pub rows: Vec<Row>,
    /// The largest accepted difference.
    pub off_percent_max: f64,
}

/// Threads that count in registers until dropped.
struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    fn of(loops: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let busy = |_| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                while !stop.load(Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        let threads = (0..loops).map(busy).collect();
        Self { stop, threads }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            // A loop that panicked has ended, too.
            let _ = thread.join();
        }
    }
}

/// Boots some times on the host as it is and `boots` times beside `load` busy loops.
///
/// # Errors
/// [`CheckError`] if a boot without the load failed; with it, failures are results.
pub fn check(
    setting: &Setting,
    machine: &Machine,
    (boots, load): (usize, usize),
    say: &dyn Say,
) -> Result<Repeat, CheckError> {
    let programs = Programs::compile()?;
    let script = script(machine);
    let boot = || -> Result<(Vec<f64>, bool), CheckError> {
        in_guest(setting, machine, &programs, &script, say)?;
        let said = programs.take("results");
        let statistics = fs::read_to_string(programs.dir().join(STATISTICS)).unwrap_or_default();
        let values = values(machine, &said).map_err(|found| CheckError::Said {
            machine: machine.name.clone(),
            cpus: machine.cpus(),
            found,
        })?;
        Ok((values, host::distorted(&statistics).is_none()))
    };
    let mut idle = Vec::new();
    for number in 1..=REFERENCES {
        say.line(&format!("idle host, boot {number} of {REFERENCES}"));
        idle.push(boot()?.0);
    }
    let (mut loaded, mut failed, mut distorted) = (Vec::new(), Vec::new(), 0);
    let busy = Load::of(load);
    for number in 1..=boots {
        say.line(&format!("beside {load} busy loops, boot {number} of {boots}"));
        match boot() {
            Ok((values, true)) => loaded.push(values),
            Ok((_, false)) => distorted += 1,
            Err(error @ CheckError::Interrupted(_)) => return Err(error),
            Err(error) => failed.push(error.to_string()),
        }
    }
    drop(busy);
    Ok(Repeat {
        schema: "nearfar.lab-repeat/1",
        machine: machine.name.clone(),
        kernel: setting.kernel.clone(),
        load,
        boots,
        failed,
        distorted,
        rows: rows(machine, &idle, &loaded),
        off_percent_max: OFF_PERCENT_MAX,
    })
}

/// Quantities that a boot measures: name, unit, and command.
fn measured(machine: &Machine) -> Vec<(String, &'static str, String)> {
    let mb = array_mib(machine);
    let of_path = |(from, cpu, threads, to): (u16, usize, u32, u16)| {
        let array = format!("node={to} cpu={cpu} mb={mb}");
        [
            (
                format!("bandwidth {from} > {to}"),
                "gbps",
                format!("/out/bandwidth {array} threads={threads} rounds=5 mix=1:0"),
            ),
            (
                format!("latency {from} > {to}"),
                "latency_ns",
                format!("/out/chase {array} huge=1 steps=20000"),
            ),
        ]
    };
    paths(machine).into_iter().flat_map(of_path).collect()
}

fn script(machine: &Machine) -> String {
    let mut text = String::from("set -e\nexec >/out/results\nsleep 1\n");
    for (_, _, command) in measured(machine) {
        let _ = writeln!(text, "{command}");
    }
    text
}

/// The values that a boot's programs printed.
fn values(machine: &Machine, said: &str) -> Result<Vec<f64>, String> {
    let mut results = Results::of(said);
    let one = |(_, unit, _): (String, &'static str, String)| results.take_number(unit);
    measured(machine).into_iter().map(one).collect()
}

fn rows(machine: &Machine, idle: &[Vec<f64>], loaded: &[Vec<f64>]) -> Vec<Row> {
    let row = |(at, (what, unit, _)): (usize, (String, &'static str, String))| {
        let of = |boots: &[Vec<f64>]| boots.iter().map(|boot| boot[at]).collect::<Vec<f64>>();
        let (idle, loaded) = (of(idle), of(loaded));
        let middle = median(idle.iter().copied()).unwrap_or(f64::NAN);
        let off = loaded.iter().map(|value| (value / middle - 1.0).abs() * 100.0);
        let off_percent = off.fold(0.0, f64::max);
        Row { what, unit: if unit == "gbps" { "GB/s" } else { "ns" }, idle, loaded, off_percent }
    };
    measured(machine).into_iter().enumerate().map(row).collect()
}

impl Repeat {
    /// Whether no boot failed, and every value is as on the idle host.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        let same = |row: &Row| !row.loaded.is_empty() && row.off_percent <= self.off_percent_max;
        self.failed.is_empty() && self.rows.iter().all(same)
    }

    /// As JSON.
    #[must_use]
    pub fn json(&self) -> String {
        // Strings and finite numbers always become JSON.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// As a table.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { machine, kernel, load, boots, failed, distorted, rows, .. } = self;
        let mut out = format!(
            "{machine}, kernel {kernel}: {REFERENCES} boots on the idle host, {boots} beside {load} busy loops\n"
        );
        let ended = boots - failed.len();
        let _ = writeln!(
            out,
            "  {ended} of {boots} boots ended with a result; {distorted} of them not valid by their statistics"
        );
        for error in failed {
            let _ = writeln!(out, "  failed: {error}");
        }
        for Row { what, unit, idle, loaded, off_percent } in rows {
            let range = |values: &[f64]| {
                let least = values.iter().copied().fold(f64::INFINITY, f64::min);
                let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                if values.is_empty() {
                    "none".to_owned()
                } else {
                    format!("{least:.2} to {most:.2}")
                }
            };
            let mark = if *off_percent <= self.off_percent_max { "" } else { "  OFF" };
            let _ = writeln!(
                out,
                "  {what:<18}  idle {:<18}  loaded {:<18} {unit:<4}  off {off_percent:.2} %{mark}",
                range(idle),
                range(loaded)
            );
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::catalog::built_in;

    fn boot(factor: f64) -> Vec<f64> {
        let said = "{\"gbps\":50}\n{\"latency_ns\":100}\n{\"gbps\":20}\n{\"latency_ns\":200}\n";
        let values = values(&built_in("cxl-2tier").unwrap(), said).unwrap();
        values.iter().map(|value| value * factor).collect()
    }

    fn repeat(loaded: &[Vec<f64>], failed: &[&str]) -> Repeat {
        let machine = built_in("cxl-2tier").unwrap();
        Repeat {
            schema: "",
            machine: machine.name.clone(),
            kernel: "6.12".to_owned(),
            load: 30,
            boots: loaded.len() + failed.len(),
            failed: failed.iter().map(|text| (*text).to_owned()).collect(),
            distorted: 0,
            rows: rows(&machine, &[boot(1.0), boot(1.001), boot(0.999)], loaded),
            off_percent_max: OFF_PERCENT_MAX,
        }
    }

    #[test]
    fn values_equal_to_those_on_the_idle_host_pass_and_others_fail() {
        let found = repeat(&[boot(1.005), boot(0.995)], &[]);
        assert!(found.is_ok() && !found.text().contains("OFF"), "{}", found.text());
        let found = repeat(&[boot(1.0), boot(1.02)], &[]);
        assert!(!found.is_ok());
        assert_eq!(found.text().matches("OFF").count(), 4, "{}", found.text());
    }

    #[test]
    fn a_failed_boot_and_a_missing_value_fail_the_check() {
        let found = repeat(&[boot(1.0)], &["the guest did not come up"]);
        assert!(!found.is_ok() && found.text().contains("1 of 2 boots"), "{}", found.text());
        assert!(!repeat(&[], &[]).is_ok());
    }

    #[test]
    fn a_missing_result_is_an_error() {
        let machine = built_in("cxl-2tier").unwrap();
        assert_eq!(values(&machine, ""), Err("a result is missing".to_owned()));
        assert!(values(&machine, "Killed\n").unwrap_err().contains("no result"));
    }

    #[test]
    fn busy_loops_end_when_they_are_dropped() {
        let load = Load::of(3);
        assert_eq!(load.threads.len(), 3);
        let stop = Arc::clone(&load.stop);
        drop(load);
        assert!(stop.load(Relaxed));
    }
}
