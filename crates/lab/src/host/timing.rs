//! Chooses the timing method of a run: from the requested method and the abilities of this QEMU; the result is named in
//! every report.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nearfar_timing::config::{Clock, KERNEL_PARAMETERS};

use super::files::{RunFiles, escaped};
use super::vm::Vm;
use super::{Plan, RunError};
use crate::clock::{self, Deadline};
use crate::fetch::{Kernel, Qemu, Say};

/// The plugin's file name.
const PLUGIN: &str = "libnearfar_lab_plugin.so";

/// The requested timing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Timing {
    /// Modelled time where the emulator allows it, else real waits; none, with a warning, without the plugin
    #[default]
    Auto,
    /// Guest clocks show modelled time
    Virtual,
    /// Real waits: the machine runs in slow motion
    Wait,
    /// Memory is as fast as the emulator is, near and far alike
    Off,
}

impl fmt::Display for Timing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Auto => "auto",
            Self::Virtual => "virtual",
            Self::Wait => "wait",
            Self::Off => "off",
        })
    }
}

/// The timing method in force.
#[derive(Clone, Debug, PartialEq)]
pub enum Method {
    /// Guest clocks show modelled time.
    Virtual {
        /// The plugin.
        plugin: PathBuf,
    },
    /// Real waits.
    Wait {
        /// The plugin.
        plugin: PathBuf,
        /// Slow-motion factor relative to the real machine.
        slow_motion: f64,
    },
    /// No timing model.
    Off,
}

impl Method {
    /// Its name in reports.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Virtual { .. } => "virtual",
            Self::Wait { .. } => "wait",
            Self::Off => "off",
        }
    }

    /// Slow-motion factor of times in the guest.
    #[must_use]
    pub fn slow_motion(&self) -> f64 {
        match self {
            Self::Wait { slow_motion, .. } => *slow_motion,
            Self::Virtual { .. } | Self::Off => 1.0,
        }
    }

    /// Converts a time of the machine to the guest's clock.
    pub(super) fn guest_ms(&self, machine_ms: u32) -> u64 {
        let time = Duration::from_millis(machine_ms.into()).mul_f64(self.slow_motion());
        u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
    }

    pub(super) fn plugin(&self) -> Option<&Path> {
        match self {
            Self::Virtual { plugin } | Self::Wait { plugin, .. } => Some(plugin),
            Self::Off => None,
        }
    }

    /// Kernel parameters for the method. Where the rate of the time-stamp counter is known, they also give the
    /// delay-loop calibration, which each CPU would otherwise measure by spinning.
    pub(super) fn kernel_parameters(&self, kernel: &Kernel) -> String {
        match (self, kernel.hz) {
            (Self::Virtual { .. }, Some(hz)) => {
                format!("{KERNEL_PARAMETERS} lpj={}", 1_000_000_000 / hz)
            }
            (Self::Virtual { .. }, None) => KERNEL_PARAMETERS.to_owned(),
            (Self::Wait { .. } | Self::Off, _) => String::new(),
        }
    }
}

/// Decides the method, writes the plugin's settings, and reports an unexpected choice.
pub(super) fn settle(
    plan: &Plan,
    qemu: &Qemu,
    files: &RunFiles,
    say: &dyn Say,
) -> Result<Method, RunError> {
    if plan.timing == Timing::Off {
        return Ok(Method::Off);
    }
    let plugin = match find_plugin() {
        Ok(plugin) => plugin,
        Err(found) if plan.timing == Timing::Auto => {
            say.line(&format!(
                "timing off: {found}; far memory is as fast as near memory in this guest"
            ));
            return Ok(Method::Off);
        }
        Err(found) => return Err(RunError::Timing { asked: plan.timing, found }),
    };
    let slow_motion = plan.machine.slow_motion;
    let clock = match plan.timing {
        Timing::Virtual => Clock::Virtual,
        Timing::Wait => Clock::Wait { slow_motion },
        Timing::Auto | Timing::Off => Clock::Auto { fallback_slow_motion: slow_motion },
    };
    let mut config = crate::machine::timing::config(&plan.machine, clock, Some(files.statistics()));
    config.stats_every_ms = plan.stats_every_ms;
    config.pmu = Some(files.pmu());
    config.begins = Some(files.begins());
    let path = files.timing();
    // Numbers and names always become JSON.
    let text = serde_json::to_string_pretty(&config).unwrap_or_default();
    fs::write(&path, text).map_err(|source| RunError::File {
        what: "writing the plugin's settings",
        path,
        source,
    })?;
    let method = match plan.timing {
        Timing::Wait => Method::Wait { plugin, slow_motion },
        _ => ask(plan, qemu, files, plugin)?,
    };
    if let (Timing::Auto, Method::Wait { .. }) = (plan.timing, &method) {
        say.line(&format!(
            "timing wait: this QEMU does not let guest clocks show modelled time, so the machine runs {slow_motion} times slower"
        ));
    }
    Ok(method)
}

/// The plugin of the emulator that gives memory its speed: `$NEARFAR_LAB_PLUGIN`, beside this program, or in
/// `../lib/nearfar`.
///
/// # Errors
/// Where it was looked for, and how to get it.
pub fn find_plugin() -> Result<PathBuf, String> {
    if let Some(named) = std::env::var_os("NEARFAR_LAB_PLUGIN").filter(|path| !path.is_empty()) {
        let path = std::path::absolute(&named).unwrap_or_else(|_| named.into());
        return if path.is_file() {
            Ok(path)
        } else {
            Err(format!("NEARFAR_LAB_PLUGIN names {}, which is no file", path.display()))
        };
    }
    let beside = std::env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_owned));
    let places = beside.map_or_else(Vec::new, |dir| {
        vec![dir.join(PLUGIN), dir.join("../lib/nearfar").join(PLUGIN)]
    });
    places.iter().find(|path| path.is_file()).cloned().ok_or_else(|| {
        format!("no {PLUGIN} beside this program, in ../lib/nearfar, or named by NEARFAR_LAB_PLUGIN (the package nearfar-lab has it; from \
             the sources, make build)")
    })
}

/// Starts this QEMU without a guest to find out which clock it gives the plugin.
fn ask(plan: &Plan, qemu: &Qemu, files: &RunFiles, plugin: PathBuf) -> Result<Method, RunError> {
    let refused = |found: String| RunError::Timing { asked: plan.timing, found };
    let mut option = escaped(&plugin);
    option.push(",config=");
    option.push(escaped(&files.timing()));
    // A board with a CPU, stopped before its first instruction: the clock is known once the CPU is created.
    let mut args: Vec<OsString> =
        "-machine q35 -cpu max -accel tcg,thread=multi -display none -nodefaults -S"
            .split(' ')
            .map(Into::into)
            .collect();
    args.extend(qemu.firmware.iter().flat_map(|dir| ["-L".into(), dir.into()]));
    args.push("-plugin".into());
    args.push(option);
    let path = files.qemu();
    let log = fs::File::create(&path).map_err(|source| RunError::File {
        what: "writing QEMU's log",
        path,
        source,
    })?;
    let mut vm = Vm::bare(&plan.reenter, qemu, &args, log)?;
    let patience = Deadline::after(Some(Duration::from_secs(20)));
    let answer = loop {
        let ended = vm.ended().is_some();
        if let Some(answer) = read_answer(&files.statistics()) {
            break answer;
        }
        if ended || patience.passed() {
            let said = fs::read_to_string(files.qemu()).unwrap_or_default();
            let said = said.trim().replace('\n', "; ");
            return Err(refused(format!(
                "QEMU with {} did not report its capabilities: {said}",
                plugin.display()
            )));
        }
        clock::sleep(Duration::from_millis(5));
    };
    drop(vm);
    let _ = fs::remove_file(files.statistics());
    match answer {
        (clock, _) if clock == "virtual" => Ok(Method::Virtual { plugin }),
        (clock, slow_motion) if clock == "wait" => Ok(Method::Wait { plugin, slow_motion }),
        (clock, _) => Err(refused(format!("the plugin names a clock that is not known: {clock}"))),
    }
}

/// The clock and the slow-motion factor in the plugin's statistics.
fn read_answer(path: &Path) -> Option<(String, f64)> {
    let text = fs::read_to_string(path).ok()?;
    let value: serde_json::Value = serde_json::from_str(&text).ok()?;
    Some((value.get("clock")?.as_str()?.to_owned(), value.get("slow_motion")?.as_f64()?))
}

/// Warns if the host has distorted the run, and writes the plugin's statistics to the user's path, adding the machine,
/// the kernel and the method.
pub(super) fn publish(
    plan: &Plan,
    kernel: &Kernel,
    method: &Method,
    statistics: &str,
    say: &dyn Say,
) -> Result<(), RunError> {
    if let Some(share) = distorted(statistics) {
        say.line(&format!(
            "NOT VALID: {:.1} % of the vCPUs' time passed without work, because the host did not run them; run it again on an idle host",
            share * 100.0
        ));
    }
    let Some(path) = &plan.stats else { return Ok(()) };
    let mut value: serde_json::Value = serde_json::from_str(statistics).unwrap_or_else(|_| {
        serde_json::json!({ "schema": "nearfar.labstats/1", "clock": method.word(), "slow_motion": method.slow_motion() })
    });
    if let Some(object) = value.as_object_mut() {
        object.insert("machine".to_owned(), plan.machine.name.clone().into());
        object.insert("kernel".to_owned(), kernel.version.clone().into());
        object.insert("emulated".to_owned(), true.into());
    }
    let text = serde_json::to_string_pretty(&value).unwrap_or_default() + "\n";
    fs::write(path, text).map_err(|source| RunError::File {
        what: "writing statistics to",
        path: path.clone(),
        source,
    })
}

/// The share of the vCPUs' time that the host has distorted, by a run's statistics, if that makes the run invalid.
#[must_use]
pub fn distorted(statistics: &str) -> Option<f64> {
    let value: serde_json::Value = serde_json::from_str(statistics).ok()?;
    let host = value.get("host")?;
    let share = || host.get("distorted_share").and_then(serde_json::Value::as_f64).unwrap_or(1.0);
    (!host.get("valid")?.as_bool()?).then(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_distorted_by_the_host_is_detected() {
        let host = |valid: bool| {
            format!("{{\"host\":{{\"distorted_share\":0.02,\"valid\":{valid}}},\"cpus\":[]}}")
        };
        assert_eq!(distorted(&host(false)), Some(0.02));
        assert_eq!(distorted(&host(true)), None);
        assert_eq!(distorted("{\"host\":null}"), None);
        assert_eq!(distorted(""), None);
    }
}
