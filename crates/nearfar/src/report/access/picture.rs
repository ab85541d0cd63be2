//! One report as an SVG file that follows the reader's light or dark preference by itself.

use maud::{Markup, PreEscaped, html};

use super::super::chart::{self, Caption};
use super::{Kind, Loaded, Options, charts, views, words};

const WIDTH: usize = 860;
const MARGIN: usize = 28;
const TOP: usize = 92;
/// Cells of a heatmap where none are asked for.
pub(super) const CELLS: (usize, usize) = (160, 80);

/// The report as an SVG document; nothing if the record holds nothing of it.
pub(crate) fn svg(loaded: &Loaded, kind: Kind, options: Options) -> Option<String> {
    let record = &loaded.record;
    let (inside, height) = match kind {
        Kind::Heatmap => heat(loaded, options)?,
        Kind::Wss => {
            let rows = views::working_set(record, options)?;
            let height = chart::bars_height(rows.rows.len());
            (charts::bars(caption(kind, &rows.sentence), &rows.rows, "auto"), height)
        }
        Kind::Temperature => {
            let [rate, ..] = views::warmth(record)?;
            let height = chart::bars_height(rate.rows.len());
            (charts::bars(caption(kind, &rate.sentence), &rate.rows, "far"), height)
        }
        Kind::Residency => places(loaded)?,
    };
    let total = TOP + height + MARGIN;
    let style = [
        include_str!("../colors.css"),
        include_str!("../chart.css"),
        include_str!("../access.css"),
    ];
    let document = html! {
        svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" aria-labelledby="picture-title"
            width=(WIDTH) height=(total) viewBox=(format!("0 0 {WIDTH} {total}")) {
            title id="picture-title" { (kind.title()) ": " (words::machine(record)) }
            style { (PreEscaped(style.concat())) }
            rect x="0" y="0" width=(WIDTH) height=(total) rx="12" style="fill: var(--card)" {}
            text class="strong" x=(MARGIN) y="40" style="font-size: 19px" { (kind.title()) }
            text class="quiet" x=(MARGIN) y="64" {
                (words::machine(record)) "; " (words::target(record))
            }
            svg x=(MARGIN) y=(TOP) width=(WIDTH - 2 * MARGIN) height=(height) { (inside) }
        }
    };
    Some(document.into_string())
}

fn caption(kind: Kind, description: &str) -> Caption<'_> {
    Caption { id: "report", title: kind.title(), description }
}

fn heat(loaded: &Loaded, options: Options) -> Option<(Markup, usize)> {
    let record = &loaded.record;
    let map = views::heat(record, options, CELLS)?;
    let several = map.areas.iter().any(|of| of.area.target != map.areas[0].area.target);
    let mut lines: Vec<String> = map
        .areas
        .iter()
        .enumerate()
        .map(|(at, of)| format!("{} {}", charts::name(at), words::area(record, &of.area, several)))
        .collect();
    lines.extend(views::left_out(&map, options));
    let below = charts::MAP_HEIGHT + 40;
    let drawn = html! {
        (charts::heat(caption(Kind::Heatmap, &lines.join("; ")), &map))
        (charts::key(charts::MAP_HEIGHT + 6))
        @for (at, line) in lines.iter().enumerate() { text x="0" y=(below + at * 20) { (line) } }
    };
    Some((drawn, below + lines.len() * 20))
}

fn places(loaded: &Loaded) -> Option<(Markup, usize)> {
    let (over, sentences) = views::places(&loaded.record)?;
    let nodes = charts::nodes(&loaded.record, &over.nodes);
    let classes: Vec<&str> = nodes.iter().map(|(class, _)| *class).collect();
    let below = charts::BANDS_HEIGHT + 22;
    let drawn = html! {
        (charts::bands(caption(Kind::Residency, &sentences.join(" ")), &over.series, &classes))
        @for (at, (class, name)) in nodes.iter().enumerate() {
            rect class=(class) x="0" y=(below + at * 20 - 11) width="12" height="12" rx="3" {}
            text x="20" y=(below + at * 20) { (name) }
        }
        @for (at, line) in sentences.iter().enumerate() {
            text class="quiet" x="0" y=(below + (nodes.len() + at) * 20) { (line) }
        }
    };
    Some((drawn, below + (nodes.len() + sentences.len()) * 20))
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn every_report_has_a_picture_that_says_it_is_emulated_and_is_closed_as_xml_wants() {
        for kind in Kind::ALL {
            let picture = svg(&sample(), kind, Options::default()).unwrap();
            assert!(picture.contains("EMULATED machine cxl-2tier"), "{kind:?}");
            for name in ["svg", "rect", "path", "text", "title", "desc", "style"] {
                let opened = picture.matches(&format!("<{name} ")).count()
                    + picture.matches(&format!("<{name}>")).count();
                assert_eq!(opened, picture.matches(&format!("</{name}>")).count(), "{name}");
            }
        }
    }

    #[test]
    fn a_record_of_nothing_has_no_picture() {
        let mut loaded = sample();
        loaded.record.accesses.clear();
        loaded.record.residency.clear();
        loaded.record.moved.clear();
        assert!(Kind::ALL.iter().all(|kind| svg(&loaded, *kind, Options::default()).is_none()));
    }
}
