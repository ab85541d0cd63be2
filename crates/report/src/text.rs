//! The table for a terminal.

use std::fmt::Write as _;

use super::model::{Bandwidth, MIXES, Report, Server};
use super::{views, words};

/// The report as text, at most 100 columns wide but for command lines.
pub fn table(report: &Report) -> String {
    let mut out = String::new();
    let machine = &report.machine;
    line(&mut out, &words::about(machine));
    for node in &machine.nodes {
        line(&mut out, &format!("  {}", words::node(node)));
    }
    if machine.emulation.is_some() {
        prose(&mut out, words::EMULATED);
    }
    if let Some(found) = &report.bandwidth {
        bandwidth(&mut out, report, found);
    }
    for found in &report.servers {
        server(&mut out, report, found);
    }
    left_out(&mut out, report);
    out
}

/// The command lines of the last placement that ran; those of all placements are in the page and the JSON.
pub fn commands(report: &Report) -> String {
    let ran = |id: &str| {
        let bandwidth = report.bandwidth.iter().flat_map(|bandwidth| &bandwidth.runs);
        let lines = bandwidth.filter(|run| run.placement == id).map(|run| run.command.clone());
        let servers = report.servers.iter().filter_map(|server| server.run(id));
        lines.chain(servers.flat_map(|run| run.commands.clone())).collect::<Vec<_>>()
    };
    let mut placements = report.placements.iter().rev();
    let Some((name, lines)) = placements
        .find_map(|of| Some((&of.name, ran(&of.id))).filter(|(_, lines)| !lines.is_empty()))
    else {
        return String::new();
    };
    let inside = report.machine.emulation.as_ref().map_or_else(String::new, |emulation| {
        format!(" (inside the lab: nearfar lab shell --machine {})", emulation.machine)
    });
    let mut out = format!("\nTo repeat {name}{inside}; --html and --json have every line:\n");
    for command in lines {
        line(&mut out, &format!("  {command}"));
    }
    out
}

fn bandwidth(out: &mut String, report: &Report, found: &Bandwidth) {
    let size = nearfar_topology::Bytes(found.buffer_bytes);
    line(
        out,
        &format!("\nBandwidth, {} threads over {size}, and its ratio to near only", found.threads),
    );
    let cells = |cell: &dyn Fn(nearfar_topology::Mix) -> (String, String)| -> String {
        MIXES.iter().fold(String::new(), |mut row, &mix| {
            let (figure, ratio) = cell(mix);
            let _ = write!(row, "{figure:>18} {ratio:>7}");
            row
        })
    };
    row(out, "", &cells(&|mix| (words::mix(mix), String::new())));
    for placement in &report.placements {
        row(
            out,
            &placement.name,
            &cells(&|mix| {
                let run = found.run(&placement.id, mix);
                let figure =
                    run.map_or_else(|| "–".into(), |run| words::bandwidth(run.bytes_per_second));
                (figure, words::times(found.ratio(&placement.id, report.baseline(), mix)))
            }),
        );
    }
    row(
        out,
        "peaks together",
        &cells(&|mix| {
            let peak = found.peak_sum(mix);
            let near = found.run(report.baseline(), mix).map(|run| run.bytes_per_second);
            let ratio = peak.zip(near).and_then(|(peak, near)| super::model::ratio(peak, near));
            (peak.map_or_else(|| "–".into(), words::bandwidth), words::times(ratio))
        }),
    );
    row(
        out,
        "memory, -w auto",
        &cells(&|mix| {
            let run = found.run("auto", mix);
            (run.map_or_else(|| "–".into(), |run| short(&run.residency)), String::new())
        }),
    );
    prose(out, &words::bandwidth_verdict(report, found));
}

fn server(out: &mut String, report: &Report, found: &Server) {
    let Server { program, version, client, workload, data_bytes, operations, .. } = found;
    let size = nearfar_topology::Bytes(*data_bytes);
    let operations = words::grouped(*operations);
    line(out, &format!("\n{program} {version}"));
    prose(out, &format!("{workload}; {size} of values; {operations} timed operations by {client}"));
    row(
        out,
        "",
        &format!(
            "{:>12} {:>8} {:>10} {:>10} {:>10}   {}",
            "ops/s", "to near", "P50", "P99", "P99.9", "memory by node"
        ),
    );
    for placement in &report.placements {
        let Some(run) = found.run(&placement.id) else { continue };
        let [p50, p99, p999] = views::percentiles(&run.latency).map(words::latency);
        row(
            out,
            &placement.name,
            &format!(
                "{:>12} {:>8} {p50:>10} {p99:>10} {p999:>10}   {}",
                words::grouped(run.operations_per_second),
                words::times(found.ratio(&placement.id, report.baseline())),
                short(&run.residency),
            ),
        );
    }
    if let Some(note) = &found.latency_note {
        prose(out, note);
    }
    prose(out, &words::server_verdict(report, found));
}

fn left_out(out: &mut String, report: &Report) {
    let placements = report
        .placements
        .iter()
        .filter_map(|placement| Some((&placement.name, placement.unavailable.as_ref()?)));
    for (what, why) in placements.chain(report.left_out.iter().map(|left| (&left.what, &left.why)))
    {
        line(out, &format!("\nleft out: {what}: {why}"));
    }
}

/// A sentence, wrapped and indented.
fn prose(out: &mut String, text: &str) {
    const COLUMNS: usize = 100;
    let mut row = String::from(" ");
    for word in text.split_whitespace() {
        if row.chars().count() + 1 + word.chars().count() > COLUMNS {
            line(out, &std::mem::replace(&mut row, String::from(" ")));
        }
        row.push(' ');
        row.push_str(word);
    }
    line(out, &row);
}

/// `0: 75 %, 1: 25 %`.
fn short(residents: &[super::model::Resident]) -> String {
    let said: Vec<_> = words::shares(residents)
        .iter()
        .filter(|(_, share)| *share >= 0.005)
        .map(|(node, share)| format!("{node}: {:.0} %", share * 100.0))
        .collect();
    if said.is_empty() { "–".into() } else { said.join(", ") }
}

fn row(out: &mut String, name: &str, cells: &str) {
    line(out, format!("  {name:<15}{cells}").trim_end());
}

fn line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn columns_stand_under_their_heads() {
        let text = table(&sample::report());
        let near = text.lines().find(|line| line.contains("near only  ")).unwrap();
        assert_eq!(
            near,
            "  near only               38.4 GB/s   1.00×         36.1 GB/s   1.00×         34.3 GB/s   1.00×"
        );
        assert!(!text.contains("left out"), "{text}");
        let widest = text.lines().max_by_key(|line| line.chars().count()).unwrap();
        assert!(widest.chars().count() <= 100, "{widest}");
    }

    #[test]
    fn an_unavailable_placement_is_shown_as_a_dash_with_a_reason() {
        let mut report = sample::report();
        report.placements[4].unavailable = Some("this kernel has no weighted interleave".into());
        report.bandwidth.as_mut().unwrap().runs.retain(|run| run.placement != "auto");
        let text = table(&report);
        assert!(
            text.contains("left out: -w auto: this kernel has no weighted interleave"),
            "{text}"
        );
        assert!(
            text.lines().any(|line| line.starts_with("  -w auto") && line.contains('–')),
            "{text}"
        );
    }

    #[test]
    fn the_last_placements_command_lines_are_printed() {
        let mut report = sample::report();
        let text = commands(&report);
        assert!(
            text.contains("  nearfar run -w auto -- nearfar-bench stream --mix 2:1\n"),
            "{text}"
        );
        assert!(text.contains("  nearfar run -w auto -- redis-server --port 41973\n"), "{text}");
        report.bandwidth = None;
        report.servers.clear();
        assert_eq!(commands(&report), "");
    }
}
