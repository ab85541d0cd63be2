//! A comparison of tiering systems as text, as JSON and as one page. The figures come from `tiering/acceptance.rs`;
//! this file only presents them.

use serde::Serialize;

use crate::tiering::acceptance::{self, Check, Figures, Unit};
use crate::tiering::results::{Compared, Found};
use crate::tiering::rows::Row;

pub mod page;
pub mod picture;
pub mod text;

/// The results with figures and checks: JSON `nearfar.bench-tiering/1`.
#[derive(Debug, Serialize)]
pub(crate) struct Document {
    /// The results.
    #[serde(flatten)]
    pub(crate) found: Found,
    /// Figures of each row, by workload.
    pub(crate) figures: Vec<Vec<Figures>>,
    /// The checks against the thresholds.
    pub(crate) checks: Vec<Check>,
}

impl Document {
    /// Computes figures and checks.
    pub(crate) fn of(found: Found) -> Self {
        let workloads = found.workloads.iter();
        let figures = workloads.map(|of| acceptance::figures(of, found.warm_up_s)).collect();
        let checks = if found.smoke { Vec::new() } else { acceptance::checks(&found) };
        Self { found, figures, checks }
    }

    fn parts(&self) -> impl Iterator<Item = (&Compared, &[Figures])> {
        self.found.workloads.iter().zip(self.figures.iter().map(Vec::as_slice))
    }

    /// The method, in one or two sentences.
    fn how(&self) -> String {
        let Found { phase_s, warm_up_s, switch_ms, smoke, .. } = &self.found;
        let mut text = format!(
            "Steady: more than {warm_up_s} s after the start and after each move of the hot set, which moves every {phase_s} s."
        );
        if *switch_ms > 0 {
            text += &format!(
                " Every {switch_ms} ms another process gets the programs' CPU for a moment, so that pages in use look used."
            );
        }
        let most = |of: &Compared| of.rows.iter().map(|ran| ran.boots().count()).max();
        match self.found.workloads.iter().filter_map(most).max() {
            None | Some(..=1) => {}
            Some(boots) => {
                text +=
                    &format!(" Each row has {boots} boots; pictures over time are of the first.");
            }
        }
        if *smoke {
            text += " A smoke run: too short to be judged.";
        }
        text
    }
}

/// A workload, in one or two sentences.
fn workload_text(compared: &Compared) -> String {
    let Compared { description, busy_percent, rows, .. } = compared;
    let set = rows.iter().map(|ran| ran.set_bytes).max().unwrap_or(0);
    let mut text = format!("{description}; working set {}", nearfar_topology::Bytes(set));
    if *busy_percent < 100 {
        text += &format!(
            ". It works {busy_percent} % of every 10 ms and sleeps for the rest; throughput is of the time at work"
        );
    }
    text
}

/// The columns of the table, with their explanations.
const COLUMNS: [(&str, &str); 11] = [
    (
        "operations/s",
        "steady throughput: the median of the steady intervals, and of boots if there are several",
    ),
    ("of boots", "the lowest and the highest of several boots"),
    ("of DRAM", "as a share of that of DRAM only"),
    ("recovered", "share of the slowdown from DRAM only to no tiering that is gone"),
    (
        "near time",
        "where steady throughput lies between far only (0) and DRAM only (1), by time an operation",
    ),
    (
        "far lines",
        "cache lines that an operation reads from far memory once settled, as the emulator counted them, and the change from no \
         tiering",
    ),
    (
        "hot near",
        "share of the hot set in near memory, steady mean by phase, as the program asks move_pages(2) about a sample of \
         its hot pages between intervals",
    ),
    (
        "90 % after",
        "seconds from the start, and from each move, until nine tenths of the hot set were near",
    ),
    ("data near", "share of the program's memory in near memory, steady mean, by numa_maps"),
    ("moved", "pages moved in the whole run (vmstat's pgmigrate_success)"),
    ("CPU", "of one CPU: the daemon, and the kernel's kdamond and kswapd threads"),
];

/// A row's cells; dashes for unknown figures.
fn cells(figures: Option<&Figures>) -> [String; COLUMNS.len()] {
    let Some(of) = figures else { return std::array::from_fn(|_| "–".into()) };
    let share = |share: Option<f64>| {
        share.map_or_else(|| "–".into(), |share| format!("{:.0} %", share * 100.0))
    };
    let phases = |text: &dyn Fn(&acceptance::Phase) -> String| match of.phases.as_slice() {
        [] => "–".to_string(),
        phases => phases.iter().map(text).collect::<Vec<_>>().join(", "),
    };
    [
        grouped(of.steady_operations_per_s),
        match of.boots {
            ..=1 => "–".into(),
            _ => of.between.map(grouped).join(" to "),
        },
        of.to_dram.map_or_else(|| "–".into(), |ratio| format!("{ratio:.3}")),
        if matches!(of.row, Row::Dram | Row::None) { "–".into() } else { share(of.recovered) },
        share(of.near_by_time),
        far_lines(of),
        phases(&|phase| share(phase.mean)),
        phases(&|phase| phase.near_after_s.map_or_else(|| "never".into(), |s| format!("{s:.0} s"))),
        share(of.data_near),
        nearfar_topology::Bytes(of.moved_bytes).to_string(),
        format!("{:.1} % + {:.1} %", of.daemon_cpu * 100.0, of.kernel_cpu * 100.0),
    ]
}

fn far_lines(of: &Figures) -> String {
    let Some(lines) = of.far_lines else { return "–".into() };
    match of.far_lines_gone.filter(|_| of.row != Row::None) {
        Some(gone) => format!("{lines:.1} ({:+.0} %)", gone * -100.0),
        None => format!("{lines:.1}"),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "operations a second, rounded for people"
)]
fn grouped(rate: f64) -> String {
    nearfar_report::words::grouped(rate.max(0.0).round() as u64)
}

/// A check's figure and its bound.
fn figure_and_bound(check: &Check) -> [String; 2] {
    let show = |value: f64| match check.unit {
        Unit::Share => format!("{:.1} %", value * 100.0),
        Unit::Ratio => format!("{value:.3}"),
        Unit::Mib => format!("{value:.1} MiB"),
    };
    let bound = if check.at_most { "at most" } else { "at least" };
    [check.found.map_or_else(|| "–".into(), show), format!("{bound} {}", show(check.wanted))]
}

fn verdict(check: &Check) -> &'static str {
    match (check.reached, check.found) {
        (true, _) => "reached",
        (false, Some(_)) => "MISSED",
        (false, None) => "not told",
    }
}
