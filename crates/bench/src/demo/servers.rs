//! Unmodified servers and their standard clients: redis-server with redis-benchmark, memcached with memcaslap.
//!
//! Each placement gets a fresh server on loopback, filled untimed with several times the size of the lab's last-level
//! caches (8 MiB), then a fixed number of operations, timed by the client. Requests are batched, as by busy clients:
//! with single requests the network stack takes so long that placement hardly matters. memcaslap comes with
//! libmemcached and is the only load generator for memcached that Debian packages and that reports latencies.
//!
//! Under a modelled clock server and client share a CPU: while all CPUs wait for one another, that clock advances with
//! real time, and the emulator's delay in waking a CPU is unrelated to memory. On one CPU neither waits; and as batch
//! work neither preempts the other, so that a run is repeatable.

use std::time::Duration;

use super::clients::{Measured, NotUnderstood, memcaslap, redis_benchmark};
use super::line::{Line, find};
use super::placements;
use super::process::{Launcher, free_port};
use nearfar_command::progress::Progress;
use nearfar_report::model::{Emulation, LeftOut, Placement, Server, ServerRun};

/// Number of values: 32 MiB in total. Few large ones, as the lab takes two milliseconds of the host for each that a client
/// stores.
const VALUES: u64 = 8 << 10;
/// Bytes of each.
const VALUE_BYTES: u64 = 4 << 10;
/// Connections per client.
const CONNECTIONS: u64 = 8;
/// Requests per batch: in a pipeline, or as keys of one request.
const AT_ONCE: u64 = 16;
/// Time limit of loading or measuring.
const LIMIT: Duration = Duration::from_secs(180);

/// A server and its use in the demo.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Service {
    /// Word of `--only`.
    pub(crate) id: &'static str,
    program: &'static str,
    client: &'static str,
    /// Other required programs.
    also: &'static [&'static str],
    packages: &'static str,
    version: &'static str,
    workload: &'static str,
    /// Timed operations.
    operations: u64,
    note: Option<&'static str>,
    start: fn(u16) -> Line,
    /// The command that fills it; `None` if the client does so itself.
    load: fn(u16) -> Option<Line>,
    /// The client, for a port and a number of operations.
    measure: fn(u16, u64) -> Line,
    parse: fn(&str) -> Result<Measured, NotUnderstood>,
}

/// All services, in display order.
pub(crate) const SERVICES: [Service; 2] = [REDIS, MEMCACHED];

const REDIS: Service = Service {
    id: "redis",
    program: "redis-server",
    client: "redis-benchmark",
    also: &["redis-cli"],
    packages: "redis-server redis-tools",
    version: "redis-server --version",
    workload: "GET of random keys in pipelines of 16, 4 KiB values, 8 connections",
    // redis-benchmark gives the time in milliseconds.
    operations: 20_000,
    note: Some("Latencies are of pipelines of 16 requests."),
    start: redis_server,
    load: |port| Some(redis_fill(port, VALUES, VALUE_BYTES)),
    measure: |port, operations| redis_get(port, AT_ONCE, operations, VALUES),
    parse: redis_benchmark::parse,
};

/// A Redis server in memory alone.
pub(crate) fn redis_server(port: u16) -> Line {
    let save = Line::new(["--save", "", "--appendonly", "no"]);
    Line::words(&format!("redis-server --bind 127.0.0.1 --port {port}")).and(&save)
}

/// The command that stores this many values.
pub(crate) fn redis_fill(port: u16, values: u64, value_bytes: u64) -> Line {
    // redis-benchmark's own keys: `key:` and twelve digits.
    let script = "local value = string.rep('v', ARGV[2]) for i = 0, ARGV[1] - 1 do \
                  redis.call('SET', string.format('key:%012d', i), value) end";
    Line::words(&format!("redis-cli -p {port} EVAL"))
        .and(&Line::new([script]))
        .and(&Line::words(&format!("0 {values} {value_bytes}")))
}

/// The client: reads of random values, in pipelines of `at_once` requests.
pub(crate) fn redis_get(port: u16, at_once: u64, operations: u64, values: u64) -> Line {
    Line::words(&format!(
        "redis-benchmark -h 127.0.0.1 -p {port} -c {CONNECTIONS} -P {at_once} -n {operations} \
         -r {values} -t get --precision 3"
    ))
}

const MEMCACHED: Service = Service {
    id: "memcached",
    program: "memcached",
    client: "memcaslap",
    also: &[],
    packages: "memcached libmemcached-tools",
    version: "memcached --version",
    workload: "GET of 16 keys at once, 4 KiB values, 8 connections",
    operations: 5_000,
    note: Some(memcaslap::NOTE),
    start: |port| {
        Line::words(&format!("memcached -u root -l 127.0.0.1 -p {port} -U 0 -m 256 -t 1"))
    },
    // With only GET requested, memcaslap first fills its windows and then starts the clock. The mix is in a file.
    load: |_| None,
    measure: |port, operations| {
        let mix = format!(r"key\n64 64 1\nvalue\n{VALUE_BYTES} {VALUE_BYTES} 1\ncmd\n0 0\n1 1\n");
        let window = VALUES / CONNECTIONS / 1024;
        let script = format!(
            "printf '{mix}' > memcaslap.conf && exec memcaslap -s 127.0.0.1:{port} -F memcaslap.conf -T 1 \
             -c {CONNECTIONS} -d {AT_ONCE} -w {window}k -x {operations} -S 1h"
        );
        Line::new(["sh", "-c", &script])
    },
    parse: |text| memcaslap::parse(text, AT_ONCE),
};

impl Service {
    /// The missing program, and the way to install it.
    pub(crate) fn missing(&self) -> Option<LeftOut> {
        let needed = [self.program, self.client];
        let missing: Vec<_> = needed
            .iter()
            .chain(self.also)
            .filter(|program| find(program).is_none())
            .copied()
            .collect();
        (!missing.is_empty()).then(|| LeftOut {
            what: self.program.into(),
            why: format!(
                "not installed: {}; apt-get install {}",
                missing.join(", "),
                self.packages
            ),
        })
    }

    /// Runs it under each available placement.
    pub(crate) fn run(
        &self,
        launcher: Launcher<'_>,
        emulation: Option<&Emulation>,
        of: &[Placement],
        progress: &mut Progress,
    ) -> anyhow::Result<Server> {
        let slow_motion = emulation.map_or(1.0, |emulation| emulation.slow_motion);
        let one_cpu = emulation.is_some_and(|emulation| emulation.clock == "virtual");
        let pin = Line::words(if one_cpu { "chrt -b 0 taskset -c 0" } else { "" });
        let mut runs = Vec::new();
        for placement in of.iter().filter(|placement| placement.unavailable.is_none()) {
            progress.step(&format!("{}, {}", self.program, placement.name));
            runs.push(self.run_one(launcher, placement, &pin, slow_motion)?);
        }
        let version = launcher.run(&Line::words(self.version), "version.txt", LIMIT)?;
        Ok(Server {
            program: self.program.into(),
            version: version_in(&version),
            client: self.client.into(),
            workload: format!("{}{}", self.workload, if one_cpu { ", on one CPU" } else { "" }),
            data_bytes: VALUES * VALUE_BYTES,
            operations: self.operations,
            latency_note: self.note.map(Into::into),
            runs,
        })
    }

    fn run_one(
        &self,
        launcher: Launcher<'_>,
        placement: &Placement,
        pin: &Line,
        slow_motion: f64,
    ) -> anyhow::Result<ServerRun> {
        let port = free_port()?;
        let pinned = |line: Line| pin.clone().and(&line);
        let start = pinned(placements::under(placement, None, &(self.start)(port)));
        let file = |what: &str| format!("{}-{}-{what}.txt", self.id, placement.id);
        let server = launcher.serve(&start, port, &file("server"))?;
        let load = (self.load)(port).map(pinned);
        if let Some(load) = &load {
            launcher.run(load, &file("load"), LIMIT)?;
        }
        let measure = pinned((self.measure)(port, self.operations));
        let text = launcher.run(&measure, &file("client"), LIMIT)?;
        let (operations_per_second, latency) = (self.parse)(&text)?.unslowed(slow_motion);
        let lines = [Some(start), load, Some(measure)];
        Ok(ServerRun {
            placement: placement.id.clone(),
            operations_per_second,
            latency,
            residency: super::machine::residency(server.pid())?,
            commands: lines.iter().flatten().map(Line::to_string).collect(),
        })
    }
}

/// The version in a server's version output: the first word that starts with a digit, or follows `v=`.
fn version_in(text: &str) -> String {
    let words = text.split_whitespace().map(|word| word.trim_start_matches("v="));
    let mut versions = words.filter(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    versions.next().unwrap_or("of unknown version").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_parsed_from_server_output() {
        for (text, version) in [
            ("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64", "7.0.15"),
            ("memcached 1.6.18\n", "1.6.18"),
            ("", "of unknown version"),
        ] {
            assert_eq!(version_in(text), version);
        }
    }

    #[test]
    fn missing_programs_are_reported_with_the_packages_to_install() {
        let service = Service { program: "no-such-server", also: &["no-such-tool"], ..REDIS };
        let left = service.missing().unwrap();
        assert_eq!(left.what, "no-such-server");
        assert!(
            left.why.contains("no-such-server, ") && left.why.contains("no-such-tool"),
            "{left:?}"
        );
        assert!(left.why.ends_with("apt-get install redis-server redis-tools"), "{left:?}");
        let there = Service { program: "sh", client: "sh", also: &[], ..REDIS };
        assert_eq!(there.missing(), None);
    }

    #[test]
    fn the_data_is_larger_than_the_last_level_cache_and_keys_are_the_clients() {
        const { assert!(VALUES * VALUE_BYTES >= 4 * (8 << 20)) };
        let load = (REDIS.load)(1).unwrap().to_string();
        assert!(load.contains("key:%012d") && load.ends_with("0 8192 4096"), "{load}");
        let measure = (MEMCACHED.measure)(1, 6000).to_string();
        assert!(measure.contains("-c 8 -d 16 -w 1k"), "{measure}");
    }
}
