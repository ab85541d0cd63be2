//! The command line of an OCI runtime (runc's, which crun and others share), its features and a container's state.
//!
//! Only the words that placement needs are read: the command, the bundle, the container's id and the log. All others are
//! passed on as they are.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::bundle::CONFIG;
use crate::policy::Mode;

/// A command of interest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Prepares a container, whose process waits.
    Create,
    /// Lets the process of a prepared container go on.
    Start,
    /// Both.
    Run,
    /// nearfar's own: verifies a running container.
    Verify,
    /// Any other.
    Other,
}

/// A parsed command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The command.
    pub command: Command,
    /// The words before the command, without those of the log: options for further calls of the runtime, whose failures
    /// are not the caller's.
    pub global: Vec<OsString>,
    /// The container's id.
    pub id: Option<OsString>,
    /// The bundle's directory, for [`Command::Create`] and [`Command::Run`].
    pub bundle: PathBuf,
    /// The file of the configuration, if it is not in the bundle (crun's `--config`).
    pub config: Option<PathBuf>,
    /// Whether `run` does not wait for the container's end.
    pub is_detached: bool,
    /// The runtime's log, for errors, and whether it is in JSON.
    pub log: Option<(PathBuf, bool)>,
}

/// Options before the command that have a value in the next word.
const GLOBAL_VALUED: [&str; 7] =
    ["log", "log-format", "log-level", "root", "criu", "rootless", "cgroup-manager"];
/// Options of create, run and start that do.
const VALUED: [&str; 8] =
    ["bundle", "b", "config", "f", "console-socket", "pid-file", "preserve-fds", "shm-size"];

/// A word as an option: its name, and its value if it is in the same word.
fn option(word: &OsStr) -> Option<(&str, Option<&OsStr>)> {
    let bytes = word.as_bytes();
    let name = bytes.strip_prefix(b"--").or_else(|| bytes.strip_prefix(b"-"))?;
    let end = name.iter().position(|byte| *byte == b'=');
    let value = end.map(|end| OsStr::from_bytes(&name[end + 1..]));
    let name = std::str::from_utf8(&name[..end.unwrap_or(name.len())]).ok()?;
    (!name.is_empty()).then_some((name, value))
}

/// The options and the first other word of a command line, and the words after it.
struct Words<'a> {
    options: Vec<(&'a str, &'a OsStr)>,
    first: Option<usize>,
}

fn words<'a>(all: &'a [OsString], valued: &[&str]) -> Words<'a> {
    let mut found = Words { options: Vec::new(), first: None };
    let mut at = 0;
    while let Some(word) = all.get(at) {
        match option(word) {
            Some((name, Some(value))) => found.options.push((name, value)),
            Some((name, None)) if valued.contains(&name) => {
                at += 1;
                let value = all.get(at).map(OsString::as_os_str).unwrap_or_default();
                found.options.push((name, value));
            }
            Some((name, None)) => found.options.push((name, OsStr::new(""))),
            None => {
                found.first = Some(at);
                return found;
            }
        }
        at += 1;
    }
    found
}

impl Call {
    /// Parses a runtime's arguments.
    #[must_use]
    pub fn parse(arguments: &[OsString]) -> Self {
        let before = words(arguments, &GLOBAL_VALUED);
        let at = before.first.unwrap_or(arguments.len());
        let (global, rest) = arguments.split_at(at);
        let command = match rest.first().and_then(|word| word.to_str()) {
            Some("create") => Command::Create,
            Some("start") => Command::Start,
            Some("run") => Command::Run,
            Some("verify") => Command::Verify,
            _ => Command::Other,
        };
        let rest = rest.get(1..).unwrap_or_default();
        let own = words(rest, &VALUED);
        let value = |of: &Words<'_>, names: &[&str]| {
            let found = of.options.iter().rev().find(|(name, _)| names.contains(name));
            found.map(|(_, value)| PathBuf::from(value))
        };
        let is_json = before.options.contains(&("log-format", OsStr::new("json")));
        Self {
            command,
            global: without_log(global),
            id: own.first.and_then(|at| rest.get(at)).cloned(),
            bundle: value(&own, &["bundle", "b"]).unwrap_or_else(|| ".".into()),
            config: value(&own, &["config", "f"]),
            is_detached: own.options.iter().any(|(name, _)| matches!(*name, "detach" | "d")),
            log: value(&before, &["log"]).map(|path| (path, is_json)),
        }
    }

    /// The file of the container's configuration.
    #[must_use]
    pub fn config_path(&self) -> PathBuf {
        self.config
            .as_ref()
            .map_or_else(|| self.bundle.join(CONFIG), |named| self.bundle.join(named))
    }
}

fn without_log(global: &[OsString]) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut words = global.iter();
    while let Some(word) = words.next() {
        match option(word) {
            Some(("log" | "log-format", Some(_))) => {}
            Some(("log" | "log-format", None)) => {
                words.next();
            }
            _ => kept.push(word.clone()),
        }
    }
    kept
}

/// The modes of memory policies that a runtime sets by itself, from the output of `RUNTIME features`; none if it does not
/// know `linux.memoryPolicy`.
#[must_use]
pub fn policy_modes(features: &str) -> Vec<Mode> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Features {
        linux: Option<Linux>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Linux {
        memory_policy: Option<Policy>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Policy {
        modes: Option<Vec<String>>,
    }
    let features: Features = serde_json::from_str(features).unwrap_or_default();
    let modes = features.linux.and_then(|linux| linux.memory_policy?.modes).unwrap_or_default();
    modes.iter().filter_map(|name| Mode::named(name)).collect()
}

/// A container's state, from the output of `RUNTIME state ID`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct State {
    /// created, running, stopped or paused.
    pub status: String,
    /// Its first process; 0 if it has ended.
    #[serde(default)]
    pub pid: u32,
    /// Its bundle.
    pub bundle: PathBuf,
}

impl State {
    /// Parses the output; `None` if it is not a state.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// The file of its configuration.
    #[must_use]
    pub fn config_path(&self) -> PathBuf {
        Path::new(&self.bundle).join(CONFIG)
    }
}

/// A line for a runtime's log as runc writes it, from which containerd and conmon report the reason of a failure.
#[must_use]
pub fn log_line(is_json: bool, level: &str, message: &str) -> String {
    if is_json {
        let line = serde_json::json!({"level": level, "msg": message});
        return format!("{line}\n");
    }
    let message = serde_json::json!(message);
    format!("level={level} msg={message}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(text: &str) -> Call {
        Call::parse(&text.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn the_command_lines_of_container_managers_are_understood() {
        let containerd = call(
            "--root /run/containerd/runc/k8s.io --log /b/log.json --log-format json --systemd-cgroup create --bundle /b \
             --pid-file /b/init.pid abc",
        );
        assert_eq!(containerd.command, Command::Create);
        assert_eq!(containerd.id, Some("abc".into()));
        assert_eq!(containerd.config_path(), Path::new("/b/config.json"));
        assert_eq!(containerd.log, Some(("/b/log.json".into(), true)));
        assert_eq!(
            containerd.global,
            ["--root", "/run/containerd/runc/k8s.io", "--systemd-cgroup"]
        );
        let podman =
            call("--root=/run/crun create --bundle /b --pid-file /p --console-socket /s x");
        assert_eq!((podman.command, podman.id), (Command::Create, Some("x".into())));
        let run = call("run -d -b=/c y");
        assert_eq!((run.command, run.is_detached, run.id), (Command::Run, true, Some("y".into())));
        assert_eq!(run.bundle, Path::new("/c"));
        let here = call("run z");
        assert_eq!((here.bundle.as_path(), here.is_detached), (Path::new("."), false));
        let other = call("run -f /e/c.json -b /c z");
        assert_eq!(other.config_path(), Path::new("/e/c.json"));
    }

    #[test]
    fn other_commands_are_passed_on() {
        for text in
            ["", "--version", "state abc", "--root /r kill abc KILL", "features", "exec a create"]
        {
            assert_eq!(call(text).command, Command::Other, "{text}");
        }
        let start = call("--root /r start abc");
        assert_eq!((start.command, start.id), (Command::Start, Some("abc".into())));
    }

    #[test]
    fn features_without_memory_policies_have_no_modes() {
        for text in
            ["", "{}", "{\"linux\":{}}", "unknown command", "{\"linux\":{\"memoryPolicy\":{}}}"]
        {
            assert_eq!(policy_modes(text), [], "{text}");
        }
        let text = r#"{"linux":{"memoryPolicy":{"modes":["MPOL_BIND","MPOL_NEW"]}}}"#;
        assert_eq!(policy_modes(text), [Mode::Bind]);
    }

    #[test]
    fn a_state_is_read_and_nothing_else() {
        let state = State::parse(r#"{"id":"a","status":"running","pid":7,"bundle":"/b"}"#).unwrap();
        assert_eq!((state.status.as_str(), state.pid), ("running", 7));
        assert_eq!(state.config_path(), Path::new("/b/config.json"));
        assert_eq!(State::parse("container \"a\" does not exist"), None);
    }

    #[test]
    fn log_lines_escape_the_message() {
        assert_eq!(
            log_line(true, "error", "a \"b\""),
            "{\"level\":\"error\",\"msg\":\"a \\\"b\\\"\"}\n"
        );
        assert_eq!(log_line(false, "warning", "x"), "level=warning msg=\"x\"\n");
    }
}
