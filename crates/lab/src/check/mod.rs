//! Self-checks of the lab: whether the emulated machine has the latencies and bandwidths of its file, and the cost of
//! emulating them.
//!
//! Small C programs (`lab/programs`) measure, which share no code with nearfar's probe. They are compiled here and run
//! in guests; [`accuracy`] compares their output with the machine file, [`overhead`] times a fixed amount of work. All
//! results are emulated ones.

pub mod accuracy;
pub mod caches;
pub mod curves;
pub mod expected;
pub mod overhead;
pub mod programs;
pub mod repeat;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use crate::fetch::Say;
use crate::host::{self, Plan, RunError, Timing};
use crate::machine::Machine;

/// The statistics of a guest, in the programs' directory.
const STATISTICS: &str = "stats.json";

/// Parameters common to all checks.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Kernel series or path.
    pub kernel: String,
    /// How guest time passes.
    pub timing: Timing,
    /// The arguments that invoke the lab's hidden commands in this program.
    pub reenter: Vec<String>,
}

/// Reasons why a check produced no result.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The guest failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The programs could not be built.
    #[error(transparent)]
    Program(#[from] programs::ProgramError),
    /// The machine is invalid.
    #[error(transparent)]
    Machine(#[from] crate::machine::MachineError),
    /// A signal to this process ended a guest.
    #[error("ended by a signal, with status {0}")]
    Interrupted(u8),
    /// A program printed something unexpected.
    #[error("{machine} with {cpus} CPUs: {found}")]
    Said {
        /// The machine.
        machine: String,
        /// Its CPUs.
        cpus: u32,
        /// The expected and the actual output.
        found: String,
    },
}

/// A dependent load from one node's CPU to one node's memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// The CPU's node.
    pub from: u16,
    /// The memory's node.
    pub to: u16,
    /// `4k` or `2m`.
    pub pages: &'static str,
    /// How many chains of loads are followed at once; the figures are those of one load.
    pub chains: u32,
    /// From the machine file: the latency, divided by the loads that overlap.
    pub configured_ns: f64,
    /// Measured in the guest.
    pub emulated_ns: f64,
    /// Error in per cent.
    pub off_percent: f64,
    /// Whether the error is accepted.
    pub ok: bool,
}

/// Arrays several times the size of the cache, so that all accesses miss.
fn array_mib(machine: &Machine) -> u64 {
    (machine.processor.llc_kib / 1024).max(1) * 4
}

/// What the programs of a script printed, result by result.
struct Results<'a>(std::str::Lines<'a>);

impl<'a> Results<'a> {
    fn of(said: &'a str) -> Self {
        Self(said.lines())
    }

    /// The next result, an object.
    fn take(&mut self) -> Result<Value, String> {
        let line = self.0.next().ok_or("a result is missing")?;
        serde_json::from_str(line).map_err(|error| format!("{line:?} is no result: {error}"))
    }

    /// A number of the next result.
    fn take_number(&mut self, name: &str) -> Result<f64, String> {
        number(&self.take()?, name)
    }
}

/// A number of a result.
fn number(value: &Value, name: &str) -> Result<f64, String> {
    value[name].as_f64().ok_or_else(|| format!("{value} has no {name}"))
}

/// Runs a shell script in a guest with the programs in /out.
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
        stats: Some(programs.dir().join(STATISTICS)),
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
    if ended.interrupted {
        return Err(CheckError::Interrupted(ended.status));
    }
    if ended.status == 0 {
        return Ok(());
    }
    let found = ended.message.unwrap_or_else(|| {
        format!("the measuring script ended with status {}; its words are above", ended.status)
    });
    Err(CheckError::Said { machine: machine.name.clone(), cpus: machine.cpus(), found })
}
