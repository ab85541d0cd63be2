//! The results of a probe: the type, its JSON, and queries for other commands.
//!
//! Format `nearfar.probe/1`: one JSON object. `source` is `measured` or `emulated` (in the lab; values are then of the
//! modelled machine, already divided by its slow motion). `pairs` has one entry per measured CPU node and memory node,
//! `skipped` one per pair that was not measured, with the reason. Latencies are nanoseconds, bandwidths bytes per
//! second with reads and write-backs counted together; each is the median of repeats, with the extremes and
//! `spread_bp`, their distance as a share of the median. Readers accept unknown keys and refuse another major number.

use std::collections::BTreeMap;

use nearfar_topology::{
    BasisPoints, Bytes, BytesPerSecond, CpuId, Measured, Mix, Nanoseconds, NodeId, NodeSet,
};
use serde::{Deserialize, Serialize};

use crate::stats::Spread;

/// The name and major number of the format.
pub const SCHEMA: &str = "nearfar.probe/1";

/// A complete probe of one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbeReport {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// Whether the machine is real or modelled.
    pub source: Source,
    /// The machine.
    pub machine: Machine,
    /// Time of the probe, in seconds since 1970.
    pub taken_unix_s: u64,
    /// Method of the probe.
    pub method: Method,
    /// Results, by CPU node, then memory node.
    pub pairs: Vec<Pair>,
    /// Pairs without a result.
    #[serde(default)]
    pub skipped: Vec<Skipped>,
    /// Warnings that limit trust in the values.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// Source of the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A real machine.
    Measured,
    /// The lab's model of a machine.
    Emulated,
}

/// The machine and its kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The topology's fingerprint: values are reused only where it matches.
    pub fingerprint: String,
    /// The kernel's release.
    pub kernel: String,
    /// The lab's machine, in the lab.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lab: Option<Lab>,
}

/// The lab's description of itself in the guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lab {
    /// The machine file's name.
    pub machine: String,
    /// `virtual` (guest clocks show modelled time) or `wait` (real waits, the machine runs in slow motion).
    pub clock: String,
    /// Slow-motion factor of the guest relative to the modelled machine; values in a report are already corrected.
    pub slow_motion: f64,
    /// The modelled last-level cache of a node, where it differs from the one in the guest's sysfs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub llc_kib: Option<u64>,
}

/// Method by which the values were obtained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Method {
    /// Whether this was a quick probe.
    pub quick: bool,
    /// Bytes per line.
    pub line_bytes: u64,
    /// Size of the last-level cache that the buffers were sized for.
    pub llc_bytes: Bytes,
    /// Pages of the buffers: `huge`, `small`, or `mixed`.
    pub pages: String,
    /// How latencies avoid TLB misses.
    pub tlb: String,
    /// Description of the loops.
    pub loops: String,
}

/// Results for one CPU node and one memory node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// The node of the CPUs that measured.
    pub cpu_node: NodeId,
    /// The node of the memory that was measured.
    pub memory_node: NodeId,
    /// The CPUs used.
    pub cpus: Vec<CpuId>,
    /// Latency of a dependent load on an otherwise idle machine.
    pub idle_latency: Latency,
    /// Total bandwidth of these CPUs, per mix, in the requested order.
    pub bandwidth: Vec<Bandwidth>,
    /// Latency as a function of load.
    pub loaded: LoadedCurve,
}

/// A latency.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// The median of repeats.
    pub median_ns: f64,
    /// The smallest.
    pub min_ns: f64,
    /// The largest.
    pub max_ns: f64,
    /// (largest - smallest) / median.
    pub spread_bp: BasisPoints,
}

/// A bandwidth at one mix.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bandwidth {
    /// The mix.
    pub mix: Mix,
    /// The median of repeats.
    pub median_bytes_per_second: BytesPerSecond,
    /// The smallest.
    pub min_bytes_per_second: BytesPerSecond,
    /// The largest.
    pub max_bytes_per_second: BytesPerSecond,
    /// (largest - smallest) / median.
    pub spread_bp: BasisPoints,
}

/// Latency as a function of load, from idle to saturation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadedCurve {
    /// In order of offered load; empty if not measured.
    pub points: Vec<LoadedPoint>,
    /// The reason why there is no curve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_measured: Option<String>,
}

/// One point of the curve: all CPUs but one read, that one measures latency.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadedPoint {
    /// Target read rate of the loading CPUs; absent for the maximum.
    pub offered_bytes_per_second: Option<BytesPerSecond>,
    /// Read rate achieved, including the measuring CPU.
    pub achieved_bytes_per_second: BytesPerSecond,
    /// Median latency of a dependent load at this load.
    pub latency_ns: f64,
}

/// A pair that was not measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Skipped {
    /// The node of the CPUs.
    pub cpu_node: NodeId,
    /// The node of the memory.
    pub memory_node: NodeId,
    /// The reason.
    pub reason: String,
}

/// Reasons why a text is not a usable report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// Not JSON, or keys are missing or of the wrong type.
    #[error("not a probe report ({0}); measure again with `nearfar probe`")]
    Malformed(#[from] serde_json::Error),
    /// JSON of another schema.
    #[error(
        "the schema is {found}, not {SCHEMA}; give a file that `nearfar probe` of this version wrote"
    )]
    Schema {
        /// The `schema` field, or a note that it is missing.
        found: String,
    },
    /// Impossible values.
    #[error("not a believable probe report: {0}; measure again with `nearfar probe`")]
    Absurd(String),
}

impl From<Spread<f64>> for Latency {
    fn from(of: Spread<f64>) -> Self {
        Self { median_ns: of.median, min_ns: of.min, max_ns: of.max, spread_bp: of.relative }
    }
}

impl Bandwidth {
    /// The results of a mix.
    #[must_use]
    pub fn new(mix: Mix, of: Spread<u64>) -> Self {
        Self {
            mix,
            median_bytes_per_second: BytesPerSecond(of.median),
            min_bytes_per_second: BytesPerSecond(of.min),
            max_bytes_per_second: BytesPerSecond(of.max),
            spread_bp: of.relative,
        }
    }
}

impl ProbeReport {
    /// Parses a report, and refuses values that are impossible on any machine.
    ///
    /// # Errors
    /// [`ReportError`], for any text that is not a report of this version.
    pub fn parse(text: &str) -> Result<Self, ReportError> {
        let value: serde_json::Value = serde_json::from_str(text)?;
        let schema = value.get("schema").and_then(serde_json::Value::as_str);
        if schema != Some(SCHEMA) {
            let found = schema.map_or("absent".into(), |found| {
                format!("`{}`", found.chars().take(60).collect::<String>().escape_debug())
            });
            return Err(ReportError::Schema { found });
        }
        let report: Self = serde_json::from_value(value)?;
        report.check().map_err(ReportError::Absurd)?;
        Ok(report)
    }

    /// The report as JSON, with a newline at the end.
    ///
    /// # Errors
    /// None in practice: every field has a JSON form.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(self).map(|text| text + "\n")
    }

    /// The figures of each memory node from its best CPUs: the least idle latency, the most read bandwidth.
    #[must_use]
    pub fn best(&self) -> BTreeMap<NodeId, Measured> {
        let mut best: BTreeMap<NodeId, Measured> = BTreeMap::new();
        for pair in &self.pairs {
            let reads = |one: &&Bandwidth| one.mix == Mix::READS;
            let Some(rate) = pair.bandwidth.iter().find(reads) else { continue };
            // A load takes less than a second.
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
            let latency = Nanoseconds(pair.idle_latency.median_ns.round().clamp(1.0, 1e9) as u64);
            let rate = rate.median_bytes_per_second;
            best.entry(pair.memory_node)
                .and_modify(|of| {
                    of.latency = of.latency.min(latency);
                    of.read_bandwidth = of.read_bandwidth.max(rate);
                })
                .or_insert(Measured { latency, read_bandwidth: rate });
        }
        best
    }

    /// The results of one pair.
    #[must_use]
    pub fn pair(&self, cpu_node: NodeId, memory_node: NodeId) -> Option<&Pair> {
        self.pairs.iter().find(|pair| (pair.cpu_node, pair.memory_node) == (cpu_node, memory_node))
    }

    /// The memory nodes that have results.
    #[must_use]
    pub fn memory_nodes(&self) -> NodeSet {
        self.pairs.iter().map(|pair| pair.memory_node).collect()
    }

    /// The pair with the highest bandwidth to `memory_node` at its first mix: usually that of the nearest CPUs.
    #[must_use]
    pub fn best_pair(&self, memory_node: NodeId) -> Option<&Pair> {
        let pairs = self.pairs.iter().filter(|pair| pair.memory_node == memory_node);
        pairs.max_by_key(|pair| pair.bandwidth.first().map(|at| at.median_bytes_per_second))
    }

    fn check(&self) -> Result<(), String> {
        let mut seen = std::collections::BTreeSet::new();
        for pair in &self.pairs {
            let place = format!("CPU node {}, memory node {}", pair.cpu_node, pair.memory_node);
            if pair.cpu_node.max(pair.memory_node) > NodeId::MAX {
                return Err(format!("{place}: nodes are 0 to {}", NodeId::MAX));
            }
            if !seen.insert((pair.cpu_node, pair.memory_node)) {
                return Err(format!("{place}: appears twice"));
            }
            pair.check().map_err(|what| format!("{place}: {what}"))?;
        }
        if let Some(lab) = &self.machine.lab
            && !(lab.slow_motion >= 1.0 && lab.slow_motion <= 1e6)
        {
            return Err(format!("slow motion of {}", lab.slow_motion));
        }
        Ok(())
    }
}

impl Pair {
    /// The bandwidth measured at `mix`.
    #[must_use]
    pub fn bandwidth(&self, mix: Mix) -> Option<BytesPerSecond> {
        self.bandwidth.iter().find(|at| at.mix == mix).map(|at| at.median_bytes_per_second)
    }

    fn check(&self) -> Result<(), String> {
        let latency = |ns: f64| ns > 0.0 && ns < 1e9;
        let idle = self.idle_latency;
        let ordered = idle.min_ns <= idle.median_ns && idle.median_ns <= idle.max_ns;
        if !(ordered && latency(idle.min_ns) && latency(idle.max_ns)) {
            return Err(format!(
                "an idle latency of {} ns ({} to {})",
                idle.median_ns, idle.min_ns, idle.max_ns
            ));
        }
        for (index, at) in self.bandwidth.iter().enumerate() {
            let (min, median, max) =
                (at.min_bytes_per_second, at.median_bytes_per_second, at.max_bytes_per_second);
            if !(BytesPerSecond(0) < min && min <= median && median <= max && max.0 < 1 << 50) {
                return Err(format!("a bandwidth of {median} ({min} to {max}) at {}", at.mix));
            }
            if self.bandwidth[..index].iter().any(|earlier| earlier.mix == at.mix) {
                return Err(format!("mix {} appears twice", at.mix));
            }
        }
        for point in &self.loaded.points {
            let offered = point.offered_bytes_per_second.unwrap_or_default();
            if !latency(point.latency_ns)
                || point.achieved_bytes_per_second.max(offered).0 >= 1 << 50
            {
                return Err(format!(
                    "{} ns at {}",
                    point.latency_ns, point.achieved_bytes_per_second
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit;
    use proptest::prelude::*;

    #[test]
    fn a_report_reads_back_the_same() {
        let report = testkit::report();
        assert_eq!(ProbeReport::parse(&report.to_json().unwrap()).unwrap(), report);
    }

    #[test]
    fn an_unsupported_major_version_is_rejected_by_name() {
        let text = testkit::report().to_json().unwrap().replace(SCHEMA, "nearfar.probe/2");
        let error = ProbeReport::parse(&text).unwrap_err().to_string();
        assert!(error.contains("`nearfar.probe/2`") && error.contains(SCHEMA), "{error}");
        assert!(ProbeReport::parse("{}").unwrap_err().to_string().contains("absent"));
    }

    #[test]
    fn unknown_keys_are_ignored() {
        let text = testkit::report().to_json().unwrap().replacen('{', "{\"colour\": [1],", 1);
        assert_eq!(ProbeReport::parse(&text).unwrap(), testkit::report());
    }

    #[test]
    fn out_of_range_values_are_rejected_with_their_location() {
        let spoilt: [fn(&mut ProbeReport); 6] = [
            |report| report.pairs[1].idle_latency.min_ns = 0.0,
            |report| report.pairs[1].idle_latency.median_ns = 1e12,
            |report| report.pairs[1].bandwidth[0].min_bytes_per_second = BytesPerSecond(0),
            |report| report.pairs[1].bandwidth[1].mix = Mix::READS,
            |report| report.pairs[1].memory_node = NodeId(1024),
            |report| report.pairs[1].loaded.points[0].latency_ns = -1.0,
        ];
        for spoil in spoilt {
            let mut report = testkit::report();
            spoil(&mut report);
            let error = ProbeReport::parse(&report.to_json().unwrap()).unwrap_err().to_string();
            assert!(error.contains("CPU node 0, memory node 1"), "{error}");
        }
        let mut twice = testkit::report();
        twice.pairs.push(twice.pairs[0].clone());
        let error = ProbeReport::parse(&twice.to_json().unwrap()).unwrap_err().to_string();
        assert!(error.contains("appears twice"), "{error}");
    }

    #[test]
    fn the_best_pair_of_a_memory_node_has_the_highest_read_bandwidth() {
        let mut report = testkit::report();
        let mut slower = report.pairs[1].clone();
        slower.cpu_node = NodeId(1);
        slower.bandwidth[0].median_bytes_per_second = BytesPerSecond(1);
        report.pairs.insert(0, slower);
        assert_eq!(report.best_pair(NodeId(1)).map(|pair| pair.cpu_node), Some(NodeId(0)));
        assert_eq!(report.best_pair(NodeId(7)), None);
        assert_eq!(report.memory_nodes().to_string(), "0-1");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,200}") {
            let _ = ProbeReport::parse(&text);
        }

        #[test]
        fn a_corrupted_report_is_parsed_or_rejected_without_a_panic(at in 0.0f64..1.0, cut in 0usize..40, put in "[-0-9a-z\"{}\\[\\],:.]{0,6}") {
            let mut text = testkit::report().to_json().unwrap();
            prop_assume!(text.is_ascii());
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "an index into the text")]
            let from = (at * text.len() as f64) as usize;
            let to = (from + cut).min(text.len());
            text.replace_range(from..to, &put);
            if let Ok(report) = ProbeReport::parse(&text) {
                for pair in &report.pairs {
                    let _ = pair.bandwidth(Mix::TWO_TO_ONE);
                }
                prop_assert!(ProbeReport::parse(&report.to_json().unwrap()).is_ok());
            }
        }
    }
}
