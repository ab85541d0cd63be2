//! Text without an allocator, messages on stderr, and errno.
//!
//! A message is one write(2): messages of several threads do not mix, a closed or full stderr is ignored, and a child
//! of fork waits for no lock.
#![expect(unsafe_code, reason = "errno, and writing without buffers or locks")]

use core::ffi::{CStr, c_int};
use core::fmt::{self, Write as _};

/// The maximum length of a message in bytes; longer ones are truncated.
const LINE: usize = 1024;
/// The maximum length of a quotation in bytes.
const QUOTED: usize = 100;

/// Text of up to `ROOM` bytes.
pub(crate) struct Text<const ROOM: usize> {
    bytes: [u8; ROOM],
    length: usize,
}

impl<const ROOM: usize> Text<ROOM> {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; ROOM], length: 0 }
    }

    /// The text as a C string; `None` if there is no room for the terminator, or a zero within.
    pub(crate) fn as_c_str(&self) -> Option<&CStr> {
        CStr::from_bytes_with_nul(self.bytes.get(..=self.length)?).ok()
    }
}

impl<const ROOM: usize> fmt::Write for Text<ROOM> {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let room = &mut self.bytes[self.length..];
        let fits = more.len().min(room.len());
        room[..fits].copy_from_slice(&more.as_bytes()[..fits]);
        self.length += fits;
        if fits == more.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

/// External text in quotes, with control characters replaced, truncated if it is long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quoted<'a>(pub(crate) &'a CStr);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0.to_bytes();
        let shown = bytes.get(..QUOTED).unwrap_or(bytes);
        let rest = if shown.len() < bytes.len() { "..." } else { "" };
        write!(f, "\"{}{rest}\"", shown.escape_ascii())
    }
}

/// Writes a message to stderr. Preserves errno.
pub(crate) fn say(line: fmt::Arguments<'_>) {
    let error = errno();
    let mut text = Text::<LINE>::new();
    // A message that is too long is truncated.
    let _ = text.write_fmt(line);
    text.length = text.length.min(LINE - 1);
    text.bytes[text.length] = b'\n';
    // SAFETY: the buffer has the message and its newline.
    unsafe { libc::write(libc::STDERR_FILENO, text.bytes.as_ptr().cast(), text.length + 1) };
    set_errno(error);
}

/// Errno.
pub(crate) fn errno() -> c_int {
    // SAFETY: no preconditions.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: the location is this thread's own.
    unsafe { at.read() }
}

/// Sets errno.
pub(crate) fn set_errno(error: c_int) {
    // SAFETY: no preconditions.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: the location is this thread's own.
    unsafe { at.write(error) };
}

/// Returns `None` with errno set.
pub(crate) fn none<T>(error: c_int) -> Option<T> {
    set_errno(error);
    None
}
