//! `nearfar record` as a user types it, where it can't record: what is wrong is said before anything is touched. What it
//! records is tested on real kernels (`tests/guest/record.rs`).

#![expect(clippy::unwrap_used, reason = "tests stop where something unexpected happens")]

use std::process::{Command, Output};

fn record(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nearfar")).arg("record").args(arguments).output().unwrap()
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn bad_values_name_the_option_the_value_and_the_way_out() {
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
        let mut arguments = vec!["--machine", "-o", file];
        arguments.extend(words.split(' '));
        let output = record(&arguments);
        assert_eq!(output.status.code(), Some(2), "{words}: {output:?}");
        assert!(error(&output).contains(says), "{words}: {}", error(&output));
    }
    assert!(!file.exists());
}

#[test]
fn one_thing_is_recorded_at_a_time_and_one_has_to_be_named() {
    for arguments in [&["-o", "x"][..], &["--machine", "--pid", "1", "-o", "x"]] {
        assert_eq!(record(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn help_tells_what_is_watched_and_the_defaults() {
    let output = record(&["--help"]);
    let help = String::from_utf8(output.stdout).unwrap();
    for says in
        ["what it starts", "[default: 5ms]", "[default: 100ms]", "[default: 10,1000]", "At most 16"]
    {
        assert!(help.contains(says), "{says}: {help}");
    }
}
