//! Checks that programs in a guest meet measured curves: a machine of one node for each curve file, with ten loads at
//! three shares of reads. `lab/programs/loaded.c` makes the traffic and measures the latency beside it.

use std::fmt::Write as _;

use nearfar_topology::{Bytes, Curves};
use serde::Serialize;

use super::programs::Programs;
use super::{CheckError, Results, Setting, in_guest, number};
use crate::fetch::Say;
use crate::machine::{Machine, MachineError, catalog};

/// Largest accepted difference of a loaded latency from its curve.
pub const LATENCY_PERCENT_MAX: f64 = 10.0;
/// Largest accepted difference of the idle latency: that at the first load.
pub const IDLE_PERCENT_MAX: f64 = 3.0;
/// Loads, as shares of the peak bandwidth. The first stands for none.
const LOADS: [f64; 10] = [0.02, 0.2, 0.35, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95];
/// Least share of the asked traffic that must have been there.
const REACHED_MIN: f64 = 0.9;
/// Threads that make traffic; one more CPU follows the chain.
const THREADS: u32 = 5;
/// Curves are scaled to this peak bandwidth of reads, which five CPUs can draw.
const PEAK_GBPS: f64 = 30.0;
/// The lowest share of reads that programs make without stores that bypass the caches.
const SHARE_MIN: f64 = 0.5;

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Share of reads in all traffic, that of the measuring program included.
    pub read_share: f64,
    /// Asked traffic, as a share of the peak bandwidth.
    pub load: f64,
    /// Traffic in the guest.
    pub emulated_gbps: f64,
    /// Latency according to the curve, at the traffic that was there.
    pub curve_ns: f64,
    /// Latency in the guest.
    pub emulated_ns: f64,
    /// Difference in per cent.
    pub off_percent: f64,
    /// Whether the difference is accepted.
    pub ok: bool,
}

/// Results for one curve file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Checked {
    /// The curve file.
    pub curve: String,
    /// Factor that its bandwidths were multiplied by, so that a few emulated CPUs can draw them.
    pub scale: f64,
    /// All loads of each share of reads.
    pub rows: Vec<Row>,
}

/// Checks curve files, each in one guest.
///
/// # Errors
/// [`CheckError`] if a guest or the program produced no result; an inaccurate result is no error.
pub fn check(
    setting: &Setting,
    files: &[(String, Curves)],
    say: &dyn Say,
) -> Result<Vec<Checked>, CheckError> {
    let programs = Programs::compile()?;
    let one = |(name, whole): &(String, Curves)| {
        say.line(&format!("curve {name}"));
        let scale = PEAK_GBPS / whole.peak_gbps(1.0);
        let said_wrong =
            |found: String| CheckError::Said { machine: name.clone(), cpus: THREADS + 1, found };
        let curves = whole.scaled(scale).map_err(|error| said_wrong(error.to_string()))?;
        let machine = machine(name, &curves)?;
        in_guest(setting, &machine, &programs, &script(&curves), say)?;
        let rows = compare(&curves, &programs.take("results")).map_err(said_wrong)?;
        Ok(Checked { curve: name.clone(), scale, rows })
    };
    files.iter().map(one).collect()
}

/// Whether all results are accepted.
#[must_use]
pub fn is_ok(checked: &[Checked]) -> bool {
    checked.iter().flat_map(|checked| &checked.rows).all(|row| row.ok)
}

/// The default machine's processor with one node that has these curves.
fn machine(name: &str, curves: &Curves) -> Result<Machine, MachineError> {
    let mut machine = catalog::built_in(catalog::DEFAULT)?;
    machine.name = name.trim_end_matches(".csv").to_owned();
    machine.nodes.truncate(1);
    machine.paths.clear();
    machine.latency_ns = vec![vec![curves.idle_ns()]];
    machine.processor.llc_kib = 1024;
    for node in &mut machine.nodes {
        node.cpus = THREADS + 1;
        node.size = Bytes(1 << 30);
        (node.read_gbps, node.write_gbps) = (curves.peak_gbps(1.0), curves.peak_gbps(0.0));
        node.duplex = false;
        node.curves = Some(curves.clone());
    }
    Ok(machine)
}

/// The lowest, a middle and the highest share of reads that was measured and that programs can make.
fn shares(curves: &Curves) -> [f64; 3] {
    let shares: Vec<f64> = curves.curves().iter().map(|curve| curve.read_share).collect();
    let (first, last) = (shares[0].max(SHARE_MIN), shares[shares.len() - 1]);
    [first, shares[shares.len() / 2].clamp(first, last), last]
}

fn points(curves: &Curves) -> impl Iterator<Item = (f64, f64)> {
    shares(curves).into_iter().flat_map(|share| LOADS.into_iter().map(move |load| (share, load)))
}

/// A shell script that measures every point, in the order in which [`compare`] reads the results.
fn script(curves: &Curves) -> String {
    let mut text = String::from("set -e\nexec >/out/results\nsleep 1\n");
    for (share, load) in points(curves) {
        let changed = ((1.0 / share - 1.0) * 1000.0).round();
        let mbps = (curves.peak_gbps(share) * load * 1000.0).round();
        let _ = writeln!(text, "/out/loaded threads={THREADS} mbps={mbps} changed={changed}");
    }
    text
}

/// Compares the script's output with the curves.
fn compare(curves: &Curves, text: &str) -> Result<Vec<Row>, String> {
    let mut results = Results::of(text);
    let one = |(share, load): (f64, f64)| {
        let result = results.take()?;
        let (emulated_gbps, read_share) =
            (number(&result, "gbps")?, number(&result, "read_share")?);
        let emulated_ns = number(&result, "latency_ns")?;
        let curve_ns = curves.latency_ns(read_share, emulated_gbps / curves.peak_gbps(read_share));
        let off_percent = (emulated_ns / curve_ns - 1.0) * 100.0;
        let most = if load <= LOADS[0] { IDLE_PERCENT_MAX } else { LATENCY_PERCENT_MAX };
        let reached = emulated_gbps >= load * curves.peak_gbps(share) * REACHED_MIN;
        let ok = off_percent.abs() <= most && reached;
        Ok(Row { read_share, load, emulated_gbps, curve_ns, emulated_ns, off_percent, ok })
    };
    points(curves).map(one).collect()
}

/// As JSON of the schema `nearfar.lab-curves/1`.
#[must_use]
pub fn json(checked: &[Checked]) -> String {
    let report = serde_json::json!({
        "schema": "nearfar.lab-curves/1",
        "emulated": true,
        "latency_percent_max": LATENCY_PERCENT_MAX,
        "idle_percent_max": IDLE_PERCENT_MAX,
        "ok": is_ok(checked),
        "curves": checked,
    });
    // Strings and finite numbers always become JSON.
    serde_json::to_string_pretty(&report).unwrap_or_default() + "\n"
}

/// As a table: a line for each load, and the worst difference of each curve.
#[must_use]
pub fn table(checked: &[Checked]) -> String {
    let mut out = String::new();
    for Checked { curve, scale, rows } in checked {
        let _ = writeln!(out, "{curve}, bandwidths x {scale:.4}: measured curve and emulated");
        let _ = writeln!(out, "  reads  load   GB/s  curve ns  emulated ns  difference");
        for row in rows {
            let mark = if row.ok { "" } else { "  OFF" };
            let Row { read_share, load, emulated_gbps, curve_ns, emulated_ns, off_percent, .. } =
                row;
            let _ = writeln!(
                out,
                "   {read_share:.2}  {load:.2}  {emulated_gbps:>5.1}  {curve_ns:>8.1}  {emulated_ns:>11.1}  {off_percent:>+8.1} %{mark}"
            );
        }
        let worst = rows.iter().map(|row| row.off_percent.abs()).fold(0.0, f64::max);
        let _ = writeln!(out, "  largest difference {worst:.1} %");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curves() -> Curves {
        Curves::parse(&catalog::curve_built_in("emr-cxl.csv").unwrap()).unwrap()
    }

    /// The program's output where every latency is `times` the curve's.
    fn output(times: f64) -> String {
        let curves = curves();
        let line = |(share, load): (f64, f64)| {
            let (gbps, ns) =
                (curves.peak_gbps(share) * load, curves.latency_ns(share, load) * times);
            format!("{{\"gbps\":{gbps},\"read_share\":{share},\"latency_ns\":{ns}}}\n")
        };
        points(&curves).map(line).collect()
    }

    #[test]
    fn latencies_on_the_curve_pass_and_others_fail() {
        let rows = |times| {
            vec![Checked {
                curve: "x".to_owned(),
                scale: 1.0,
                rows: compare(&curves(), &output(times)).unwrap(),
            }]
        };
        assert!(is_ok(&rows(1.0)) && is_ok(&rows(1.02)));
        assert_eq!(table(&rows(1.05)).matches("OFF").count(), 3, "idle latencies alone");
        assert_eq!(table(&rows(0.85)).matches("OFF").count(), 30);
    }

    #[test]
    fn missing_background_traffic_fails_the_check() {
        let text = output(1.0).replacen("\"gbps\":", "\"gbps\":0.1e-3,\"x\":", 1);
        assert!(compare(&curves(), &text).unwrap().iter().filter(|row| !row.ok).count() == 1);
    }

    #[test]
    fn a_missing_or_strange_result_is_an_error() {
        assert_eq!(compare(&curves(), ""), Err("a result is missing".to_owned()));
        let error = compare(&curves(), &output(1.0).replace("gbps", "mbps")).unwrap_err();
        assert!(error.contains("no gbps"), "{error}");
    }

    #[test]
    fn every_built_in_curve_makes_a_machine_and_has_its_source() {
        for (name, text) in catalog::CURVES {
            let curves = Curves::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            let machine = machine(name, &curves).unwrap();
            assert_eq!(machine.latency(0, 0), Some(curves.idle_ns()));
            for head in ["# memory: ", "# source: ", "# commit: ", "# licence: "] {
                assert!(text.contains(head), "{name} has no line {head}");
            }
        }
    }
}
