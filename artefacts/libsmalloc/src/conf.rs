//! `SMALLOC_CONF`: `key:value,key:value`, read once.
//!
//! There is one key, use_auto_arena_scaling, true or false. It is accepted and has no effect: the number of arenas
//! follows that of threads. Unknown keys are ignored; the first error is reported on stderr, and the program continues.
#![expect(unsafe_code, reason = "a variable as C programs have it")]

use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicBool, Ordering};

use crate::text::{self, Quoted};

const KEY: &[u8] = b"use_auto_arena_scaling";

/// Errors in the configuration, with upstream's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Malformed,
    EndsWithKey,
    EndsWithComma,
    Value,
}

impl Fault {
    const fn words(self) -> &'static str {
        match self {
            Self::Malformed => "Malformed conf string",
            Self::EndsWithKey => "Conf string ends with key",
            Self::EndsWithComma => "Conf string ends with comma",
            Self::Value => "Invalid conf value",
        }
    }
}

unsafe extern "C" {
    /// secure_getenv(3): as getenv(3), but NULL in a process with privileges other than those of its caller, who sets
    /// the variables.
    fn secure_getenv(name: *const c_char) -> *const c_char;
}

/// Reads the configuration unless that has been done.
pub(crate) fn read_once() {
    static READ: AtomicBool = AtomicBool::new(false);
    if READ.load(Ordering::Relaxed) || READ.swap(true, Ordering::Relaxed) {
        return;
    }
    // SAFETY: a C string; as for all C code, no thread changes the environment concurrently.
    let found = unsafe { secure_getenv(c"SMALLOC_CONF".as_ptr()) };
    if found.is_null() {
        return;
    }
    // SAFETY: as above.
    let conf = unsafe { CStr::from_ptr(found) };
    if let Err(fault) = check(conf.to_bytes()) {
        text::say(format_args!(
            "{}: SMALLOC_CONF is {}; write use_auto_arena_scaling:true, or :false",
            fault.words(),
            Quoted(conf)
        ));
    }
}

fn check(mut rest: &[u8]) -> Result<(), Fault> {
    while !rest.is_empty() {
        let key = rest.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_');
        let (key, after) = rest.split_at(key.count());
        let value = match after {
            [] => return Err(Fault::EndsWithKey),
            [b':', value @ ..] => value,
            _ => return Err(Fault::Malformed),
        };
        let end = value.iter().position(|byte| *byte == b',');
        let (value, after) = value.split_at(end.unwrap_or(value.len()));
        if key == KEY && value != b"true" && value != b"false" {
            return Err(Fault::Value);
        }
        rest = after.get(1..).unwrap_or_default();
        if end.is_some() && rest.is_empty() {
            return Err(Fault::EndsWithComma);
        }
    }
    Ok(())
}
