//! `nearfar-load inference` as a program: its output, and the arguments it refuses.

#![expect(clippy::unwrap_used, reason = "a test that can't run the program should stop")]

use std::process::{Command, Output};

fn inference(words: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar-load"));
    command.arg("inference").args(words.split_whitespace()).output().unwrap()
}

#[test]
fn a_run_prints_its_plan_its_rates_and_its_windows() {
    let words = "--instances 2 --weights-mib 1 --context-mib 1 --batch 2 --seconds 0.3 --warm-up 0.1 --window-ms 100";
    for access in ["stream", "lookup"] {
        let done = inference(&format!("{words} --access {access} --json"));
        assert!(done.status.success(), "{done:?}");
        let said: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
        assert_eq!(said["schema"], "nearfar.inference/1");
        assert_eq!((&said["instances"], &said["weights_bytes"]), (&2.into(), &(1 << 20).into()));
        assert_eq!(said["access"], access);
        let rate = |name: &str| said[name].as_f64().unwrap();
        let [all, slowest] = [rate("tokens_per_s"), rate("slowest_tokens_per_s")];
        assert!(slowest > 0.0 && all >= 2.0 * slowest, "{said}");
        assert!(rate("read_bytes_per_second") > all, "{said}");
        let windows = said["windows"].as_array().unwrap();
        let counted: u64 = windows.iter().map(|of| of["tokens"].as_u64().unwrap()).sum();
        assert_eq!(windows.len(), 3);
        assert!(counted > 0 && counted <= said["tokens"].as_u64().unwrap(), "{said}");
    }
    let done = inference(words);
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(text.contains("2 instances with 1 MiB of weights in 4 layers"), "{text}");
}

#[test]
fn contradicting_options_are_refused_with_the_remedy() {
    for (words, status, with) in [
        ("--seconds 1 --warm-up 1", 1, "say longer --seconds"),
        ("--context-mib 1 --block-kib 1025", 1, "larger than a context of 1 MiB"),
        ("--weights-mib 1 --layers 300", 1, "not a page for each"),
        ("--instances 0", 2, "--instances"),
        ("--access sideways", 2, "stream"),
        ("--seconds never", 2, "seconds"),
        ("--warm-up=-1", 2, "--warm-up"),
    ] {
        let done = inference(words);
        let said = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(status), "{words}: {said}");
        assert!(said.contains(with), "{words}: {said}");
    }
}
