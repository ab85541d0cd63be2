//! A checked build reports wrong frees, in one line each, and goes on; or aborts, where that is configured.
//!
//! `cargo test -p nearfar-alloc --features checked`. Each case runs in a process of its own, because its messages are
//! on stderr.
#![expect(unsafe_code, reason = "a C interface is called wrongly")]
#![expect(clippy::unwrap_used, reason = "a test that can't run its tools should stop")]

use std::ffi::{CString, c_void};
use std::process::{Command, Output};
use std::ptr::null_mut;

use nearfar_alloc::{ffi::*, front};

fn kind(text: &str) -> nf_kind_t {
    let written = CString::new(text).expect("no zero within");
    // SAFETY: a string.
    let kind = unsafe { nf_kind_create(written.as_ptr()) };
    assert_ne!(kind, NF_NONE, "{text}");
    kind
}

fn free(memory: *mut c_void) {
    // SAFETY: a checked build takes any pointer.
    unsafe { nf_free(memory) };
}

fn realloc(kind: nf_kind_t, memory: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: as above.
    unsafe { nf_realloc(kind, memory, size) }
}

fn usable(memory: *const c_void) -> usize {
    // SAFETY: as above.
    unsafe { nf_usable_size(memory) }
}

fn destroy(kind: nf_kind_t) {
    // SAFETY: as above.
    assert_eq!(unsafe { nf_kind_destroy(kind) }, 0);
}

fn set_errno(error: i32) {
    // SAFETY: no preconditions.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: this thread's own.
    unsafe { at.write(error) };
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// A small object, an arena's objects, and one with segments of its own.
const SIZES: [usize; 4] = [24, 5000, 100_000, 5 << 20];

fn kinds() -> [nf_kind_t; 2] {
    [kind("bind:0"), NF_DEFAULT]
}

/// Allocates more objects and checks that none shares memory with another.
fn all_apart(objects: &[*mut c_void]) {
    let mut starts: Vec<_> = objects.iter().map(|object| *object as usize).collect();
    starts.sort_unstable();
    starts.dedup();
    assert_eq!(starts.len(), objects.len());
}

fn twice() {
    for kind in kinds() {
        for size in SIZES {
            let memory = nf_malloc(kind, size);
            free(memory);
            set_errno(7);
            free(memory);
            assert_eq!(errno(), 7, "as free leaves it");
            let next: Vec<_> = (0..100).map(|_| nf_malloc(kind, size)).collect();
            all_apart(&next);
            next.into_iter().for_each(free);
        }
    }
}

fn twice_by_way_of_the_depot_and_the_arena() {
    let kind = kind("bind:0");
    let objects: Vec<_> = (0..3000).map(|_| nf_malloc(kind, 1000)).collect();
    objects.iter().for_each(|object| free(*object));
    [0, 1500, 2999].into_iter().for_each(|at| free(objects[at]));
    let next: Vec<_> = (0..3000).map(|_| nf_malloc(kind, 1000)).collect();
    all_apart(&next);
}

fn twice_by_two_threads() {
    let kind = kind("bind:0");
    let memory = nf_malloc(kind, 100) as usize;
    let free_it = move || free(memory as *mut c_void);
    let threads = [std::thread::spawn(free_it), std::thread::spawn(free_it)];
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

fn within() {
    for kind in kinds() {
        for size in SIZES {
            let memory = nf_malloc(kind, size);
            for at in [1, 8, size - 1] {
                free(memory.wrapping_byte_add(at));
            }
            assert!(usable(memory) >= size, "it is there still");
            free(memory);
        }
    }
}

fn foreign() {
    let local = 5_u64;
    free((&raw const local).cast_mut().cast());
    // SAFETY: of the C library.
    let theirs = unsafe { libc::malloc(100) };
    free(theirs);
    assert!(realloc(NF_DEFAULT, theirs, 200).is_null());
    assert_eq!(errno(), libc::EINVAL);
    assert_eq!(usable(theirs), 0);
    // SAFETY: as above; it was left alone.
    unsafe { libc::free(theirs) };
    free(16 as *mut c_void);
    free(usize::MAX as *mut c_void);
    let kind = kind("bind:0");
    let memory = nf_malloc(kind, 100);
    // In the range of kinds, where nothing is allocated.
    free(memory.wrapping_byte_add(1 << 32));
}

fn resized() {
    for kind in kinds() {
        for size in SIZES {
            let memory = nf_malloc(kind, size);
            let moved = realloc(kind, memory, 3 * size);
            if moved == memory {
                free(memory);
            } else {
                assert!(realloc(kind, memory, 10).is_null(), "it moved");
                assert_eq!(errno(), libc::EINVAL);
                free(moved);
            }
            assert!(realloc(kind, moved, 10).is_null());
            assert_eq!(usable(moved), 0);
        }
    }
}

fn ended() {
    let kind = kind("bind:0");
    let objects = SIZES.map(|size| nf_malloc(kind, size));
    destroy(kind);
    objects.into_iter().for_each(free);
    assert!(nf_malloc(kind, 10).is_null());
    assert_eq!(errno(), libc::EINVAL);
    // Another kind may have its number now.
    let next = self::kind("bind:0");
    assert!(nf_malloc(kind, 10).is_null());
    assert!(nf_calloc(kind, 1, 10).is_null());
    assert!(nf_aligned_alloc(kind, 64, 10).is_null());
    let memory = nf_malloc(next, 10);
    assert!(realloc(kind, memory, 20).is_null());
    free(memory);
}

fn preload() {
    let memory = front::malloc(100);
    // SAFETY: a checked build takes any pointer, here and below.
    unsafe { front::free(memory) };
    // SAFETY: as above.
    unsafe { front::free(memory) };
    // SAFETY: as above.
    assert!(unsafe { front::realloc(memory, 10) }.is_null());
    let memory = front::calloc(10, 10);
    // SAFETY: as above.
    unsafe { front::free(memory.wrapping_byte_add(16)) };
    // SAFETY: as above.
    unsafe { front::free(null_mut()) };
    let memory = front::aligned_alloc(4096, 10);
    // SAFETY: as above.
    let memory = unsafe { front::realloc(memory, 10_000) };
    // SAFETY: as above.
    unsafe { front::free(memory) };
}

fn right() {
    for kind in kinds() {
        for size in SIZES {
            let memory = nf_calloc(kind, 1, size);
            let moved = realloc(kind, memory, size + 100);
            let other =
                realloc(if kind == NF_DEFAULT { kind } else { NF_DEFAULT }, moved, 2 * size);
            assert!(usable(other) >= 2 * size);
            assert!(realloc(kind, other, usize::MAX).is_null(), "too much: it is as it was");
            free(other);
            free(nf_aligned_alloc(kind, 1 << 22, size));
        }
    }
    // SAFETY: a string.
    let placed = unsafe { nf_malloc_placed(c"bind:0".as_ptr(), 100) };
    free(placed);
    free(null_mut());
    assert_eq!(usable(null_mut()), 0);
    assert!(nf_malloc(NF_NONE, 10).is_null(), "a failure that the program has seen");
}

const CASES: [(&str, fn()); 9] = [
    ("twice", twice),
    ("depot", twice_by_way_of_the_depot_and_the_arena),
    ("threads", twice_by_two_threads),
    ("within", within),
    ("foreign", foreign),
    ("resized", resized),
    ("ended", ended),
    ("preload", preload),
    ("right", right),
];

/// Not a test of its own: the other tests start it.
#[test]
fn runs_one_case_in_a_separate_process() {
    let wanted = std::env::var("NEARFAR_CASE").unwrap_or_default();
    CASES.iter().filter(|(name, _)| *name == wanted).for_each(|(_, case)| case());
}

fn run(case: &str, conf: &str) -> Output {
    let mut own = Command::new(std::env::current_exe().unwrap());
    own.args(["--exact", "runs_one_case_in_a_separate_process", "--test-threads=1", "--nocapture"]);
    own.env("NEARFAR_CASE", case).env("NEARFAR_CONF", conf).output().unwrap()
}

/// The output of a case that goes on, line by line.
fn findings(case: &str) -> Vec<String> {
    let output = run(case, "wrong=say");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{case}: {}: {text}", output.status);
    text.lines().map(str::to_string).collect()
}

/// Checks that a case prints `count` lines, each of which has one of these words.
fn says(case: &str, count: usize, words: &[&str]) {
    let lines = findings(case);
    assert_eq!(lines.len(), count, "{case}: {lines:#?}");
    for line in &lines {
        assert!(line.starts_with("nearfar: "), "{case}: {line}");
        assert!(words.iter().any(|word| line.contains(word)), "{case}: {line}");
    }
    for word in words {
        assert!(lines.iter().any(|line| line.contains(word)), "{case}: {word}: {lines:#?}");
    }
}

#[test]
fn valid_use_prints_no_report() {
    says("right", 0, &[]);
}

#[test]
fn a_double_free_is_reported_and_ignored() {
    says("twice", 8, &["it was freed before"]);
    says("depot", 3, &["it was freed before"]);
    says("threads", 1, &["free of 0x"]);
}

#[test]
fn an_interior_address_is_reported_with_its_object() {
    says(
        "within",
        24,
        &["that is byte 1 of the object of ", "byte 8 of", "byte 99999 of", "object of"],
    );
}

#[test]
fn freeing_foreign_memory_is_reported_and_ignored() {
    says(
        "foreign",
        7,
        &["free of 0x10: no object has begun there", "realloc of", "usable_size of", "free of"],
    );
}

#[test]
fn a_block_moved_by_realloc_counts_as_freed() {
    let lines = findings("resized");
    assert!(lines.len() >= 3 * 8 - 8, "{lines:#?}");
    assert!(lines.iter().all(|line| line.contains("of 0x") && line.starts_with("nearfar: ")));
}

#[test]
fn a_destroyed_kind_rejects_allocation_and_free() {
    says("ended", 4 + 5, &["its kind has ended", "there is no such kind, or it has ended"]);
}

#[test]
fn plain_memory_of_the_preload_library_is_checked_too() {
    says("preload", 3, &["freed before", "byte 16 of the object of 112 bytes"]);
}

#[test]
fn an_invalid_free_aborts_if_so_configured() {
    use std::os::unix::process::ExitStatusExt as _;
    for case in ["twice", "within", "foreign", "ended"] {
        let Output { status, stderr, .. } = run(case, "heap=near wrong=abort");
        let text = String::from_utf8(stderr).unwrap();
        assert_eq!(status.signal(), Some(libc::SIGABRT), "{case}: {text}");
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains("wrong=abort"), "{text}");
    }
    assert!(run("right", "wrong=abort").status.success());
}
