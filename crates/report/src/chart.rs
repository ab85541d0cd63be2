//! Charts as SVG: bars with a target mark, latency ranges, stacked shares.
//!
//! Horizontal positions are per cent of the chart's width and text keeps its size, so one drawing serves a desktop and
//! a phone. Colours are CSS variables (`colors.css`), so light and dark need no second drawing; plotting libraries
//! write colours and pixel positions into the picture, and so are not used. Each chart has a title and a description
//! for screen readers; the values are in a table beside it.

use maud::{Markup, html};

/// Height of a row: a line of text above a bar.
const ROW: usize = 44;
/// Top of the bar in its row.
const BAR_TOP: usize = 21;
/// Height of the bar.
const BAR: usize = 13;

/// A chart's title and description, for screen readers.
#[derive(Clone, Copy, Debug)]
pub struct Caption<'a> {
    /// Unique within the page.
    pub id: &'a str,
    /// Its subject.
    pub title: &'a str,
    /// Its values in a sentence.
    pub description: &'a str,
}

/// A row's text: the name at the left, the value at the right.
#[derive(Clone, Debug)]
pub struct Line {
    /// Name.
    pub name: String,
    /// Value.
    pub value: String,
    /// Whether to set it in bold.
    pub strong: bool,
}

/// A bar; lengths are shares of the chart's width, 0 to 1.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Its text.
    pub line: Line,
    /// Colour class.
    pub class: &'static str,
    /// Length.
    pub length: f64,
    /// Position of the target mark.
    pub mark: Option<f64>,
}

/// Three percentiles on one line; positions as shares of the chart's width.
#[derive(Clone, Debug)]
pub(crate) struct Range {
    /// Its text.
    pub(crate) line: Line,
    /// Colour class of the first.
    pub(crate) class: &'static str,
    /// P50, P99, P99.9.
    pub(crate) at: [Option<f64>; 3],
}

/// Several marks on one line; positions are shares of the chart's width.
#[derive(Clone, Debug)]
pub struct Dots {
    /// Its text.
    pub line: Line,
    /// Colour class and position of each.
    pub at: Vec<(&'static str, f64)>,
}

/// Shares of a whole, one after the other.
#[derive(Clone, Debug)]
pub(crate) struct Stack {
    /// Its text.
    pub(crate) line: Line,
    /// Colour class and share.
    pub(crate) parts: Vec<(&'static str, f64)>,
}

/// Bars, one per row.
pub fn bars(caption: Caption<'_>, rows: &[Bar]) -> Markup {
    frame(
        caption,
        bars_height(rows.len()),
        &html! {
            @for (at, bar) in rows.iter().enumerate() {
                (text(at, &bar.line))
                (rect(at, "track", 0.0, 1.0))
                (rect(at, bar.class, 0.0, bar.length))
                @if let Some(mark) = bar.mark {
                    line class="peak" x1=(percent(mark)) x2=(percent(mark))
                        y1=(at * ROW + BAR_TOP - 4) y2=(at * ROW + BAR_TOP + BAR + 4) {}
                }
            }
        },
    )
}

/// Percentile ranges, one per row, over an axis of ticks (position and label).
pub(crate) fn ranges(caption: Caption<'_>, rows: &[Range], ticks: &[(f64, String)]) -> Markup {
    let lines = rows.iter().map(|row| &row.line).collect();
    over_axis(caption, lines, ticks, |at| range(at, &rows[at]))
}

/// Rows of marks over an axis of ticks (position and label).
pub fn dots(caption: Caption<'_>, rows: &[Dots], ticks: &[(f64, String)]) -> Markup {
    let lines = rows.iter().map(|row| &row.line).collect();
    over_axis(caption, lines, ticks, |at| {
        html! {
            @for (class, x) in &rows[at].at {
                circle class=(class) cx=(percent(*x)) cy=(at * ROW + BAR_TOP + BAR / 2 + 1) r="6.5" {}
            }
        }
    })
}

/// Rows of text, each with its drawing, over an axis.
fn over_axis(
    caption: Caption<'_>,
    lines: Vec<&Line>,
    ticks: &[(f64, String)],
    drawn: impl Fn(usize) -> Markup,
) -> Markup {
    frame(
        caption,
        axis_height(lines.len()),
        &html! {
            (axis(lines.len(), ticks))
            @for (at, line) in lines.into_iter().enumerate() {
                (text(at, line))
                (drawn(at))
            }
        },
    )
}

/// Height of ranges or dots with this many rows.
pub fn axis_height(rows: usize) -> usize {
    rows * ROW + 16
}

fn axis(rows: usize, ticks: &[(f64, String)]) -> Markup {
    let bottom = rows * ROW;
    html! {
        @for (at, label) in ticks {
            line class="grid" x1=(percent(*at)) x2=(percent(*at)) y1="18" y2=(bottom) {}
            text class="tick" x=(percent(*at)) y=(bottom + 13) text-anchor=(anchor(*at)) { (label) }
        }
    }
}

/// Stacked shares, one per row.
pub(crate) fn stacks(caption: Caption<'_>, rows: &[Stack]) -> Markup {
    frame(
        caption,
        bars_height(rows.len()),
        &html! {
            @for (at, row) in rows.iter().enumerate() {
                (text(at, &row.line))
                (rect(at, "track", 0.0, 1.0))
                @for (class, from, share) in placed(&row.parts) {
                    (rect(at, class, from, share))
                }
            }
        },
    )
}

/// Height of bars or stacks with this many rows, for the layout around them.
pub fn bars_height(rows: usize) -> usize {
    (rows * ROW).saturating_sub(ROW - BAR_TOP - BAR - 4)
}

/// A chart with its caption, as wide as its container.
pub fn frame(caption: Caption<'_>, height: usize, inside: &Markup) -> Markup {
    let Caption { id, title, description } = caption;
    html! {
        svg class="chart" role="img" width="100%" height=(height)
            aria-labelledby=(format!("{id}-title {id}-text")) {
            title id=(format!("{id}-title")) { (title) }
            desc id=(format!("{id}-text")) { (description) }
            (inside)
        }
    }
}

fn text(row: usize, line: &Line) -> Markup {
    let y = row * ROW + 14;
    let strong = if line.strong { " strong" } else { "" };
    html! {
        text class=(format!("name{strong}")) x="0" y=(y) { (line.name) }
        text class=(format!("value{strong}")) x="100%" y=(y) text-anchor="end" { (line.value) }
    }
}

fn rect(row: usize, class: &str, from: f64, length: f64) -> Markup {
    html! {
        rect class=(class) x=(percent(from)) y=(row * ROW + BAR_TOP) width=(percent(length)) height=(BAR) rx="2" {}
    }
}

fn range(row: usize, range: &Range) -> Markup {
    let y = row * ROW + BAR_TOP + BAR / 2 + 1;
    let known: Vec<f64> = range.at.iter().copied().flatten().collect();
    html! {
        @if let (Some(first), Some(last)) = (known.first(), known.last()) {
            line class="span" x1=(percent(*first)) x2=(percent(*last)) y1=(y) y2=(y) {}
        }
        @if let Some(x) = range.at[2] { circle class="hollow" cx=(percent(x)) cy=(y) r="4.5" {} }
        @if let Some(x) = range.at[1] { circle class="solid" cx=(percent(x)) cy=(y) r="4.5" {} }
        @if let Some(x) = range.at[0] { circle class=(range.class) cx=(percent(x)) cy=(y) r="6.5" {} }
    }
}

/// Start and width of each part.
fn placed(parts: &[(&'static str, f64)]) -> Vec<(&'static str, f64, f64)> {
    let mut from = 0.0;
    parts
        .iter()
        .map(|(class, share)| {
            let start = from;
            from += share;
            (*class, start, *share)
        })
        .collect()
}

fn percent(share: f64) -> String {
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    format!("{:.2}%", share * 100.0)
}

/// Labels at the edges stay inside.
pub(super) fn anchor(at: f64) -> &'static str {
    match at {
        at if at < 0.08 => "start",
        at if at > 0.92 => "end",
        _ => "middle",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPTION: Caption<'_> = Caption { id: "c", title: "a <title>", description: "d" };

    fn line(name: &str) -> Line {
        Line { name: name.into(), value: "1".into(), strong: false }
    }

    #[test]
    fn text_from_outside_is_escaped() {
        let bar = Bar { line: line("<script>"), class: "near", length: 0.5, mark: None };
        let svg = bars(CAPTION, &[bar]).into_string();
        assert!(!svg.contains("<script>") && svg.contains("&lt;script&gt;"), "{svg}");
        assert!(svg.contains("a &lt;title&gt;"));
    }

    #[test]
    fn lengths_out_of_range_stay_in_the_picture() {
        for (length, width) in [(-1.0, "0.00%"), (7.0, "100.00%"), (f64::NAN, "0.00%")] {
            let bar = Bar { line: line("x"), class: "near", length, mark: None };
            assert!(bars(CAPTION, &[bar]).into_string().contains(width), "{length}");
        }
    }

    #[test]
    fn parts_of_a_stack_are_placed_consecutively() {
        assert_eq!(
            placed(&[("near", 0.75), ("far", 0.25)]),
            [("near", 0.0, 0.75), ("far", 0.75, 0.25)]
        );
    }

    #[test]
    fn an_empty_range_draws_no_mark() {
        let row = Range { line: line("x"), class: "near", at: [None; 3] };
        assert!(!ranges(CAPTION, &[row], &[]).into_string().contains("<circle"));
    }
}
