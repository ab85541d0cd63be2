//! Caching of freed memory: objects with segments of their own for a while, small ones by the thousand; and that the
//! default kind behaves as other kinds do. Node 0 is on every machine.
#![expect(unsafe_code, reason = "a C interface is called")]

use std::ffi::{CString, c_void};
use std::sync::{Mutex, PoisonError};

use nearfar_alloc::ffi::*;

const MIB: usize = 1 << 20;

/// Held by a test that allocates large objects of the default kind, which all tests share: one would get the objects
/// that another frees.
static DEFAULT: Mutex<()> = Mutex::new(());

fn kind(text: &str) -> nf_kind_t {
    let written = CString::new(text).expect("no zero within");
    // SAFETY: a string.
    let kind = unsafe { nf_kind_create(written.as_ptr()) };
    assert_ne!(kind, NF_NONE, "{text}");
    kind
}

fn destroy(kind: nf_kind_t) {
    // SAFETY: tests destroy kinds that they do not use any more.
    assert_eq!(unsafe { nf_kind_destroy(kind) }, 0);
}

fn figures(kind: nf_kind_t) -> nf_stats_t {
    let mut figures = nf_stats_t::default();
    // SAFETY: room for them.
    assert_eq!(unsafe { nf_stats(kind, &raw mut figures) }, 0);
    figures
}

fn filled(kind: nf_kind_t, size: usize) -> *mut c_void {
    let memory = nf_malloc(kind, size);
    assert!(!memory.is_null());
    // SAFETY: an object of that size.
    unsafe { memory.cast::<u8>().write_bytes(7, size) };
    memory
}

fn free(memory: *mut c_void) {
    // SAFETY: tests free what they have allocated, once.
    unsafe { nf_free(memory) };
}

fn resident(memory: *const c_void, length: usize) -> u64 {
    let mut bytes = [0; 1024];
    // SAFETY: room for that many nodes.
    assert_eq!(unsafe { nf_residency(memory, length, bytes.as_mut_ptr(), bytes.len()) }, 0);
    bytes.iter().sum()
}

#[test]
fn a_freed_large_object_is_reused_with_its_resident_pages() {
    let _default = DEFAULT.lock().unwrap_or_else(PoisonError::into_inner);
    for kind in [kind("bind:0"), kind("interleave:0"), kind("default"), NF_DEFAULT] {
        let first = filled(kind, 5 * MIB);
        free(first);
        let again = nf_malloc(kind, 5 * MIB - 100);
        assert_eq!(again, first);
        assert_eq!(resident(again, 5 * MIB), 5 * MIB as u64);
        free(again);
        let zeroed = nf_calloc(kind, 5, MIB);
        assert_eq!(zeroed, first);
        // SAFETY: an object of that size.
        let bytes = unsafe { std::slice::from_raw_parts(zeroed.cast::<u8>(), 5 * MIB) };
        assert!(bytes.iter().all(|byte| *byte == 0));
        free(zeroed);
        // A kept object that is far too large is not reused for a smaller one.
        let smaller = nf_malloc(kind, 4 * MIB);
        let other = nf_malloc(kind, 16 * MIB);
        assert!(smaller == first && other != first);
        free(smaller);
        free(other);
    }
}

#[test]
fn kept_memory_is_bounded() {
    let kind = kind("bind:0");
    let all: Vec<_> = (0..30).map(|_| filled(kind, 5 * MIB)).collect();
    all.into_iter().for_each(free);
    let kept = figures(kind);
    assert_eq!(kept.allocated, 0);
    assert!(kept.kept > 50 << 20 && kept.kept <= 64 << 20, "{kept:?}");
    assert_eq!(kept.set_aside, kept.kept);
    // An object above the limit is never kept.
    let large = filled(kind, 40 * MIB);
    let before = figures(kind).kept;
    free(large);
    assert_eq!(figures(kind).kept, before);
    destroy(kind);
}

#[test]
fn kept_memory_is_released_before_a_limit_fails_an_allocation() {
    let kind = kind("bind:0;limit=24m");
    free(filled(kind, 16 * MIB));
    assert_eq!(figures(kind).kept, 16 << 20);
    let larger = nf_malloc(kind, 22 * MIB);
    assert!(!larger.is_null(), "kept memory counts, and goes first");
    assert!(nf_malloc(kind, 16 * MIB).is_null());
    free(larger);
    free(filled(kind, 16 * MIB));
    let small: Vec<_> = (0..160).map(|_| nf_malloc(kind, 100_000)).collect();
    assert!(small.iter().all(|memory| !memory.is_null()));
    small.into_iter().for_each(free);
    destroy(kind);
}

#[test]
fn kept_memory_decays_while_the_kind_is_used() {
    let kind = kind("bind:0");
    let object = filled(kind, 8 * MIB);
    free(object);
    let kept_large = || figures(kind).kept >= 8 << 20;
    assert!(kept_large());
    // Two seconds; a busy machine may take longer.
    for _ in 0..600 {
        let small: Vec<_> = (0..200).map(|_| nf_malloc(kind, 64)).collect();
        small.into_iter().for_each(free);
        if !kept_large() {
            break;
        }
        // SAFETY: no descriptors.
        unsafe { libc::poll(std::ptr::null_mut(), 0, 50) };
    }
    assert!(!kept_large());
    assert_eq!(resident(object, 8 * MIB), 0);
    destroy(kind);
}

#[test]
fn a_kind_can_be_destroyed_with_kept_memory() {
    for _ in 0..3 {
        let kind = kind("bind:0");
        free(filled(kind, 8 * MIB));
        destroy(kind);
    }
    let kind = kind("bind:0");
    assert_eq!((figures(kind).kept, figures(kind).set_aside), (0, 0));
    destroy(kind);
}

#[test]
fn the_old_range_of_a_moved_object_is_not_kept() {
    let kind = kind("bind:0");
    let (small, large) = (filled(kind, 5 * MIB), 200 * MIB);
    // SAFETY: `small` is not used any more.
    let moved = unsafe { nf_realloc(kind, small, large) };
    assert!(!moved.is_null() && moved != small);
    // Its old place is memory without a policy now, which must not be kept.
    assert_eq!(figures(kind).kept, 0);
    free(moved);
    destroy(kind);
}

#[test]
fn a_thousand_small_objects_that_are_freed_together_are_all_kept() {
    for (size, count) in [(16, 1000), (64, 1000), (1024, 900)] {
        let kind = kind("bind:0");
        let all: Vec<_> = (0..count).map(|_| nf_malloc(kind, size)).collect();
        all.into_iter().for_each(free);
        let kept = figures(kind).kept;
        assert!(kept >= (size * count) as u64, "{kept} of {size} x {count}");
        destroy(kind);
    }
}

#[test]
fn default_memory_belongs_to_no_kind() {
    let _default = DEFAULT.lock().unwrap_or_else(PoisonError::into_inner);
    let far = kind("bind:0");
    for size in [1, 100, 5000, 100_000, MIB, 5 * MIB] {
        let memory = filled(NF_DEFAULT, size);
        assert_eq!(nf_kind_of(memory), NF_DEFAULT, "{size}");
        // SAFETY: each is used under its last address.
        let moved = unsafe { nf_realloc(far, memory, size) };
        assert_eq!(nf_kind_of(moved), far);
        // SAFETY: as above.
        let back = unsafe { nf_realloc(NF_DEFAULT, moved, 2 * size) };
        assert_eq!(nf_kind_of(back), NF_DEFAULT);
        // SAFETY: at least `size` bytes were written.
        let bytes = unsafe { std::slice::from_raw_parts(back.cast::<u8>(), size) };
        assert!(bytes.iter().all(|byte| *byte == 7), "{size}");
        free(back);
    }
    let mut none = nf_stats_t::default();
    // SAFETY: room for them. The number used internally is no handle.
    assert_eq!(unsafe { nf_stats(NF_DEFAULT, &raw mut none) }, -1);
    // SAFETY: as above.
    assert_eq!(unsafe { nf_stats(1024, &raw mut none) }, -1);
    // SAFETY: there is no such kind.
    assert_eq!(unsafe { nf_kind_destroy(1024) }, -1);
    destroy(far);
}
