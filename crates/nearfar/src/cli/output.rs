//! What goes to standard output: whole texts and JSON. Messages go to standard error.

use std::io::{self, Write as _};

use anyhow::Context as _;

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

/// Prints a message for the user on standard error.
pub(crate) fn note(message: impl std::fmt::Display) {
    // Nothing can be done, or should stop, if standard error is closed.
    let _ = writeln!(io::stderr().lock(), "nearfar: {message}");
}
