//! Checks that every report with times names the timing method. (`make bench-lab` checks its accuracy.)

use serde_json::Value;

use crate::lab::{Ended, LAB, sh, text};

/// Runs with statistics; without the plugin there are none, and the test checks the message instead.
fn statistics(options: &str, script: &str) -> (Ended, Value) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("stats.json");
    let ended = sh(&format!("{options} --stats {}", text(&file)), script);
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    (ended, serde_json::from_str(&text).unwrap_or_default())
}

fn has_plugin() -> bool {
    let beside = std::path::Path::new(LAB).with_file_name("libnearfar_lab_plugin.so");
    std::env::var_os("NEARFAR_LAB_PLUGIN").is_some() || beside.exists()
}

pub(crate) fn statistics_name_the_method_and_count_per_node() {
    // The command writes 16 MiB of memory, which are 262,144 lines: twice the last-level cache.
    let script =
        "echo $NEARFAR_LAB_TIMING $NEARFAR_LAB_SLOW_MOTION; head -c 16M /dev/zero > /dev/shm/lines";
    let (ended, stats) = statistics("--timing auto --cpus 2", script);
    assert_eq!(ended.status, 0, "{ended:?}");
    let method = stats["clock"].as_str().unwrap();
    let slow_motion = stats["slow_motion"].as_f64().unwrap();
    assert_eq!(ended.out, format!("{method} {slow_motion}\n"), "{ended:?}");
    assert_eq!(stats["schema"], "nearfar.labstats/1");
    assert_eq!((&stats["machine"], &stats["emulated"]), (&"cxl-2tier".into(), &true.into()));
    if has_plugin() {
        assert_eq!(method, "virtual", "Debian's QEMU lets guest clocks show modelled time");
        assert!(stats["nodes"][0]["reads"].as_u64().unwrap() > 262_144, "{stats}");
        assert!(stats["nodes"][0]["writes"].as_u64().unwrap() > 131_072, "{stats}");
    } else {
        assert_eq!(method, "off");
        assert!(ended.err.contains("timing off: no libnearfar_lab_plugin.so"), "{ended:?}");
    }
}

pub(crate) fn real_waits_scale_the_latencies_in_the_hmat() {
    let script = "cat /sys/devices/system/node/node1/access0/initiators/read_latency; \
                  echo $NEARFAR_LAB_TIMING $NEARFAR_LAB_SLOW_MOTION";
    let (ended, stats) = statistics("--timing wait --cpus 1 --boot-timeout 600", script);
    if has_plugin() {
        // 250 ns, 40 times slower.
        assert_eq!((ended.status, ended.out.as_str()), (0, "10000\nwait 40\n"), "{ended:?}");
        assert_eq!(stats["clock"], "wait");
    } else {
        assert_eq!(ended.status, 125);
        assert!(ended.err.contains("timing wait: no libnearfar_lab_plugin.so"), "{ended:?}");
    }
}
