//! Turns a report into rows of charts: selects the values and computes the lengths of bars.

use nearfar_topology::Mix;

use super::chart::{Bar, Line, Range, Stack};
use super::model::{Bandwidth, Latency, Machine, Placement, Report, Resident, Server};
use super::words;

/// The colour class of a placement.
pub(crate) fn class(placement: &str) -> &'static str {
    match placement {
        "near" => "near",
        "far" => "far",
        "auto" => "auto",
        "interleave" => "interleave",
        _ => "default",
    }
}

/// The colour class of a node: near, or one shade per far node.
pub(crate) fn node_class(machine: &Machine, id: u16) -> &'static str {
    let far: Vec<u16> =
        machine.nodes.iter().filter(|node| !node.near).map(|node| node.id).collect();
    match far.iter().position(|far| *far == id) {
        None => "near",
        Some(0) => "far",
        Some(1) => "far2",
        Some(_) => "far3",
    }
}

/// Bandwidth of each placement under one mix; the longest bar or mark fills the chart.
#[expect(clippy::cast_precision_loss, reason = "lengths of bars")]
pub(crate) fn bandwidth(report: &Report, bandwidth: &Bandwidth, mix: Mix) -> Vec<Bar> {
    let peak = bandwidth.peak_sum(mix);
    let runs = || report.placements.iter().filter_map(|of| Some((of, bandwidth.run(&of.id, mix)?)));
    let longest = runs().map(|(_, run)| run.bytes_per_second).chain(peak).max().unwrap_or(1).max(1);
    let length = |figure: u64| figure as f64 / longest as f64;
    runs()
        .map(|(placement, run)| Bar {
            line: line(
                placement,
                &words::bandwidth(run.bytes_per_second),
                bandwidth.ratio(&placement.id, report.baseline(), mix),
            ),
            class: class(&placement.id),
            length: length(run.bytes_per_second),
            mark: peak.map(length),
        })
        .collect()
}

/// Throughput of a server under each placement.
#[expect(clippy::cast_precision_loss, reason = "lengths of bars")]
pub(crate) fn throughput(report: &Report, server: &Server) -> Vec<Bar> {
    let longest = server.runs.iter().map(|run| run.operations_per_second).max().unwrap_or(1).max(1);
    with_runs(report, server)
        .map(|(placement, run)| Bar {
            line: line(
                placement,
                &format!("{} ops/s", words::grouped(run.operations_per_second)),
                server.ratio(&placement.id, report.baseline()),
            ),
            class: class(&placement.id),
            length: run.operations_per_second as f64 / longest as f64,
            mark: None,
        })
        .collect()
}

/// Latency percentiles of a server under each placement, on a logarithmic axis, and the axis' ticks.
pub(crate) fn latencies(report: &Report, server: &Server) -> (Vec<Range>, Vec<(f64, String)>) {
    let all = server.runs.iter().flat_map(|run| percentiles(&run.latency)).flatten();
    let (lowest, highest) = all.fold((u64::MAX, 0), |(low, high), ns| (low.min(ns), high.max(ns)));
    if highest == 0 {
        return (Vec::new(), Vec::new());
    }
    let axis = Axis::over(lowest, highest);
    let rows = with_runs(report, server)
        .map(|(placement, run)| {
            let known = percentiles(&run.latency);
            let said: Vec<_> = known.iter().map(|ns| words::latency(*ns)).collect();
            Range {
                line: Line {
                    name: placement.name.clone(),
                    value: said.join(" · "),
                    strong: placement.id == "auto",
                },
                class: class(&placement.id),
                at: known.map(|ns| ns.map(|ns| axis.at(ns))),
            }
        })
        .collect();
    (rows, axis.ticks())
}

/// Location of memory per placement.
pub(crate) fn residency<'a>(
    report: &Report,
    of: impl Fn(&Placement) -> Option<&'a [Resident]>,
) -> Vec<Stack> {
    report
        .placements
        .iter()
        .filter_map(|placement| Some((placement, of(placement)?)))
        .map(|(placement, residents)| Stack {
            line: Line {
                name: placement.name.clone(),
                value: words::residency(residents),
                strong: placement.id == "auto",
            },
            parts: words::shares(residents)
                .into_iter()
                .map(|(node, share)| (node_class(&report.machine, node), share))
                .collect(),
        })
        .collect()
}

/// P50, P99, P99.9.
pub(crate) fn percentiles(latency: &Latency) -> [Option<u64>; 3] {
    [latency.p50_ns, latency.p99_ns, latency.p999_ns]
}

fn with_runs<'a>(
    report: &'a Report,
    server: &'a Server,
) -> impl Iterator<Item = (&'a Placement, &'a super::model::ServerRun)> {
    report.placements.iter().filter_map(|placement| Some((placement, server.run(&placement.id)?)))
}

fn line(placement: &Placement, figure: &str, ratio: Option<f64>) -> Line {
    Line {
        name: placement.name.clone(),
        value: format!("{figure} · {}", words::times(ratio)),
        strong: placement.id == "auto",
    }
}

/// A logarithmic axis between two powers of ten divided by 1, 2, 5.
#[derive(Clone, Copy, Debug)]
struct Axis {
    low: u64,
    high: u64,
}

impl Axis {
    /// Values where a tick or an end may be.
    fn steps() -> impl DoubleEndedIterator<Item = u64> {
        (0..12).flat_map(|power| [1, 2, 5].map(|digit| digit * 10u64.pow(power)))
    }

    fn over(lowest: u64, highest: u64) -> Self {
        let low = Self::steps().rev().find(|step| *step <= lowest).unwrap_or(1);
        let high = Self::steps()
            .find(|step| *step >= highest && *step > low)
            .unwrap_or(highest.max(low + 1));
        Self { low, high }
    }

    #[expect(clippy::cast_precision_loss, reason = "a position on paper")]
    fn at(self, ns: u64) -> f64 {
        // With space for the marks at both ends.
        let span = (self.high as f64 / self.low as f64).ln();
        0.025 + 0.95 * (ns.max(1) as f64 / self.low as f64).ln() / span
    }

    /// At most about six ticks: only powers of ten where the axis is long.
    fn ticks(self) -> Vec<(f64, String)> {
        let inside: Vec<u64> =
            Self::steps().filter(|step| (self.low..=self.high).contains(step)).collect();
        let tens = |step: &u64| step.to_string().trim_end_matches('0') == "1";
        let shown: Vec<u64> =
            if inside.len() > 6 { inside.into_iter().filter(tens).collect() } else { inside };
        let mut ticks: Vec<(f64, String)> = Vec::new();
        for ns in shown {
            // Leaves out labels that would touch on a phone.
            if ticks.last().is_none_or(|(last, _)| self.at(ns) - last > 0.16) {
                ticks.push((self.at(ns), tick(ns)));
            }
        }
        ticks
    }
}

fn tick(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{} µs", ns / 1_000),
        1_000_000..1_000_000_000 => format!("{} ms", ns / 1_000_000),
        _ => format!("{} s", ns / 1_000_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn the_longest_bar_or_the_peak_fills_the_chart() {
        let report = sample::report();
        let bars = bandwidth(&report, report.bandwidth.as_ref().unwrap(), Mix::READS);
        assert_eq!(bars.len(), 5);
        assert!(bars.iter().all(|bar| bar.mark == Some(1.0)), "{bars:?}");
        assert!(bars.iter().all(|bar| bar.length <= 1.0 && bar.length > 0.0));
        assert_eq!(bars[0].line.value, "38.4 GB/s · 1.00×");
    }

    #[test]
    fn the_latency_axis_spans_every_mark_and_has_ticks() {
        let report = sample::report();
        let (rows, ticks) = latencies(&report, &report.servers[0]);
        assert!(rows.iter().flat_map(|row| row.at).flatten().all(|at| (0.0..=1.0).contains(&at)));
        assert!((2..=6).contains(&ticks.len()), "{ticks:?}");
    }

    #[test]
    fn equal_latencies_still_have_an_axis() {
        let axis = Axis::over(1_000, 1_000);
        assert!(axis.at(1_000).is_finite() && axis.ticks().len() >= 2, "{axis:?}");
    }

    #[test]
    fn a_server_without_latencies_has_no_chart_of_them() {
        let mut report = sample::report();
        for run in &mut report.servers[0].runs {
            run.latency = Latency::default();
        }
        assert!(latencies(&report, &report.servers[0]).0.is_empty());
    }

    #[test]
    fn near_nodes_share_a_colour_and_far_nodes_have_shades() {
        let mut machine = sample::report().machine;
        machine.nodes.push(crate::model::Node { id: 7, ..machine.nodes[1].clone() });
        let of = |id| node_class(&machine, id);
        assert_eq!([of(0), of(1), of(7)], ["near", "far", "far2"]);
    }
}
