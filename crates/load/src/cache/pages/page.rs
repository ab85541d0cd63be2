//! One self-contained page: the result, over time and by percentile. No script, no network.

use maud::{Markup, html};
use nearfar_report::style;

use super::{
    COLUMNS, cells, chart, class, headline, how, memory, summary, timing, troubles, whole,
};
use crate::cache::results::{Found, Window};
use nearfar_report::chart::Caption;
use nearfar_report::document::{document, swatch};
use nearfar_report::lines::{self, Series};
use nearfar_report::words;

/// The page.
pub fn html(found: &Found) -> String {
    let style = [style::COLORS, style::PAGE, style::CHART, include_str!("../cache.css")];
    let main = html! {
        (head(found))
        (tiles(found))
        (over_time(found))
        (latencies(found))
        section {
            h2 { "How it was asked" }
            ul { @for said in how(&found.load) { li { (said) "." } } }
            @if let Some(said) = memory(found) { p { "The target at the end: " (said) "." } }
        }
        footer { "nearfar " (found.nearfar) " · " (found.schema) }
    };
    document(&format!("nearfar cache bench: {}", headline(found)), &style, &main)
}

fn head(found: &Found) -> Markup {
    html! {
        header {
            p.brand { "nearfar cache bench" }
            h1 { (headline(found)) }
            p { (found.target) @if let Some(version) = &found.target_version { ", version " (version) } "." }
            p.quiet { (found.load.workload) ": " (found.load.made_of) "." }
            p.quiet { (summary(found)) "." }
            @if let Some(of) = &found.disturbance { p.note role="note" { (of) "." } }
            @for said in troubles(found) { p.note role="note" { (said) "." } }
        }
    }
}

fn tiles(found: &Found) -> Markup {
    let first = found.kinds.iter().find_map(|of| Some((of.kind, of.latency.as_ref()?)));
    html! {
        div.grid.tiles {
            div.card.tile { b { (words::grouped(whole(found.operations_per_s))) } span { "requests a second" } }
            @if let Some(hits) = found.hit_ratio {
                div.card.tile { b { (format!("{hits:.3}")) } span { "hit ratio" } }
            }
            @if let Some((kind, took)) = first {
                div.card.tile { b { (words::latency(Some(took.p50_ns))) } span { "P50 of " (kind.name()) } }
                div.card.tile { b { (words::latency(Some(took.p99_ns))) } span { "P99 of " (kind.name()) } }
            }
        }
    }
}

fn over_time(found: &Found) -> Markup {
    let windows = &found.windows;
    let rates: Vec<_> = windows.iter().map(|of| (of.end_s, of.operations_per_s)).collect();
    let hits = windows.iter().filter_map(|of: &Window| Some((of.end_s, of.hit_ratio?)));
    let hits: Vec<_> = hits.collect();
    let highest = rates.iter().map(|(_, rate)| *rate).fold(1.0, f64::max);
    let top = format!("{} a second", words::grouped(whole(highest)));
    let card = |title: &str, class, points: &[(f64, f64)], (most, top): (f64, &str)| {
        let points: Vec<_> = points.iter().map(|(at, value)| (*at, value / most)).collect();
        drawn(title, Series { class, points }, found, top)
    };
    html! {
        @if !windows.is_empty() {
            section {
                h2 { "Over time" }
                div.grid.charts {
                    (card("Requests answered", "rate", &rates, (highest, &top)))
                    @if !hits.is_empty() { (card("Hit ratio", "hits", &hits, (1.0, "1"))) }
                }
                @if found.load.warm_up_s > 0.0 { p.quiet.small { "What lies before the dashed line does not count." } }
            }
        }
    }
}

fn drawn(title: &str, series: Series, found: &Found, top: &str) -> Markup {
    let end_s = found.windows.last().map_or(0.0, |of| of.end_s);
    let warm = Some(found.load.warm_up_s).filter(|warm| *warm > 0.0);
    let marks: Vec<f64> = warm.into_iter().collect();
    let (id, shares) = (series.class, series.points.iter().map(|(_, share)| *share));
    let (least, most) =
        shares.fold((1.0_f64, 0.0_f64), |(least, most), share| (least.min(share), most.max(share)));
    let description = format!("from {:.0} % to {:.0} % of {top}", 100.0 * least, 100.0 * most);
    let caption = Caption { id, title, description: &description };
    html! {
        div.card { h3 { (title) } (lines::lines(caption, &[series], end_s, top, &marks)) }
    }
}

fn latencies(found: &Found) -> Markup {
    let timed = || found.kinds.iter().filter(|of| of.latency.is_some());
    let said: Vec<_> =
        timed().map(|of| format!("{}: P99 {}", of.kind.name(), cells(of)[4])).collect();
    let description = said.join("; ");
    let caption = |id, title| Caption { id, title, description: &description };
    html! {
        @if !found.kinds.is_empty() {
            section {
                h2 { "Latencies" }
                @if timed().next().is_some() {
                    ul.key { @for of in timed() { li { (swatch(class(of.kind))) span { (of.kind.name()) } } } }
                    div.grid.charts {
                        div.card {
                            h3 { "No longer than, by share of requests" }
                            (chart::percentiles(&found.kinds).draw(caption("percentiles", "Latency by percentile")))
                        }
                        div.card {
                            h3 { "How many took how long, to the most of each kind" }
                            (chart::histogram(&found.kinds).draw(caption("histogram", "Histogram of latencies")))
                        }
                    }
                }
                div.scroll tabindex="0" role="region" aria-label="Requests and latencies by kind" {
                    table {
                        thead { tr { th scope="col" { "" } @for name in COLUMNS { th scope="col" { (name) } } } }
                        tbody {
                            @for of in &found.kinds {
                                tr { th scope="row" { (of.kind.name()) } @for cell in cells(of) { td { (cell) } } }
                            }
                        }
                    }
                }
                p.quiet.small {
                    "Found: reads and removals of present keys, and stores that were kept."
                    @if let Some(said) = timing(found) { " " (said) "." }
                }
            }
        }
    }
}
