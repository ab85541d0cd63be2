//! What sensors saw, as JSON (`nearfar.sense/1`) and as text; and what each can see, for `nearfar doctor` too.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use nearfar_control::sense::{Grain, Heat, Nature, Reading, Scope, Sees, Sensor, Unusable};
use nearfar_policy::traffic::{Memory, Reads};
use nearfar_topology::{Bytes, BytesPerSecond};
use serde::Serialize;

use super::Outcome;
use crate::cli::machine;
use crate::cli::output::wrapped;
use crate::sense::Scene;

/// All of it. Key names are stable; new keys may come.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    schema: &'static str,
    /// In a guest of the lab what the lab says of it; else null.
    lab: Option<serde_json::Value>,
    /// The nodes, in the order of rows and columns.
    nodes: Vec<u16>,
    sensors: Vec<Sensed>,
}

/// A sensor, whether it can be used, and what it can see.
#[derive(Debug, Serialize)]
pub(in crate::cli) struct Described {
    pub(in crate::cli) name: &'static str,
    pub(in crate::cli) usable: bool,
    /// Why not, in a word: absent, forbidden, taken, mute, failed.
    pub(in crate::cli) why: Option<&'static str>,
    /// Why not.
    pub(in crate::cli) found: Option<String>,
    /// The way out, if there is one.
    pub(in crate::cli) next: Option<String>,
    /// What it can see here; where it can't be used, what its kind sees at best.
    pub(in crate::cli) sees: Seen,
}

/// What a sensor can see.
#[derive(Debug, Serialize)]
pub(in crate::cli) struct Seen {
    /// none, regions or pages.
    addresses: &'static str,
    /// Whether an access read or wrote.
    writes: bool,
    /// The node whose CPU asked.
    cpu: bool,
    /// Lines by node.
    traffic: bool,
    /// What a load takes.
    latency: bool,
    /// machine, processes or own.
    scope: &'static str,
    /// measured or emulated.
    nature: &'static str,
}

/// A sensor and what it saw.
#[derive(Debug, Serialize)]
struct Sensed {
    #[serde(flatten)]
    described: Described,
    reading: Option<Read>,
    /// CPU time of ours that it took, and how often programs were interrupted for it.
    cpu_ns: u64,
    interruptions: u64,
}

#[derive(Debug, Serialize)]
struct Read {
    elapsed_ns: u64,
    /// The share of that in which it was looked.
    coverage: f64,
    /// Lines counted: a row for each node whose CPUs asked.
    accesses: Option<Vec<Vec<u64>>>,
    /// Lines that each node's memory served, whoever asked.
    served: Vec<Option<u64>>,
    /// Lines read and written, where these are told apart.
    reads: Option<u64>,
    writes: Option<u64>,
    /// What a load takes, by CPU node and node.
    latency_ns: Vec<Vec<Option<u64>>>,
    /// How old the oldest of these figures is.
    latency_age_ns: u64,
    /// What each node's memory carries now, whoever asked, as latency and this machine's saved probe tell.
    used_bytes_per_s: Vec<Option<u64>>,
    /// Stretches of memory by how much they are used: how many, their bytes, and the bytes of those that are used at all.
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
    /// Pages that they were of, and how many of the samples were of huge ones.
    pages: u64,
    huge: u64,
    writes: u64,
    /// By CPU node and node of the page.
    by: Vec<Vec<u64>>,
    /// How many accesses each stands for, if that is known.
    per_sample: Option<u64>,
}

/// What a sensor sees, and why it can't be used, if so.
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
        },
    }
}

impl Seen {
    /// In words.
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
        used_bytes_per_s: reading.used.iter().map(|used| used.map(|used| used.0)).collect(),
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

/// Bytes of some of these.
fn bytes(all: &[Heat], of: impl Fn(&Heat) -> bool) -> u64 {
    all.iter().filter(|heat| of(heat)).map(|heat| heat.end.saturating_sub(heat.start)).sum()
}

/// The text; at most 80 columns but for wide machines' tables.
pub(super) fn text(report: &Report) -> String {
    let mut out = String::new();
    if let Some(lab) = &report.lab {
        machine::emulated(&mut out, lab);
    }
    for sensed in &report.sensors {
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
            format!("{} samples in {seconds:.1} s of {} pages", samples.seen, samples.pages);
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
    if read.used_bytes_per_s.iter().any(Option::is_some) {
        let of = nodes.iter().zip(&read.used_bytes_per_s);
        let text = |(node, used): (&u16, &Option<u64>)| {
            let used = used.map_or_else(|| "?".into(), |used| BytesPerSecond(used).to_string());
            format!("node {node} {used}")
        };
        let all = of.map(text).collect::<Vec<_>>().join(", ");
        wrapped(out, "  ", &format!("in use by the saved probe's curve: {all}"), 4);
    }
}

fn rate(lines: u64, seconds: f64) -> String {
    format!("{:.2}", lines as f64 * 64.0 / 1e9 / seconds.max(1e-9))
}

/// Rows are CPU nodes; those that saw nothing are left out.
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
