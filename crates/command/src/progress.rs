//! Progress of a long operation: one line that is rewritten on a terminal; elsewhere one message per step.

use std::io::{IsTerminal as _, Write as _};

use crate::output;

/// A line of standard error that is rewritten, and erased at the end.
#[derive(Debug)]
pub struct StatusLine {
    shown: bool,
}

impl StatusLine {
    /// Shown if standard error is a terminal.
    #[must_use]
    pub fn new() -> Self {
        Self { shown: std::io::stderr().is_terminal() }
    }

    /// Never shown.
    #[must_use]
    pub const fn hidden() -> Self {
        Self { shown: false }
    }

    /// Whether it is shown.
    #[must_use]
    pub const fn is_shown(&self) -> bool {
        self.shown
    }

    /// Shows another text.
    pub fn show(&self, text: std::fmt::Arguments<'_>) {
        if self.shown {
            // A closed terminal is no reason to stop.
            let _ = write!(std::io::stderr(), "\r\x1b[K{text}");
            let _ = std::io::stderr().flush();
        }
    }
}

impl Default for StatusLine {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        self.show(format_args!(""));
    }
}

/// Progress over a known number of steps.
#[derive(Debug)]
pub struct Progress {
    line: StatusLine,
    done: usize,
    all: usize,
}

impl Progress {
    /// Progress over `all` steps. The line is rewritten if standard error is a terminal, or if `forced` because it leads to
    /// one.
    #[must_use]
    pub fn new(all: usize, forced: bool) -> Self {
        let line = if forced { StatusLine { shown: true } } else { StatusLine::new() };
        Self { line, done: 0, all }
    }

    /// Reports that the next step begins.
    pub fn step(&mut self, name: &str) {
        self.done += 1;
        let Self { done, all, .. } = *self;
        if self.line.is_shown() {
            self.line.show(format_args!("[{done:>2}/{all}] {name}"));
        } else {
            output::note(format_args!("[{done:>2}/{all}] {name}"));
        }
    }
}
