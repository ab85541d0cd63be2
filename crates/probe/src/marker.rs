//! Detects the lab: the lab sets variables in the environment of the command it runs.
//!
//! `NEARFAR_LAB` is the machine file's name, `NEARFAR_LAB_TIMING` the timing method (`virtual`, `wait` or `off`),
//! `NEARFAR_LAB_SLOW_MOTION` the slow-motion factor of the guest relative to the machine (1 if absent),
//! `NEARFAR_LAB_LLC_KIB` the modelled last-level cache where it differs from the one in the guest's sysfs. An invalid
//! value is an error and never taken for "a real machine": no emulated result may be called measured.

use std::ffi::OsString;

use crate::report::Lab;

/// The lab's description of this machine; `None` outside the lab.
///
/// # Errors
/// The name of the invalid variable, in one line.
pub fn read() -> Result<Option<Lab>, String> {
    from(|name| std::env::var_os(name))
}

fn from(get: impl Fn(&str) -> Option<OsString>) -> Result<Option<Lab>, String> {
    let text = |name| get(name).map(|value: OsString| value.to_string_lossy().into_owned());
    let Some(machine) = text("NEARFAR_LAB") else { return Ok(None) };
    let bad = |name: &str, value: String, wanted: &str| {
        format!(
            "{name} is `{value}`, not {wanted}: this is a guest of the lab, but its machine can't be told"
        )
    };
    let slow_motion = match text("NEARFAR_LAB_SLOW_MOTION") {
        None => 1.0,
        Some(value) => match value.parse() {
            Ok(factor) if (1.0..=1e6).contains(&factor) => factor,
            _ => return Err(bad("NEARFAR_LAB_SLOW_MOTION", value, "a number from 1 to 1000000")),
        },
    };
    let llc_kib = match text("NEARFAR_LAB_LLC_KIB") {
        None => None,
        Some(value) => match value.parse() {
            Ok(kib @ 1..=0x4000_0000) => Some(kib),
            _ => return Err(bad("NEARFAR_LAB_LLC_KIB", value, "a number of KiB")),
        },
    };
    let clock = text("NEARFAR_LAB_TIMING").unwrap_or_else(|| "unknown".into());
    Ok(Some(Lab { machine, clock, slow_motion, llc_kib }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(vars: &[(&str, &str)]) -> Result<Option<Lab>, String> {
        from(|name| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn without_the_lab_variable_no_lab_is_detected() {
        assert_eq!(
            with(&[("NEARFAR_LAB_TIMING", "virtual"), ("NEARFAR_LAB_LLC_KIB", "x")]),
            Ok(None)
        );
    }

    #[test]
    fn lab_variables_override_the_defaults() {
        let lab =
            Lab { machine: "m".into(), clock: "unknown".into(), slow_motion: 1.0, llc_kib: None };
        assert_eq!(with(&[("NEARFAR_LAB", "m")]), Ok(Some(lab)));
        let all = [
            ("NEARFAR_LAB", "cxl-2tier"),
            ("NEARFAR_LAB_TIMING", "wait"),
            ("NEARFAR_LAB_SLOW_MOTION", "25.5"),
            ("NEARFAR_LAB_LLC_KIB", "4096"),
        ];
        let lab = with(&all).unwrap().unwrap();
        assert_eq!((lab.clock.as_str(), lab.slow_motion, lab.llc_kib), ("wait", 25.5, Some(4096)));
    }

    #[test]
    fn an_invalid_lab_variable_is_an_error() {
        for (name, value) in [
            ("NEARFAR_LAB_SLOW_MOTION", "0.5"),
            ("NEARFAR_LAB_SLOW_MOTION", "NaN"),
            ("NEARFAR_LAB_SLOW_MOTION", ""),
            ("NEARFAR_LAB_LLC_KIB", "0"),
            ("NEARFAR_LAB_LLC_KIB", "-1"),
        ] {
            let error = with(&[("NEARFAR_LAB", "m"), (name, value)]).unwrap_err();
            assert!(error.contains(name) && error.contains("guest of the lab"), "{error}");
        }
    }
}
