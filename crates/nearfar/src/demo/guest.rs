//! A demo or benchmark in the lab: this very binary, run in a guest, whose result comes back through `/out` as JSON.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::here::Part;
use super::process::tethered;

/// Where a guest finds the directory that it shares with us.
pub(crate) const OUT: &str = "/out";

/// Which machine and kernel the lab boots; its defaults if absent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lab {
    /// `--machine` of `nearfar lab run`.
    pub(crate) machine: Option<String>,
    /// `--kernel` of `nearfar lab run`.
    pub(crate) kernel: Option<String>,
    /// `--append` of `nearfar lab run`.
    pub(crate) append: Option<String>,
    /// `--stats` of `nearfar lab run`, and `--stats-every` with it.
    pub(crate) stats: Option<(PathBuf, u64)>,
}

impl Lab {
    /// Boots once and runs `nearfar ARGUMENTS` in the guest; what it writes to /out is in `out` afterwards.
    pub(crate) fn run(&self, arguments: &[String], out: &Path) -> anyhow::Result<()> {
        let nearfar = std::env::current_exe().context("looking for this binary")?;
        let mut command = Command::new(&nearfar);
        command.args(["lab", "run"]);
        let options =
            [("--machine", &self.machine), ("--kernel", &self.kernel), ("--append", &self.append)];
        for (option, value) in options {
            command.args(value.iter().flat_map(|value| [option, value.as_str()]));
        }
        if let Some((file, every_ms)) = &self.stats {
            command.arg("--stats").arg(file).arg(format!("--stats-every={every_ms}"));
        }
        command.arg("--out").arg(out).arg("--").arg(&nearfar).args(arguments);
        // Standard error is passed through: it carries the guest's progress, and whatever went wrong. No guest outlives us.
        let status = tethered(&command)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status()
            .with_context(|| format!("starting {} lab run", nearfar.display()))?;
        if !status.success() {
            bail!(
                "the run in the lab ended with {status}; the lines above say why. What it had written so far is in {}",
                out.display()
            );
        }
        Ok(())
    }

    /// Runs `nearfar ARGUMENTS` as [`Lab::run`] does and reads what the guest handed over in `out` under this name.
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

/// Writes a result where [`Lab::result`] reads it.
pub(crate) fn hand_over<T: Serialize>(out: &Path, name: &str, result: &T) -> anyhow::Result<()> {
    let file = out.join(name);
    let text = serde_json::to_string_pretty(result).context("writing figures as JSON")?;
    std::fs::write(&file, text).with_context(|| format!("writing {}", file.display()))
}

/// The demo's arguments in the guest.
pub(crate) fn demo_arguments(parts: &[Part], progress: bool) -> Vec<String> {
    use clap::ValueEnum as _;
    let names: Vec<_> = parts
        .iter()
        .filter_map(|part| Some(part.to_possible_value()?.get_name().to_string()))
        .collect();
    let mut arguments: Vec<String> =
        ["demo", "--here", "--json", "--out", OUT, "--only"].map(Into::into).into();
    arguments.push(names.join(","));
    if progress {
        arguments.push("--progress".into());
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_that_is_not_handed_over_is_named() {
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
