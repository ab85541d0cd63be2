//! Checks that the guest's kernel sees the machine of the machine file.

use nearfar_lab::machine::{Machine, Range, catalog};

use crate::lab::{Ended, sh};

/// The kernel's view of the machine, read in one boot.
const SCRIPT: &str = "
dmesg | grep 'SRAT: Node' | sed 's/.*SRAT/SRAT/'
cd /sys/devices/system/node
for n in node[0-9]*; do
    echo $n cpus $(cat $n/cpulist)
    echo $n distance $(cat $n/distance)
    for a in read_latency read_bandwidth write_bandwidth; do
        echo $n $a $(cat $n/access0/initiators/$a 2>/dev/null)
    done
done
for t in /sys/devices/virtual/memory_tiering/memory_tier*; do echo tier ${t##*tier} $(cat $t/nodelist); done
";

fn seen(options: &str) -> String {
    let Ended { status, out, err } = sh(options, SCRIPT);
    assert_eq!(status, 0, "{err}");
    out
}

/// The number of threads that limit translations, after killing every process that can be killed.
fn forgetting(options: &str) -> String {
    let script = "kill -KILL -1; cat /proc/1/task/*/comm | grep -c ^forget/";
    sh(options, script).out
}

pub(crate) fn translations_expire_on_every_cpu_even_if_the_command_kills_all_processes() {
    // The last CPU is isolated: only threads that request it run there.
    assert_eq!(forgetting("--cpus 3 --append isolcpus=2"), "3\n");
}

pub(crate) fn translations_do_not_expire_if_the_machine_file_disables_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keeps.toml");
    let text = catalog::FILES[0].1.replacen("slow_motion", "translations_ms = 0\nslow_motion", 1);
    std::fs::write(&file, text).unwrap();
    assert_eq!(forgetting(&format!("-M {} --cpus 3", file.display())), "0\n");
}

fn has(seen: &str, line: &str) {
    assert!(seen.lines().any(|own| own == line), "no line `{line}` in:\n{seen}");
}

/// Ranges of the SRAT as the kernel prints them: `SRAT: Node 0 PXM 0 [mem 0x00100000-0x7fffffff]`. The first megabyte
/// has a hole for firmware, which is not in the machine file.
fn srat(seen: &str) -> Vec<Range> {
    let mut ranges: Vec<Range> = Vec::new();
    for line in seen.lines().filter_map(|line| line.strip_prefix("SRAT: Node ")) {
        let node = line.split(' ').next().unwrap().parse().unwrap();
        let span = line.rsplit("[mem ").next().unwrap().trim_end_matches(']');
        let (first, last) = span.split_once('-').unwrap();
        let number = |hex: &str| u64::from_str_radix(hex.trim_start_matches("0x"), 16).unwrap();
        let range = Range { start: number(first), end: number(last) + 1, node };
        match ranges.last_mut() {
            Some(before)
                if before.node == node && (before.end == range.start || range.start == 1 << 20) =>
            {
                before.end = range.end;
            }
            _ => ranges.push(range),
        }
    }
    ranges
}

fn agrees(seen: &str, machine: &Machine) {
    assert_eq!(srat(seen), machine.ranges(), "{seen}");
    for from in 0..u16::try_from(machine.nodes.len()).unwrap() {
        let nodes = 0..u16::try_from(machine.nodes.len()).unwrap();
        let distances: Vec<String> =
            nodes.map(|to| machine.distance(from, to).to_string()).collect();
        has(seen, &format!("node{from} distance {}", distances.join(" ")));
        let node = &machine.nodes[usize::from(from)];
        has(seen, &format!("node{from} read_latency {}", machine.latency_nearest(from).round()));
        has(seen, &format!("node{from} read_bandwidth {}", (node.read_gbps * 1000.0).round()));
        has(seen, &format!("node{from} write_bandwidth {}", (node.write_gbps * 1000.0).round()));
    }
}

pub(crate) fn the_default_machine_matches_its_file() {
    let seen = seen("-M cxl-2tier");
    agrees(&seen, &catalog::built_in("cxl-2tier").unwrap());
    has(&seen, "node0 cpus 0-5");
    has(&seen, "node1 cpus");
    has(&seen, "tier 4 0");
}

pub(crate) fn the_default_machine_matches_its_file_on_the_newer_kernel() {
    let seen = seen("-K 7.2 -M cxl-2tier");
    agrees(&seen, &catalog::built_in("cxl-2tier").unwrap());
    has(&seen, "tier 4 0");
}

pub(crate) fn the_three_tier_machine_matches_its_file() {
    let seen = seen("-M hbm-dram-cxl --cpus 2");
    agrees(&seen, &catalog::built_in("hbm-dram-cxl").unwrap());
    let tier_of = |node: &str| {
        let line =
            seen.lines().find(|line| line.starts_with("tier ") && line.ends_with(node)).unwrap();
        line.split(' ').nth(1).unwrap().parse::<u32>().unwrap()
    };
    assert!(tier_of(" 1") < tier_of(" 0") && tier_of(" 0") < tier_of(" 2"), "{seen}");
}

pub(crate) fn the_four_socket_machine_matches_its_file() {
    let seen = seen("-M numa-4node");
    agrees(&seen, &catalog::built_in("numa-4node").unwrap());
    has(&seen, "node2 cpus 2");
}

fn cxl_device(options: &str) {
    let script = "cd /sys/bus/cxl/devices; cat region0/commit mem0/serial \
                  region0/dax_region0/dax0.0/target_node /sys/devices/system/node/has_memory";
    let ended = sh(options, script);
    assert_eq!(ended.out, "1\n0xc0ffee01\n1\n0-1\n", "{ended:?}");
}

pub(crate) fn a_cxl_device_is_onlined_by_its_driver() {
    cxl_device("-M cxl-device");
}

pub(crate) fn a_cxl_device_is_onlined_on_the_newer_kernel() {
    cxl_device("-K 7.2 -M cxl-device");
}
