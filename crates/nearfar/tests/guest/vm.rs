//! `nearfar vm` on real kernels with several kinds of memory: QEMU inside the guest has its memory where its kind says, moves
//! while it runs, and impossible requests are refused before it starts.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nearfar_lab::fetch::{Cache, Qemu, Silent};
use serde_json::Value;

use crate::damon::wait;
use crate::inside::{done, error, nearfar, write_weight};

const MIB: u64 = 1 << 20;

/// A script that starts the lab's QEMU, in place of one that is installed.
fn qemu() -> PathBuf {
    let path = PathBuf::from("/tmp/qemu-system-x86_64");
    if path.exists() {
        return path;
    }
    let found = Qemu::cached(&Cache::from_env().unwrap(), &Silent).unwrap();
    let quoted = |word: &std::ffi::OsStr| format!("'{}'", word.to_str().unwrap());
    let env = found.env.iter().map(|(name, value)| format!("export {name}={}\n", quoted(value)));
    let line: Vec<String> = found.words().iter().map(|word| quoted(word)).collect();
    let script = format!("#!/bin/sh\n{}exec {} \"$@\"\n", env.collect::<String>(), line.join(" "));
    std::fs::write(&path, script).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&path, mode).unwrap();
    path
}

/// A QEMU that runs, with a QMP socket.
struct Machine {
    child: Child,
    socket: PathBuf,
}

impl Machine {
    /// Starts one through `nearfar vm run`.
    fn start(name: &str, options: &[&str], words: &[&str]) -> Self {
        let socket = PathBuf::from(format!("/tmp/{name}.qmp"));
        let _ = std::fs::remove_file(&socket);
        let qemu = qemu();
        let monitor = format!("unix:{},server=on,wait=off", socket.display());
        let fixed = ["-accel", "tcg", "-display", "none", "-nodefaults", "-qmp", &monitor];
        let program = [qemu.to_str().unwrap()];
        let run = [&["vm", "run"], options, &["--"], &program, &fixed, words].concat();
        let mut child = nearfar(&run).stderr(Stdio::piped()).spawn().unwrap();
        let answers = || {
            let show = nearfar(&["vm", "show", socket.to_str().unwrap()]).output().unwrap();
            show.status.success()
        };
        for _ in 0..300 {
            if (socket.exists() && answers()) || child.try_wait().unwrap().is_some() {
                break;
            }
            wait();
        }
        let (is_up, mut errors) = (answers(), String::new());
        if !is_up {
            let _ = child.kill();
            child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        }
        assert!(is_up, "{run:?}: {errors}");
        Self { child, socket }
    }

    fn command(&self, words: &[&str]) -> Vec<String> {
        let socket = self.socket.to_str().unwrap();
        let all = [&["vm", words[0], socket], &words[1..]].concat();
        all.into_iter().map(str::to_owned).collect()
    }

    fn json(&self, words: &[&str]) -> Value {
        let words = self.command(&[words, &["--json"]].concat());
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        serde_json::from_str(&done(&words)).unwrap()
    }

    /// A backend as `vm show` reports it.
    fn backend(&self, id: &str) -> Value {
        let all = self.json(&["show"]);
        let all = all["backends"].as_array().unwrap();
        all.iter().find(|one| one["id"] == id).unwrap().clone()
    }

    fn mib(&self, id: &str, node: u16) -> u64 {
        self.backend(id)["resident"][node.to_string()].as_u64().unwrap_or(0) / MIB
    }

    /// Checksum of guest memory from `address` on.
    fn checksum(&self, address: u64, bytes: u64) -> String {
        let file = format!("{}.dump", self.socket.display());
        let script = "import json,socket,sys\n\
            s=socket.socket(socket.AF_UNIX);s.connect(sys.argv[1]);f=s.makefile('rw');f.readline()\n\
            def x(c,a):\n f.write(json.dumps({'execute':c,'arguments':a})+'\\n');f.flush()\n while True:\n  l=json.loads(f.readline())\n  if 'return' in l or 'error' in l:\n   break\n assert 'return' in l,l\n\
            x('qmp_capabilities',{});x('pmemsave',{'val':int(sys.argv[2]),'size':int(sys.argv[3]),'filename':sys.argv[4]})\n";
        let mut python = Command::new("python3");
        python.args(["-c", script]).arg(&self.socket);
        python.args([&address.to_string(), &bytes.to_string(), &file]);
        let output = python.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let sum = Command::new("sha256sum").arg(&file).output().unwrap();
        std::fs::remove_file(&file).unwrap();
        String::from_utf8(sum.stdout).unwrap()[..64].to_owned()
    }

    fn end(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// The node of a kind of memory here.
fn node_of(kind: &str) -> u16 {
    let topo: Value = serde_json::from_str(&done(&["topo", "--json"])).unwrap();
    let nodes = topo["nodes"].as_array().unwrap();
    let node = nodes.iter().find(|node| node["kind"] == kind).unwrap();
    u16::try_from(node["id"].as_u64().unwrap()).unwrap()
}

pub(crate) fn a_cxl_backend_is_on_the_cxl_node_and_verified() {
    let cxl = node_of("cxl");
    // Small, because writing to an emulated device is slow.
    let object = "memory-backend-ram,id=far0,size=16M,prealloc=on,host-mem-type=cxlram";
    let near = "memory-backend-ram,id=n0,size=32M,host-mem-type=0";
    let nodes = ["-numa", "node,cpus=0,memdev=n0", "-numa", "node,memdev=far0"];
    let start = |name: &str, object: &str| {
        let words = [&["-S", "-m", "48M", "-object", near, "-object", object][..], &nodes].concat();
        Machine::start(name, &[], &words)
    };
    let vm = start("cxl", object);
    assert_eq!(vm.mib("far0", cxl), 16, "{}", vm.backend("far0"));
    let verified = vm.json(&["verify"]);
    assert_eq!(vm.backend("far0")["verdict"], "as_requested", "{verified}");
    let words = vm.command(&["verify", "--want", "far0=0"]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let wrong = nearfar(&words).output().unwrap();
    assert_eq!(wrong.status.code(), Some(1), "{wrong:?}");
    assert!(String::from_utf8_lossy(&wrong.stdout).contains("WRONG"), "{wrong:?}");
    vm.end();
    let lazy = "memory-backend-ram,id=far0,size=16M,host-mem-type=cxlram";
    let vm = start("lazy", lazy);
    assert_eq!(vm.backend("far0")["verdict"], "untouched");
    vm.end();
    let vm = Machine::start("unused", &[], &["-S", "-object", object, "-m", "32M"]);
    assert_eq!(vm.backend("far0")["verdict"], "unattached");
    vm.end();
}

pub(crate) fn weights_of_three_to_one_apply_within_a_huge_page() {
    let _ = write_weight("auto", "false");
    for (node, weight) in [("node0", "3"), ("node1", "1")] {
        write_weight(node, weight).unwrap();
    }
    let object = |id: &str| {
        format!(
            "memory-backend-ram,id={id},size=96M,prealloc=on,host-mem-type=0-1,host-mem-policy=weighted-interleave"
        )
    };
    let (one, two) = (object("w0"), object("w1"));
    let near = "memory-backend-ram,id=n0,size=32M,host-mem-type=0";
    let words = ["-S", "-m", "224M", "-object", near, "-object", &one, "-object", &two];
    let nodes = ["node,cpus=0,memdev=n0", "node,memdev=w0", "node,memdev=w1"];
    let nodes: Vec<&str> = nodes.iter().flat_map(|node| ["-numa", *node]).collect();
    let vm = Machine::start("weights", &[], &[&words[..], &nodes].concat());
    for id in ["w0", "w1"] {
        let near = vm.mib(id, 0);
        assert!((70..=74).contains(&near), "{near}: {}", vm.backend(id));
        assert_eq!(near + vm.mib(id, 1), 96);
    }
    assert_eq!(vm.backend("w0")["requested"]["policy"], "weighted-interleave");
    assert_eq!(vm.backend("w1")["verdict"], "as_requested", "{}", vm.backend("w1"));
    vm.json(&["verify"]);
    write_weight("node0", "1").unwrap();
    let words = vm.command(&["verify"]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    assert_eq!(
        nearfar(&words).output().unwrap().status.code(),
        Some(1),
        "other weights are others"
    );
    vm.end();
}

/// Huge pages of hugetlbfs, which no tmpfs has, by the preloaded library.
pub(crate) fn huge_pages_have_weights_by_a_preloaded_library() {
    let _ = write_weight("auto", "false");
    for (node, weight) in [("node0", "3"), ("node1", "1")] {
        write_weight(node, weight).unwrap();
        let pool =
            format!("/sys/devices/system/node/{node}/hugepages/hugepages-2048kB/nr_hugepages");
        std::fs::write(pool, "30").unwrap();
    }
    let near = "memory-backend-ram,id=n0,size=32M";
    let weighted = "memory-backend-memfd,hugetlb=on,id=w0,size=64M,prealloc=on,host-mem-type=0-1,\
        host-mem-policy=weighted-interleave";
    let nodes = ["-numa", "node,cpus=0,memdev=n0", "-numa", "node,memdev=w0"];
    let words = ["-S", "-m", "96M", "-object", near, "-object", weighted];
    let words = [&words[..], &nodes].concat();
    let refused = nearfar(&[&["vm", "run", "--", "true"], &words[..]].concat()).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(error(&refused).contains("or use --preload"), "{refused:?}");
    let vm = Machine::start("huge", &["--preload"], &words);
    assert_eq!([vm.mib("w0", 0), vm.mib("w0", 1)], [48, 16], "{}", vm.backend("w0"));
    assert_eq!(vm.backend("w0")["verdict"], "as_requested", "{}", vm.backend("w0"));
    assert_eq!(vm.mib("n0", 1), 0, "{}", vm.backend("n0"));
    vm.json(&["verify"]);
    vm.end();
}

pub(crate) fn an_absent_kind_is_refused_before_qemu_starts() {
    let object = "memory-backend-ram,id=a,size=64M,host-mem-type=hbm";
    let marker = "/tmp/vm-started";
    let script = format!("touch {marker}");
    let words = ["vm", "run", "--", "sh", "-c", &script, "-object", object];
    let output = nearfar(&words).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(error(&output).contains("node 1 (cxl"), "{output:?}");
    assert!(!Path::new(marker).exists());
    let large = "memory-backend-ram,id=a,size=900G,host-mem-type=cxl";
    let output = nearfar(&["vm", "run", "--", "true", "-object", large]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(error(&output).contains("900 GiB"), "{output:?}");
}

pub(crate) fn two_machines_have_their_memory_on_two_cxl_nodes() {
    let object =
        |node: u16| format!("memory-backend-ram,id=far0,size=32M,prealloc=on,host-mem-type={node}");
    let machines = [2, 3].map(|node| {
        let name = format!("vm{node}");
        let object = object(node);
        let machine = ["-m", "32M", "-machine", "pc,memory-backend=far0"];
        (node, Machine::start(&name, &[], &[&["-S", "-object", &object][..], &machine].concat()))
    });
    for (node, vm) in &machines {
        assert_eq!(vm.mib("far0", *node), 32, "{}", vm.backend("far0"));
        assert_eq!(vm.mib("far0", 5 - node), 0);
        vm.json(&["verify"]);
    }
    machines.into_iter().for_each(|(_, vm)| vm.end());
}

pub(crate) fn a_running_machine_moves_to_far_memory_and_back_with_its_contents() {
    const AT: u64 = 64 * MIB;
    const LOADED: u64 = 32 * MIB;
    let pattern = "/tmp/vm-pattern";
    let mut file = std::fs::File::create(pattern).unwrap();
    let (mut state, mut block) = (0x2545_f491_4f6c_dd1d_u64, Vec::with_capacity(1 << 20));
    for _ in 0..LOADED / MIB {
        block.clear();
        while block.len() < 1 << 20 {
            block.extend(crate::tier::random(&mut state).to_le_bytes());
        }
        file.write_all(&block).unwrap();
    }
    drop(file);
    let object = "memory-backend-ram,id=m0,size=256M,prealloc=on,host-mem-type=0";
    let loader = format!("loader,file={pattern},addr={AT:#x},force-raw=on");
    let vm = Machine::start(
        "moving",
        &[],
        &["-m", "256M", "-machine", "q35,memory-backend=m0", "-object", object, "-device", &loader],
    );
    std::fs::remove_file(pattern).unwrap();
    assert_eq!(vm.mib("m0", 0), 256, "{}", vm.backend("m0"));
    let before = vm.checksum(AT, LOADED);
    for (to, policy) in [(1, true), (0, false)] {
        let moved = vm.json(&["move", "--backend", "m0", "--to", &to.to_string()]);
        assert_eq!(moved["left"], 0, "{moved}");
        assert_eq!(moved["after"][to.to_string()].as_u64(), Some(256 * MIB), "{moved}");
        assert_eq!(moved["kernel_policies"], serde_json::json!(["bind:0"]), "{moved}");
        assert_eq!(vm.checksum(AT, LOADED), before);
        let verdict = vm.backend("m0")["verdict"].clone();
        assert_eq!(verdict, if policy { "wrong" } else { "as_requested" });
    }
    for (words, says) in [
        (&["move", "--backend", "none", "--to", "1"][..], "no such backend; there are m0"),
        (&["move", "--backend", "m0", "--to", "7"], "no node 7"),
        (&["resize", "64m", "--tier", "1"], "no virtio-mem device"),
    ] {
        let words = vm.command(words);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let output = nearfar(&words).output().unwrap();
        assert!(!output.status.success() && error(&output).contains(says), "{words:?}: {output:?}");
    }
    vm.end();
}

pub(crate) fn a_whole_machine_moves_and_its_cpuset_rebinds_its_policies() {
    let mount = "/sys/fs/cgroup";
    std::fs::write(format!("{mount}/cgroup.subtree_control"), "+cpuset").unwrap();
    let directory = format!("{mount}/vm");
    std::fs::create_dir(&directory).unwrap();
    let object = "memory-backend-ram,id=m0,size=64M,prealloc=on,host-mem-type=0";
    let words = ["-S", "-m", "64M", "-machine", "q35,memory-backend=m0", "-object", object];
    let vm = Machine::start("rebound", &[], &words);
    let shared = vm.command(&["move", "--all", "--rebind", "--to", "1"]);
    let shared: Vec<&str> = shared.iter().map(String::as_str).collect();
    let output = nearfar(&shared).output().unwrap();
    assert!(error(&output).contains("is not the machine's own"), "{output:?}");
    std::fs::write(format!("{directory}/cgroup.procs"), vm.child.id().to_string()).unwrap();
    let moved = vm.json(&["move", "--all", "--rebind", "--to", "1"]);
    assert!(moved["rebound"].as_str().unwrap().contains("/vm is 1; it was (all)"), "{moved}");
    assert_eq!(vm.mib("m0", 1), 64, "{moved}");
    let policies = vm.backend("m0")["kernel_policies"].clone();
    assert_eq!(policies, serde_json::json!(["bind:1"]), "{moved}");
    vm.end();
    std::fs::remove_dir(&directory).unwrap();
}
