//! Four servers behind a proxy, as in `examples/cache-fleet`: one is killed under load.

#![expect(clippy::unwrap_used, reason = "a test that can't set itself up should stop")]

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// The first of `many` consecutive free ports.
fn free_ports(many: u16) -> u16 {
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let begin = u16::try_from(std::process::id() % 10_000).unwrap() + 20_000;
    let found = (begin..).step_by(many.into()).find(|base| (*base..base + many).all(is_free));
    found.unwrap()
}

fn run(arguments: &[&str], out: &Path) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/cache-fleet/run");
    let mut command = Command::new(script);
    command.args(arguments).env("NEARFAR", env!("CARGO_BIN_EXE_nearfar"));
    command.env("PORT", free_ports(6).to_string()).env("OUT", out).env("EACH", "3");
    command.output().unwrap()
}

#[test]
fn a_killed_server_loses_its_share_of_items_and_causes_few_errors() {
    let out = tempfile::tempdir().unwrap();
    let output = run(&["nutcracker"], out.path());
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("server 3 is killed") && said.contains("server 3 is back"), "{said}");
    // It is used again.
    let items = |number: u32| -> u32 {
        let line = format!("server {number} has ");
        said.split(&line).nth(1).unwrap().split(' ').next().unwrap().parse().unwrap()
    };
    assert!((1..=4).all(|number| items(number) > 0), "{said}");
    assert!(items(3) < items(1), "it came back empty: {said}");
    let load: Value =
        serde_json::from_slice(&std::fs::read(out.path().join("load.json")).unwrap()).unwrap();
    let number = |value: &Value| value.as_f64().unwrap();
    assert_eq!(load["wrong"]["count"], 0, "{said}");
    let (requests, errors) = (number(&load["operations"]), number(&load["errors"]["count"]));
    assert!(errors > 0.0 && errors < requests / 20.0, "{said}");
    assert!(requests > 10_000.0 && number(&load["hit_ratio"]) > 0.5, "{said}");
}

#[test]
fn an_unknown_proxy_is_refused() {
    let out = tempfile::tempdir().unwrap();
    let output = run(&["apache"], out.path());
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("run nutcracker"));
}
