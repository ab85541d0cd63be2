//! The memory of a virtual machine as text, as JSON and as one page. The figures come from `bench/vm`; this file only
//! presents them.

use std::fmt::Write as _;

use maud::html;
use nearfar_report::style;

use super::comparison;
use crate::vm::results::{Found, Memory, RedisRow, Row, Setup};

/// The columns of a table.
const COLUMNS: [&str; 4] = ["latency", "over DRAM", "read by 1 thread", "published"];
const MEANING: &str = "The virtual machine is a guest of the lab. Latency is that of a dependent load, from a chain through 32 MiB \
    (16 MiB of the device); \"over DRAM\" is the difference to the guest's DRAM. Published: idle latency in a guest on hardware, in the \
    proposal of host-mem-type for QEMU (qemu-devel, 2024-01-01; Intel MLC). Each access to a type-3 device is emulated I/O of \
    QEMU, one after another, so its bandwidth is that of no hardware.";

/// The columns of the servers' table.
const SERVERS: [&str; 3] = ["P50", "over DRAM", "published"];
const REDIS: &str = "Redis in the guest, 32 MiB of values, read at random by redis-benchmark with 8 connections: values of 800 B in \
    pipelines of 16 requests, values of 70 kB one by one. Tiered: all data was in CXL memory, and was read for some seconds under \
    `nearfar run --tier` before. Published: P50 over that with DRAM, in the same proposal (memtier), with a kernel that did not promote as \
    expected; there \"CXL only\" has the guest's kernel in CXL memory, too.";

/// Whether every row has figures.
pub(crate) fn is_whole(found: &Found) -> bool {
    let failures = found.rows.iter().map(|row| &row.failed);
    failures.chain(found.redis.iter().map(|row| &row.failed)).all(Option::is_none)
}

fn or_none(text: Option<String>) -> String {
    text.unwrap_or_else(|| "–".into())
}

/// A server's name and cells.
fn server(found: &Found, row: &RedisRow) -> (String, [String; SERVERS.len()]) {
    let is_base = |of: &&RedisRow| of.memory == Memory::Dram && of.value_bytes == row.value_bytes;
    let dram = found.redis.iter().find(is_base).and_then(|of| of.p50_ns);
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of seconds")]
    let over = |(ns, dram): (u64, u64)| ns as f64 / dram.max(1) as f64;
    let published =
        row.memory.published_ms(row.value_bytes) / Memory::Dram.published_ms(row.value_bytes);
    let cells = [
        or_none(row.p50_ns.map(|ns| format!("{} µs", ns / 1000))),
        or_none(row.p50_ns.zip(dram).map(over).map(|ratio| format!("{ratio:.2}"))),
        format!("{published:.2}"),
    ];
    (format!("{} B, {}", row.value_bytes, row.memory.name()), cells)
}

fn cells(found: &Found, row: &Row) -> [String; COLUMNS.len()] {
    let dram = found.rows.iter().find(|row| row.setup == Setup::Dram);
    let is_far = row.setup != Setup::Dram;
    let over = dram.filter(|_| is_far).and_then(|dram| Some(row.latency_ns? - dram.latency_ns?));
    let ns = row.setup.published_ns();
    let published_over = is_far.then(|| format!(" ({:+.1})", ns - Setup::Dram.published_ns()));
    [
        or_none(row.latency_ns.map(|ns| format!("{ns:.1} ns"))),
        or_none(over.map(|over| format!("{over:+.1} ns"))),
        or_none(row.gbps.map(|gbps| format!("{gbps:.2} GB/s"))),
        format!("{ns:.1} ns{}", published_over.unwrap_or_default()),
    ]
}

/// For terminals.
pub(crate) fn text(found: &Found) -> String {
    let mut out = comparison::intro(&found.machine, MEANING);
    let [latency, ratio, read, published] = COLUMNS;
    let _ = writeln!(out, "\n  {:<30} {latency:>10} {ratio:>12} {read:>17} {published:>19}", "");
    for row in &found.rows {
        let [latency, ratio, read, published] = cells(found, row);
        let name = row.setup.name();
        let _ = writeln!(out, "  {name:<30} {latency:>10} {ratio:>12} {read:>17} {published:>19}");
        out.extend(row.failed.iter().map(|why| format!("    failed: {why}\n")));
    }
    if !found.redis.is_empty() {
        let [p50, over, published] = SERVERS;
        let _ = writeln!(out, "\n{REDIS}\n\n  {:<30} {p50:>10} {over:>12} {published:>12}", "");
    }
    for row in &found.redis {
        let (name, [p50, over, published]) = server(found, row);
        let _ = writeln!(out, "  {name:<30} {p50:>10} {over:>12} {published:>12}");
        out.extend(row.failed.iter().map(|why| format!("    failed: {why}\n")));
    }
    out
}

/// One self-contained page.
pub(crate) fn html(found: &Found) -> String {
    let style = [style::COLORS, style::PAGE, include_str!("tiering.css")];
    let rows = found.rows.iter().map(|row| {
        let name = row.setup.name().to_owned();
        (name, row.setup == Setup::CxlNode, cells(found, row))
    });
    let servers = found.redis.iter().map(|row| {
        let (name, cells) = server(found, row);
        (name, row.memory == Memory::Tiered, cells)
    });
    let main = html! {
        (comparison::head("nearfar-bench vm", "Memory of a virtual machine", &[MEANING.to_owned()], Some(&found.machine)))
        section {
            (comparison::table(COLUMNS, rows))
            @for row in &found.rows {
                @if let Some(why) = &row.failed { p { strong { (row.setup.name()) } " failed: " (why) } }
            }
        }
        @if !found.redis.is_empty() {
            section {
                h2 { "Redis" }
                p { (REDIS) }
                (comparison::table(SERVERS, servers))
                @for row in &found.redis {
                    @if let Some(why) = &row.failed { p { strong { (row.memory.name()) } " failed: " (why) } }
                }
            }
        }
        footer { "nearfar " (found.nearfar) " · " (found.schema) }
    };
    nearfar_report::document::document("nearfar-bench vm", &style, &main)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found() -> Found {
        let row = |setup, ns| Row { setup, latency_ns: Some(ns), gbps: Some(2.5), failed: None };
        let latencies = [116.7, 251.1, 300.8];
        let server =
            |(memory, ns)| RedisRow { memory, value_bytes: 70_000, p50_ns: Some(ns), failed: None };
        Found {
            schema: crate::vm::results::SCHEMA.into(),
            nearfar: "0.0.0".into(),
            machine: crate::heap::sample::found().machine,
            rows: Setup::ALL.into_iter().zip(latencies).map(|(setup, ns)| row(setup, ns)).collect(),
            redis: Memory::ALL.into_iter().zip([200_000, 300_000, 210_000]).map(server).collect(),
        }
    }

    #[test]
    fn figures_are_shown_beside_the_published_ones() {
        let found = found();
        let shown = text(&found);
        for part in [
            "EMULATED",
            "CXL as a node",
            "116.7 ns",
            "+134.4 ns",
            "269.7 ns (+153.6)",
            "266.8 ns (+150.7)",
            "70000 B, CXL only                  300 µs         1.50         2.04",
            "70000 B, tiered                    210 µs         1.05         1.78",
        ] {
            assert!(shown.contains(part), "{part}:\n{shown}");
        }
        let page = html(&found);
        assert!(page.contains("266.8 ns") && page.contains("Emulated."), "{page}");
        assert!(is_whole(&found));
    }

    #[test]
    fn a_failed_row_shows_the_reason() {
        let mut found = found();
        found.rows[2] =
            Row::of(Setup::CxlDevice, ["binding to node 2: Invalid argument"].into_iter());
        assert!(!is_whole(&found));
        let shown = text(&found);
        assert!(shown.contains("failed: binding to node 2"), "{shown}");
        assert!(html(&found).contains("failed: binding to node 2"));
        found.rows.pop();
        assert!(is_whole(&found));
        let server = &mut found.redis[1];
        (server.p50_ns, server.failed) = (None, Some("no redis-server".into()));
        assert!(!is_whole(&found));
        let none = "70000 B, CXL only                       –            –         2.04";
        assert!(text(&found).contains(none) && text(&found).contains("failed: no redis-server"));
    }
}
