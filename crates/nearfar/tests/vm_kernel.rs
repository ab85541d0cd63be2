//! `nearfar vm` with real kernels as guests. A guest's kernel believes the HMAT that `nearfar vm args` writes: it builds its
//! memory tiers in the host's order, shows the host's figures, as `nearfar topo` does inside, and pages are demoted and
//! promoted inside, by the kernel itself and by `nearfar run --tier`. One with virtio-mem grows and shrinks by `nearfar vm
//! resize`.
//!
//! A real kernel boots under QEMU on the command line that was rewritten for a recorded machine with
//! three kinds of memory; this machine may have one node, on which all backends then are. Without the lab's QEMU, kernels and
//! busybox the test prints SKIPPED.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that can't set itself up should stop"
)]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nearfar_lab::fetch::{Busybox, Cache, Kernel, Qemu, Silent};
use nearfar_lab::image::Archive;
use serde_json::Value;

/// First program of a guest with virtio-mem: loads its driver and stays.
const RESIZED: &str = r#"#!/bin/busybox sh
/bin/busybox unxz /virtio_mem.ko.xz
/bin/busybox insmod /virtio_mem.ko && echo READY
while true; do /bin/busybox sleep 60; done
"#;

/// First program of the guest: prints tiers and figures, also as nearfar sees them, and powers off.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox mkdir -p /sys /proc
/bin/busybox mount -t proc none /proc
/bin/busybox mount -t sysfs none /sys
for tier in /sys/devices/virtual/memory_tiering/memory_tier*; do
  echo "TIER ${tier##*memory_tier} $(/bin/busybox cat $tier/nodelist)"
done
for node in /sys/devices/system/node/node*; do
  from=$node/access0/initiators
  echo "NODE ${node##*node} $(/bin/busybox cat $from/read_latency) $(/bin/busybox cat $from/read_bandwidth)"
done
echo $(/nearfar topo --json)
/bin/busybox poweroff -f
"#;

/// First program of a guest whose kernel tiers: turns its demotion and promotion on and runs a program that needs them.
const TIERS: &str = r#"#!/bin/busybox sh
/bin/busybox mkdir -p /sys /proc
/bin/busybox mount -t proc none /proc
/bin/busybox mount -t sysfs none /sys
echo 1 > /sys/kernel/mm/numa/demotion_enabled
echo 2 > /proc/sys/kernel/numa_balancing
/warm cold=176 hot=48 near=44 seconds=500
/bin/busybox grep -E 'pgpromote_success|pgdemote' /proc/vmstat
/bin/busybox poweroff -f
"#;

/// First program of a guest in which nearfar tiers, while the kernel does not.
const NEARFAR_TIERS: &str = r#"#!/bin/busybox sh
/bin/busybox mkdir -p /sys /proc /tmp /run /var/lib
/bin/busybox mount -t proc none /proc
/bin/busybox mount -t sysfs none /sys
/bin/busybox mount -t devtmpfs none /dev
/bin/busybox mount -t cgroup2 none /sys/fs/cgroup
/nearfar run --tier -- /warm cold=176 hot=48 near=44 seconds=500
echo "LEFT $(/bin/busybox cat /sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds)"
/bin/busybox poweroff -f
"#;

fn nearfar(arguments: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
    let state = concat!(env!("CARGO_TARGET_TMPDIR"), "/vm-kernel-state");
    let output = command.args(arguments).env("NEARFAR_STATE", state).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What a node shows: latency in ns, bandwidth in MB/s.
type Figures = BTreeMap<u64, [u64; 2]>;

/// Nodes of the recorded machine, fastest tier first, and their figures.
fn host(machine: &str) -> (Vec<u64>, Figures) {
    topology(&nearfar(&["topo", "--json", "--sysfs", machine]))
}

/// The same of a topology.
fn topology(topo: &Value) -> (Vec<u64>, Figures) {
    let nodes = topo["nodes"].as_array().unwrap();
    let of = |node: &Value, key: &str| node["access0"][key].as_u64().unwrap();
    let figures = nodes.iter().map(|node| {
        let bandwidth = of(node, "read_bandwidth_bytes_per_second") / 1_000_000;
        (node["id"].as_u64().unwrap(), [of(node, "read_latency_ns"), bandwidth])
    });
    let mut order: Vec<(u64, u64)> = nodes
        .iter()
        .map(|node| (node["tier"].as_u64().unwrap(), node["id"].as_u64().unwrap()))
        .collect();
    order.sort_unstable();
    (order.into_iter().map(|(_, id)| id).collect(), figures.collect())
}

/// The same as printed by the guest.
fn guest(console: &str) -> (Vec<u64>, Figures) {
    let rows = |word: &str| -> Vec<Vec<u64>> {
        let row = |line: &str| {
            let rest = line.trim().strip_prefix(word)?;
            rest.split_whitespace().map(|number| number.parse().ok()).collect::<Option<Vec<u64>>>()
        };
        console.lines().filter_map(row).collect()
    };
    let mut tiers = rows("TIER ");
    tiers.sort_unstable();
    let order = tiers.iter().map(|row| row[1]).collect();
    let figures = rows("NODE ").iter().map(|row| (row[0], [row[1], row[2]])).collect();
    (order, figures)
}

/// A QEMU that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The lab's QEMU, busybox and kernels.
struct Lab {
    cache: Cache,
    qemu: Qemu,
    busybox: Busybox,
}

impl Lab {
    fn find() -> Option<Self> {
        let cache = Cache::from_env().ok().filter(|cache| cache.dir().join("qemu").is_dir());
        let Some(cache) = cache else {
            println!("SKIPPED: the lab's cache has no QEMU");
            return None;
        };
        let qemu = Qemu::cached(&cache, &Silent).unwrap();
        let busybox = Busybox::cached(&cache, &Silent).unwrap();
        Some(Self { cache, qemu, busybox })
    }

    fn kernel(&self, series: &str) -> Kernel {
        Kernel::find(&self.cache, series, &self.busybox, &Silent).unwrap()
    }

    /// An initial file system with busybox, this first program, and files.
    fn initrd(&self, dir: &Path, init: &str, more: &[(&str, &[u8])]) -> PathBuf {
        let mut archive = Archive::default();
        let dirs = ["bin", "dev", "lib", "lib/x86_64-linux-gnu", "lib64"];
        dirs.into_iter().for_each(|name| archive.dir(name));
        archive.file("bin/busybox", 0o755, &std::fs::read(&self.busybox.program).unwrap());
        archive.file("init", 0o755, init.as_bytes());
        more.iter().for_each(|(name, content)| archive.file(name, 0o755, content));
        let path = dir.join("initrd");
        std::fs::write(&path, archive.finish()).unwrap();
        path
    }

    /// The same with nearfar and the libraries it is linked with.
    fn initrd_with_nearfar(&self, dir: &Path, init: &str, more: &[(&str, &[u8])]) -> PathBuf {
        let program = dir.join("nearfar");
        let build = env!("CARGO_BIN_EXE_nearfar");
        let strip = Command::new("strip").arg("-o").arg(&program).arg(build).status();
        assert!(strip.unwrap().success());
        let linked = Command::new("ldd").arg(&program).output().unwrap();
        let linked = String::from_utf8(linked.stdout).unwrap();
        let paths = linked.split_whitespace().filter(|word| word.starts_with('/'));
        let mut files = vec![("nearfar".to_owned(), std::fs::read(&program).unwrap())];
        files.extend(paths.map(|path| (path[1..].to_owned(), std::fs::read(path).unwrap())));
        files.extend(more.iter().map(|(name, content)| ((*name).to_owned(), content.to_vec())));
        let files: Vec<(&str, &[u8])> =
            files.iter().map(|(name, content)| (&**name, &**content)).collect();
        self.initrd(dir, init, &files)
    }

    /// The words that start QEMU without devices, and a kernel with its console on standard output.
    fn line(&self, image: &Path, initrd: &Path, append: &str) -> Vec<String> {
        let words = self.qemu.words().into_iter();
        let mut line: Vec<String> = words.map(|word| word.into_string().unwrap()).collect();
        // Time by instructions: a guest on a busy host takes longer, but not in its own time.
        let fixed = "-accel tcg -icount shift=2,sleep=off -display none -nodefaults -serial stdio -no-reboot -machine q35";
        line.extend(fixed.split(' ').map(str::to_owned));
        let kernel = ["-kernel", image.to_str().unwrap(), "-initrd", initrd.to_str().unwrap()];
        line.extend(kernel.map(str::to_owned));
        line.extend(["-append".to_owned(), format!("console=ttyS0 quiet panic=-1 {append}")]);
        line
    }

    fn command(&self, argv: &[String]) -> Command {
        let mut command = Command::new(&argv[0]);
        command.args(&argv[1..]).stdin(Stdio::null());
        command.envs(self.qemu.env.iter().map(|(name, value)| (name, value)));
        command
    }
}

#[test]
fn a_guest_with_virtio_mem_grows_and_shrinks() {
    let Some(lab) = Lab::find() else { return };
    let dir = tempfile::tempdir().unwrap();
    let kernel = lab.kernel("7.2");
    let module = kernel.modules.join("kernel/drivers/virtio/virtio_mem.ko.xz");
    let module = std::fs::read(module).unwrap();
    let files = [("virtio_mem.ko.xz", &module[..])];
    let initrd = lab.initrd(dir.path(), RESIZED, &files);
    let mut line = lab.line(&kernel.image, &initrd, "memhp_default_state=online_movable");
    let socket = dir.path().join("qmp");
    let monitor = format!("unix:{},server=on,wait=off", socket.display());
    for (option, value) in [
        ("-m", "256M,slots=2,maxmem=2G"),
        ("-qmp", &monitor),
        ("-object", "memory-backend-ram,id=v0,size=1G,reserve=off,host-nodes=0,policy=bind"),
        ("-device", "virtio-mem-pci,id=vmem0,memdev=v0,requested-size=0"),
    ] {
        line.extend([option.to_owned(), value.to_owned()]);
    }
    let mut guest = Running(lab.command(&line).stdout(Stdio::piped()).spawn().unwrap());
    let console = BufReader::new(guest.0.stdout.take().unwrap());
    let is_up = console.lines().any(|line| line.unwrap().contains("READY"));
    assert!(is_up, "the guest has not come up");
    let socket = socket.to_str().unwrap();
    let resized = |size: &str, by: &[&str]| {
        nearfar(&[&["vm", "resize", socket, size, "--wait", "120", "--json"][..], by].concat())
    };
    for (size, by, bytes) in
        [("256m", ["--tier", "0"], 256_u64 << 20), ("128m", ["--device", "vmem0"], 128 << 20)]
    {
        assert_eq!(resized(size, &by)["size"].as_u64(), Some(bytes));
    }
}

#[test]
fn a_guest_kernel_builds_tiers_in_the_hosts_order_with_its_figures() {
    let machine = &machine("lab-hbm-dram-cxl");
    let Some(lab) = Lab::find() else { return };
    let dir = tempfile::tempdir().unwrap();
    let initrd = lab.initrd_with_nearfar(dir.path(), INIT, &[]);
    let (order, figures) = host(machine);
    assert_eq!(order, [1, 0, 2], "HBM is faster than DRAM, CXL slower");
    for series in ["6.12", "7.2"] {
        let nodes = [("512M", "dram"), ("96M", "hbm"), ("96M", "cxl")];
        let console = boot(machine, &lab, &lab.kernel(series).image, &initrd, &nodes);
        let topo = topology(&document(&console));
        for (seen_by, (tiers, shown)) in [("kernel", guest(&console)), ("topo", topo)] {
            assert_eq!(tiers, order, "{series}, {seen_by}: {console}");
            let figures = figures.iter().flat_map(|(node, of)| shown[node].iter().zip(of));
            for (found, expected) in figures {
                let off = found.abs_diff(*expected) * 100;
                assert!(off <= expected * 5, "{series}, {seen_by}: {found}, {expected}: {console}");
            }
        }
    }
}

#[test]
fn a_guest_kernel_tiers_by_the_hmat_it_was_given() {
    let Some(lab) = Lab::find() else { return };
    let dir = tempfile::tempdir().unwrap();
    let initrd = lab.initrd(dir.path(), TIERS, &[("warm", &warm(dir.path()))]);
    let nodes = [("256M", "dram"), ("256M", "cxl")];
    let console = boot(&machine("lab-cxl-2tier"), &lab, &lab.kernel("6.12").image, &initrd, &nodes);
    hot_memory_came_near(&console);
    let counter = |name: &str| -> u64 {
        let row = console.lines().find_map(|line| line.strip_prefix(name));
        row.unwrap_or_else(|| panic!("{console}")).trim().parse().unwrap()
    };
    assert!(counter("pgpromote_success ") >= 1024, "{console}");
    assert!(counter("pgdemote_kswapd ") + counter("pgdemote_direct ") >= 1024, "{console}");
}

#[test]
fn nearfar_tiers_in_a_guest_as_on_a_real_machine() {
    let Some(lab) = Lab::find() else { return };
    let dir = tempfile::tempdir().unwrap();
    let files = [("warm", &*warm(dir.path()))];
    let initrd = lab.initrd_with_nearfar(dir.path(), NEARFAR_TIERS, &files);
    let nodes = [("320M", "dram"), ("256M", "cxl")];
    let machine = machine("lab-cxl-2tier");
    for series in ["6.12", "7.2"] {
        let console = boot(&machine, &lab, &lab.kernel(series).image, &initrd, &nodes);
        hot_memory_came_near(&console);
        assert!(console.lines().any(|line| line.trim() == "LEFT 0"), "{console}");
    }
}

/// The program that needs tiering.
fn warm(dir: &Path) -> Vec<u8> {
    let program = dir.join("warm");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/programs/warm.c");
    let cc = Command::new("cc").args(["-O2", "-static", "-o"]).arg(&program).arg(source).status();
    assert!(cc.unwrap().success());
    std::fs::read(program).unwrap()
}

/// Cold memory was there first, so hot memory was far at first.
fn hot_memory_came_near(console: &str) {
    let found = document(console);
    let near = |when: &str| found[when][0].as_u64().unwrap();
    println!("{console}");
    assert!(near("before_mib") <= 40, "{console}");
    assert!(near("after_mib") >= 44, "{console}");
}

/// The document in the console's output.
fn document(console: &str) -> Value {
    let line = console.lines().find(|line| line.starts_with('{')).ok_or(console).unwrap();
    serde_json::from_str(line).unwrap()
}

/// A recorded machine.
fn machine(name: &str) -> String {
    format!("{}/../../fixtures/machines/{name}.tree", env!("CARGO_MANIFEST_DIR"))
}

/// The console of a guest with a node for each node of the machine, of these sizes and kinds.
fn boot(machine: &str, lab: &Lab, image: &Path, initrd: &Path, nodes: &[(&str, &str)]) -> String {
    let mut line = lab.line(image, initrd, "");
    let total: u64 =
        nodes.iter().map(|(size, _)| size.trim_end_matches('M').parse::<u64>().unwrap()).sum();
    line.extend(["-m".to_owned(), format!("{total}M")]);
    for (id, (size, kind)) in nodes.iter().enumerate() {
        let object = format!("memory-backend-ram,id=m{id},size={size},host-mem-type={kind}");
        let cpus = if id == 0 { ",cpus=0" } else { "" };
        let node = format!("node,nodeid={id}{cpus},memdev=m{id}");
        line.extend(["-object".to_owned(), object, "-numa".to_owned(), node]);
    }
    let words: Vec<&str> = line.iter().map(String::as_str).collect();
    let document =
        nearfar(&[&["vm", "args", "--json", "--sysfs", machine, "--"], &words[..]].concat());
    let argv: Vec<String> = serde_json::from_value(document["argv"].clone()).unwrap();
    let here = |word: &String| {
        word.replace("host-nodes=1", "host-nodes=0").replace("host-nodes=2", "host-nodes=0")
    };
    let argv: Vec<String> = argv.iter().map(here).collect();
    let argv = [&["timeout".to_owned(), "3600".to_owned()][..], &argv].concat();
    let output = lab.command(&argv).output().unwrap();
    assert!(output.status.success(), "{argv:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
