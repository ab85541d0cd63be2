//! For terminals.

use std::fmt::Write as _;

use super::{COLUMNS, cells, headline, how, memory, summary, timing, troubles};
use crate::cache::results::Found;
use nearfar_command::output::wrapped;

/// The result, in lines of 80 columns.
pub fn text(found: &Found) -> String {
    let mut out = String::new();
    let version =
        found.target_version.as_ref().map_or(String::new(), |says| format!(", version {says}"));
    wrapped(&mut out, "", &format!("{}{version}", found.target), 2);
    for said in how(&found.load) {
        wrapped(&mut out, "", &said, 2);
    }
    let _ = writeln!(out, "\n{}", headline(found));
    wrapped(&mut out, "", &summary(found), 2);
    if let Some(said) = memory(found) {
        wrapped(&mut out, "", &said, 2);
    }
    row(&mut out, "", &COLUMNS.map(Into::into));
    for of in &found.kinds {
        row(&mut out, of.kind.name(), &cells(of));
    }
    if !found.kinds.is_empty() {
        wrapped(
            &mut out,
            "",
            "found: reads and removals of present keys, and stores that were kept",
            2,
        );
    }
    if let Some(said) = timing(found) {
        wrapped(&mut out, "", &said, 2);
    }
    if let Some(disturbance) = &found.disturbance {
        wrapped(&mut out, "! ", &disturbance.to_string(), 2);
    }
    let troubles = troubles(found);
    if troubles.is_empty() {
        let looked = if found.load.verified { ", no wrong values" } else { "" };
        let _ = writeln!(out, "no errors{looked}");
    }
    for said in troubles {
        wrapped(&mut out, "! ", &said, 2);
    }
    out
}

fn row(out: &mut String, name: &str, cells: &[String; COLUMNS.len()]) {
    const WIDTHS: [usize; COLUMNS.len()] = [12, 8, 7, 7, 7, 7, 7, 7];
    let mut line = format!("{name:<8}");
    for (cell, width) in cells.iter().zip(WIDTHS) {
        let _ = write!(line, " {cell:>width$}");
    }
    let _ = writeln!(out, "{}", line.trim_end());
}
