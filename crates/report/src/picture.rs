//! The picture: bandwidth per placement and mix as one SVG file, for a README.

use maud::{Markup, html};

use super::chart::{self, Caption};
use super::model::{Bandwidth, MIXES, Report};
use super::sheet::{MARGIN, Sheet, WIDTH};
use super::{page, views, words};

const GAP: usize = 32;
const TOP: usize = 112;

/// The report's bandwidth as an SVG document; `None` if it was left out.
pub fn svg(report: &Report) -> Option<String> {
    let bandwidth = report.bandwidth.as_ref()?;
    let rows = report.placements.len();
    let height = TOP + chart::bars_height(rows) + 60;
    let heading = page::headline(report);
    let sheet = Sheet {
        height,
        title: &format!("nearfar demo: {heading}"),
        heading: &heading,
        about: &words::about(&report.machine),
        style: "",
    };
    Some(sheet.document(&html! {
        @for (at, mix) in MIXES.into_iter().enumerate() { (panel(report, bandwidth, at, mix)) }
        (key(height))
    }))
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
            "sum of the nodes' bandwidths, each measured alone; × is the ratio to near only"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use crate::sheet::assert_closed;

    #[test]
    fn the_picture_says_that_it_is_emulated() {
        let picture = svg(&sample::report()).unwrap();
        assert!(picture.contains("EMULATED machine cxl-2tier"));
    }

    #[test]
    fn every_element_is_closed_as_xml_wants() {
        assert_closed(&svg(&sample::report()).unwrap());
    }

    #[test]
    fn without_bandwidth_there_is_no_picture() {
        let mut report = sample::report();
        report.bandwidth = None;
        assert_eq!(svg(&report), None);
    }
}
