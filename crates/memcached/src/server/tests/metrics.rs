//! The metrics for Prometheus.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use super::{config, dial, loopback, serve};
use crate::server::{Config, Server};

fn measured() -> Server {
    serve(Config { metrics: Some(loopback()), ..config() })
}

/// Sends a request; gives the answer's head and body.
fn http(server: &Server, request: &str) -> (String, String) {
    let mut socket = TcpStream::connect(server.metrics_address().unwrap()).unwrap();
    socket.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

#[test]
fn every_metric_occurs_once_after_its_type() {
    let server = measured();
    let mut client = dial(&server);
    client.sets("a", b"x");
    client.ask("get a b\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    let (head, body) = http(&server, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    let (mut types, mut samples) = (BTreeSet::new(), BTreeSet::new());
    let mut typed = ("", "");
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            typed = rest.split_once(' ').unwrap();
            assert!(types.insert(typed.0), "{} has two types", typed.0);
            assert_eq!(typed.1 == "counter", typed.0.ends_with("_total"), "{}", typed.0);
            assert!(typed.0.starts_with("nearfar_cache_"), "{}", typed.0);
        } else if !line.starts_with("# HELP ") {
            let (sample, value) = line.rsplit_once(' ').unwrap();
            let name = sample.split('{').next().unwrap();
            let name = match typed.1 {
                "histogram" => name.rsplit_once('_').unwrap().0,
                _ => name,
            };
            assert_eq!(name, typed.0, "{line}");
            assert!(samples.insert(sample), "{sample} stands twice");
            let _: f64 = value.parse().unwrap();
        }
    }
    assert!(samples.contains("nearfar_cache_uptime_seconds"));
    assert!(samples.contains("nearfar_cache_cpu_seconds_total{mode=\"user\"}"));
    assert!(!body.contains("total_total") && !body.contains("_us_"), "{body}");
    for line in [
        "nearfar_cache_build_info{version=\"0.1.0\"} 1",
        "nearfar_cache_keys_total{command=\"get\",result=\"hit\"} 1",
        "nearfar_cache_keys_total{command=\"get\",result=\"miss\"} 1",
        "nearfar_cache_connections 1",
        "nearfar_cache_accept_paused_seconds_total 0",
        "nearfar_cache_tier_items{tier=\"0\"} 1",
        "nearfar_cache_tier_evicted_items_total{tier=\"0\"} 0",
    ] {
        assert!(body.lines().any(|one| one == line), "{line} in {body}");
    }
    assert_eq!(server.metrics().lines().count(), body.lines().count());
}

#[test]
fn service_times_are_a_histogram_of_some_reads() {
    let server = measured();
    let mut client = dial(&server);
    for _ in 0..64 {
        client.ask("get none\r\n", "END\r\n");
    }
    let count = |server: &Server, name: &str| -> u64 {
        let name = format!("nearfar_cache_service_seconds_{name} ");
        let metrics = server.metrics();
        metrics.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
    };
    let counted = count(&server, "count");
    assert!((1..=64).contains(&counted), "{counted}");
    assert_eq!(count(&server, "bucket{le=\"+Inf\"}"), counted);
    client.ask("stats reset\r\n", "RESET\r\n");
    assert!(count(&server, "count") <= 1);
}

#[test]
fn requests_other_than_get_metrics_are_refused() {
    let server = measured();
    for (request, status) in [
        ("GET /other HTTP/1.1\r\n\r\n", "404 Not Found"),
        ("POST /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
        ("GET /metrics\r\n\r\n", "400 Bad Request"),
        ("stats\r\n\r\n", "400 Bad Request"),
    ] {
        let (head, _) = http(&server, request);
        assert!(head.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{request}: {head}");
    }
}

#[test]
fn the_front_page_links_to_the_metrics() {
    let (head, body) = http(&measured(), "GET / HTTP/1.1\r\n\r\n");
    assert!(head.contains("Content-Type: text/html"), "{head}");
    assert!(body.contains("<a href=\"/metrics\">"), "{body}");
}

#[test]
fn silent_and_incomplete_connections_do_not_block_a_scrape() {
    let server = measured();
    let open = |request: &[u8]| {
        let mut socket = TcpStream::connect(server.metrics_address().unwrap()).unwrap();
        socket.write_all(request).unwrap();
        socket
    };
    // More than may be open: the oldest are closed.
    let silent: Vec<_> = (0..70).map(|_| open(b"")).collect();
    let half: Vec<_> = (0..70).map(|_| open(b"GET /metr")).collect();
    let (head, _) = http(&server, "GET /metrics HTTP/1.0\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    // Each of them is closed when its time is over, or another took its place.
    for mut socket in silent.into_iter().chain(half) {
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        assert!(answer.is_empty());
    }
}

#[test]
fn a_silent_metrics_client_blocks_neither_others_nor_the_shutdown() {
    let server = measured();
    let silent = TcpStream::connect(server.metrics_address().unwrap()).unwrap();
    let (head, _) = http(&server, "GET /metrics HTTP/1.0\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    drop(server);
    drop(silent);
}
