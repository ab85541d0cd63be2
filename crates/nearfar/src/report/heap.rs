//! A comparison of heaps as text, as JSON and as one page. The figures come from `bench/heap`; here is only how they are shown.

use std::fmt::Write as _;

use maud::{Markup, html};
use serde::Serialize;

use super::document::document as page;
use super::words;
use crate::bench::heap::found::{Found, Ran, Tried};
use crate::bench::heap::judge::{self, Check};

/// What was found with what it comes to: JSON `nearfar.bench-heap/1`.
#[derive(Debug, Serialize)]
pub(crate) struct Document {
    /// What was found.
    #[serde(flatten)]
    pub(crate) found: Found,
    /// Against what is to be reached.
    pub(crate) checks: Vec<Check>,
}

/// The columns of a table.
const COLUMNS: [&str; 5] = ["instances", "tokens/s", "to near", "read", "memory by node"];
/// What they mean.
const MEANING: &str = "An instance is a thread with weights and a context of its own, which it reads once for each token; tokens/s \
    are those of all instances together, a batch counted as one.";

impl Document {
    /// Computes the checks anew.
    pub(crate) fn of(found: Found) -> Self {
        let checks = if found.smoke { Vec::new() } else { judge::checks(&found) };
        Self { found, checks }
    }

    /// Whether all rows ran and all that is to be reached was.
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
    let of = |text: &dyn Fn(&crate::bench::heap::found::Outcome) -> String| {
        ran.outcome.as_ref().map_or_else(|| "–".into(), text)
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a bandwidth for people"
    )]
    let read = of(&|outcome| words::bandwidth(outcome.read_bytes_per_s as u64));
    [
        ran.instances.to_string(),
        of(&|outcome| format!("{:.1}", outcome.tokens_per_s)),
        words::times(tried.to_near(ran.row)),
        read,
        words::residency(&ran.residency),
    ]
}

fn said(check: &Check) -> String {
    let found = check.ratio.map_or_else(|| "–".into(), |ratio| format!("{ratio:.3}"));
    let verdict = if check.reached { "reached" } else { "NOT REACHED" };
    format!("{found:>6}  at least {:.2}  {verdict}", check.at_least)
}

/// For terminals.
pub(crate) fn text(document: &Document) -> String {
    let found = &document.found;
    let mut out = words::about(&found.machine) + "\n";
    for node in &found.machine.nodes {
        let _ = writeln!(out, "  {}", words::node(node));
    }
    let _ = writeln!(out, "{}", document.how());
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
            let _ = writeln!(out, "  {what:<40} {}", said(check));
        }
    }
    out
}

/// One self-contained page.
pub(crate) fn html(document: &Document) -> String {
    let style = [include_str!("colors.css"), include_str!("page.css"), include_str!("tiering.css")];
    let machine = &document.found.machine;
    let main = html! {
        header {
            p.brand { "nearfar bench heap" }
            h1 { "Heaps, side by side" }
            p { (document.how()) }
            p.quiet { (words::about(machine)) }
            ul.nodes { @for node in &machine.nodes { li { span { (words::node(node)) } } } }
            @if machine.emulation.is_some() {
                p.note role="note" { strong { "Emulated. " } (words::EMULATED) }
            }
        }
        @for tried in &document.found.parts { (section(document, tried)) }
        footer { "nearfar " (document.found.nearfar) " · " (document.found.schema) }
    };
    page("nearfar bench heap", &style, &main)
}

fn section(document: &Document, tried: &Tried) -> Markup {
    let checks = || document.checks.iter().filter(|check| check.part == tried.part);
    html! {
        section {
            h2 { (tried.part.description()) }
            div.scroll {
                table {
                    thead { tr { th scope="col" { "" } @for name in COLUMNS { th scope="col" { (name) } } } }
                    tbody {
                        @for ran in &tried.rows {
                            tr class=(if checks().any(|check| check.row == ran.row) { "auto" } else { "" }) {
                                th scope="row" { (ran.row.name()) }
                                @for cell in cells(tried, ran) { td { (cell) } }
                            }
                        }
                    }
                }
            }
            @if checks().next().is_some() {
                ul.verdicts {
                    @for check in checks() {
                        li class=(if check.reached { "reached" } else { "missed" }) {
                            strong { (check.row.name()) } " to near only: " (said(check))
                        }
                    }
                }
            }
            details {
                summary { "How each row was run" }
                pre { @for ran in &tried.rows {
                    "$ " (ran.command) "\n"
                    @if let Some(why) = &ran.failed { "failed: " (why) "\n" }
                } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::heap::sample::found;

    #[test]
    fn the_table_says_what_is_emulated_reached_and_failed() {
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
