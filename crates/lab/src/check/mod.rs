//! Checking the lab against itself: does the emulated machine have the figures of its file, and what does emulating them
//! cost?
//!
//! Measuring is done by small C programs of their own (`lab/programs`), which share no code with nearfar's probe. They
//! are compiled here and run in guests; [`accuracy`] compares what they print with the machine file, [`overhead`] takes
//! the time of a fixed piece of work. All figures are emulated ones.

pub mod accuracy;
pub mod expected;
pub mod overhead;
mod programs;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::fetch::Say;
use crate::host::{self, Plan, RunError, Timing};
use crate::machine::Machine;

/// What every check is run with.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Kernel series or path.
    pub kernel: String,
    /// How guest time passes.
    pub timing: Timing,
    /// The arguments that lead this program to the lab's hidden commands.
    pub reenter: Vec<String>,
}

/// Why a check came to no result.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The guest.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The programs.
    #[error(transparent)]
    Program(#[from] programs::ProgramError),
    /// What a program said.
    #[error("{machine} with {cpus} CPUs: {found}")]
    Said {
        /// The machine.
        machine: String,
        /// Its CPUs.
        cpus: u32,
        /// What was expected and found.
        found: String,
    },
}

/// Runs a shell script in a guest in which the programs are in /out.
fn in_guest(
    setting: &Setting,
    machine: &Machine,
    programs: &programs::Programs,
    script: &str,
    say: &dyn Say,
) -> Result<(), CheckError> {
    let plan = Plan {
        machine: machine.clone(),
        kernel: setting.kernel.clone(),
        qemu: None,
        timing: setting.timing,
        out: Some(programs.dir().to_owned()),
        stats: None,
        stats_every_ms: None,
        limit: Some(Duration::from_secs(1800)),
        boot_limit: Duration::from_secs(300),
        append: String::new(),
        argv: ["/bin/sh", "-c", script].map(|word| word.as_bytes().to_vec()).into(),
        env: BTreeMap::from([(b"PATH".to_vec(), b"/usr/bin:/bin".to_vec())]),
        cwd: PathBuf::from("/"),
        terminal: false,
        reenter: setting.reenter.clone(),
    };
    let ended = host::run(&plan, say)?;
    if ended.status == 0 {
        return Ok(());
    }
    let found = ended.message.unwrap_or_else(|| {
        format!("the measuring script ended with status {}; its words are above", ended.status)
    });
    Err(CheckError::Said { machine: machine.name.clone(), cpus: machine.cpus(), found })
}
