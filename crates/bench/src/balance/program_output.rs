//! Parses the output of a compared program: lines of JSON (`lab/programs/team.h`, `workload.h`).

use anyhow::Context as _;
use serde_json::Value;

use super::results::Window;

/// The parsed output.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Output {
    /// Start of its timed part, in seconds since the machine was powered on.
    pub(crate) began_s: f64,
    /// Its duration.
    pub(crate) seconds: f64,
    /// Throughput over time.
    pub(crate) windows: Vec<Window>,
}

/// Parses the output.
///
/// # Errors
/// A line that is not JSON, or lacks a field; a missing start or end.
pub(crate) fn understood(text: &str) -> anyhow::Result<Output> {
    let (mut began, mut seconds, mut windows) = (None, None, Vec::new());
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let said: Value = serde_json::from_str(line)
            .with_context(|| format!("a line of the program is no JSON: {line}"))?;
        if said["done"] == true {
            seconds = said["seconds"].as_f64();
        } else if said.get("end_s").is_some() {
            let window = serde_json::from_value(said);
            windows.push(window.with_context(|| format!("not an interval: {line}"))?);
        } else {
            began = said["began_s"].as_f64().or(began);
        }
    }
    let began_s = began.context("the program did not say when it began")?;
    let seconds = seconds.context("the program's last line, the one with \"done\", is missing")?;
    Ok(Output { began_s, seconds, windows })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = r#"{"program":"x","began_s":3.5}
{"program":"x","end_s":0.5,"busy_s":0.4,"operations":10,"operations_per_s":20.0}
{"program":"x","done":true,"seconds":1.25,"operations":10}
"#;

    #[test]
    fn the_parser_separates_start_intervals_and_end() {
        let window = Window { end_s: 0.5, busy_s: 0.4, operations: 10.0 };
        let said = Output { began_s: 3.5, seconds: 1.25, windows: vec![window] };
        assert_eq!(understood(LINES).unwrap(), said);
    }

    #[test]
    fn missing_output_is_reported_by_name() {
        let without = |what: &str| {
            let lines: String = LINES.lines().filter(|line| !line.contains(what)).collect();
            let lines = lines.replace("}{", "}\n{");
            understood(&lines).unwrap_err().to_string()
        };
        assert!(without("began_s").contains("when it began"));
        assert!(without("done").contains("last line"));
        let odd = LINES.replace("\"busy_s\":0.4,", "");
        assert!(understood(&odd).unwrap_err().to_string().contains("an interval"));
        assert!(understood("Killed").unwrap_err().to_string().contains("no JSON"));
    }
}
