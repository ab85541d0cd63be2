//! Sensors of memory traffic on real kernels: they report the known accesses of a program, and all settings are
//! restored.

use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::inside::{BALANCING, HOLD, HUGE, await_up, done, nearfar, unprivileged};

fn balancing() -> String {
    std::fs::read_to_string(BALANCING).unwrap().trim().to_owned()
}

/// A program on one CPU that reads the first half of 16 MiB of a node and writes the second, repeatedly. NUMA balancing
/// scans its memory but does not migrate it.
fn reader(cpu: u32, node: u16) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(HOLD, format!("halves {cpu} {node}"));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    await_up(&mut child);
    child
}

fn end(mut child: Child) {
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

fn sense(arguments: &[&str]) -> Value {
    serde_json::from_str(&done(&[&["sense", "--json"], arguments].concat())).unwrap()
}

fn cells(table: &Value) -> Vec<Vec<u64>> {
    let row =
        |row: &Value| row.as_array().unwrap().iter().map(|cell| cell.as_u64().unwrap()).collect();
    table.as_array().unwrap().iter().map(row).collect()
}

/// The readings of hint faults for a program, once they cover this many pages or after ten attempts.
fn faults(pid: &str, pages: u64) -> Value {
    let look = || sense(&["--sensor", "hint-faults", "--pid", pid, "--duration", "5s"]);
    let enough = |report: &Value| {
        report["sensors"][0]["reading"]["samples"]["pages"].as_u64() >= Some(pages)
    };
    let mut report = look();
    for _ in 0..9 {
        if enough(&report) {
            break;
        }
        report = look();
    }
    report
}

pub(crate) fn hint_faults_show_a_programs_pages_nodes_and_writes_and_are_restored() {
    std::fs::write(BALANCING, "0").unwrap();
    std::fs::write(HUGE, "never").unwrap();
    let child = reader(0, 1);
    let report = faults(&child.id().to_string(), 3_500);
    end(child);
    assert_eq!(balancing(), "0");
    let sensor = &report["sensors"][0];
    assert_eq!(sensor["usable"], true, "{report}");
    assert_eq!(sensor["sees"]["writes"], true, "{report}");
    let samples = &sensor["reading"]["samples"];
    let by = cells(&samples["by"]);
    let all: u64 = by.iter().flatten().sum();
    assert!(samples["pages"].as_u64().unwrap() >= 3_500, "of 4,096 that it uses: {samples}");
    assert!(by[0][1] * 100 >= all * 99, "CPU 0 is of node 0, and the memory is on 1: {samples}");
    let writes = samples["writes"].as_u64().unwrap();
    assert!((40..=60).contains(&(writes * 100 / all)), "half of it is written: {samples}");
    assert_eq!(samples["seen"].as_u64(), Some(all), "{samples}");
    assert_eq!(samples["lost"], 0, "{samples}");
    assert_eq!(samples["huge"], 0, "{samples}");
    // And from huge pages, each of which is one fault.
    std::fs::write(HUGE, "always").unwrap();
    let child = reader(0, 1);
    let report = faults(&child.id().to_string(), 5);
    end(child);
    let samples = &report["sensors"][0]["reading"]["samples"];
    assert!(samples["huge"].as_u64().unwrap() >= 5, "of some 8 that it uses: {samples}");
    assert_eq!(balancing(), "0");
}

/// Lines that the model counts by node, and its samples, which are of the program's own pages.
pub(crate) fn the_labs_pmu_counts_a_programs_lines_and_pages_and_is_marked_emulated() {
    let child = reader(0, 1);
    let pid = child.id().to_string();
    let report = sense(&["--sensor", "lab", "--pid", &pid, "--duration", "1s"]);
    end(child);
    let sensor = &report["sensors"][0];
    assert_eq!(sensor["usable"], true, "{report}");
    assert_eq!(sensor["sees"]["nature"], "emulated", "{report}");
    let reading = &sensor["reading"];
    let accesses = cells(&reading["accesses"]);
    let all: u64 = accesses.iter().flatten().sum();
    assert!(all > 100_000 && accesses[0][1] * 10 >= all * 9, "its memory is on 1: {reading}");
    // Each line of the second half is read before it is written, and written back: a third of all.
    let writes = reading["writes"].as_u64().unwrap();
    assert!((25..=40).contains(&(writes * 100 / all)), "{reading}");
    let samples = &reading["samples"];
    let by = cells(&samples["by"]);
    let seen: u64 = by.iter().flatten().sum();
    assert!(seen >= 20 && by[0][1] * 100 >= seen * 95, "its own pages alone, on 1: {samples}");
    let expected = reading["reads"].as_u64().unwrap() / samples["per_sample"].as_u64().unwrap();
    assert!(seen * 2 >= expected && seen <= expected * 2, "one in as many as it says: {reading}");
    let written = samples["writes"].as_u64().unwrap() * 100 / seen;
    assert!((25..=75).contains(&written), "half of what misses is stores: {samples}");
}

/// Load latencies differ between the nodes as the machine file says (the loop's own cost depends on how it was
/// compiled), and are the same each time.
pub(crate) fn the_measured_latency_of_both_nodes_is_the_machines_and_repeatable() {
    let at = || {
        let report = sense(&["--sensor", "latency", "--duration", "1s"]);
        let sensor = &report["sensors"][0];
        assert_eq!(sensor["usable"], true, "{report}");
        let elapsed = sensor["reading"]["elapsed_ns"].as_u64().unwrap();
        let cpu = sensor["cpu_ns"].as_u64().unwrap();
        assert!(cpu * 1000 <= elapsed * 2, "a thousandth of a CPU, and a look too many: {report}");
        let rows = sensor["reading"]["latency_ns"].as_array().unwrap().clone();
        [rows[0][0].as_u64().unwrap(), rows[0][1].as_u64().unwrap()]
    };
    let (first, second) = (at(), at());
    for found in [first, second] {
        let apart = found[1].saturating_sub(found[0]);
        assert!((120..=150).contains(&apart), "250 less 116 ns: {first:?} {second:?}");
    }
    for (one, other) in first.into_iter().zip(second) {
        assert!(one.abs_diff(other) * 20 <= one, "within 5 %: {first:?} {second:?}");
    }
}

pub(crate) fn damon_measures_a_programs_used_memory_and_is_restored() {
    let child = reader(0, 0);
    let pid = child.id().to_string();
    let report = sense(&["--sensor", "damon", "--pid", &pid, "--duration", "5s"]);
    end(child);
    let sensor = &report["sensors"][0];
    assert_eq!(sensor["usable"], true, "{report}");
    assert_eq!(sensor["sees"]["addresses"], "regions", "{report}");
    let reading = &sensor["reading"];
    let used = reading["used_region_bytes"].as_u64().unwrap();
    assert!(used >= 4 << 20 && used <= reading["region_bytes"].as_u64().unwrap(), "{reading}");
    assert!(reading["regions"].as_u64().unwrap() >= 3, "{reading}");
    let left = std::fs::read_to_string("/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds");
    assert_eq!(left.unwrap().trim(), "0");
}

pub(crate) fn settings_of_a_killed_sensor_are_restored_by_the_next() {
    std::fs::write(BALANCING, "0").unwrap();
    let long = ["sense", "--sensor", "hint-faults", "--duration", "1h"];
    let mut killed = nearfar(&long).stdout(Stdio::null()).spawn().unwrap();
    // The assertions below fail by themselves if half a minute was too short.
    for _ in 0..300 {
        if balancing() == "1" {
            break;
        }
        Command::new("sleep").arg("0.1").status().unwrap();
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!(balancing(), "1");
    sense(&["--sensor", "hint-faults", "--duration", "100ms"]);
    assert_eq!(balancing(), "0");
    let mut ended = nearfar(&long).stdout(Stdio::null()).spawn().unwrap();
    for _ in 0..300 {
        if balancing() == "1" {
            break;
        }
        Command::new("sleep").arg("0.1").status().unwrap();
    }
    let pid = rustix::process::Pid::from_child(&ended);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert!(ended.wait().unwrap().success());
    assert_eq!(balancing(), "0", "ended by a signal, it has put it back itself");
}

pub(crate) fn doctor_lists_usable_sensors_and_the_reason_for_others() {
    let report: Value = serde_json::from_str(&done(&["doctor", "--json"])).unwrap();
    let sensors = report["sensors"].as_array().unwrap();
    let of = |name: &str| sensors.iter().find(|sensor| sensor["name"] == name).unwrap();
    assert_eq!(of("hint-faults")["usable"], true, "{sensors:?}");
    assert_eq!(of("latency")["usable"], true, "{sensors:?}");
    for hardware in ["ibs", "pebs", "spe", "controllers", "cxl-pmu"] {
        let sensor = of(hardware);
        assert_eq!(
            (&sensor["usable"], &sensor["why"]),
            (&false.into(), &"absent".into()),
            "{sensor}"
        );
        assert!(sensor["found"].as_str().unwrap().contains("PMU"), "{sensor}");
    }
    assert_eq!(of("lab")["why"], "absent", "this guest's memory is not timed");
    let stat = std::fs::read_to_string("/sys/module/damon_stat/parameters/enabled");
    if stat.is_ok_and(|on| on.trim() == "Y") {
        assert_eq!(of("damon")["why"], "taken", "{sensors:?}");
        assert!(of("damon")["found"].as_str().unwrap().contains("damon_stat"), "{sensors:?}");
    } else {
        assert_eq!(of("damon")["usable"], true, "{sensors:?}");
    }
    let output = unprivileged(&["doctor", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let sensors = report["sensors"].as_array().unwrap();
    let of = |name: &str| sensors.iter().find(|sensor| sensor["name"] == name).unwrap();
    let faults = of("hint-faults");
    assert_eq!(faults["why"], "forbidden", "{faults}");
    assert!(faults["found"].as_str().unwrap().contains("perf_event_paranoid"), "{faults}");
    assert!(faults["next"].as_str().unwrap().contains("CAP_PERFMON"), "{faults}");
}
