//! The picture of a comparison: each row's results with the first workload, as one SVG file.

use maud::{Markup, html};

use super::{Document, grouped};
use crate::tiering::acceptance::Figures;
use crate::tiering::rows::Row;
use nearfar_report::chart::{self, Bar, Caption, Line};
use nearfar_report::sheet::{MARGIN, Sheet, WIDTH};
use nearfar_report::{page, words};

const GAP: usize = 40;
const TOP: usize = 118;

/// The first workload that ran under at least two rows, as an SVG document; `None` if none did.
pub(crate) fn svg(document: &Document) -> Option<String> {
    let (compared, figures) = document.parts().find(|(_, figures)| figures.len() > 1)?;
    let machine = document.found.machine()?;
    let panels = [throughput(figures), far_lines(figures)];
    let height = TOP + chart::bars_height(figures.len()) + 30;
    let heading = format!("{}: tiering systems, side by side", compared.workload);
    let sheet = Sheet {
        height,
        title: &format!("nearfar-bench tiering: {heading}"),
        heading: &heading,
        about: &words::about(machine),
        style: include_str!("../tiering.css"),
    };
    Some(sheet.document(&html! {
        @for (at, (what, bars)) in panels.iter().enumerate() { (panel(at, what, bars)) }
    }))
}

fn panel(at: usize, what: &str, bars: &[Bar]) -> Markup {
    let width = (WIDTH - 2 * MARGIN - GAP) / 2;
    let x = MARGIN + at * (width + GAP);
    html! {
        text class="strong" x=(x) y=(TOP - 10) { (what) }
        svg x=(x) y=(TOP + 4) width=(width) height=(chart::bars_height(bars.len())) {
            (chart::bars(Caption {
                id: &format!("panel-{at}"),
                title: what,
                description: &page::spoken(bars.iter().map(|bar| &bar.line)),
            }, bars))
        }
    }
}

fn throughput(figures: &[Figures]) -> (&'static str, Vec<Bar>) {
    let value = |of: &Figures| Some(of.steady_operations_per_s);
    let bars = bars(figures, value, |of, rate| match of.to_dram.filter(|_| of.row != Row::Dram) {
        Some(ratio) => format!("{} a second, {ratio:.2} × DRAM only", grouped(rate)),
        None => format!("{} a second", grouped(rate)),
    });
    ("Operations: more is better", bars)
}

fn far_lines(figures: &[Figures]) -> (&'static str, Vec<Bar>) {
    let bars = bars(figures, |of| of.far_lines, |_, lines| format!("{lines:.1}"));
    ("Far cache lines an operation: fewer are better", bars)
}

/// One bar per row, scaled to the longest.
fn bars(
    figures: &[Figures],
    value: impl Fn(&Figures) -> Option<f64>,
    text: impl Fn(&Figures, f64) -> String,
) -> Vec<Bar> {
    let most = figures.iter().filter_map(&value).fold(0.0, f64::max);
    let bar = |of: &Figures| Bar {
        line: Line {
            name: of.row.name().into(),
            value: value(of).map_or_else(|| "–".into(), |value| text(of, value)),
            strong: of.row == Row::Nearfar,
        },
        class: of.row.class(),
        length: value(of).filter(|_| most > 0.0).map_or(0.0, |value| value / most),
        mark: None,
    };
    figures.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiering::sample;
    use nearfar_report::sheet::assert_closed;

    #[test]
    fn the_picture_shows_every_row_that_ran_and_that_it_is_emulated() {
        let document = Document::of(sample::found());
        let picture = svg(&document).unwrap();
        assert!(picture.contains("EMULATED machine cxl-2tier-small"));
        let shown = |row: Row| picture.matches(&format!(">{}<", row.name())).count();
        assert!(document.figures[0].iter().all(|of| shown(of.row) == 2), "{picture}");
        assert_eq!(shown(Row::Memtierd), 0, "it was absent");
        assert_closed(&picture);
    }

    #[test]
    fn with_one_row_there_is_nothing_to_compare() {
        let mut found = sample::found();
        found.workloads[0].rows.truncate(1);
        assert_eq!(svg(&Document::of(found)), None);
    }
}
