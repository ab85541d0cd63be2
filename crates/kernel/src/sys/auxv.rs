//! The auxiliary vector, which the kernel passes to a program at its start.
#![expect(unsafe_code, reason = "the C library reads the vector")]

/// Whether the process runs with privileges other than its caller's (`AT_SECURE`).
pub(crate) fn is_secure() -> bool {
    // SAFETY: no preconditions.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}
