//! Checks that guests measure the values of their machine file: idle latency and saturated bandwidth on every path, and
//! a clock that stays monotonic and accurate while all CPUs are busy, asleep and waiting for each other.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;

use super::caches::{CACHES_PERCENT_MAX, Cost, walk, walks_ns, writers, writing};
use super::expected::{MIXES, Mix, expected};
use super::programs::Programs;
use super::{CheckError, Latency, Results, Setting, array_mib, in_guest, number};
use crate::fetch::Say;
use crate::machine::Machine;

/// Largest accepted error of an idle latency.
pub const LATENCY_PERCENT_MAX: f64 = 5.0;
/// Largest accepted error of a load's share of the latency, where several chains of loads overlap.
pub const OVERLAP_PERCENT_MAX: f64 = 15.0;
/// Measured latencies: the page size, whether pages are huge, and how many chains of loads are followed at once.
const CHASES: [(&str, u8, u32); 4] = [("4k", 0, 1), ("2m", 1, 1), ("2m", 1, 4), ("2m", 1, 16)];
/// Largest accepted error of a bandwidth.
pub const BANDWIDTH_PERCENT_MAX: f64 = 10.0;

/// Results from one guest.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Guest {
    /// The machine.
    pub machine: String,
    /// Total number of CPUs.
    pub cpus: u32,
    /// The timing method in force.
    pub timing: String,
    /// The guest's slow-motion factor; already divided out of the results.
    pub slow_motion: f64,
    /// Idle latencies.
    pub latency: Vec<Latency>,
    /// The time that page walks add to the latency, where the machine has TLBs.
    pub walk: Vec<Cost>,
    /// The time of writers of one line, where the machine has coherent caches and several CPUs.
    pub writers: Vec<Cost>,
    /// Bandwidths.
    pub bandwidth: Vec<Bandwidth>,
    /// The clock.
    pub clock: Turmoil,
}

/// Behaviour of the clock with more threads than CPUs sleeping, spinning and waiting for each other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Turmoil {
    /// Completed sleeps.
    pub sleeps: u64,
    /// Times a thread read an earlier time than another had read before.
    pub backwards: u64,
    /// Sleeps that ended early.
    pub early: u64,
    /// Whether the last two are zero.
    pub ok: bool,
}

/// All CPUs of one node and one node's memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bandwidth {
    /// The CPUs' node.
    pub from: u16,
    /// The memory's node.
    pub to: u16,
    /// Number of CPUs that generate traffic.
    pub threads: u32,
    /// The mix of reads and writes.
    pub mix: String,
    /// From the machine file: the capacity of the narrowest point on the path, for this mix.
    pub configured_gbps: f64,
    /// The most traffic these CPUs can generate according to the machine file, if that is less.
    pub drawable_gbps: Option<f64>,
    /// Measured in the guest.
    pub emulated_gbps: f64,
    /// Error relative to the expected value, in per cent.
    pub off_percent: f64,
    /// Whether the error is accepted.
    pub ok: bool,
}

/// Checks each machine with each possible number of CPUs, in one guest each.
///
/// # Errors
/// [`CheckError`] if a guest or a program produced no result; an inaccurate result is no error.
pub fn check(
    setting: &Setting,
    machines: &[Machine],
    say: &dyn Say,
) -> Result<Vec<Guest>, CheckError> {
    let programs = Programs::compile()?;
    machines
        .iter()
        .map(|machine| {
            say.line(&format!("{} with {}", machine.name, counted(machine.cpus(), "CPU")));
            in_guest(setting, machine, &programs, &script(machine), say)?;
            let text = programs.take("results");
            compare(machine, &text).map_err(|found| CheckError::Said {
                machine: machine.name.clone(),
                cpus: machine.cpus(),
                found,
            })
        })
        .collect()
}

/// Whether all results are accepted.
#[must_use]
pub fn is_ok(guests: &[Guest]) -> bool {
    let fine = |guest: &Guest| {
        guest.latency.iter().all(|row| row.ok)
            && guest.walk.iter().all(|row| row.ok)
            && guest.writers.iter().all(|row| row.ok)
            && guest.bandwidth.iter().all(|row| row.ok)
            && guest.clock.ok
    };
    guests.iter().all(fine)
}

/// One path: the CPUs' node, the first of its CPUs and their number, the memory's node.
pub(super) fn paths(machine: &Machine) -> Vec<(u16, usize, u32, u16)> {
    let cpus = machine.node_of_cpu();
    let from = machine.cpu_nodes().filter_map(|from| {
        let first = cpus.iter().position(|node| *node == from)?;
        Some((from, first, machine.nodes.get(usize::from(from))?.cpus))
    });
    from.flat_map(|(from, first, count)| {
        machine.modelled_nodes().map(move |to| (from, first, count, to))
    })
    .collect()
}

/// A shell script that measures every path, in the order in which [`compare`] reads the results.
fn script(machine: &Machine) -> String {
    let mb = array_mib(machine);
    let mut text = String::from(
        "set -e\nexec >/out/results\nsleep 1\n\
         echo \"{\\\"timing\\\":\\\"$NEARFAR_LAB_TIMING\\\",\\\"slow_motion\\\":$NEARFAR_LAB_SLOW_MOTION}\"\n",
    );
    for (_, cpu, threads, node) in paths(machine) {
        for (_, huge, chains) in CHASES {
            let _ = writeln!(
                text,
                "/out/chase node={node} cpu={cpu} mb={mb} huge={huge} chains={chains} steps=20000"
            );
        }
        for mix in MIXES {
            let _ = writeln!(
                text,
                "/out/bandwidth node={node} cpu={cpu} threads={threads} mb={mb} rounds=5 mix={mix}"
            );
        }
    }
    for (one, other) in writing(machine) {
        let _ = writeln!(text, "/out/writers cpus={one},{other} steps=500000 rounds=5");
    }
    // turmoil exits with 1 after printing an error.
    let _ = writeln!(text, "/out/turmoil threads={} ms=50 || true", machine.cpus() + 1);
    text
}

/// Compares the script's output with the machine file.
fn compare(machine: &Machine, text: &str) -> Result<Guest, String> {
    let mut results = Results::of(text);
    let head = results.take()?;
    let slow_motion = number(&head, "slow_motion")?;
    let (mut latencies, mut walks, mut bandwidths) = (Vec::new(), Vec::new(), Vec::new());
    for (from, _, threads, to) in paths(machine) {
        for (pages, _, chains) in CHASES {
            let emulated_ns = results.take_number("latency_ns")? / slow_motion;
            latencies.extend(latency(machine, (from, to), (pages, chains), emulated_ns));
        }
        walks.extend(walk(machine, latencies.iter().rev().take(CHASES.len()).rev()));
        for mix in MIXES {
            let emulated_gbps = results.take_number("gbps")? * slow_motion;
            bandwidths.extend(bandwidth(machine, (from, to), mix, threads, emulated_gbps));
        }
    }
    let writers = writing(machine)
        .map(|pair| Ok(writers(machine, pair, results.take_number("increment_ns")? / slow_motion)))
        .collect::<Result<Vec<_>, String>>()?;
    Ok(Guest {
        machine: machine.name.clone(),
        cpus: machine.cpus(),
        timing: head["timing"].as_str().unwrap_or("unknown").to_owned(),
        slow_motion,
        latency: latencies,
        walk: walks,
        writers: writers.into_iter().flatten().collect(),
        bandwidth: bandwidths,
        clock: turmoil(&results.take()?)?,
    })
}

fn turmoil(result: &Value) -> Result<Turmoil, String> {
    let count = |name: &str| result[name].as_u64().ok_or_else(|| format!("{result} has no {name}"));
    let (backwards, early) = (count("backwards")?, count("early")?);
    Ok(Turmoil { sleeps: count("sleeps")?, backwards, early, ok: backwards + early == 0 })
}

fn latency(
    machine: &Machine,
    (from, to): (u16, u16),
    (pages, chains): (&'static str, u32),
    emulated_ns: f64,
) -> Option<Latency> {
    let walks_ns = if pages == "4k" { walks_ns(machine) } else { 0.0 };
    let configured_ns = (machine.latency(from, to)? + walks_ns) / overlapping(machine, chains);
    let off_percent = (emulated_ns / configured_ns - 1.0) * 100.0;
    let most = if chains == 1 { LATENCY_PERCENT_MAX } else { OVERLAP_PERCENT_MAX };
    let ok = off_percent.abs() <= most;
    Some(Latency { from, to, pages, chains, configured_ns, emulated_ns, off_percent, ok })
}

/// Number of loads in flight at once, by the number of chains.
fn overlapping(machine: &Machine, chains: u32) -> f64 {
    let processor = &machine.processor;
    f64::from(if processor.reorder_buffer == 0 { 1 } else { chains.min(processor.loads_in_flight) })
}

fn bandwidth(
    machine: &Machine,
    (from, to): (u16, u16),
    mix: Mix,
    threads: u32,
    emulated_gbps: f64,
) -> Option<Bandwidth> {
    let expected = expected(machine, (from, to), mix, threads)?;
    let off_percent = (emulated_gbps / expected.gbps() - 1.0) * 100.0;
    Some(Bandwidth {
        from,
        to,
        threads,
        mix: mix.to_string(),
        configured_gbps: expected.capacity_gbps,
        drawable_gbps: (!expected.saturates()).then_some(expected.drawable_gbps),
        emulated_gbps,
        off_percent,
        ok: off_percent.abs() <= BANDWIDTH_PERCENT_MAX,
    })
}

/// As JSON of the schema `nearfar.lab-accuracy/1`.
#[must_use]
pub fn json(guests: &[Guest]) -> String {
    let report = serde_json::json!({
        "schema": "nearfar.lab-accuracy/1",
        "emulated": true,
        "latency_percent_max": LATENCY_PERCENT_MAX,
        "overlap_percent_max": OVERLAP_PERCENT_MAX,
        "caches_percent_max": CACHES_PERCENT_MAX,
        "bandwidth_percent_max": BANDWIDTH_PERCENT_MAX,
        "ok": is_ok(guests),
        "guests": guests,
    });
    // Strings and finite numbers always become JSON.
    serde_json::to_string_pretty(&report).unwrap_or_default() + "\n"
}

/// As a table.
#[must_use]
pub fn table(guests: &[Guest]) -> String {
    let mut out = String::new();
    for guest in guests {
        let _ = writeln!(
            out,
            "{}, {}, timing {} (slow motion {}): configured and emulated",
            guest.machine,
            counted(guest.cpus, "CPU"),
            guest.timing,
            guest.slow_motion
        );
        for row in &guest.latency {
            let what = match row.chains {
                1 => format!("latency, {} pages", row.pages),
                chains => format!("a load of {chains} chains"),
            };
            let figures = (row.configured_ns, row.emulated_ns, "ns  ", row.off_percent);
            out += &line((row.from, row.to), &what, figures, row.ok, None);
        }
        for row in &guest.walk {
            let figures = (row.configured_ns, row.emulated_ns, "ns  ", row.off_percent);
            out += &line((row.from, row.to), "page walks, 4k - 2m", figures, row.ok, None);
        }
        for row in &guest.writers {
            let figures = (row.configured_ns, row.emulated_ns, "ns  ", row.off_percent);
            out += &line((row.from, row.to), "writers of a line", figures, row.ok, None);
        }
        for row in &guest.bandwidth {
            let what = format!("{}, {}", row.mix, counted(row.threads, "thread"));
            let figures = (row.configured_gbps, row.emulated_gbps, "GB/s", row.off_percent);
            out += &line((row.from, row.to), &what, figures, row.ok, row.drawable_gbps);
        }
        let clock = &guest.clock;
        let mark = if clock.ok { "" } else { "  OFF" };
        let _ = writeln!(
            out,
            "  clock  {} sleeps, {} of them too short; {} times backwards{mark}",
            clock.sleeps, clock.early, clock.backwards
        );
    }
    out
}

fn counted(count: u32, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn line(
    (from, to): (u16, u16),
    what: &str,
    (configured, emulated, unit, off): (f64, f64, &str, f64),
    ok: bool,
    drawable: Option<f64>,
) -> String {
    let of = drawable
        .map(|gbps| format!("  of the {gbps:.1} GB/s that the lines in flight allow"))
        .unwrap_or_default();
    let mark = if ok { "" } else { "  OFF" };
    format!(
        "  {from} > {to}  {what:<19}  {configured:>7.1} {unit}  {emulated:>7.1} {unit}  {off:>+5.1} %{of}{mark}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::catalog::built_in;

    /// The script's output for cxl-2tier in a guest as configured, after `change` has modified the values.
    fn output(change: impl Fn(usize, f64) -> f64) -> String {
        let figures = [
            128.5, 116.0, 29.0, 11.6, 54.9, 54.9, 54.9, 262.5, 250.0, 62.5, 25.0, 27.0, 27.0, 27.0,
        ];
        let mut text = "{\"timing\":\"virtual\",\"slow_motion\":1}\n".to_owned();
        for (index, figure) in figures.iter().enumerate() {
            let name = if index % 7 < 4 { "latency_ns" } else { "gbps" };
            let _ = writeln!(text, "{{\"{name}\":{}}}", change(index, *figure));
        }
        text + "{\"sleeps\":9,\"backwards\":0,\"early\":0}\n"
    }

    #[test]
    fn a_clock_that_runs_backwards_or_early_fails_the_check() {
        let machine = built_in("cxl-2tier").unwrap();
        for wrong in ["backwards", "early"] {
            let text = output(|_, figure| figure);
            let text = text.replace(&format!("\"{wrong}\":0"), &format!("\"{wrong}\":1"));
            assert!(!is_ok(&[compare(&machine, &text).unwrap()]), "{wrong}");
        }
    }

    #[test]
    fn a_guest_with_the_configured_timing_passes_the_check() {
        let guest = compare(&built_in("cxl-2tier").unwrap(), &output(|_, figure| figure)).unwrap();
        assert!(is_ok(std::slice::from_ref(&guest)), "{}", table(&[guest]));
    }

    #[test]
    fn a_figure_outside_its_tolerance_fails_the_check() {
        let machine = built_in("cxl-2tier").unwrap();
        for index in 0..14 {
            let slower = |at, figure: f64| if at == index { figure * 0.8 } else { figure };
            let guest = compare(&machine, &output(slower)).unwrap();
            assert!(!is_ok(std::slice::from_ref(&guest)));
            // The time of page walks is the difference of the first two.
            let rows = if index % 7 < 2 { 2 } else { 1 };
            assert_eq!(table(&[guest]).matches("OFF").count(), rows, "figure {index}");
        }
    }

    #[test]
    fn figures_are_divided_by_the_slow_motion_factor() {
        let text = output(|at, figure| if at % 7 < 4 { figure * 40.0 } else { figure / 40.0 });
        let text = text.replace("\"slow_motion\":1", "\"slow_motion\":40");
        assert!(is_ok(&[compare(&built_in("cxl-2tier").unwrap(), &text).unwrap()]));
    }

    #[test]
    fn a_missing_or_strange_result_is_an_error() {
        let machine = built_in("cxl-2tier").unwrap();
        let text = output(|_, figure| figure);
        let cut = &text[..text.trim_end().rfind('\n').unwrap()];
        assert_eq!(compare(&machine, cut), Err("a result is missing".to_owned()));
        assert!(compare(&machine, &text.replace("gbps", "mbps")).unwrap_err().contains("no gbps"));
        assert!(compare(&machine, "Killed\n").unwrap_err().contains("no result"));
    }

    #[test]
    fn every_path_is_measured_except_those_to_devices() {
        let count = |name: &str| script(&built_in(name).unwrap()).matches("/out/chase").count();
        assert_eq!(count("cxl-2tier"), 8);
        assert_eq!(count("numa-4node"), 64);
        assert_eq!(count("cxl-device"), 4);
    }
}
