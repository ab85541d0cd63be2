//! Errors of the C interface, from errno and message to Python's exceptions.
#![expect(unsafe_code, reason = "a string of the C interface is read")]

use std::ffi::CStr;
use std::io;

use nearfar_alloc::ffi::nf_error;
use pyo3::PyErr;
use pyo3::exceptions::{PyMemoryError, PyOSError, PyValueError};

/// A failed call of the C interface.
#[derive(Debug)]
pub(crate) struct Failure {
    errno: i32,
    words: String,
}

impl Failure {
    /// The error of the calling thread's last call, for calls that leave a message.
    pub(crate) fn in_words() -> Self {
        let errno = last_errno();
        // SAFETY: a string of the calling thread, valid until the next call that leaves a message.
        let words = unsafe { CStr::from_ptr(nf_error()) };
        Self { errno, words: words.to_string_lossy().into_owned() }
    }

    /// The error of the calling thread's last call, for calls that only set errno; `what` is the message.
    pub(crate) fn of(what: &str) -> Self {
        let errno = last_errno();
        Self { errno, words: format!("{what}: {}", io::Error::from_raw_os_error(errno)) }
    }
}

fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

impl From<Failure> for PyErr {
    fn from(Failure { errno, words }: Failure) -> Self {
        match errno {
            libc::ENOMEM => PyMemoryError::new_err(words),
            libc::EINVAL | libc::ENODEV => PyValueError::new_err(words),
            // Given both, Python chooses the subclass of OSError for the errno.
            _ => PyOSError::new_err((errno, words)),
        }
    }
}
