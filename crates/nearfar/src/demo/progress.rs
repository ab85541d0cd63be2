//! Progress of a long run: one line that is rewritten on a terminal, nothing in a pipe.

use std::io::{IsTerminal as _, Write as _};

/// A line of standard error that is rewritten, and gone at the end.
#[derive(Debug)]
pub(crate) struct StatusLine {
    shown: bool,
}

impl StatusLine {
    /// Shown if standard error is a terminal.
    pub(crate) fn new() -> Self {
        Self { shown: std::io::stderr().is_terminal() }
    }

    /// Not shown, whatever standard error is.
    pub(crate) const fn hidden() -> Self {
        Self { shown: false }
    }

    /// Whether anybody sees it.
    pub(crate) const fn is_shown(&self) -> bool {
        self.shown
    }

    /// Shows another text.
    pub(crate) fn show(&self, text: std::fmt::Arguments<'_>) {
        if self.shown {
            // Progress is a courtesy: a terminal that went away is no reason to stop.
            let _ = write!(std::io::stderr(), "\r\x1b[K{text}");
            let _ = std::io::stderr().flush();
        }
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        self.show(format_args!(""));
    }
}

/// A count of steps.
#[derive(Debug)]
pub(crate) struct Progress {
    line: StatusLine,
    done: usize,
    all: usize,
}

impl Progress {
    /// Over `all` steps; shown if standard error is a terminal, or if `forced` because it leads to one.
    pub(crate) fn new(all: usize, forced: bool) -> Self {
        let line = if forced { StatusLine { shown: true } } else { StatusLine::new() };
        Self { line, done: 0, all }
    }

    /// The next step begins.
    pub(crate) fn step(&mut self, what: &str) {
        self.done += 1;
        let Self { done, all, .. } = *self;
        self.line.show(format_args!("[{done:>2}/{all}] {what}"));
    }
}
