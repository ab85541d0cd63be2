//! Size classes: the sizes that requests are rounded up to, the same as jemalloc's (four to each doubling).
//!
//! A class is a number from 1; 0 means none, so that a zero marks a page without a known class. Classes go up to
//! [`CACHED_MOST`]: threads do not cache larger objects.

/// The largest size that threads cache.
pub(crate) const CACHED_MOST: usize = 32 << 10;
/// Number of classes, including class 0.
pub(crate) const CLASSES: usize = 42;

/// The size of each class; 0 for class 0.
pub(crate) static SIZES: [u32; CLASSES] = sizes();

/// The class of each size up to [`FINE_MOST`], by eights.
static FINE: [u8; FINE_MOST / 8 + 1] = fine();
/// The class of each larger size, by 256s.
static COARSE: [u8; CACHED_MOST / 256 + 1] = coarse();
/// The largest size whose class is one table look-up.
pub(crate) const FINE_MOST: usize = 1024;

const fn sizes() -> [u32; CLASSES] {
    let mut sizes = [0; CLASSES];
    sizes[1] = 8;
    sizes[2] = 16;
    sizes[3] = 32;
    sizes[4] = 48;
    sizes[5] = 64;
    let (mut at, mut doubling) = (6, 64);
    while at < CLASSES {
        let mut quarter = 1;
        while quarter <= 4 && at < CLASSES {
            sizes[at] = doubling + doubling / 4 * quarter;
            quarter += 1;
            at += 1;
        }
        doubling *= 2;
    }
    sizes
}

#[expect(clippy::cast_possible_truncation, reason = "classes are few")]
const fn class_from(size: usize, first: usize) -> u8 {
    let mut class = first;
    while (SIZES[class] as usize) < size {
        class += 1;
    }
    class as u8
}

const fn fine() -> [u8; FINE_MOST / 8 + 1] {
    let mut classes = [1; FINE_MOST / 8 + 1];
    let mut at = 1;
    while at < classes.len() {
        classes[at] = class_from(at * 8, classes[at - 1] as usize);
        at += 1;
    }
    classes
}

const fn coarse() -> [u8; CACHED_MOST / 256 + 1] {
    let mut classes = [1; CACHED_MOST / 256 + 1];
    let mut at = 1;
    while at < classes.len() {
        classes[at] = class_from(at * 256, classes[at - 1] as usize);
        at += 1;
    }
    classes
}

/// The class of a size of at most [`FINE_MOST`] bytes; `None` if it is larger.
#[inline(always)]
pub(crate) fn fine_class(size: usize) -> Option<usize> {
    (size <= FINE_MOST).then(|| usize::from(FINE[(size + 7) >> 3]))
}

/// The smallest class for a size of at most [`CACHED_MOST`] bytes.
pub(crate) fn class_of(size: usize) -> Option<usize> {
    if size <= FINE_MOST {
        return fine_class(size);
    }
    COARSE.get(size.checked_add(255)? >> 8).map(|class| usize::from(*class))
}

/// The most objects of a class that a thread caches.
pub(crate) const fn room_of_class(class: usize) -> u32 {
    match SIZES[class] {
        0..=1024 => 64,
        1025..=4096 => 16,
        _ => 8,
    }
}

/// Objects of a class that move between a thread and a depot at once: half of the thread's cache.
pub(crate) const fn batch_of_class(class: usize) -> usize {
    room_of_class(class) as usize / 2
}

/// The size of a class.
pub(crate) fn size_of_class(class: usize) -> usize {
    SIZES[class] as usize
}

#[cfg(test)]
#[expect(unsafe_code, reason = "jemalloc is asked for its classes")]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_the_smallest_that_holds_the_size() {
        for size in 0..=CACHED_MOST {
            let class = class_of(size).unwrap();
            assert!(size_of_class(class) >= size, "{size}: {class}");
            assert!(class == 1 || size_of_class(class - 1) < size, "{size}: {class}");
        }
        assert_eq!(class_of(CACHED_MOST + 1), None);
        assert_eq!(class_of(usize::MAX), None);
        assert_eq!(fine_class(usize::MAX), None);
    }

    #[test]
    fn classes_are_those_of_jemalloc() {
        for class in 1..CLASSES {
            let size = size_of_class(class);
            // SAFETY: nallocx computes.
            let given = unsafe { tikv_jemalloc_sys::nallocx(size, 0) };
            assert_eq!(given, size);
        }
    }

    #[test]
    fn a_class_of_a_multiple_of_an_alignment_is_aligned() {
        for shift in 3..=12 {
            let align = 1_usize << shift;
            for size in (align..=CACHED_MOST).step_by(align) {
                let class = class_of(size).unwrap();
                assert_eq!(size_of_class(class) % align, 0, "{size} at {align}");
            }
        }
    }
}
