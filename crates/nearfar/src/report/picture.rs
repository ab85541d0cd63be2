//! The picture: bandwidth per placement and mix as one SVG file, for a README.
//!
//! Follows the reader's light or dark preference by itself, as a page does.

use maud::{Markup, PreEscaped, html};

use super::chart::{self, Caption};
use super::model::{Bandwidth, MIXES, Report};
use super::{page, views, words};

const WIDTH: usize = 860;
const MARGIN: usize = 28;
const GAP: usize = 32;
const TOP: usize = 112;

/// The report's bandwidth as an SVG document; `None` if it was left out.
pub(crate) fn svg(report: &Report) -> Option<String> {
    let bandwidth = report.bandwidth.as_ref()?;
    let rows = report.placements.len();
    let height = TOP + chart::bars_height(rows) + 60;
    let style = [include_str!("colors.css"), include_str!("chart.css")].concat();
    let document = html! {
        svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" aria-labelledby="picture-title"
            width=(WIDTH) height=(height) viewBox=(format!("0 0 {WIDTH} {height}")) {
            title id="picture-title" { "nearfar demo: " (page::headline(report)) }
            style { (PreEscaped(style)) }
            rect x="0" y="0" width=(WIDTH) height=(height) rx="12" style="fill: var(--card)" {}
            text class="strong" x=(MARGIN) y="42" style="font-size: 19px" { (page::headline(report)) }
            text class="quiet" x=(MARGIN) y="66" { (words::about(&report.machine)) }
            @for (at, mix) in MIXES.into_iter().enumerate() { (panel(report, bandwidth, at, mix)) }
            (key(height))
        }
    };
    Some(document.into_string())
}

fn panel(report: &Report, bandwidth: &Bandwidth, at: usize, mix: nearfar_topology::Mix) -> Markup {
    let width = (WIDTH - 2 * MARGIN - (MIXES.len() - 1) * GAP) / MIXES.len();
    let x = MARGIN + at * (width + GAP);
    let bars = views::bandwidth(report, bandwidth, mix);
    html! {
        text class="strong" x=(x) y=(TOP - 8) { (words::mix(mix)) }
        svg x=(x) y=(TOP + 4) width=(width) height=(chart::bars_height(bars.len())) {
            (chart::bars(Caption {
                id: &format!("bandwidth-{at}"),
                title: &format!("Bandwidth per placement, {}", words::mix(mix)),
                description: &page::spoken(bars.iter().map(|bar| &bar.line)),
            }, &bars))
        }
    }
}

fn key(height: usize) -> Markup {
    let y = height - 22;
    html! {
        line class="peak" x1=(MARGIN + 1) x2=(MARGIN + 1) y1=(y - 12) y2=(y + 3) {}
        text class="quiet" x=(MARGIN + 12) y=(y) {
            "what the nodes give together, each measured alone; × is the ratio to near only"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn the_picture_says_that_it_is_emulated() {
        let picture = svg(&sample::report()).unwrap();
        assert!(picture.contains("EMULATED machine cxl-2tier"));
    }

    #[test]
    fn every_element_is_closed_as_xml_wants() {
        let picture = svg(&sample::report()).unwrap();
        for name in ["svg", "rect", "line", "text", "title", "desc", "style"] {
            let opened = picture.matches(&format!("<{name} ")).count()
                + picture.matches(&format!("<{name}>")).count();
            assert_eq!(opened, picture.matches(&format!("</{name}>")).count(), "{name}");
        }
    }

    #[test]
    fn without_bandwidth_there_is_no_picture() {
        let mut report = sample::report();
        report.bandwidth = None;
        assert_eq!(svg(&report), None);
    }
}
