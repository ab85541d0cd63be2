//! Results of a comparison: JSON `nearfar.bench-tiering/1`.
//!
//! The complete output of each row is saved, so that figures, table and page can be computed from it again.

use serde::{Deserialize, Serialize};

use crate::saved::Kept;

use super::loads::Loads;
use super::rows::Row;
use crate::workload::results::Run;
use nearfar_report::model::Machine;

/// The `schema` of a [`Found`].
pub(crate) const SCHEMA: &str = "nearfar.bench-tiering/1";

/// All workloads under all rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Found {
    /// [`SCHEMA`].
    pub(crate) schema: String,
    /// Version of nearfar.
    pub(crate) nearfar: String,
    /// Run time of a program with one hot set, in seconds.
    pub(crate) phase_s: u64,
    /// The warm-up part of that, not judged.
    pub(crate) warm_up_s: u64,
    /// Interval at which another process gets each CPU, in milliseconds; 0: never.
    pub(crate) switch_ms: u64,
    /// Whether it was a smoke run, which is not judged.
    pub(crate) smoke: bool,
    /// By workload.
    pub(crate) workloads: Vec<Compared>,
}

impl Kept for Found {
    const BENCH: &str = "tiering";
    const SCHEMA: &str = SCHEMA;

    fn schema(&self) -> &str {
        &self.schema
    }
}

/// A workload under all rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Compared {
    /// Its name.
    pub(crate) workload: String,
    /// Its description.
    pub(crate) description: String,
    /// Whether tiering can improve it.
    pub(crate) tiering_helps: bool,
    /// Percentage of the time in which the program works.
    pub(crate) busy_percent: u64,
    /// In display order.
    pub(crate) rows: Vec<Ran>,
}

/// A row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ran {
    /// The row.
    pub(crate) row: Row,
    /// The machine, unless it did not run.
    pub(crate) machine: Option<Machine>,
    /// The working set, in bytes.
    pub(crate) set_bytes: u64,
    /// The result, unless it did not run.
    pub(crate) run: Option<Run>,
    /// Cumulative reads of near and far memory by its programs' CPU, as counted by the emulator.
    #[serde(default)]
    pub(crate) loads: Vec<Loads>,
    /// The reason why it did not run.
    pub(crate) absent: Option<String>,
    /// The same row in further boots.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) again: Vec<Ran>,
}

impl Ran {
    /// A row that has not run yet.
    pub(crate) const fn of(row: Row) -> Self {
        let loads = Vec::new();
        let again = Vec::new();
        Self { row, machine: None, set_bytes: 0, run: None, loads, absent: None, again }
    }

    /// Every boot of it.
    pub(crate) fn boots(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.again)
    }
}

impl Compared {
    /// A row that ran.
    pub(crate) fn ran(&self, row: Row) -> Option<&Ran> {
        self.rows.iter().find(|ran| ran.row == row && ran.run.is_some())
    }
}

impl Found {
    /// The machine of the rows that are tiered, else any.
    pub(crate) fn machine(&self) -> Option<&Machine> {
        let rows = || self.workloads.iter().flat_map(|of| &of.rows);
        let tiered = rows().filter(|ran| ran.row != Row::Dram).find_map(|ran| ran.machine.as_ref());
        tiered.or_else(|| rows().find_map(|ran| ran.machine.as_ref()))
    }
}
