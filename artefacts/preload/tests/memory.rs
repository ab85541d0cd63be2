//! The effect of the preload library on a program's memory, shown by programs that are unaware of it.
#![expect(clippy::unwrap_used, reason = "a test that can't run its tools should stop")]

use std::path::Path;
use std::process::{Command, Output};

use nearfar_kernel::advice::Publisher;
use nearfar_kernel::chase;
use nearfar_policy::advice::{Advice, Page, Traffic};
use nearfar_topology::{BasisPoints, Nanoseconds, NodeId};

mod common;
use common::{built, preloaded, text};

/// Compiles a C or C++ program of this directory.
fn compiled(source: &str) -> Command {
    let program =
        built().join(format!("preload-{}-{}", source.replace('.', "-"), std::process::id()));
    // Tests run in parallel: each compiles to a file name of its own and renames it.
    let compiler = if source.ends_with(".cpp") { "c++" } else { "cc" };
    if !program.exists() {
        let own = program.with_extension(format!("{:?}", std::thread::current().id()));
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source);
        let mut compile = Command::new(compiler);
        // Without builtins a compiler does not optimise library calls away.
        compile.args(["-Wall", "-Wextra", "-Werror", "-O1", "-fno-builtin", "-pthread", "-o"]);
        let output = compile.arg(&own).arg(path).arg("-ldl").output().unwrap();
        assert!(output.status.success(), "{compiler} {source}: {}", text(&output.stderr));
        std::fs::rename(&own, &program).unwrap();
    }
    Command::new(program)
}

fn under(conf: &str, program: &str, arguments: &[&str]) -> Output {
    preloaded(conf, compiled(program)).args(arguments).output().unwrap()
}

fn said(output: &Output) -> (String, String) {
    assert!(output.status.success(), "{output:?}");
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn every_call_gives_memory_of_the_kind() {
    for conf in [
        "heap=bind:0",
        "heap=interleave:0 mmap=1m",
        "heap=weighted:0=3",
        "heap=0;limit=1g;spill=default",
    ] {
        let (out, complaints) = said(&under(conf, "calls.c", &["kind"]));
        assert_eq!((out.as_str(), complaints.as_str()), ("ok\n", ""), "{conf}");
    }
}

#[test]
fn without_a_kind_memory_is_plain() {
    for conf in ["", "heap=default", "heap=0 from=100g mmap=off"] {
        let (out, complaints) = said(&under(conf, "calls.c", &["plain"]));
        assert_eq!((out.as_str(), complaints.as_str()), ("ok\n", ""), "{conf}");
    }
}

#[test]
fn a_configuration_error_is_reported_once_and_memory_is_plain() {
    for (conf, named) in [
        ("heap=nowhere", "`nowhere`"),
        ("heap=bind:1000", "1000"),
        ("colour=red", "`colour=red`"),
        ("heap=far;limit=x", "`x`"),
        ("heap", "`heap`"),
    ] {
        let (out, complaints) = said(&under(conf, "calls.c", &["plain"]));
        assert_eq!(out, "ok\n");
        assert_eq!(complaints.lines().count(), 1, "{complaints}");
        assert!(complaints.contains("NEARFAR_CONF") && complaints.contains(named), "{complaints}");
    }
}

/// A variable may hold any bytes but zero; these are pseudo-random, the same in each run.
#[test]
fn arbitrary_configuration_bytes_are_reported_and_the_program_runs() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    let mut state = 1_u64;
    for length in 0..40 {
        let mut byte = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 56).to_le_bytes()[0].max(1)
        };
        let bytes: Vec<u8> = [b"x\xff".to_vec(), (0..length).map(|_| byte()).collect()].concat();
        let mut program = preloaded("", compiled("calls.c"));
        let output = program.env("NEARFAR_CONF", OsStr::from_bytes(&bytes)).arg("plain").output();
        let (out, complaints) = said(&output.unwrap());
        assert_eq!(out, "ok\n", "{bytes:?}");
        assert!(complaints.contains("NEARFAR_CONF"), "{bytes:?}: {complaints}");
    }
}

#[test]
fn allocation_works_before_and_after_main_and_with_operator_new() {
    for conf in ["heap=bind:0", ""] {
        assert_eq!(
            said(&under(conf, "begin.cpp", &[])).0,
            "refused\n1000 10000\nended\n",
            "{conf}"
        );
    }
}

#[test]
fn a_child_that_is_forked_while_jemalloc_is_initialised_can_allocate() {
    for _ in 0..200 {
        assert_eq!(said(&under("heap=bind:0", "fork.c", &[])), (String::new(), String::new()));
    }
}

#[test]
fn a_full_heap_fails_the_allocation_or_aborts_the_program() {
    let limited = under("heap=0;limit=64m", "calls.c", &["kind"]);
    // Its objects of 16 MiB at two times the alignment fit; a limit of 1 MiB is too small for anything.
    assert_eq!(said(&limited).0, "ok\n");
    let little = under("heap=0;limit=1m", "calls.c", &["kind"]);
    assert_eq!(little.status.code(), Some(1), "{little:?}");
    assert!(text(&little.stderr).contains("memory != NULL (errno 12)"), "{little:?}");
    let ends = under("heap=0;limit=1m full=abort", "calls.c", &["kind"]);
    assert_eq!(ends.status.code(), None, "{ends:?}");
    assert!(text(&ends.stderr).contains("no more memory"), "{ends:?}");
}

#[test]
fn smdk_settings_have_their_original_meaning() {
    let run = |conf: &str, expected: &[&str]| {
        let mut command = preloaded("", compiled("calls.c"));
        command.env_remove("NEARFAR_CONF").env("CXLMALLOC_CONF", conf);
        said(&command.args(expected).output().unwrap())
    };
    let all = &["kind", "and little mappings"];
    // Near memory with a budget, and no fallback, since this machine's nodes all have CPUs.
    assert_eq!(run("normal_size:512", all), ("ok\n".into(), String::new()));
    // Small budgets that are extended repeatedly.
    let again = "normal_size:40,exmem_size:40,maxmemory_policy:interleave";
    assert_eq!(run(again, all), ("ok\n".into(), String::new()));
    assert_eq!(run("normal_size:40,maxmemory_policy:remain", all).0, "ok\n");
    for plain in ["", "use_exmem:false,normal_size:40", "use_exmem:true", "normal_size:-1"] {
        assert_eq!(run(plain, &["plain"]), ("ok\n".into(), String::new()), "{plain}");
    }
    let (_, complaints) = run("normal_size:512,exmem_size:0,priority", all);
    assert_eq!(
        complaints,
        "Conf string ends with key: priority\nInvalid conf value: exmem_size:0\n"
    );
    let dir = tempfile::tempdir().unwrap();
    let advice = dir.path().join("advice");
    let adaptive = |print: &str| {
        let mut command = preloaded("", Command::new("true"));
        command.env_remove("NEARFAR_CONF").env("NEARFAR_PRINT_SMDK", print);
        command.env("NEARFAR_ADVICE", &advice);
        command.env("CXLMALLOC_CONF", "use_adaptive_interleaving:true,priority:exmem");
        said(&command.output().unwrap()).1
    };
    // This machine has no far nodes, so with the order of `priority` nothing is placed.
    let lines = adaptive("1");
    assert!(
        lines.contains("prio = [exmem->normal]\nuse_adaptive_interleaving is disabled\n"),
        "{lines}"
    );
    assert_eq!(adaptive("0"), "");
    let _publisher = Publisher::start(&advice, page()).unwrap();
    let lines = adaptive("1");
    for line in [
        "normal_size = unlimited",
        "exmem_size = unlimited",
        "maxmemory_policy = ignored",
        "prio = [normal->exmem]",
        "adaptive_interleaving_policy = bw_saturation",
    ] {
        assert!(lines.lines().any(|said| said == line), "{line}: {lines}");
    }
}

#[test]
fn an_adaptive_heap_allocates_from_a_kind() {
    for rule in ["bw_saturation", "bw_order", "weighted"] {
        let (out, complaints) = said(&under(&format!("adapt={rule}"), "calls.c", &["kind"]));
        assert_eq!((out.as_str(), complaints.as_str()), ("ok\n", ""), "{rule}");
    }
}

/// A page that stays valid for an hour without updates.
fn page() -> Page {
    let node = Advice {
        node: NodeId(0),
        idle: Nanoseconds(100),
        load: Nanoseconds(100),
        pressure: 100,
        used: None,
        read: None,
        write: None,
        free: BasisPoints(9000),
        weight: 16,
    };
    Page {
        heartbeat: chase::now(),
        interval: Nanoseconds(3_600_000_000_000),
        pid: std::process::id(),
        traffic: Traffic::Unknown,
        cpu: Nanoseconds(0),
        begun: Nanoseconds(0),
        looks: 1,
        nodes: (0..=NodeId::MAX.0).map(|id| Advice { node: NodeId(id), ..node }).collect(),
    }
}

#[test]
fn an_adaptive_heap_follows_the_daemons_advice_page_while_it_exists() {
    let dir = tempfile::tempdir().unwrap();
    let advice = dir.path().join("advice");
    let follows = || {
        let mut command = preloaded("adapt=weighted report=stderr", Command::new("sort"));
        command.arg("/etc/passwd").env("NEARFAR_ADVICE", &advice);
        let (_, told) = said(&command.output().unwrap());
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        told["follows"].as_str().unwrap().to_owned()
    };
    let publisher = Publisher::start(&advice, page()).unwrap();
    assert_eq!(follows(), "page");
    drop(publisher);
    assert_eq!(follows(), "probe");
    // A file that is not an advice page is harmless.
    std::fs::write(&advice, [0x6e; 4096]).unwrap();
    assert_eq!(follows(), "probe");
}

#[test]
fn statistics_are_written_when_a_program_exits() {
    let dir = std::env::temp_dir();
    let place = dir.join(format!("nearfar-preload-{}-%p.json", std::process::id()));
    let mut command =
        preloaded(&format!("heap=0 report={}", place.display()), Command::new("sort"));
    let child = command.arg("/etc/passwd").stdout(std::process::Stdio::null()).spawn().unwrap();
    let file = place.display().to_string().replace("%p", &child.id().to_string());
    assert!(child.wait_with_output().unwrap().status.success());
    let told = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(told.starts_with(r#"{"schema":"nearfar.alloc/1","kinds":[{"#), "{told}");
    assert!(!told.contains(r#""set_aside":0"#), "{told}");
    // A program that has closed stderr is no special case.
    let told = text(&under("heap=0 report=stderr", "calls.c", &["kind"]).stderr);
    assert!(told.contains("nearfar.alloc/1"), "{told}");
}

/// Runs a program under the library while node 0 reports `free` MiB of free memory and nothing reclaimable.
fn on_a_node_with(free: u32, conf: &str, arguments: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let meminfo = dir.path().join("meminfo");
    let kib = free * 1024;
    let text = format!("Node 0 MemTotal: 4194304 kB\nNode 0 MemFree: {kib} kB\n");
    std::fs::write(&meminfo, text).unwrap();
    let place = "mount --bind \"$0\" /sys/devices/system/node/node0/meminfo && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--map-root-user", "sh", "-c", place]).arg(meminfo).arg("env");
    let inner = preloaded(conf, compiled("calls.c"));
    for (name, value) in inner.get_envs() {
        command.arg(format!("{}={}", name.display(), value.unwrap_or_default().display()));
    }
    command.arg(inner.get_program()).args(arguments).output().unwrap()
}

#[test]
fn a_kind_on_an_almost_full_node_spills_or_prints_a_warning() {
    let (out, complaint) = said(&on_a_node_with(50, "heap=0;spill=default", &["plain"]));
    assert_eq!(out, "ok\n");
    assert_eq!(complaint.lines().count(), 1, "{complaint}");
    assert!(
        complaint.contains("node 0 is almost full; memory comes from the kind's spill"),
        "{complaint}"
    );
    let (out, complaint) = said(&on_a_node_with(50, "heap=0", &["kind"]));
    assert_eq!(out, "ok\n");
    assert_eq!(complaint.lines().count(), 1, "{complaint}");
    assert!(complaint.contains("makes the kernel kill a process"), "{complaint}");
    for conf in ["heap=0", "heap=0;spill=default"] {
        assert_eq!(said(&on_a_node_with(3000, conf, &["kind"])), ("ok\n".into(), String::new()));
    }
    let other = said(&on_a_node_with(50, "heap=prefer:0", &["kind"]));
    assert_eq!(other, ("ok\n".into(), String::new()));
}

#[test]
fn where_proc_and_sys_are_not_there_a_program_runs_on_plain_memory() {
    let hidden = "mount -t tmpfs none /proc && mount -t tmpfs none /sys && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--map-root-user", "sh", "-c", hidden, "sh", "env"]);
    let inner = preloaded("heap=bind:0", compiled("begin.cpp"));
    for (name, value) in inner.get_envs() {
        command.arg(format!("{}={}", name.display(), value.unwrap_or_default().display()));
    }
    let output = command.arg(inner.get_program()).output().unwrap();
    let (out, complaints) = said(&output);
    assert_eq!(out, "refused\n1000 10000\nended\n");
    assert!(complaints.contains("NEARFAR_CONF"), "{complaints}");
}
