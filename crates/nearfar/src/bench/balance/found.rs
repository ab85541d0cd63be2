//! What came out: JSON `nearfar.bench-balance/1`.

use serde::{Deserialize, Serialize};

use crate::bench::kept::Kept;

use super::rows::{Kind, Program, Row};
use crate::report::model::Machine;

/// The `schema` of a [`Found`].
pub(crate) const SCHEMA: &str = "nearfar.bench-balance/1";

/// All programs.
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
    /// The node of each of its CPUs.
    pub(crate) node_of_cpu: Vec<u16>,
    /// How long each program ran.
    pub(crate) seconds: u64,
    /// From when on it counts.
    pub(crate) settle_s: u64,
    /// In huge pages.
    pub(crate) huge: bool,
    /// Of memory, so many times the usual.
    pub(crate) times: u64,
    /// In the order shown.
    pub(crate) programs: Vec<Tried>,
    /// When all was done, since the machine was switched on by its own clock.
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

/// A program under its rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Tried {
    /// Which.
    pub(crate) program: Program,
    /// In the order shown.
    pub(crate) rows: Vec<Ran>,
}

/// A row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ran {
    /// Which.
    #[serde(flatten)]
    pub(crate) row: Row,
    /// The line it was run by.
    pub(crate) command: String,
    /// Each time it ran.
    pub(crate) runs: Vec<Run>,
    /// Why it did not run, if it once did not.
    pub(crate) failed: Option<String>,
}

/// A program from start to end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    /// Throughput once settled.
    pub(crate) operations_per_s: f64,
    /// When it began, since the machine was switched on,
    pub(crate) began_s: f64,
    /// and, from then, when it ended.
    pub(crate) ended_s: f64,
    /// Over time.
    pub(crate) windows: Vec<Window>,
    /// Pages that were moved, by whomever, from start to end (vmstat's `pgmigrate_success`).
    pub(crate) moved_pages: u64,
    /// Nearfar's process, where there is one.
    pub(crate) balancing: Option<Balancing>,
    /// What memory was asked for once settled, where an emulator counts that.
    pub(crate) traffic: Option<Traffic>,
}

/// A stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Window {
    /// When it ended, from the beginning.
    pub(crate) end_s: f64,
    /// How long of it was work.
    pub(crate) busy_s: f64,
    /// What was done.
    pub(crate) operations: f64,
}

/// What `nearfar balance` said of itself at the last look.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Balancing {
    /// The sensors it saw by.
    pub(crate) sensors: Vec<String>,
    /// CPU time it took, from its start,
    pub(crate) cpu_ms: u64,
    /// and how long that is ago.
    pub(crate) running_s: u64,
    /// Of one CPU, the share it took once settled, if it was seen twice then.
    pub(crate) cpu_share: Option<f64>,
    /// Its last decision, in a word.
    pub(crate) decision: String,
    /// Pages it has moved.
    pub(crate) moved: u64,
}

/// What memory was asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Traffic {
    /// Of all lines, those of the asking CPU's node.
    pub(crate) local: f64,
    /// Sample standard deviation to mean of what nodes served.
    pub(crate) imbalance: f64,
    /// Of all lines, those that each node served; in the machine's order.
    pub(crate) shares: Vec<f64>,
    /// Lines in a microsecond.
    pub(crate) lines_per_us: f64,
}

impl Ran {
    /// The median of what its runs come to by `of`.
    pub(crate) fn median(&self, of: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
        let mut all: Vec<f64> = self.runs.iter().filter_map(of).collect();
        all.sort_by(f64::total_cmp);
        let middle = all.len() / 2;
        match all.len() {
            0 => None,
            odd if odd % 2 == 1 => Some(all[middle]),
            _ => Some(f64::midpoint(all[middle - 1], all[middle])),
        }
    }

    /// Throughput.
    pub(crate) fn rate(&self) -> Option<f64> {
        self.median(|run| Some(run.operations_per_s)).filter(|rate| *rate > 0.0)
    }
}

impl Tried {
    /// Throughput of a row with the sensors that balancing chooses, where it ran.
    pub(crate) fn rate(&self, kind: Kind) -> Option<f64> {
        self.rows.iter().find(|ran| ran.row == kind.into())?.rate()
    }

    /// The highest throughput of those whose pages stay where they are, and whose.
    pub(crate) fn best_static(&self) -> Option<(&Row, f64)> {
        let (ran, rate) = self.best_static_but(None)?;
        Some((&ran.row, rate))
    }

    /// The same, of rows other than this one.
    pub(crate) fn best_static_but(&self, left_out: Option<Kind>) -> Option<(&Ran, f64)> {
        let counts = |ran: &&Ran| ran.row.kind.is_static() && Some(ran.row.kind) != left_out;
        let rates = self.rows.iter().filter(counts).filter_map(|ran| Some((ran, ran.rate()?)));
        rates.max_by(|one, other| one.1.total_cmp(&other.1))
    }

    /// Throughput of a row to that of another.
    pub(crate) fn ratio(&self, ran: &Ran, to: Kind) -> Option<f64> {
        Some(ran.rate()? / self.rate(to)?)
    }
}

/// Throughput of what ended after `settle_s`; nothing if too little did.
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
    fn what_began_before_all_had_settled_does_not_count() {
        let window = |end_s: f64, operations| Window { end_s, busy_s: 0.5, operations };
        let windows =
            [window(0.5, 900.0), window(1.2, 800.0), window(1.7, 100.0), window(2.2, 50.0)];
        assert_eq!(settled_rate(&windows, 1.0), Some(150.0));
        assert_eq!(settled_rate(&windows, 2.0), None);
    }

    #[test]
    fn of_several_runs_the_median_counts() {
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
    fn the_best_is_one_whose_pages_stay() {
        let tried = &sample::found().programs[0];
        let (row, rate) = tried.best_static().unwrap();
        assert_eq!((row.kind, rate), (Kind::Interleave, 200.0));
        assert!(tried.rate(Kind::Balanced) < Some(rate));
    }
}
