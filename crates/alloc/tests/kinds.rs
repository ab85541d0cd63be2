//! Memory kinds through the C interface: allocations have the requested kind and size, and are freed.
//!
//! Node 0 is on every machine, so kinds are bound to it; the lab shows that far kinds are far. Random sequences of
//! calls: `model`.
#![expect(unsafe_code, reason = "a C interface is called")]

use std::ffi::{CStr, CString, c_void};
use std::ptr::null_mut;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use nearfar_alloc::ffi::*;

mod child;
use child::holds_in_a_child;

fn kind(text: &str) -> nf_kind_t {
    let written = CString::new(text).expect("no zero within");
    // SAFETY: a string.
    let kind = unsafe { nf_kind_create(written.as_ptr()) };
    assert_ne!(kind, NF_NONE, "{text}: {}", error());
    kind
}

fn error() -> String {
    // SAFETY: a string that stays until the next error.
    unsafe { CStr::from_ptr(nf_error()) }.to_string_lossy().into()
}

fn free(memory: *mut c_void) {
    // SAFETY: tests free what they have allocated, once.
    unsafe { nf_free(memory) };
}

fn usable(memory: *mut c_void) -> usize {
    // SAFETY: tests pass objects that they have.
    unsafe { nf_usable_size(memory) }
}

fn realloc(kind: nf_kind_t, memory: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: tests do not use objects that they have passed on.
    unsafe { nf_realloc(kind, memory, size) }
}

fn figures(kind: nf_kind_t) -> nf_stats_t {
    let mut figures = nf_stats_t::default();
    // SAFETY: room for them.
    assert_eq!(unsafe { nf_stats(kind, &raw mut figures) }, 0);
    figures
}

fn destroy(kind: nf_kind_t) {
    // SAFETY: tests destroy kinds that they do not use any more.
    assert_eq!(unsafe { nf_kind_destroy(kind) }, 0);
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Has other threads stop at its end, also after a failed assertion.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writes to all usable bytes.
fn fill(memory: *mut c_void, length: usize, value: u8) {
    // SAFETY: tests fill what they have, as long as it is.
    unsafe { memory.cast::<u8>().write_bytes(value, length) };
}

fn is_filled(memory: *mut c_void, length: usize, value: u8) -> bool {
    // SAFETY: tests read objects that they have filled.
    unsafe { std::slice::from_raw_parts(memory.cast::<u8>(), length) }
        .iter()
        .all(|byte| *byte == value)
}

const SIZES: [usize; 16] = [
    0,
    1,
    8,
    9,
    100,
    1024,
    1025,
    4096,
    5000,
    14_336,
    20_000,
    32_768,
    32_769,
    1 << 20,
    4 << 20,
    70 << 20,
];

#[test]
fn allocations_belong_to_their_kind_and_do_not_overlap() {
    let kinds = [kind("bind:0"), kind("near"), kind("interleave:0"), kind("default"), NF_DEFAULT];
    let mut all = Vec::new();
    for round in 0..3_u8 {
        for (kind, number) in kinds.iter().zip(0_u8..) {
            for (size, at) in SIZES.iter().zip(0_u8..) {
                let memory = nf_malloc(*kind, *size);
                assert!(!memory.is_null(), "{size}");
                assert!(usable(memory) >= *size, "{size}: {}", usable(memory));
                assert_eq!(nf_kind_of(memory), *kind, "{size}");
                let value = round ^ number << 2 ^ at << 4;
                fill(memory, usable(memory).min(100_000), value);
                all.push((memory, usable(memory).min(100_000), value));
            }
        }
    }
    for (memory, length, value) in all {
        assert!(is_filled(memory, length, value));
        free(memory);
    }
    kinds[..4].iter().copied().for_each(destroy);
}

#[test]
fn alignment_is_exact_up_to_a_gibibyte() {
    let kind = kind("bind:0");
    for shift in 0..=30 {
        let alignment = 1_usize << shift;
        for size in [1, 100, alignment, 3 * alignment / 2, 5000] {
            let memory: Vec<_> = (0..3).map(|_| nf_aligned_alloc(kind, alignment, size)).collect();
            for one in memory {
                assert!(!one.is_null(), "{size} at {alignment}");
                assert_eq!(one as usize % alignment, 0, "{size} at {alignment}");
                assert!(usable(one) >= size);
                fill(one, size.min(4096), 1);
                free(one);
            }
        }
    }
    assert!(nf_aligned_alloc(kind, 3, 100).is_null());
    assert_eq!(errno(), libc::EINVAL);
    assert!(nf_aligned_alloc(kind, 0, 100).is_null());
    destroy(kind);
}

#[test]
fn zeroed_memory_is_zeroes_also_when_it_was_used_before() {
    let kind = kind("bind:0");
    for size in SIZES {
        for _ in 0..3 {
            let memory = nf_calloc(kind, 1, size);
            assert!(is_filled(memory, size, 0), "{size}");
            fill(memory, size, 0xff);
            free(memory);
        }
    }
    assert!(nf_calloc(kind, usize::MAX / 2, 3).is_null());
    assert_eq!(errno(), libc::ENOMEM);
    destroy(kind);
}

#[test]
fn content_stays_when_memory_grows_shrinks_and_changes_its_kind() {
    let kinds = [kind("bind:0"), kind("near"), NF_DEFAULT];
    for from in SIZES {
        for to in SIZES {
            for (old, new) in [(0, 0), (0, 1), (1, 2), (2, 0)] {
                let memory = nf_malloc(kinds[old], from);
                let length = from.min(to).min(100_000);
                fill(memory, length, 7);
                let moved = realloc(kinds[new], memory, to);
                assert_eq!(nf_kind_of(moved), kinds[new], "{from} to {to}");
                assert!(usable(moved) >= to);
                assert!(is_filled(moved, length, 7), "{from} to {to}");
                fill(moved, to.min(100_000), 8);
                free(moved);
            }
        }
    }
    let memory = realloc(kinds[0], null_mut(), 10);
    assert_eq!(nf_kind_of(memory), kinds[0]);
    free(memory);
    destroy(kinds[0]);
    destroy(kinds[1]);
}

#[test]
fn invalid_requests_fail_with_errno_and_a_reason() {
    for (text, code, named) in [
        ("nowhere", libc::EINVAL, "nowhere"),
        ("bind:1000", libc::ENODEV, "1000"),
        ("weighted:0=0", libc::EINVAL, "0=0"),
    ] {
        let written = CString::new(text).unwrap();
        // SAFETY: a string.
        assert_eq!(unsafe { nf_kind_create(written.as_ptr()) }, NF_NONE);
        assert_eq!(errno(), code, "{text}");
        assert!(error().contains(named), "{text}: {}", error());
    }
    let kind = kind("bind:0");
    for size in [usize::MAX, usize::MAX - 4096, 1 << 62] {
        assert!(nf_malloc(kind, size).is_null(), "{size}");
        assert_eq!(errno(), libc::ENOMEM, "{size}");
        assert!(nf_malloc(NF_DEFAULT, size).is_null());
        assert!(nf_aligned_alloc(kind, 64, size).is_null());
    }
    let memory = nf_malloc(kind, 100);
    assert!(realloc(kind, memory, usize::MAX).is_null());
    free(memory);
    assert!(nf_malloc(NF_NONE, 100).is_null());
    assert_eq!(errno(), libc::EINVAL);
    destroy(kind);
    assert!(nf_malloc(kind, 100).is_null());
    assert_eq!(errno(), libc::EINVAL);
    // SAFETY: nothing is allocated from it.
    assert_eq!(unsafe { nf_kind_destroy(kind) }, -1);
    free(null_mut());
    assert_eq!(usable(null_mut()), 0);
}

#[test]
fn allocations_beyond_a_limit_fail_or_go_to_the_spill() {
    let strict = kind("bind:0;limit=32m");
    let mut all = Vec::new();
    loop {
        let memory = nf_malloc(strict, 100_000);
        if memory.is_null() {
            break;
        }
        all.push(memory);
        assert!(all.len() * 100_000 <= 32 << 20, "{}", all.len());
    }
    assert_eq!(errno(), libc::ENOMEM);
    assert!(all.len() * 100_000 > 20 << 20, "{}", all.len());
    assert!(nf_malloc(strict, 8 << 20).is_null());
    all.drain(..).for_each(free);
    let memory = nf_malloc(strict, 100_000);
    assert!(!memory.is_null(), "what was given back may be had again");
    free(memory);
    destroy(strict);

    let spilling = kind("bind:0;limit=32m;spill=interleave:0");
    let memory: Vec<_> = (0..100).map(|_| nf_malloc(spilling, 1 << 20)).collect();
    let stayed = memory.iter().filter(|memory| nf_kind_of(**memory) == spilling).count();
    assert!((10..=32).contains(&stayed), "{stayed}");
    assert!(memory.iter().all(|memory| !memory.is_null() && nf_kind_of(*memory) != NF_DEFAULT));
    memory.into_iter().for_each(free);
    destroy(spilling);
}

#[test]
fn statistics_report_memory_in_use() {
    let kind = kind("bind:0;limit=64m");
    let figures = || figures(kind);
    assert_eq!(figures(), nf_stats_t { limit: 64 << 20, ..nf_stats_t::default() });
    let memory: Vec<_> = [1000, 50_000, 5 << 20].map(|size| nf_malloc(kind, size)).into();
    let used = figures();
    let most = 1024 + 57_344 + (5 << 20);
    assert!((1000 + 50_000 + (5 << 20)..=most).contains(&used.allocated), "{used:?}");
    assert!(used.kept > 0 && used.set_aside >= used.allocated + used.kept, "{used:?}");
    assert_eq!(used.binds, 2, "one for its arenas' segment, one for the large object");
    memory.into_iter().for_each(free);
    assert_eq!(figures().allocated, 0);
    assert!(nf_malloc(kind, 65 << 20).is_null());
    assert_eq!(figures().failed, 1);
    let mut none = nf_stats_t::default();
    // SAFETY: as above.
    assert_eq!(unsafe { nf_stats(NF_NONE, &raw mut none) }, -1);
    destroy(kind);
}

#[test]
fn threads_can_free_memory_allocated_by_other_threads() {
    let kind = kind("bind:0");
    for _ in 0..20 {
        let allocate = move || -> Vec<usize> {
            (0..4000).map(|at| nf_malloc(kind, at % 3000 + 1) as usize).collect()
        };
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(allocate)).collect();
        let all: Vec<_> = threads.into_iter().map(|one| one.join().unwrap()).collect();
        let mut sorted: Vec<_> = all.iter().flatten().copied().collect();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), 4 * 4000);
        let free_all = |all: Vec<usize>| {
            std::thread::spawn(move || all.into_iter().for_each(|one| free(one as *mut c_void)))
        };
        all.into_iter().map(free_all).for_each(|thread| thread.join().unwrap());
    }
    destroy(kind);
}

/// A scope ends when the functions of its threads have returned, which is before the threads have ended.
#[test]
fn a_kind_may_be_destroyed_while_threads_that_used_it_end() {
    for _ in 0..1000 {
        let kind = kind("bind:0");
        let use_it = || {
            let objects: Vec<_> = (0..200).map(|at| nf_malloc(kind, at * 100 + 1)).collect();
            for object in objects {
                assert_eq!(nf_kind_of(object), kind);
                free(object);
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(use_it))));
        destroy(kind);
    }
}

#[test]
fn kinds_may_be_destroyed_while_another_thread_asks_for_all_of_them() {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = Ends(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let mut text = [0_u8; 4096];
                let (at, room) = (text.as_mut_ptr().cast(), text.len());
                // SAFETY: as much room as is said.
                let length = unsafe { nf_stats_text(NF_NONE, NF_JSON, at, room) };
                let text = String::from_utf8_lossy(&text[..length.min(room - 1)]);
                assert!(!text.contains("\"place\":\"\""), "a kind that has ended: {text}");
            }
        });
        for _ in 0..3000 {
            let kind = kind("bind:0");
            for size in [10, 5000, 5 << 20] {
                free(nf_malloc(kind, size));
            }
            destroy(kind);
        }
    });
}

#[test]
fn an_exiting_thread_flushes_only_the_size_classes_it_used() {
    let kind = kind("bind:0");
    let kept = || figures(kind).kept;
    let objects: Vec<_> = (0..100).map(|_| nf_malloc(kind, 5000)).collect();
    objects.into_iter().for_each(free);
    let use_another_size = || std::thread::spawn(move || free(nf_malloc(kind, 100)));
    use_another_size().join().unwrap();
    let before = kept();
    for _ in 0..200 {
        use_another_size().join().unwrap();
    }
    assert_eq!(kept(), before);
    destroy(kind);
}

#[test]
fn thousands_of_kinds_come_and_go() {
    for _ in 0..5 {
        let kinds: Vec<_> = (0..600).map(|_| kind("bind:0")).collect();
        for kind in &kinds {
            for size in [10, 5000, 100_000, 5 << 20] {
                let memory = nf_malloc(*kind, size);
                assert_eq!(nf_kind_of(memory), *kind);
                fill(memory, 10, 1);
            }
        }
        kinds.into_iter().for_each(destroy);
    }
}

#[test]
fn threads_of_a_child_share_no_cache_with_each_other() {
    let kind = kind("bind:0");
    let (used, end) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        // In the child, the stack of this thread is free for another, whose thread pointer is the same then.
        scope.spawn(|| {
            free(nf_malloc(kind, 48));
            used.wait();
            end.wait();
        });
        used.wait();
        let apart = holds_in_a_child(|| {
            let (freed, end) = (Barrier::new(2), Barrier::new(2));
            std::thread::scope(|scope| {
                let first = scope.spawn(|| {
                    let object = nf_malloc(kind, 48);
                    free(object);
                    freed.wait();
                    end.wait();
                    object as usize
                });
                freed.wait();
                let second = scope.spawn(|| nf_malloc(kind, 48) as usize).join().unwrap();
                end.wait();
                first.join().unwrap() != second
            })
        });
        end.wait();
        assert!(apart);
    });
    destroy(kind);
}

#[test]
fn a_forked_child_does_not_wait_for_readers_of_its_parent() {
    let kind = kind("bind:0");
    // Its pages are added up for a while, and a thread with nothing smaller has no cache.
    let large = nf_malloc(kind, 512 << 20);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = Ends(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // SAFETY: no room, so nothing is written.
                assert!(unsafe { nf_stats_text(NF_NONE, NF_JSON, null_mut(), 0) } > 0);
            }
        });
        for _ in 0..20 {
            std::thread::yield_now();
            // SAFETY: the child does not use it any more.
            assert!(holds_in_a_child(|| unsafe { nf_kind_destroy(kind) } == 0));
        }
    });
    free(large);
    destroy(kind);
}

#[test]
fn a_new_thread_does_not_inherit_the_error_of_an_exited_thread() {
    let failed = || {
        // SAFETY: a string.
        assert_eq!(unsafe { nf_kind_create(c"nowhere".as_ptr()) }, NF_NONE);
        error()
    };
    assert!(std::thread::spawn(failed).join().unwrap().contains("nowhere"));
    assert_eq!(std::thread::spawn(error).join().unwrap(), "");
}

#[test]
fn a_child_of_a_threaded_program_can_go_on() {
    let kind = kind("bind:0");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = Ends(&stop);
        for _ in 0..3 {
            scope.spawn(|| {
                let mut kept = Vec::new();
                for size in (0..100_000).cycle().step_by(37) {
                    kept.push(nf_malloc(kind, size % 40_000) as usize);
                    if kept.len() > 500 {
                        kept.drain(..250).for_each(|one| free(one as *mut c_void));
                    }
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
                kept.drain(..).for_each(|one| free(one as *mut c_void));
            });
        }
        for _ in 0..100 {
            assert!(holds_in_a_child(|| {
                let all: Vec<_> = (0..2000).map(|at| nf_malloc(kind, at * 17 % 50_000)).collect();
                all.into_iter().for_each(free);
                true
            }));
        }
    });
    destroy(kind);
}

#[test]
fn large_memory_grows_although_the_kernel_has_split_its_mapping() {
    let kind = kind("bind:0");
    let mut memory = nf_malloc(kind, 8 << 20);
    fill(memory, 8 << 20, 7);
    // SAFETY: the content stays as it is.
    assert_eq!(unsafe { libc::madvise(memory, 1 << 20, libc::MADV_DONTFORK) }, 0);
    // Resized in place and moved, repeatedly.
    for mib in [40, 100, 120, 130, 200, 600, 90, 300] {
        memory = realloc(kind, memory, mib << 20);
        assert!(!memory.is_null() && nf_kind_of(memory) == kind);
        assert!(is_filled(memory, 8 << 20, 7), "{mib}");
        let end = memory.wrapping_byte_add((mib << 20) - 4096);
        fill(end, 4096, 8);
    }
    free(memory);
    destroy(kind);
}
