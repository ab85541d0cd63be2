//! Line charts with ticks on two axes, and charts of latencies.
//!
//! Latency axes are logarithmic, percentile axes are in nines: 90 %, 99 % and 99.9 % are equally far apart, because the
//! tail matters most. As in `lines.rs`, lines are stretched to the available width and text is not.

use std::fmt::Write as _;

use maud::{Markup, html};

use super::class;
use crate::cache::results::{KindFound, Latency};
use nearfar_report::chart::{Caption, frame};
use nearfar_report::words;

/// Height of the drawing, and of the space for text below it.
const HEIGHT: usize = 230;
const TEXT: usize = 20;

/// A line; points are shares of width and height.
#[derive(Debug, PartialEq)]
pub(super) struct Series {
    class: &'static str,
    points: Vec<(f64, f64)>,
}

/// Positions on an axis as shares of its length, with their labels.
type Ticks = Vec<(f64, String)>;

/// A picture.
pub(super) struct Plot {
    series: Vec<Series>,
    across: Ticks,
    up: Ticks,
}

/// From the power of ten below the least latency to the one above the greatest, in nanoseconds.
fn decades(kinds: &[&Latency]) -> (i32, i32) {
    let values = || kinds.iter().flat_map(|took| took.histogram.iter().map(|(ns, _)| *ns));
    let least = values().min().unwrap_or(1).max(1).ilog10();
    let most = values().max().unwrap_or(1).max(1).ilog10() + 1;
    (i32::try_from(least).unwrap_or(0), i32::try_from(most).unwrap_or(20))
}

#[expect(clippy::cast_precision_loss, reason = "places in a picture")]
fn log(ns: u64, (from, to): (i32, i32)) -> f64 {
    ((ns.max(1) as f64).log10() - f64::from(from)) / f64::from(to - from)
}

fn decade_ticks((from, to): (i32, i32)) -> Ticks {
    let tick = |at: i32| {
        let ns = u64::try_from(at).ok().and_then(|at| 10_u64.checked_pow(u32::try_from(at).ok()?));
        let name = words::latency(ns).replace(".00", "").replace(".0", "");
        let name = if at >= 9 { format!("{} s", 10_f64.powi(at - 9)) } else { name };
        (f64::from(at - from) / f64::from(to - from), name)
    };
    (from..=to).map(tick).collect()
}

fn with_latency(kinds: &[KindFound]) -> Vec<(&'static str, &Latency)> {
    kinds.iter().filter_map(|of| Some((class(of.kind), of.latency.as_ref()?))).collect()
}

/// Latencies by percentile.
#[expect(clippy::cast_precision_loss, reason = "places in a picture")]
pub(super) fn percentiles(kinds: &[KindFound]) -> Plot {
    let kinds = with_latency(kinds);
    let all: Vec<_> = kinds.iter().map(|(_, took)| *took).collect();
    let range = decades(&all);
    let most = all.iter().map(|took| took.timed).max().unwrap_or(1);
    // As many nines as there are samples for.
    let nines = (most as f64).log10().ceil().clamp(1.0, 9.0);
    let across = |left: f64| (-left.log10() / nines).clamp(0.0, 1.0);
    let curve = |took: &Latency| {
        let mut left = took.timed;
        let step = |(ns, count): &(u64, u64)| {
            let from = across(left as f64 / took.timed as f64);
            left = left.saturating_sub(*count);
            // Half a sample remains at the end, because the logarithm of zero has no position.
            let to = across((left as f64).max(0.5) / took.timed as f64);
            [(from, log(*ns, range)), (to, log(*ns, range))]
        };
        took.histogram.iter().flat_map(step).collect()
    };
    let series = kinds.iter().map(|(class, took)| Series { class, points: curve(took) }).collect();
    let mut ticks = vec![(0.0, "0 %".into())];
    #[expect(clippy::cast_possible_truncation, reason = "1 to 9")]
    let nines_count = nines as i32;
    for nine in 1..=nines_count {
        let decimals = usize::try_from(nine - 2).unwrap_or(0);
        let share = 100.0 - 100.0 * 10_f64.powi(-nine);
        ticks.push((f64::from(nine) / nines, format!("{share:.decimals$} %")));
    }
    Plot { series, across: ticks, up: decade_ticks(range) }
}

/// Histogram of latencies; heights are relative to the highest bar of each kind.
#[expect(clippy::cast_precision_loss, reason = "places in a picture")]
pub(super) fn histogram(kinds: &[KindFound]) -> Plot {
    let kinds = with_latency(kinds);
    let range = decades(&kinds.iter().map(|(_, took)| *took).collect::<Vec<_>>());
    let shape = |took: &Latency| {
        let mut points = Vec::new();
        let mut before = 0;
        for (from, upto, count) in coarser(&took.histogram) {
            let (left, right) = (log(from, range), log(upto + 1, range));
            if from > before {
                points.extend([(log(before, range), 0.0), (left, 0.0)]);
            }
            // Buckets differ in width: the height is the density of requests on the axis.
            let height = count as f64 / (right - left);
            points.extend([(left, height), (right, height)]);
            before = upto + 1;
        }
        points.push((log(before, range), 0.0));
        let highest = points.iter().map(|(_, height)| *height).fold(f64::MIN_POSITIVE, f64::max);
        points.iter_mut().for_each(|(_, height)| *height /= highest);
        points
    };
    let series = kinds.iter().map(|(class, took)| Series { class, points: shape(took) }).collect();
    Plot { series, across: decade_ticks(range), up: Vec::new() }
}

/// Lower and upper bound of buckets in nanoseconds, and the number of requests in each: four buckets per power of two,
/// because finer ones would show the resolution of the clock.
fn coarser(histogram: &[(u64, u64)]) -> Vec<(u64, u64, u64)> {
    let mut steps: Vec<(u64, u64, u64)> = Vec::new();
    for (upto, count) in histogram {
        let below = (u64::BITS - upto.leading_zeros()).saturating_sub(3);
        let (from, upto) = (upto >> below << below, upto | ((1 << below) - 1));
        match steps.last_mut() {
            Some((last, _, counted)) if *last == from => *counted += count,
            _ => steps.push((from, upto, *count)),
        }
    }
    steps
}

impl Plot {
    /// Draws it.
    pub(super) fn draw(&self, caption: Caption<'_>) -> Markup {
        #[expect(clippy::cast_precision_loss, reason = "a place in a picture")]
        let place = |up: f64| format!("{:.1}", HEIGHT as f64 * (1.0 - up));
        frame(
            caption,
            HEIGHT + TEXT,
            &html! {
                svg x="0" y="0" width="100%" height=(HEIGHT) preserveAspectRatio="none" viewBox="0 0 1000 1000" {
                    rect class="track" x="0" y="0" width="1000" height="1000" {}
                    @for (at, _) in &self.up { (grid(*at, Along::Width)) }
                    @for (at, _) in &self.across { (grid(*at, Along::Height)) }
                    @for series in &self.series {
                        path class=(format!("over {}", series.class)) d=(path(&series.points))
                            vector-effect="non-scaling-stroke" {}
                    }
                }
                @for (at, name) in self.up.iter().filter(|(at, _)| *at < 0.97) {
                    text class="tick" x="4" y=(place(at + 0.015)) { (name) }
                }
                @for (at, name) in &self.across {
                    text class="tick" x=(percent(*at)) y=(HEIGHT + 14) text-anchor=(anchor(*at)) { (name) }
                }
            },
        )
    }
}

/// Direction of a grid line.
#[derive(Clone, Copy)]
enum Along {
    Width,
    Height,
}

fn grid(at: f64, along: Along) -> Markup {
    let (far, near) = (format!("{:.1}", 1000.0 * (1.0 - at)), format!("{:.1}", 1000.0 * at));
    html! {
        @match along {
            Along::Width => line class="grid" x1="0" x2="1000" y1=(far) y2=(far) vector-effect="non-scaling-stroke" {},
            Along::Height => line class="grid" x1=(near) x2=(near) y1="0" y2="1000" vector-effect="non-scaling-stroke" {},
        }
    }
}

fn percent(share: f64) -> String {
    format!("{:.2}%", share * 100.0)
}

/// Labels at the edges stay inside.
const fn anchor(at: f64) -> &'static str {
    match at {
        ..0.04 => "start",
        0.96.. => "end",
        _ => "middle",
    }
}

fn path(points: &[(f64, f64)]) -> String {
    let mut path = String::new();
    for (x, y) in points.iter().filter(|(x, y)| x.is_finite() && y.is_finite()) {
        let letter = if path.is_empty() { 'M' } else { 'L' };
        let [x, y] = [*x, 1.0 - *y].map(|share| share.clamp(0.0, 1.0) * 1000.0);
        let _ = write!(path, "{letter}{x:.1} {y:.1}");
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::pages::tests::kind;

    #[test]
    fn percentile_axes_have_nines_and_latency_axes_decades() {
        let plot = percentiles(&[kind(&[(1000, 900), (10_000, 90), (100_000, 10)])]);
        let names: Vec<_> = plot.across.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["0 %", "90 %", "99 %", "99.9 %"]);
        let names: Vec<_> = plot.up.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["1 µs", "10 µs", "100 µs", "1 ms"]);
        let points: Vec<_> = plot.series[0]
            .points
            .iter()
            .map(|(x, y)| ((x * 3.0 * 1e3).round() / 1e3, (y * 3.0 * 1e3).round() / 1e3))
            .collect();
        assert_eq!(
            points,
            [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (2.0, 1.0), (2.0, 2.0), (3.0, 2.0)]
        );
    }

    #[test]
    fn empty_buckets_are_drawn_between_counted_ones() {
        let counted = [(1023, 50), (1983, 60), (2047, 40)];
        assert_eq!(coarser(&counted), [(896, 1023, 50), (1792, 2047, 100)]);
        assert_eq!(coarser(&[(7, 1), (8, 1), (9, 1)]), [(7, 7, 1), (8, 9, 2)]);
        let plot = histogram(&[kind(&counted)]);
        let points = plot.series[0].points.iter();
        let heights: Vec<_> = points.map(|(_, height)| (height * 1e6).round() / 1e6).collect();
        assert_eq!(heights, [0.0, 0.0, 0.5, 0.5, 0.0, 0.0, 1.0, 1.0, 0.0]);
        assert!(plot.series[0].points.is_sorted_by(|a, b| a.0 <= b.0));
    }

    #[test]
    fn without_samples_the_chart_is_empty_and_long_times_are_in_seconds() {
        let caption = Caption { id: "c", title: "t", description: "d" };
        assert!(percentiles(&[]).draw(caption).into_string().contains("<rect"));
        let names = decade_ticks((8, 10)).into_iter().map(|(_, name)| name).collect::<Vec<_>>();
        assert_eq!(names, ["100 ms", "1 s", "10 s"]);
    }
}
