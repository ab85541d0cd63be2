//! The heatmap as SVG: time from left to right, addresses from bottom to top, one strip for each area of addresses.
//!
//! Cells are drawn in a coordinate system of their own that is stretched to the available width, with one path per
//! shade, so a map of thousands of cells stays small; text is drawn outside of it and keeps its size. Invisible squares
//! over the cells have the values as SVG titles, which browsers show as tooltips without a script.

use std::fmt::Write as _;

use maud::{Markup, html};
use nearfar_record::Record;
use nearfar_record::reduce::heatmap::{Column, Heatmap};
use nearfar_topology::Bytes;

use super::super::chart::{Caption, anchor, frame};
use super::{views, words};

/// Height of all strips together, in pixels.
const MAP: usize = 320;
/// Least height of a strip.
const STRIP_MIN: usize = 28;
/// Space for an area's heading above its strip.
const HEADING: usize = 28;
/// Space for the time axis below.
const AXIS: usize = 42;
/// Space for the legend of shades below that.
const SCALE: usize = 36;
/// Left edge of the strips, in per cent of the width; offsets are to its left.
const GUTTER: f64 = 15.0;
/// Squares with a tooltip: number across, and pixels of height of each.
const SQUARES: (usize, usize) = (40, 16);
/// Candidate intervals between ticks of the time axis, in milliseconds; above them, whole days.
const STEPS_MS: [u64; 28] = [
    1,
    2,
    5,
    10,
    20,
    50,
    100,
    200,
    500,
    1_000,
    2_000,
    5_000,
    10_000,
    15_000,
    30_000,
    60_000,
    120_000,
    300_000,
    600_000,
    900_000,
    1_800_000,
    3_600_000,
    7_200_000,
    10_800_000,
    21_600_000,
    43_200_000,
    86_400_000,
    172_800_000,
];

/// One area's position in the picture.
struct Strip<'a> {
    column: &'a Column,
    heading: String,
    /// Top and height of its cells.
    y: usize,
    height: usize,
}

/// The heatmap, and its height including all text.
pub(super) fn heat(record: &Record, map: &Heatmap, id: &str) -> (Markup, usize) {
    let strips = strips(record, map);
    let bottom = strips.last().map_or(0, |strip| strip.y + strip.height);
    let described: Vec<&str> = strips.iter().map(|strip| strip.heading.as_str()).collect();
    let title = super::Kind::Heatmap.title();
    let height = bottom + AXIS + SCALE;
    let inside = html! {
        @for strip in &strips { (drawn(strip, map)) }
        (times(map, bottom))
        (scale(bottom + AXIS))
    };
    (frame(Caption { id, title, description: &described.join("; ") }, height, &inside), height)
}

/// Positions of the strips; the highest addresses are at the top.
fn strips<'a>(record: &Record, map: &'a Heatmap) -> Vec<Strip<'a>> {
    let several = map.areas.iter().any(|of| of.area.target != map.areas[0].area.target);
    let total: usize = map.areas.iter().map(|column| column.width).sum();
    let mut y = 0;
    let mut strips = Vec::new();
    for column in map.areas.iter().rev() {
        let height = (MAP * column.width / total.max(1)).max(STRIP_MIN);
        y += HEADING;
        let heading = words::area(record, &column.area, several);
        strips.push(Strip { column, heading, y, height });
        y += height;
    }
    strips
}

fn drawn(strip: &Strip<'_>, map: &Heatmap) -> Markup {
    let Strip { column, y, height, .. } = strip;
    let bytes = column.area.range.bytes();
    let step = size_step(bytes, *height);
    let offsets = (0..).map(|at| step * at).take_while(|offset| *offset < bytes);
    let squares = squares(column, map, (height / SQUARES.1).max(1));
    html! {
        text class="quiet" x="0" y=(y - 14) { (strip.heading) }
        @for offset in offsets {
            @let from_top = usize::try_from(u128::from(bytes - offset) * count(*height) / u128::from(bytes)).unwrap_or(0);
            line class="grid" x1=(percent(GUTTER - 1.0)) x2=(percent(GUTTER)) y1=(y + from_top) y2=(y + from_top) {}
            text class="tick" x="0" y=(y + from_top) { (Bytes(offset)) }
        }
        svg x=(percent(GUTTER)) y=(y) width=(percent(100.0 - GUTTER)) height=(height) preserveAspectRatio="none"
            viewBox=(format!("0 0 {} {}", map.rows, column.width)) {
            @for (level, path) in paths(column, map.rows) {
                path class=(format!("h{level}")) d=(path) shape-rendering="crispEdges" {}
            }
        }
        svg x=(percent(GUTTER)) y=(y) width=(percent(100.0 - GUTTER)) height=(height) preserveAspectRatio="none"
            viewBox=(format!("0 0 {} {}", squares.across, squares.up)) {
            @for (x, y, text) in &squares.texts {
                rect x=(x) y=(y) width="1" height="1" fill="none" pointer-events="all" { title { (text) } }
            }
        }
    }
}

/// The runs of cells of each shade, with time across and the lowest address at the bottom.
fn paths(column: &Column, rows: usize) -> Vec<(u16, String)> {
    let mut paths = vec![String::new(); usize::from(views::LEVELS)];
    for y in 0..column.width {
        let cell = |row: usize| column.row(row).get(column.width - 1 - y).copied().flatten();
        let shades: Vec<Option<u16>> = (0..rows).map(|row| cell(row).map(views::level)).collect();
        let mut at = 0;
        for run in shades.chunk_by(|a, b| a == b) {
            if let Some(path) = run[0].and_then(|level| paths.get_mut(usize::from(level))) {
                let _ = write!(path, "M{at} {y}h{0}v1h-{0}z", run.len());
            }
            at += run.len();
        }
    }
    (0..).zip(paths).filter(|(_, path)| !path.is_empty()).collect()
}

/// Squares with their tooltips; squares without data are left out.
struct Squares {
    across: usize,
    up: usize,
    texts: Vec<(usize, usize, String)>,
}

fn squares(column: &Column, map: &Heatmap, up: usize) -> Squares {
    let (across, up) = (map.rows.min(SQUARES.0).max(1), up.min(column.width).max(1));
    let range = column.area.range;
    let mut texts = Vec::new();
    for x in 0..across {
        let rows = part(map.rows, x, across);
        let times = [rows.start, rows.end].map(|row| words::time(at_row(map, row)));
        for y in 0..up {
            let cells = part(column.width, up - 1 - y, up);
            let known: Vec<u64> = rows
                .clone()
                .flat_map(|row| column.row(row).get(cells.clone()).unwrap_or_default())
                .flatten()
                .map(|cell| u64::from(*cell))
                .collect();
            let Some(mean) =
                known.iter().sum::<u64>().checked_div(u64::try_from(known.len()).unwrap_or(1))
            else {
                continue;
            };
            let [from, to] = [cells.start, cells.end].map(|cell| {
                let offset = u128::from(range.bytes()) * count(cell) / count(column.width.max(1));
                let offset = if cell < column.width { offset & !0xfff } else { offset };
                range.start.saturating_add(u64::try_from(offset).unwrap_or(u64::MAX))
            });
            let [start, end] = &times;
            let text = format!(
                "{start} to {end}, {from:#x} to {to:#x}: accessed in {} of samples",
                words::percent(mean)
            );
            texts.push((x, y, text));
        }
    }
    Squares { across, up, texts }
}

/// The `at`-th of `of` parts of `0..all`.
fn part(all: usize, at: usize, of: usize) -> std::ops::Range<usize> {
    all * at / of..all * (at + 1) / of
}

/// Start of a row.
fn at_row(map: &Heatmap, row: usize) -> u64 {
    let past = u128::from(map.to_ns - map.from_ns) * count(row) / count(map.rows.max(1));
    map.from_ns + u64::try_from(past).unwrap_or(u64::MAX)
}

/// The time axis, below the lowest strip.
fn times(map: &Heatmap, bottom: usize) -> Markup {
    let span = (map.to_ns - map.from_ns).max(1);
    let step = time_step(span);
    let ticks = (map.from_ns.div_ceil(step)..=map.to_ns / step).map(|at| at * step);
    html! {
        @for tick in ticks {
            @let share = thousandths(tick - map.from_ns, span) / 1000.0;
            @let x = percent(GUTTER + (100.0 - GUTTER) * share);
            line class="grid" x1=(x) x2=(x) y1=(bottom) y2=(bottom + 6) {}
            text class="tick" x=(x) y=(bottom + 18) text-anchor=(anchor(share)) { (words::time(tick)) }
        }
        text class="quiet" x=(percent(GUTTER)) y=(bottom + 34) { "time since recording began" }
    }
}

/// The legend of shades, with the share of samples of each.
fn scale(y: usize) -> Markup {
    let shades = usize::from(views::LEVELS) - 1;
    let x = |shade: usize| 60 + 22 * shade;
    html! {
        text class="quiet" x="0" y=(y + 11) { "idle" }
        rect class="h0" x="28" y=(y) width="20" height="13" {}
        @for shade in 0..shades {
            rect class=(format!("h{}", shade + 1)) x=(x(shade)) y=(y) width="22" height="13" {}
        }
        @for shade in (0..=shades).step_by(2) {
            text class="tick" x=(x(shade)) y=(y + 26) text-anchor="middle" { (shade * 100 / shades) }
        }
        text class="quiet" x=(x(shades) + 8) y=(y + 11) { "% of samples" }
    }
}

/// The interval between ticks, for about six of them.
fn time_step(span: u64) -> u64 {
    let fits = STEPS_MS.iter().map(|ms| ms * 1_000_000).find(|step| span / step <= 6);
    fits.unwrap_or_else(|| (span / 6).div_ceil(86_400_000_000_000) * 86_400_000_000_000)
}

/// The bytes between ticks, for at least 40 pixels between them: a power of two.
fn size_step(bytes: u64, height: usize) -> u64 {
    let most = u64::try_from((height / 40).max(1)).unwrap_or(1);
    bytes.div_ceil(most).max(1).checked_next_power_of_two().unwrap_or(1 << 63)
}

fn count(of: usize) -> u128 {
    u128::try_from(of).unwrap_or(0)
}

#[expect(clippy::cast_precision_loss, reason = "positions on paper")]
fn thousandths(part: u64, whole: u64) -> f64 {
    words::permille(part, whole) as f64
}

fn percent(share: f64) -> String {
    format!("{share:.2}%")
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use nearfar_record::Range;
    use nearfar_record::reduce::areas::Area;

    fn map(width: usize, cells: Vec<Option<u16>>) -> Heatmap {
        let area = Area { target: 0, range: Range { start: 0x1000, end: 0x5000 } };
        let rows = cells.len() / width;
        let areas = vec![Column { area, width, cells }];
        Heatmap { from_ns: 0, to_ns: 4_000_000_000, rows, areas, left_out_bytes: 0 }
    }

    #[test]
    fn time_goes_right_and_addresses_go_up() {
        // Two snapshots; the low half is idle at first, then hot; the high half has no data at first.
        let map = map(2, vec![Some(0), None, Some(1000), Some(1000)]);
        let paths = paths(&map.areas[0], map.rows);
        assert_eq!(paths, [(0, "M0 1h1v1h-1z".into()), (8, "M1 0h1v1h-1zM1 1h1v1h-1z".into())]);
    }

    #[test]
    fn a_tooltip_gives_time_addresses_and_rate() {
        let map = map(2, vec![Some(0), None, Some(500), Some(1000)]);
        let squares = squares(&map.areas[0], &map, 2);
        assert_eq!((squares.across, squares.up), (2, 2));
        assert_eq!(
            squares.texts,
            [
                (0, 1, "0 s to 2 s, 0x1000 to 0x3000: accessed in 0 % of samples".into()),
                (1, 0, "2 s to 4 s, 0x3000 to 0x5000: accessed in 100 % of samples".into()),
                (1, 1, "2 s to 4 s, 0x1000 to 0x3000: accessed in 50 % of samples".into()),
            ]
        );
    }

    #[test]
    fn axes_have_round_ticks() {
        assert_eq!(time_step(60_000_000_000), 10_000_000_000);
        assert_eq!(time_step(7), 1_000_000);
        assert_eq!(time_step(u64::MAX) % 86_400_000_000_000, 0);
        assert_eq!(size_step(512 << 20, 160), 128 << 20);
        assert_eq!(size_step(u64::MAX, 28), 1 << 63);
        let record = sample().record;
        let map = views::heat_over_time(&record, super::super::Options::default()).unwrap();
        let (picture, _) = heat(&record, &map, "heatmap");
        let picture = picture.into_string();
        for said in [
            "0 B",
            "128 MiB",
            "10 s",
            "time since recording began",
            "% of samples",
            "<title>0 s to ",
        ] {
            assert!(picture.contains(said), "{said}");
        }
    }
}
