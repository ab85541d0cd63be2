//! Results: JSON `nearfar.bench-balance/1`.

use serde::{Deserialize, Serialize};

use crate::saved::Kept;

use super::rows::{Kind, Program, Row};
use nearfar_report::model::Machine;

/// The `schema` of a [`Found`].
pub(crate) const SCHEMA: &str = "nearfar.bench-balance/1";

/// All programs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// [`SCHEMA`].
    pub(crate) schema: String,
    /// Version of nearfar.
    pub(crate) nearfar: String,
    /// Whether it was a smoke run, which is not judged.
    pub(crate) smoke: bool,
    /// The machine.
    pub machine: Machine,
    /// The node of each of its CPUs.
    pub(crate) node_of_cpu: Vec<u16>,
    /// Run time of each program.
    pub(crate) seconds: u64,
    /// Warm-up time, which does not count.
    pub(crate) settle_s: u64,
    /// Whether memory is in huge pages.
    pub(crate) huge: bool,
    /// Factor on the default amount of memory.
    pub(crate) times: u64,
    /// In the order shown.
    pub(crate) programs: Vec<Tried>,
    /// End of all runs, in seconds since the machine was powered on, by its own clock.
    #[serde(default)]
    pub(crate) done_s: Option<f64>,
}

impl Kept for Found {
    const BENCH: &str = "balance";
    const SCHEMA: &str = SCHEMA;

    fn schema(&self) -> &str {
        &self.schema
    }
}

/// A program with the results of its rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Tried {
    /// The program.
    pub(crate) program: Program,
    /// In display order.
    pub(crate) rows: Vec<Ran>,
}

/// A row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ran {
    /// The row.
    #[serde(flatten)]
    pub(crate) row: Row,
    /// Its command line.
    pub(crate) command: String,
    /// Its runs.
    pub(crate) runs: Vec<Run>,
    /// The error, if a run failed.
    pub(crate) failed: Option<String>,
}

/// One run of a program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    /// Throughput after the warm-up.
    pub(crate) operations_per_s: f64,
    /// Its start, in seconds since the machine was powered on,
    pub(crate) began_s: f64,
    /// and its end.
    pub(crate) ended_s: f64,
    /// Throughput over time.
    pub(crate) windows: Vec<Window>,
    /// Pages migrated for any reason during the run (vmstat's `pgmigrate_success`).
    pub(crate) moved_pages: u64,
    /// The status of nearfar's process, if it has one.
    pub(crate) balancing: Option<Balancing>,
    /// Memory traffic after the warm-up, if an emulator counts it.
    pub(crate) traffic: Option<Traffic>,
}

/// An interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Window {
    /// Its end, from the start of the run.
    pub(crate) end_s: f64,
    /// Busy time in it.
    pub(crate) busy_s: f64,
    /// Operations in it.
    pub(crate) operations: f64,
}

/// The last status of `nearfar balance`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Balancing {
    /// The sensors in use.
    pub(crate) sensors: Vec<String>,
    /// Its CPU time since its start,
    pub(crate) cpu_ms: u64,
    /// and its run time.
    pub(crate) running_s: u64,
    /// Its share of one CPU after the warm-up, if two statuses were read then.
    pub(crate) cpu_share: Option<f64>,
    /// Its last decision, as a keyword.
    pub(crate) decision: String,
    /// Pages it has migrated.
    pub(crate) moved: u64,
}

/// Memory traffic.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Traffic {
    /// Share of cache lines from the accessing CPU's own node.
    pub(crate) local: f64,
    /// Imbalance: sample standard deviation to mean of the lines served by nodes.
    pub(crate) imbalance: f64,
    /// Share of the lines served by each node; in the machine's order.
    pub(crate) shares: Vec<f64>,
    /// Cache lines per microsecond.
    pub(crate) lines_per_us: f64,
}

impl Ran {
    /// The median of `of` over its runs.
    pub(crate) fn median(&self, of: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
        nearfar_topology::median(self.runs.iter().filter_map(of))
    }

    /// Throughput.
    pub(crate) fn rate(&self) -> Option<f64> {
        self.median(|run| Some(run.operations_per_s)).filter(|rate| *rate > 0.0)
    }
}

impl Tried {
    /// Throughput of a row with balancing's default sensors, if it ran.
    pub(crate) fn rate(&self, kind: Kind) -> Option<f64> {
        self.rows.iter().find(|ran| ran.row == kind.into())?.rate()
    }

    /// The row with the highest throughput among static placements, and that throughput.
    pub(crate) fn best_static(&self) -> Option<(&Row, f64)> {
        let (ran, rate) = self.best_static_but(None)?;
        Some((&ran.row, rate))
    }

    /// The same without the row `left_out`.
    pub(crate) fn best_static_but(&self, left_out: Option<Kind>) -> Option<(&Ran, f64)> {
        let counts = |ran: &&Ran| ran.row.kind.is_static() && Some(ran.row.kind) != left_out;
        let rates = self.rows.iter().filter(counts).filter_map(|ran| Some((ran, ran.rate()?)));
        rates.max_by(|one, other| one.1.total_cmp(&other.1))
    }

    /// Throughput of a row relative to another.
    pub(crate) fn ratio(&self, ran: &Ran, to: Kind) -> Option<f64> {
        Some(ran.rate()? / self.rate(to)?)
    }
}

/// Throughput of the windows after `settle_s`; `None` if they are too few.
pub(crate) fn settled_rate(windows: &[Window], settle_s: f64) -> Option<f64> {
    // A window that began before does not count.
    let counts = |window: &&Window| window.end_s - window.busy_s >= settle_s;
    let (done, seconds) = windows
        .iter()
        .filter(counts)
        .fold((0.0, 0.0), |(done, s), of| (done + of.operations, s + of.busy_s));
    (seconds > 0.0).then(|| done / seconds)
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn intervals_that_start_before_settling_are_ignored() {
        let window = |end_s: f64, operations| Window { end_s, busy_s: 0.5, operations };
        let windows =
            [window(0.5, 900.0), window(1.2, 800.0), window(1.7, 100.0), window(2.2, 50.0)];
        assert_eq!(settled_rate(&windows, 1.0), Some(150.0));
        assert_eq!(settled_rate(&windows, 2.0), None);
    }

    #[test]
    fn the_median_of_several_runs_is_used() {
        let run = |operations_per_s| Run { operations_per_s, ..Run::default() };
        let mut ran = sample::found().programs[0].rows[0].clone();
        ran.runs = vec![run(30.0), run(10.0), run(20.0)];
        assert_eq!(ran.rate(), Some(20.0));
        ran.runs.push(run(40.0));
        assert_eq!(ran.rate(), Some(25.0));
        ran.runs.clear();
        assert_eq!(ran.rate(), None);
    }

    #[test]
    fn the_best_static_row_excludes_rows_that_migrate_pages() {
        let tried = &sample::found().programs[0];
        let (row, rate) = tried.best_static().unwrap();
        assert_eq!((row.kind, rate), (Kind::Interleave, 200.0));
        assert!(tried.rate(Kind::Balanced) < Some(rate));
    }
}
