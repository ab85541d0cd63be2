//! `nearfar cache bench` on the cache in its own process and on a real memcached on loopback, started here on a free
//! port and ended by its process id. Checks counts and the correctness of values, never times.

#![expect(clippy::unwrap_used, reason = "a test that can't start a server should stop")]
#![expect(clippy::panic, reason = "how a test fails")]
#![expect(clippy::disallowed_methods, reason = "waits until a server listens")]

use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

mod browser;

#[path = "../../load/tests/servers/mod.rs"]
mod servers;

use servers::{Ends, Server, server, started};

const MEMCACHED: [&str; 6] = ["-U", "0", "-t", "1", "-u", "nobody"];

/// A memcached with this many MiB, over TCP.
fn memcached(mib: &str) -> Server {
    server("memcached", &[&MEMCACHED[..], &["-l", "127.0.0.1", "-p", "PORT", "-m", mib]].concat())
}

/// One over a socket in the file system.
fn memcached_unix() -> Server {
    let options = [&MEMCACHED[..], &["-s", "mc.sock", "-m", "64"]].concat();
    let options: Vec<_> = options.into_iter().map(String::from).collect();
    started("memcached", &options, |dir| format!("unix:{}", dir.join("mc.sock").display()))
        .expect("nobody else has that socket")
}

fn bench(words: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
    command.args(["cache", "bench"]).args(words.split_whitespace()).output().unwrap()
}

fn json(words: &str) -> Value {
    let done = bench(&format!("{words} --json"));
    let (said, errors) = (String::from_utf8(done.stdout).unwrap(), String::from_utf8(done.stderr));
    assert!(done.status.success(), "{words}: {said} {errors:?}");
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{words}: {error} in {said}"))
}

fn refused(words: &str, status: i32, with: &str) {
    let done = bench(words);
    let errors = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(status), "{words}: {errors}");
    assert!(errors.contains(with), "{words}: {errors}");
}

/// Operations of a kind, and how many of them found their key.
fn of(found: &Value, kind: &str) -> (u64, u64) {
    let kinds = found["kinds"].as_array().unwrap();
    let of = kinds.iter().find(|of| of["kind"] == kind);
    let count = |what: &str| of.map_or(0, |of| of[what].as_u64().unwrap());
    (count("operations"), count("found"))
}

/// Assertions that hold for every run without errors.
fn right(found: &Value, operations: u64) {
    assert_eq!(found["schema"], "nearfar.cache-bench/1");
    assert_eq!(found["operations"], operations, "{found}");
    for trouble in ["errors", "wrong", "refused"] {
        assert_eq!(found[trouble]["count"], 0, "{found}");
    }
    let (gets, hits) = of(found, "get");
    let (fills, filled) = of(found, "fill");
    assert_eq!((gets - hits, filled), (fills, fills), "{found}");
    for of in found["kinds"].as_array().unwrap() {
        let took = &of["latency"];
        let at = |what: &str| took[what].as_u64().unwrap();
        let all = ["p50_ns", "p90_ns", "p99_ns", "p99_9_ns", "max_ns"].map(at);
        assert!(all.is_sorted() && at("timed") <= of["operations"].as_u64().unwrap(), "{of}");
        let counts = took["histogram"].as_array().unwrap().iter();
        assert_eq!(counts.map(|step| step[1].as_u64().unwrap()).sum::<u64>(), at("timed"));
    }
}

#[test]
fn every_shape_of_load_on_a_server_returns_no_wrong_value() {
    let server = memcached("64");
    for shape in [
        "--threads 1",
        "--threads 2 --connections 3 --depth 4",
        "--threads 2 --depth 16",
        "--threads 1 --multiget 16",
        "--threads 2 --connections 2 --depth 3 --multiget 100",
        "--threads 2 --rate 40000 --depth 64",
        "--threads 2 --rate 40000 --arrivals constant --multiget 10 --depth 64",
    ] {
        let words = format!(
            "--server {} --workload zipf:0.99 --keys 5000 --value-bytes 0-3000 --mix 80:15:5 \
             --verify --operations 10001 {shape}",
            server.address
        );
        let found = json(&words);
        right(&found, 10_001);
        assert!(of(&found, "set").0 > 1200 && of(&found, "delete").1 > 50, "{found}");
        assert_eq!(found["target_version"].as_str().map(|says| says.starts_with("1.")), Some(true));
        assert!(found["memory_after"]["resident_bytes"].as_u64().unwrap() > 1 << 20);
        assert_eq!(found["load"]["rate"].is_null(), !shape.contains("--rate"));
    }
}

#[test]
fn nearfars_server_is_driven_like_memcached() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_nearfar"))
        .args(["cache", "serve", "-p", "0", "-t", "1", "-I", "16k"])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let address = said.find_map(|line| Some(line.strip_prefix("listen")?.trim().to_string()));
    let (_process, address) = (Ends(child), address.unwrap());
    for shape in
        ["--threads 2 --depth 8 --connections 2", "--multiget 30", "--rate 30000 --depth 32"]
    {
        let words = format!(
            "--server {address} --workload zipf:0.9 --keys 5000 --value-bytes 0-2000 --mix 80:15:5 --preload --verify \
             --operations 10001 {shape}"
        );
        let found = json(&words);
        right(&found, 10_001);
        assert!(found["hit_ratio"].as_f64().unwrap() > 0.5, "{found}");
    }
}

#[test]
fn a_small_server_evicts_and_returns_no_wrong_value() {
    let server = memcached("4");
    let words =
        "--workload uniform --keys 20000 --value-bytes 100-2000 --threads 2 --depth 32 --verify";
    let found = json(&format!("--server {} {words} --operations 60000", server.address));
    right(&found, 60_000);
    let evicted = found["memory_after"]["figures"]["evictions"].as_u64().unwrap();
    assert!(evicted > 1000 && found["hit_ratio"].as_f64().unwrap() < 0.9, "{found}");
}

#[test]
fn after_a_preload_each_read_over_a_socket_is_a_hit() {
    let server = memcached_unix();
    let words = "--workload zipf:1.1 --keys 3000 --preload --verify --multiget 20 --warm-up 0.2 --seconds 0.5";
    let found = json(&format!("--server {} {words}", server.address));
    let (gets, hits) = of(&found, "get");
    right(&found, gets);
    assert_eq!((gets, of(&found, "fill").0), (hits, 0), "{found}");
    assert!(gets > 100 && found["windows"].as_array().unwrap().len() > 3, "{found}");
    // Values stored by another client are wrong, and reported.
    let done =
        bench(&format!("--server {} {words} --no-fill", server.address).replace("--verify", ""));
    assert!(done.status.success());
    let done = bench(&format!("--server {} {words}", server.address).replace("--preload", ""));
    let said = String::from_utf8(done.stdout).unwrap();
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("wrong values; the first: 64 bytes under key"), "{said}");
}

#[test]
fn a_value_too_large_for_the_server_counts_as_refused_not_as_an_error() {
    let server = memcached("64");
    let words =
        "--workload uniform --keys 20 --value-bytes 1100000-1200000 --operations 40 --depth 2";
    let found = json(&format!("--server {} {words}", server.address));
    assert_eq!((&found["refused"]["count"], &found["errors"]["count"]), (&40.into(), &0.into()));
    let first = found["refused"]["first"].as_str().unwrap();
    assert!(first.contains("SERVER_ERROR object too large for cache"), "{first}");
}

#[test]
fn every_shape_of_load_in_process_returns_no_wrong_value() {
    for shape in [
        "--eviction s3-fifo",
        "--eviction sieve --threads 2 --movers 0",
        "--eviction lru --rate 50000",
        "--eviction w-tinylfu --rate 50000 --arrivals constant --threads 2",
        "--memory all=8m --threads 2",
        "--memory 8m --movers 0 --item-max 4k",
    ] {
        let words = format!(
            "--workload zipf:0.8 --memory 8m --keys 40000 --value-bytes 0-2000 --mix 80:15:5 --verify \
             --operations 30000 --seconds 60 {shape}"
        );
        let found = json(&words);
        right(&found, 30_000);
        let figures = &found["memory_after"]["figures"];
        assert!(figures["evictions"].as_u64().unwrap() > 100, "{found}");
        let mib = if shape.contains("--memory") { 16 } else { 8 };
        assert_eq!(figures["limit_maxbytes"].as_u64().map(|bytes| bytes >> 20), Some(mib));
    }
}

/// A directory as cachebench has it.
fn cachebench(dir: &Path) -> PathBuf {
    let files = [
        (
            "config.json",
            r#"// made here
            { "test_config": { "numKeys": 2000, "enableLookaside": true, "popDistFile": "pop.json",
            "valSizeDistFile": "sizes.json", "keySizeRange": [10, 40], "keySizeRangeProbability": [1.0],
            "ttlSecsRange": [3600, 7200], "ttlSecsRangeProbability": [1.0],
            "getRatio": 0.7, "setRatio": 0.1, "delRatio": 0.05, "loneGetRatio": 0.05,
            "loneSetRatio": 0.05, "updateRatio": 0.05 } }"#,
        ),
        (
            "pop.json",
            r#"{ "popularityBuckets": [20, 180, 1800], "popularityWeights": [50, 30, 20] }"#,
        ),
        (
            "sizes.json",
            r#"{ "valSizeRange": [0, 100, 5000], "valSizeRangeProbability": [0.8, 0.2] }"#,
        ),
    ];
    files.iter().for_each(|(name, text)| std::fs::write(dir.join(name), text).unwrap());
    dir.to_owned()
}

#[test]
fn cachebench_workloads_and_public_traces_run_in_process_and_over_a_server() {
    let server = memcached("64");
    let dir = tempfile::tempdir().unwrap();
    let made = cachebench(dir.path());
    let meta = dir.path().join("meta.csv");
    let lines: String =
        (0..600).map(|at| format!("k{},GET,8,{},2\n", at % 40, at % 40 * 10 + 1)).collect();
    std::fs::write(&meta, format!("key,op,key_size,size,op_count\n{lines}")).unwrap();
    let twitter = dir.path().join("twitter.csv");
    let ops = ["get", "set", "get", "delete"];
    // Keys have a comma in them.
    let line = |at: usize| {
        let (number, op) = (at % 100, ops[at / 100 % 4]);
        format!("{at},key,{number},9,{},1,{op},600\n", number + 1)
    };
    let lines: String = (0..1000).map(line).collect();
    std::fs::write(&twitter, lines).unwrap();
    for target in
        ["--memory 16m".into(), format!("--server {} --depth 4 --multiget 5", server.address)]
    {
        let found = json(&format!(
            "{target} --workload {} --verify --operations 20000 --threads 2",
            made.display()
        ));
        right(
            &Value::from_iter(
                [("schema", found["schema"].clone())]
                    .into_iter()
                    .chain(
                        ["operations", "errors", "wrong", "refused"]
                            .map(|name| (name, found[name].clone())),
                    )
                    .chain([("kinds", Value::Array(Vec::new()))]),
            ),
            20_000,
        );
        for kind in ["get", "lone_get", "set", "lone_set", "update", "delete", "fill"] {
            assert!(of(&found, kind).0 > 500, "{kind}: {found}");
        }
        assert_eq!(of(&found, "lone_get").1, 0);
        for (file, operations) in [(&meta, 1200), (&twitter, 1000)] {
            let found =
                json(&format!("{target} --workload trace:{} --verify --threads 2", file.display()));
            right(&found, operations);
        }
        let found = json(&format!("{target} --workload trace:{} --operations 100", meta.display()));
        right(&found, 100);
    }
}

#[test]
fn a_trace_may_come_from_standard_input_and_be_compressed() {
    let dir = tempfile::tempdir().unwrap();
    let line = |at: usize| format!("k{},{},{}\n", at % 40, ["GET", "SET"][at % 2], at % 40 + 1);
    let text = "key,op,size\n".to_owned() + &(0..500).map(line).collect::<String>();
    let plain = dir.path().join("trace.csv");
    std::fs::write(&plain, &text).unwrap();
    let compressed = |program: &str, name: &str| {
        let file = dir.path().join(name);
        let out = std::fs::File::create(&file).unwrap();
        let done = Command::new(program).arg("-c").arg(&plain).stdout(out).status();
        done.is_ok_and(|done| done.success()).then_some(file)
    };
    let gzip = compressed("gzip", "trace.csv.gz").expect("gzip is part of every Debian");
    let zstd = compressed("zstd", "trace.csv.zst");
    for file in [&plain, &gzip].into_iter().chain(&zstd) {
        let found = json(&format!("--memory 16m --workload trace:{} --verify", file.display()));
        assert_eq!((&found["operations"], &found["wrong"]["count"]), (&500.into(), &0.into()));
    }
    let mut piped = Command::new(env!("CARGO_BIN_EXE_nearfar"));
    piped.args([
        "cache",
        "bench",
        "--memory",
        "16m",
        "--workload",
        "trace:-",
        "--verify",
        "--json",
    ]);
    let done = piped.stdin(std::fs::File::open(&gzip).unwrap()).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    let found: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((&found["operations"], &found["wrong"]["count"]), (&500.into(), &0.into()));
}

#[test]
fn an_invalid_line_of_a_trace_is_named_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("trace.csv");
    let words = format!("--memory 16m --workload trace:{}", file.display());
    for (text, status, with) in [
        ("key,op,size\na,GET,1\nb,GOT,1\n", 1, "trace.csv: line 3: operation \"GOT\""),
        ("key,op,size\na,GET,1\na,SET,x\n", 1, "trace.csv: line 3: size is \"x\""),
        ("key,op,size\na,GET\n", 1, "trace.csv: line 2: 2 columns, 3 are expected"),
        ("key,op\na,GET\n", 2, "trace.csv: line 1: the head names column size 0 times"),
        ("", 2, "the trace is empty"),
    ] {
        std::fs::write(&file, text).unwrap();
        refused(&words, status, with);
    }
    std::fs::write(&file, "key,op,size\na,GET,1\n").unwrap();
    refused(&format!("{words} --preload"), 2, "which keys a trace has");
    refused("--workload trace:/nowhere.csv", 2, "/nowhere.csv");
}

#[test]
fn impossible_plans_are_refused_before_the_first_request() {
    refused("", 2, "--workload");
    refused("--workload zipf", 2, "zipf:EXPONENT");
    refused("--workload zipf:99", 2, "exponent 99");
    refused(
        "--workload /nowhere/at/all",
        2,
        "zipf:EXPONENT, uniform, trace:FILE, oracle-general:FILE, csv:COLUMNS:FILE or a directory",
    );
    for (words, with) in [
        ("--rate 0", "requests a second"),
        ("--rate=-5", "requests a second"),
        ("--rate inf", "requests a second"),
        ("--arrivals constant", "--rate"),
        ("--seconds 0", "seconds"),
        ("--seconds x", "seconds"),
        ("--operations 0", "write a whole number"),
        ("--operations 3 --threads 4", "at least one for each of 4 threads"),
        ("--threads 0", "write a whole number"),
        ("--keys 0", "0 keys"),
        ("--key-bytes 251", "1 to 250 bytes"),
        ("--value-bytes 9-1", "100-1000"),
        ("--mix 1", "GET:SET"),
        ("--depth 2", "--server"),
        ("--server localhost", "HOST:PORT"),
        ("--server 127.0.0.1:1 --memory 1g", "cannot be used with"),
        ("--server 127.0.0.1:1 --eviction lru", "cannot be used with"),
        ("--server 127.0.0.1:1 --item-max 1m", "cannot be used with"),
        ("--memory 1x", "1x"),
        ("--memory 64k", "less than 256 KiB"),
        ("--eviction fifo", "w-tinylfu"),
        ("--memory 900=64m", "--memory 900"),
        ("--item-max 17m", "1k to 16m"),
        ("--save /nowhere/file", "its directory does not exist"),
        ("--html /", "it is a directory"),
    ] {
        refused(&format!("--workload uniform {words}"), 2, with);
    }
    refused("--workload uniform --server 127.0.0.1:1", 1, "is a memcached server listening there?");
    refused(
        "--workload uniform --server unix:/nowhere",
        1,
        "is a memcached server listening there?",
    );
}

#[test]
fn a_server_of_another_protocol_is_detected() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        let _ = std::io::Write::write_all(&mut connection, b"-ERR unknown command\r\n");
    });
    refused(&format!("--workload uniform --server {address}"), 1, "is that memcached");
    server.join().unwrap();
}

#[test]
fn text_file_and_page_agree_and_a_dry_run_sends_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (save, page) = (dir.path().join("found.json"), dir.path().join("found.html"));
    let words = format!(
        "--workload zipf:1 --keys 1000 --memory 16m --operations 5000 --save {} --html {}",
        save.display(),
        page.display()
    );
    let done = bench(&format!("{words} --dry-run"));
    let said = String::from_utf8(done.stdout).unwrap();
    assert!(
        said.starts_with(
            "target in process: 16 MiB of any memory, s3-fifo, 1 mover\nzipf:1: 1,000 keys"
        ),
        "{said}"
    );
    assert!(done.status.success() && !save.exists() && !page.exists());
    let done = bench(&words);
    let said = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success() && done.stderr.is_empty(), "{said}");
    let found: Value = serde_json::from_str(&std::fs::read_to_string(&save).unwrap()).unwrap();
    right(&found, 5000);
    let hits = format!("hit ratio {:.3}", found["hit_ratio"].as_f64().unwrap());
    assert!(said.contains(&hits) && said.contains("5,000 requests answered"), "{said}");
    browser::fits(&page, &hits);
}
