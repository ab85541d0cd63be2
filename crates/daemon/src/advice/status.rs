//! Display of the advice page, as a table and as `nearfar.daemon/2`.

use std::fmt::Write as _;
use std::path::Path;

use nearfar_kernel::advice::Reader;
use nearfar_policy::advice::{Advice, Page, Traffic};
use nearfar_topology::{BytesPerSecond, Nanoseconds};
use serde_json::{Value, json};

use nearfar_command::output::NotRunning;

/// The `schema` of the JSON output.
pub const SCHEMA: &str = "nearfar.daemon/2";

/// The page at `path`, if its writer is alive at the time `now`.
///
/// # Errors
/// There is no page or no live writer; the text says how to start one.
pub fn read(path: &Path, now: impl Fn() -> Nanoseconds) -> anyhow::Result<Page> {
    let reader = Reader::open(path)?.ok_or_else(|| {
        NotRunning(format!(
            "the daemon is not running: there is no {}; nearfar daemon starts it, --advice names another page",
            path.display()
        ))
    })?;
    let page = reader.read()?;
    // Read before the clock: a page from after `now` would be of another clock.
    let now = now();
    if page.is_fresh(now) {
        return Ok(page);
    }
    let why = format!(
        "the daemon is not running: process {} last wrote {} {}, and should every {} ms; nearfar daemon --recover removes \
         its files, nearfar daemon does so as well and starts it",
        page.pid,
        path.display(),
        ago(&page, now),
        millis(page.interval),
    );
    Err(NotRunning(why).into())
}

fn ago(page: &Page, now: Nanoseconds) -> String {
    match now.0.checked_sub(page.heartbeat.0) {
        Some(age) if page.heartbeat.0 > 0 => {
            format!("{}.{} s ago", age / 1_000_000_000, age / 100_000_000 % 10)
        }
        _ => "at an unknown time".into(),
    }
}

fn millis(time: Nanoseconds) -> u64 {
    time.0 / 1_000_000
}

/// CPU time used by sampling, in thousandths of a per cent.
fn cpu_share(page: &Page) -> u64 {
    let passed = page.heartbeat.0.saturating_sub(page.begun.0);
    let share = (u128::from(page.cpu.0) * 100_000).checked_div(u128::from(passed)).unwrap_or(0);
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// The table, for display.
pub fn text(page: &Page, lab: Option<&Value>) -> String {
    let mut text = String::new();
    if let Some(lab) = lab {
        nearfar_command::machine::emulated(&mut text, lab);
    }
    if page.pid == std::process::id() {
        let _ = writeln!(text, "Sampled {} times; nothing is published", page.looks);
    } else {
        let share = cpu_share(page);
        let _ = writeln!(
            text,
            "Process {}: sampling interval {} ms, {} samples so far, {}.{:03} % of a CPU",
            page.pid,
            millis(page.interval),
            page.looks,
            share / 1000,
            share % 1000
        );
    }
    let _ = writeln!(
        text,
        "Pressure is from timed loads; bandwidth in use is {}\n",
        match page.traffic {
            Traffic::Resctrl => "counted by resctrl",
            Traffic::Unknown => "not known (no counters of resctrl)",
        }
    );
    let _ = writeln!(
        text,
        "{:>4} {:>9} {:>9} {:>9} {:>6} {:>12} {:>12} {:>12} {:>7}",
        "node", "idle", "now", "pressure", "free", "in use", "most reads", "most writes", "weight"
    );
    page.nodes.iter().for_each(|node| row(&mut text, node));
    text
}

fn row(text: &mut String, node: &Advice) {
    let bandwidth =
        |known: Option<BytesPerSecond>| known.map_or("-".into(), |known| known.to_string());
    let _ = writeln!(
        text,
        "{:>4} {:>9} {:>9} {:>7} % {:>4} % {:>12} {:>12} {:>12} {:>7}",
        node.node,
        node.idle.to_string(),
        node.load.to_string(),
        node.pressure,
        node.free.0 / 100,
        bandwidth(node.used),
        bandwidth(node.read),
        bandwidth(node.write),
        node.weight
    );
}

/// The JSON output, for programs.
pub fn json(page: &Page, lab: Option<&Value>) -> Value {
    let node = |node: &Advice| {
        let bandwidth = |known: Option<BytesPerSecond>| known.map(|known| known.0);
        json!({
            "node": node.node.0,
            "idle_ns": node.idle.0,
            "load_ns": node.load.0,
            "pressure_bp": node.pressure * 100,
            "free_bp": node.free.0,
            "used_bytes_per_second": bandwidth(node.used),
            "read_bytes_per_second": bandwidth(node.read),
            "write_bytes_per_second": bandwidth(node.write),
            "weight": node.weight,
        })
    };
    json!({
        "schema": SCHEMA,
        "lab": lab,
        "pid": page.pid,
        "interval_ms": millis(page.interval),
        "looks": page.looks,
        "cpu_ns": page.cpu.0,
        "running_ns": page.heartbeat.0.saturating_sub(page.begun.0),
        "sources": {
            "pressure": "timed loads",
            "bandwidth": match page.traffic {
                Traffic::Resctrl => Some("resctrl"),
                Traffic::Unknown => None,
            },
        },
        "nodes": page.nodes.iter().map(node).collect::<Vec<_>>(),
    })
}
