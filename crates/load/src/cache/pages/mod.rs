//! A load on a cache as text and as one page. The result is in `cache/results.rs`; here is only its presentation.

use std::fmt::Write as _;

use nearfar_topology::Bytes;

use crate::cache::pace::TIMED;
use crate::cache::results::{Asking, Found, KindFound, Latency, Load, Memory};
use crate::cache::tally::{Kind, Trouble};
use nearfar_report::words;

mod chart;
pub mod page;
pub mod text;

/// The columns of the table of kinds, after their names.
const COLUMNS: [&str; 8] = ["requests", "found", "P50", "P90", "P99", "P99.9", "max", "mean"];

/// `1 thread`, `2 threads`.
pub fn count(number: u64, what: &str) -> String {
    format!("{} {what}{}", words::grouped(number), if number == 1 { "" } else { "s" })
}

/// Parameters of the load: sentences without final stops.
pub(crate) fn how(load: &Load) -> Vec<String> {
    let mut asking = format!("Seed {}, {}", load.seed, count(load.threads.into(), "thread"));
    if let Some(Asking { connections, depth, multiget }) = load.server {
        let _ = write!(asking, ", each with {}", count(connections.into(), "connection"));
        let _ = write!(asking, " and on each up to {} under way", count(depth.into(), "command"));
        if multiget > 1 {
            let _ = write!(asking, ", of up to {multiget} reads each");
        }
    }
    let pace = match (load.rate, &load.arrivals) {
        (Some(rate), arrivals) => format!(
            "Open loop: {} requests a second, {} arrivals; latencies are from when requests were due",
            if rate < 1000.0 { rate.to_string() } else { words::grouped(whole(rate)) },
            arrivals.as_deref().unwrap_or("unknown")
        ),
        (None, _) => "Closed loop: each request as soon as one was answered".into(),
    };
    let mut all = vec![format!("{}: {}", load.workload, load.made_of), asking, pace];
    if load.warm_up_s > 0.0 {
        all.push(format!("The first {} s do not count", load.warm_up_s));
    }
    all.extend(load.preloaded.then(|| "All keys are stored first".into()));
    all.extend(load.verified.then(|| "Every value read is checked".into()));
    all
}

/// The main result.
fn headline(found: &Found) -> String {
    let rate = words::grouped(whole(found.operations_per_s));
    let hits = found.hit_ratio.map_or(String::new(), |hits| format!(", hit ratio {hits:.3}"));
    format!("{rate} requests a second{hits}")
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count for people")]
fn whole(number: f64) -> u64 {
    number.round() as u64
}

/// Summary of all requests.
fn summary(found: &Found) -> String {
    format!(
        "{} answered in {:.2} s; values read: {}, stored: {}",
        count(found.operations, "request"),
        found.seconds,
        Bytes(found.read_bytes),
        Bytes(found.written_bytes)
    )
}

/// Errors and reasons for caution; empty if there are none.
fn troubles(found: &Found) -> Vec<String> {
    let of = |trouble: &Trouble, what: &str| {
        let first =
            trouble.first.as_ref().map_or(String::new(), |first| format!("; the first: {first}"));
        (trouble.count > 0).then(|| format!("{}{first}", count(trouble.count, what)))
    };
    let mut all = Vec::new();
    all.extend(of(&found.wrong, "wrong value"));
    all.extend(
        of(&found.errors, "request").map(|said| said.replacen(';', " without an answer;", 1)),
    );
    all.extend(of(&found.refused, "store").map(|said| said.replacen(';', " refused;", 1)));
    if found.overdue > 0 {
        let overdue = count(found.overdue, "request");
        all.push(format!(
            "{overdue} due and not begun at the end: this target, or this client, does not keep up with the rate"
        ));
    }
    all
}

/// A note on latencies.
fn timing(found: &Found) -> Option<String> {
    let some = |of: &KindFound| of.latency.as_ref().is_some_and(|took| took.timed < of.operations);
    let sampled = found.kinds.iter().any(some);
    sampled.then(|| {
        format!("Latencies are of one request in {TIMED}: in a closed loop in this process the clock would cost too much")
    })
}

/// The target's memory, where known.
fn memory(found: &Found) -> Option<String> {
    let Memory { resident_bytes, figures } = &found.memory_after;
    let mut all = Vec::new();
    all.extend(resident_bytes.map(|bytes| format!("resident memory {}", Bytes(bytes))));
    let figure = |name: &str| figures.get(name).copied();
    if let (Some(bytes), Some(limit)) = (figure("bytes"), figure("limit_maxbytes")) {
        all.push(format!("items have {} of {}", Bytes(bytes), Bytes(limit)));
    }
    all.extend(figure("curr_items").map(|items| count(items, "item")));
    let before = found.memory_before.figures.get("evictions").copied().unwrap_or(0);
    let evicted = figure("evictions").map(|after| after.saturating_sub(before));
    all.extend(evicted.map(|evicted| count(evicted, "eviction")));
    (!all.is_empty()).then(|| all.join(", "))
}

/// A row of the table.
fn cells(of: &KindFound) -> [String; COLUMNS.len()] {
    let ratio = crate::cache::results::ratio(of.found, of.operations);
    let found = ratio.map_or_else(|| "–".into(), |ratio| format!("{:.2} %", 100.0 * ratio));
    let took = |at: fn(&Latency) -> u64| words::latency(of.latency.as_ref().map(at));
    [
        words::grouped(of.operations),
        found,
        took(|took| took.p50_ns),
        took(|took| took.p90_ns),
        took(|took| took.p99_ns),
        took(|took| took.p99_9_ns),
        took(|took| took.max_ns),
        took(|took| whole(took.mean_ns)),
    ]
}

/// The class of a kind's colour.
const fn class(kind: Kind) -> &'static str {
    match kind {
        Kind::Get => "get",
        Kind::Set => "set",
        Kind::Fill => "fill",
        Kind::Update => "update",
        Kind::Delete => "delete",
        Kind::LoneGet | Kind::LoneSet => "lone",
    }
}

#[cfg(test)]
mod tests;
