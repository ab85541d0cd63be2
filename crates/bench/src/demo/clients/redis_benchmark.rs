//! Parser of redis-benchmark's report for one test: `-t get --precision 3`, not `--csv`, which has no P99.9.
//!
//! It uses two parts: `throughput summary: 44.54 requests per second`, and the table of percentiles, with lines such as
//! `99.219% <= 3.119 milliseconds (cumulative count 19844)`. Its steps halve the rest each time (50, 75, 87.5, …), so
//! P99 and P99.9 are the first steps at or above them: 99.219 and 99.902. Progress lines end in `\r`.

use super::{Measured, NotUnderstood};
use nearfar_report::model::Latency;

/// Parses one test's report.
pub(crate) fn parse(text: &str) -> Result<Measured, NotUnderstood> {
    let missing = |missing| NotUnderstood { client: "redis-benchmark", missing };
    let lines = || text.split(['\n', '\r']).map(str::trim);
    let throughput = lines().find_map(|line| line.strip_prefix("throughput summary:"));
    let operations_per_second = throughput
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .filter(|rate: &f64| rate.is_finite() && *rate > 0.0)
        .ok_or_else(|| missing("throughput summary"))?;
    let table: Vec<(f64, u64)> = lines()
        .skip_while(|line| !line.starts_with("Latency by percentile distribution"))
        .take_while(|line| !line.starts_with("Cumulative distribution"))
        .filter_map(step)
        .collect();
    if table.is_empty() {
        return Err(missing("table of percentiles"));
    }
    let at = |wanted: f64| table.iter().find(|(percent, _)| *percent >= wanted).map(|(_, ns)| *ns);
    let latency = Latency { p50_ns: at(50.0), p99_ns: at(99.0), p999_ns: at(99.9) };
    Ok(Measured { operations_per_second, latency })
}

/// `99.219% <= 3.119 milliseconds (…)`: the percentile, and nanoseconds.
fn step(line: &str) -> Option<(f64, u64)> {
    let (percent, rest) = line.split_once("% <= ")?;
    let milliseconds: f64 = rest.split_once(" milliseconds")?.0.parse().ok()?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "float to integer casts saturate"
    )]
    let ns = (milliseconds * 1e6).round() as u64;
    Some((percent.parse().ok()?, ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORDED: &str = include_str!("../../../../../fixtures/demo/redis-benchmark.txt");

    #[test]
    fn a_recorded_report_is_understood() {
        let found = parse(RECORDED).unwrap();
        let summary = RECORDED.lines().find(|line| line.contains("throughput summary")).unwrap();
        assert!(summary.contains(&format!("{:.2} requests", found.operations_per_second)));
        let Latency { p50_ns, p99_ns, p999_ns } = found.latency;
        assert!(p50_ns > Some(0) && p50_ns <= p99_ns && p99_ns <= p999_ns, "{found:?}");
    }

    #[test]
    fn the_step_at_or_above_a_percentile_is_taken() {
        let text = "Latency by percentile distribution:\n50.000% <= 0.095 milliseconds (cumulative count 10)\n\
                    98.438% <= 0.335 milliseconds (c)\n99.219% <= 3.119 milliseconds (c)\n\
                    Cumulative distribution of latencies:\n99.915% <= 5.103 milliseconds (c)\n\
                    throughput summary: 38834.95 requests per second\n";
        let latency = Latency { p50_ns: Some(95_000), p99_ns: Some(3_119_000), p999_ns: None };
        assert_eq!(parse(text), Ok(Measured { operations_per_second: 38_834.95, latency }));
    }

    #[test]
    fn other_output_is_rejected_with_the_missing_part() {
        for text in
            ["", "Could not connect to Redis", "throughput summary: nan requests per second"]
        {
            assert_eq!(parse(text).unwrap_err().missing, "throughput summary", "{text}");
        }
        let error = parse("throughput summary: 5 requests per second").unwrap_err();
        assert_eq!(error.missing, "table of percentiles");
    }
}
