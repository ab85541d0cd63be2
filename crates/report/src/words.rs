//! Values and conclusions in words: the same in the table, the page and the picture.
//!
//! Only this module decides from the values whether a placement gained or lost; a difference from the baseline within
//! `noise` counts as neither.

use nearfar_topology::{Bytes, BytesPerSecond, Mix};

use super::model::{self, Bandwidth, MIXES, Machine, Node, Report, Resident, Server};

/// Ratios closer to 1 than this are never called a gain or a loss.
const NOISE_MIN: f64 = 0.03;

/// `38.2 GB/s`.
pub fn bandwidth(bytes_per_second: u64) -> String {
    BytesPerSecond(bytes_per_second).to_string()
}

/// `1.33×`, or a dash.
pub fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "–".into(), |ratio| format!("{ratio:.2}×"))
}

/// `96 %`, or a dash.
pub fn percent(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "–".into(), |ratio| format!("{:.0} %", ratio * 100.0))
}

/// `38,835`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Three digits and the unit that fits: `870 ns`, `213 µs`, `4.84 ms`; a dash if unknown.
#[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
pub fn latency(ns: Option<u64>) -> String {
    let Some(ns) = ns else { return "–".into() };
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "µs"),
        _ => (ns as f64 / 1e6, "ms"),
    };
    let decimals = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.decimals$} {unit}")
}

/// `reads only`, `2 reads : 1 write`.
pub(crate) fn mix(mix: Mix) -> String {
    let count = |number, what| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    match (mix.reads(), mix.writes()) {
        (_, 0) => "reads only".into(),
        (0, _) => "writes only".into(),
        (reads, writes) => format!("{} : {}", count(reads, "read"), count(writes, "write")),
    }
}

/// `node 0, dram, near, 1 GiB, 4 CPUs`.
pub fn node(node: &Node) -> String {
    let Node { id, kind, size_bytes, cpus, near } = node;
    let side = if *near { "near" } else { "far" };
    let size = Bytes(*size_bytes);
    match cpus {
        0 => format!("node {id}: {kind}, {side}, {size}, no CPUs"),
        1 => format!("node {id}: {kind}, {side}, {size}, 1 CPU"),
        _ => format!("node {id}: {kind}, {side}, {size}, {cpus} CPUs"),
    }
}

/// `75 % node 0, 25 % node 1`; a dash if nothing is known.
pub fn residency(residents: &[Resident]) -> String {
    let shares = shares(residents);
    if shares.is_empty() {
        return "–".into();
    }
    let shown: Vec<_> = shares
        .iter()
        .filter(|(_, share)| *share >= 0.005)
        .map(|(node, share)| format!("{:.0} % node {node}", share * 100.0))
        .collect();
    shown.join(", ")
}

/// Each node's share of all bytes, in order of node; empty if there are none.
#[expect(clippy::cast_precision_loss, reason = "shares for people")]
pub fn shares(residents: &[Resident]) -> Vec<(u16, f64)> {
    let sum: u64 = residents.iter().map(|resident| resident.bytes).sum();
    let mut shares: Vec<_> = residents
        .iter()
        .filter(|_| sum > 0)
        .map(|resident| (resident.node, resident.bytes as f64 / sum as f64))
        .collect();
    shares.sort_by_key(|(node, _)| *node);
    shares
}

/// The machine in one line: the emulated one, or this one.
pub fn about(machine: &Machine) -> String {
    let Machine { emulation, kernel, cpus, .. } = machine;
    match emulation {
        None => format!("measured on this machine, kernel {kernel}, {cpus} CPUs"),
        Some(emulation) => {
            let clock = match emulation.clock.as_str() {
                "virtual" => "guest clocks show modelled time".to_string(),
                "off" => "no memory timing: near and far alike".to_string(),
                "wait" => format!("real waits, slow motion {}", emulation.slow_motion),
                other => format!("clock {other}, slow motion {}", emulation.slow_motion),
            };
            let machine = &emulation.machine;
            format!("EMULATED machine {machine}, kernel {kernel}, {cpus} CPUs; {clock}")
        }
    }
}

/// Limits on conclusions from an emulated machine's values.
pub const EMULATED: &str = "Nothing here was measured on hardware: memory timing comes from a model of the machine. \
    Read the ratios between placements; absolute figures are the model's.";

/// The effect of `-w auto` on bandwidth, from the values.
pub(crate) fn bandwidth_verdict(report: &Report, bandwidth: &Bandwidth) -> String {
    let base = report.baseline();
    let mut gains = Vec::new();
    let mut used = Vec::new();
    for of in MIXES {
        let Some(ratio) = bandwidth.ratio("auto", base, of) else { continue };
        gains.push(format!("{} for {}", times(Some(ratio)), mix(of)));
        let auto = bandwidth.run("auto", of).map_or(0, |run| run.bytes_per_second);
        used.extend(bandwidth.peak_sum(of).and_then(|peak| model::ratio(auto, peak)));
    }
    if gains.is_empty() {
        return "No placement by weights was run, so there is no gain to state.".into();
    }
    let lowest = percent(used.iter().copied().reduce(f64::min));
    format!(
        "Against near only, -w auto draws {}: {lowest} or more of the sum of the nodes' bandwidths.",
        gains.join(", ")
    )
}

/// The difference of a ratio from 1 that may be chance: at least the difference between two runs with the same
/// placement, such as the kernel's default and near only while near memory has room.
fn noise(report: &Report, server: &Server) -> f64 {
    let alike = |id: &str| server.run(id).and_then(|run| Some(shares(&run.residency).first()?.1));
    let base = report.baseline();
    let same = alike("default").zip(alike(base)).is_some_and(|(a, b)| (a - b).abs() < 0.02);
    let apart = server.ratio("default", base).filter(|_| same).map_or(0.0, |of| (of - 1.0).abs());
    apart.max(NOISE_MIN)
}

/// The effect of interleaving on a server, from the values, whether a gain or a loss.
pub(crate) fn server_verdict(report: &Report, server: &Server) -> String {
    let base = report.baseline();
    let tried = ["auto", "interleave"]
        .into_iter()
        .find_map(|id| Some((report.placement(id)?, server.ratio(id, base)?)));
    let Some((placement, ratio)) = tried else {
        return "No interleaved placement was run.".into();
    };
    let (name, program) = (&placement.name, &server.program);
    let far = server
        .ratio("far", base)
        .map_or_else(String::new, |far| format!(" (far only: {})", times(Some(far))));
    let reached = times(Some(ratio));
    let noise = noise(report, server);
    if ratio > 1.0 + noise {
        format!("{name} runs {program} at {reached} of near only{far}: here interleaving pays.")
    } else if ratio < 1.0 - noise {
        format!(
            "{name} runs {program} at {reached} of near only{far}: requests wait for single loads, not for \
             bandwidth, so spreading the pages only delays them. Keep it near, or tier it."
        )
    } else {
        format!(
            "{name} runs {program} at {reached} of near only{far}: requests wait for single loads, not for \
             bandwidth, so interleaving gains nothing here (differences within {noise} are noise). Use it for capacity, \
             not for performance.",
            noise = percent(Some(noise)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn latencies_keep_three_digits_and_a_fitting_unit() {
        for (ns, text) in [
            (870, "870 ns"),
            (1_000, "1.00 µs"),
            (9_996, "10.0 µs"),
            (213_400, "213 µs"),
            (4_839_000, "4.84 ms"),
            (1_234_000_000, "1234 ms"),
        ] {
            assert_eq!(latency(Some(ns)), text);
        }
        assert_eq!(latency(None), "–");
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        for (number, text) in [(0, "0"), (999, "999"), (38_835, "38,835"), (1_000_000, "1,000,000")]
        {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn the_verdict_distinguishes_a_loss_from_a_tie() {
        let mut report = sample::report();
        let verdict = |report: &Report| server_verdict(report, &report.servers[0]);
        let set = |report: &mut Report, rate| {
            let runs = &mut report.servers[0].runs;
            let base = runs[0].operations_per_second;
            let auto = runs.iter_mut().find(|run| run.placement == "auto").unwrap();
            auto.operations_per_second = base * rate / 100;
        };
        set(&mut report, 90);
        assert!(verdict(&report).contains("0.90× of near only"), "{}", verdict(&report));
        assert!(verdict(&report).contains("only delays them"));
        set(&mut report, 101);
        assert!(verdict(&report).contains("gains nothing"));
        set(&mut report, 120);
        assert!(verdict(&report).contains("pays"));
        let base = report.servers[0].runs[0].operations_per_second;
        report.servers[0].runs[2].operations_per_second = base * 79 / 100;
        assert!(verdict(&report).contains("within 21 % are noise"), "{}", verdict(&report));
    }

    #[test]
    fn without_auto_the_verdict_is_about_the_interleave() {
        let mut report = sample::report();
        report.servers[0].runs.retain(|run| run.placement != "auto");
        assert!(server_verdict(&report, &report.servers[0]).starts_with("1:1 interleave"));
        report.servers[0].runs.clear();
        assert_eq!(
            server_verdict(&report, &report.servers[0]),
            "No interleaved placement was run."
        );
    }

    #[test]
    fn the_description_of_an_emulated_machine_never_says_measured() {
        let report = sample::report();
        let text = about(&report.machine);
        assert!(text.contains("EMULATED") && text.contains("cxl-2tier"), "{text}");
        assert!(!text.contains("measured"), "{text}");
    }
}
