//! A comparison of heaps as text, as JSON and as one page. The figures come from `bench/heap`; this file only presents
//! them.

use nearfar_report::style;
use std::fmt::Write as _;

use maud::{Markup, html};
use serde::Serialize;

use super::comparison;
use crate::heap::acceptance::{self, Check};
use crate::heap::results::{Found, Ran, Tried};
use nearfar_report::words;

/// The results with the checks: JSON `nearfar.bench-heap/1`.
#[derive(Debug, Serialize)]
pub(crate) struct Document {
    /// The results.
    #[serde(flatten)]
    pub(crate) found: Found,
    /// The checks against the thresholds.
    pub(crate) checks: Vec<Check>,
}

/// The columns of a table.
const COLUMNS: [&str; 5] = ["instances", "tokens/s", "to near", "read", "memory by node"];
/// Their explanation.
const MEANING: &str = "An instance is a thread with weights and a context of its own, which it reads once for each token; tokens/s \
    are those of all instances together, a batch counted as one.";

impl Document {
    /// Computes the checks.
    pub(crate) fn of(found: Found) -> Self {
        let checks = if found.smoke { Vec::new() } else { acceptance::checks(&found) };
        Self { found, checks }
    }

    /// Whether all rows ran and all thresholds were reached.
    pub(crate) fn reached(&self) -> bool {
        let rows = || self.found.parts.iter().flat_map(|tried| &tried.rows);
        rows().all(|ran| ran.failed.is_none()) && self.checks.iter().all(|check| check.reached)
    }

    fn how(&self) -> String {
        let smoke = if self.found.smoke { " A smoke run: too short to be judged." } else { "" };
        format!("{MEANING}{smoke}")
    }
}

fn cells(tried: &Tried, ran: &Ran) -> [String; COLUMNS.len()] {
    let of = |text: &dyn Fn(&crate::heap::results::Outcome) -> String| {
        ran.outcome.as_ref().map_or_else(|| "–".into(), text)
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a bandwidth for people"
    )]
    let read = of(&|outcome| words::bandwidth(outcome.read_bytes_per_second as u64));
    [
        ran.instances.to_string(),
        of(&|outcome| format!("{:.1}", outcome.tokens_per_s)),
        words::times(tried.to_near(ran.row)),
        read,
        words::residency(&ran.residency),
    ]
}

fn outcome(check: &Check) -> String {
    let found = check.ratio.map_or_else(|| "–".into(), |ratio| format!("{ratio:.3}"));
    let verdict = if check.reached { "reached" } else { "NOT REACHED" };
    format!("{found:>6}  at least {:.2}  {verdict}", check.at_least)
}

/// For terminals.
pub(crate) fn text(document: &Document) -> String {
    let found = &document.found;
    let mut out = comparison::intro(&found.machine, &document.how());
    for tried in &found.parts {
        let _ = writeln!(out, "\n{}", tried.part.description());
        let [count, tokens, ratio, read, memory] = COLUMNS;
        let _ =
            writeln!(out, "  {:<20} {count:>9} {tokens:>10} {ratio:>8} {read:>11}  {memory}", "");
        for ran in &tried.rows {
            let [count, tokens, ratio, read, memory] = cells(tried, ran);
            let name = ran.row.name();
            let _ = writeln!(
                out,
                "  {name:<20} {count:>9} {tokens:>10} {ratio:>8} {read:>11}  {memory}"
            );
            out.extend(ran.failed.iter().map(|why| format!("    failed: {why}\n")));
        }
        for check in document.checks.iter().filter(|check| check.part == tried.part) {
            let what = format!("{} to near only", check.row.name());
            let _ = writeln!(out, "  {what:<40} {}", outcome(check));
        }
    }
    out
}

/// One self-contained page.
pub(crate) fn html(document: &Document) -> String {
    let style = [style::COLORS, style::PAGE, include_str!("tiering.css")];
    let machine = &document.found.machine;
    let main = html! {
        (comparison::head("nearfar-bench heap", "Heaps, side by side", &[document.how()], Some(machine)))
        @for tried in &document.found.parts { (section(document, tried)) }
        footer { "nearfar " (document.found.nearfar) " · " (document.found.schema) }
    };
    nearfar_report::document::document("nearfar-bench heap", &style, &main)
}

fn section(document: &Document, tried: &Tried) -> Markup {
    let checks = || document.checks.iter().filter(|check| check.part == tried.part);
    let judged = |ran: &Ran| checks().any(|check| check.row == ran.row);
    let row = |ran: &Ran| (ran.row.name().to_owned(), judged(ran), cells(tried, ran));
    let verdict = |check: &Check| {
        (check.reached, check.row.name().to_owned(), format!(" to near only: {}", outcome(check)))
    };
    html! {
        section {
            h2 { (tried.part.description()) }
            (comparison::table(COLUMNS, tried.rows.iter().map(row)))
            (comparison::verdicts(checks().map(verdict)))
            (comparison::commands(tried.rows.iter().map(|ran| (&ran.command, &ran.failed))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::sample::found;

    #[test]
    fn the_heap_table_shows_emulated_reached_and_failed_rows() {
        let mut found = found();
        found.parts[1].rows[2].outcome = None;
        found.parts[1].rows[2].failed = Some("it said: no memory".into());
        let document = Document::of(found);
        assert!(!document.reached());
        let text = text(&document);
        for part in [
            "EMULATED machine cxl-2tier-narrow",
            "adapt=weighted to near only               1.300  at least 1.30  reached",
            "weights far to near only                  1.500  at least 1.50  reached",
            "failed: it said: no memory",
            "–  at least 0.98  NOT REACHED",
            "75 % node 0, 25 % node 1",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        let page = html(&document);
        for part in ["Emulated.", "class=\"missed\"", "inference &lt;near only&gt;"] {
            assert!(page.contains(part), "{part}:\n{page}");
        }
    }

    #[test]
    fn a_smoke_run_is_not_judged_but_must_have_run() {
        let mut found = found();
        found.smoke = true;
        found.parts[0].rows[4].outcome.as_mut().unwrap().tokens_per_s = 1.0;
        let document = Document::of(found.clone());
        assert!(document.reached());
        let text = text(&document);
        assert!(text.contains("too short to be judged") && !text.contains("at least"), "{text}");
        found.parts[0].rows[0].failed = Some("no".into());
        assert!(!Document::of(found).reached());
    }
}
