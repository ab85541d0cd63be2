//! Published figures beside the model's, with the model's free parameters and the error of its solver. As JSON and as
//! text.

use std::fmt::Write as _;

use nearfar_command::output::wrapped;
use nearfar_sim::machine::Machine;
use nearfar_sim::published::even::{self, Solvers};
use nearfar_sim::published::expansion::{self, Measured, Prediction};
use nearfar_sim::published::parameters::{Parameter, parameters};
use nearfar_sim::published::{self, How, Row};
use serde::Serialize;

/// The results: JSON `nearfar.sim-validation/2`.
#[derive(Debug, Serialize)]
pub struct Validation {
    schema: &'static str,
    simulated: bool,
    within_bounds: bool,
    counts: Counts,
    rows: Vec<Checked>,
    parameters: Vec<Free>,
    service_times: &'static str,
    solvers: Vec<Solved>,
    predictions: Vec<Predicted>,
    best_read_share_of_cxl: f64,
}

/// A gain predicted from measured curves, with nothing fitted; it may miss.
#[derive(Debug, Serialize)]
struct Predicted {
    source: &'static str,
    what: &'static str,
    assumed: &'static str,
    paper: f64,
    model: f64,
    far_share: f64,
    hit: bool,
}

/// Figures of each class.
#[derive(Debug, Serialize)]
struct Counts {
    fitted: usize,
    implied: usize,
    predicted: usize,
    limit: usize,
}

/// A published figure and the model's.
#[derive(Debug, Serialize)]
struct Checked {
    table: &'static str,
    what: String,
    unit: &'static str,
    paper: f64,
    model: f64,
    difference: f64,
    tolerance: f64,
    how: &'static str,
    because: &'static str,
    /// Only of fitted figures: the difference after a refit without this figure; null if nothing is left to predict.
    left_out_difference: Option<f64>,
    within_bounds: bool,
}

/// A free parameter.
#[derive(Debug, Serialize)]
struct Free {
    study: &'static str,
    name: &'static str,
    /// Null for a choice between alternatives.
    value: Option<f64>,
    unit: &'static str,
    fitted_to: &'static str,
}

/// A latency by both solvers, in cycles.
#[derive(Debug, Serialize)]
struct Solved {
    program: &'static str,
    placement: &'static str,
    lines_of_first_node: f64,
    lines_of_other_nodes: f64,
    schweitzer_cycles: f64,
    exact_cycles: f64,
    paper_cycles: f64,
}

/// Service times of the model, and the effect of the assumption.
const SERVICE: &str = "Service times are exponentially distributed, as mean value analysis assumes. A real controller needs \
     nearly constant time for a line, so the model has lines wait a little too long.";

impl Validation {
    /// Compares all published figures; `four_nodes` is the machine of the traffic management studies.
    ///
    /// # Errors
    /// A machine that the studies' programs do not support, or curves that make no machine.
    pub fn of(four_nodes: &Machine, measured: &Measured) -> anyhow::Result<Self> {
        let rows = published::rows(four_nodes)?;
        let count = |how| rows.iter().filter(|row| row.how == how).count();
        let counts = Counts {
            fitted: count(How::Fitted),
            implied: count(How::Implied),
            predicted: count(How::Predicted),
            limit: count(How::Limit),
        };
        Ok(Self {
            schema: "nearfar.sim-validation/2",
            simulated: true,
            within_bounds: !rows.is_empty() && rows.iter().all(Row::within),
            counts,
            rows: rows.iter().map(checked).collect(),
            parameters: parameters(four_nodes).iter().map(free).collect(),
            service_times: "exponential",
            solvers: even::solvers(four_nodes).iter().map(solved).collect(),
            predictions: expansion::predictions(measured)?.iter().map(predicted).collect(),
            best_read_share_of_cxl: expansion::best_mix(&measured.cxl),
        })
    }

    /// Whether every row is within its bounds.
    pub fn within(&self) -> bool {
        self.within_bounds
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        let mut out = String::from(
            "SIMULATED figures beside published ones, all with one set of parameters\n",
        );
        let mut table = "";
        for row in &self.rows {
            if row.table != table {
                table = row.table;
                let _ = writeln!(
                    out,
                    "\n{table:<40} {:>8} {:>8} {:>8}  {:<9} {:>8}",
                    "paper", "model", "off by", "class", "left out"
                );
            }
            row.text(&mut out);
        }
        self.summary(&mut out);
        self.parameters(&mut out);
        self.solvers(&mut out);
        self.predictions(&mut out);
        out
    }

    fn predictions(&self, out: &mut String) {
        let _ = writeln!(
            out,
            "\n{:<72} {:>6} {:>6} {:>8}",
            "Predicted from measured curves, nothing fitted", "paper", "model", "CXL"
        );
        let mut source = "";
        for row in &self.predictions {
            if row.source != source {
                source = row.source;
                let _ = writeln!(out, "{source}");
            }
            let what = format!("  {} ({})", row.what, row.assumed);
            let far = format!("{:.0} %", row.far_share * 100.0);
            let miss = if row.hit { "" } else { "  miss" };
            let _ =
                writeln!(out, "{what:<72} {:>6.2} {:>6.2} {far:>8}{miss}", row.paper, row.model);
        }
        let hits = self.predictions.iter().filter(|row| row.hit).count();
        let text = format!(
            "{hits} of {} are within {:.0} % of the published throughput. The CXL device has its highest bandwidth at a \
             share of reads of {:.2} (CXL-DMSim, arXiv 2411.02282: 0.74), which is an input: its curve was measured there.",
            self.predictions.len(),
            expansion::HIT * 100.0,
            self.best_read_share_of_cxl
        );
        wrapped(out, "", &text, 0);
    }

    fn summary(&self, out: &mut String) {
        let within = self.rows.iter().filter(|row| row.within_bounds).count();
        let Counts { fitted, implied, predicted, limit } = self.counts;
        let text = format!(
            "{within} of {} figures are within bounds: {fitted} fitted, {implied} implied by an input, {predicted} \
             predicted, {limit} limits. Only the {predicted} predicted ones are evidence for the model.",
            self.rows.len()
        );
        wrapped(out, "\n", &text, 0);
        for (class, meaning) in CLASSES {
            wrapped(out, &format!("{class}: "), meaning, 2);
        }
        let draws = published::carrefour::DRAWS;
        let text = format!(
            "Figures that depend on chance (which pages are hot) are means of {draws} draws."
        );
        wrapped(out, "", &text, 0);
        out.push_str("\nImplied figures:\n");
        let implied = || self.rows.iter().filter(|row| !row.because.is_empty());
        let reasons: std::collections::BTreeSet<&str> = implied().map(|row| row.because).collect();
        for because in reasons {
            let of: Vec<String> = implied()
                .filter(|row| row.because == because)
                .map(|row| format!("{}: {}", row.table, row.what))
                .collect();
            wrapped(out, &format!("  {because}: "), &format!("{}.", of.join("; ")), 4);
        }
    }

    fn parameters(&self, out: &mut String) {
        let numbers = self.parameters.iter().filter(|of| of.value.is_some()).count();
        let _ = writeln!(
            out,
            "\nFree parameters: {numbers} numbers and {} choice",
            self.parameters.len() - numbers
        );
        for of in &self.parameters {
            let value = of.value.map_or("chosen".into(), |value| {
                format!("{} {}", (value * 1000.0).round() / 1000.0, of.unit)
            });
            let lead = format!("  {:<25} {:<54} {:<13} ", of.study, of.name, value.trim_end());
            let _ = writeln!(out, "{lead} {}", of.fitted_to);
        }
    }

    fn solvers(&self, out: &mut String) {
        wrapped(out, "\n", SERVICE, 0);
        let _ = writeln!(
            out,
            "\nLatency in cycles by solver, lines rounded{:>16} {:>10} {:>8} {:>8}",
            "lines", "Schweitzer", "exact", "paper"
        );
        for of in &self.solvers {
            let lines = format!("{}, {}", of.lines_of_first_node, of.lines_of_other_nodes);
            let _ = writeln!(
                out,
                "  {:<40}{lines:>16} {:>10.0} {:>8.0} {:>8.0}",
                format!("{}, {}", of.program, of.placement),
                of.schweitzer_cycles,
                of.exact_cycles,
                of.paper_cycles
            );
        }
        wrapped(out, "", SOLVERS, 0);
    }
}

impl Checked {
    fn text(&self, out: &mut String) {
        let figure = |value: f64| match self.unit {
            "cycles" => format!("{value:.0}"),
            "ratio" => format!("{value:.2}"),
            "gain" => format!("{:+.0} %", value * 100.0),
            _ => format!("{:.1} %", value * 100.0),
        };
        let left_out = match (self.how, self.left_out_difference) {
            ("fitted", Some(off)) => format!("{:+.1} %", off * 100.0),
            ("fitted", None) => "none".into(),
            _ => String::new(),
        };
        let verdict = if self.within_bounds { "" } else { "  OUT OF BOUNDS" };
        let _ = writeln!(
            out,
            "  {:<38} {:>8} {:>8} {:>+6.1} %  {:<9} {left_out:>8}  (bound {:.0} %){verdict}",
            self.what,
            figure(self.paper),
            figure(self.model),
            self.difference * 100.0,
            self.how,
            self.tolerance * 100.0,
        );
    }
}

fn predicted(row: &Prediction) -> Predicted {
    Predicted {
        source: row.source,
        what: row.what,
        assumed: row.assumed,
        paper: row.paper,
        model: row.model,
        far_share: row.far,
        hit: row.hits(),
    }
}

fn checked(row: &Row) -> Checked {
    Checked {
        table: row.table,
        what: row.what.clone(),
        unit: row.unit.word(),
        paper: row.paper,
        model: row.model,
        difference: row.difference(),
        tolerance: row.tolerance,
        how: row.how.word(),
        because: row.because,
        left_out_difference: row.left_out,
        within_bounds: row.within(),
    }
}

fn free(of: &Parameter) -> Free {
    let Parameter { study, name, value, unit, fitted_to } = *of;
    Free { study, name, value, unit, fitted_to }
}

fn solved(of: &Solvers) -> Solved {
    Solved {
        program: of.program,
        placement: of.placement,
        lines_of_first_node: of.lines[0],
        lines_of_other_nodes: of.lines[1],
        schweitzer_cycles: of.approximate,
        exact_cycles: of.exact,
        paper_cycles: of.paper,
    }
}

const CLASSES: [(&str, &str); 4] = [
    (
        "Fitted",
        "a parameter was chosen for this figure. Left out: the difference once its parameters are refitted \
         to the study's other figures; none: the others do not determine the parameters, so nothing is left to predict.",
    ),
    (
        "Implied",
        "the figure follows from an input or from the way it is computed; the model can't fail it.",
    ),
    ("Predicted", "no parameter was chosen for it, and the model could have failed it."),
    ("Limit", "the published figure must not be exceeded."),
];
const SOLVERS: &str = "The model uses Schweitzer's approximation, and its parameters are fitted with it, so they absorb its error. \
     Exact analysis needs whole numbers of lines.";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::{FOUR_NODES, machine, measured};

    #[test]
    fn the_text_counts_classes_lists_parameters_and_names_the_solver() {
        let validation =
            Validation::of(&machine(FOUR_NODES).unwrap(), &measured().unwrap()).unwrap();
        let text = validation.text();
        for part in [
            "44 of 44 figures are within bounds: 18 fitted, 16 implied by an input, 8 predicted, 2 limits",
            "Free parameters: 21 numbers and 1 choice",
            "80 cycles",
            "follows from the input 97/1/1/1",
            "exponentially distributed",
            "streamcluster, interleaved",
        ] {
            let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(words(&text).contains(&words(part)), "{part}: {text}");
        }
        assert!(
            validation.within() && text.lines().all(|line| line.chars().count() <= 200),
            "{text}"
        );
    }
}
