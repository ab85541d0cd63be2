//! What came out: JSON `nearfar.bench-heap/1`.

use serde::{Deserialize, Serialize};

use crate::bench::kept::Kept;

use super::rows::{Part, Row};
use crate::report::model::{Machine, Resident};

/// The `schema` of a [`Found`].
pub(crate) const SCHEMA: &str = "nearfar.bench-heap/1";

/// All parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Found {
    /// [`SCHEMA`].
    pub(crate) schema: String,
    /// Version of nearfar.
    pub(crate) nearfar: String,
    /// Too short to be judged.
    pub(crate) smoke: bool,
    /// The machine.
    pub(crate) machine: Machine,
    /// What of near memory was free before the first row.
    pub(crate) near_free_bytes: u64,
    /// In the order shown.
    pub(crate) parts: Vec<Tried>,
}

impl Kept for Found {
    const BENCH: &str = "heap";
    const SCHEMA: &str = SCHEMA;

    fn schema(&self) -> &str {
        &self.schema
    }
}

/// A use of memory under its rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Tried {
    /// Which.
    pub(crate) part: Part,
    /// In the order shown.
    pub(crate) rows: Vec<Ran>,
}

/// A row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ran {
    /// Which.
    pub(crate) row: Row,
    /// Instances that ran at once.
    pub(crate) instances: u64,
    /// The line it was run by.
    pub(crate) command: String,
    /// What the program said, unless it did not run.
    pub(crate) outcome: Option<Outcome>,
    /// Where its memory was at the last look.
    pub(crate) residency: Vec<Resident>,
    /// Why it did not run.
    pub(crate) failed: Option<String>,
}

/// What `nearfar-load inference --json` says, as far as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Throughput of all instances, once warmed up.
    pub(crate) tokens_per_s: f64,
    /// What was read for that.
    pub(crate) read_bytes_per_s: f64,
    /// Throughput of the slowest instance.
    pub(crate) slowest_tokens_per_s: f64,
    /// Over time.
    pub(crate) windows: Vec<Window>,
}

/// A stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Window {
    /// When it ended.
    pub(crate) end_s: f64,
    /// Tokens done in it.
    pub(crate) tokens: u64,
}

impl Tried {
    /// Throughput of a row that ran.
    pub(crate) fn rate(&self, row: Row) -> Option<f64> {
        let ran = self.rows.iter().find(|ran| ran.row == row)?;
        ran.outcome.as_ref().map(|outcome| outcome.tokens_per_s).filter(|rate| *rate > 0.0)
    }

    /// Throughput of a row to that of near memory alone.
    pub(crate) fn to_near(&self, row: Row) -> Option<f64> {
        Some(self.rate(row)? / self.rate(Row::Near)?)
    }
}
