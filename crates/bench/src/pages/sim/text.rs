//! Simulation results, for a terminal.

use std::fmt::Write as _;

use super::{Document, List, Named, Result, SIMULATED};
use nearfar_command::output::wrapped;

/// The columns of a comparison, with their explanations.
pub(super) const COLUMNS: [(&str, &str); 7] = [
    ("local", "share of cache lines from the node whose CPUs asked"),
    ("latency", "of a cache line on average, in cycles"),
    (
        "controllers",
        "how unevenly they are used: sample standard deviation over mean; 0 % is even, and 141 % all traffic on one of two, 200 % on one of four",
    ),
    ("links", "the same of directed links, coherence probes included"),
    ("throughput", "cache lines, in GB/s"),
    ("speed-up", "throughput over that of first touch"),
    (
        "moved",
        "pages moved, by controllers, in 45 s of the machine's time; figures are of its last third",
    ),
];

/// A policy's cells.
pub(super) fn cells(of: &Result) -> [String; COLUMNS.len()] {
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    [
        percent(of.local_access_ratio),
        format!("{:.0}", of.latency_cycles),
        percent(of.controller_imbalance),
        // A machine without links has none.
        if of.interconnect_imbalance > 0.0 {
            percent(of.interconnect_imbalance)
        } else {
            "–".into()
        },
        format!("{:.2} GB/s", of.throughput_gbps),
        format!("{:.2}×", of.speedup_vs_first_touch),
        if of.moved_bytes == 0 {
            "–".into()
        } else {
            nearfar_topology::Bytes(of.moved_bytes).to_string()
        },
    ]
}

/// A comparison.
pub fn compared(document: &Document) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "SIMULATED machine {}, workload {}, contention {}, seed {}",
        document.machine, document.workload, document.contention, document.seed
    );
    wrapped(&mut out, "", &format!("{}.", document.about), 0);
    for of in document.antagonists.iter().filter(|of| of.lines > 0.0) {
        let _ = writeln!(
            out,
            "traffic of others: node {} read by CPUs of node {}, {:.1} lines outstanding",
            of.node, of.cpus_of_node, of.lines
        );
    }
    let _ = write!(out, "\n{:<20}", "");
    for (name, _) in COLUMNS {
        let _ = write!(out, " {name:>12}");
    }
    out.push('\n');
    for of in &document.results {
        let _ = write!(out, "{:<20}", of.policy);
        for cell in cells(of) {
            let _ = write!(out, " {cell:>12}");
        }
        out.push('\n');
    }
    out.push('\n');
    out += &fastest(&document.results);
    for (name, meaning) in COLUMNS {
        wrapped(&mut out, &format!("{name}: "), &format!("{meaning}."), 2);
    }
    wrapped(&mut out, "\n", SIMULATED, 0);
    out
}

/// The gain of the best policy, if there are several.
fn fastest(results: &[Result]) -> String {
    let by_throughput =
        |one: &&Result, other: &&Result| one.throughput_gbps.total_cmp(&other.throughput_gbps);
    match results.iter().max_by(by_throughput).filter(|_| results.len() > 1) {
        None => String::new(),
        Some(best) if best.speedup_vs_first_touch < 1.005 => {
            "No policy is faster here than first touch.\n\n".into()
        }
        Some(best) => format!(
            "Fastest here: {}, {:.2}× the throughput of first touch.\n\n",
            best.policy, best.speedup_vs_first_touch
        ),
    }
}

/// The lists.
pub fn list(list: &List) -> String {
    let mut out = String::new();
    let all = [&list.machines, &list.workloads, &list.policies, &list.studies];
    let column = all.into_iter().flatten().map(|of| of.name.len()).max().unwrap_or_default();
    let mut section = |title: &str, names: &[Named]| {
        let _ = writeln!(out, "{title}");
        for of in names {
            wrapped(&mut out, &format!("  {:<column$}  ", of.name), &of.about, column + 4);
        }
    };
    section("machines", &list.machines);
    section("workloads", &list.workloads);
    section("policies", &list.policies);
    section("machines without a lab", &list.studies);
    out
}
