//! The kernel's weights: the assumptions of the unit tests' fake kernel hold on real ones, and weights can be set.

use serde_json::Value;

use crate::inside::{done, error, nearfar, unprivileged, weight, weights, write_weight};

pub(crate) fn writing_a_weight_disables_automatic_ones_and_auto_enables_them() {
    assert_eq!(weight("auto"), "true");
    let automatic = weights();
    write_weight("node1", "9").unwrap();
    assert_eq!((weight("node1").as_str(), weight("auto").as_str()), ("9", "false"));
    write_weight("auto", "true").unwrap();
    assert_eq!(weights(), automatic);
    write_weight("auto", "false").unwrap();
    assert_eq!(weights().replace("false", "true"), automatic, "turning it off changes no weight");
}

pub(crate) fn the_kernel_refuses_invalid_weights() {
    let before = weights();
    for text in ["256", "-1", "x"] {
        let errno = write_weight("node1", text).unwrap_err().raw_os_error();
        assert_eq!(errno, Some(rustix::io::Errno::INVAL.raw_os_error()), "{text}");
    }
    assert_eq!(weights(), before);
    // Kernels with automatic weights refuse 0 as well; those before them take it for 1.
    write_weight("node1", "5").unwrap();
    let zero = write_weight("node1", "0");
    let reads = weight("node1");
    match std::fs::exists("/sys/kernel/mm/mempolicy/weighted_interleave/auto") {
        Ok(true) => assert_eq!((zero.is_err(), reads.as_str()), (true, "5")),
        _ => assert_eq!((zero.is_err(), reads.as_str()), (false, "1")),
    }
}

pub(crate) fn applied_weights_are_in_force_and_restore_undoes_them() {
    let before = weights();
    // Something no machine's bandwidths give.
    let file = "/tmp/bandwidths.json";
    let text = r#"{"schema":"nearfar.bandwidth/1","nodes":[{"id":0,"read_bytes_per_second":7000000000},
        {"id":1,"read_bytes_per_second":3000000000}]}"#;
    std::fs::write(file, text).unwrap();
    let json = done(&["weights", "--json", "--apply", "--nodes", "0-1", "--from", file]);
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(report["chosen"]["weights"], serde_json::json!([5, 2]));
    assert_eq!((weight("node0").as_str(), weight("node1").as_str()), ("5", "2"));
    done(&["weights", "--restore"]);
    assert_eq!(weights(), before);
    assert_eq!(done(&["weights", "--restore"]), "nothing to restore\n");
}

pub(crate) fn without_root_nothing_is_set_and_the_capability_is_named() {
    let before = weights();
    let output = unprivileged(&["weights", "--apply"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(error(&output).contains("CAP_DAC_OVERRIDE"), "{output:?}");
    assert_eq!(weights(), before);
    // Looking needs no privilege.
    assert!(unprivileged(&["weights"]).status.success());
    assert!(nearfar(&["weights"]).output().unwrap().status.success());
}
