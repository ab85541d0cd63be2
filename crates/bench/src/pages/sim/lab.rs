//! The lab's figures and the model's: JSON `nearfar.sim-lab/1`, and text.

use std::fmt::Write as _;

use serde::Serialize;

use crate::simulate::lab::{Case, TOLERANCE};
use nearfar_command::output::wrapped;

const MEANING: &str = "Throughput as a multiple of first touch's. Emulated: a program on a real kernel in the lab, each access timed. \
    Simulated: the queueing model, on the machine file's figures as the lab goes by them. Fitted: a program's lines under way and time \
    between were chosen for that row, and for first touch. No claim about any hardware.";

/// All programs.
#[derive(Debug, Serialize)]
pub struct Document {
    schema: &'static str,
    machine: String,
    kernel: String,
    tolerance: f64,
    within: bool,
    cases: Vec<Case>,
}

impl Document {
    /// The document of a comparison on `machine` with `kernel`.
    #[must_use]
    pub fn of((machine, kernel): (&str, &str), cases: Vec<Case>) -> Self {
        let within = cases.iter().all(Case::is_within);
        let (machine, kernel) = (machine.to_owned(), kernel.to_owned());
        Self { schema: "nearfar.sim-lab/1", machine, kernel, tolerance: TOLERANCE, within, cases }
    }

    /// Whether all figures are within bounds and the rows in order.
    pub fn is_within(&self) -> bool {
        self.within
    }
}

/// The document as text.
pub fn text(document: &Document) -> String {
    let mut out = format!(
        "EMULATED and SIMULATED: machine {}, kernel {}, results of the lab and of the model\n",
        document.machine, document.kernel
    );
    for case in &document.cases {
        let _ = writeln!(
            out,
            "\n{:<24} {:>9} {:>9} {:>8}   fitted: {:.1} lines under way, {:.0} ns between",
            case.program.name(),
            "emulated",
            "simulated",
            "off by",
            case.lines,
            case.think_ns
        );
        for row in &case.rows {
            let how = if row.is_fitted { "fitted" } else { "predicted" };
            let out_of = if row.difference.abs() > TOLERANCE { ", OUT OF BOUNDS" } else { "" };
            let _ = writeln!(
                out,
                "  {:<22} {:>8.2}× {:>8.2}× {:>+6.1} %   {how}{out_of}",
                row.row,
                row.lab,
                row.simulated,
                row.difference * 100.0
            );
        }
        let order = if case.same_ranking { "the same" } else { "NOT THE SAME" };
        let _ = writeln!(out, "  order of rows: {order}");
    }
    out.push('\n');
    wrapped(&mut out, "", MEANING, 0);
    let bounds = format!(
        "Bounds: {:.0} %. Rows that either has within 3 % of each other have no order.",
        TOLERANCE * 100.0
    );
    wrapped(&mut out, "", &bounds, 0);
    out
}
