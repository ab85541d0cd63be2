//! State of each address in a checked build: whether an object begins there, and if not any more, why.
//!
//! Two bits per eight bytes of the address space, in leaves mapped on demand: one per GiB, of which a page is resident
//! for each 128 KiB that has had objects. The table covers a program's own memory, jemalloc's and that of kinds alike,
//! so any pointer may be looked up.
//!
//! Rules: leaves are never unmapped; an address's bits change in one atomic step, so of two threads that free an object
//! the second is reported.
#![expect(unsafe_code, reason = "a table of atomics in memory of our own")]

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::sys;

/// The state of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// No object has begun there.
    Never = 0,
    /// One begins there.
    Live = 1,
    /// One did, and was freed.
    Freed = 2,
    /// One did, and its kind was destroyed.
    Ended = 3,
}

/// Objects are aligned to this.
const SLOT: usize = 8;
const SLOT_BITS: usize = 2;
const SLOTS_IN_WORD: usize = u64::BITS as usize / SLOT_BITS;
/// Bytes of address space covered by a word.
const WORD: usize = SLOT * SLOTS_IN_WORD;
/// Bytes of address space covered by a leaf.
const LEAF: usize = 1 << 30;
const WORDS_IN_LEAF: usize = LEAF / WORD;
/// Addresses available to programs: 47 bits on x86-64, 48 on others, unless they request more.
const LEAVES: usize = (1 << 48) / LEAF;
/// The lower bit of each slot.
const LOWER: u64 = 0x5555_5555_5555_5555;

static TABLE: [AtomicPtr<AtomicU64>; LEAVES] = [const { AtomicPtr::new(null_mut()) }; LEAVES];

/// The word for an address, if there is a leaf.
fn word(at: usize) -> Option<&'static AtomicU64> {
    let leaf = NonNull::new(TABLE.get(at / LEAF)?.load(Ordering::Acquire))?;
    // SAFETY: a leaf has a word for each of its addresses.
    let word = unsafe { leaf.add(at % LEAF / WORD) };
    // SAFETY: leaves are never unmapped; all zeroes is a word.
    Some(unsafe { word.as_ref() })
}

/// As [`word`], making the leaf if there is none; `None` if there is no memory for it.
fn word_made(at: usize) -> Option<&'static AtomicU64> {
    if let Some(known) = word(at) {
        return Some(known);
    }
    let place = TABLE.get(at / LEAF)?;
    let length = WORDS_IN_LEAF * size_of::<AtomicU64>();
    let made = sys::map(length)?;
    let (order, otherwise) = (Ordering::AcqRel, Ordering::Acquire);
    let shown = place.compare_exchange(null_mut(), made.as_ptr().cast(), order, otherwise);
    if shown.is_err() {
        sys::unmap_own(made.as_ptr() as usize, length);
    }
    word(at)
}

const fn shift_of(at: usize) -> usize {
    at / SLOT % SLOTS_IN_WORD * SLOT_BITS
}

const fn state_in(word: u64, at: usize) -> State {
    match word >> shift_of(at) & 3 {
        0 => State::Never,
        1 => State::Live,
        2 => State::Freed,
        _ => State::Ended,
    }
}

const fn with_state(word: u64, at: usize, state: State) -> u64 {
    word & !(3 << shift_of(at)) | (state as u64) << shift_of(at)
}

/// Slots of a word in which live objects begin, by their lower bits.
const fn live_in(word: u64) -> u64 {
    word & !(word >> 1) & LOWER
}

/// The state of an address.
pub(crate) fn get(at: usize) -> State {
    let known = word(at).filter(|_| at.is_multiple_of(SLOT));
    known.map_or(State::Never, |word| state_in(word.load(Ordering::Acquire), at))
}

/// Records that an object begins at an address; false if there is no memory for the record.
pub(crate) fn begins(at: usize) -> bool {
    let live = |word: u64| Some(with_state(word, at, State::Live));
    let noted = |word: &AtomicU64| word.fetch_update(Ordering::AcqRel, Ordering::Acquire, live);
    word_made(at).is_some_and(|word| noted(word).is_ok())
}

/// Records that the object at an address is freed.
///
/// # Errors
/// The state of the address if no object begins there; it stays unchanged.
pub(crate) fn goes(at: usize) -> Result<(), State> {
    let Some(known) = word(at).filter(|_| at.is_multiple_of(SLOT)) else {
        return Err(State::Never);
    };
    let freed =
        |word: u64| (state_in(word, at) == State::Live).then(|| with_state(word, at, State::Freed));
    let changed = known.fetch_update(Ordering::AcqRel, Ordering::Acquire, freed);
    changed.map(|_| ()).map_err(|word| state_in(word, at))
}

/// Records that the kind of all objects that begin in a range was destroyed.
pub(crate) fn end(from: usize, length: usize) {
    for at in (from..from + length).step_by(WORD) {
        let Some(word) = word(at) else { continue };
        let live = live_in(word.load(Ordering::Acquire));
        if live != 0 {
            word.fetch_or(live << 1, Ordering::AcqRel);
        }
    }
}

/// The nearest object that begins at an address or at most `most` bytes before it.
pub(crate) fn last_before(at: usize, most: usize) -> Option<usize> {
    let lowest = at.saturating_sub(most) / WORD;
    (lowest..=at / WORD).rev().find_map(|index| {
        let start = index * WORD;
        let live = live_in(word(start)?.load(Ordering::Acquire));
        // Slots up to the address.
        let slots = (at - start) / SLOT;
        let below = if slots + 1 >= SLOTS_IN_WORD {
            live
        } else {
            live & ((1 << ((slots + 1) * SLOT_BITS)) - 1)
        };
        let slot = (below.checked_ilog2()? as usize) / SLOT_BITS;
        Some(start + slot * SLOT)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Addresses that no program has: those of the upper half are the kernel's.
    const OWN: usize = 1 << 47;

    #[test]
    fn an_object_is_allocated_and_freed_once() {
        let at = OWN + 8 * 40;
        assert_eq!(get(at), State::Never);
        assert_eq!(goes(at), Err(State::Never));
        assert!(begins(at));
        assert_eq!((get(at), get(at + 8), get(at - 8)), (State::Live, State::Never, State::Never));
        assert_eq!(goes(at + 1), Err(State::Never));
        assert_eq!(goes(at), Ok(()));
        assert_eq!(goes(at), Err(State::Freed));
        assert!(begins(at));
        assert_eq!(goes(at), Ok(()));
    }

    #[test]
    fn addresses_beyond_the_shadow_have_no_objects() {
        assert_eq!(goes(usize::MAX - 7), Err(State::Never));
        assert!(!begins(usize::MAX - 7));
        assert_eq!(last_before(usize::MAX, 4096), None);
    }

    #[test]
    fn ending_a_range_ends_its_live_objects() {
        let from = OWN + LEAF - 4096;
        let (live, freed, beyond) = (from + 8 * 31, from + 4096, from + 8192);
        for at in [live, freed, beyond] {
            assert!(begins(at));
        }
        assert_eq!(goes(freed), Ok(()));
        end(from, 8192);
        assert_eq!((get(live), get(freed), get(beyond)), (State::Ended, State::Freed, State::Live));
        assert_eq!(goes(live), Err(State::Ended));
    }

    #[test]
    fn the_object_before_an_address_is_found() {
        let from = OWN + 5 * LEAF;
        for at in [from, from + 8 * 31, from + 8 * 32] {
            assert!(begins(at));
        }
        for (at, found) in [(0, 0), (7, 0), (8 * 31 - 1, 0), (8 * 31, 8 * 31), (8 * 31 + 7, 8 * 31)]
        {
            assert_eq!(last_before(from + at, 4096), Some(from + found), "{at}");
        }
        assert_eq!(last_before(from + 8 * 32 + 4000, 4096), Some(from + 8 * 32));
        assert_eq!(last_before(from + (1 << 20), 4096), None);
    }

    #[test]
    fn only_one_of_several_threads_frees_an_object() {
        let at = OWN + 9 * LEAF;
        for _ in 0..200 {
            assert!(begins(at));
            let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(move || goes(at))).collect();
            let done: Vec<_> = threads.into_iter().map(|one| one.join().unwrap()).collect();
            assert_eq!(done.iter().filter(|done| done.is_ok()).count(), 1, "{done:?}");
        }
    }
}
