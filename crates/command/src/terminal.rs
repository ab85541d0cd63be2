//! The user's options for text output: set once by the command line, read wherever something is printed.
//!
//! Without a call of [`set`], output is as in a pipe: 80 columns, no colours, one line per step.

use std::io::IsTerminal as _;
use std::sync::OnceLock;

/// Maximum width of a line where standard output is no terminal.
pub const COLUMNS: usize = 80;
/// Maximum width of a paragraph, however wide the terminal is: longer lines are hard to read.
const PARAGRAPH: usize = 120;

/// Output of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminal {
    /// Remarks and progress are left out.
    pub quiet: bool,
    /// Progress is shown.
    pub progress: bool,
    /// Width of standard output in characters.
    pub columns: usize,
    /// Standard output may have colours.
    pub colours: bool,
}

impl Default for Terminal {
    fn default() -> Self {
        Self { quiet: false, progress: true, columns: COLUMNS, colours: false }
    }
}

/// The width of standard output in characters: the one that COLUMNS gives, else that of the terminal.
#[must_use]
pub fn width() -> usize {
    let given = std::env::var("COLUMNS").ok().and_then(|text| text.parse::<usize>().ok());
    let size = || rustix::termios::tcgetwinsize(std::io::stdout()).ok();
    let seen = || size().map(|size| usize::from(size.ws_col));
    given.or_else(seen).filter(|columns| *columns > 0).unwrap_or(COLUMNS).clamp(20, 1000)
}

impl Terminal {
    /// The terminal of this process, with its [`width`]. Without `colours`, there are some on a terminal that has them,
    /// unless `NO_COLOR` is set (<https://no-color.org>).
    #[must_use]
    pub fn of_process(quiet: bool, progress: bool, colours: Option<bool>) -> Self {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = || std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let has_colours = || std::io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb();
        let colours = colours.unwrap_or_else(has_colours);
        Self { quiet, progress: progress && !quiet, columns: width(), colours }
    }

    /// Maximum width of a paragraph.
    #[must_use]
    pub const fn paragraph(&self) -> usize {
        if self.columns < PARAGRAPH { self.columns } else { PARAGRAPH }
    }
}

static TERMINAL: OnceLock<Terminal> = OnceLock::new();

/// Sets the output of this process; the first call counts.
pub fn set(terminal: Terminal) {
    let _ = TERMINAL.set(terminal);
}

/// The output of this process.
#[must_use]
pub fn get() -> Terminal {
    TERMINAL.get().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_fill_the_terminal_width_up_to_a_readable_maximum() {
        let of = |columns| Terminal { columns, ..Terminal::default() }.paragraph();
        assert_eq!([of(40), of(80), of(100), of(120), of(1000)], [40, 80, 100, 120, 120]);
    }

    #[test]
    fn quiet_output_has_no_progress_and_colours_are_as_wanted() {
        let quiet = Terminal::of_process(true, true, Some(true));
        assert!(quiet.quiet && !quiet.progress && quiet.colours);
        let plain = Terminal::of_process(false, true, Some(false));
        assert!(!plain.quiet && plain.progress && !plain.colours);
        assert!(!Terminal::of_process(false, false, None).progress);
    }
}
