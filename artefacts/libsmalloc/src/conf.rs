//! `SMALLOC_CONF`: `key:value,key:value`, read once.
//!
//! There is one key, use_auto_arena_scaling, true or false. It is taken and has no effect: arenas follow the threads there
//! are. Keys that are not known are passed over; for the first fault there is a line on stderr, and all goes on.
#![expect(unsafe_code, reason = "a variable as C programs have it")]

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::text::{self, Quoted};

const KEY: &[u8] = b"use_auto_arena_scaling";

/// What is wrong with it, in the words that upstream has for it.
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

/// Reads it, if nobody has.
pub(crate) fn read_once() {
    static READ: AtomicBool = AtomicBool::new(false);
    if READ.load(Ordering::Relaxed) || READ.swap(true, Ordering::Relaxed) {
        return;
    }
    // SAFETY: a string; as for all C code, nobody changes the environment meanwhile.
    let found = unsafe { libc::getenv(c"SMALLOC_CONF".as_ptr()) };
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
