//! The demo in the lab: this very binary, run in a guest, whose results come back through `/out`.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

use super::here::Part;

/// Which machine and kernel the lab boots; its defaults if absent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lab {
    /// `--machine` of `nearfar lab run`.
    pub(crate) machine: Option<String>,
    /// `--kernel` of `nearfar lab run`.
    pub(crate) kernel: Option<String>,
}

impl Lab {
    /// Boots once and runs `nearfar ARGUMENTS` in the guest; what it writes to /out is in `out` afterwards.
    pub(crate) fn run(&self, arguments: &[String], out: &Path) -> anyhow::Result<()> {
        let nearfar = std::env::current_exe().context("looking for this binary")?;
        let mut command = Command::new(&nearfar);
        command.args(["lab", "run"]);
        let options = [("--machine", &self.machine), ("--kernel", &self.kernel)];
        for (option, value) in options {
            command.args(value.iter().flat_map(|value| [option, value.as_str()]));
        }
        command.arg("--out").arg(out).arg("--").arg(&nearfar).args(arguments);
        // Standard error is passed through: it carries the guest's progress, and whatever went wrong.
        let status = command
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
}

/// The demo's arguments in the guest.
pub(crate) fn demo_arguments(parts: &[Part], progress: bool) -> Vec<String> {
    use clap::ValueEnum as _;
    let names: Vec<_> = parts
        .iter()
        .filter_map(|part| Some(part.to_possible_value()?.get_name().to_string()))
        .collect();
    let mut arguments: Vec<String> =
        ["demo", "--here", "--json", "--out", "/out", "--only"].map(Into::into).into();
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
    fn the_guest_runs_the_same_parts() {
        let arguments = demo_arguments(&[Part::Bandwidth, Part::Redis], true).join(" ");
        assert_eq!(arguments, "demo --here --json --out /out --only bandwidth,redis --progress");
    }
}
