//! Counters of the plugin, as a text file for Prometheus' node exporter (textfile collector).

use std::fmt::Write as _;

use crate::verify::Verdict;

/// Counters since the plugin started. No label names a container, so the number of series is fixed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Containers with a placement that exist now.
    pub containers: u64,
    /// Containers whose settings were adjusted.
    pub adjusted: u64,
    /// Containers that were refused, because their annotations can't be met.
    pub refused: u64,
    /// Verifications by result: as asked, not yet touched, wrong, unknown.
    pub verified: [u64; 4],
    /// Containers that were ended, because their placement is wrong.
    pub evicted: u64,
    /// Connections to the runtime.
    pub connections: u64,
}

const RESULTS: [&str; 4] = ["as_asked", "not_touched", "wrong", "unknown"];

impl Metrics {
    /// Counts a verification.
    pub fn count(&mut self, verdict: &Verdict) {
        let at = RESULTS.iter().position(|word| *word == verdict.word());
        if let Some(count) = at.and_then(|at| self.verified.get_mut(at)) {
            *count += 1;
        }
    }

    /// The text in Prometheus' format.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        let mut metric = |name: &str, kind: &str, help: &str, series: &[(&str, u64)]| {
            // Writing to a string can't fail.
            let _ =
                writeln!(out, "# HELP nearfar_nri_{name} {help}\n# TYPE nearfar_nri_{name} {kind}");
            for (labels, value) in series {
                let _ = writeln!(out, "nearfar_nri_{name}{labels} {value}");
            }
        };
        let one = |value| [("", value)];
        metric("containers", "gauge", "Containers with a memory placement.", &one(self.containers));
        metric(
            "adjusted_total",
            "counter",
            "Containers given a memory placement.",
            &one(self.adjusted),
        );
        let refused = "Containers refused because their placement is not possible.";
        metric("refused_total", "counter", refused, &one(self.refused));
        let labels = RESULTS.map(|word| format!("{{result=\"{word}\"}}"));
        let series: Vec<_> = labels.iter().map(String::as_str).zip(self.verified).collect();
        metric("verified_total", "counter", "Verifications of placements by result.", &series);
        let evicted = "Containers ended because their placement is wrong.";
        metric("evicted_total", "counter", evicted, &one(self.evicted));
        let connections = "Connections to the container runtime.";
        metric("connections_total", "counter", connections, &one(self.connections));
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_result_has_its_series() {
        let mut metrics = Metrics { containers: 2, ..Metrics::default() };
        for verdict in [Verdict::AsAsked, Verdict::AsAsked, Verdict::Wrong("x".into())] {
            metrics.count(&verdict);
        }
        let text = metrics.text();
        for line in [
            "nearfar_nri_containers 2",
            "nearfar_nri_verified_total{result=\"as_asked\"} 2",
            "nearfar_nri_verified_total{result=\"wrong\"} 1",
            "nearfar_nri_verified_total{result=\"unknown\"} 0",
            "# TYPE nearfar_nri_evicted_total counter",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }
}
