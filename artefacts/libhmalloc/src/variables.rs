//! The environment variables, and the policy they request.
//!
//! An invalid value is refused, not taken for 0: misplaced memory would go unnoticed. An empty variable counts as
//! unset. A process with privileges other than its caller's (set-user-ID) reads none of them.
#![expect(unsafe_code, reason = "variables as secure_getenv(3) has them")]

use core::ffi::{CStr, c_char, c_int};

use crate::nearfar;
use crate::policy::{self, Policy};

const POOL: &CStr = c"HMALLOC_JEMALLOC";
const MASK: &CStr = c"HMALLOC_NODEMASK";
const MODE: &CStr = c"HMALLOC_MPOL_MODE";
/// An addition to HMSDK's: any node set expression; overrides the mask.
const NODES: &CStr = c"HMALLOC_NODES";

/// A request that is refused.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) errno: c_int,
    pub(crate) words: String,
}

unsafe extern "C" {
    /// secure_getenv(3): as getenv(3), but NULL in a process with privileges other than those of its caller, which sets
    /// the variables.
    fn secure_getenv(name: *const c_char) -> *const c_char;
}

/// The value of a variable.
fn value(name: &CStr) -> Option<String> {
    // SAFETY: a C string; as for all C code, no thread changes the environment concurrently.
    let found = unsafe { secure_getenv(name.as_ptr()) };
    // SAFETY: as above, if it is set.
    (!found.is_null()).then(|| unsafe { CStr::from_ptr(found) }.to_string_lossy().into_owned())
}

/// Whether memory comes from the pool: only if the value is `1`.
pub(crate) fn pool() -> bool {
    value(POOL).is_some_and(|value| value == "1")
}

fn text(name: &CStr) -> Option<String> {
    Some(value(name)?.trim().to_owned()).filter(|value| !value.is_empty())
}

/// A variable's name, for messages.
fn name(of: &CStr) -> &str {
    of.to_str().unwrap_or_default()
}

/// The mask of nodes 0 to 63, in decimal or with `0x`; 0 if there is none.
pub(crate) fn mask() -> Result<u64, Refused> {
    let Some(text) = text(MASK) else { return Ok(0) };
    let read = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    read.map_err(|_| Refused {
        errno: libc::EINVAL,
        words: format!(
            "{}={text}: not a mask of nodes 0 to 63; write it like 5 or 0x5 for nodes 0 and 2, or {}=0,2",
            name(MASK),
            name(NODES)
        ),
    })
}

/// The kernel's number of a mode; 0 if there is none.
pub(crate) fn mode() -> Result<c_int, Refused> {
    let Some(text) = text(MODE) else { return Ok(0) };
    text.parse().map_err(|_| no_mode(&text))
}

fn no_mode(found: &str) -> Refused {
    let words = format!(
        "{}={found}: no policy that goes with nodes; there are 1 preferred, 2 bind, 3 interleave, 5 preferred-many and \
         6 weighted interleave",
        name(MODE)
    );
    Refused { errno: libc::EINVAL, words }
}

/// The requested policy; `None` if no nodes are named, for any mode.
pub(crate) fn policy() -> Result<Option<Policy>, Refused> {
    let (asked, set) = if let Some(set) = text(NODES) {
        (format!("{}={set}", name(NODES)), set)
    } else {
        match mask()? {
            0 => return Ok(None),
            mask => {
                let set = policy::list((0..u64::BITS).filter(|node| mask >> node & 1 == 1));
                (format!("{}={}", name(MASK), text(MASK).unwrap_or_default()), set)
            }
        }
    };
    let of_set = |refused: Refused| Refused {
        words: format!("{asked}: {}", refused.words),
        errno: refused.errno,
    };
    let nodes = nearfar::nodes(&set).map_err(of_set)?;
    let mode = mode()?;
    Policy::new(mode, nodes).map(Some).ok_or_else(|| no_mode(&mode.to_string()))
}
