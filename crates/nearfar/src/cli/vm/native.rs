//! The name of weighted interleave among QEMU's own policies, asked of QEMU.
//!
//! No released QEMU has one; a later one may. QEMU lists its policies only in the schema of its control protocol (QMP), so it is
//! started without a machine, asked, and ended.

use std::ffi::OsStr;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::Value;

/// Starts nothing, and answers on standard output.
const ARGUMENTS: [&str; 9] = [
    "-S",
    "-machine",
    "none",
    "-nodefaults",
    "-display",
    "none",
    "-no-user-config",
    "-qmp",
    "stdio",
];
const QUESTIONS: &str = "{\"execute\":\"qmp_capabilities\"}\n{\"execute\":\"query-qmp-schema\"}\n{\"execute\":\"quit\"}\n";

/// How long QEMU may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of its answers that are read; a schema has some 200 KiB.
const ANSWERS_MAX: u64 = 16 << 20;

/// The name; `None` if QEMU has none or does not answer, or if `program` is named otherwise.
pub(super) fn policy(program: &OsStr) -> Option<String> {
    // A wrapper, such as taskset or a script, could do anything with these arguments, and qemu-img is no emulator.
    let name = Path::new(program).file_name()?.to_str()?;
    if !name.starts_with("qemu-system-") && !["qemu-kvm", "kvm"].contains(&name) {
        return None;
    }
    let mut command = Command::new(program);
    command.args(ARGUMENTS).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child: Child = command.spawn().ok()?;
    // A program that is no QEMU may have ended; its answer is then no schema.
    let _ = child.stdin.take().map(|mut input| input.write_all(QUESTIONS.as_bytes()));
    let output = child.stdout.take()?;
    let (sender, answer) = mpsc::channel();
    std::thread::spawn(move || {
        let mut answers = Vec::new();
        let _ = output.take(ANSWERS_MAX).read_to_end(&mut answers);
        let _ = sender.send(answers);
    });
    let answers = answer.recv_timeout(PATIENCE);
    let _ = child.kill();
    let _ = child.wait();
    in_schema(&String::from_utf8_lossy(&answers.ok()?))
}

/// The name in QMP's answers, one document a line: the enumeration with `bind` and `interleave` has it.
fn in_schema(answers: &str) -> Option<String> {
    let values = answers.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let types = values.filter_map(|mut answer| match answer["return"].take() {
        Value::Array(types) => Some(types),
        _ => None,
    });
    let names = |of: &Value| -> Vec<String> {
        let members = of["members"].as_array().into_iter().flatten();
        members.filter_map(|member| Some(member["name"].as_str()?.to_owned())).collect()
    };
    let is_policy = |all: &Vec<String>| {
        ["bind", "interleave", "preferred"].iter().all(|name| all.iter().any(|one| one == name))
    };
    let policies = types.flatten().map(|one| names(&one)).find(is_policy)?;
    policies.into_iter().find(|name| name.contains("weighted"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_found_in_a_schema_with_one() {
        let schema = |more: &str| {
            let members =
                r#"{"name":"default"},{"name":"preferred"},{"name":"bind"},{"name":"interleave"}"#;
            format!(
                "{{\"QMP\":{{}}}}\n{{\"return\":{{}}}}\n{{\"return\":[{{\"name\":\"7\",\"meta-type\":\"enum\",\"members\":[{members}{more}]}}]}}\n"
            )
        };
        assert_eq!(in_schema(&schema("")), None);
        let name = in_schema(&schema(r#",{"name":"weighted-interleave"}"#));
        assert_eq!(name.as_deref(), Some("weighted-interleave"));
        assert_eq!(in_schema("no JSON\n{}"), None);
    }
}
