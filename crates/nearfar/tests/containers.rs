//! `nearfar oci-runtime` with the runc and crun of this system, which know no memory policies, and with a runtime that
//! does; `nearfar nri` without a runtime.
//!
//! Containers need root, and crun needs cgroup version 2, which a private mount namespace provides.

#![expect(clippy::unwrap_used, reason = "this is a test program")]

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

/// A static program for containers: the lab's, else the system's.
fn busybox() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let cached = fs::read_dir(home.join(".cache/nearfar/busybox")).into_iter().flatten();
    let cached = cached.filter_map(|entry| Some(entry.ok()?.path().join("busybox")));
    cached.chain(["/bin/busybox".into()]).find(|path| path.is_file())
}

/// Says so past the test harness, which hides the output of tests that pass.
fn skipped(why: &str) {
    std::io::stderr().write_all(format!("SKIPPED: {why}\n").as_bytes()).unwrap();
}

fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// A bundle of a container that runs `script`.
struct Bundle {
    dir: tempfile::TempDir,
}

impl Bundle {
    /// `None`, with a message, if containers can't run here.
    fn new(script: &str, annotations: &Value) -> Option<Self> {
        let Some(busybox) = busybox().filter(|_| rustix::process::geteuid().is_root()) else {
            skipped("containers need root and busybox-static (scripts/setup test)");
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("rootfs");
        for name in ["bin", "proc", "dev"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        fs::copy(busybox, root.join("bin/sh")).unwrap();
        let namespaces = ["pid", "mount", "ipc", "uts"].map(|kind| json!({"type": kind}));
        let config = json!({
            "ociVersion": "1.0.0",
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": ["/bin/sh", "-c", script],
                "env": ["PATH=/bin"],
                "cwd": "/",
            },
            "root": {"path": "rootfs"},
            "hostname": "test",
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
            ],
            "annotations": annotations,
            "linux": {"namespaces": namespaces},
        });
        fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        Some(Self { dir })
    }

    fn path(&self) -> &str {
        self.dir.path().to_str().unwrap()
    }

    fn config(&self) -> Value {
        serde_json::from_slice(&fs::read(self.dir.path().join("config.json")).unwrap()).unwrap()
    }

    /// A shell script with these values, in which `$RUNTIME` is the wrapper with its options, in a private mount
    /// namespace with cgroup version 2 for crun.
    fn shell(&self, runtime: &str, script: &str) -> Command {
        let nearfar = env!("CARGO_BIN_EXE_nearfar");
        let state = self.dir.path().join("state");
        // Names a cgroup, too, so it differs between tests.
        let name = self.dir.path().file_name().unwrap().to_str().unwrap();
        let mut command = if runtime == "crun" {
            let mut unshare = Command::new("unshare");
            unshare.args(["-m", "sh", "-c"]);
            unshare.arg(format!("mount -t cgroup2 none /sys/fs/cgroup && {{ {script}\n}}"));
            unshare
        } else {
            let mut sh = Command::new("sh");
            sh.args(["-c", script]);
            sh
        };
        let options = format!("--root {} --log {}/log", state.display(), self.path());
        command
            .env("RUNTIME", format!("{nearfar} oci-runtime --runtime {runtime} {options}"))
            .env("BUNDLE", self.path())
            .env("ID", format!("nearfar-{runtime}{}", name.replace('.', "-")))
            .env("PATH", std::env::var("PATH").unwrap() + ":/usr/sbin:/sbin")
            .env_remove("NEARFAR_OCI_VERIFY")
            .env_remove("NEARFAR_OCI_MEMORY")
            .stdin(Stdio::null());
        command
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// Calls `test` with each runtime of this system.
fn each_runtime(test: impl Fn(&str)) {
    for runtime in ["runc", "crun"] {
        if has(runtime) {
            test(runtime);
        } else {
            skipped(&format!("no {runtime} (scripts/setup test)"));
        }
    }
}

const MAPS: &str = "while read -r line; do echo \"$line\"; done < /proc/self/numa_maps";

#[test]
fn a_container_has_the_policy_of_its_annotation() {
    each_runtime(|runtime| {
        for (kind, shown) in [("bind:0", "bind=static:0"), ("interleave:0", "interleave=static:0")]
        {
            let annotations = json!({"nearfar.io/memory": kind});
            let Some(bundle) = Bundle::new(MAPS, &annotations) else { return };
            let before = bundle.config();
            let output =
                bundle.shell(runtime, "$RUNTIME run --bundle $BUNDLE $ID").output().unwrap();
            let said = text(&output);
            assert!(output.status.success(), "{runtime}: {said}");
            let maps = said.lines().filter(|line| line.contains("kernelpagesize"));
            assert!(maps.clone().count() > 1, "{runtime}: {said}");
            assert!(maps.clone().all(|line| line.contains(shown)), "{runtime}: {said}");
            assert_eq!(bundle.config(), before);
        }
    });
}

#[test]
fn a_created_container_is_verified_as_it_starts() {
    each_runtime(|runtime| {
        let annotations = json!({"nearfar.io/memory": "bind:0"});
        let Some(bundle) = Bundle::new("sleep 60", &annotations) else { return };
        let script = "
            $RUNTIME create --bundle $BUNDLE $ID >/dev/null 2>&1 || exit 3
            $RUNTIME start $ID || exit 4
            $RUNTIME verify $ID || exit 5
            $RUNTIME kill $ID KILL; sleep 0.2; $RUNTIME delete --force $ID";
        let output = bundle.shell(runtime, script).output().unwrap();
        let said = text(&output);
        assert!(output.status.success(), "{runtime}: {said} {}", bundle.log());
        assert!(
            said.contains(": as asked: bind=static:0, anonymous pages N0="),
            "{runtime}: {said}"
        );
        assert!(bundle.log().contains("memory placement as asked"), "{}", bundle.log());
    });
}

#[test]
fn a_wrong_placement_is_found_and_kills_the_container_if_asked() {
    each_runtime(|runtime| {
        let annotations = json!({"nearfar.io/memory": "bind:0"});
        for (verify, status) in [("log", 0), ("fail", 1)] {
            let Some(bundle) = Bundle::new("sleep 60", &annotations) else { return };
            // The container is created by the real runtime alone, and so has the default policy.
            let script = "
                $REAL create --bundle $BUNDLE $ID >/dev/null 2>&1 || exit 3
                $RUNTIME start $ID; started=$?
                $RUNTIME state $ID | tr -d ' \\n'
                $RUNTIME kill $ID KILL 2>/dev/null; sleep 0.2; $RUNTIME delete --force $ID
                exit $started";
            let real = format!("{runtime} --root {}/state", bundle.path());
            let mut shell = bundle.shell(runtime, script);
            let output =
                shell.env("REAL", real).env("NEARFAR_OCI_VERIFY", verify).output().unwrap();
            let said = text(&output);
            assert_eq!(output.status.code(), Some(status), "{runtime}: {said}");
            assert!(said.contains("policy default, not bind=static:0"), "{runtime}: {said}");
            assert!(bundle.log().contains("wrong: "), "{}", bundle.log());
            assert_eq!(said.contains("the container was killed"), verify == "fail", "{said}");
        }
    });
}

/// A runtime that is a script: it reports `features`, and otherwise prints its arguments and its memory policy.
fn scripted(dir: &Path, features: &str) -> PathBuf {
    let path = dir.join("runtime");
    let script = format!(
        "#!/bin/sh\nif [ \"$1\" = features ]; then echo '{features}'; exit; fi\necho \"called: $*\"\n\
         sed -n 's/^[0-9a-f]* //p' /proc/self/numa_maps | sed -n '1s/ .*//p'\nexit 7\n"
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Runs the wrapper over a scripted runtime on a bundle with this configuration.
fn wrapped(dir: &Path, config: &str, features: &str, arguments: &[&str]) -> Output {
    fs::write(dir.join("config.json"), config).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
    command.args(["oci-runtime", "--runtime"]).arg(scripted(dir, features)).args(arguments);
    command.current_dir(dir).env_remove("NEARFAR_OCI_VERIFY").output().unwrap()
}

const KNOWS: &str = r#"{"linux":{"memoryPolicy":{"modes":["MPOL_BIND","MPOL_INTERLEAVE"]}}}"#;
const CONFIG: &str =
    r#"{"z":1.0,"annotations":{"nearfar.io/memory":"bind:0"},"linux":{"x":[],"a":null}}"#;

#[test]
fn a_runtime_with_memory_policies_gets_one_in_the_bundle() {
    let dir = tempfile::tempdir().unwrap();
    let output = wrapped(dir.path(), CONFIG, KNOWS, &["create", "c"]);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!(text(&output), "called: create c\ndefault\n");
    let policy =
        r#""memoryPolicy":{"mode":"MPOL_BIND","nodes":"0","flags":["MPOL_F_STATIC_NODES"]}"#;
    let expected = CONFIG.replace(r#""a":null"#, &format!(r#""a":null,{policy}"#));
    assert_eq!(fs::read_to_string(dir.path().join("config.json")).unwrap(), expected);
    // One that does not inherits it.
    let output = wrapped(dir.path(), CONFIG, "{}", &["create", "c"]);
    assert_eq!(text(&output), "called: create c\nbind=static:0\n");
    assert_eq!(fs::read_to_string(dir.path().join("config.json")).unwrap(), CONFIG);
    // So it does if the policy is not ours.
    let other = CONFIG.replace("nearfar.io/memory", "x").replace(r#""a":null"#, policy);
    let output = wrapped(dir.path(), &other, "{}", &["create", "c"]);
    assert_eq!(text(&output), "called: create c\nbind=static:0\n");
}

#[test]
fn a_heap_is_mounted_and_set_in_the_bundle_once() {
    let dir = tempfile::tempdir().unwrap();
    let library = dir.path().join("library.so");
    fs::write(&library, "").unwrap();
    let config = CONFIG.replace(r#""nearfar.io/memory":"bind:0""#, r#""nearfar.io/heap":"bind:0""#);
    fs::write(dir.path().join("config.json"), config).unwrap();
    let mut written = Vec::new();
    for _ in 0..2 {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
        command.args(["oci-runtime", "--runtime"]).arg(scripted(dir.path(), KNOWS));
        command.args(["create", "c"]).current_dir(dir.path()).env("NEARFAR_PRELOAD", &library);
        assert_eq!(text(&command.output().unwrap()), "called: create c\ndefault\n");
        written.push(fs::read(dir.path().join("config.json")).unwrap());
    }
    assert_eq!(written[0], written[1]);
    let config: Value = serde_json::from_slice(&written[0]).unwrap();
    let preload = "/run/nearfar/libnearfar_preload.so";
    let env = json!([format!("LD_PRELOAD={preload}"), "NEARFAR_CONF=heap=bind:0;spill=default"]);
    assert_eq!(config["process"]["env"], env);
    assert_eq!(config["mounts"][0]["destination"], preload);
    assert_eq!(config["mounts"][0]["source"], library.to_str().unwrap());
}

#[test]
fn other_commands_are_passed_on_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    for arguments in [
        &["--version"][..],
        &["--root", "/r", "--log=x", "delete", "--force", "c"],
        &["exec", "c", "--", "-x"],
    ] {
        let output = wrapped(dir.path(), "nonsense", "{}", arguments);
        assert_eq!(output.status.code(), Some(7), "{output:?}");
        assert_eq!(text(&output), format!("called: {}\ndefault\n", arguments.join(" ")));
    }
}

#[test]
fn impossible_requests_start_nothing_and_are_logged() {
    let dir = tempfile::tempdir().unwrap();
    for (kind, part) in [
        ("hbm", "nearfar.io/memory=hbm: node set `hbm`"),
        ("bind:0;limit=1g", "nearfar.io/heap"),
        ("bind:9", "no node 9"),
    ] {
        let config = CONFIG.replace("bind:0", kind);
        let arguments = ["--log", "log.json", "--log-format", "json", "create", "c"];
        let output = wrapped(dir.path(), &config, KNOWS, &arguments);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text(&output).contains(part) && !text(&output).contains("called"), "{output:?}");
        let log = fs::read_to_string(dir.path().join("log.json")).unwrap();
        let line: Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
        assert_eq!(line["level"], "error");
        assert!(line["msg"].as_str().unwrap().contains(part), "{line}");
    }
    let output = wrapped(dir.path(), "nonsense", "{}", &["create", "c"]);
    assert!(text(&output).contains("config.json is not understood"), "{output:?}");
}

#[test]
fn a_default_is_for_containers_without_an_annotation() {
    let dir = tempfile::tempdir().unwrap();
    let plain = r#"{"annotations":{}}"#;
    let output = wrapped(dir.path(), plain, "{}", &["--memory", "interleave:0", "create", "c"]);
    assert_eq!(text(&output), "called: create c\ninterleave=static:0\n");
    let output = wrapped(dir.path(), CONFIG, "{}", &["--memory", "interleave:0", "create", "c"]);
    assert_eq!(text(&output), "called: create c\nbind=static:0\n");
    let sandbox = r#"{"annotations":{"io.kubernetes.cri.container-type":"sandbox"}}"#;
    let output = wrapped(dir.path(), sandbox, "{}", &["--memory", "interleave:0", "create", "c"]);
    assert_eq!(text(&output), "called: create c\ndefault\n");
}

#[test]
fn the_plugin_retries_without_a_runtime_and_refuses_bad_options() {
    let dir = tempfile::tempdir().unwrap();
    let nri = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
        command.arg("nri").args(arguments).current_dir(dir.path());
        command
    };
    for (arguments, part) in [
        (["--name", "a b"], "letters, digits"),
        (["--index", "100"], "0 to 99"),
        (["--classes", "absent"], "absent"),
        (["--metrics-file", "metrics.txt"], "names end in .prom"),
    ] {
        let output = nri(&arguments).output().unwrap();
        assert!(!output.status.success(), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(part), "{said}");
    }
    let mut child = nri(&["--socket", "absent.sock"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap()));
    for _ in 0..2 {
        let line = lines.next().unwrap().unwrap();
        assert!(line.contains("event=disconnected") && line.contains("absent.sock"), "{line}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
}
