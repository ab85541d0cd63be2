//! What goes to standard output: whole texts, in paragraphs of 80 columns, and JSON. Messages go to standard error.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use anyhow::Context as _;
use nearfar_kernel::journal::Restored;

/// Prints `text`. A reader that has gone away (`nearfar topo | head -1`) is no failure.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("can't write to standard output")
        }
        _ => Ok(()),
    }
}

/// Prints `value` as indented JSON with a newline.
pub(crate) fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value).context("can't write JSON")?;
    print(&(text + "\n"))
}

/// Prints `text` on standard error.
pub(crate) fn print_error(text: &str) {
    // Nothing can be done, or should stop, if standard error is closed.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Prints a message for the user on standard error.
pub(crate) fn note(message: impl std::fmt::Display) {
    // Nothing can be done, or should stop, if standard error is closed.
    let _ = writeln!(io::stderr().lock(), "nearfar: {message}");
}

/// Lines of text are no wider.
pub(crate) const COLUMNS: usize = 80;
/// Stands for a space at which a line is not broken.
const TIE: char = '\u{a0}';

/// A few words that stay on one line.
pub(crate) fn tied(words: std::fmt::Arguments<'_>) -> String {
    words.to_string().replace(' ', &TIE.to_string())
}

/// One paragraph, broken at spaces; lines after the first are set in by `indent`. What a recording from elsewhere could
/// do to a terminal is taken out.
pub(crate) fn wrapped(out: &mut String, first: &str, text: &str, indent: usize) {
    let text: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    let mut line = String::from(first);
    let mut fresh = true;
    for word in text.split(' ') {
        if !fresh && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            let _ = writeln!(out, "{}", line.trim_end().replace(TIE, " "));
            line = " ".repeat(indent);
            fresh = true;
        }
        if !fresh {
            line.push(' ');
        }
        line.push_str(word);
        fresh = false;
    }
    let _ = writeln!(out, "{}", line.trim_end().replace(TIE, " "));
}

/// Fails if something was left alone because someone else had changed it: what was `left` as it is, and which command puts
/// it back all the same.
pub(crate) fn refuse_conflicts(
    report: &Restored,
    left: &str,
    overwrite: &str,
) -> anyhow::Result<()> {
    let Some(conflict) = report.conflicts.first() else { return Ok(()) };
    anyhow::bail!(
        "/{} reads {}, not the {} that nearfar wrote: someone else has changed it since, so {left}; {overwrite} puts {} back \
         all the same",
        conflict.recorded.path,
        conflict.found,
        conflict.recorded.new,
        conflict.recorded.old
    );
}
