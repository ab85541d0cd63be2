//! Presentation of a result made here.

use std::collections::BTreeMap;

use super::page::html;
use super::text::text;
use super::*;
use crate::cache::results::{SCHEMA, Window};

/// Reads with these latencies.
pub(super) fn kind(histogram: &[(u64, u64)]) -> KindFound {
    let timed = histogram.iter().map(|(_, count)| count).sum();
    let latency = Latency {
        timed,
        mean_ns: 1500.4,
        p50_ns: 1000,
        p90_ns: 2000,
        p99_ns: 30_000,
        p99_9_ns: 400_000,
        max_ns: 5_000_000,
        histogram: histogram.to_vec(),
    };
    KindFound {
        kind: Kind::Get,
        operations: timed,
        found: timed / 2,
        refused: 0,
        read_bytes: 64 * timed,
        written_bytes: 0,
        latency: Some(latency),
    }
}

fn found() -> Found {
    let window = |end_s, hits| Window { end_s, operations_per_s: 1000.0 * end_s, hit_ratio: hits };
    let figures = |evictions| {
        BTreeMap::from([
            ("evictions".into(), evictions),
            ("curr_items".into(), 1),
            ("bytes".into(), 1 << 20),
            ("limit_maxbytes".into(), 1 << 26),
        ])
    };
    Found {
        schema: SCHEMA.into(),
        nearfar: "0".into(),
        target: "cache.example:11211".into(),
        target_version: Some("1.6.18 <b>".into()),
        load: Load {
            workload: "zipf:0.99".into(),
            made_of: "10 keys".into(),
            seed: 7,
            threads: 2,
            server: Some(Asking { connections: 3, depth: 1, multiget: 16 }),
            rate: Some(1000.0),
            arrivals: Some("poisson".into()),
            warm_up_s: 0.5,
            preloaded: true,
            verified: true,
        },
        operations: 1_234_567,
        seconds: 2.0,
        operations_per_s: 617_283.5,
        hit_ratio: Some(0.5),
        read_bytes: 64 << 20,
        written_bytes: 0,
        errors: Trouble::default(),
        refused: Trouble::default(),
        wrong: Trouble::default(),
        overdue: 0,
        kinds: vec![kind(&[(1023, 1000), (400_000, 7)])],
        windows: vec![window(1.0, None), window(2.0, Some(0.5))],
        memory_before: Memory { resident_bytes: None, figures: figures(5) },
        memory_after: Memory { resident_bytes: Some(3 << 20), figures: figures(12) },
        disturbance: None,
    }
}

#[test]
fn the_text_report_has_the_plan_and_its_results() {
    let text = text(&found());
    for part in [
        "cache.example:11211, version 1.6.18 <b>\n",
        "Seed 7, 2 threads, each with 3 connections and on each up to 1 command under",
        "Open loop: 1,000 requests a second, poisson arrivals;",
        "617,284 requests a second, hit ratio 0.500\n",
        "1,234,567 requests answered in 2.00 s; values read: 64 MiB, stored: 0 B\n",
        "resident memory 3 MiB, items have 1 MiB of 64 MiB, 1 item, 7 evictions\n",
        " 1.00 µs 2.00 µs 30.0 µs  400 µs 5.00 ms 1.50 µs\n",
        "no errors, no wrong values\n",
    ] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    assert!(!text.contains("one request in") && !text.contains("! "), "{text}");
}

#[test]
fn each_kind_of_failure_is_reported_with_its_first_case() {
    let mut found = found();
    found.errors = Trouble { count: 2, first: Some("connection lost; at once".into()) };
    found.refused = Trouble { count: 1, first: Some("too large".into()) };
    found.wrong = Trouble { count: 1, first: Some("7 bytes <x>".into()) };
    found.overdue = 3;
    found.kinds[0].operations *= 16;
    let (text, page) = (text(&found), html(&found));
    for part in [
        "! 1 wrong value; the first: 7 bytes <x>\n",
        "! 2 requests without an answer; the first: connection lost; at once\n",
        "! 1 store refused; the first: too large\n",
        "! 3 requests due and not begun at the end",
        "Latencies are of one request in 16",
    ] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    assert!(page.contains("7 bytes &lt;x&gt;.") && page.contains("one request in 16"), "{page}");
}

#[test]
fn the_page_has_every_chart_with_a_title_and_loads_nothing_external() {
    let page = html(&found());
    for part in [
        "617,284 requests a second, hit ratio 0.500",
        "1.6.18 &lt;b&gt;",
        "id=\"rate-title\"",
        "id=\"hits-title\"",
        "id=\"percentiles-title\"",
        "id=\"histogram-title\"",
        "class=\"mark\"",
        "P99 of get",
    ] {
        assert!(page.contains(part), "{part}:\n{page}");
    }
    for outside in ["http://", "https://", "src=", "@import", "url(", "<script", "<link"] {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[test]
fn a_run_without_answers_is_still_reported() {
    let mut found = found();
    (found.kinds, found.windows, found.hit_ratio) = (Vec::new(), Vec::new(), None);
    assert!(text(&found).contains("617,284 requests a second\n"));
    assert!(html(&found).contains("How it was asked"));
}
