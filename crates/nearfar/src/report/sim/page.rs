//! A comparison as one self-contained HTML page: a chart for each figure, and the table.

use maud::{Markup, html};

use super::super::chart::{self, Bar, Caption, Line};
use super::super::document;
use super::text::{COLUMNS, cells};
use super::{Document, Result, SIMULATED};

/// The page.
pub(crate) fn html(of: &Document) -> String {
    let style =
        [include_str!("../colors.css"), include_str!("../page.css"), include_str!("../chart.css")];
    let main = html! {
        header {
            p.brand { "nearfar sim compare" }
            h1 { (of.workload) " on " (of.machine) ", simulated" }
            p { (of.about) ". Seed " (of.seed) "." }
            p.note role="note" { (SIMULATED) }
        }
        section {
            div.grid {
                (card(of, ("latency", "Latency of a cache line, cycles"), 1, |of| of.latency_cycles))
                (card(of, ("speedup", "Throughput over that of first touch"), 5, |of| of.speedup_vs_first_touch))
                (card(of, ("controllers", "Imbalance of memory controllers"), 2, |of| of.controller_imbalance))
                (card(of, ("links", "Imbalance of directed links"), 3, |of| of.interconnect_imbalance))
            }
            (table(of))
            ul { @for (name, meaning) in COLUMNS { li { strong { (name) } ": " (meaning) "." } } }
        }
        footer { "nearfar " (of.nearfar) " · " (of.schema) }
    };
    document::document("nearfar sim compare", &style, &main)
}

/// A bar for each policy, as long as its figure; `column` has its text.
fn card(
    of: &Document,
    (id, title): (&str, &str),
    column: usize,
    figure: fn(&Result) -> f64,
) -> Markup {
    let longest = of.results.iter().map(figure).fold(0.0, f64::max);
    let bars: Vec<Bar> = of
        .results
        .iter()
        .map(|result| Bar {
            line: Line {
                name: result.policy.into(),
                value: cells(result)[column].clone(),
                strong: false,
            },
            class: class(result.policy),
            length: if longest > 0.0 { figure(result) / longest } else { 0.0 },
            mark: None,
        })
        .collect();
    let said: Vec<String> =
        bars.iter().map(|bar| format!("{}: {}", bar.line.name, bar.line.value)).collect();
    let caption = Caption { id, title, description: &said.join("; ") };
    html! { div.card { h3 { (title) } (chart::bars(caption, &bars)) } }
}

fn class(policy: &str) -> &'static str {
    match policy {
        "first-touch" => "near",
        "interleave" => "interleave",
        "oracle" => "far3",
        _ => "auto",
    }
}

fn table(of: &Document) -> Markup {
    html! {
        div.scroll {
            table {
                thead { tr { th scope="col" { "policy" } @for (name, _) in COLUMNS { th scope="col" { (name) } } } }
                tbody {
                    @for result in &of.results {
                        tr { th scope="row" { (result.policy) } @for cell in cells(result) { td { (cell) } } }
                    }
                }
            }
        }
    }
}
