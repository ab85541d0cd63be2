//! Access rate by time and address.
//!
//! A cell's value is the mean of the access rates of the regions in it, each weighted by the bytes and the time it
//! shares with the cell. A snapshot represents the time since the one before it.

use super::areas::{Area, Which, areas};
use crate::model::{Intervals, Range, Record, Region};

/// A heatmap: areas side by side, rows of time from top to bottom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heatmap {
    /// Start of the first row, nanoseconds since the record's start.
    pub from_ns: u64,
    /// End of the last row.
    pub to_ns: u64,
    /// Number of rows.
    pub rows: usize,
    /// The areas, by target and address.
    pub areas: Vec<Column>,
    /// Monitored bytes outside of all areas.
    pub left_out_bytes: u64,
}

/// The part of one area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its addresses.
    pub area: Area,
    /// Width in cells.
    pub width: usize,
    /// Its cells row by row, in permille; `None` where nothing was monitored.
    pub cells: Vec<Option<u16>>,
}

impl Column {
    /// The cells of one row.
    #[must_use]
    pub fn row(&self, row: usize) -> &[Option<u16>] {
        self.cells.get(row * self.width..(row + 1) * self.width).unwrap_or_default()
    }
}

/// Number of cells, and selection of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Approximate number of cells across all areas.
    pub columns: usize,
    /// Rows; fewer if there are fewer snapshots.
    pub rows: usize,
    /// Selection of addresses.
    pub which: Which,
}

/// The heatmap of a record; `None` without snapshots.
#[must_use]
pub fn heatmap(record: &Record, shape: Shape) -> Option<Heatmap> {
    let spans = super::spans(record);
    let (from_ns, to_ns) = (spans.first()?.0, spans.last()?.1);
    let (areas, left_out_bytes) = areas(record, shape.which);
    let rows = shape.rows.min(spans.len()).max(1);
    let time = Range { start: from_ns, end: to_ns.max(from_ns + 1) };
    let columns = widths(&areas, shape.columns)
        .into_iter()
        .zip(&areas)
        .map(|(width, area)| {
            let cells = column(record, &spans, Grid { area: *area, width, time, rows });
            Column { area: *area, width, cells }
        })
        .collect();
    Some(Heatmap { from_ns, to_ns, rows, areas: columns, left_out_bytes })
}

/// Columns per area: at least two, the rest in proportion to size.
fn widths(areas: &[Area], columns: usize) -> Vec<usize> {
    let total: u128 = areas.iter().map(|area| u128::from(area.range.bytes())).sum();
    let free = columns.saturating_sub(2 * areas.len());
    let share = |area: &Area| {
        let part =
            u128::try_from(free).unwrap_or(0) * u128::from(area.range.bytes()) / total.max(1);
        2 + usize::try_from(part).unwrap_or(0)
    };
    areas.iter().map(share).collect()
}

#[derive(Clone, Copy)]
struct Grid {
    area: Area,
    width: usize,
    time: Range,
    rows: usize,
}

/// Start of the `at`-th of `count` parts of `range`.
fn edge(range: Range, at: usize, count: usize) -> u64 {
    let part = u128::from(range.bytes()) * u128::try_from(at).unwrap_or(0);
    range.start + super::narrow(part / u128::try_from(count.max(1)).unwrap_or(1))
}

/// All of the `count` parts of `range`.
fn parts(range: Range, count: usize) -> Vec<Range> {
    let of = |at| Range { start: edge(range, at, count), end: edge(range, at + 1, count) };
    (0..count).map(of).collect()
}

/// Index of the part of `range`, out of `count`, that contains `value`.
fn part(range: Range, value: u64, count: usize) -> usize {
    let offset = u128::from(value.saturating_sub(range.start)) * u128::try_from(count).unwrap_or(0);
    usize::try_from(offset / u128::from(range.bytes().max(1))).map_or(0, |at| at.min(count - 1))
}

fn column(record: &Record, spans: &[(u64, u64)], grid: Grid) -> Vec<Option<u16>> {
    // Weight, and weight times rate, of each cell.
    let mut sums = vec![(0u128, 0u128); grid.width * grid.rows];
    // Computed once, not per region: a record may have millions, each across all cells.
    let [cells, rows] = [(grid.area.range, grid.width), (grid.time, grid.rows)]
        .map(|(range, count)| parts(range, count));
    for (access, (from, to)) in record.accesses.iter().zip(spans) {
        let regions = access.targets.iter().filter(|of| of.target == grid.area.target);
        let line = line(regions.flat_map(|of| &of.regions), access.intervals, (grid, &cells));
        let span = Range { start: *from, end: *to };
        for row in part(grid.time, *from, grid.rows)..=part(grid.time, *to, grid.rows) {
            let time = u128::from(span.shared(rows[row]) / 1000);
            let cells = &mut sums[row * grid.width..(row + 1) * grid.width];
            for (sum, (bytes, heat)) in cells.iter_mut().zip(&line) {
                sum.0 = sum.0.saturating_add(bytes.saturating_mul(time));
                sum.1 = sum.1.saturating_add(heat.saturating_mul(time));
            }
        }
    }
    let mean = |(weight, heat): (u128, u128)| {
        (weight > 0).then(|| u16::try_from(heat / weight).unwrap_or(1000).min(1000))
    };
    sums.into_iter().map(mean).collect()
}

/// Monitored bytes, and bytes times rate, in each cell of one snapshot.
fn line<'a>(
    regions: impl Iterator<Item = &'a Region>,
    intervals: Intervals,
    (grid, cells): (Grid, &[Range]),
) -> Vec<(u128, u128)> {
    let mut line = vec![(0, 0); grid.width];
    let area = grid.area.range;
    for region in regions.filter(|region| region.range.shared(area) > 0) {
        let rate = u128::from(intervals.rate_permille(region.accesses));
        let first = part(area, region.range.start.max(area.start), grid.width);
        let last = part(area, region.range.end.min(area.end) - 1, grid.width);
        // The edges are rounded down, so a neighbour may own a few bytes.
        let first = first.saturating_sub(1);
        for (cell, sum) in cells.iter().zip(&mut line).take(last + 2).skip(first) {
            let bytes = u128::from(cell.shared(region.range));
            sum.0 += bytes;
            sum.1 += bytes * rate;
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::{self, arbitrary};
    use proptest::prelude::*;

    const SHAPE: Shape = Shape { columns: 64, rows: 60, which: Which::Accessed };

    #[test]
    fn the_heatmap_shows_the_moving_hot_set() {
        let map = heatmap(&testkit::moving_hot_set(), SHAPE).unwrap();
        assert_eq!((map.rows, map.areas.len()), (60, 4));
        let mean = |area: usize, row: usize| {
            let cells: Vec<u64> =
                map.areas[area].row(row).iter().map(|cell| u64::from(cell.unwrap())).collect();
            cells.iter().sum::<u64>() / u64::try_from(cells.len()).unwrap()
        };
        // Area 0 stays lukewarm, 1 is near, 2 and 3 are the hot set's locations in far memory.
        let rows = [0, 29, 30, 59].map(|row| [0, 1, 2, 3].map(|area| mean(area, row)));
        assert_eq!(rows[0], [100, 0, 900, 0]);
        assert_eq!(rows[1], [100, 900, 0, 0]);
        assert_eq!(rows[2], [100, 0, 0, 900]);
        assert_eq!(rows[3], [100, 900, 0, 0]);
    }

    #[test]
    fn cells_average_their_regions_weighted_by_bytes_and_time() {
        let mut record = testkit::short();
        let intervals = record.header.intervals;
        let page = |start: u64, end: u64, accesses| Region {
            range: Range { start: start * 4096, end: end * 4096 },
            accesses,
            age: 0,
        };
        for access in &mut record.accesses {
            access.targets[0].regions = vec![page(0, 1, 20), page(1, 4, 10), page(4, 8, 20)];
        }
        record.accesses[2].targets[0].regions = vec![page(0, 8, 0)];
        let shape = Shape { columns: 2, rows: 1, which: Which::Accessed };
        let map = heatmap(&record, shape).unwrap();
        // Three seconds; the left half has 62.5 % on average in two of them, then 0.
        assert_eq!(map.areas[0].row(0), [Some(416), Some(666)]);
        assert_eq!(intervals.rate_permille(20), 1000);
    }

    #[test]
    fn memory_that_was_not_monitored_is_unknown_and_not_cold() {
        let mut record = testkit::short();
        record.accesses[0].targets.clear();
        let map = heatmap(&record, Shape { rows: 3, ..SHAPE }).unwrap();
        assert!(map.areas[0].row(0).iter().all(Option::is_none));
        assert!(map.areas[0].row(2).iter().all(Option::is_some));
        record.accesses.clear();
        assert_eq!(heatmap(&record, SHAPE), None);
    }

    proptest! {
        #[test]
        fn any_record_gives_cells_in_range(record in arbitrary::record(), columns in 1usize..50, rows in 1usize..50) {
            if let Some(map) = heatmap(&record, Shape { columns, rows, which: Which::Monitored }) {
                for column in &map.areas {
                    prop_assert_eq!(column.cells.len(), column.width * map.rows);
                    prop_assert!(column.cells.iter().flatten().all(|cell| *cell <= 1000));
                }
            }
        }
    }
}
