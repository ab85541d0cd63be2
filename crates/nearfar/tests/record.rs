//! `nearfar record` on systems where it can't record: errors are reported before anything is changed. Recording itself
//! is tested on real kernels (`tests/guest/record.rs`). Records as Parquet, read back with the parquet crate's reader.

#![expect(clippy::unwrap_used, reason = "tests stop where something unexpected happens")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nearfar_record::{Record, Writer, testkit};
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::{Row, RowAccessor as _};

fn record(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nearfar")).arg("record").args(arguments).output().unwrap()
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn invalid_values_are_refused_with_option_value_and_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.nfr");
    for (words, says) in [
        ("--sample 5", "'5' for '--sample <TIME|auto>': write it as 500ms, 2s, 5m or 1h; or auto"),
        ("--sample 300ms", "--aggregate 100ms is shorter than --sample 300ms"),
        ("--interval 200ms --aggregate 2s", "make --interval 2s or more"),
        (
            "--regions 1000",
            "'1000' for '--regions <MIN,MAX>': write it as MIN,MAX, such as 10,1000",
        ),
        ("--regions 1,2", "3 or more"),
        ("--duration 1", "'1' for '--duration <TIME>'"),
    ] {
        let file = file.to_str().unwrap();
        let mut arguments = vec!["--all", "-o", file];
        arguments.extend(words.split(' '));
        let output = record(&arguments);
        assert_eq!(output.status.code(), Some(2), "{words}: {output:?}");
        assert!(error(&output).contains(says), "{words}: {}", error(&output));
    }
    assert!(!file.exists());
}

#[test]
fn a_command_that_can_not_be_recorded_is_not_started() {
    let dir = tempfile::tempdir().unwrap();
    let (started, record) = (dir.path().join("started"), dir.path().join("x.nfr"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
    command.args(["record", "-o"]).arg(&record).args(["--", "touch"]).arg(&started);
    let output = command.env("NEARFAR_STATE", dir.path()).output().unwrap();
    // Kernels without CONFIG_DAMON_VADDR, or without DAMON, can't; neither can users other than root.
    let is_refused = output.status.code() == Some(125);
    assert_eq!(started.exists(), !is_refused, "{output:?}");
    assert!(!is_refused || error(&output).contains("DAMON"), "{output:?}");
}

#[test]
fn exactly_one_target_must_be_named() {
    for arguments in [&["-o", "x"][..], &["--machine", "--pid", "1", "-o", "x"]] {
        assert_eq!(record(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

/// `record.nfr` in `dir`.
fn record_in(dir: &Path, record: &Record) -> PathBuf {
    let path = dir.join("record.nfr");
    let mut writer = Writer::create(&path, &record.header).unwrap();
    writer.all(record).unwrap();
    writer.end(record.ending.unwrap()).unwrap();
    path
}

fn convert(dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
    command.current_dir(dir).args(["report", "parquet", "record.nfr", "out"]).args(arguments);
    command.output().unwrap()
}

/// The only part below a table of `out` in `dir`.
fn part(dir: &Path, table: &str) -> PathBuf {
    let mut path = dir.join("out").join(table);
    while path.is_dir() {
        let entries: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap()).collect();
        assert_eq!(entries.len(), 1, "{}", path.display());
        path = entries[0].path();
    }
    path
}

fn rows(part: &Path) -> Vec<Row> {
    let part = SerializedFileReader::new(File::open(part).unwrap()).unwrap();
    part.get_row_iter(None).unwrap().map(|row| row.unwrap()).collect()
}

/// Column numbers of the table `accesses`.
const TS: usize = 0;
const START: usize = 6;
const RATE: usize = 10;
const NODE: usize = 12;
const TIER: usize = 14;
const EMULATED: usize = 15;

#[test]
fn a_record_reads_back_from_parquet_in_the_order_of_time() {
    let dir = tempfile::tempdir().unwrap();
    let record = testkit::moving_hot_set();
    record_in(dir.path(), &record);
    let output = convert(dir.path(), &["--host", "web-1", "--workload", "a/b"]);
    assert!(output.status.success(), "{output:?}");
    assert!(error(&output).contains("rows in 2 parts below out"), "{output:?}");
    let path = part(dir.path(), "accesses");
    let place = "host=web-1/date=2023-11-14/workload=a%2Fb/part-1700000000000000-0000.parquet";
    assert!(path.ends_with(place), "{}", path.display());
    let rows = rows(&path);
    let mut regions = record
        .accesses
        .iter()
        .flat_map(|of| of.targets[0].regions.iter().map(|region| (of.at_ns, *region)));
    for row in &rows {
        let (at_ns, region) = regions.next().unwrap();
        let ts = 1_700_000_000_000_000 + i64::try_from(at_ns / 1000).unwrap();
        assert_eq!(row.get_timestamp_micros(TS).unwrap(), ts);
        assert_eq!(u64::try_from(row.get_long(START).unwrap()).unwrap(), region.range.start);
        let rate = record.header.intervals.rate_permille(region.accesses);
        assert_eq!(u64::try_from(row.get_int(RATE).unwrap()).unwrap(), rate);
        let node = row.get_int(NODE).unwrap();
        assert_eq!(row.get_string(TIER).unwrap(), if node == 0 { "near" } else { "far" });
        assert!(row.get_bool(EMULATED).unwrap());
    }
    assert_eq!(regions.next(), None);
}

#[test]
fn without_options_parquet_has_this_host_and_the_target() {
    let dir = tempfile::tempdir().unwrap();
    record_in(dir.path(), &testkit::short());
    assert!(convert(dir.path(), &[]).status.success());
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let path = part(dir.path(), "residency").display().to_string();
    assert!(path.contains(&format!("host={}/date=", name.trim())), "{path}");
    assert!(path.contains("/workload=machine/part-"), "{path}");
}

#[test]
fn a_damaged_record_gives_the_rows_before_the_damage_and_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = record_in(dir.path(), &testkit::moving_hot_set());
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let output = convert(dir.path(), &["--host", "h"]);
    assert!(output.status.success(), "{output:?}");
    assert!(error(&output).contains("the file ends within the frame"), "{output:?}");
    let (kept, _) = nearfar_record::read(&bytes[..bytes.len() / 2]).unwrap();
    let regions: usize = kept.accesses.iter().map(|of| of.targets[0].regions.len()).sum();
    assert_eq!(rows(&part(dir.path(), "accesses")).len(), regions);
    // The whole record is another one: the part is not overwritten by it.
    fs::write(&path, &bytes).unwrap();
    let output = convert(dir.path(), &["--host", "h"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(error(&output).contains("exists with other contents"), "{output:?}");
    assert_eq!(rows(&part(dir.path(), "accesses")).len(), regions);
}

#[test]
fn parquet_that_can_not_be_written_is_refused_before_the_command_starts() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("file"), "").unwrap();
    let (file, into, output_file, started) =
        (path("file"), path("into"), path("x.nfr"), path("started"));
    for (options, says) in [
        (&["--parquet", &file][..], "writing"),
        (&["--parquet", &into, "--workload", ""], "workload \"\" is empty; give a name"),
        (&["--parquet", &into, "--host", "a\tb"], "has a control character"),
        (&["--workload", "w"], "--workload is for Parquet; add --parquet DIR"),
        (&["--host", "h"], "--host is for Parquet; add --parquet DIR"),
    ] {
        let command = ["-o", &output_file, "--", "touch", &started];
        let output = record(&[options, &command].concat());
        assert_eq!(output.status.code(), Some(2), "{options:?}: {output:?}");
        assert!(error(&output).contains(says), "{options:?}: {}", error(&output));
    }
    assert!(!Path::new(&started).exists() && !Path::new(&output_file).exists());
}

#[test]
fn help_names_the_monitored_memory_and_the_defaults() {
    let output = record(&["--help"]);
    let help = String::from_utf8(output.stdout).unwrap();
    for says in [
        "its descendants",
        "[default: 5ms]",
        "[default: 100ms]",
        "[default: 10,1000]",
        "At most 16",
    ] {
        assert!(help.contains(says), "{says}: {help}");
    }
}
