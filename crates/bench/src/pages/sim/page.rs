//! A comparison as one self-contained HTML page (a chart for each figure, and the table), and as a picture.

use maud::{Markup, html};
use nearfar_report::style;

use super::text::{COLUMNS, cells};
use super::{Document, Result, SIMULATED};
use nearfar_report::chart::{self, Bar, Caption, Line};
use nearfar_report::document;
use nearfar_report::sheet::{MARGIN, Sheet, WIDTH};

/// A chart: its id, its title, the column with its text, its figure.
type Chart = (&'static str, &'static str, usize, fn(&Result) -> f64);

const CHARTS: [Chart; 4] = [
    ("latency", "Latency of a cache line, cycles", 1, |of| of.latency_cycles),
    ("speedup", "Throughput over that of first touch", 5, |of| of.speedup_vs_first_touch),
    ("controllers", "Imbalance of memory controllers", 2, |of| of.controller_imbalance),
    ("links", "Imbalance of directed links", 3, |of| of.interconnect_imbalance),
];

/// The page.
pub fn html(of: &Document) -> String {
    let style = [style::COLORS, style::PAGE, style::CHART];
    let main = html! {
        header {
            p.brand { "nearfar sim compare" }
            h1 { (of.workload) " on " (of.machine) ", simulated" }
            p { (of.about) ". Seed " (of.seed) "." }
            p.note role="note" { (SIMULATED) }
        }
        section {
            div.grid {
                @for chart in CHARTS { div.card { h3 { (chart.1) } (bars(of, chart)) } }
            }
            (table(of))
            ul { @for (name, meaning) in COLUMNS { li { strong { (name) } ": " (meaning) "." } } }
        }
        footer { "nearfar " (of.nearfar) " · " (of.schema) }
    };
    document::document("nearfar sim compare", &style, &main)
}

/// The picture: the same charts, two by two.
pub fn svg(of: &Document) -> String {
    let height = chart::bars_height(of.results.len());
    let heading = format!("{} on {}, simulated", of.workload, of.machine);
    pictured(
        ("nearfar sim compare", &heading, &of.about),
        height,
        &CHARTS.map(|chart| (chart.1, bars(of, chart))),
    )
}

/// Charts in two columns, with the command that made them, a heading and one more line.
pub(super) fn pictured(
    (command, heading, line): (&str, &str, &str),
    height: usize,
    charts: &[(&str, Markup)],
) -> String {
    const GAP: usize = 40;
    const ABOVE: usize = 34;
    let width = (WIDTH - 2 * MARGIN - GAP) / 2;
    let rows = charts.len().div_ceil(2);
    let sheet = Sheet {
        height: Sheet::TOP + rows * (height + ABOVE + GAP / 2) + MARGIN / 2,
        title: &format!("{command}: {heading}"),
        heading,
        about: &format!("SIMULATED, no claim about any hardware: {line}"),
        style: "",
    };
    let place = |at: usize| {
        (MARGIN + at % 2 * (width + GAP), Sheet::TOP + at / 2 * (height + ABOVE + GAP / 2) + 14)
    };
    sheet.document(&html! {
        @for (at, (title, chart)) in charts.iter().enumerate() {
            text class="strong" x=(place(at).0) y=(place(at).1) { (title) }
            svg x=(place(at).0) y=(place(at).1 + 12) width=(width) height=(height) { (chart) }
        }
    })
}

/// A bar for each policy, proportional to its figure.
fn bars(of: &Document, (id, title, column, figure): Chart) -> Markup {
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
    chart::bars(caption, &bars)
}

/// The colour of a policy.
pub(super) fn class(policy: &str) -> &'static str {
    match policy {
        "first-touch" => "near",
        "interleave" => "interleave",
        "oracle" => "far3",
        "colloid" | "carrefour" => "far",
        "carrefour-replicate" => "far2",
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
