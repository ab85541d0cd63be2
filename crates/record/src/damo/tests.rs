//! Import of files in damo's formats, and of other files.

use std::io::Write as _;

use proptest::prelude::*;

use super::*;

const HUMAN: &str = include_str!("../../../../fixtures/record/damo-human.json");
const RAW: &str = include_str!("../../../../fixtures/record/damo-raw.json");

fn packed(text: &str) -> Vec<u8> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn the_human_readable_and_raw_formats_give_the_same_record() {
    let (human, findings) = import(HUMAN.as_bytes()).unwrap();
    assert_eq!(findings, Vec::<String>::new());
    assert_eq!(import(RAW.as_bytes()).unwrap().0, human);
    assert_eq!(import(&packed(RAW)).unwrap().0, human);
    let held = format!(r#"{{"damon_records": {{"kdamonds": [], "record_list": {RAW}}}}}"#);
    assert_eq!(import(held.as_bytes()).unwrap().0, human);
}

#[test]
fn times_intervals_and_regions_are_imported() {
    let (record, _) = import(HUMAN.as_bytes()).unwrap();
    assert_eq!(record.header.intervals, DEFAULT);
    assert_eq!(record.header.started_unix_ns, 0);
    let times: Vec<_> = record.accesses.iter().map(|of| of.at_ns).collect();
    assert_eq!(times, [100_000_000, 200_000_000]);
    let regions = &record.accesses[0].targets[0].regions;
    assert_eq!(regions[0].range, Range { start: 1 << 32, end: (1 << 32) + (150 << 20) });
    assert_eq!((regions[0].accesses, regions[0].age), (3, 7));
    // 4 % of 20 samples is less than one; 1 m 2 s 500 ms are 625 aggregations.
    assert_eq!((regions[1].accesses, regions[1].age), (0, 625));
}

#[test]
fn targets_sampled_at_the_same_time_form_one_snapshot() {
    let records: String = RAW.trim().trim_end_matches(']').to_string();
    let second = RAW.trim().trim_start_matches('[');
    let (record, _) = import(format!("{records},{second}").as_bytes()).unwrap();
    let targets: Vec<_> = record.accesses[0].targets.iter().map(|of| of.target).collect();
    assert_eq!(targets, [0, 1]);
}

#[test]
fn missing_and_invalid_fields_are_reported() {
    let text = r#"[{"intervals": null, "snapshots": [{"start_time": 5, "end_time": 9, "regions": [
        {"start": 0, "end": 4096, "nr_accesses": {"samples": 1}, "age": {"aggr_intervals": 2}},
        {"start": 0, "end": 8192, "nr_accesses": {"samples": 1}},
        {"start": 9000, "end": 8192, "nr_accesses": {"samples": 1}},
        {"start": 9000, "end": 9999}]}]}]"#;
    let (record, findings) = import(text.as_bytes()).unwrap();
    assert_eq!(record.accesses[0].targets[0].regions.len(), 1);
    assert!(findings[0].contains("assumed") && findings[1].contains("3 regions"), "{findings:?}");
}

#[test]
fn other_files_are_refused_with_a_reason() {
    for (text, why) in [
        ("", "no JSON of damo's"),
        ("[]", "no snapshot"),
        ("[1]", "no JSON of damo's"),
        (r#"{"schema": "nearfar.topo/1"}"#, "no JSON of damo's"),
        (r#"[{"snapshots": [{"start_time": "noon", "end_time": 1, "regions": []}]}]"#, "noon"),
        (r#"[{"snapshots": [{"start_time": 1, "end_time": 1, "regions": []}]}]"#, "no snapshot"),
    ] {
        let error = import(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
    let deep = "[".repeat(100_000);
    assert!(import(deep.as_bytes()).is_err());
    let cut = packed(RAW);
    assert!(matches!(import(&cut[..cut.len() / 2]), Err(NotDamo::Io(_))));
}

#[test]
fn a_file_that_decompresses_beyond_the_limit_is_rejected() {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    let blank = vec![b' '; 1 << 20];
    for _ in 0..=(BYTES_MAX >> 20) {
        encoder.write_all(&blank).unwrap();
    }
    let packed = encoder.finish().unwrap();
    assert!(packed.len() < 8 << 20);
    assert!(matches!(import(&packed), Err(NotDamo::TooLong)));
}

/// Whether an imported record survives writing and reading, which is all that reports rely on.
fn is_a_record(record: &Record) -> Result<(), TestCaseError> {
    let mut writer = crate::Writer::new(Vec::new(), &record.header).unwrap();
    writer.all(record).map_err(|error| TestCaseError::fail(error.to_string()))?;
    let ending = crate::Ending { at_ns: record.duration_ns(), kernel_cpu_ns: 0, own_cpu_ns: 0 };
    let (back, findings) = crate::read(&*writer.end(ending).unwrap()).unwrap();
    prop_assert_eq!((&back.accesses, findings), (&record.accesses, vec![]));
    Ok(())
}

/// A number in one of damo's forms, or a malicious one.
fn figure() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<u64>().prop_map(|of| of.to_string()),
        (0u64..9).prop_map(|of| of.to_string()),
        any::<i64>().prop_map(|of| of.to_string()),
        any::<f64>().prop_map(|of| of.to_string()),
        any::<u64>().prop_map(|of| format!("\"{of}\"")),
        "\"[0-9,. ]{1,8}(B|KiB|GiB|EiB| us| ms| s| m| h|%)?\"",
        Just("null".into()),
        Just("[]".into()),
    ]
}

proptest! {
    #[test]
    fn a_corrupted_or_truncated_file_is_rejected_or_gives_a_valid_record(
        raw: bool,
        cut: prop::sample::Index,
        spots in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let mut bytes = if raw { RAW } else { HUMAN }.as_bytes().to_vec();
        for (at, byte) in &spots {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        if spots.is_empty() {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok((record, _)) = import(&bytes) {
            is_a_record(&record)?;
        }
        let mut squeezed = packed(RAW);
        for (at, byte) in &spots {
            let at = at.index(squeezed.len());
            squeezed[at] = *byte;
        }
        if let Ok((record, _)) = import(&squeezed) {
            is_a_record(&record)?;
        }
    }

    #[test]
    fn arbitrary_values_are_rejected_or_give_a_valid_record(f in prop::collection::vec(figure(), 12)) {
        let region = |at: usize| format!(
            r#"{{"start": {}, "end": {}, "nr_accesses": {{"samples": {}, "percent": null}}, "age": {{"usec": {}}}}}"#,
            f[at], f[at + 1], f[at + 2], f[at + 3]
        );
        let text = format!(
            r#"[{{"intervals": {{"sample_us": {}, "aggr_us": {}}},
                "snapshots": [{{"start_time": {}, "end_time": {}, "regions": [{}, {}]}}]}}]"#,
            f[0], f[1], f[2], f[3], region(4), region(8)
        );
        if let Ok((record, _)) = import(text.as_bytes()) {
            is_a_record(&record)?;
        }
    }

    #[test]
    fn importing_arbitrary_bytes_never_panics(bytes: Vec<u8>) {
        let _ = import(&bytes);
        let _ = import(&packed(&String::from_utf8_lossy(&bytes)));
    }
}
