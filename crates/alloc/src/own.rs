//! Memory for the allocator's own metadata: never from `malloc`, which the library may replace, and never freed.
#![expect(unsafe_code, reason = "memory is cut into pieces here")]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::sys;

/// Bytes mapped at a time.
const CHUNK: usize = 2 << 20;

/// The next free address. The chunk ends at the next multiple of its size.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Zeroed memory for a `T`, for which all zeroes must be a valid value.
pub(crate) fn zeroed<T>() -> Option<NonNull<T>> {
    const { assert!(align_of::<T>() <= 64 && size_of::<T>() <= CHUNK / 2) };
    let size = size_of::<T>().max(1).next_multiple_of(64);
    loop {
        let at = NEXT.load(Ordering::Relaxed);
        let end = at.next_multiple_of(CHUNK);
        if at + size <= end {
            let (order, otherwise) = (Ordering::Relaxed, Ordering::Relaxed);
            if NEXT.compare_exchange(at, at + size, order, otherwise).is_ok() {
                return NonNull::new(at as *mut T);
            }
            continue;
        }
        let mapped = sys::map(2 * CHUNK)?.as_ptr() as usize;
        let chunk = mapped.next_multiple_of(CHUNK);
        // The part before the chunk and the part after it.
        for (from, to) in [(mapped, chunk), (chunk + CHUNK, mapped + 2 * CHUNK)] {
            if to > from {
                // SAFETY: mapped above, and known to no other code.
                unsafe { sys::unmap(from, to - from) };
            }
        }
        // A chunk's first bytes are not used: an address at its very beginning would look like the end of another
        // chunk.
        let (order, otherwise) = (Ordering::Relaxed, Ordering::Relaxed);
        if NEXT.compare_exchange(at, chunk + 64, order, otherwise).is_err() {
            // SAFETY: as above.
            unsafe { sys::unmap(chunk, CHUNK) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroed_pieces_never_overlap() {
        let take = || (0..500).map(|_| zeroed::<[u64; 1000]>().unwrap().as_ptr() as usize);
        let threads: Vec<_> =
            (0..4).map(|_| std::thread::spawn(move || take().collect::<Vec<_>>())).collect();
        let mut all: Vec<_> = threads.into_iter().flat_map(|one| one.join().unwrap()).collect();
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[1] - pair[0] >= 8000));
        // SAFETY: eight thousand bytes that no other code has.
        assert!(all.iter().all(|at| unsafe { *(*at as *const [u64; 1000]) } == [0; 1000]));
    }
}
