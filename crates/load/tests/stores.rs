//! The whole program against real servers on loopback, each started here on a free port and ended by its process id.

#![expect(clippy::unwrap_used, reason = "a test that can't start a server should stop")]
#![expect(clippy::panic, reason = "how a test fails")]
#![expect(clippy::disallowed_methods, reason = "waits until a server listens")]

use std::process::{Command, Output};

mod servers;

use servers::{Server, server};

fn redis() -> Server {
    server(
        "redis-server",
        &["--bind", "127.0.0.1", "--port", "PORT", "--save", "", "--appendonly", "no"],
    )
}

fn memcached(item_max: &str) -> Server {
    let options = ["-l", "127.0.0.1", "-p", "PORT", "-U", "0", "-m", "256", "-t", "1"];
    let user = ["-u", "nobody", "-I", item_max];
    server("memcached", &[&options[..], &user].concat())
}

fn load(words: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar-load"));
    command.args(words.split_whitespace()).output().unwrap()
}

fn json(words: &str) -> serde_json::Value {
    let done = load(&format!("{words} --json"));
    let (said, errors) = (String::from_utf8(done.stdout).unwrap(), String::from_utf8(done.stderr));
    assert!(done.status.success(), "{words}: {errors:?}");
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{words}: {error} in {said}"))
}

fn refused(words: &str, status: i32, with: &str) {
    let done = load(words);
    let errors = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(status), "{words}: {errors}");
    assert!(errors.contains(with), "{words}: {errors}");
}

#[test]
fn redis_runs_every_workload_over_hashes_and_finds_every_record() {
    let redis = redis();
    let at = format!("--redis {} --records 500 --pipeline 8", redis.address);
    let loaded = json(&format!("load {at} --workload e"));
    assert_eq!(loaded["schema"], "nearfar.load/1");
    assert_eq!((&loaded["operations"], &loaded["record_bytes"]), (&500.into(), &1000.into()));
    for letter in ["a", "b", "c", "d", "e", "f"] {
        let ran = json(&format!("run {at} --workload {letter} --operations 2000"));
        assert_eq!((&ran["operations"], &ran["missed"]), (&2000.into(), &0.into()), "{ran}");
        let kinds = ran["kinds"].as_array().unwrap();
        // Each of the 8 requests of a pipeline has the pipeline's latency, so that together they make up 8 times the
        // time.
        let of = |kind: &serde_json::Value, what: &str| kind[what].as_f64().unwrap();
        let busy: f64 = kinds.iter().map(|kind| of(kind, "mean_us") * of(kind, "operations")).sum();
        let all = ran["seconds"].as_f64().unwrap() * 8e6;
        assert!(busy > all * 0.1 && busy < all * 1.1, "{busy} us of {all} us: {ran}");
        assert!(kinds.iter().all(|kind| of(kind, "p50_us") <= of(kind, "max_us")), "{ran}");
    }
}

#[test]
fn redis_runs_over_plain_values() {
    let redis = redis();
    let at = format!("--redis {} --records 300 --value-bytes 4000", redis.address);
    json(&format!("load {at}"));
    let ran = json(&format!("run {at} --workload a --operations 1000 --pipeline 16"));
    assert_eq!((&ran["missed"], &ran["record_bytes"]), (&0.into(), &4000.into()), "{ran}");
    // A hash at the key of a plain value: Redis reports it, and so do we.
    let other = format!("run --redis {} --records 300 --workload c --operations 10", redis.address);
    refused(&other, 1, "WRONGTYPE");
}

#[test]
fn memcached_runs_with_values_larger_than_a_socket_buffer() {
    let memcached = memcached("2m");
    let at = format!("--memcached {} --records 200 --value-bytes 70000", memcached.address);
    json(&format!("load {at} --pipeline 32"));
    for letter in ["a", "c", "f"] {
        let ran = json(&format!("run {at} --workload {letter} --operations 2000 --pipeline 64"));
        assert_eq!((&ran["operations"], &ran["missed"]), (&2000.into(), &0.into()), "{ran}");
    }
}

#[test]
fn a_value_too_large_for_memcached_is_refused_with_the_remedy() {
    let memcached = memcached("1m");
    let at = format!("--memcached {} --records 2 --value-bytes 1100000", memcached.address);
    refused(&format!("load {at}"), 1, "larger -I");
}

#[test]
fn each_line_is_json_and_the_last_has_the_totals() {
    let redis = redis();
    let at = format!("--redis {} --records 100", redis.address);
    json(&format!("load {at}"));
    let words =
        format!("run {at} --workload b --operations 3000 --window-ms 1 --lines --move-every 1000");
    let done = load(&words);
    let text = String::from_utf8(done.stdout).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (last, windows) = lines.split_last().unwrap();
    assert_eq!((&last["done"], &last["operations"]), (&true.into(), &3000.into()));
    assert_eq!(last["moves"], 2);
    let sum: u64 = windows.iter().map(|window| window["operations"].as_u64().unwrap()).sum();
    assert_eq!(sum, 3000);
    assert!(windows.len() > 1 && windows.iter().all(|window| window["program"] == "nearfar-load"));
}

#[test]
fn a_run_over_an_empty_store_fails_and_asks_to_load_first() {
    let redis = redis();
    let words = format!("run --redis {} --records 10 --workload c --operations 10", redis.address);
    refused(&words, 1, "load first");
}

#[test]
fn usage_errors_are_refused_before_anything_is_sent() {
    refused("run --redis 127.0.0.1:1 --records 10 --workload c", 2, "--operations");
    refused("load --records 10", 2, "--redis");
    refused("load --redis 127.0.0.1:1 --records 0", 2, "0");
    refused("run --redis 127.0.0.1:1 --records 1 --workload g --seconds 1", 2, "a, b, c, d, e, f");
    refused("run --redis 127.0.0.1:1 --records 1 --workload a --seconds 0", 2, "above 0");
    refused("run --memcached 127.0.0.1:1 --records 1 --workload e --seconds 1", 1, "no scans");
    refused("load --redis 127.0.0.1:1 --records 1", 1, "is it running");
    refused("load --memcached 127.0.0.1:1 --records 1", 1, "is it running");
}
