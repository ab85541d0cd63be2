//! A comparison of traffic management as text, as JSON and as one page. The figures come from `bench/balance`; this
//! file only presents them.

use nearfar_report::style;
use std::fmt::Write as _;

use maud::{Markup, html};
use serde::Serialize;

use super::comparison;
use crate::balance::acceptance::{self, Check, What};
use crate::balance::results::{Found, Ran, Tried};
use crate::balance::rows::Kind;
use nearfar_report::words;

/// The results with the checks: JSON `nearfar.bench-balance/1`.
#[derive(Debug, Serialize)]
pub(crate) struct Document {
    /// The results.
    #[serde(flatten)]
    pub(crate) found: Found,
    /// The checks against the thresholds.
    pub(crate) checks: Vec<Check>,
}

/// The columns of a table.
const COLUMNS: [&str; 7] =
    ["ops/s", "to first touch", "to best static", "local", "imbalance", "moved", "CPU"];
/// Their explanation.
const MEANING: &str = "One thread on each CPU; data of one thread is on its node unless stated otherwise. Throughput, local and imbalance are those \
    after the settling time. Local: share of cache lines from the requesting CPU's node. Imbalance: standard deviation over mean of the \
    lines that memory controllers served. Moved: pages, in the whole run. CPU: of nearfar's process, after the settling time, as a share \
    of one CPU. Medians.";

impl Document {
    /// Computes the checks.
    pub(crate) fn of(found: Found) -> Self {
        let checks = if found.smoke { Vec::new() } else { acceptance::checks(&found) };
        Self { found, checks }
    }

    /// Whether all rows ran and all thresholds were reached.
    pub(crate) fn reached(&self) -> bool {
        let rows = || self.found.programs.iter().flat_map(|tried| &tried.rows);
        let ran = |ran: &Ran| ran.failed.is_none() && !ran.runs.is_empty();
        rows().all(ran) && self.checks.iter().all(|check| check.reached)
    }

    fn how(&self) -> String {
        let Found { seconds, settle_s, huge, times, smoke, .. } = &self.found;
        let pages = if *huge { "huge" } else { "4 KiB" };
        let stays = Kind::FirstTouch.settle_s(*settle_s);
        let times =
            if *times == 1 { String::new() } else { format!(", {times} times the usual memory") };
        let smoke = if *smoke { " A smoke run: too short to be judged." } else { "" };
        format!(
            "{MEANING} Each ran {seconds} s, of which the first {settle_s} s do not count ({stays} s where pages stay, and so much less time), in {pages} pages{times}.{smoke}"
        )
    }
}

fn cells(tried: &Tried, ran: &Ran) -> [String; COLUMNS.len()] {
    let of =
        |number: Option<f64>, text: &dyn Fn(f64) -> String| number.map_or_else(|| "–".into(), text);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count for people"
    )]
    let count = |number: f64| words::grouped(number.round() as u64);
    #[expect(clippy::cast_precision_loss, reason = "a count for people")]
    let moved = ran.median(|run| Some(run.moved_pages as f64));
    let cpu = ran.median(|run| run.balancing.as_ref()?.cpu_share);
    let best = tried.best_static().map(|(_, rate)| rate);
    [
        of(ran.rate(), &count),
        words::times(tried.ratio(ran, Kind::FirstTouch)),
        words::times(ran.rate().zip(best).map(|(rate, best)| rate / best)),
        words::percent(ran.median(|run| Some(run.traffic.as_ref()?.local))),
        words::percent(ran.median(|run| Some(run.traffic.as_ref()?.imbalance))),
        of(moved, &count),
        of(cpu, &|share| format!("{:.1} %", share * 100.0)),
    ]
}

fn name(kind: Kind) -> String {
    crate::balance::rows::Row::from(kind).name()
}

fn subject(check: &Check) -> String {
    let policy = name(check.policy);
    let to = check.to.map_or_else(|| "–".into(), name);
    match check.what {
        What::OfTheBest => format!("{policy} to the best static row, {to}"),
        What::OfDefault => format!("{policy} to {to}"),
        What::NearFirst => format!("{policy} to {to}, which fills near memory first"),
        What::Undecided => format!("{policy} to the program without it"),
        What::Ahead => format!("{policy} to {to}, geometric mean"),
    }
}

fn outcome(check: &Check) -> String {
    let found = check.ratio.map_or_else(|| "–".into(), |ratio| format!("{ratio:.3}"));
    let verdict = if check.reached { "reached" } else { "MISSED" };
    let least = if check.what == What::Ahead { "more than" } else { "at least" };
    format!("{found:>6}  {least} {:.2}  {verdict}", check.at_least)
}

/// For terminals.
pub(crate) fn text(document: &Document) -> String {
    let found = &document.found;
    let mut out = comparison::intro(&found.machine, &document.how());
    for tried in &found.programs {
        let _ = writeln!(out, "\n{}", tried.program.description());
        let line = |name: &str, cells: [&str; COLUMNS.len()]| {
            let [rate, first, best, local, uneven, moved, cpu] = cells;
            let first = format!("{rate:>11} {first:>14} {best:>14} {local:>6}");
            format!("  {name:<30} {first} {uneven:>9} {moved:>8} {cpu:>7}\n")
        };
        out += &line("", COLUMNS);
        for ran in &tried.rows {
            let cells = cells(tried, ran);
            out += &line(&ran.row.name(), cells.each_ref().map(String::as_str));
            out.extend(ran.failed.iter().map(|why| format!("    failed: {why}\n")));
        }
        let of_this = |check: &&Check| check.program == Some(tried.program);
        judged(&mut out, document.checks.iter().filter(of_this));
    }
    let of_all: Vec<_> = document.checks.iter().filter(|check| check.program.is_none()).collect();
    if !of_all.is_empty() {
        out += "\nall programs on which something is to decide\n";
        judged(&mut out, of_all);
    }
    out
}

fn judged<'a>(out: &mut String, checks: impl IntoIterator<Item = &'a Check>) {
    for check in checks {
        let _ = writeln!(out, "  {:<52} {}", subject(check), outcome(check));
    }
}

/// One self-contained page.
pub(crate) fn html(document: &Document) -> String {
    let style = [style::COLORS, style::PAGE, include_str!("tiering.css")];
    let machine = &document.found.machine;
    let main = html! {
        (comparison::head("nearfar-bench balance", "Traffic management, side by side", &[document.how()], Some(machine)))
        @for tried in &document.found.programs { (section(document, tried)) }
        @if document.checks.iter().any(|check| check.program.is_none()) {
            section {
                h2 { "All programs on which something is to decide" }
                (verdicts(document.checks.iter().filter(|check| check.program.is_none())))
            }
        }
        footer { "nearfar " (document.found.nearfar) " · " (document.found.schema) }
    };
    nearfar_report::document::document("nearfar-bench balance", &style, &main)
}

fn verdicts<'a>(checks: impl IntoIterator<Item = &'a Check>) -> Markup {
    let line = |check: &Check| (check.reached, subject(check), format!(": {}", outcome(check)));
    comparison::verdicts(checks.into_iter().map(line))
}

fn section(document: &Document, tried: &Tried) -> Markup {
    let checks = document.checks.iter().filter(|check| check.program == Some(tried.program));
    let ours = |ran: &Ran| ran.row.kind.policy().is_some();
    let row = |ran: &Ran| (ran.row.name(), ours(ran), cells(tried, ran));
    html! {
        section {
            h2 { (tried.program.description()) }
            (comparison::table(COLUMNS, tried.rows.iter().map(row)))
            (verdicts(checks))
            (comparison::commands(tried.rows.iter().map(|ran| (&ran.command, &ran.failed))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::rows::Program;
    use crate::balance::sample::{found, set};

    #[test]
    fn the_balance_table_shows_emulated_reached_missed_and_failed_rows() {
        let mut found = found();
        set(&mut found, Program::Streamcluster, Kind::Balanced, 193.0);
        found.programs[1].rows[2].runs.clear();
        found.programs[1].rows[2].failed = Some("it said: no memory".into());
        let document = Document::of(found);
        assert!(!document.reached());
        let text = text(&document);
        for part in [
            "EMULATED machine numa-4node",
            "  interleave                             200          2.00×          1.00×   25 %     192 %        0       –\n",
            "  carrefour                              195          1.95×          0.97×   25 %     192 %    3,000   1.0 %\n",
            "  balanced to the best static row, interleave           0.965  at least 0.97  MISSED\n",
            "  carrefour to first touch                              1.950  at least 0.98  reached\n",
            "  carrefour to the program without it                   0.990  at least 0.99  reached\n",
            "  balanced to numa_balancing=1, geometric mean",
            "    failed: it said: no memory\n",
            "in 4 KiB pages.",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        let page = html(&document);
        for part in ["Emulated.", "class=\"missed\"", "streamcluster &lt;balanced&gt;"] {
            assert!(page.contains(part), "{part}:\n{page}");
        }
    }

    #[test]
    fn a_smoke_run_is_not_judged_but_must_have_run() {
        let mut found = found();
        found.smoke = true;
        set(&mut found, Program::Jacobi, Kind::Balanced, 1.0);
        let document = Document::of(found.clone());
        assert!(document.reached());
        let text = text(&document);
        assert!(text.contains("too short to be judged") && !text.contains("at least"), "{text}");
        found.programs[0].rows[0].failed = Some("no".into());
        assert!(!Document::of(found).reached());
    }
}
