//! The text of a probe: a matrix for latency and for each mix, a small chart per loaded-latency curve, and remarks on
//! the figures' reliability.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use nearfar_probe::report::{LoadedCurve, Pair, ProbeReport, Skipped, Source};
use nearfar_topology::{BasisPoints, BytesPerSecond, Mix, NodeId, Topology};

use crate::output::wrapped;

/// Width of a matrix's columns and of the chart's bars.
const CELL: usize = 16;
const BAR: f64 = 36.0;

/// The whole text.
#[must_use]
pub fn of(report: &ProbeReport, machine: &Topology) -> String {
    let mut out = head(report);
    matrix(&mut out, report, machine, "Idle latency in ns", |pair| {
        let idle = pair.idle_latency;
        Some((format!("{:.1}", idle.median_ns), idle.spread_bp))
    });
    for mix in mixes(report) {
        matrix(&mut out, report, machine, &format!("Bandwidth at {mix} in GB/s"), |pair| {
            let at = pair.bandwidth.iter().find(|at| at.mix == mix)?;
            Some((gigabytes(at.median_bytes_per_second), at.spread_bp))
        });
    }
    let mut unmeasured = BTreeSet::new();
    for pair in &report.pairs {
        match &pair.loaded {
            LoadedCurve { not_measured: Some(reason), .. } => {
                unmeasured.insert((pair.cpu_node, reason.as_str()));
            }
            curve => chart(&mut out, pair, curve),
        }
    }
    let _ = writeln!(out);
    for (node, reason) in unmeasured {
        wrapped(&mut out, "", &format!("No loaded latency from CPU node {node}: {reason}"), 2);
    }
    for Skipped { cpu_node, memory_node, reason } in &report.skipped {
        let pair = format!("CPU node {cpu_node}, memory node {memory_node}");
        wrapped(&mut out, "", &format!("Not measured, {pair}: {reason}"), 2);
    }
    for warning in &report.warnings {
        wrapped(&mut out, "", &format!("Warning: {warning}"), 2);
    }
    out.trim_end().to_string() + "\n"
}

/// The reasons why nothing was measured, without duplicates.
#[must_use]
pub fn failures(skipped: &[Skipped]) -> String {
    let reasons: BTreeSet<&str> = skipped.iter().map(|pair| pair.reason.as_str()).collect();
    format!("nothing could be measured: {}", reasons.into_iter().collect::<Vec<_>>().join("; "))
}

fn head(report: &ProbeReport) -> String {
    let mut out = String::new();
    let kernel = &report.machine.kernel;
    let what = match (&report.machine.lab, report.source) {
        (Some(lab), _) => format!(
            "Emulated, not measured on hardware: lab machine {}, {} clock, slow motion {}; Linux {kernel}.",
            lab.machine, lab.clock, lab.slow_motion
        ),
        (None, Source::Emulated) => format!("Emulated, not measured on hardware; Linux {kernel}."),
        (None, Source::Measured) => format!("Measured under Linux {kernel}."),
    };
    wrapped(&mut out, "", &what, 0);
    let method = &report.method;
    let how = format!(
        "Medians, in brackets the spread of repeats. Caches {}, {} pages. Written lines are counted twice, as read and as \
         written back.",
        method.llc_bytes, method.pages
    );
    wrapped(&mut out, "", &how, 0);
    out
}

/// Mixes in the order they were measured.
fn mixes(report: &ProbeReport) -> Vec<Mix> {
    report
        .pairs
        .first()
        .map(|pair| pair.bandwidth.iter().map(|at| at.mix).collect())
        .unwrap_or_default()
}

fn matrix(
    out: &mut String,
    report: &ProbeReport,
    machine: &Topology,
    title: &str,
    cell: impl Fn(&Pair) -> Option<(String, BasisPoints)>,
) {
    let _ = write!(out, "\n{title}\n{:<12}", "");
    for node in report.memory_nodes().iter() {
        let kind = machine.nodes.get(&node).map(|node| node.kind).unwrap_or_default();
        let _ = write!(out, "{:>CELL$}", format!("node {node} {kind}"));
    }
    let cpu_nodes: BTreeSet<NodeId> = report.pairs.iter().map(|pair| pair.cpu_node).collect();
    for from in cpu_nodes {
        let _ = write!(out, "\nCPU node {from:<3}");
        for to in report.memory_nodes().iter() {
            let text = match report.pair(from, to).and_then(&cell) {
                Some((value, BasisPoints(spread))) => {
                    format!("{value} ({:.1} %)", f64::from(spread) / 100.0)
                }
                None => "-".into(),
            };
            let _ = write!(out, "{text:>CELL$}");
        }
    }
    let _ = writeln!(out);
}

fn chart(out: &mut String, pair: &Pair, curve: &LoadedCurve) {
    let _ = writeln!(
        out,
        "\nLatency under load, CPU node {}, memory node {} (reads; max: without pauses)",
        pair.cpu_node, pair.memory_node
    );
    let _ = writeln!(out, "{:>12}  {:>10}  {:>10}", "offered GB/s", "GB/s", "ns");
    let most = curve.points.iter().map(|point| point.latency_ns).fold(0.0, f64::max);
    for point in &curve.points {
        let offered = point.offered_bytes_per_second.map_or("max".into(), gigabytes);
        let (achieved, ns) = (gigabytes(point.achieved_bytes_per_second), point.latency_ns);
        let _ = writeln!(out, "{offered:>12}  {achieved:>10}  {ns:>10.1}  {}", bar(ns / most));
    }
}

/// A bar of `share` of the full width, at least one character long.
fn bar(share: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to the width"
    )]
    let marks = (share * BAR).round().clamp(1.0, BAR) as usize;
    "#".repeat(marks)
}

/// Decimal gigabytes, with two decimals below ten.
fn gigabytes(rate: BytesPerSecond) -> String {
    #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
    let value = rate.0 as f64 / 1e9;
    if value < 10.0 { format!("{value:.2}") } else { format!("{value:.1}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_probe::report::Lab;
    use nearfar_probe::testkit;
    use nearfar_topology::testkit::dram_and_cxl;

    #[test]
    fn every_result_is_printed_with_its_spread() {
        let text = of(&testkit::report(), &dram_and_cxl());
        for part in [
            "Measured under Linux 6.12.0.",
            "node 0 dram      node 1 cxl",
            "CPU node 0     116.0 (0.0 %)   250.0 (0.0 %)",
            "Bandwidth at 2:1 in GB/s",
            "Latency under load, CPU node 0, memory node 1 (reads; max: without pauses)",
            "         max        27.0       500.0  ####",
            "Not measured, CPU node 0, memory node 2: made up",
        ] {
            assert!(text.contains(part), "no `{part}` in:\n{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn emulated_results_are_never_labelled_as_measured() {
        let mut report = testkit::report();
        report.source = Source::Emulated;
        assert!(of(&report, &dram_and_cxl()).starts_with("Emulated, not measured on hardware;"));
        let lab = Lab {
            machine: "cxl-2tier".into(),
            clock: "wait".into(),
            slow_motion: 25.0,
            llc_kib: None,
        };
        report.machine.lab = Some(lab);
        let text = of(&report, &dram_and_cxl()).replace('\n', " ");
        assert!(text.contains("lab machine cxl-2tier, wait clock, slow motion 25"), "{text}");
    }

    #[test]
    fn the_reason_for_a_missing_curve_is_printed_once() {
        let mut report = testkit::report();
        for pair in &mut report.pairs {
            pair.loaded = LoadedCurve { points: Vec::new(), not_measured: Some("one CPU".into()) };
        }
        let text = of(&report, &dram_and_cxl());
        assert_eq!(text.matches("No loaded latency from CPU node 0: one CPU").count(), 1, "{text}");
    }
}
