//! One pointer per thread, to the thread's record.
//!
//! Every allocation reads it, so it must cost next to nothing. A `thread_local!` of a shared library costs a call of
//! the dynamic linker; the model that costs one load (initial-exec; ELF Handling For Thread-Local Storage, section 4.3)
//! takes all thread-local memory of the library, including jemalloc's, from a reserve that glibc keeps small, so that
//! the library could not be loaded late. But the thread pointer, which identifies a thread, is in a register; so the
//! pointers are in a hash table keyed by it.
//!
//! A multiplication gives the place in the table; threads that collide use one of the next places. A thread that begins
//! with the thread pointer of an ended thread finds that one's record, if it is still there, which is as good as a new
//! one.
#![expect(unsafe_code, reason = "the thread pointer is read")]

use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::Thread;

const BITS: u32 = 16;
/// Number of places, from the hashed one on, that may hold a thread's entry.
const NEXT: usize = 16;

struct Place {
    /// The thread pointer, or 0.
    thread: AtomicUsize,
    word: AtomicPtr<Thread>,
}

static TABLE: [Place; (1 << BITS) + NEXT] =
    [const { Place { thread: AtomicUsize::new(0), word: AtomicPtr::new(null_mut()) } };
        (1 << BITS) + NEXT];

#[inline(always)]
fn thread_pointer() -> usize {
    let pointer: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the first word of a thread's control block is the block's address (System V ABI for x86-64, section 3.4.6).
    unsafe {
        core::arch::asm!(
            "mov {pointer}, qword ptr fs:[0]",
            pointer = out(reg) pointer,
            options(nostack, preserves_flags, readonly, pure),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a register that may be read.
    unsafe {
        core::arch::asm!(
            "mrs {pointer}, tpidr_el0",
            pointer = out(reg) pointer,
            options(nostack, preserves_flags, nomem, pure),
        );
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        // SAFETY: no preconditions.
        pointer = unsafe { libc::pthread_self() } as usize;
    }
    pointer
}

/// The hashed place of a thread.
#[inline(always)]
fn first(thread: usize) -> usize {
    // The fractional part of the golden ratio, so that neighbours are far apart.
    thread.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - BITS)
}

/// The calling thread's record, if its entry is at the hashed place: null for a few threads that have one.
#[inline(always)]
pub(crate) fn glance() -> *mut Thread {
    let thread = thread_pointer();
    let place = &TABLE[first(thread)];
    if place.thread.load(Ordering::Relaxed) == thread {
        return place.word.load(Ordering::Relaxed);
    }
    null_mut()
}

/// The calling thread's record; null if it has none.
pub(crate) fn get() -> *mut Thread {
    let word = glance();
    if word.is_null() { get_elsewhere(thread_pointer()) } else { word }
}

fn get_elsewhere(thread: usize) -> *mut Thread {
    let places = &TABLE[first(thread)..first(thread) + NEXT];
    let found = places.iter().find(|place| place.thread.load(Ordering::Relaxed) == thread);
    found.map_or(null_mut(), |place| place.word.load(Ordering::Relaxed))
}

/// The calling thread's key in the table.
pub(crate) fn key() -> usize {
    thread_pointer()
}

/// Removes a thread's entry, if it is of this record. The thread does not exist in this process, a child of fork.
pub(crate) fn forget(thread: usize, record: &Thread) {
    let places = &TABLE[first(thread)..first(thread) + NEXT];
    let is_its = |place: &&Place| {
        place.thread.load(Ordering::Relaxed) == thread
            && core::ptr::eq(place.word.load(Ordering::Relaxed), record)
    };
    if let Some(place) = places.iter().find(is_its) {
        place.word.store(null_mut(), Ordering::Relaxed);
        place.thread.store(0, Ordering::Release);
    }
}

/// Sets the calling thread's record; false if there is no place left. A null frees the place.
pub(crate) fn set(word: *mut Thread) -> bool {
    let thread = thread_pointer();
    let places = &TABLE[first(thread)..first(thread) + NEXT];
    let is_own = |place: &&Place| place.thread.load(Ordering::Relaxed) == thread;
    let take = |place: &&Place| {
        let (order, otherwise) = (Ordering::AcqRel, Ordering::Relaxed);
        place.thread.compare_exchange(0, thread, order, otherwise).is_ok()
    };
    let own = places.iter().find(is_own);
    if word.is_null() {
        if let Some(place) = own {
            place.word.store(null_mut(), Ordering::Relaxed);
            place.thread.store(0, Ordering::Release);
        }
        return true;
    }
    let place = own.or_else(|| places.iter().find(take));
    place.inspect(|place| place.word.store(word, Ordering::Relaxed)).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own_record_pointer() {
        let set_and_get = |value: usize| {
            set(null_mut());
            assert_eq!(get(), null_mut());
            assert!(set(value as *mut Thread));
            let found = get() as usize;
            set(null_mut());
            assert_eq!(get(), null_mut());
            found
        };
        std::thread::spawn(move || {
            set(64 as *mut Thread);
            assert_eq!(std::thread::spawn(move || set_and_get(128)).join().unwrap(), 128);
            assert_eq!(get() as usize, 64);
            set(null_mut());
        })
        .join()
        .unwrap();
    }

    #[test]
    fn threads_with_colliding_hashes_find_their_own_record_pointers() {
        // As many threads as there are places to probe, all hashed to the same place.
        let thread = 1 << 40;
        let at = first(thread);
        for (place, other) in TABLE[at..at + NEXT].iter().zip(0..) {
            place.thread.store(thread + other * 8, Ordering::Relaxed);
            place.word.store((other + 1) as *mut Thread, Ordering::Relaxed);
        }
        assert_eq!(get_elsewhere(thread) as usize, 1);
        TABLE[at].thread.store(0, Ordering::Relaxed);
        TABLE[at + 7].thread.store(thread, Ordering::Relaxed);
        assert_eq!(get_elsewhere(thread) as usize, 8);
        TABLE[at..at + NEXT].iter().for_each(|place| {
            place.word.store(null_mut(), Ordering::Relaxed);
            place.thread.store(0, Ordering::Relaxed);
        });
        assert_eq!(get_elsewhere(thread), null_mut());
    }
}
