//! Pictures of an access record as SVG: the heatmap, and bands over time. Bars are the demo's (`../chart.rs`).
//!
//! Cells are drawn in a coordinate system of their own that is stretched to the place there is, one path for each
//! shade, so a map of thousands of cells stays small; text stands outside of it and keeps its size.

use std::fmt::Write as _;

use maud::{Markup, html};
use nearfar_record::Record;
use nearfar_record::reduce::heatmap::{Column, Heatmap};
use nearfar_topology::NodeId;

use super::super::chart::{self, Bar, Caption, Line, frame};
use super::views::{self, Row};
use super::words;

/// Height of the heatmap's cells.
const MAP: usize = 320;
/// Room above and below a picture for its text.
const TEXT: usize = 20;
/// Height of bands.
const BANDS: usize = 120;
/// Per cent of the width between two areas.
const GAP: f64 = 1.2;

/// Height of a heatmap with its text.
pub(super) const MAP_HEIGHT: usize = MAP + 2 * TEXT;
/// Height of bands with their text.
pub(super) const BANDS_HEIGHT: usize = BANDS + 2 * TEXT;

/// The heatmap.
pub(super) fn heat(caption: Caption<'_>, map: &Heatmap) -> Markup {
    let total: usize = map.areas.iter().map(|column| column.width).sum();
    #[expect(clippy::cast_precision_loss, reason = "positions on paper")]
    let (unit, gaps) = ((total.max(1) as f64), map.areas.len().saturating_sub(1) as f64);
    let mut x = 0.0;
    let mut placed = Vec::new();
    for column in &map.areas {
        #[expect(clippy::cast_precision_loss, reason = "positions on paper")]
        let width = column.width as f64 / unit * (100.0 - gaps * GAP);
        placed.push((column, x, width));
        x += width + GAP;
    }
    frame(
        caption,
        MAP_HEIGHT,
        &html! {
            @for (at, (column, x, width)) in placed.iter().enumerate() {
                text class="quiet" x=(percent(*x)) y="13" { (name(at)) }
                svg x=(percent(*x)) y=(TEXT) width=(percent(*width)) height=(MAP) preserveAspectRatio="none"
                    viewBox=(format!("0 0 {} {}", column.width, map.rows)) {
                    @for (level, path) in paths(column, map.rows) {
                        path class=(format!("h{level}")) d=(path) shape-rendering="crispEdges" {}
                    }
                }
            }
            (ends(map.from_ns, map.to_ns, true))
        },
    )
}

/// The name of an area, as in the list beside the map.
pub(super) fn name(at: usize) -> char {
    ('A'..='Z').cycle().nth(at).unwrap_or('?')
}

/// For each shade the runs of cells that have it.
fn paths(column: &Column, rows: usize) -> Vec<(u16, String)> {
    let mut paths = vec![String::new(); usize::from(views::LEVELS)];
    for row in 0..rows {
        let shades: Vec<Option<u16>> =
            column.row(row).iter().map(|cell| cell.map(views::level)).collect();
        let mut at = 0;
        for run in shades.chunk_by(|a, b| a == b) {
            if let Some(path) = run[0].and_then(|level| paths.get_mut(usize::from(level))) {
                let _ = write!(path, "M{at} {row}h{0}v1h-{0}z", run.len());
            }
            at += run.len();
        }
    }
    (0..).zip(paths).filter(|(_, path)| !path.is_empty()).collect()
}

/// Bands one above the other over time; at each time as many figures as there are classes.
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
            (ends(from, to, false))
        },
    )
}

/// The area below the sum of the figures up to `upto`.
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

/// The shades with their meaning.
pub(super) fn key(y: usize) -> Markup {
    html! {
        text class="quiet" x="0" y=(y + 11) { "idle" }
        @for level in 0..views::LEVELS {
            rect class=(format!("h{level}")) x=(34 + 16 * level) y=(y) width="16" height="13" {}
        }
        text class="quiet" x=(40 + 16 * views::LEVELS) y=(y + 11) { "at every look" }
    }
}

/// The nodes of a residency, with their colours.
pub(super) fn nodes(record: &Record, nodes: &[NodeId]) -> Vec<(&'static str, String)> {
    nodes.iter().map(|id| (views::node_class(record, *id), words::node(record, *id))).collect()
}

/// First and last moment: below at both ends, or where time runs down, both below at the left.
fn ends(from: u64, to: u64, down: bool) -> Markup {
    let y = if down { MAP_HEIGHT - 5 } else { BANDS_HEIGHT - 5 };
    html! {
        @if down {
            text class="quiet" x="0" y=(y) {
                "time runs down, from " (words::time(from)) " to " (words::time(to))
            }
        } @else {
            text class="quiet" x="0" y=(y) { (words::time(from)) }
            text class="quiet" x="100%" y=(y) text-anchor="end" { (words::time(to)) }
        }
    }
}

fn percent(share: f64) -> String {
    format!("{share:.2}%")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_one_shade_are_one_rectangle() {
        let area = nearfar_record::reduce::areas::Area {
            target: 0,
            range: nearfar_record::Range { start: 0, end: 4 },
        };
        let cells = vec![Some(0), Some(0), Some(1000), None, Some(1000), Some(1000), None, None];
        let column = Column { area, width: 4, cells };
        let paths = paths(&column, 2);
        assert_eq!(paths, [(0, "M0 0h2v1h-2z".into()), (8, "M2 0h1v1h-1zM0 1h2v1h-2z".into())]);
    }

    #[test]
    fn bands_stand_on_each_other_and_fill_the_height() {
        let series = [(0, vec![1, 3]), (10, vec![2, 2])];
        assert_eq!(band(&series, 0, 4), "M0 1000L0 750L1000 500L1000 1000z");
        assert_eq!(band(&series, 1, 4), "M0 1000L0 0L1000 0L1000 1000z");
    }
}
