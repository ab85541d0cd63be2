//! The comparison as one self-contained HTML page: the verdicts, and for each workload pictures over time and the table.

use maud::{Markup, html};
use nearfar_report::style;

use super::{COLUMNS, Document, cells, figure_and_bound, verdict, workload_text};
use crate::pages::comparison;
use crate::tiering::acceptance::{self, Figures};
use crate::tiering::results::{Compared, Ran};
use crate::tiering::rows::Row;
use crate::workload::results::Run;
use nearfar_report::chart::Caption;
use nearfar_report::document::{document as page, swatch};
use nearfar_report::lines::{self, Series};
use nearfar_report::model::Machine;

/// The page.
pub(crate) fn html(document: &Document) -> String {
    let style = [style::COLORS, style::PAGE, style::CHART, include_str!("../tiering.css")];
    let main = html! {
        (head(document))
        @for (index, (compared, figures)) in document.parts().enumerate() {
            (section(document, index, compared, figures))
        }
        section {
            h2 { "What the columns mean" }
            ul { @for (name, meaning) in COLUMNS { li { strong { (name) } ": " (meaning) "." } } }
        }
        footer { "nearfar " (document.found.nearfar) " · " (document.found.schema) }
    };
    page("nearfar-bench tiering", &style, &main)
}

fn head(document: &Document) -> Markup {
    let machine = document.found.machine();
    let missed = document.checks.iter().filter(|check| !check.reached).count();
    let mut paragraphs = vec![document.how()];
    if !document.checks.is_empty() {
        let all = document.checks.len();
        paragraphs.push(format!(
            "{} of {all} figures that nearfar tier must reach are reached.",
            all - missed
        ));
    }
    comparison::head("nearfar-bench tiering", "Tiering systems, side by side", &paragraphs, machine)
}

fn section(document: &Document, index: usize, compared: &Compared, figures: &[Figures]) -> Markup {
    let ran = || compared.rows.iter().filter(|ran| ran.run.is_some());
    html! {
        section {
            h2 { (compared.workload) }
            p { (workload_text(compared)) "." }
            @if ran().next().is_some() {
                ul.key { @for of in ran() { li { (swatch(of.row.class())) span { (of.row.name()) } } } }
                (pictures(index, compared))
                (table(compared, figures))
            }
            (verdicts(document, compared))
            ul { @for of in &compared.rows { @if let Some(why) = &of.absent { li { (of.row.name()) ": absent, " (why) } } } }
            details {
                summary { "Commands of each row, and their output" }
                @for of in ran() { (commands(of)) }
            }
        }
    }
}

fn verdicts(document: &Document, compared: &Compared) -> Markup {
    let checks = document.checks.iter().filter(|check| check.workload == compared.workload);
    comparison::verdicts(checks.map(|check| {
        let [found, bound] = figure_and_bound(check);
        (check.reached, verdict(check).into(), format!(" {}: {found}, {bound}", check.what))
    }))
}

/// Throughput, residency of the hot set and migrated pages, over time.
fn pictures(index: usize, compared: &Compared) -> Markup {
    let ran: Vec<(Row, &Run, &Machine)> = compared
        .rows
        .iter()
        .filter_map(|ran| Some((ran.row, ran.run.as_ref()?, ran.machine.as_ref()?)))
        .collect();
    let end_s =
        ran.iter().filter_map(|(_, run, _)| Some(run.intervals.last()?.end_s)).fold(0.0, f64::max);
    let rates =
        |run: &Run| run.intervals.iter().map(|of| (of.end_s, of.operations_per_s)).collect();
    let moved = |run: &Run| {
        #[expect(clippy::cast_precision_loss, reason = "heights of lines")]
        let mib = |pages: u64| pages as f64 / 256.0;
        run.residency.iter().map(|look| (look.at_s, mib(look.effort.moved_pages))).collect()
    };
    let hot: Vec<_> =
        ran.iter().map(|(row, run, machine)| (*row, acceptance::hot(run, machine))).collect();
    let near: Vec<_> =
        ran.iter().map(|(row, run, machine)| (*row, acceptance::data(run, machine))).collect();
    let share = |top: f64| format!("{:.0} %", top * 100.0);
    let moves = ran
        .iter()
        .map(|(_, run, _)| acceptance::phases(&run.intervals))
        .max_by_key(Vec::len)
        .unwrap_or_default();
    let marks = moves.get(1..).unwrap_or_default();
    let card = |what: &str,
                title: &str,
                series: Vec<(Row, Vec<(f64, f64)>)>,
                top: &dyn Fn(f64) -> String| {
        let id = format!("{what}-{index}");
        (series.iter().any(|(_, points)| !points.is_empty()))
            .then(|| drawn(&id, title, &series, (end_s, marks), top))
    };
    html! {
        div.grid {
            @if let Some(card) = card("rate", "Throughput, operations a second of work",
                ran.iter().map(|(row, run, _)| (*row, rates(run))).collect(), &super::grouped) { (card) }
            @if let Some(card) = card("hot", "Share of the hot set in near memory", hot, &share) { (card) }
            @if let Some(card) = card("near", "Share of all its memory in near memory", near, &share) { (card) }
            @if let Some(card) = card("moved", "Pages moved so far, MiB",
                ran.iter().map(|(row, run, _)| (*row, moved(run))).collect(), &super::grouped) { (card) }
        }
    }
}

/// A chart scaled to its highest value.
fn drawn(
    id: &str,
    title: &str,
    series: &[(Row, Vec<(f64, f64)>)],
    (end_s, marks): (f64, &[f64]),
    top: &dyn Fn(f64) -> String,
) -> Markup {
    let values = || series.iter().flat_map(|(_, points)| points.iter().map(|(_, value)| *value));
    let highest = values().filter(|value| value.is_finite()).fold(0.0, f64::max);
    let highest = if highest > 0.0 { highest } else { 1.0 };
    let drawn: Vec<_> = series
        .iter()
        .map(|(row, points)| Series {
            class: row.class(),
            points: points.iter().map(|(at, value)| (*at, value / highest)).collect(),
        })
        .collect();
    let last = |(row, points): &(Row, Vec<(f64, f64)>)| {
        points.last().map(|(_, value)| format!("{}: {} at the end", row.name(), top(*value)))
    };
    let description = series.iter().filter_map(last).collect::<Vec<_>>().join("; ");
    html! {
        div.card {
            h3 { (title) }
            (lines::lines(Caption { id, title, description: &description }, &drawn, end_s, &top(highest), marks))
        }
    }
}

fn table(compared: &Compared, figures: &[Figures]) -> Markup {
    let ran = compared.rows.iter().filter(|ran| ran.run.is_some());
    comparison::table(
        COLUMNS.map(|(name, _)| name),
        ran.map(|ran| {
            let figures = figures.iter().find(|of| of.row == ran.row);
            (ran.row.name().to_owned(), ran.row == Row::Nearfar, cells(figures))
        }),
    )
}

fn commands(ran: &Ran) -> Markup {
    html! {
        @if let Some(run) = &ran.run {
            h3 { (ran.row.name()) }
            pre {
                @for command in &run.commands { "$ " (command) "\n" }
                @for said in [&run.said_before, &run.said_after] { (said) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiering::sample::found;

    #[test]
    fn the_page_contains_every_row_the_pictures_and_the_absent_tools() {
        let page = html(&Document::of(found()));
        for part in [
            "Emulated.",
            "id=\"hot-0-title\"",
            "class=\"over nearfar\"",
            "memtierd: absent, no binary was named",
            "random &lt;updates&gt;",
            "&lt;started&gt;",
            "class=\"mark\"",
        ] {
            assert!(page.contains(part), "{part}");
        }
        assert!(
            !page.contains("<script") && !page.contains("http://") && !page.contains("https://")
        );
    }

    #[test]
    fn a_comparison_in_which_nothing_ran_is_still_a_page() {
        let mut found = found();
        for ran in &mut found.workloads[0].rows {
            (ran.run, ran.machine, ran.absent) = (None, None, Some("failed: no kernel".into()));
        }
        assert!(html(&Document::of(found)).contains("failed: no kernel"));
    }
}
