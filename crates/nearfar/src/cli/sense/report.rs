//! Readings of sensors, as JSON (`nearfar.sense/1`) and as text; capabilities of sensors, for `nearfar doctor` too.
//!
//! The fields of [`Report`] are the keys of the JSON; an unknown figure is null. Not here: taking the readings.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use nearfar_policy::ports::{Grain, Heat, Nature, Reading, Scope, Sees, Sensor, Unusable};
use nearfar_policy::traffic::{Memory, Reads};
use nearfar_topology::{Bytes, BytesPerSecond};
use serde::Serialize;

use super::Outcome;
use nearfar_command::machine;
use nearfar_command::output::wrapped;
use nearfar_sensors::Scene;

/// The complete report. Key names are stable; new keys may be added.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    schema: &'static str,
    /// In a guest of the lab, the lab's description of it; else null.
    lab: Option<serde_json::Value>,
    /// The nodes, in the order of rows and columns.
    nodes: Vec<u16>,
    sensors: Vec<Sensed>,
}

/// A sensor, whether it is usable, and its capabilities.
#[derive(Debug, Serialize)]
pub(in crate::cli) struct Described {
    pub(in crate::cli) name: &'static str,
    pub(in crate::cli) usable: bool,
    /// Why it is unusable, as a keyword: absent, forbidden, taken, mute, failed.
    pub(in crate::cli) why: Option<&'static str>,
    /// Why it is unusable, as a sentence.
    pub(in crate::cli) found: Option<String>,
    /// The way out, if there is one.
    pub(in crate::cli) next: Option<String>,
    /// Its capabilities here; those of its kind at best, if it is unusable.
    pub(in crate::cli) sees: Seen,
}

/// The capabilities of a sensor.
#[derive(Debug, Serialize)]
pub(in crate::cli) struct Seen {
    /// none, regions or pages.
    addresses: &'static str,
    /// Whether it distinguishes reads from writes.
    writes: bool,
    /// Whether it reports the node of the accessing CPU.
    cpu: bool,
    /// Whether it counts cache lines by node.
    traffic: bool,
    /// Whether it reports load latency.
    latency: bool,
    /// machine, processes or own.
    scope: &'static str,
    /// measured or emulated.
    nature: &'static str,
}

/// A sensor and its readings.
#[derive(Debug, Serialize)]
struct Sensed {
    #[serde(flatten)]
    described: Described,
    reading: Option<Read>,
    /// CPU time of this process spent on it, and interruptions of programs caused by it.
    cpu_ns: u64,
    interruptions: u64,
}

#[derive(Debug, Serialize)]
struct Read {
    elapsed_ns: u64,
    /// The share of that time in which the sensor was active.
    coverage: f64,
    /// Cache lines counted: a row for each node whose CPUs accessed them.
    accesses: Option<Vec<Vec<u64>>>,
    /// Cache lines served by each node's memory, to any CPU.
    served: Vec<Option<u64>>,
    /// Cache lines read and written, if distinguished.
    reads: Option<u64>,
    writes: Option<u64>,
    /// Load latency, by CPU node and memory node.
    latency_ns: Vec<Vec<Option<u64>>>,
    /// Age of the oldest of these figures.
    latency_age_ns: u64,
    /// The used bandwidth of each node's memory, by all programs, derived from its latency and this machine's saved
    /// probe; null where latency is too low to derive it.
    used_bytes_per_second: Vec<Option<u64>>,
    /// Regions of memory by access frequency: their number, their bytes, and the bytes of those with any access.
    regions: u64,
    region_bytes: u64,
    used_region_bytes: u64,
    samples: Samples,
}

#[derive(Debug, Serialize)]
struct Samples {
    seen: u64,
    lost: u64,
    throttled: u64,
    unplaced: u64,
    /// Distinct pages sampled, and the number of samples from huge pages.
    pages: u64,
    huge: u64,
    writes: u64,
    /// Samples by CPU node and node of the page.
    by: Vec<Vec<u64>>,
    /// Accesses per sample, if known.
    per_sample: Option<u64>,
}

/// The capabilities of a sensor, and the reason if it is unusable.
pub(in crate::cli) fn described(sensor: &dyn Sensor, error: Option<&Unusable>) -> Described {
    Described {
        name: sensor.name(),
        usable: error.is_none(),
        why: error.map(|error| error.why.word()),
        found: error.map(|error| error.found.clone()),
        next: error.map(|error| error.remedy.clone()).filter(|next| !next.is_empty()),
        sees: seen(sensor.sees()),
    }
}

fn seen(sees: Sees) -> Seen {
    Seen {
        addresses: match sees.addresses {
            Grain::None => "none",
            Grain::Regions => "regions",
            Grain::Pages => "pages",
        },
        writes: sees.writes,
        cpu: sees.cpu,
        traffic: sees.traffic,
        latency: sees.latency,
        scope: match sees.scope {
            Scope::Machine => "machine",
            Scope::Processes => "processes",
            Scope::Own => "own",
        },
        nature: match sees.nature {
            Nature::Measured => "measured",
            Nature::Emulated => "emulated",
            Nature::Simulated => "simulated",
        },
    }
}

impl Seen {
    /// The capabilities in words.
    pub(in crate::cli) fn words(&self) -> String {
        let mut what = Vec::new();
        match self.addresses {
            "pages" => what.push("pages"),
            "regions" => what.push("regions of memory"),
            _ => {}
        }
        for (has, word) in [
            (self.cpu, "the CPU's node"),
            (self.writes, "reads and writes apart"),
            (self.traffic, "traffic by node"),
            (self.latency, "latency by node"),
        ] {
            what.extend(has.then_some(word));
        }
        let whose = match self.scope {
            "processes" => "of each process",
            "own" => "by loads of its own",
            _ => "of the whole machine",
        };
        let emulated = if self.nature == "emulated" { "; emulated" } else { "" };
        format!("{} {whose}{emulated}", what.join(", "))
    }
}

/// The report.
pub(super) fn of(
    scene: &Scene<'_>,
    lab: Option<serde_json::Value>,
    outcomes: &[Outcome<'_>],
) -> Report {
    let nodes = scene.nodes();
    let sensed = |(sensor, outcome): &Outcome<'_>| {
        let cost = sensor.cost();
        Sensed {
            described: described(sensor.as_ref(), outcome.as_ref().err()),
            reading: outcome.as_ref().ok().map(|reading| read(scene, reading)),
            cpu_ns: cost.cpu.0,
            interruptions: cost.interruptions,
        }
    };
    Report {
        schema: "nearfar.sense/1",
        lab,
        nodes: nodes.iter().map(|node| node.0).collect(),
        sensors: outcomes.iter().map(sensed).collect(),
    }
}

fn read(scene: &Scene<'_>, reading: &Reading) -> Read {
    let memory = |node| Memory { node, total: Bytes(0), free: Bytes(0) };
    let nodes = scene.nodes().into_iter().map(memory).collect();
    let samples = &reading.samples;
    let only = Reading { samples: samples.clone(), ..Reading::default() };
    let pages: BTreeSet<_> = samples.iter().map(|sample| sample.page).collect();
    let count = |of: fn(&nearfar_policy::traffic::Sample) -> bool| {
        samples.iter().filter(|sample| of(sample)).count() as u64
    };
    let (reads, writes) = match reading.reads {
        Reads::Lines { reads, writes } => (Some(reads), Some(writes)),
        Reads::Fills { .. } | Reads::Unknown => (None, None),
    };
    let latency = reading.latency.iter();
    let counts = reading.counts;
    Read {
        elapsed_ns: reading.elapsed.0,
        coverage: f64::from(reading.coverage.0) / 10_000.0,
        accesses: reading.accesses.clone(),
        served: reading.served.clone(),
        reads,
        writes,
        latency_ns: latency
            .map(|row| row.iter().map(|cell| cell.map(|ns| ns.0)).collect())
            .collect(),
        latency_age_ns: reading.latency_age.0,
        used_bytes_per_second: reading.used.iter().map(|used| used.map(|used| used.0)).collect(),
        regions: reading.heat.len() as u64,
        region_bytes: bytes(&reading.heat, |_| true),
        used_region_bytes: bytes(&reading.heat, |heat| heat.used.0 > 0),
        samples: Samples {
            seen: counts.seen,
            lost: counts.lost,
            throttled: counts.throttled,
            unplaced: counts.unplaced,
            pages: pages.len() as u64,
            huge: count(|sample| sample.huge),
            writes: count(|sample| sample.write),
            by: only.round(nodes).accesses,
            per_sample: reading.per_sample,
        },
    }
}

/// Total bytes of the regions that `of` selects.
fn bytes(all: &[Heat], of: impl Fn(&Heat) -> bool) -> u64 {
    all.iter().filter(|heat| of(heat)).map(|heat| heat.end.saturating_sub(heat.start)).sum()
}

/// The text, sensors with readings first; as wide as the terminal, except tables of wide machines.
pub(super) fn text(report: &Report) -> String {
    let mut out = String::new();
    if let Some(lab) = &report.lab {
        machine::emulated(&mut out, lab);
    }
    let (usable, unusable): (Vec<_>, Vec<_>) =
        report.sensors.iter().partition(|sensed| sensed.reading.is_some());
    for sensed in usable.into_iter().chain(unusable) {
        let described = &sensed.described;
        if !out.is_empty() {
            out.push('\n');
        }
        let Some(read) = &sensed.reading else {
            let found = described.found.as_deref().unwrap_or_default();
            wrapped(&mut out, &format!("{} ", described.name), &format!("not usable: {found}"), 4);
            if let Some(next) = &described.next {
                wrapped(&mut out, "    ", &format!("next: {next}"), 10);
            }
            continue;
        };
        wrapped(
            &mut out,
            &format!("{} ", described.name),
            &format!("sees {}", described.sees.words()),
            4,
        );
        reading(&mut out, &report.nodes, read, described.sees.writes);
    }
    out
}

fn reading(out: &mut String, nodes: &[u16], read: &Read, writes: bool) {
    let seconds = read.elapsed_ns as f64 / 1e9;
    let samples = &read.samples;
    if samples.seen + samples.lost + samples.unplaced > 0 {
        let mut line =
            format!("samples in {seconds:.1} s: {}, of pages: {}", samples.seen, samples.pages);
        if writes {
            let _ = write!(line, ", {} of writes", samples.writes);
        }
        for (count, word) in [(samples.lost, "lost"), (samples.unplaced, "of no known page")] {
            if count > 0 {
                let _ = write!(line, ", {count} {word}");
            }
        }
        wrapped(out, "  ", &line, 4);
        table(out, nodes, "samples", &samples.by, |cell| cell.to_string());
    }
    if read.regions > 0 {
        let (used, all) = (Bytes(read.used_region_bytes), Bytes(read.region_bytes));
        wrapped(out, "  ", &format!("{} regions; {used} of {all} used", read.regions), 4);
    }
    if let Some(accesses) = &read.accesses {
        table(out, nodes, "GB/s", accesses, |lines| rate(*lines, seconds));
    }
    if read.served.iter().any(Option::is_some) {
        let of = nodes.iter().zip(&read.served);
        let text = |(node, lines): (&u16, &Option<u64>)| {
            let rate = lines.map_or_else(|| "?".into(), |lines| rate(lines, seconds));
            format!("node {node} {rate} GB/s")
        };
        wrapped(out, "  ", &of.map(text).collect::<Vec<_>>().join(", "), 4);
    }
    if !read.latency_ns.is_empty() {
        table(out, nodes, "ns", &read.latency_ns, |cell| {
            cell.map_or_else(|| "-".into(), |ns| ns.to_string())
        });
    }
    if read.used_bytes_per_second.iter().any(Option::is_some) {
        let of = nodes.iter().zip(&read.used_bytes_per_second);
        let text = |(node, used): (&u16, &Option<u64>)| {
            let unknown = || "unknown (its latency hardly rises yet)".into();
            let used = used.map_or_else(unknown, |used| BytesPerSecond(used).to_string());
            format!("node {node} {used}")
        };
        let all = of.map(text).collect::<Vec<_>>().join(", ");
        wrapped(out, "  ", &format!("in use by the saved probe's curve: {all}"), 4);
    }
}

fn rate(lines: u64, seconds: f64) -> String {
    format!("{:.2}", lines as f64 * 64.0 / 1e9 / seconds.max(1e-9))
}

/// A table with CPU nodes as rows; rows without a reading are omitted.
fn table<T>(
    out: &mut String,
    nodes: &[u16],
    unit: &str,
    rows: &[Vec<T>],
    cell: impl Fn(&T) -> String,
) {
    let _ = write!(out, "  {unit:<14}");
    for node in nodes {
        let _ = write!(out, "{:>11}", format!("node {node}"));
    }
    out.push('\n');
    for (node, row) in nodes.iter().zip(rows) {
        let cells: Vec<String> = row.iter().map(&cell).collect();
        if cells.iter().all(|cell| matches!(cell.as_str(), "0" | "-" | "0.00")) {
            continue;
        }
        let _ = write!(out, "  {:<14}", format!("CPUs of {node}"));
        for cell in cells {
            let _ = write!(out, "{cell:>11}");
        }
        out.push('\n');
    }
}
