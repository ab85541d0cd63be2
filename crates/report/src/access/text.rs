//! A report for a terminal, at most as wide as it; colours only where they are supported.

use std::fmt::Write as _;

use nearfar_record::Record;
use nearfar_record::reduce::heatmap::Heatmap;
use nearfar_topology::Bytes;

use super::views::{self, Row, Rows};
use super::{Kind, Loaded, Options, Screen, words};

/// Shades without colours: idle, then increasingly hot.
const SHADES: [char; 9] = ['.', ':', '-', '=', '+', '*', '%', '#', '@'];
/// The same as colours of the 256-colour palette.
const COLOURS: [u8; 9] = [236, 52, 88, 124, 160, 202, 208, 214, 228];
/// Characters of nodes in a bar, in their order.
const MARKS: [char; 4] = ['#', '=', '-', '.'];
/// Default for the most rows of time.
const ROWS: usize = 30;
/// Width of the column of times.
const TIMES: usize = 12;

/// One report as text.
pub fn report(loaded: &Loaded, kind: Kind, options: Options, screen: Screen) -> String {
    let record = &loaded.record;
    let mut out = Out { text: String::new(), screen };
    out.prose(&format!("{}: {}", kind.title(), words::machine(record)), 0);
    out.prose(&format!("{}; {}", words::target(record), words::extent(record)), 2);
    out.line("");
    match kind {
        Kind::Heatmap => heatmap(&mut out, record, options),
        Kind::Wss => match views::working_set(record, options) {
            Some(rows) => out.rows(&rows),
            None => out.nothing("accesses"),
        },
        Kind::Temperature => match views::warmth(record) {
            Some(all) => all.iter().for_each(|rows| out.rows(rows)),
            None => out.nothing("accesses"),
        },
        Kind::Residency => residency(&mut out, record, options),
    }
    out.text
}

/// Summary of a file.
pub fn info(loaded: &Loaded, screen: Screen) -> String {
    let record = &loaded.record;
    let header = &record.header;
    let mut out = Out { text: String::new(), screen };
    out.prose(&format!("{}: {}", loaded.name, words::machine(record)), 0);
    out.prose(&words::target(record), 2);
    out.prose(&words::extent(record), 2);
    let written = format!("written by {}", header.writer);
    match header.fingerprint.as_str() {
        "" => out.prose(&written, 2),
        fingerprint => out.prose(&format!("{written}; fingerprint {fingerprint}"), 2),
    }
    for node in &header.nodes {
        let size = node.ranges.iter().fold(0u64, |sum, range| sum.saturating_add(range.bytes()));
        let size = if size > 0 { format!(", {}", Bytes(size)) } else { String::new() };
        out.prose(&format!("{}{size}", words::node(record, node.id)), 2);
    }
    let (residency, moved) = (record.residency.len(), record.moved.len());
    out.prose(&format!("{residency} readings of residency, {moved} of migration"), 2);
    for process in &record.processes {
        let from = words::time(process.at_ns);
        out.prose(&format!("{} from {from}", words::target_name(record, process.target)), 2);
    }
    for note in &record.notes {
        out.prose(&format!("at {}: {}", words::time(note.at_ns), note.text), 2);
    }
    if let Some(overhead) = words::overhead(record) {
        out.prose(&overhead, 2);
    }
    out.text
}

fn heatmap(out: &mut Out, record: &Record, options: Options) {
    let width = out.screen.columns.saturating_sub(TIMES + 1);
    // A bar separates areas.
    let Some(map) = views::heat(record, options, (width.saturating_sub(8), ROWS)) else {
        return out.nothing("accesses");
    };
    let names: Vec<char> = ('A'..='Z').cycle().take(map.areas.len()).collect();
    let head: Vec<String> = map
        .areas
        .iter()
        .zip(&names)
        .map(|(column, name)| format!("{:<width$}", name, width = column.width))
        .collect();
    out.line(format!("{:>TIMES$} {}", "time", head.join(" ")).trim_end());
    for row in 0..map.rows {
        let mut line = format!("{:>TIMES$} ", words::time(begin(&map, row)));
        for (at, column) in map.areas.iter().enumerate() {
            if at > 0 {
                line.push('|');
            }
            cells(&mut line, column.row(row), out.screen.colour);
        }
        out.line(line.trim_end());
    }
    out.line("");
    for (column, name) in map.areas.iter().zip(&names) {
        let several = map.areas.iter().any(|other| other.area.target != column.area.target);
        out.prose(&format!("{name} {}", words::area(record, &column.area, several)), 2);
    }
    if let Some(left_out) = views::left_out(&map, options) {
        out.prose(&left_out, 2);
    }
    let mut key = String::from("  idle ");
    for level in 0..views::LEVELS {
        cells(&mut key, &[Some(level * 125)], out.screen.colour);
    }
    key.push_str(" in every sample");
    out.line(&key);
}

/// Start of a row of the map.
fn begin(map: &Heatmap, row: usize) -> u64 {
    let (row, rows) = (u128::try_from(row).unwrap_or(0), u128::try_from(map.rows).unwrap_or(1));
    let past = u128::from(map.to_ns - map.from_ns) * row / rows.max(1);
    map.from_ns + u64::try_from(past).unwrap_or(0)
}

fn cells(line: &mut String, row: &[Option<u16>], colour: bool) {
    let mut painted = None;
    for cell in row {
        let level = cell.map(|permille| usize::from(views::level(permille)));
        if !colour {
            line.push(level.map_or(' ', |level| SHADES[level]));
            continue;
        }
        if painted != level {
            let _ = match level {
                Some(level) => write!(line, "\u{1b}[48;5;{}m", COLOURS[level]),
                None => write!(line, "\u{1b}[0m"),
            };
            painted = level;
        }
        line.push(' ');
    }
    if painted.is_some() {
        line.push_str("\u{1b}[0m");
    }
}

fn residency(out: &mut Out, record: &Record, options: Options) {
    let Some((over, sentences)) = views::places(record) else {
        return out.nothing("residency: its writer did not record it");
    };
    let step = over.series.len().div_ceil(options.rows.unwrap_or(ROWS).max(1)).max(1);
    let length = out.screen.columns.saturating_sub(TIMES + 3).clamp(10, 60);
    for (at_ns, bytes) in over.series.iter().step_by(step) {
        let sum = bytes.iter().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
        let mut bar = String::new();
        let mut reached = 0u64;
        for (node, bytes) in bytes.iter().enumerate() {
            reached = reached.saturating_add(*bytes);
            let until = filled(words::permille(reached, sum), length);
            let mark = MARKS[node.min(MARKS.len() - 1)];
            bar.extend(std::iter::repeat_n(mark, until.saturating_sub(bar.len())));
        }
        out.line(&format!("{:>TIMES$} {bar}", words::time(*at_ns)));
    }
    out.line("");
    for (node, mark) in over.nodes.iter().zip(MARKS.into_iter().chain(std::iter::repeat('.'))) {
        out.prose(&format!("{mark} {}", words::node(record, *node)), 2);
    }
    for sentence in sentences.iter().chain(&views::hot_near(record)) {
        out.prose(sentence, 2);
    }
}

/// Number of filled characters of a bar.
fn filled(permille: u64, length: usize) -> usize {
    let length = u64::try_from(length).unwrap_or(0);
    usize::try_from((permille * length + 500) / 1000).unwrap_or(0)
}

struct Out {
    text: String,
    screen: Screen,
}

impl Out {
    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn nothing(&mut self, of: &str) {
        self.prose(&format!("The record holds no {of}."), 0);
    }

    /// A paragraph, wrapped and indented.
    fn prose(&mut self, text: &str, indent: usize) {
        let mut line = " ".repeat(indent);
        let mut words = 0;
        for word in text.split_whitespace() {
            let width = line.chars().count() + 1 + word.chars().count();
            if words > 0 && width > self.screen.columns {
                self.line(&std::mem::replace(&mut line, " ".repeat(indent + 2)));
                words = 0;
            }
            if words > 0 {
                line.push(' ');
            }
            line.push_str(word);
            words += 1;
        }
        self.line(&line);
    }

    /// Rows with the name at the left, the value, and a bar in the rest of the line.
    fn rows(&mut self, of: &Rows) {
        self.prose(of.title, 0);
        let name = of.rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
        let value = of.rows.iter().map(|row| row.value.chars().count()).max().unwrap_or(0);
        let length = self.screen.columns.saturating_sub(name + value + 6).min(50);
        for Row { name: text, value: figure, permille } in &of.rows {
            let bar = "#".repeat(filled(*permille, length));
            self.line(format!("  {text:<name$}  {figure:>value$}  {bar}").trim_end());
        }
        self.prose(&of.sentence, 2);
        self.line("");
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    const PIPE: Screen = Screen { columns: 80, colour: false };

    fn all(screen: Screen) -> String {
        let show = |kind| report(&sample(), kind, Options::default(), screen);
        Kind::ALL.map(show).concat() + &info(&sample(), screen)
    }

    #[test]
    fn nothing_is_wider_than_the_terminal() {
        for columns in [40, 60, 80, 200] {
            let text = all(Screen { columns, colour: false });
            let widest = text.lines().max_by_key(|line| line.chars().count()).unwrap();
            assert!(widest.chars().count() <= columns, "{columns}: {widest}");
        }
    }

    #[test]
    fn a_pipe_gets_no_colour_codes_and_a_terminal_does() {
        assert!(!all(PIPE).contains('\u{1b}'));
        let coloured = all(Screen { colour: true, ..PIPE });
        assert!(coloured.contains("\u{1b}[48;5;"));
        // Each line that begins a colour ends it.
        assert!(
            coloured
                .lines()
                .filter(|line| line.contains("[48;5;"))
                .all(|line| line.contains("\u{1b}[0m"))
        );
    }

    #[test]
    fn the_heatmap_shows_the_hot_set_in_far_then_in_near_memory() {
        let text = report(&sample(), Kind::Heatmap, Options::default(), PIPE);
        let rows: Vec<&str> = text.lines().filter(|line| line.matches('|').count() == 3).collect();
        let (first, last) = (rows[0], rows[rows.len() - 1]);
        let areas = |line: &str| line.split('|').map(str::to_owned).collect::<Vec<_>>();
        assert!(
            areas(first)[2].contains('@') && areas(first)[3].trim_matches('.').is_empty(),
            "{text}"
        );
        assert!(areas(last)[1].trim_matches('@').is_empty(), "{text}");
        assert!(text.contains("B 0x120000000-0x130000000, 256 MiB, node 0 (near, dram)"), "{text}");
        assert!(text.contains("are left out; --all shows them"), "{text}");
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("may exceed the memory monitored at one time"), "{words}");
    }

    #[test]
    fn an_empty_record_is_reported_as_empty() {
        let mut loaded = sample();
        loaded.record.accesses.clear();
        loaded.record.residency.clear();
        loaded.record.moved.clear();
        for kind in Kind::ALL {
            let text = report(&loaded, kind, Options::default(), PIPE);
            assert!(text.contains("The record holds no"), "{text}");
        }
    }
}
