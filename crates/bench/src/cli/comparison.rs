//! The frame of comparisons: programs under one placement or policy after another, on this machine or in one boot of
//! the lab, shown as text, JSON and a page.
//!
//! [`OneBoot`] has the options and the way to a result, [`Output`] the ways to show it; common parts of pages are in
//! `pages/comparison.rs`. Rows, results and thresholds belong to each comparison.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use nearfar_command::exit::Exit;
use nearfar_command::{json, new_file, output};
use serde::Serialize;

use super::scratch;
use crate::demo::guest::{self, Lab};
use crate::saved::{Kept, kept};

/// Options to show a result.
#[derive(Debug, clap::Args)]
pub(super) struct Output {
    /// Print JSON with all results (schema nearfar.bench-COMMAND/1)
    #[arg(long)]
    json: bool,
    /// Also save that JSON to a file
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Write an HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl Output {
    /// The files to be written.
    pub(super) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.save.iter().chain(&self.html)
    }

    /// Saves and prints a result. Returns exit status 1 if it has not `reached` all thresholds.
    pub(super) fn show(
        &self,
        document: &impl Serialize,
        text: &str,
        page: &str,
        reached: bool,
    ) -> anyhow::Result<ExitCode> {
        let json = json::text(document).context("writing figures as JSON")? + "\n";
        for (file, text) in [(&self.save, json.as_str()), (&self.html, page)] {
            if let Some(file) = file {
                new_file::write(file, text)?;
            }
        }
        output::print(if self.json { &json } else { text })?;
        Ok(if reached { Exit::Done } else { Exit::Failed }.into())
    }
}

/// Options of a comparison within one boot.
#[derive(Debug, clap::Args)]
pub(super) struct OneBoot {
    /// The lab's kernel, by version or file
    #[arg(long, value_name = "VERSION|PATH")]
    kernel: Option<String>,
    /// Run on this machine, not in the lab
    #[arg(long, conflicts_with_all = ["machine", "kernel"])]
    here: bool,
    /// Short smoke run, not judged
    #[arg(long)]
    pub(super) smoke: bool,
    /// Print the plan without running it
    #[arg(long)]
    dry_run: bool,
    /// How the result is shown.
    #[command(flatten)]
    pub(super) output: Output,
    /// Show a saved result instead of running anything
    #[arg(long, value_name = "FILE", conflicts_with_all = ["dry_run", "save", "here"])]
    result: Option<PathBuf>,
    /// Directory with the compiled programs; the result is written there and nowhere else (used in the lab's guest)
    #[arg(long, value_name = "DIR", hide = true, requires = "here")]
    out: Option<PathBuf>,
    /// Show progress even if standard error is not a terminal
    #[arg(long, hide = true)]
    progress: bool,
}

impl OneBoot {
    /// The result: a saved one, or after `prepare`, that of `run` here or of `in_the_lab`. `None` if there is nothing to
    /// show: the plan was printed, or this is the guest and has handed the result over.
    pub(super) fn found<Found: Kept + Serialize>(
        &self,
        plan: impl FnOnce() -> String,
        run: impl FnOnce(&Path, bool) -> anyhow::Result<Found>,
        prepare: impl FnOnce(&Path) -> anyhow::Result<()>,
        in_the_lab: impl FnOnce(&Path) -> anyhow::Result<Found>,
    ) -> anyhow::Result<Option<Found>> {
        new_file::check(self.output.files())?;
        if self.dry_run {
            output::print(&plan())?;
            return Ok(None);
        }
        if let Some(out) = &self.out {
            guest::hand_over(out, &file::<Found>(), &run(out, self.progress)?)?;
            return Ok(None);
        }
        if let Some(file) = &self.result {
            return kept(file).map(Some);
        }
        let dir = scratch()?;
        prepare(dir.path())?;
        if self.here { run(dir.path(), self.progress()) } else { in_the_lab(dir.path()) }.map(Some)
    }

    fn progress(&self) -> bool {
        self.progress || std::io::stderr().is_terminal()
    }

    /// Boots once and runs this command in the guest, with further `arguments`.
    pub(super) fn boot<Found: Kept>(
        &self,
        lab: Lab,
        arguments: Vec<String>,
        dir: &Path,
    ) -> anyhow::Result<Found> {
        let mut all: Vec<String> =
            [Found::BENCH, "--here", "--out", guest::OUT].map(Into::into).into();
        all.extend(arguments);
        for (option, on) in [("--smoke", self.smoke), ("--progress", self.progress())] {
            all.extend(on.then(|| option.into()));
        }
        let lab = Lab { kernel: self.kernel.clone(), ..lab };
        lab.result(&all, dir, &file::<Found>()).with_context(|| {
            format!("the figures of machine {}", lab.machine.as_deref().unwrap_or_default())
        })
    }
}

/// File name of the result in a guest's /out.
fn file<Found: Kept>() -> String {
    format!("{}.json", Found::BENCH)
}
