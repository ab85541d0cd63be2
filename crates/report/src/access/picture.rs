//! One report as an SVG file.

use maud::{Markup, html};

use super::super::chart::{self, Caption};
use super::super::sheet::{MARGIN, Sheet, WIDTH};
use super::{Kind, Loaded, Options, charts, heat, views, words};

/// The report as an SVG document; `None` if the record has no data for it.
pub fn svg(loaded: &Loaded, kind: Kind, options: Options) -> Option<String> {
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
    let machine = words::machine(record);
    let sheet = Sheet {
        height: Sheet::TOP + height + MARGIN,
        title: &format!("{}: {machine}", kind.title()),
        heading: kind.title(),
        about: &format!("{machine}; {}", words::target(record)),
        style: include_str!("../access.css"),
    };
    let [width, top] = [WIDTH - 2 * MARGIN, Sheet::TOP];
    Some(sheet.document(&html! {
        svg x=(MARGIN) y=(top) width=(width) height=(height) { (inside) }
    }))
}

fn caption(kind: Kind, description: &str) -> Caption<'_> {
    Caption { id: "report", title: kind.title(), description }
}

fn heat(loaded: &Loaded, options: Options) -> Option<(Markup, usize)> {
    let map = views::heat_over_time(&loaded.record, options)?;
    let (drawn, below) = heat::heat(&loaded.record, &map, "report");
    let left_out = views::left_out(&map, options).unwrap_or_default();
    let lines: Vec<&str> = left_out.split_inclusive(". ").collect();
    let drawn = html! {
        (drawn)
        @for (at, line) in lines.iter().enumerate() { text class="quiet" x="0" y=(below + 20 + at * 18) { (line.trim()) } }
    };
    Some((drawn, below + lines.len() * 18 + 10))
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
    use crate::sheet::assert_closed;

    #[test]
    fn every_report_has_a_well_formed_picture_labelled_as_emulated() {
        for kind in Kind::ALL {
            let picture = svg(&sample(), kind, Options::default()).unwrap();
            assert!(picture.contains("EMULATED machine cxl-2tier"), "{kind:?}");
            assert_closed(&picture);
        }
    }

    #[test]
    fn an_empty_record_has_no_picture() {
        let mut loaded = sample();
        loaded.record.accesses.clear();
        loaded.record.residency.clear();
        loaded.record.moved.clear();
        assert!(Kind::ALL.iter().all(|kind| svg(&loaded, *kind, Options::default()).is_none()));
    }
}
