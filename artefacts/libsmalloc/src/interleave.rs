//! Interleaving per thread: selects the kind for the calling thread's memory of a type.
//!
//! A thread that interleaves has the kernel's interleave policy over the nodes it named, for all memory without a
//! policy of its own, and a private kind for each type that has some of these nodes. A type that has none of them is
//! not affected.
#![expect(unsafe_code, reason = "a system call that no safe crate offers")]

use core::cell::Cell;
use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicBool, Ordering};

use crate::kinds::{self, Plan, Spread};
use crate::nearfar::{NF_DEFAULT, nf_kind_t};
use crate::nodes::{self, Memory, Nodes};

thread_local! {
    /// The thread's kinds by type; the default means none.
    static OWN: Cell<[nf_kind_t; 2]> = const { Cell::new([NF_DEFAULT; 2]) };
}

/// Whether any thread has ever interleaved: until then the thread-local lookup is skipped.
static EVER: AtomicBool = AtomicBool::new(false);

/// The step that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Resolving the nodes, or making a kind over them: `nf_error` has the reason.
    Nodes,
    /// The system call: errno has the reason.
    Policy,
}

/// The kind for the calling thread's memory of a type; `None`, with errno set, if there is no such memory.
#[inline]
pub(crate) fn kind(memory: Memory) -> Option<nf_kind_t> {
    if EVER.load(Ordering::Relaxed) {
        let own = OWN.try_with(Cell::get).unwrap_or_default()[memory.index()];
        if own != NF_DEFAULT {
            return Some(own);
        }
    }
    kinds::whole(memory)
}

/// Starts interleaving over a set of nodes in the calling thread. On failure nothing changes.
pub(crate) fn enable(set: &CStr) -> Result<(), Refused> {
    let set = nodes::named(set).ok_or(Refused::Nodes)?;
    let mut own = [NF_DEFAULT; 2];
    for memory in Memory::BOTH {
        let of_type = nodes::of(memory).unwrap_or(Nodes::NONE).and(&set);
        if !of_type.is_empty() {
            let plan = Plan { memory, spread: Spread::InTurn, nodes: of_type };
            own[memory.index()] = kinds::get(&plan).ok_or(Refused::Nodes)?;
        }
    }
    if !set_policy(libc::MPOL_INTERLEAVE, &set) {
        return Err(Refused::Policy);
    }
    // A thread that is ending only keeps the kernel's policy.
    let _ = OWN.try_with(|thread| thread.set(own));
    EVER.store(true, Ordering::Relaxed);
    Ok(())
}

/// Stops interleaving: later memory of a type comes from the type's kind, and other memory has the kernel's default
/// policy.
pub(crate) fn disable() {
    let _ = OWN.try_with(|own| own.set([NF_DEFAULT; 2]));
    set_policy(libc::MPOL_DEFAULT, &Nodes::NONE);
}

/// set_mempolicy(2) for the calling thread; false, with errno set, on failure.
fn set_policy(mode: c_int, nodes: &Nodes) -> bool {
    let words = nodes.words();
    // The kernel ignores the last of the bits passed.
    let bits = words.len() * 64 + 1;
    // SAFETY: the kernel reads one bit less than the count passed, which is the array's size, and keeps no pointer.
    let status = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, words.as_ptr(), bits) };
    status == 0
}
