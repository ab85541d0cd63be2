//! Progress of a long operation: one line that is rewritten on a terminal; elsewhere one message per step.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use nearfar_kernel::clock::Stopwatch;

use crate::{output, terminal};

/// A line of standard error that is rewritten, and erased at the end.
#[derive(Debug)]
pub struct StatusLine {
    shown: bool,
}

impl StatusLine {
    /// Shown if standard error is a terminal and progress is wanted.
    #[must_use]
    pub fn new() -> Self {
        Self { shown: std::io::stderr().is_terminal() && terminal::get().progress }
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
    since: Stopwatch,
    begun: usize,
    all: usize,
}

impl Progress {
    /// Progress over `all` steps. The line is rewritten if standard error is a terminal, or if `forced` because it leads to
    /// one.
    #[must_use]
    pub fn new(all: usize, forced: bool) -> Self {
        let line = if forced { StatusLine { shown: true } } else { StatusLine::new() };
        Self { line, since: Stopwatch::start(), begun: 0, all }
    }

    /// Reports that the next step begins.
    pub fn step(&mut self, name: &str) {
        self.at(self.begun, name);
        self.begun += 1;
    }

    /// Reports that a step begins and that `done` are done.
    pub fn at(&self, done: usize, name: &str) {
        let (begun, all) = (done + 1, self.all);
        if self.line.is_shown() {
            let left = left(self.since.elapsed(), done, all);
            self.line.show(format_args!("{} {begun:>2}/{all} {name}{left}", bar(done, all)));
        } else if terminal::get().progress {
            output::note(format_args!("[{begun:>2}/{all}] {name}"));
        }
    }

    /// Whether it is one line that is rewritten.
    #[must_use]
    pub const fn is_line(&self) -> bool {
        self.line.is_shown()
    }
}

/// Cells of the bar.
const CELLS: usize = 20;

/// A bar with a cell for each twentieth that is done.
fn bar(done: usize, all: usize) -> String {
    let full = (done * CELLS).checked_div(all).unwrap_or(CELLS).min(CELLS);
    format!("[{}{}]", "#".repeat(full), ".".repeat(CELLS - full))
}

/// The remaining time if the other steps take as long as those done, once two are; as a text behind the step's name.
fn left(elapsed: Duration, done: usize, all: usize) -> String {
    let mut out = String::new();
    if done < 2 || done >= all {
        return out;
    }
    let (done, more) = (done as u64, (all - done) as u64);
    let seconds = elapsed.as_secs() * more / done;
    let _ = match seconds {
        0..60 => write!(out, ", {seconds} s left"),
        _ => write!(out, ", {} min left", seconds.div_ceil(60)),
    };
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_is_full_when_all_is_done() {
        assert_eq!(bar(0, 7), "[....................]");
        assert_eq!(bar(2, 4), "[##########..........]");
        assert_eq!(bar(7, 7), "[####################]");
        assert_eq!(bar(0, 0), "[####################]");
        assert_eq!(bar(9, 7), "[####################]");
    }

    #[test]
    fn the_remaining_time_is_that_of_steps_like_those_done() {
        let after = |seconds, done| left(Duration::from_secs(seconds), done, 10);
        assert_eq!([after(30, 0), after(30, 1), after(30, 10)], ["", "", ""]);
        assert_eq!(after(10, 2), ", 40 s left");
        assert_eq!(after(100, 4), ", 3 min left");
        assert_eq!(after(20, 9), ", 2 s left");
    }
}
