//! Whether guests feel the figures of their machine file: idle latency and saturated bandwidth on every path, and a clock
//! that behaves while all CPUs are busy, asleep and waiting for each other.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;

use super::expected::{MIXES, Mix, expected};
use super::programs::Programs;
use super::{CheckError, Setting, in_guest};
use crate::fetch::Say;
use crate::machine::Machine;

/// How far off an idle latency may be.
pub const LATENCY_PERCENT_MAX: f64 = 5.0;
/// How far off a bandwidth may be.
pub const BANDWIDTH_PERCENT_MAX: f64 = 10.0;

/// What one guest showed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Guest {
    /// The machine.
    pub machine: String,
    /// CPUs in all.
    pub cpus: u32,
    /// How its time passed.
    pub timing: String,
    /// By how much its own figures are slower; taken out below.
    pub slow_motion: f64,
    /// Idle latencies.
    pub latency: Vec<Latency>,
    /// Bandwidths.
    pub bandwidth: Vec<Bandwidth>,
    /// The clock.
    pub clock: Turmoil,
}

/// How the clock behaved with more threads than CPUs sleeping, spinning and waiting for each other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Turmoil {
    /// Sleeps that ended.
    pub sleeps: u64,
    /// Times a thread saw an earlier time than another had seen before.
    pub backwards: u64,
    /// Sleeps that ended early.
    pub early: u64,
    /// Whether both are none.
    pub ok: bool,
}

/// A dependent load from one node's CPU to one node's memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// The CPU's node.
    pub from: u16,
    /// The memory's node.
    pub to: u16,
    /// `4k` or `2m`.
    pub pages: &'static str,
    /// As the machine file has it.
    pub configured_ns: f64,
    /// As emulated.
    pub emulated_ns: f64,
    /// How far off that is.
    pub off_percent: f64,
    /// Whether that is near enough.
    pub ok: bool,
}

/// All CPUs of one node and one node's memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bandwidth {
    /// The CPUs' node.
    pub from: u16,
    /// The memory's node.
    pub to: u16,
    /// CPUs that take part.
    pub threads: u32,
    /// Reads and writes.
    pub mix: String,
    /// As the machine file has it: the narrowest place on the way, for this mix.
    pub configured_gbps: f64,
    /// What these CPUs can draw by the machine file, if that is less.
    pub drawable_gbps: Option<f64>,
    /// As emulated.
    pub emulated_gbps: f64,
    /// How far off that is from what was to be expected.
    pub off_percent: f64,
    /// Whether that is near enough.
    pub ok: bool,
}

/// Checks each machine with each number of CPUs it can have, one guest each.
///
/// # Errors
/// [`CheckError`] where a guest or a program came to no figure; a figure that is off is no error.
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
            let said = programs.take("results");
            compare(machine, &said).map_err(|found| CheckError::Said {
                machine: machine.name.clone(),
                cpus: machine.cpus(),
                found,
            })
        })
        .collect()
}

/// All is well.
#[must_use]
pub fn is_ok(guests: &[Guest]) -> bool {
    let fine = |guest: &Guest| {
        guest.latency.iter().all(|row| row.ok)
            && guest.bandwidth.iter().all(|row| row.ok)
            && guest.clock.ok
    };
    guests.iter().all(fine)
}

/// One path: the CPU's node, the first of its CPUs and how many, the memory's node.
fn paths(machine: &Machine) -> Vec<(u16, usize, u32, u16)> {
    let cpus = machine.node_of_cpu();
    let from = machine.cpu_nodes().filter_map(|from| {
        let first = cpus.iter().position(|node| *node == from)?;
        Some((from, first, machine.nodes.get(usize::from(from))?.cpus))
    });
    let modelled = || {
        (0u16..).zip(&machine.nodes).filter(|(_, node)| node.cxl_device.is_none()).map(|(id, _)| id)
    };
    from.flat_map(|(from, first, count)| modelled().map(move |to| (from, first, count, to)))
        .collect()
}

/// The shell script that measures every path, in the order in which [`compare`] reads the results.
fn script(machine: &Machine) -> String {
    // Arrays several times the cache, so that none of it is found there again.
    let mb = (machine.processor.llc_kib / 1024).max(1) * 4;
    let mut text = String::from(
        "set -e\nexec >/out/results\nsleep 1\n\
         echo \"{\\\"timing\\\":\\\"$NEARFAR_LAB_TIMING\\\",\\\"slow_motion\\\":$NEARFAR_LAB_SLOW_MOTION}\"\n",
    );
    for (_, cpu, threads, node) in paths(machine) {
        for huge in [0, 1] {
            let _ =
                writeln!(text, "/out/chase node={node} cpu={cpu} mb={mb} huge={huge} steps=20000");
        }
        for mix in MIXES {
            let _ = writeln!(
                text,
                "/out/bandwidth node={node} cpu={cpu} threads={threads} mb={mb} rounds=5 mix={mix}"
            );
        }
    }
    // It ends with 1 where it prints what was wrong.
    let _ = writeln!(text, "/out/turmoil threads={} ms=50 || true", machine.cpus() + 1);
    text
}

/// Sets what the script printed against the machine file.
fn compare(machine: &Machine, said: &str) -> Result<Guest, String> {
    let mut lines = said.lines().map(|line| {
        serde_json::from_str::<Value>(line)
            .map_err(|error| format!("{line:?} is no result: {error}"))
    });
    let mut next = || lines.next().unwrap_or_else(|| Err("a result is missing".to_owned()));
    let head = next()?;
    let slow_motion = number(&head, "slow_motion")?;
    let (mut latencies, mut bandwidths) = (Vec::new(), Vec::new());
    for (from, _, threads, to) in paths(machine) {
        for pages in ["4k", "2m"] {
            let emulated_ns = number(&next()?, "latency_ns")? / slow_motion;
            latencies.extend(latency(machine, (from, to), pages, emulated_ns));
        }
        for mix in MIXES {
            let emulated_gbps = number(&next()?, "gbps")? * slow_motion;
            bandwidths.extend(bandwidth(machine, (from, to), mix, threads, emulated_gbps));
        }
    }
    Ok(Guest {
        machine: machine.name.clone(),
        cpus: machine.cpus(),
        timing: head["timing"].as_str().unwrap_or("unknown").to_owned(),
        slow_motion,
        latency: latencies,
        bandwidth: bandwidths,
        clock: turmoil(&next()?)?,
    })
}

fn turmoil(said: &Value) -> Result<Turmoil, String> {
    let count = |name: &str| said[name].as_u64().ok_or_else(|| format!("{said} has no {name}"));
    let (backwards, early) = (count("backwards")?, count("early")?);
    Ok(Turmoil { sleeps: count("sleeps")?, backwards, early, ok: backwards + early == 0 })
}

fn number(value: &Value, name: &str) -> Result<f64, String> {
    value[name].as_f64().ok_or_else(|| format!("{value} has no {name}"))
}

fn latency(
    machine: &Machine,
    (from, to): (u16, u16),
    pages: &'static str,
    emulated_ns: f64,
) -> Option<Latency> {
    let configured_ns = machine.latency(from, to)?;
    let off_percent = (emulated_ns / configured_ns - 1.0) * 100.0;
    let ok = off_percent.abs() <= LATENCY_PERCENT_MAX;
    Some(Latency { from, to, pages, configured_ns, emulated_ns, off_percent, ok })
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
            let what = format!("latency, {} pages", row.pages);
            let figures = (row.configured_ns, row.emulated_ns, "ns  ", row.off_percent);
            out += &line((row.from, row.to), &what, figures, row.ok, None);
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
        "  {from} > {to}  {what:<17}  {configured:>7.1} {unit}  {emulated:>7.1} {unit}  {off:>+5.1} %{of}{mark}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::catalog::built_in;

    /// What the script of cxl-2tier prints on a guest that is as configured, but for what `change` does to it.
    fn said(change: impl Fn(usize, f64) -> f64) -> String {
        let figures = [116.0, 116.0, 54.9, 54.9, 54.9, 250.0, 250.0, 27.0, 27.0, 27.0];
        let mut text = "{\"timing\":\"virtual\",\"slow_motion\":1}\n".to_owned();
        for (index, figure) in figures.iter().enumerate() {
            let name = if index % 5 < 2 { "latency_ns" } else { "gbps" };
            let _ = writeln!(text, "{{\"{name}\":{}}}", change(index, *figure));
        }
        text + "{\"sleeps\":9,\"backwards\":0,\"early\":0}\n"
    }

    #[test]
    fn a_clock_that_misbehaves_is_marked() {
        let machine = built_in("cxl-2tier").unwrap();
        for wrong in ["backwards", "early"] {
            let text = said(|_, figure| figure);
            let text = text.replace(&format!("\"{wrong}\":0"), &format!("\"{wrong}\":1"));
            assert!(!is_ok(&[compare(&machine, &text).unwrap()]), "{wrong}");
        }
    }

    #[test]
    fn a_guest_as_configured_is_fine() {
        let guest = compare(&built_in("cxl-2tier").unwrap(), &said(|_, figure| figure)).unwrap();
        assert!(is_ok(std::slice::from_ref(&guest)), "{}", table(&[guest]));
    }

    #[test]
    fn a_figure_that_is_off_is_marked() {
        let machine = built_in("cxl-2tier").unwrap();
        for index in 0..10 {
            let slower = |at, figure: f64| if at == index { figure * 0.85 } else { figure };
            let guest = compare(&machine, &said(slower)).unwrap();
            assert!(!is_ok(std::slice::from_ref(&guest)));
            assert_eq!(table(&[guest]).matches("OFF").count(), 1, "figure {index}");
        }
    }

    #[test]
    fn slow_motion_is_taken_out() {
        let text = said(|at, figure| if at % 5 < 2 { figure * 40.0 } else { figure / 40.0 });
        let text = text.replace("\"slow_motion\":1", "\"slow_motion\":40");
        assert!(is_ok(&[compare(&built_in("cxl-2tier").unwrap(), &text).unwrap()]));
    }

    #[test]
    fn a_missing_or_strange_result_is_an_error() {
        let machine = built_in("cxl-2tier").unwrap();
        let text = said(|_, figure| figure);
        let cut = &text[..text.trim_end().rfind('\n').unwrap()];
        assert_eq!(compare(&machine, cut), Err("a result is missing".to_owned()));
        assert!(compare(&machine, &text.replace("gbps", "mbps")).unwrap_err().contains("no gbps"));
        assert!(compare(&machine, "Killed\n").unwrap_err().contains("no result"));
    }

    #[test]
    fn every_path_is_measured_and_devices_are_left_out() {
        let count = |name: &str| script(&built_in(name).unwrap()).matches("/out/chase").count();
        assert_eq!(count("cxl-2tier"), 4);
        assert_eq!(count("numa-4node"), 32);
        assert_eq!(count("cxl-device"), 2);
    }
}
