//! The comparison for terminals.

use std::fmt::Write as _;

use super::{COLUMNS, Document, cells, figure_and_bound, verdict, workload_text};
use nearfar_report::words;

/// The whole text.
pub(crate) fn text(document: &Document) -> String {
    let mut out =
        document.found.machine().map_or_else(String::new, |machine| words::about(machine) + "\n");
    let _ = writeln!(out, "{}", document.how());
    for (compared, figures) in document.parts() {
        let _ = writeln!(out, "\n{}: {}", compared.workload, workload_text(compared));
        let mut table = vec![COLUMNS.map(|(name, _)| name.to_string())];
        let mut names = vec![String::new()];
        for ran in compared.rows.iter().filter(|ran| ran.run.is_some()) {
            table.push(cells(figures.iter().find(|of| of.row == ran.row)));
            names.push(ran.row.name().into());
        }
        if table.len() > 1 {
            out += &columns(&names, &table);
        }
        for ran in &compared.rows {
            let name = ran.row.name();
            out.extend(ran.absent.iter().map(|why| format!("  {name:<15} absent: {why}\n")));
        }
        for check in document.checks.iter().filter(|check| check.workload == compared.workload) {
            let [found, bound] = figure_and_bound(check);
            let _ =
                writeln!(out, "  {:<44} {found:>9}  {bound:<18} {}", check.what, verdict(check));
        }
    }
    out.push('\n');
    for (name, meaning) in COLUMNS {
        let _ = writeln!(out, "{name}: {meaning}");
    }
    out
}

/// Right-aligned columns, each as wide as its widest cell.
fn columns<const N: usize>(names: &[String], table: &[[String; N]]) -> String {
    let width = |at: usize| table.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut out = String::new();
    for (name, row) in names.iter().zip(table) {
        let _ = write!(out, "  {name:<15}");
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(out, "  {cell:>width$}");
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::Document;
    use super::*;
    use crate::tiering::sample::found;

    #[test]
    fn the_tiering_table_shows_emulated_absent_reached_and_missed_rows() {
        let text = text(&Document::of(found()));
        for part in [
            "EMULATED machine cxl-2tier-small",
            "memtierd        absent: no binary was named",
            "of the slowdown recovered                       90.0 %  at least 80.0 %    reached",
            "after move 1",
            "MISSED",
            "works 20 % of every 10 ms",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        assert!(!text.contains("measured"), "{text}");
    }

    #[test]
    fn a_smoke_run_is_not_judged() {
        let mut found = found();
        found.smoke = true;
        let text = text(&Document::of(found));
        assert!(text.contains("too short to be judged") && !text.contains("at least"), "{text}");
    }
}
