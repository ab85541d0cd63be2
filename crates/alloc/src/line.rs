//! A line of text without an allocator.

/// The longest line.
const LENGTH: usize = 256;

/// A writer with a fixed buffer: the first part that does not fit is left out, with everything after it.
#[derive(Debug)]
pub(crate) struct Line {
    bytes: [u8; LENGTH],
    length: usize,
}

impl Line {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; LENGTH], length: 0 }
    }

    pub(crate) fn text(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }
}

impl core::fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let place = self.bytes.get_mut(self.length..self.length + text.len());
        place.ok_or(core::fmt::Error)?.copy_from_slice(text.as_bytes());
        self.length += text.len();
        Ok(())
    }
}
