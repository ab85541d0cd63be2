//! Runs a demo or benchmark in the lab: this binary itself, in a guest; its result returns through `/out` as JSON.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use clap::ValueEnum;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::beside;
use super::here::Part;
use super::process::{tethered, wait_for};

/// How often a run is tried until the host leaves it alone.
const RUNS_MOST: u32 = 3;
/// The shared directory, in the guest.
pub(crate) const OUT: &str = "/out";

/// The machine and kernel that the lab boots; its defaults if `None`.
#[derive(Clone, Debug, Default)]
pub struct Lab {
    /// `--machine` of `nearfar lab run`.
    pub machine: Option<String>,
    /// `--kernel` of `nearfar lab run`.
    pub kernel: Option<String>,
    /// `--append` of `nearfar lab run`.
    pub append: Option<String>,
    /// `--stats` of `nearfar lab run`, and `--stats-every` with it.
    pub stats: Option<(PathBuf, u64)>,
}

impl Lab {
    /// Boots and runs this program with `arguments` in the guest; files it writes to /out are in `out` afterwards. A run
    /// that the host has distorted is repeated, up to twice; `nearfar lab run` says so each time.
    ///
    /// # Errors
    /// The guest does not boot, or the program fails.
    pub fn run(&self, arguments: &[String], out: &Path) -> anyhow::Result<()> {
        let own = || (out.join("labstats.json"), None);
        let (stats, every_ms) =
            self.stats.clone().map_or_else(own, |(file, every_ms)| (file, Some(every_ms)));
        for _ in 0..RUNS_MOST {
            self.run_once(arguments, out, (&stats, every_ms))?;
            if is_valid(&stats) {
                break;
            }
        }
        Ok(())
    }

    fn run_once(
        &self,
        arguments: &[String],
        out: &Path,
        (stats, every_ms): (&Path, Option<u64>),
    ) -> anyhow::Result<()> {
        let (nearfar, this) = (beside::program("nearfar")?, beside::this()?);
        let mut command = Command::new(&nearfar);
        command.args(["lab", "run"]);
        let options =
            [("--machine", &self.machine), ("--kernel", &self.kernel), ("--append", &self.append)];
        for (option, value) in options {
            command.args(value.iter().flat_map(|value| [option, value.as_str()]));
        }
        command.arg("--stats").arg(stats);
        command.args(every_ms.map(|every_ms| format!("--stats-every={every_ms}")));
        command.arg("--out").arg(out).arg("--").arg(&this).args(arguments);
        // Standard error is passed through: it carries the guest's progress and errors. No guest outlives this process.
        let mut child = tethered(&command)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("starting {} lab run", nearfar.display()))?;
        let status = wait_for(&mut child)?;
        if !status.success() {
            bail!(
                "the run in the lab ended with {status}; the lines above say why. What it had written so far is in {}",
                out.display()
            );
        }
        Ok(())
    }

    /// Runs this program as [`Lab::run`] does, and reads its result from the file `name`.
    pub(crate) fn result<T: DeserializeOwned>(
        &self,
        arguments: &[String],
        out: &Path,
        name: &str,
    ) -> anyhow::Result<T> {
        self.run(arguments, out)?;
        let text = std::fs::read_to_string(out.join(name))
            .with_context(|| format!("reading {name}, which the run in the lab was to write"))?;
        serde_json::from_str(&text).with_context(|| format!("understanding the lab's {name}"))
    }
}

/// Whether the host has left the run alone, or nothing is known of it.
fn is_valid(stats: &Path) -> bool {
    let text = std::fs::read_to_string(stats).unwrap_or_default();
    nearfar_lab::host::distorted(&text).is_none()
}

/// Writes a result to the file that `Lab::result` reads.
///
/// # Errors
/// It can't be written.
pub fn hand_over<T: Serialize>(out: &Path, name: &str, result: &T) -> anyhow::Result<()> {
    let file = out.join(name);
    let text = serde_json::to_string_pretty(result).context("writing figures as JSON")?;
    std::fs::write(&file, text).with_context(|| format!("writing {}", file.display()))
}

/// Values as an option takes them.
pub(crate) fn names<T: ValueEnum>(values: &[T]) -> String {
    let names =
        values.iter().filter_map(|value| Some(value.to_possible_value()?.get_name().into()));
    names.collect::<Vec<String>>().join(",")
}

/// The demo's arguments in the guest.
pub fn demo_arguments(parts: &[Part], progress: bool) -> Vec<String> {
    let mut arguments: Vec<String> =
        ["demo", "--here", "--json", "--out", OUT, "--only"].map(Into::into).into();
    arguments.push(names(parts));
    if progress {
        arguments.push("--progress".into());
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_valid_unless_its_statistics_say_otherwise() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("stats");
        assert!(is_valid(&file), "timing is off");
        for (text, valid) in [("{", true), (r#"{"host":{"valid":true}}"#, true)] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(is_valid(&file), valid);
        }
        std::fs::write(&file, r#"{"host":{"valid":false}}"#).unwrap();
        assert!(!is_valid(&file));
    }

    #[test]
    fn a_result_that_cannot_be_written_is_reported_with_its_path() {
        let dir = tempfile::tempdir().unwrap();
        hand_over(dir.path(), "figures.json", &[1, 2]).unwrap();
        let text = std::fs::read_to_string(dir.path().join("figures.json")).unwrap();
        assert_eq!(serde_json::from_str::<Vec<u8>>(&text).unwrap(), [1, 2]);
        let nowhere = hand_over(&dir.path().join("absent"), "figures.json", &1).unwrap_err();
        assert!(format!("{nowhere:#}").contains("absent/figures.json"), "{nowhere:#}");
    }

    #[test]
    fn the_guest_runs_the_same_parts() {
        let arguments = demo_arguments(&[Part::Bandwidth, Part::Redis], true).join(" ");
        assert_eq!(arguments, "demo --here --json --out /out --only bandwidth,redis --progress");
    }
}
