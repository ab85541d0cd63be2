//! `nearfar report` from a user's view: records of nearfar and damo, complete, truncated and hostile.

#![expect(clippy::unwrap_used, reason = "a test that can't set itself up should stop")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nearfar_record::{Access, Ending, Range, Record, Region, Snapshot, Writer, testkit};
use serde_json::{Value, json};
use tempfile::TempDir;

mod browser;

const REPORTS: [&str; 4] = ["heatmap", "wss", "temperature", "residency"];

struct Files {
    dir: TempDir,
}

impl Files {
    /// A directory with `record.nfr` in it.
    fn new(record: &Record) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::create(&dir.path().join("record.nfr"), &record.header).unwrap();
        writer.all(record).unwrap();
        writer.end(record.ending.unwrap()).unwrap();
        Self { dir }
    }

    fn moving() -> Self {
        Self::new(&testkit::moving_hot_set())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs `nearfar report` beside the files.
    fn report(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
        command.env("COLUMNS", "100").env("TERM", "xterm-256color").current_dir(self.dir.path());
        command.arg("report").args(arguments).output().unwrap()
    }

    fn shown(&self, arguments: &[&str]) -> String {
        let output = self.report(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.shown(&[arguments, &["--json"]].concat())).unwrap()
    }

    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.report(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

fn damo(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/record").join(name)
}

#[test]
fn a_heatmap_on_a_terminal_has_colours() {
    let files = Files::moving();
    let shown = format!("{} report heatmap record.nfr", env!("CARGO_BIN_EXE_nearfar"));
    let mut script = Command::new("script");
    script.args(["-qec", &shown, "/dev/null"]).current_dir(files.dir.path());
    script.env("TERM", "xterm-256color").env_remove("NO_COLOR").env("COLUMNS", "100");
    let output = script.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("\u{1b}[48;5;") && !text.contains("?["), "{text}");
}

#[test]
fn colours_follow_the_option_and_default_to_terminals_only() {
    let files = Files::moving();
    for (color, coloured) in
        [(None, false), (Some("--color"), true), (Some("--color=never"), false)]
    {
        let text = files.shown(&[&["heatmap", "record.nfr"][..], color.as_slice()].concat());
        assert_eq!(text.contains("\u{1b}[48;5;"), coloured, "{color:?}: {text}");
    }
    assert!(files.refused(&["heatmap", "record.nfr", "--color=blue"]).contains("--color"));
}

#[test]
fn every_report_comes_as_text_json_picture_and_page() {
    let files = Files::moving();
    for report in REPORTS {
        let text = files.shown(&[report, "record.nfr", "--svg", "out.svg", "--html", "out.html"]);
        assert!(text.contains("EMULATED machine cxl-2tier"), "{text}");
        assert!(!text.contains('\u{1b}'), "colours into a pipe");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        let json = files.json(&[report, "record.nfr"]);
        let version = if report == "residency" { 1 } else { 2 };
        assert_eq!(json["schema"], format!("nearfar.{report}/{version}"));
        assert_eq!(
            (&json["record"]["emulated"], &json["record"]["snapshots"]),
            (&json!(true), &json!(60))
        );
        assert!(fs::read_to_string(files.path("out.svg")).unwrap().starts_with("<svg xmlns="));
        let page = fs::read_to_string(files.path("out.html")).unwrap();
        for heading in ["Access heatmap", "Working-set size", "Temperature", "Memory by node"] {
            assert!(page.contains(heading), "{heading}");
        }
        fs::remove_file(files.path("out.svg")).unwrap();
    }
}

#[test]
fn figures_in_json_are_numbers_with_their_units_in_the_names() {
    let files = Files::moving();
    let wss = files.json(&["wss", "record.nfr", "--threshold", "50"]);
    assert_eq!(wss["mean_bytes"], 256 << 20);
    let near = &wss["hot_set"]["series"][59]["nodes"][0];
    assert_eq!((&near["id"], near["bytes"].as_u64().unwrap() >> 20), (&json!(0), 243));
    let map = files.json(&["heatmap", "record.nfr", "--rows", "6", "--columns", "40"]);
    assert_eq!((&map["rows"], map["areas"].as_array().unwrap().len()), (&json!(6), 4));
    let cells = map["areas"][1]["rate_bp"][5].as_array().unwrap();
    assert!(cells.iter().all(|cell| *cell == 9000), "{cells:?}");
    let all = files.json(&["heatmap", "record.nfr", "--all"]);
    assert_eq!((&all["left_out_bytes"], all["areas"].as_array().unwrap().len()), (&json!(0), 2));
    let residency = files.json(&["residency", "record.nfr"]);
    assert_eq!(residency["moved"][0]["bytes"], 512 << 20);
    let temperature = files.json(&["temperature", "record.nfr"]);
    assert_eq!(temperature["by_rate"][0]["bytes"], (5120_u64 - 384) << 20);
    let info = files.json(&["info", "record.nfr"]);
    assert_eq!(info["record"]["overhead"]["kernel_cpu_ns"], 300_000_000);
    assert_eq!(info["notes"][0]["text"], "hot set moved");
}

#[test]
fn records_of_damo_are_shown_directly_and_imported() {
    let files = Files::moving();
    let raw = damo("damo-raw.json");
    let raw = raw.to_str().unwrap();
    let direct = files.json(&["heatmap", raw]);
    assert_eq!(files.shown(&["import", raw, "-o", "new.nfr"]), "");
    let imported = files.json(&["heatmap", "new.nfr"]);
    assert_eq!(direct["areas"], imported["areas"]);
    let text = files.shown(&["info", "new.nfr"]);
    assert!(text.contains("imported from damo") && text.contains("2 snapshots"), "{text}");
    let text = files.shown(&["info", raw]);
    assert!(text.contains("an unnamed target"), "{text}");
    let text = files.shown(&["residency", raw]);
    assert!(text.contains("holds no residency"), "{text}");
    let error = files.refused(&["import", "record.nfr", "-o", "again.nfr"]);
    assert!(error.contains("a record of nearfar's already"), "{error}");
    assert!(!files.path("again.nfr").exists());
}

/// Regions of all sizes at addresses that are new in every snapshot, so that no two of them are alike.
#[test]
fn a_record_of_eight_megabytes_is_reported_in_every_way() {
    let mut record = Record::new(testkit::header());
    let mut state = 1_u64;
    let mut random = move |below: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut region = |start: &mut u64| {
        *start += (1 + random(200)) << 12;
        let range = Range { start: *start, end: *start + ((1 + random(1000)) << 12) };
        *start = range.end;
        Region {
            range,
            accesses: u32::try_from(random(21)).unwrap(),
            age: u32::try_from(random(1 << 20)).unwrap(),
        }
    };
    for second in 1..=1200 {
        let mut at = 4 << 30;
        let regions = (0..1200).map(|_| region(&mut at)).collect();
        let targets = vec![Snapshot { target: 0, regions }];
        let intervals = record.header.intervals;
        record.accesses.push(Access { at_ns: second * 1_000_000_000, intervals, targets });
    }
    record.ending = Some(Ending { at_ns: 1_200_000_000_000, kernel_cpu_ns: 1, own_cpu_ns: 1 });
    let files = Files::new(&record);
    let bytes = fs::metadata(files.path("record.nfr")).unwrap().len();
    assert!(bytes >= 8 << 20, "{bytes}");
    for report in REPORTS {
        assert!(files.shown(&[report, "record.nfr"]).lines().count() > 3, "{report}");
    }
    files.shown(&["heatmap", "record.nfr", "--html", "page.html"]);
    assert!(fs::read_to_string(files.path("page.html")).unwrap().contains("</html>"));
}

#[test]
fn a_record_cut_off_is_shown_up_to_the_cut_and_the_cut_is_named() {
    let files = Files::moving();
    let whole = fs::read(files.path("record.nfr")).unwrap();
    fs::write(files.path("cut.nfr"), &whole[..whole.len() / 2]).unwrap();
    let output = files.report(&["wss", "cut.nfr", "--json"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && error.contains("ends within the frame at byte"), "{error}");
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let snapshots = json["record"]["snapshots"].as_u64().unwrap();
    assert!((20..60).contains(&snapshots), "{snapshots}");
    assert_eq!(json["record"]["findings"].as_array().unwrap().len(), 1);
    let mut damaged = whole;
    let middle = damaged.len() / 2;
    damaged[middle] ^= 0x40;
    fs::write(files.path("damaged.nfr"), &damaged).unwrap();
    let output = files.report(&["info", "damaged.nfr"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && error.contains("is damaged"), "{error}");
}

#[test]
fn files_that_are_not_records_are_refused_with_their_type() {
    let files = Files::moving();
    let whole = fs::read(files.path("record.nfr")).unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(files.path(name), bytes).unwrap();
    write("empty", b"");
    write("text", b"hello");
    write("head", &whole[..20]);
    write("later", &[&whole[..7], &[9], &whole[8..]].concat());
    write("json", b"{\"schema\": \"nearfar.topo/1\"}");
    write("deep", "[".repeat(1 << 20).as_bytes());
    write("zlib", b"\x78\x9c garbage");
    assert!(Command::new("mkfifo").arg(files.path("fifo")).status().unwrap().success());
    for (file, why) in [
        ("missing", "No such file"),
        (".", "directory"),
        ("empty", "neither a record"),
        ("text", "neither a record"),
        ("head", "header is damaged"),
        ("later", "nearfar.record/9"),
        ("json", "no JSON of damo's"),
        ("deep", "no JSON of damo's"),
        ("zlib", "can't be read"),
        ("fifo", "no regular file"),
    ] {
        for report in REPORTS.iter().chain(&["info"]) {
            let error = files.refused(&[report, file]);
            assert!(error.contains(why) && error.contains(file), "{report} {file}: {error}");
        }
    }
    let hostile: Vec<u8> =
        (0..200_000_u32).flat_map(|n| (n ^ 0x5bd1).wrapping_mul(n).to_le_bytes()).collect();
    write("hostile", &[&whole[..], &hostile].concat());
    assert!(files.report(&["heatmap", "hostile"]).status.success());
}

#[test]
fn unwritable_output_is_refused_before_anything_is_written() {
    let files = Files::moving();
    let before = fs::read(files.path("record.nfr")).unwrap();
    for (arguments, why) in [
        (&["wss", "record.nfr", "--svg", "record.nfr"][..], "the input record"),
        (&["wss", "record.nfr", "--html", "./record.nfr"], "the input record"),
        (&["wss", "record.nfr", "--html", "no/such/dir.html"], "directory does not exist"),
        (&["wss", "record.nfr", "--threshold", "101"], "101"),
        (&["heatmap", "record.nfr", "--columns", "3"], "3"),
        (&["heatmap"], "FILE"),
    ] {
        let error = files.refused(arguments);
        assert!(error.contains(why), "{arguments:?}: {error}");
    }
    assert_eq!(fs::read(files.path("record.nfr")).unwrap(), before);
    let raw = damo("damo-raw.json");
    let output = files.report(&["residency", raw.to_str().unwrap(), "--svg", "no.svg"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(error.contains("no picture") && !files.path("no.svg").exists(), "{error}");
}

#[test]
fn the_page_fits_phone_and_desktop_without_console_messages() {
    let files = Files::moving();
    files.shown(&["wss", "record.nfr", "--html", "out.html"]);
    browser::fits(&files.path("out.html"), "384 MiB on average");
}
