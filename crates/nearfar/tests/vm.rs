//! `nearfar vm` from a user's view: command lines on recorded machines, exit statuses, and every produced form given to a
//! real QEMU, which the lab's cache or PATH has; without one these tests print SKIPPED.
//!
//! QEMU starts paused, without KVM, and is ended as soon as it has answered. This machine may have a single node, so memory is on
//! node 0 there.

#![expect(clippy::unwrap_used, reason = "a test that can't set itself up should stop")]
#![expect(clippy::print_stdout, reason = "a test that can't run here says so")]

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use nearfar_lab::fetch::{Cache, Qemu, Silent};
use serde_json::{Value, json};

mod other_user;

use other_user::OtherUser;

const STATE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/vm-state");

fn recording(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/machines").join(name);
    path.to_str().unwrap().to_owned()
}

fn nearfar(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
    command.arg("vm").args(arguments).env("NEARFAR_STATE", STATE);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Standard output of a command that must succeed.
fn shown(arguments: &[&str]) -> String {
    let output = nearfar(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    text(&output.stdout)
}

fn refused(arguments: &[&str]) -> String {
    let output: Output = nearfar(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
    assert_eq!(text(&output.stdout), "", "{arguments:?}");
    text(&output.stderr)
}

/// The rewritten words on a recorded machine.
fn rewritten(machine: &str, line: &[&str]) -> Vec<String> {
    let path = recording(machine);
    let output = shown(&[&["args", "--json", "--sysfs", &path, "--"], line].concat());
    let document: Value = serde_json::from_str(&output).unwrap();
    assert_eq!(document["schema"], "nearfar.vm-args/1");
    serde_json::from_value(document["argv"].clone()).unwrap()
}

const OBJECT: &str = "memory-backend-ram,id=far0,size=64M,host-mem-type=cxlram";

#[test]
fn a_command_line_is_printed_for_a_shell() {
    let path = recording("lab-cxl-2tier.tree");
    let line = shown(&["args", "--sysfs", &path, "--", "qemu", "-name", "a b", "-object", OBJECT]);
    let expected =
        "qemu -name 'a b' -object memory-backend-ram,id=far0,size=64M,host-nodes=1,policy=bind\n";
    assert_eq!(line, expected);
}

#[test]
fn json_has_the_plan() {
    let path = recording("lab-cxl-2tier.tree");
    let output = shown(&["args", "--json", "--sysfs", &path, "--", "qemu", "-object", OBJECT]);
    let document: Value = serde_json::from_str(&output).unwrap();
    let expected = json!([{
        "id": "far0", "size_bytes": 64 << 20, "type": "cxlram", "nodes": "1", "policy": "bind"
    }]);
    assert_eq!(document["backends"], expected);
    assert_eq!(document["weighted"], Value::Null);
}

#[test]
fn refusals_are_usage_errors_that_name_the_machines_kinds() {
    let path = recording("lab-cxl-2tier.tree");
    for (line, part) in [
        (
            &["-object", "memory-backend-ram,id=a,size=1M,host-mem-type=hbm"][..],
            "this machine has node 0",
        ),
        (&["-m", "1T,host-mem-type=cxl"], "1 TiB are to be bound to node 1"),
    ] {
        let error = refused(&[&["args", "--sysfs", &path, "--", "qemu"], line].concat());
        assert!(error.contains(part), "{error}");
    }
    let error = refused(&["run", "--sysfs", &path, "--", "true"]);
    assert!(error.contains("add --dry-run"), "{error}");
}

#[test]
fn a_dry_run_prints_the_plan() {
    let path = recording("lab-cxl-2tier.tree");
    let plan = shown(&[
        "run",
        "--dry-run",
        "--sysfs",
        &path,
        "--far",
        "1G:cxl",
        "--",
        "qemu",
        "-m",
        "1G",
        "-smp",
        "2",
    ]);
    for part in [
        "command  qemu -m 2G -smp 2 -object memory-backend-ram,id=nearfar-far0,size=1G,host-nodes=1,policy=bind",
        "memory   nearfar-far0: 1 GiB, cxl, bind over nodes 1",
        "note     the guest's HMAT has the host's figures, from firmware",
    ] {
        assert!(plan.contains(part), "{plan}");
    }
}

#[test]
fn zones_of_cloud_hypervisor_follow_its_command_line() {
    let path = recording("lab-cxl-2tier.tree");
    let base = ["args", "--sysfs", &path, "--vmm", "cloud-hypervisor"];
    let zones = ["--zone", "id=n,size=256M,type=dram,cpus=0-1", "--zone", "id=f,size=1G,type=cxl"];
    let line = shown(&[&base[..], &zones, &["--", "cloud-hypervisor", "--kernel", "k"]].concat());
    assert!(
        line.starts_with("cloud-hypervisor --kernel k --memory size=0 --memory-zone"),
        "{line}"
    );
    assert!(line.contains("id=f,size=1G,host_numa_node=1"), "{line}");
    refused(&[&base[..], &["--", "cloud-hypervisor"]].concat());
}

#[test]
fn xml_is_patched_from_standard_input() {
    let path = recording("lab-cxl-2tier.tree");
    let xml = "<domain><cpu><numa><cell id='0' cpus='0' memory='64' unit='MiB'/><cell id='1' memory='64' unit='MiB'/></numa></cpu></domain>";
    let mut command = nearfar(&["xml", "--sysfs", &path, "--cell", "1=cxl", "-"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(xml.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let tune = "<numatune><memnode cellid='1' mode='strict' nodeset='1'/></numatune><cpu>";
    assert!(text(&output.stdout).contains(tune), "{output:?}");
}

/// The words that start QEMU, and its variables; says so if there is none.
fn qemu() -> Option<(Vec<String>, Variables)> {
    let found = found();
    if found.is_none() {
        println!("SKIPPED: no QEMU in the lab's cache or PATH");
    }
    found
}

type Variables = Vec<(&'static str, OsString)>;

fn found() -> Option<(Vec<String>, Variables)> {
    let cache = Cache::from_env().ok().filter(|cache| cache.dir().join("qemu").is_dir());
    let found = match cache {
        Some(cache) => Qemu::cached(&cache, &Silent).ok()?,
        None => Qemu::at(Path::new("qemu-system-x86_64")).ok()?,
    };
    let word = |word: OsString| word.into_string().unwrap();
    let mut words: Vec<_> = found.words().into_iter().map(word).collect();
    let fixed = "-S -accel tcg -display none -nodefaults -qmp stdio -machine q35";
    words.extend(fixed.split(' ').map(str::to_owned));
    Some((words, found.env))
}

/// A paused QEMU that answers.
struct Guest {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Guest {
    /// Starts `command`; QEMU must greet, otherwise its messages fail the test.
    fn start(mut command: Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut answers = BufReader::new(child.stdout.take().unwrap());
        let mut greeting = String::new();
        answers.read_line(&mut greeting).unwrap();
        let mut guest = Self { child, answers };
        let mut messages = String::new();
        if !greeting.contains("QMP") {
            let mut errors = guest.child.stderr.take().unwrap();
            std::io::Read::read_to_string(&mut errors, &mut messages).unwrap();
        }
        assert!(greeting.contains("QMP"), "{command:?}: {messages}");
        guest.ask("qmp_capabilities");
        guest
    }

    fn ask(&mut self, command: &str) -> Value {
        let input = self.child.stdin.as_mut().unwrap();
        writeln!(input, "{{\"execute\":\"{command}\"}}").unwrap();
        loop {
            let mut line = String::new();
            assert_ne!(self.answers.read_line(&mut line).unwrap(), 0, "QEMU ended");
            let mut answer: Value = serde_json::from_str(&line).unwrap();
            if answer.get("return").is_some() {
                return answer["return"].take();
            }
            assert!(answer.get("error").is_none(), "{line}");
        }
    }

    /// Policy and nodes of a backend, as QEMU reports them.
    fn memory(&mut self, id: &str) -> (String, Value) {
        let all = self.ask("query-memdev");
        let one = all.as_array().unwrap().iter().find(|one| one["id"] == id).unwrap().clone();
        (one["policy"].as_str().unwrap().to_owned(), one["host-nodes"].clone())
    }

    /// Lines of numa_maps with `part`.
    fn maps(&self, part: &str) -> Vec<String> {
        let maps = std::fs::read_to_string(format!("/proc/{}/numa_maps", self.child.id())).unwrap();
        maps.lines().filter(|line| line.contains(part)).map(str::to_owned).collect()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// QEMU, started by `nearfar vm run` on this machine, whose node 0 is stated to be CXL.
fn run(arguments: &[&str]) -> Option<Guest> {
    let (words, env) = qemu()?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let fixed = ["run", "--kind", "0=cxl", "--overcommit", "--"];
    let mut command = nearfar(&[&fixed[..], &words, arguments].concat());
    command.envs(env);
    Some(Guest::start(command))
}

#[test]
fn qemu_accepts_the_form_of_options() {
    let Some(mut guest) = run(&["-object", OBJECT, "-m", "64M,host-mem-type=cxl"]) else { return };
    assert_eq!(guest.memory("far0"), ("bind".into(), json!([0])));
    assert_eq!(guest.memory("nearfar-ram"), ("bind".into(), json!([0])));
}

#[test]
fn running_machines_are_listed_with_their_memory() {
    let object = "memory-backend-ram,id=far0,size=64M,prealloc=on,host-mem-type=cxl";
    let Some(guest) = run(&["-name", "guest=listed", "-object", object]) else { return };
    let list = nearfar(&["list", "--json"]).output().unwrap();
    let list: Value = serde_json::from_slice(&list.stdout).unwrap();
    let is_it = |one: &&Value| one["pid"] == guest.child.id();
    let one = list["machines"].as_array().unwrap().iter().find(is_it).unwrap();
    assert_eq!(
        (&one["vmm"], &one["name"], &one["libvirt"]),
        (&json!("qemu"), &json!("listed"), &json!(false))
    );
    assert!(one["resident_by_node"]["0"].as_u64().unwrap() >= 64 << 20, "{one}");
    assert_eq!(one["resident_by_tier"].as_array().unwrap().len(), 1, "{one}");
    let line = shown(&["list"]);
    assert!(line.lines().any(|line| line.contains("listed") && line.contains("qemu")), "{line}");
}

#[test]
fn a_machine_of_another_user_is_refused_with_the_remedy() {
    let Some(user) = OtherUser::new() else { return };
    let monitor = format!("unix:{},server=on,wait=off", user.dir().join("qmp").display());
    let Some(guest) = run(&["-m", "64M", "-qmp", &monitor]) else { return };
    let pid = guest.child.id().to_string();
    for words in [&["show"][..], &["verify"], &["move", "--all", "--to", "near"]] {
        let output = user.nearfar(&[&["vm"], words, &[&pid]].concat()).output().unwrap();
        let status = if words[0] == "verify" { 2 } else { 1 };
        assert_eq!(output.status.code(), Some(status), "{words:?}: {output:?}");
        assert!(text(&output.stderr).contains("needs QEMU's user, or root"), "{output:?}");
    }
}

#[test]
fn qemu_accepts_json() {
    let object = r#"{"qom-type":"memory-backend-memfd","host-mem-type":"0","id":"far0","size":67108864,"host-mem-policy":"interleave"}"#;
    let Some(mut guest) = run(&["-object", object]) else { return };
    assert_eq!(guest.memory("far0"), ("interleave".into(), json!([0])));
}

#[test]
fn qemu_accepts_a_rewritten_configuration_file() {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("vm-test.cfg");
    let text = "[object \"far0\"]\n  qom-type = \"memory-backend-ram\"\n  size = \"64M\"\n  host-mem-type = \"cxl\"\n  host-mem-policy = \"preferred\"\n";
    std::fs::write(&file, text).unwrap();
    let Some(mut guest) = run(&["-readconfig", file.to_str().unwrap()]) else { return };
    assert_eq!(guest.memory("far0"), ("preferred".into(), json!([0])));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text, "the file itself stays");
}

/// QEMU with words that were rewritten for another machine, its far node replaced by node 0.
fn start_elsewhere(machine: &str, arguments: &[&str]) -> Option<Guest> {
    let (words, env) = qemu()?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (before, after) =
        arguments.split_at(arguments.iter().position(|word| *word == "--").unwrap());
    let path = recording(machine);
    let fixed = ["args", "--json", "--overcommit", "--sysfs", &path];
    let output = shown(&[&fixed[..], before, &["--"], &words, &after[1..]].concat());
    let document: Value = serde_json::from_str(&output).unwrap();
    let argv: Vec<String> = serde_json::from_value(document["argv"].clone()).unwrap();
    let here = argv.iter().map(|word| word.replace("host-nodes=1", "host-nodes=0"));
    let here: Vec<_> = here.collect();
    let mut command = Command::new(&here[0]);
    command.args(&here[1..]).envs(env);
    Some(Guest::start(command))
}

#[test]
fn qemu_accepts_the_description_of_nodes() {
    for nodes in [1, 2, 4] {
        let added = [&["--far", "64M:cxl"].repeat(nodes)[..], &["--", "-m", "128M", "-smp", "2"]];
        let Some(mut guest) = start_elsewhere("lab-cxl-2tier.tree", &added.concat()) else {
            return;
        };
        let last = format!("nearfar-far{}", nodes - 1);
        assert_eq!(guest.memory(&last), ("bind".into(), json!([0])));
    }
    let written = [
        "--",
        "-m",
        "128M",
        "-smp",
        "2",
        "-object",
        OBJECT,
        "-object",
        "memory-backend-ram,id=n,size=64M",
        "-numa",
        "node,cpus=0-1,memdev=n",
        "-numa",
        "node,memdev=far0",
    ];
    let Some(mut guest) = start_elsewhere("lab-cxl-2tier.tree", &written) else { return };
    assert_eq!(guest.memory("far0"), ("bind".into(), json!([0])));
    let words = rewritten("lab-cxl-2tier.tree", &[&["qemu"], &written[1..]].concat());
    assert_eq!(words.iter().filter(|word| word.starts_with("hmat-lb,")).count(), 4, "{words:?}");
}

#[test]
fn qemu_accepts_the_cxl_devices() {
    for devices in [1, 2, 4] {
        let far = ["--far", "256M:cxl"].repeat(devices);
        let added = [&far[..], &["--shape", "type3", "--", "-m", "128M"]].concat();
        let Some(mut guest) = start_elsewhere("lab-cxl-2tier.tree", &added) else { return };
        let last = format!("nearfar-far{}", devices - 1);
        assert_eq!(guest.memory(&last), ("bind".into(), json!([0])));
    }
}

#[test]
fn all_memory_under_weighted_interleave_inherits_the_policy() {
    if !nearfar_kernel::mempolicy::knows_weighted_interleave().unwrap_or(false) {
        println!("SKIPPED: this kernel has no weighted interleave");
        return;
    }
    let memory = "64M,host-mem-type=0,host-mem-policy=weighted-interleave";
    let Some(mut guest) = run(&["-m", memory]) else { return };
    assert_eq!(guest.memory("nearfar-ram").0, "default");
    assert!(!guest.maps(" weighted interleave:0 ").is_empty(), "{:?}", guest.maps("heap"));
}

#[test]
fn a_part_of_memory_under_weighted_interleave_is_a_file_with_the_policy() {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root || !nearfar_kernel::mempolicy::knows_weighted_interleave().unwrap_or(false) {
        println!("SKIPPED: needs root and a kernel with weighted interleave");
        return;
    }
    let object = "memory-backend-ram,id=w,size=64M,prealloc=on,host-mem-type=0,host-mem-policy=weighted-interleave";
    let Some(guest) = run(&["-m", "64M", "-object", object]) else { return };
    let maps = guest.maps("file=/memory");
    let is_all =
        maps.iter().any(|line| line.contains("weighted interleave:0") && line.contains("N0=16384"));
    assert!(is_all, "{maps:?}");
    assert!(guest.maps("heap").iter().all(|line| !line.contains("interleave")), "only the file");
}
