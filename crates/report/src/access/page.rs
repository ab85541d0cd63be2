//! All reports of a record as one self-contained HTML page: no script, no network, no fonts from elsewhere.

use crate::style;
use maud::{Markup, html};
use nearfar_record::Target;

use super::super::chart::Caption;
use super::super::document::{document, swatch};
use super::views::Rows;
use super::{Kind, Loaded, Options, charts, heat, views, words};

/// The page.
pub fn html(loaded: &Loaded, options: Options) -> String {
    let record = &loaded.record;
    let style = [style::COLORS, style::PAGE, style::CHART, include_str!("../access.css")];
    let main = html! {
        (head(loaded))
        (heat(loaded, options))
        (working_set(loaded, options))
        (warmth(loaded))
        (places(loaded))
        (notes(loaded))
        footer { "nearfar " (env!("CARGO_PKG_VERSION")) " · " (loaded.name) " · " (record.header.writer) }
    };
    document(&format!("nearfar report: {}", words::machine(record)), &style, &main)
}

fn head(loaded: &Loaded) -> Markup {
    let record = &loaded.record;
    html! {
        header {
            p.brand { "nearfar report" }
            h1 { "Memory accesses" @if record.header.target != Target::Unknown { " of " (words::target(record)) } }
            p { (words::machine(record)) "." }
            p.quiet { (words::extent(record)) "." }
            ul.nodes {
                @for (class, name) in charts::nodes(record, &record.header.nodes.iter().map(|node| node.id).collect::<Vec<_>>()) {
                    li { (swatch(class)) span { (name) } }
                }
            }
            @if record.header.emulated {
                p.note role="note" { strong { "Emulated. " } (words::EMULATED) }
            }
            @for finding in &loaded.findings { p.note role="note" { (finding) } }
        }
    }
}

fn heat(loaded: &Loaded, options: Options) -> Markup {
    let record = &loaded.record;
    let map = views::heat_over_time(record, options);
    section(
        Kind::Heatmap,
        &html! {
            @if let Some(map) = map {
                p { "How often memory was accessed, by time (from left to right) and address (from bottom to top)." }
                div.card {
                    (heat::heat(record, &map, "heatmap").0)
                    @if let Some(left_out) = views::left_out(&map, options) { p.quiet.small { (left_out) } }
                }
            } @else { (nothing()) }
        },
    )
}

fn working_set(loaded: &Loaded, options: Options) -> Markup {
    let record = &loaded.record;
    let rows = views::working_set(record, options);
    let series = views::working_set_over_time(record, options);
    section(
        Kind::Wss,
        &html! {
            @if let Some(rows) = rows {
                div.grid {
                    (rows_card("wss", &rows, "auto"))
                    div.card {
                        h3 { "Over time" }
                        (charts::bands(Caption {
                            id: "wss-time", title: "Working-set size over time", description: &rows.sentence,
                        }, &series, &["auto"]))
                        @if let Some(near) = views::hot_near(record) { p.quiet.small { (near) } }
                    }
                }
            } @else { (nothing()) }
        },
    )
}

fn warmth(loaded: &Loaded) -> Markup {
    let all = views::warmth(&loaded.record);
    section(
        Kind::Temperature,
        &html! {
            @if let Some([rate, accessed, idle]) = all {
                p { "How much memory was how hot, on average over the snapshots." }
                div.grid {
                    (rows_card("rate", &rate, "far"))
                    (rows_card("accessed", &accessed, "far"))
                    (rows_card("idle", &idle, "near"))
                }
            } @else { (nothing()) }
        },
    )
}

fn places(loaded: &Loaded) -> Markup {
    let record = &loaded.record;
    let found = views::places(record);
    section(
        Kind::Residency,
        &html! {
            @if let Some((over, sentences)) = found {
                @let nodes = charts::nodes(record, &over.nodes);
                @let classes: Vec<&str> = nodes.iter().map(|(class, _)| *class).collect();
                div.card {
                    (charts::bands(Caption {
                        id: "residency", title: "Bytes per node over time", description: &sentences.join(" "),
                    }, &over.series, &classes))
                    ul.key { @for (class, name) in &nodes { li { (swatch(class)) span { (name) } } } }
                }
                ul { @for sentence in &sentences { li { (sentence) } } }
            } @else { p { "The record holds no residency: its writer did not record it." } }
        },
    )
}

fn notes(loaded: &Loaded) -> Markup {
    let record = &loaded.record;
    html! {
        @if !record.notes.is_empty() {
            section {
                h2 { "Notes" }
                ul { @for note in &record.notes { li { strong { (words::time(note.at_ns)) } " " (note.text) } } }
            }
        }
        @if let Some(overhead) = words::overhead(record) { p.quiet { (overhead) } }
    }
}

fn section(kind: Kind, inside: &Markup) -> Markup {
    html! { section { h2 { (kind.title()) } (inside) } }
}

fn rows_card(id: &str, rows: &Rows, class: &'static str) -> Markup {
    html! {
        div.card {
            h3 { (rows.title) }
            (charts::bars(Caption { id, title: rows.title, description: &rows.sentence }, &rows.rows, class))
            p.quiet.small { (rows.sentence) }
        }
    }
}

fn nothing() -> Markup {
    html! { p { "The record holds no accesses." } }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn text_of_a_record_is_escaped() {
        let mut loaded = sample();
        loaded.record.header.machine = "<script>alert(1)</script>".into();
        loaded.record.notes[0].text = "<b>".into();
        let page = html(&loaded, Options::default());
        assert!(!page.contains("<script>") && page.contains("&lt;script&gt;"));
        assert!(!page.contains("<b>hot") && page.contains("&lt;b&gt;"));
    }

    #[test]
    fn the_page_states_emulation_and_damage() {
        let mut loaded = sample();
        loaded.findings.push("the file ends within the frame at byte 7".into());
        let page = html(&loaded, Options::default());
        assert!(page.contains("Emulated.") && page.contains("at byte 7"));
        assert!(page.contains("hot set moved") && page.contains("0.50 % of a CPU"));
        assert!(!page.contains("http://") && !page.contains("https://"));
    }
}
