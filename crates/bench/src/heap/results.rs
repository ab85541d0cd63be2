//! Results: JSON `nearfar.bench-heap/1`.

use serde::{Deserialize, Serialize};

use crate::saved::Kept;

use super::rows::{Part, Row};
use nearfar_report::model::{Machine, Resident};

/// The `schema` of a [`Found`].
pub(crate) const SCHEMA: &str = "nearfar.bench-heap/1";

/// All parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Found {
    /// [`SCHEMA`].
    pub(crate) schema: String,
    /// Version of nearfar.
    pub(crate) nearfar: String,
    /// Whether it was a smoke run, which is not judged.
    pub(crate) smoke: bool,
    /// The machine.
    pub machine: Machine,
    /// Free near memory before the first row.
    pub(crate) near_free_bytes: u64,
    /// In display order.
    pub(crate) parts: Vec<Tried>,
}

impl Kept for Found {
    const BENCH: &str = "heap";
    const SCHEMA: &str = SCHEMA;

    fn schema(&self) -> &str {
        &self.schema
    }
}

/// A use of memory with the results of its rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Tried {
    /// The use.
    pub(crate) part: Part,
    /// In display order.
    pub(crate) rows: Vec<Ran>,
}

/// A row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ran {
    /// The row.
    pub(crate) row: Row,
    /// Concurrent instances.
    pub(crate) instances: u64,
    /// Its command line.
    pub(crate) command: String,
    /// The program's output, unless it did not run.
    pub(crate) outcome: Option<Outcome>,
    /// The last sample of its residency.
    pub(crate) residency: Vec<Resident>,
    /// The error, if it did not run.
    pub(crate) failed: Option<String>,
}

/// The used part of the output of `nearfar-load inference --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Throughput of all instances, after the warm-up.
    pub(crate) tokens_per_s: f64,
    /// Read bandwidth.
    pub(crate) read_bytes_per_second: f64,
    /// Throughput of the slowest instance.
    pub(crate) slowest_tokens_per_s: f64,
    /// Throughput over time.
    pub(crate) windows: Vec<Window>,
}

/// An interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Window {
    /// Its end.
    pub(crate) end_s: f64,
    /// Tokens in it.
    pub(crate) tokens: u64,
}

impl Tried {
    /// Throughput of a row that ran.
    pub(crate) fn rate(&self, row: Row) -> Option<f64> {
        let ran = self.rows.iter().find(|ran| ran.row == row)?;
        ran.outcome.as_ref().map(|outcome| outcome.tokens_per_s).filter(|rate| *rate > 0.0)
    }

    /// Throughput of a row relative to near memory alone.
    pub(crate) fn to_near(&self, row: Row) -> Option<f64> {
        Some(self.rate(row)? / self.rate(Row::Near)?)
    }
}
