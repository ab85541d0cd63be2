//! Redis in a virtual machine with DRAM, CXL memory, or both under tiering: the proposal's second benchmark.
//!
//! A fresh server for each row, filled with several times the size of the lab's last-level caches, then read at random by
//! redis-benchmark. Under tiering the data begins in CXL memory, as in the proposal, and is read for a while before the
//! figures count. Unlike there, the guest's kernel is in DRAM in every row.

use std::time::Duration;

use super::results::{Memory, RedisRow};
use crate::demo::clients::redis_benchmark;
use crate::demo::line::{Line, find};
use crate::demo::placements::prefix;
use crate::demo::process::{Launcher, free_port};
use crate::demo::servers::{redis_fill, redis_get, redis_server};
use nearfar_kernel::clock::sleep;

/// The values of a row.
#[derive(Clone, Copy)]
struct Values {
    /// Bytes of a value.
    bytes: u64,
    /// Requests in a pipeline: with single requests for small values, the network stack takes so long that placement hardly
    /// matters.
    at_once: u64,
    /// Bytes read at once before a row with tiering counts: a page has several small values, and is read as often as one of a
    /// large value.
    warm_up: u64,
}

const VALUES: [Values; 2] = [
    Values { bytes: 800, at_once: 16, warm_up: 4 << 20 },
    Values { bytes: 70_000, at_once: 1, warm_up: 16 << 20 },
];
/// Bytes of all values.
const DATA: u64 = 32 << 20;
/// Bytes that are read in a measurement.
const READ: u64 = 64 << 20;
/// Before a row with tiering counts, these bytes are read this many times, with a pause after each: tiering takes seconds in
/// which pages are in use, and emulating a busy second takes most of a minute.
const WARM_UPS: usize = 40;
const PAUSE: Duration = Duration::from_millis(100);
/// Time limit of loading or of a measurement.
const LIMIT: Duration = Duration::from_secs(300);

/// The options of `nearfar run` for a server.
const fn options(memory: Memory) -> &'static str {
    match memory {
        Memory::Dram => "-m near",
        Memory::Cxl => "-m far",
        Memory::Tiered => "-p far --tier",
    }
}

/// The server, the command that fills it, the client that warms it up, and the client that counts.
fn lines(memory: Memory, Values { bytes, at_once, warm_up }: Values, port: u16) -> [Line; 4] {
    let values = DATA / bytes;
    [
        prefix(options(memory)).and(&redis_server(port)),
        redis_fill(port, values, bytes),
        redis_get(port, at_once, warm_up / bytes, values),
        redis_get(port, at_once, READ / bytes, values),
    ]
}

/// The programs of all rows, for the plan.
pub(super) fn plan() -> String {
    let mut out = String::from("Redis: in the same guest as DRAM\n");
    for (memory, value) in rows() {
        let [server, fill, warm_up, client] = lines(memory, value, 6379);
        out += &format!("  {server}\n  {fill}\n");
        if memory == Memory::Tiered {
            out += &format!("  {warm_up}   ({WARM_UPS} times, {} ms apart)\n", PAUSE.as_millis());
        }
        out += &format!("  {client}\n");
    }
    out
}

/// In display order.
fn rows() -> impl Iterator<Item = (Memory, Values)> {
    VALUES.into_iter().flat_map(|value| Memory::ALL.map(|memory| (memory, value)))
}

/// Measures all rows. A row that fails has the reason; all of them fail without the programs.
pub(super) fn measure(
    launcher: Launcher<'_>,
    slow_motion: f64,
    mut step: impl FnMut(&str),
) -> Vec<RedisRow> {
    let missing = ["redis-server", "redis-cli", "redis-benchmark"]
        .into_iter()
        .find(|program| find(program).is_none());
    let of = |(memory, value): (Memory, Values)| {
        step(&format!("Redis, {}", memory.name()));
        let measured = match missing {
            Some(program) => Err(anyhow::anyhow!(
                "{program} is not installed; apt-get install redis-server redis-tools"
            )),
            None => p50_ns(launcher, memory, value, slow_motion),
        };
        let (p50_ns, failed) = match measured {
            Ok(p50_ns) => (Some(p50_ns), None),
            Err(error) => (None, Some(format!("{error:#}"))),
        };
        RedisRow { memory, value_bytes: value.bytes, p50_ns, failed }
    };
    rows().map(of).collect()
}

/// Number of rows.
pub(super) const ROWS: usize = VALUES.len() * Memory::ALL.len();

fn p50_ns(
    launcher: Launcher<'_>,
    memory: Memory,
    value: Values,
    slow_motion: f64,
) -> anyhow::Result<u64> {
    let port = free_port()?;
    let [server, fill, warm_up, client] = lines(memory, value, port);
    let _server = launcher.serve(&server, port, "redis-server.txt")?;
    launcher.run(&fill, "redis-fill.txt", LIMIT)?;
    for _ in (0..WARM_UPS).filter(|_| memory == Memory::Tiered) {
        launcher.run(&warm_up, "redis-client.txt", LIMIT)?;
        sleep(PAUSE);
    }
    let read = launcher.run(&client, "redis-client.txt", LIMIT)?;
    let (_, latency) = redis_benchmark::parse(&read)?.unslowed(slow_motion);
    latency.p50_ns.ok_or_else(|| anyhow::anyhow!("redis-benchmark printed no P50"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_exceeds_the_last_level_cache_and_is_read_more_than_once() {
        const { assert!(DATA >= 4 * (8 << 20) && READ >= 2 * DATA) };
        let [server, fill, warm_up, client] =
            lines(Memory::Tiered, VALUES[1], 7).map(|line| line.to_string());
        assert!(server.starts_with("nearfar run -p far --tier -- redis-server "), "{server}");
        assert!(fill.ends_with(" 0 479 70000"), "{fill}");
        assert!(client.contains("-P 1 -n 958 -r 479 -t get"), "{client}");
        assert!(warm_up.contains("-P 1 -n 239 -r 479 -t get"), "{warm_up}");
    }

    #[test]
    fn the_plan_has_every_memory_for_both_sizes() {
        let plan = plan();
        assert_eq!(plan.matches("redis-server").count(), ROWS);
        for part in ["run -m near --", "run -m far --", "-P 16", "-r 41943"] {
            assert!(plan.contains(part), "{part}:\n{plan}");
        }
    }
}
