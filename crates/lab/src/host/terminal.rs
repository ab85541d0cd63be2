//! Puts the user's terminal into raw mode while the guest uses it, and always restores it.

use std::io;

use rustix::termios::{OptionalActions, Termios};

/// A terminal in raw mode, restored when dropped.
#[derive(Debug)]
pub(super) struct Raw {
    before: Termios,
}

impl Raw {
    /// Puts standard input into raw mode; `None` if it is no terminal.
    pub(super) fn stdin() -> Option<Self> {
        let before = rustix::termios::tcgetattr(io::stdin()).ok()?;
        let mut raw = before.clone();
        raw.make_raw();
        rustix::termios::tcsetattr(io::stdin(), OptionalActions::Drain, &raw).ok()?;
        Some(Self { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = rustix::termios::tcsetattr(io::stdin(), OptionalActions::Drain, &self.before);
    }
}

/// Size of the terminal on standard input, as rows and columns; the traditional size if it is none.
pub(super) fn size() -> (u16, u16) {
    match rustix::termios::tcgetwinsize(io::stdin()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => (size.ws_row, size.ws_col),
        _ => (24, 80),
    }
}
