//! Datasets, read back with the parquet crate's reader: paths, schema, order, values, limits of parts, and parts that exist.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that can't set itself up should stop"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use nearfar_parquet::{Dataset, Error, Labels, Summary};
use nearfar_record::{
    Access, Header, Intervals, Operations, Process, Range, Record, Region, Residency, Resident,
    Snapshot, Target, testkit,
};
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::file::statistics::Statistics;
use parquet::record::Field;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const SECOND_NS: u64 = 1_000_000_000;
/// 2023-11-14 22:13:20 UTC, the start of the testkit's records.
const START_US: i64 = 1_700_000_000_000_000;

fn labels() -> Labels {
    Labels::new("web-1", "search/index").unwrap()
}

fn written(dir: &Path, record: &Record) -> Result<Summary, Error> {
    let mut dataset = Dataset::create(dir, &labels(), &record.header)?;
    dataset.all(record)?;
    dataset.end()
}

/// All files below `dir`, by their path, in order.
fn files(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_path_buf()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                found.push(path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

type Row = BTreeMap<String, Field>;

fn reader(path: PathBuf) -> SerializedFileReader<File> {
    SerializedFileReader::new(File::open(path).unwrap()).unwrap()
}

/// The rows of all parts of a table, part by part.
fn rows(dir: &Path, table: &str) -> Vec<Row> {
    if !dir.join(table).exists() {
        return Vec::new();
    }
    let parts = files(&dir.join(table)).into_iter().map(|name| reader(dir.join(table).join(name)));
    parts
        .flat_map(|part| {
            part.into_iter().map(|row| row.unwrap().into_columns().into_iter().collect())
        })
        .collect()
}

fn long(row: &Row, name: &str) -> i64 {
    match &row[name] {
        Field::Long(value) | Field::TimestampMicros(value) => *value,
        Field::Int(value) => i64::from(*value),
        other => panic!("{name}: {other:?}"),
    }
}

fn text(row: &Row, name: &str) -> Option<String> {
    match &row[name] {
        Field::Str(text) => Some(text.clone()),
        Field::Null => None,
        other => panic!("{name}: {other:?}"),
    }
}

/// A snapshot of one target.
fn access(at_ns: u64, regions: Vec<Region>) -> Access {
    let intervals = testkit::header().intervals;
    Access { at_ns, intervals, targets: vec![Snapshot { target: 0, regions }] }
}

fn region(start: u64, end: u64) -> Region {
    Region { range: Range { start, end }, accesses: 5, age: 30 }
}

#[test]
fn a_record_gives_one_part_of_each_table_by_host_date_and_workload() {
    let dir = tempfile::tempdir().unwrap();
    let record = testkit::moving_hot_set();
    let summary = written(dir.path(), &record).unwrap();
    let part =
        "host=web-1/date=2023-11-14/workload=search%2Findex/part-1700000000000000-0000.parquet";
    assert_eq!(files(dir.path()), [format!("accesses/{part}"), format!("residency/{part}")]);
    let regions: usize = record.accesses.iter().map(|of| of.targets[0].regions.len()).sum();
    let [accesses, residency] = ["accesses", "residency"].map(|name| rows(dir.path(), name));
    assert_eq!((accesses.len(), residency.len()), (regions, 120));
    assert_eq!((summary.parts, summary.kept), (2, 0));
    assert_eq!(summary.rows, u64::try_from(regions + 120).unwrap());
    let sizes = files(dir.path()).into_iter().map(|name| dir.path().join(name).metadata().unwrap());
    assert_eq!(summary.bytes, sizes.map(|found| found.len()).sum::<u64>());
}

#[test]
fn the_schema_is_as_documented() {
    let dir = tempfile::tempdir().unwrap();
    written(dir.path(), &testkit::short()).unwrap();
    let documented =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/fleet.md"))
            .unwrap();
    for name in files(dir.path()) {
        let part = reader(dir.path().join(&name));
        let facts = part.metadata().file_metadata();
        let table = name.split('/').next().unwrap();
        let keys: BTreeMap<_, _> = facts
            .key_value_metadata()
            .unwrap()
            .iter()
            .map(|pair| (pair.key.as_str(), pair.value.as_deref()))
            .collect();
        assert_eq!(keys["nearfar.schema"], Some(format!("nearfar.{table}/1").as_str()));
        assert_eq!(keys["nearfar.machine"], Some("cxl-2tier"));
        let mut message = Vec::new();
        parquet::schema::printer::print_schema(&mut message, facts.schema());
        let message = String::from_utf8(message).unwrap();
        assert!(documented.contains(message.trim()), "docs/fleet.md lacks this:\n{message}");
    }
}

#[test]
fn values_are_those_of_the_record() {
    let dir = tempfile::tempdir().unwrap();
    let record = testkit::moving_hot_set();
    written(dir.path(), &record).unwrap();
    let rows = rows(dir.path(), "accesses");
    let hot = rows.iter().find(|row| long(row, "accesses") == 18).unwrap();
    assert_eq!(long(hot, "ts"), START_US + 1_000_000);
    assert_eq!(long(hot, "start_address"), 65_536 * 1_048_576 + 1024 * 1_048_576);
    assert_eq!(long(hot, "end_address") - long(hot, "start_address"), 256 * 1_048_576);
    assert_eq!(long(hot, "bytes"), 256 * 1_048_576);
    assert_eq!((long(hot, "rate_permille"), long(hot, "age_us")), (900, 0));
    assert_eq!(
        (long(hot, "node"), text(hot, "kind"), text(hot, "tier")),
        (1, Some("cxl".into()), Some("far".into()))
    );
    assert_eq!(text(hot, "addresses").as_deref(), Some("physical"));
    assert_eq!(
        (&hot["pid"], &hot["command"], &hot["cgroup"]),
        (&Field::Null, &Field::Null, &Field::Null)
    );
    assert_eq!(hot["emulated"], Field::Bool(true));
    let cold = rows.iter().find(|row| long(row, "accesses") == 0).unwrap();
    assert_eq!((long(cold, "rate_permille"), long(cold, "age_us")), (0, 60_000_000));
}

#[test]
fn residency_has_a_row_for_each_node_even_an_unknown_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut record = testkit::short();
    record.residency.truncate(1);
    let unknown = Resident { node: record.residency[0].nodes[0].node, bytes: u64::MAX };
    record.header.nodes.remove(0);
    record.residency[0].nodes[0] = unknown;
    written(dir.path(), &record).unwrap();
    let rows = rows(dir.path(), "residency");
    let shown: Vec<_> = rows
        .iter()
        .map(|row| (long(row, "node"), text(row, "kind"), text(row, "tier"), long(row, "bytes")))
        .collect();
    let cxl = (1, Some("cxl".into()), Some("far".into()), 3328 * 1_048_576);
    assert_eq!(shown, [(0, None, None, i64::MAX), cxl]);
}

#[test]
fn a_region_has_a_row_for_each_node_and_one_for_addresses_without_node() {
    let dir = tempfile::tempdir().unwrap();
    let mut record = testkit::short();
    // From 1 GiB below the near node's first byte to 1 MiB within the far node.
    record.accesses = vec![access(SECOND_NS, vec![region(3072 * MIB, 65_537 * MIB)])];
    written(dir.path(), &record).unwrap();
    let rows = rows(dir.path(), "accesses");
    let shown: Vec<_> =
        rows.iter().map(|row| (text(row, "kind"), long(row, "bytes") >> 20)).collect();
    let gap = 65_536 - 4096 - 1024;
    assert_eq!(
        shown,
        [(None, 1024), (Some("dram".into()), 1024), (None, gap), (Some("cxl".into()), 1)]
    );
    assert!(rows.iter().all(|row| long(row, "accesses") == 5));
}

#[test]
fn virtual_addresses_have_a_process_and_no_node() {
    let dir = tempfile::tempdir().unwrap();
    let mut record = testkit::short();
    record.header.operations = Operations::Virtual;
    record.header.target = Target::Cgroup("/web".into());
    record.accesses.truncate(1);
    let other = Snapshot { target: 7, regions: vec![region(4096, 8192)] };
    record.accesses[0].targets.push(other);
    let process = Process { at_ns: 0, target: 0, pid: 41, command: "httpd".into() };
    record.processes = vec![process];
    written(dir.path(), &record).unwrap();
    let rows = rows(dir.path(), "accesses");
    assert!(rows.iter().all(|row| row["node"] == Field::Null && text(row, "cgroup").as_deref() == Some("/web")));
    let (named, unnamed): (Vec<_>, Vec<_>) = rows.iter().partition(|row| long(row, "target") == 0);
    assert!(
        named
            .iter()
            .all(|row| long(row, "pid") == 41 && text(row, "command").as_deref() == Some("httpd"))
    );
    assert_eq!(
        (unnamed.len(), &unnamed[0]["pid"], &unnamed[0]["command"]),
        (1, &Field::Null, &Field::Null)
    );
}

#[test]
fn a_part_ends_with_its_day_and_with_its_hour() {
    let dir = tempfile::tempdir().unwrap();
    let mut record = testkit::short();
    // 22:13:20 to midnight are 6,400 seconds.
    let seconds = [1, 3600, 3601, 6399, 6400, 7000];
    record.residency.clear();
    record.accesses =
        seconds.iter().map(|at| access(at * SECOND_NS, vec![region(0, 4096)])).collect();
    assert_eq!(written(dir.path(), &record).unwrap().parts, 3);
    let parts: Vec<_> = files(dir.path())
        .into_iter()
        .map(|name| {
            (
                name.split('/').nth(2).unwrap().to_owned(),
                reader(dir.path().join(&name)).metadata().file_metadata().num_rows(),
            )
        })
        .collect();
    let [first, second] = ["date=2023-11-14", "date=2023-11-15"].map(str::to_owned);
    assert_eq!(parts, [(first.clone(), 2), (first, 2), (second, 2)]);
}

#[test]
fn row_groups_are_in_the_order_of_time_and_do_not_overlap() {
    let dir = tempfile::tempdir().unwrap();
    let mut record = testkit::short();
    let regions: Vec<_> = (0..50_000).map(|at| region(at * 8192, at * 8192 + 4096)).collect();
    record.accesses = (1..=7).map(|at| access(at * SECOND_NS, regions.clone())).collect();
    written(dir.path(), &record).unwrap();
    let part = reader(dir.path().join(&files(dir.path())[0]));
    let times: Vec<_> = part
        .metadata()
        .row_groups()
        .iter()
        .map(|group| {
            assert_eq!(group.sorting_columns().unwrap()[0].column_idx, 0);
            match group.column(0).statistics().unwrap() {
                Statistics::Int64(times) => [*times.min_opt().unwrap(), *times.max_opt().unwrap()]
                    .map(|at| (at - START_US) / 1_000_000),
                other => panic!("{other:?}"),
            }
        })
        .collect();
    assert_eq!(times, [[1, 3], [4, 6], [7, 7]]);
}

#[test]
fn an_open_part_has_no_name_and_an_abandoned_one_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let record = testkit::short();
    let mut dataset = Dataset::create(dir.path(), &labels(), &record.header).unwrap();
    dataset.all(&record).unwrap();
    let open = files(dir.path());
    assert_eq!(open.len(), 2);
    let hidden = |name: &String| {
        let name = name.rsplit('/').next().unwrap();
        name.starts_with(".part-") && name.ends_with(".partial")
    };
    assert!(open.iter().all(hidden), "{open:?}");
    drop(dataset);
    assert_eq!(files(dir.path()), [""; 0]);
}

#[test]
fn a_second_conversion_keeps_the_parts_and_a_different_record_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut record = testkit::short();
    let first = written(dir.path(), &record).unwrap();
    let bytes = || {
        files(dir.path())
            .into_iter()
            .map(|name| fs::read(dir.path().join(name)).unwrap())
            .collect::<Vec<_>>()
    };
    let before = bytes();
    let again = written(dir.path(), &record).unwrap();
    assert_eq!((first.parts, again), (2, Summary { kept: 2, ..Summary::default() }));
    record.accesses[1].targets[0].regions[0].accesses += 1;
    let error = written(dir.path(), &record).unwrap_err();
    assert!(
        matches!(&error, Error::Exists(path) if path.ends_with("part-1700000000000000-0000.parquet"))
    );
    assert!(error.to_string().contains("never overwritten; move it away"), "{error}");
    assert_eq!(bytes(), before);
}

#[test]
fn frames_one_by_one_give_the_parts_of_a_conversion() {
    let [one, other] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let record = testkit::moving_hot_set();
    written(one.path(), &record).unwrap();
    let mut dataset = Dataset::create(other.path(), &labels(), &record.header).unwrap();
    for (access, residency) in record.accesses.iter().zip(&record.residency) {
        dataset.access(access).unwrap();
        dataset.residency(residency).unwrap();
    }
    dataset.end().unwrap();
    let contents = |dir: &Path| {
        files(dir).into_iter().map(|name| fs::read(dir.join(name)).unwrap()).collect::<Vec<_>>()
    };
    assert!(contents(one.path()) == contents(other.path()), "the bytes differ");
}

#[test]
fn directories_and_records_that_give_no_dataset_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let header = testkit::header();
    let error = Dataset::create(&file, &labels(), &header).unwrap_err();
    assert!(matches!(&error, Error::Write { path, .. } if *path == file), "{error}");
    let undated = Header { started_unix_ns: 0, ..header };
    let error = Dataset::create(dir.path(), &labels(), &undated).unwrap_err();
    assert!(error.to_string().contains("does not contain the time of its start"), "{error}");
}

#[test]
fn a_record_without_rows_has_no_parts() {
    let dir = tempfile::tempdir().unwrap();
    let mut record = Record::new(testkit::header());
    record.accesses = vec![access(1, vec![])];
    assert_eq!(written(dir.path(), &record).unwrap(), Summary::default());
    assert_eq!(files(dir.path()), [""; 0]);
}

/// Sorted, disjoint regions of physical memory, from gaps and lengths in MiB, over both nodes of the testkit's machine.
fn regions() -> impl Strategy<Value = Vec<Region>> {
    let plan = (0..9000u64, 1..9000u64, 0..20u32, any::<u32>());
    prop::collection::vec(plan, 0..20).prop_map(|plan| {
        let mut end = 0;
        plan.into_iter()
            .map(|(gap, length, accesses, age)| {
                let start = end + gap * MIB;
                end = start + length * MIB;
                Region { range: Range { start, end }, accesses, age }
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn joined_rows_are_the_regions_and_each_row_is_within_its_node(
        snapshots in prop::collection::vec((0..10_000u64, regions()), 0..6),
        resident in prop::collection::vec((0..2u16, 0..1u64 << 40), 0..4),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut record = Record::new(testkit::header());
        let mut at_ns = 0;
        for (step_s, regions) in snapshots {
            at_ns += (step_s + 1) * SECOND_NS;
            record.accesses.push(access(at_ns, regions));
        }
        let nodes = resident.iter().map(|(node, bytes)| {
            Resident { node: record.header.nodes[usize::from(*node)].id, bytes: *bytes }
        });
        record.residency = vec![Residency { at_ns: 1, nodes: nodes.collect() }];
        written(dir.path(), &record).unwrap();
        let number = |value: u64| i64::try_from(value).unwrap();
        let intervals: Intervals = record.header.intervals;
        let whole: Vec<_> = record.accesses.iter().flat_map(|of| {
            let ts = START_US + number(of.at_ns / 1000);
            of.targets[0].regions.iter().map(move |region| {
                let Range { start, end } = region.range;
                let age = intervals.age_ns(region.age) / 1000;
                (ts, number(start), number(end), i64::from(region.accesses), number(age))
            })
        }).collect();
        let starts: BTreeSet<_> = whole.iter().map(|(ts, start, ..)| (*ts, *start)).collect();
        let mut joined: Vec<(i64, i64, i64, i64, i64)> = Vec::new();
        for row in rows(dir.path(), "accesses") {
            let [ts, start, end] = ["ts", "start_address", "end_address"].map(|name| long(&row, name));
            prop_assert_eq!(end - start, long(&row, "bytes"));
            let node = record.header.nodes.iter().find(|node| row["node"] == Field::Int(node.id.0.into()));
            let range = Range { start: start.try_into().unwrap(), end: end.try_into().unwrap() };
            for other in &record.header.nodes {
                let within = if node == Some(other) { range.bytes() } else { 0 };
                prop_assert_eq!(other.ranges[0].shared(range), within);
            }
            let [accesses, age] = ["accesses", "age_us"].map(|name| long(&row, name));
            if starts.contains(&(ts, start)) {
                joined.push((ts, start, end, accesses, age));
            } else {
                let last = joined.last_mut().unwrap();
                prop_assert_eq!((last.0, last.2, last.3, last.4), (ts, start, accesses, age));
                last.2 = end;
            }
        }
        prop_assert_eq!(joined, whole);
        let shown: Vec<_> = rows(dir.path(), "residency").iter().map(|row| (long(row, "node"), long(row, "bytes"))).collect();
        let given: Vec<_> = resident.iter().map(|(node, bytes)| (i64::from(*node), i64::try_from(*bytes).unwrap())).collect();
        prop_assert_eq!(shown, given);
    }
}
