//! Progress of a long run: one line that is rewritten on a terminal, nothing in a pipe.

use std::io::{IsTerminal as _, Write as _};

/// A count of steps.
#[derive(Debug)]
pub(crate) struct Progress {
    shown: bool,
    done: usize,
    all: usize,
}

impl Progress {
    /// Over `all` steps; shown if standard error is a terminal, or if `forced` because it leads to one.
    pub(crate) fn new(all: usize, forced: bool) -> Self {
        Self { shown: forced || std::io::stderr().is_terminal(), done: 0, all }
    }

    /// The next step begins.
    pub(crate) fn step(&mut self, what: &str) {
        self.done += 1;
        let Self { done, all, .. } = *self;
        self.show(&format!("[{done:>2}/{all}] {what}"));
    }

    fn show(&self, text: &str) {
        if self.shown {
            // Progress is a courtesy: a terminal that went away is no reason to stop.
            let _ = write!(std::io::stderr(), "\r\x1b[K{text}");
            let _ = std::io::stderr().flush();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.show("");
    }
}
