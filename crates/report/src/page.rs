//! The page: one self-contained HTML file. No script, no network, no fonts from elsewhere.
//!
//! Here: the layout, and the tables beside the charts. The rows of charts come from `views.rs`, their drawing from
//! `chart.rs`, every sentence about values from `words.rs`, styles from the three style sheets. maud is used because it
//! checks the markup at compile time and escapes all text.

use crate::style;
use maud::{Markup, html};

use super::chart::{self, Caption, Line};
use super::document::{document, swatch};
use super::model::{Bandwidth, MIXES, Report, Resident, Server};
use super::{views, words};

/// The report as an HTML document.
pub fn html(report: &Report) -> String {
    let style = [style::COLORS, style::PAGE, style::CHART];
    let main = html! {
        (head(report))
        @if let Some(bandwidth) = &report.bandwidth { (bandwidth_section(report, bandwidth)) }
        @for server in &report.servers { (server_section(report, server)) }
        (residency_section(report))
        (repeat_section(report))
        (left_out_section(report))
        footer { "nearfar " (report.nearfar) " · " (report.schema) " · " (words::about(&report.machine)) }
    };
    document(&format!("nearfar demo: {}", headline(report)), &style, &main)
}

/// The main result, derived from the values.
pub(crate) fn headline(report: &Report) -> String {
    let base = report.baseline();
    let best = report.bandwidth.iter().flat_map(|bandwidth| {
        MIXES.iter().filter_map(move |&mix| bandwidth.ratio("auto", base, mix))
    });
    match best.fold(0.0, f64::max) {
        ratio if ratio >= 1.03 => {
            format!("Up to {} the bandwidth of near memory alone", words::times(Some(ratio)))
        }
        _ => "Near and far memory, side by side".into(),
    }
}

fn head(report: &Report) -> Markup {
    let machine = &report.machine;
    html! {
        header {
            p.brand { "nearfar demo" }
            h1 { (headline(report)) }
            p { "The same unmodified programs, with their memory placed in " (report.placements.len()) " ways." }
            p.quiet { (words::about(machine)) }
            ul.nodes {
                @for node in &machine.nodes {
                    li { (swatch(views::node_class(machine, node.id))) span { (words::node(node)) } }
                }
            }
            @if machine.emulation.is_some() {
                p.note role="note" { strong { "Emulated. " } (words::EMULATED) }
            }
        }
    }
}

fn bandwidth_section(report: &Report, bandwidth: &Bandwidth) -> Markup {
    html! {
        section {
            div.grid {
                @for mix in MIXES {
                    @if let (Some(auto), Some(base)) =
                        (bandwidth.run("auto", mix), bandwidth.run(report.baseline(), mix)) {
                        div.card.tile {
                            b { (words::times(bandwidth.ratio("auto", report.baseline(), mix))) }
                            span { (words::mix(mix)) }
                            span.quiet.small {
                                "near only " (words::bandwidth(base.bytes_per_second))
                                ", with -w\u{a0}auto " (words::bandwidth(auto.bytes_per_second))
                            }
                        }
                    }
                }
            }
            h2 { "Bandwidth" }
            p { (words::bandwidth_verdict(report, bandwidth)) }
            ul.key { li { (swatch("peak")) span { "sum of the nodes' bandwidths, each measured alone" } } }
            div.grid {
                @for mix in MIXES {
                    div.card {
                        h3 { (words::mix(mix)) }
                        @let rows = views::bandwidth(report, bandwidth, mix);
                        (chart::bars(Caption {
                            id: &format!("bandwidth-{}-{}", mix.reads(), mix.writes()),
                            title: &format!("Bandwidth per placement, {}", words::mix(mix)),
                            description: &spoken(rows.iter().map(|row| &row.line)),
                        }, &rows))
                    }
                }
            }
            (bandwidth_table(report, bandwidth))
        }
    }
}

fn bandwidth_table(report: &Report, bandwidth: &Bandwidth) -> Markup {
    let caption = format!(
        "{} threads over {}, medians of {} repetitions, reads and writes together; × is the ratio to {}.",
        bandwidth.threads,
        nearfar_topology::Bytes(bandwidth.buffer_bytes),
        bandwidth.repeats,
        report.placements.first().map_or("", |placement| &placement.name),
    );
    table(
        &caption,
        &html! {
            thead { tr {
                th scope="col" { "placement" }
                @for mix in MIXES { th scope="col" { (words::mix(mix)) } th scope="col" { "×" } }
            } }
            tbody {
                @for placement in &report.placements {
                    tr class=(views::class(&placement.id)) {
                        th scope="row" { (placement.name) }
                        @for mix in MIXES {
                            td { (bandwidth.run(&placement.id, mix)
                                .map_or_else(|| "–".into(), |run| words::bandwidth(run.bytes_per_second))) }
                            td { (words::times(bandwidth.ratio(&placement.id, report.baseline(), mix))) }
                        }
                    }
                }
                tr {
                    th scope="row" { "nodes' peaks together" }
                    @for mix in MIXES {
                        @let near = bandwidth.run(report.baseline(), mix).map(|run| run.bytes_per_second);
                        @let peak = bandwidth.peak_sum(mix);
                        td { (peak.map_or_else(|| "–".into(), words::bandwidth)) }
                        td { (words::times(peak.zip(near).and_then(|(peak, near)| super::model::ratio(peak, near)))) }
                    }
                }
            }
        },
    )
}

fn server_section(report: &Report, server: &Server) -> Markup {
    let bars = views::throughput(report, server);
    let (ranges, ticks) = views::latencies(report, server);
    html! {
        section {
            h2 { (server.program) }
            p { (words::server_verdict(report, server)) }
            p.quiet.small {
                (server.program) " " (server.version) " as packaged; " (server.workload) "; "
                (nearfar_topology::Bytes(server.data_bytes)) " of values; "
                (words::grouped(server.operations)) " timed operations per placement by " (server.client) "."
            }
            div.grid {
                div.card {
                    h3 { "Throughput" }
                    (chart::bars(Caption {
                        id: &format!("{}-rate", server.program),
                        title: &format!("{} throughput per placement", server.program),
                        description: &spoken(bars.iter().map(|row| &row.line)),
                    }, &bars))
                }
                @if !ranges.is_empty() {
                    div.card {
                        h3 { "Latency: P50 · P99 · P99.9" }
                        (chart::ranges(Caption {
                            id: &format!("{}-latency", server.program),
                            title: &format!("{} latency percentiles per placement, logarithmic", server.program),
                            description: &spoken(ranges.iter().map(|row| &row.line)),
                        }, &ranges, &ticks))
                        ul.key {
                            li { (swatch("dot")) span { "P50" } }
                            li { (swatch("dot solid")) span { "P99" } }
                            li { (swatch("dot hollow")) span { "P99.9" } }
                        }
                        @if let Some(note) = &server.latency_note { p.quiet.small { (note) } }
                    }
                }
            }
            (server_table(report, server))
        }
    }
}

fn server_table(report: &Report, server: &Server) -> Markup {
    let caption =
        format!("{}: throughput, latency, and where its memory was at the end.", server.program);
    table(
        &caption,
        &html! {
            thead { tr {
                @for name in ["placement", "ops/s", "×", "P50", "P99", "P99.9", "memory"] { th scope="col" { (name) } }
            } }
            tbody {
                @for placement in &report.placements {
                    @if let Some(run) = server.run(&placement.id) {
                        tr class=(views::class(&placement.id)) {
                            th scope="row" { (placement.name) }
                            td { (words::grouped(run.operations_per_second)) }
                            td { (words::times(server.ratio(&placement.id, report.baseline()))) }
                            @for ns in views::percentiles(&run.latency) { td { (words::latency(ns)) } }
                            td { (words::residency(&run.residency)) }
                        }
                    }
                }
            }
        },
    )
}

fn residency_section(report: &Report) -> Markup {
    let mut panels: Vec<(String, Vec<chart::Stack>)> = Vec::new();
    if let Some(bandwidth) = &report.bandwidth {
        for mix in MIXES {
            let of = |id: &str| bandwidth.run(id, mix).map(|run| run.residency.as_slice());
            let rows = views::residency(report, |placement| of(&placement.id));
            panels.push((format!("Bandwidth kernels, {}", words::mix(mix)), rows));
        }
    }
    for server in &report.servers {
        let of = |id: &str| -> Option<&[Resident]> { Some(&server.run(id)?.residency) };
        panels.push((
            server.program.clone(),
            views::residency(report, |placement| of(&placement.id)),
        ));
    }
    html! {
        section {
            h2 { "Where the pages were" }
            p { "Of the kernels' buffers, and of all a server had at the end of its run, shared libraries by its share." }
            ul.key {
                @for node in &report.machine.nodes {
                    li { (swatch(views::node_class(&report.machine, node.id))) span { "node " (node.id) ", " (node.kind) } }
                }
            }
            div.grid {
                @for (at, (name, rows)) in panels.iter().enumerate() {
                    div.card {
                        h3 { (name) }
                        (chart::stacks(Caption {
                            id: &format!("residency-{at}"),
                            title: &format!("Share of pages per node: {name}"),
                            description: &spoken(rows.iter().map(|row| &row.line)),
                        }, rows))
                    }
                }
            }
            (residency_table(report, &panels))
        }
    }
}

fn residency_table(report: &Report, panels: &[(String, Vec<chart::Stack>)]) -> Markup {
    table(
        "Share of pages per node at the end of each run.",
        &html! {
            thead { tr {
                th scope="col" { "placement" }
                @for (name, _) in panels { th scope="col" { (name) } }
            } }
            tbody {
                @for placement in &report.placements {
                    tr class=(views::class(&placement.id)) {
                        th scope="row" { (placement.name) }
                        @for (_, rows) in panels {
                            td { (rows.iter().find(|row| row.line.name == placement.name)
                                .map_or("–", |row| &row.line.value)) }
                        }
                    }
                }
            }
        },
    )
}

fn repeat_section(report: &Report) -> Markup {
    let bandwidth: Vec<&str> = report
        .bandwidth
        .iter()
        .flat_map(|bandwidth| bandwidth.runs.iter().map(|run| run.command.as_str()))
        .collect();
    html! {
        section {
            h2 { "Repeat it" }
            p {
                "Every line was run as it stands here"
                @if let Some(emulation) = &report.machine.emulation {
                    ", inside the lab: " code { "nearfar lab shell --machine " (emulation.machine) } " gives a shell there"
                }
                ". A server's lines belong together: start it, load it, measure it, stop it."
            }
            @if !bandwidth.is_empty() {
                details { summary { "Bandwidth kernels" } pre { (bandwidth.join("\n")) } }
            }
            @for server in &report.servers {
                details {
                    summary { (server.program) }
                    @for run in &server.runs { pre { (run.commands.join("\n")) } }
                }
            }
        }
    }
}

fn left_out_section(report: &Report) -> Markup {
    let placements = report
        .placements
        .iter()
        .filter_map(|placement| Some((placement.name.as_str(), placement.unavailable.as_deref()?)));
    let rest = report.left_out.iter().map(|left| (left.what.as_str(), left.why.as_str()));
    let all: Vec<_> = placements.chain(rest).collect();
    html! {
        @if !all.is_empty() {
            section {
                h2 { "Left out" }
                ul { @for (what, why) in all { li { strong { (what) } ": " (why) } } }
            }
        }
    }
}

fn table(caption: &str, inside: &Markup) -> Markup {
    html! {
        details {
            summary { "Figures as a table" }
            div.scroll tabindex="0" role="region" aria-label=(caption) { table { caption { (caption) } (inside) } }
        }
    }
}

/// Rows as a sentence, for the description of a chart.
pub fn spoken<'a>(lines: impl Iterator<Item = &'a Line>) -> String {
    let said: Vec<_> = lines.map(|line| format!("{}: {}", line.name, line.value)).collect();
    said.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn the_page_has_no_external_references() {
        let page = html(&sample::report());
        for outside in ["http://", "https://", "src=", "@import", "url(", "<script", "<link"] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn every_chart_has_a_title_a_description_and_a_table() {
        let page = html(&sample::report());
        let count = |what: &str| page.matches(what).count();
        assert_eq!(count("<svg "), 12);
        assert_eq!(count("<svg "), count("<desc "));
        assert_eq!(count("<svg "), count("<title id="));
        assert_eq!(count("<table>"), 4);
    }

    #[test]
    fn emulated_figures_are_labelled_and_measured_ones_are_not() {
        let mut report = sample::report();
        assert!(html(&report).contains("Nothing here was measured on hardware"));
        report.machine.emulation = None;
        assert!(!html(&report).to_lowercase().contains("emulated"));
    }

    #[test]
    fn omitted_measurements_are_listed_with_the_remedy() {
        let mut report = sample::report();
        assert!(!html(&report).contains("Left out"));
        report.servers.clear();
        report.left_out.push(crate::model::LeftOut {
            what: "redis-server".into(),
            why: "not installed; apt-get install redis-server".into(),
        });
        assert!(html(&report).contains("apt-get install redis-server"));
    }

    #[test]
    fn the_headline_claims_no_gain_without_measurements() {
        let mut report = sample::report();
        assert_eq!(headline(&report), "Up to 1.61× the bandwidth of near memory alone");
        report.bandwidth.as_mut().unwrap().runs.retain(|run| run.placement != "auto");
        assert_eq!(headline(&report), "Near and far memory, side by side");
    }
}
