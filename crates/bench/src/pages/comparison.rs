//! Common parts of a comparison's page and text.

use std::fmt::Write as _;

use maud::{Markup, html};
use nearfar_report::model::Machine;
use nearfar_report::words;

/// The machine, and the method.
pub(super) fn intro(machine: &Machine, how: &str) -> String {
    let mut out = words::about(machine) + "\n";
    for node in &machine.nodes {
        let _ = writeln!(out, "  {}", words::node(node));
    }
    out + how + "\n"
}

/// The head of a page: the command, its subject, some paragraphs, and the machine.
pub(super) fn head(
    command: &str,
    subject: &str,
    paragraphs: &[String],
    machine: Option<&Machine>,
) -> Markup {
    html! {
        header {
            p.brand { (command) }
            h1 { (subject) }
            @for paragraph in paragraphs { p { (paragraph) } }
            @if let Some(machine) = machine {
                p.quiet { (words::about(machine)) }
                ul.nodes { @for node in &machine.nodes { li { span { (words::node(node)) } } } }
                @if machine.emulation.is_some() {
                    p.note role="note" { strong { "Emulated. " } (words::EMULATED) }
                }
            }
        }
    }
}

/// A table: rows by name, each with whether it stands out.
pub(super) fn table<const N: usize>(
    columns: [&str; N],
    rows: impl IntoIterator<Item = (String, bool, [String; N])>,
) -> Markup {
    html! {
        div.scroll {
            table {
                thead { tr { th scope="col" { "" } @for name in columns { th scope="col" { (name) } } } }
                tbody {
                    @for (name, stands_out, cells) in rows {
                        tr class=(if stands_out { "auto" } else { "" }) {
                            th scope="row" { (name) }
                            @for cell in cells { td { (cell) } }
                        }
                    }
                }
            }
        }
    }
}

/// Checks as a list: whether each was reached, its subject in bold, and the rest of its line.
pub(super) fn verdicts(checks: impl IntoIterator<Item = (bool, String, String)>) -> Markup {
    let mut checks = checks.into_iter().peekable();
    html! {
        @if checks.peek().is_some() {
            ul.verdicts {
                @for (reached, subject, rest) in checks {
                    li class=(if reached { "reached" } else { "missed" }) { strong { (subject) } (rest) }
                }
            }
        }
    }
}

/// The command of each row, with the reason if it failed.
pub(super) fn commands<'a>(
    rows: impl IntoIterator<Item = (&'a String, &'a Option<String>)>,
) -> Markup {
    html! {
        details {
            summary { "How each row was run" }
            pre { @for (command, failed) in rows {
                "$ " (command) "\n"
                @if let Some(why) = failed { "failed: " (why) "\n" }
            } }
        }
    }
}
