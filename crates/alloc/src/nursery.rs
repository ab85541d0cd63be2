//! The nursery: the first small objects of a kind, cut from its address space without jemalloc.
//!
//! jemalloc and one of its arenas touch some 80 pages before the first object is allocated, which takes longer than the
//! whole start of a short program. A kind's first [`BYTES`] are cut into runs of pages here, each for one size class,
//! so that a program that needs no more (a shell, grep) never creates an arena.
//!
//! Rules: a run is handed out once, from its front, and keeps its class. Freed objects of it are cached by threads and
//! depots like all others; those that do not fit there are not reused, which wastes at most [`BYTES`] per kind.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::classes::{CLASSES, size_of_class};
use crate::sys::PAGE;

/// Address space for all runs, from a page boundary on.
pub(crate) const BYTES: usize = 512 << 10;
/// Runs for objects of at least this size have the least length that is both whole pages and whole objects.
const WHOLE_FROM: usize = 1024;

/// All zeroes is a nursery that is not begun.
pub(crate) struct Nursery {
    /// Its first address; 0 before it is begun.
    base: AtomicUsize,
    begun: AtomicBool,
    /// Bytes given to runs.
    used: AtomicUsize,
    /// The rest of each class's run: the offset of its next object, and above that the offset of its end.
    runs: [AtomicU64; CLASSES],
}

const END_SHIFT: u32 = 32;

impl Nursery {
    /// Whether an address lies in it.
    pub(crate) fn has(&self, at: usize) -> bool {
        let base = self.base.load(Ordering::Relaxed);
        base != 0 && at.wrapping_sub(base) < BYTES
    }

    /// Clears it.
    pub(crate) fn reset(&self) {
        self.base.store(0, Ordering::Relaxed);
        self.used.store(0, Ordering::Relaxed);
        self.runs.iter().for_each(|run| run.store(0, Ordering::Relaxed));
        self.begun.store(false, Ordering::Release);
    }

    /// Takes at most `into.len()` objects; returns how many. The first call has `extend` give the address of [`BYTES`].
    pub(crate) fn take(
        &self,
        class: usize,
        into: &mut [usize],
        extend: impl FnOnce() -> Option<usize>,
    ) -> usize {
        let base = self.base.load(Ordering::Acquire);
        if base != 0 {
            return self.cut(class, base, into);
        }
        let is_begun = || self.begun.swap(true, Ordering::AcqRel);
        if self.begun.load(Ordering::Relaxed) || is_begun() {
            return 0;
        }
        // Fails if the limit does not allow it, or the nodes are full.
        let Some(base) = extend() else { return 0 };
        self.base.store(base, Ordering::Release);
        self.cut(class, base, into)
    }

    /// Allocates pages for a run, if there are enough; returns their offset.
    fn pages(&self, length: usize) -> Option<usize> {
        let more = |used: usize| used.checked_add(length).filter(|used| *used <= BYTES);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()
    }

    /// Cuts objects from the run of a class, or from a new run; returns how many.
    fn cut(&self, class: usize, base: usize, into: &mut [usize]) -> usize {
        let (size, place) = (size_of_class(class), &self.runs[class]);
        let pack = |at: usize, end: usize| (end << END_SHIFT | at) as u64;
        loop {
            let run = place.load(Ordering::Relaxed);
            let (at, end) = (run & u64::from(u32::MAX), run >> END_SHIFT);
            let [at, end] = [at, end].map(|offset| usize::try_from(offset).unwrap_or(0));
            let count = ((end - at) / size).min(into.len());
            let (next, end) = match count {
                0 => match self.pages(run_length(size)) {
                    Some(pages) => (pages, pages + run_length(size)),
                    None => return 0,
                },
                count => (at + count * size, end),
            };
            // If another thread was first, this new run stays unused.
            let (order, otherwise) = (Ordering::Relaxed, Ordering::Relaxed);
            let is_ours = place.compare_exchange(run, pack(next, end), order, otherwise).is_ok();
            if is_ours && count > 0 {
                let objects = (0..count).map(|object| base + at + object * size);
                into.iter_mut().zip(objects).for_each(|(place, object)| *place = object);
                return count;
            }
        }
    }
}

/// Bytes of a run for objects of this size.
const fn run_length(size: usize) -> usize {
    if size <= WHOLE_FROM {
        return PAGE;
    }
    // The least common multiple: the factors that the size shares with a page are its lowest set bit.
    let shared = 1 << size.trailing_zeros();
    if shared >= PAGE { size } else { size / shared * PAGE }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn empty() -> Nursery {
        Nursery {
            base: AtomicUsize::new(1 << 30),
            begun: AtomicBool::new(true),
            used: AtomicUsize::new(0),
            runs: [const { AtomicU64::new(0) }; CLASSES],
        }
    }

    #[test]
    fn objects_do_not_overlap_and_each_page_has_one_size_class() {
        let nursery = empty();
        let mut taken = Vec::new();
        for turn in 0..200 {
            for class in 1..CLASSES {
                let mut objects = [0; 32];
                let wanted = &mut objects[..1 + turn % 32];
                let count = nursery.cut(class, 1 << 30, wanted);
                taken.extend(wanted[..count].iter().map(|object| (*object, class)));
            }
        }
        taken.sort_unstable();
        let ends = taken.iter().map(|(at, class)| at + size_of_class(*class));
        let starts = taken.iter().map(|(at, _)| *at).skip(1);
        assert!(ends.zip(starts).all(|(end, start)| end <= start));
        for pair in taken.windows(2) {
            assert!(pair[0].0 / PAGE != pair[1].0 / PAGE || pair[0].1 == pair[1].1);
        }
        assert!(taken.iter().all(|(at, _)| nursery.has(*at)) && !nursery.has((1 << 30) - 1));
        let bytes: usize = taken.iter().map(|(_, class)| size_of_class(*class)).sum();
        assert!(bytes > BYTES / 2 && bytes <= BYTES, "{bytes}");
    }

    #[test]
    fn an_object_is_aligned_to_the_largest_power_of_two_dividing_its_size() {
        for class in 1..CLASSES {
            let size = size_of_class(class);
            let shared = (1_usize << size.trailing_zeros()).min(PAGE);
            assert_eq!(run_length(size) % PAGE, 0);
            assert!(size <= WHOLE_FROM || run_length(size).is_multiple_of(size), "{size}");
            let mut objects = [0; 4];
            let count = empty().cut(class, 1 << 30, &mut objects);
            assert!(count > 0 && objects[..count].iter().all(|at| at % shared == 0), "{size}");
        }
    }

    #[test]
    fn concurrent_cuts_never_return_the_same_object() {
        let nursery = empty();
        let take = || {
            let mut all = Vec::new();
            for _ in 0..200 {
                let mut objects = [0; 7];
                let count = nursery.cut(9, 1 << 30, &mut objects);
                all.extend_from_slice(&objects[..count]);
            }
            all
        };
        let mut all: Vec<usize> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
