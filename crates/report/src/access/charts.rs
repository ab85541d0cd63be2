//! SVG charts of an access record: bands over time. The heatmap is in `heat.rs`, bars are in `chart.rs`.

use std::fmt::Write as _;

use maud::{Markup, html};
use nearfar_record::Record;
use nearfar_topology::NodeId;

use super::super::chart::{self, Bar, Caption, Line, frame};
use super::views::{self, Row};
use super::words;

/// Space above and below a chart for its text.
const TEXT: usize = 20;
/// Height of bands.
const BANDS: usize = 120;

/// Height of bands with their text.
pub(super) const BANDS_HEIGHT: usize = BANDS + 2 * TEXT;

/// Stacked bands over time; each point in time has one value per class.
pub(super) fn bands(caption: Caption<'_>, series: &[(u64, Vec<u64>)], classes: &[&str]) -> Markup {
    let (from, to) = (series.first().map_or(0, |of| of.0), series.last().map_or(0, |of| of.0));
    let sums = series.iter().map(|(_, bytes)| bytes.iter().map(|of| u128::from(*of)).sum::<u128>());
    let highest = sums.max().unwrap_or(0).max(1);
    let top = nearfar_topology::Bytes(u64::try_from(highest).unwrap_or(u64::MAX));
    frame(
        caption,
        BANDS_HEIGHT,
        &html! {
            text class="quiet" x="0" y="13" { (top) }
            svg x="0" y=(TEXT) width="100%" height=(BANDS) preserveAspectRatio="none" viewBox="0 0 1000 1000" {
                rect class="track" x="0" y="0" width="1000" height="1000" {}
                @for (at, class) in classes.iter().enumerate().rev() {
                    path class=(class) d=(band(series, at, highest)) {}
                }
            }
            (ends(from, to))
        },
    )
}

/// The area below the sum of the first `upto` values.
fn band(series: &[(u64, Vec<u64>)], upto: usize, highest: u128) -> String {
    let (from, to) = (series.first().map_or(0, |of| of.0), series.last().map_or(0, |of| of.0));
    let mut path = String::from("M0 1000");
    for (at, bytes) in series {
        let sum: u128 = bytes.iter().take(upto + 1).map(|of| u128::from(*of)).sum();
        let x = u128::from(at - from) * 1000 / u128::from((to - from).max(1));
        let y = 1000 - sum * 1000 / highest;
        let _ = write!(path, "L{x} {y}");
    }
    path.push_str(if series.len() == 1 { "H1000V1000z" } else { "L1000 1000z" });
    path
}

/// Rows of bars.
pub(super) fn bars(caption: Caption<'_>, rows: &[Row], class: &'static str) -> Markup {
    #[expect(clippy::cast_precision_loss, reason = "lengths of bars")]
    let bar = |row: &Row| Bar {
        line: Line { name: row.name.clone(), value: row.value.clone(), strong: false },
        class,
        length: row.permille as f64 / 1000.0,
        mark: None,
    };
    chart::bars(caption, &rows.iter().map(bar).collect::<Vec<_>>())
}

/// The nodes of a residency, with their colour classes and names.
pub(super) fn nodes(record: &Record, nodes: &[NodeId]) -> Vec<(&'static str, String)> {
    nodes.iter().map(|id| (views::node_class(record, *id), words::node(record, *id))).collect()
}

/// Labels with the first and last time, at both ends.
fn ends(from: u64, to: u64) -> Markup {
    let y = BANDS_HEIGHT - 5;
    html! {
        text class="quiet" x="0" y=(y) { (words::time(from)) }
        text class="quiet" x="100%" y=(y) text-anchor="end" { (words::time(to)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bands_are_stacked_and_fill_the_height() {
        let series = [(0, vec![1, 3]), (10, vec![2, 2])];
        assert_eq!(band(&series, 0, 4), "M0 1000L0 750L1000 500L1000 1000z");
        assert_eq!(band(&series, 1, 4), "M0 1000L0 0L1000 0L1000 1000z");
    }
}
