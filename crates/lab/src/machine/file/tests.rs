//! Machine files: accepted values, and that each error names key, value and the allowed values.

use super::*;
use crate::machine::catalog;
use proptest::prelude::*;

/// Curve files are the built-in ones.
fn parse(text: &str) -> Result<Machine, Refusal> {
    super::parse(text, &catalog::curve_built_in)
}

const GOOD: &str = catalog::FILES[0].1;
const RING: &str = include_str!("../../../../../lab/machines/numa-4node.toml");

#[test]
fn every_built_in_machine_is_valid_and_has_the_name_of_its_file() {
    for (name, text) in catalog::FILES {
        assert_eq!(parse(text).map(|machine| machine.name), Ok(name.to_owned()));
    }
}

#[test]
fn each_invalid_value_is_refused_with_its_key_and_the_allowed_range() {
    let cases = [
        (
            GOOD,
            "read_gbps = 54.9",
            "read_gbps = -3",
            "node 0: read_gbps = -3: allowed is 0.01 to 10000",
        ),
        (GOOD, "read_gbps = 27.0", "read_gbps = nan", "node 1: read_gbps = NaN: allowed"),
        (GOOD, "write_gbps = 27.0", "write_gbps = 0", "node 1: write_gbps = 0: allowed"),
        (
            GOOD,
            "size = \"4 GiB\"",
            "size = \"4 GB\"",
            "node 1: size = \"4 GB\": a multiple of 128 MiB",
        ),
        (GOOD, "size = \"4 GiB\"", "size = \"100 MiB\"", "node 1: size"),
        (GOOD, "size = \"4 GiB\"", "size = \"99999999999999 GiB\"", "node 1: size"),
        (GOOD, "size = \"2 GiB\"", "size = \"128 MiB\"", "node 0: size"),
        (GOOD, "latency_ns = 250", "latency_ns = 0", "latency_ns from 0 to 1 = 0: allowed is 1 to"),
        (GOOD, "latency_ns = 250", "", "node 1: latency_ns = nothing"),
        (GOOD, "cpus = 6", "cpus = 0", "cpus of all nodes = 0"),
        (GOOD, "cpus = 6", "cpus = 4000", "cpus of all nodes = 4000: allowed is 1 to"),
        (GOOD, "cpus = 6", "cpus = -1", "cpus = -1"),
        (GOOD, "id = 1", "id = 7", "node 1: id = 7: ids count from 0"),
        (GOOD, "kind = \"cxl\"", "kind = \"optane\"", "kind = \"optane\": unknown variant"),
        (GOOD, "kind = \"cxl\"", "kind = \"unknown\"", "node 1: kind"),
        (GOOD, "slow_motion = 40", "slow_motion = 0.5", "slow_motion = 0.5: allowed is 1"),
        (
            GOOD,
            "slow_motion = 40",
            "slow_motion = 40\ntranslations_ms = 10001",
            "translations_ms = 10001: allowed is 0 to 10000",
        ),
        (
            GOOD,
            "slow_motion = 40",
            "slow_motion = 40\ntranslations_ms = -1",
            "translations_ms = -1",
        ),
        (
            GOOD,
            "slow_motion = 40",
            "slow_motion = 40\ntranslations_ms = 0.5",
            "translations_ms = 0.5",
        ),
        (GOOD, "slow_motion = 40", "", "missing field `slow_motion`"),
        (GOOD, "slow_motion = 40", "slowmotion = 40", "slowmotion = 40: unknown field"),
        (GOOD, "duplex = false", "duplex = \"no\"", "duplex = \"no\": invalid type"),
        (GOOD, "llc_kib = 8192", "llc_kib = 5000", "processor.llc_kib = 5000: a power of two"),
        (GOOD, "lines_in_flight = 64", "lines_in_flight = 0", "processor.lines_in_flight = 0"),
        (GOOD, "[processor]", "[processor]\nloads_in_flight = 0", "processor.loads_in_flight = 0"),
        (GOOD, "[processor]", "[processor]\nreorder_buffer = 10001", "reorder_buffer = 10001"),
        (GOOD, "name = \"cxl-2tier\"", "name = \"a b\"", "name = a b: 1 to 64 letters"),
        (RING, "clock_ghz = 2.3", "clock_ghz = 0", "traffic.clock_ghz = 0: allowed is 0.1 to 10"),
        (RING, "concurrent_ns = 58.26", "concurrent_ns = -1", "traffic.concurrent_ns = -1"),
        (RING, "coherence_lines = 0.8", "coherence_lines = nan", "traffic.coherence_lines = NaN"),
        (RING, "coherence_lines = 0.8", "", "missing field `coherence_lines`"),
        (RING, "gbps_max = 2.8", "gbps_max = 0", "path from 0 to 1: gbps_max = 0"),
        (RING, "name = \"0>1\"", "name = \"1>0\"", "link: name = \"1>0\""),
        (RING, "\"1>0\"]", "\"9>9\"]", "read_links = \"9>9\": the name of a [[link]]"),
        (RING, "[104, 130, 130, 157]", "[104, 130, 130]", "latency_ns = [[104.0"),
    ];
    for (text, from, to, part) in cases {
        assert!(text.contains(from), "the case `{from}` is about nothing");
        let refusal = parse(&text.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(refusal.contains(part), "{to}: {refusal}");
        assert!(!refusal.contains('\n'), "{refusal}");
    }
}

#[test]
fn a_missing_key_is_named_with_its_table() {
    for (text, without, refused) in [
        (GOOD, "slow_motion = 40", "before the first table: missing field `slow_motion`"),
        (RING, "coherence_lines = 0.8", "[traffic]: missing field `coherence_lines`"),
    ] {
        let refusal = parse(&text.replacen(without, "", 1)).unwrap_err().to_string();
        assert_eq!(refusal, format!("{refused}; nearfar-machine(5) has every key, and an example"));
    }
}

#[test]
fn the_number_of_tlb_entries_is_zero_or_a_power_of_two() {
    let with = |entries| {
        let key = format!("[processor]\ntlb_entries = {entries}");
        parse(&GOOD.replacen("[processor]", &key, 1)).map(|machine| machine.processor.tlb_entries)
    };
    assert_eq!((with(0), with(16), with(65_536)), (Ok(0), Ok(16), Ok(65_536)));
    for wrong in [8, 1536, 131_072] {
        let refusal = with(wrong).unwrap_err().to_string();
        let expected = format!("processor.tlb_entries = {wrong}: 0, or a power of two from 16");
        assert!(refusal.starts_with(&expected), "{refusal}");
    }
    assert_eq!(parse(GOOD).unwrap().processor.tlb_entries, 2048);
}

#[test]
fn translations_expire_after_ten_milliseconds_by_default() {
    let ms = |line| parse(&GOOD.replacen("slow_motion = 40", line, 1)).unwrap().translations_ms;
    assert_eq!(ms("slow_motion = 40"), 10);
    assert_eq!(ms("slow_motion = 40\ntranslations_ms = 0"), 0);
    assert_eq!(ms("slow_motion = 40\ntranslations_ms = 250"), 250);
}

#[test]
fn a_machine_without_nodes_is_refused() {
    let (head, _) = GOOD.split_once("[[node]]").unwrap();
    let processor = &GOOD[GOOD.find("[processor]").unwrap()..];
    let refusal = parse(&format!("{head}{processor}")).unwrap_err();
    assert_eq!(refusal.key, "node");
}

proptest! {
    #[test]
    fn any_text_is_a_machine_or_refused_in_one_line(text in "(\\[\\[?[a-z]{1,9}\\]\\]?\n|[a-z_]{1,9} = [0-9a-z\"\\[\\].-]{0,9}\n|\\PC{0,9}\n){0,20}") {
        if let Err(refusal) = parse(&text) {
            prop_assert!(!refusal.to_string().is_empty());
        }
    }

    #[test]
    fn a_file_with_one_changed_byte_is_refused_or_accepted_by_the_plugin_too(
        at in any::<proptest::sample::Index>(), byte in 32u8..127, which in 0usize..catalog::FILES.len(),
    ) {
        let mut bytes = catalog::FILES[which].1.as_bytes().to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(machine) = parse(&String::from_utf8_lossy(&bytes)) {
            let clock = nearfar_timing::config::Clock::Virtual;
            prop_assert_eq!(crate::machine::timing::config(&machine, clock, None).check(), Ok(()));
        }
    }
}

/// A machine of one node with a curve, whose file is `text`.
fn with_curve(change: (&str, &str), text: &str) -> Result<Machine, Refusal> {
    let machine = include_str!("../../../../../lab/machines/spr-cxl.toml");
    assert!(machine.contains(change.0), "{}", change.0);
    let machine = machine.replacen(change.0, change.1, 1);
    super::parse(&machine, &|name| match name {
        "own.csv" => Ok(text.to_owned()),
        _ => catalog::curve_built_in(name),
    })
}

const CURVE: &str = "# source: a test\nread_share,gbps,ns\n0.5,0,100\n0.5,10,120\n0.5,20,200\n\
    1,0,100\n1,20,110\n1,40,300\n";
const DDR5: &str = "file = \"spr-ddr5.csv\"";
const OWN: (&str, &str) = (DDR5, "file = \"own.csv\"");

#[test]
fn a_node_with_a_curve_has_its_idle_latency_and_scaled_peaks() {
    let machine = with_curve(OWN, CURVE).unwrap();
    assert_eq!(machine.latency(0, 0), Some(100.0));
    let node = &machine.nodes[0];
    assert_eq!((node.read_gbps, node.write_gbps, node.duplex), (10.0, 5.0, false));
    assert_eq!(node.curves.as_ref().map(|curves| curves.peak_gbps(0.75)), Some(7.5));
}

#[test]
fn a_wrong_curve_is_refused_with_file_line_and_reason() {
    let says = |found: Result<Machine, Refusal>| found.unwrap_err().to_string();
    let cases = [
        (CURVE.replace("0.5,10,120", "0.5,,120"), "line 4: gbps is ``, not a number"),
        (CURVE.replace("\n1,0,100", ""), "2 points of read share 1, not 3 to 64"),
        (
            CURVE.replace("1,40,300", "1,15,300"),
            "line 8: 15 GB/s after 20 GB/s: bandwidth must rise",
        ),
        (CURVE.replace("1,40,300", "1,40,9e9"), "line 8: 9000000000 ns, not from 1 to 100000"),
        (CURVE.replace("\n1,", "\n1.5,"), "line 6: read share 1.5, not from 0 to 1"),
        (CURVE.replace("gbps", "GiB/s"), "columns `read_share,GiB/s,ns`, not `read_share,gbps,ns`"),
        (CURVE.replace("20,200", "60,200"), "line 5: a gap: no point between 10 and 60 GB/s"),
        (String::new(), "no line with the columns"),
    ];
    for (text, reason) in cases {
        let said = says(with_curve(OWN, &text));
        assert!(said.starts_with("node 0: curve.file = \"own.csv\": "), "{said}");
        assert!(said.contains(reason), "{said} does not say {reason}");
    }
    let missing = says(with_curve((DDR5, "file = \"none.csv\""), CURVE));
    assert!(missing.contains("\"none.csv\": not a built-in curve file"), "{missing}");
    let scale = says(with_curve(("scale = 0.25", "scale = 0"), CURVE));
    assert!(scale.contains("node 0: curve.scale = 0: allowed is 0.001 to 1000"), "{scale}");
    let both = says(with_curve(("[node.curve]", "duplex = true\n[node.curve]"), CURVE));
    assert!(both.contains("node 0: duplex = a value: left out where the node has"), "{both}");
    let none = says(with_curve(("[node.curve]\nfile = \"spr-ddr5.csv\"\nscale = 0.25", ""), CURVE));
    assert!(none.contains("node 0: read_gbps = nothing"), "{none}");
}
