//! The variables, and the policy they ask for.
//!
//! What can't be read is refused, not taken for 0: memory in the wrong place would not be noticed. A variable that is there
//! and empty is as good as none.

use core::ffi::c_int;
use std::env;

use crate::nearfar;
use crate::policy::{self, Policy};

const POOL: &str = "HMALLOC_JEMALLOC";
const MASK: &str = "HMALLOC_NODEMASK";
const MODE: &str = "HMALLOC_MPOL_MODE";
/// Ours: any node set in words, stronger than the mask.
const NODES: &str = "HMALLOC_NODES";

/// What can't be had.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) errno: c_int,
    pub(crate) words: String,
}

/// Whether memory is to come from the pool: `1` says so, and nothing else.
pub(crate) fn pool() -> bool {
    env::var_os(POOL).is_some_and(|value| value == "1")
}

fn text(name: &str) -> Option<String> {
    let value = env::var_os(name)?;
    Some(value.to_string_lossy().trim().to_owned()).filter(|value| !value.is_empty())
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
            "{MASK}={text}: not a mask of nodes 0 to 63; write it like 5 or 0x5 for nodes 0 and 2, or {NODES}=0,2"
        ),
    })
}

/// The kernel's number of a policy; 0 if there is none.
pub(crate) fn mode() -> Result<c_int, Refused> {
    let Some(text) = text(MODE) else { return Ok(0) };
    text.parse().map_err(|_| no_mode(&text))
}

fn no_mode(found: &str) -> Refused {
    let words = format!(
        "{MODE}={found}: no policy that goes with nodes; there are 1 preferred, 2 bind, 3 interleave, 5 preferred-many and \
         6 weighted interleave"
    );
    Refused { errno: libc::EINVAL, words }
}

/// The policy that is asked for; none if no nodes are named, whatever the mode.
pub(crate) fn policy() -> Result<Option<Policy>, Refused> {
    let (asked, set) = if let Some(set) = text(NODES) {
        (format!("{NODES}={set}"), set)
    } else {
        match mask()? {
            0 => return Ok(None),
            mask => {
                let set = policy::list((0..u64::BITS).filter(|node| mask >> node & 1 == 1));
                (format!("{MASK}={}", text(MASK).unwrap_or_default()), set)
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
