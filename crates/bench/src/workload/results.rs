//! Results of a workload: JSON `nearfar.bench-workload/1`, and text.
//!
//! The steady figure is the median of the intervals of the second half: a tiering system's initial migrations are over
//! by then.

use std::fmt::Write as _;

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::effort::Effort;
use nearfar_report::model::{Machine, Resident};
use nearfar_report::words;

/// The `schema` of a [`Found`].
pub(crate) const SCHEMA: &str = "nearfar.bench-workload/1";

/// A workload on a machine, with one or several placements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Found {
    /// [`SCHEMA`].
    pub(crate) schema: String,
    /// Its name.
    pub(crate) workload: String,
    /// Its description.
    pub(crate) description: String,
    /// The machine.
    pub machine: Machine,
    /// The working set.
    pub(crate) set_bytes: u64,
    /// One per placement.
    pub(crate) runs: Vec<Run>,
}

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Run {
    /// `near`, `far` or `default`.
    pub(crate) placement: String,
    /// Cold data allocated first.
    pub(crate) filler_bytes: u64,
    /// Start of the timed part, by the machine's clock since power-on.
    #[serde(default)]
    pub(crate) began_s: f64,
    /// The CPU dedicated to the programs.
    #[serde(default)]
    pub(crate) cpu: Option<u32>,
    /// Over the whole run.
    pub(crate) operations_per_s: f64,
    /// Median of the intervals of the second half.
    pub(crate) steady_operations_per_s: f64,
    /// Throughput over time.
    pub(crate) intervals: Vec<Interval>,
    /// Residency of the data, over time.
    pub(crate) residency: Vec<Look>,
    /// Migrations in the whole run, including the start of the tiering system, and their cost.
    pub(crate) effort: Effort,
    /// The program's final output.
    pub(crate) said: Value,
    /// Output of the command before the timed part.
    #[serde(default)]
    pub(crate) said_before: String,
    /// Output of the command after it.
    #[serde(default)]
    pub(crate) said_after: String,
    /// The command lines.
    pub(crate) commands: Vec<String>,
}

/// An interval, as reported by the program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Interval {
    /// Its end, from the start of the timed part.
    pub(crate) end_s: f64,
    /// Operations in it.
    pub(crate) operations: u64,
    /// Throughput in it.
    pub(crate) operations_per_s: f64,
    /// Further fields of the program: latencies, residency of the hot set.
    #[serde(flatten)]
    pub(crate) more: serde_json::Map<String, Value>,
}

/// Residency of the process with the data at one time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Look {
    /// The time, from the start of the timed part.
    pub(crate) at_s: f64,
    /// Bytes per node.
    pub(crate) nodes: Vec<Resident>,
    /// Migrations since then, and their cost.
    pub(crate) effort: Effort,
}

/// Parses the lines of a program: intervals, and the last line.
pub(crate) fn understood(text: &str) -> anyhow::Result<(Vec<Interval>, Value)> {
    let (mut intervals, mut said) = (Vec::new(), None);
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let value: Value = serde_json::from_str(line)
            .with_context(|| format!("a line of the workload is no JSON: {line}"))?;
        if value["done"] == true {
            said = Some(value);
        } else if value.get("end_s").is_some() {
            let interval = serde_json::from_value(value);
            intervals.push(interval.with_context(|| format!("not an interval: {line}"))?);
        }
    }
    let Some(said) = said else {
        bail!("the workload's last line, the one with \"done\", is missing")
    };
    Ok((intervals, said))
}

/// The median of the second half; 0 without intervals.
pub(crate) fn steady(intervals: &[Interval]) -> f64 {
    let half = &intervals[intervals.len() / 2..];
    nearfar_topology::median(half.iter().map(|interval| interval.operations_per_s)).unwrap_or(0.0)
}

/// One line of text per placement.
pub(crate) fn text(found: &Found) -> String {
    let Found { workload, description, machine, set_bytes, runs, .. } = found;
    let set = nearfar_topology::Bytes(*set_bytes);
    let mut out =
        format!("{}\n{workload}: {description}; working set {set}\n", words::about(machine));
    let first = runs.first().map_or(0.0, |run| run.steady_operations_per_s);
    for run in runs {
        let Run { placement, operations_per_s, steady_operations_per_s, .. } = run;
        let ratio = if first > 0.0 { steady_operations_per_s / first } else { 0.0 };
        let residency =
            run.residency.last().map_or("unknown".into(), |look| words::residency(&look.nodes));
        let _ = writeln!(
            out,
            "  {placement:<8} {steady_operations_per_s:>12.0} operations/s steady ({ratio:.3})  \
             {operations_per_s:>12.0} overall  memory: {residency}"
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = r#"{"program":"x","region_bytes":1,"pid":1}
{"program":"x","end_s":0.5,"operations":10,"operations_per_s":20.0,"hot_at_bytes":7}
{"program":"x","end_s":1.0,"operations":40,"operations_per_s":80.0}
{"program":"x","end_s":1.5,"operations":50,"operations_per_s":100.0}
{"program":"x","done":true,"operations":100}
"#;

    #[test]
    fn the_parser_separates_intervals_and_end_from_other_output() {
        let (intervals, said) = understood(LINES).unwrap();
        assert_eq!(intervals.len(), 3);
        assert_eq!(intervals[0].more["hot_at_bytes"], 7);
        assert_eq!(said["operations"], 100);
        assert!((steady(&intervals) - 90.0).abs() < 1e-9);
        assert!(steady(&[]).abs() < 1e-9);
    }

    #[test]
    fn output_of_an_unfinished_program_is_an_error() {
        let cut = LINES.rsplit_once("{\"program\":\"x\",\"done\"").unwrap().0;
        assert!(understood(cut).unwrap_err().to_string().contains("last line"));
        let odd = LINES.replace("\"operations\":10,", "");
        assert!(understood(&odd).unwrap_err().to_string().contains("an interval"));
        assert!(understood("Segmentation fault").unwrap_err().to_string().contains("no JSON"));
    }
}
