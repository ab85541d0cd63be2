//! Freed memory is returned to the system. A test program of its own: resident memory is counted for the whole process.
#![expect(unsafe_code, reason = "a C interface is called")]

use std::ffi::c_void;

use nearfar_alloc::ffi::*;

const MIB: usize = 1 << 20;

fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.expect("statm's second figure") * 4096
}

/// Allocates `count` objects, writes to all of them, and frees them in another order.
fn fill_and_free(kind: nf_kind_t, count: usize, size: usize) {
    let objects: Vec<_> = (0..count).map(|_| nf_malloc(kind, size)).collect();
    for object in &objects {
        assert!(!object.is_null());
        // SAFETY: an object of that size.
        unsafe { object.cast::<u8>().write_bytes(1, size) };
    }
    let free = |object: *mut c_void| {
        // SAFETY: each is freed once: those at odd places, then the others.
        unsafe { nf_free(object) };
    };
    objects.iter().skip(1).step_by(2).for_each(|object| free(*object));
    objects.iter().step_by(2).for_each(|object| free(*object));
}

#[test]
fn freed_memory_is_returned_immediately_with_few_mbind_calls() {
    // SAFETY: a string.
    let kind = unsafe { nf_kind_create(c"bind:0".as_ptr()) };
    let before = resident();
    // Small objects also leave jemalloc's metadata, and each object cached by threads holds a page.
    for (count, size, left) in [
        (4000, 64 << 10, 8 * MIB),
        (8000, 32 << 10, 8 * MIB),
        (100_000, 1000, 16 * MIB),
        (4000, 64 << 10, 16 * MIB),
        // Up to 64 MiB in objects with segments of their own are kept for a while.
        (60, 5 * MIB, 80 * MIB),
    ] {
        fill_and_free(kind, count, size);
        let more = resident().saturating_sub(before);
        assert!(more <= left, "{} MiB after {count} of {size}", more / MIB);
    }
    let mut figures = nf_stats_t::default();
    // SAFETY: room for them.
    assert_eq!(unsafe { nf_stats(kind, &raw mut figures) }, 0);
    assert_eq!(figures.allocated, 0);
    // One per 64 extents or 4 MiB, whichever is larger; the large objects have one each.
    assert!(figures.binds <= 60 + figures.set_aside / (4 * MIB as u64), "{figures:?}");
}
