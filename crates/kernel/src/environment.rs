//! Environment variables, for libraries that are part of other programs.
//!
//! A process that runs with privileges other than its caller's (set-user-ID, set-group-ID, file capabilities) gets its
//! environment from that caller, which must not be able to control it: all variables count as unset there, as with
//! glibc's secure_getenv(3).

use std::ffi::OsString;

use crate::sys::auxv;

/// The value of a variable; `None` if it is unset, and in a process with privileges other than its caller's.
#[must_use]
pub fn var(name: &str) -> Option<OsString> {
    if auxv::is_secure() { None } else { std::env::var_os(name) }
}
