//! The text of `nearfar doctor`: verdicts first, then the evidence; as wide as the terminal.

use super::Report;
use super::answer::{Answer, Verdict};
use super::state::{Privilege, Setting};
use crate::cli::sense::report::Described;
use nearfar_command::machine;
use nearfar_command::movers::Mover;
use nearfar_command::output::wrapped;

/// The whole text.
pub(super) fn of(report: &Report) -> String {
    let mut out = String::new();
    let product = report.product.as_deref().unwrap_or("Unnamed machine");
    let kernel = report.kernel.as_deref().unwrap_or("of unknown release");
    wrapped(&mut out, "", &format!("{product}, Linux {kernel}: {}", report.machine), 2);
    if let Some(lab) = &report.lab {
        machine::emulated(&mut out, lab);
    }
    if report.recorded {
        out.push_str("A recording: facts that need the running machine are unknown.\n");
    }
    out.push_str("\ncommands\n");
    report.verdicts.iter().for_each(|verdict| self::verdict(&mut out, verdict));
    features(&mut out, report);
    out.push_str("\nsettings\n");
    report.settings.iter().for_each(|setting| self::setting(&mut out, setting));
    if !report.movers.is_empty() {
        out.push_str("\nother movers of pages\n");
        report.movers.iter().for_each(|mover| self::mover(&mut out, mover));
    }
    if let Some(privileges) = &report.privileges {
        out.push_str("\nprivileges of this process\n");
        privileges.iter().for_each(|privilege| self::privilege(&mut out, privilege));
    }
    if let Some(sensors) = &report.sensors {
        out.push_str("\nsensors of memory traffic, by their self-tests\n");
        sensors.iter().for_each(|one| sensor(&mut out, one));
    }
    if !report.findings.is_empty() {
        out.push_str("\nnotes\n");
        report.findings.iter().for_each(|finding| wrapped(&mut out, "  ", finding, 4));
    }
    out
}

fn verdict(out: &mut String, verdict: &Verdict) {
    const INDENT: usize = 28;
    let mark = verdict.answer.word();
    let first = format!("  {mark:<8} {:<16} ", verdict.command);
    wrapped(out, &first, &verdict.why, INDENT);
    if let (Some(next), true) = (&verdict.next, verdict.answer != Answer::Yes) {
        wrapped(out, &" ".repeat(INDENT), &format!("next: {next}"), INDENT + 6);
    }
}

fn sensor(out: &mut String, sensor: &Described) {
    const INDENT: usize = 28;
    let mark = if sensor.usable { "yes" } else { "no" };
    let first = format!("  {mark:<8} {:<16} ", sensor.name);
    let text = match &sensor.found {
        None => sensor.sees.words(),
        Some(found) => format!("{}: {found}", sensor.why.unwrap_or_default()),
    };
    wrapped(out, &first, &text, INDENT);
    if let Some(next) = &sensor.next {
        wrapped(out, &" ".repeat(INDENT), &format!("next: {next}"), INDENT + 6);
    }
}

fn features(out: &mut String, report: &Report) {
    const INDENT: usize = 30;
    for (state, head) in [
        ("present", "features of this kernel"),
        ("lacking", "missing features"),
        ("unknown", "undetermined features"),
    ] {
        let mut rows = report.features.iter().filter(|row| row.state == state).peekable();
        if rows.peek().is_some() {
            out.push_str(&format!("\n{head}\n"));
        }
        for row in rows {
            let first = format!("  {:<INDENT$}", row.name, INDENT = INDENT - 2);
            let text = match (state, &row.why_unknown) {
                ("lacking", _) => {
                    format!(
                        "{}; since Linux {} with {}, without it: {}",
                        row.purpose, row.since, row.config, row.without
                    )
                }
                (_, Some(why)) => format!("{}: {why}", row.purpose),
                _ => row.purpose.to_string(),
            };
            wrapped(out, &first, &text, INDENT);
        }
    }
}

fn setting(out: &mut String, setting: &Setting) {
    const INDENT: usize = 30;
    let value = setting.value.as_deref().unwrap_or("?");
    let first = format!("  {:<INDENT$}", setting.name, INDENT = INDENT - 2);
    wrapped(out, &first, &format!("{value}  {}", setting.meaning), INDENT);
}

fn mover(out: &mut String, mover: &Mover) {
    const INDENT: usize = 30;
    let first = format!("  {:<INDENT$}", mover.name, INDENT = INDENT - 2);
    wrapped(out, &first, &mover.effect, INDENT);
    wrapped(out, &" ".repeat(INDENT), &format!("off: {}", mover.off), INDENT + 5);
}

fn privilege(out: &mut String, privilege: &Privilege) {
    const INDENT: usize = 30;
    let held = if privilege.held { "held" } else { "not held" };
    let first = format!("  {:<INDENT$}", privilege.name, INDENT = INDENT - 2);
    wrapped(out, &first, &format!("{held}  {}", privilege.needed_for), INDENT);
}
