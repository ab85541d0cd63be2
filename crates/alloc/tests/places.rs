//! Placement queries, and placement of memory outside of the allocator: the rest of the C interface. On any machine, as
//! node 0 is everywhere; tests with two nodes are in the lab.
#![expect(unsafe_code, reason = "a C interface is called")]

use std::ffi::{CStr, CString, c_void};
use std::ptr::null_mut;

use nearfar_alloc::ffi::*;

const MIB: usize = 1 << 20;

fn kind(text: &str) -> nf_kind_t {
    let written = CString::new(text).expect("no zero within");
    // SAFETY: a string.
    let kind = unsafe { nf_kind_create(written.as_ptr()) };
    assert_ne!(kind, NF_NONE, "{text}");
    kind
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn fill(memory: *mut c_void, length: usize) {
    // SAFETY: tests fill objects that they have, within their length.
    unsafe { memory.cast::<u8>().write_bytes(1, length) };
}

fn resident(memory: *const c_void, length: usize) -> u64 {
    let mut bytes = [0; 1024];
    // SAFETY: room for that many nodes.
    assert_eq!(unsafe { nf_residency(memory, length, bytes.as_mut_ptr(), bytes.len()) }, 0);
    bytes.iter().sum()
}

fn placed(place: &str, size: usize) -> *mut c_void {
    let place = CString::new(place).expect("no zero within");
    // SAFETY: a string.
    unsafe { nf_malloc_placed(place.as_ptr(), size) }
}

fn map(kind: nf_kind_t, length: usize, flags: i32) -> *mut c_void {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | flags);
    // SAFETY: a new mapping at an address chosen by the kernel.
    unsafe { nf_mmap(kind, null_mut(), length, protection, flags, -1, 0) }
}

fn unmap(memory: *mut c_void, length: usize) {
    // SAFETY: tests unmap their own mappings.
    assert_eq!(unsafe { libc::munmap(memory, length) }, 0);
}

fn policy_of(memory: *mut c_void) -> (i32, u64) {
    let (mut mode, mut mask) = (0_i32, [0_u64; 16]);
    const MPOL_F_ADDR: usize = 2;
    // SAFETY: room for the mode and 1024 nodes.
    let asked = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut mode,
            mask.as_mut_ptr(),
            1024_usize,
            memory,
            MPOL_F_ADDR,
        )
    };
    assert_eq!(asked, 0);
    (mode, mask[0])
}

fn stats_text(kind: nf_kind_t, format: i32) -> String {
    let mut text: Vec<u8> = Vec::new();
    loop {
        // SAFETY: as much room as the length passed.
        let length = unsafe { nf_stats_text(kind, format, text.as_mut_ptr().cast(), text.len()) };
        assert!(length > 0, "{}", errno());
        if length < text.len() {
            break;
        }
        // Other tests make kinds meanwhile.
        text.resize(length + 100, 0);
    }
    CStr::from_bytes_until_nul(&text).expect("ended by a zero").to_string_lossy().into()
}

#[test]
fn a_kinds_mapping_gets_its_policy_before_pages_are_populated() {
    const MPOL_BIND: i32 = 2;
    let bound = kind("bind:0");
    for flags in [0, libc::MAP_POPULATE] {
        let memory = map(bound, 4 * MIB, libc::MAP_ANONYMOUS | flags);
        assert_ne!(memory, libc::MAP_FAILED);
        assert_eq!(policy_of(memory), (MPOL_BIND, 1));
        let there = resident(memory, 4 * MIB);
        assert_eq!(there, if flags == 0 { 0 } else { 4 << 20 });
        // SAFETY: a pointer that is only compared.
        assert_eq!(nf_kind_of(memory), NF_DEFAULT);
        unmap(memory, 4 * MIB);
    }
    // Plain mappings are the same as mmap's.
    let plain = map(NF_DEFAULT, MIB, libc::MAP_ANONYMOUS);
    assert_eq!(policy_of(plain).0, 0);
    assert_eq!(nf_bind(bound, plain, MIB), 0);
    assert_eq!(policy_of(plain), (MPOL_BIND, 1));
    unmap(plain, MIB);
}

#[test]
fn failed_map_and_bind_calls_set_errno() {
    let bound = kind("bind:0");
    assert_eq!((map(bound, 0, libc::MAP_ANONYMOUS), errno()), (libc::MAP_FAILED, libc::EINVAL));
    // No file has this number.
    assert_eq!((map(bound, MIB, 0), errno()), (libc::MAP_FAILED, libc::EBADF));
    let gone = map(bound, MIB, libc::MAP_ANONYMOUS);
    unmap(gone, MIB);
    assert_eq!((nf_bind(bound, gone, MIB), errno()), (-1, libc::EFAULT));
    assert_eq!((nf_bind(bound, gone.wrapping_byte_add(1), MIB), errno()), (-1, libc::EINVAL));
    assert_eq!((nf_bind(NF_NONE, gone, MIB), errno()), (-1, libc::EINVAL));
    assert_eq!((nf_bind(bound, gone, usize::MAX), errno()), (-1, libc::ENOMEM));
    assert_eq!((map(NF_NONE, MIB, libc::MAP_ANONYMOUS), errno()), (libc::MAP_FAILED, libc::EINVAL));
}

#[test]
fn an_object_that_grows_into_the_spill_has_the_spills_policy() {
    let full = kind("bind:0;limit=32m;spill=interleave:0");
    let object = nf_malloc(full, 8 * MIB);
    fill(object, 8 * MIB);
    // SAFETY: an object that is not used any more.
    let grown = unsafe { nf_realloc(full, object, 100 * MIB) };
    assert!(!grown.is_null() && nf_kind_of(grown) != full);
    const MPOL_INTERLEAVE: i32 = 3;
    assert_eq!(policy_of(grown), (MPOL_INTERLEAVE, 1));
    // SAFETY: it has that many bytes.
    let content = unsafe { std::slice::from_raw_parts(grown.cast::<u8>(), 8 * MIB) };
    assert!(content.iter().all(|byte| *byte == 1));
    // SAFETY: ours.
    unsafe { nf_free(grown) };
}

#[test]
fn an_object_can_have_its_own_placement() {
    let object = placed("weighted:0=3", 3 * MIB);
    assert!(!object.is_null());
    fill(object, 3 * MIB);
    assert_eq!(resident(object, 3 * MIB), 3 << 20);
    assert_eq!(policy_of(object).1, 1);
    let apart = nf_kind_of(object);
    assert_ne!(apart, NF_DEFAULT);
    // It shrinks in place, does not grow, and moves to a kind.
    // SAFETY: allocated above, and objects passed on are not used.
    let object = unsafe { nf_realloc(apart, object, MIB) };
    assert!(!object.is_null());
    // SAFETY: as above.
    assert!(unsafe { nf_realloc(apart, object, 100 * MIB) }.is_null());
    assert_eq!(errno(), libc::EINVAL);
    assert_eq!((nf_malloc(apart, 1), errno()), (null_mut(), libc::EINVAL));
    // SAFETY: nothing uses it: the call is refused nevertheless, because other objects belong to it.
    assert_eq!((unsafe { nf_kind_destroy(apart) }, errno()), (-1, libc::EINVAL));
    // SAFETY: as above.
    let object = unsafe { nf_realloc(kind("bind:0"), object, 2 * MIB) };
    // SAFETY: an object of two MiB.
    assert_eq!(unsafe { *object.cast::<u8>() }, 1);
    // SAFETY: allocated above.
    unsafe { nf_free(object) };
    for (place, error) in [("nowhere", libc::EINVAL), ("bind:1000", libc::ENODEV)] {
        assert_eq!((placed(place, MIB), errno()), (null_mut(), error), "{place}");
    }
    assert_eq!((placed("bind:0", usize::MAX), errno()), (null_mut(), libc::ENOMEM));
    // SAFETY: NULL is refused.
    assert!(unsafe { nf_malloc_placed(std::ptr::null(), 1) }.is_null());
}

#[test]
fn nodes_are_reported_with_their_memory() {
    let mut node = nf_node_t::default();
    // SAFETY: room for one.
    assert_eq!(unsafe { nf_node(0, &raw mut node) }, 0);
    assert!(node.cpus > 0 && node.size > node.free && node.free > 0, "{node:?}");
    for absent in [1000, 1024, u32::MAX] {
        // SAFETY: room for one.
        let asked = unsafe { nf_node(absent, &raw mut node) };
        assert_eq!((asked, errno()), (-1, libc::ENODEV));
    }
    let mut nodes = [9; 4];
    // SAFETY: room for four.
    assert!(unsafe { nf_nodes(c"all".as_ptr(), nodes.as_mut_ptr(), 4) } >= 1);
    assert_eq!(nodes[0], 0);
    // SAFETY: nothing is written without room.
    assert_eq!(unsafe { nf_nodes(c"0".as_ptr(), null_mut(), 0) }, 1);
    for (set, error) in [(c"nowhere", libc::EINVAL), (c"1000", libc::ENODEV), (c"", libc::EINVAL)] {
        // SAFETY: as above.
        let asked = unsafe { nf_nodes(set.as_ptr(), null_mut(), 0) };
        assert_eq!((asked, errno()), (-1, error), "{set:?}");
        // SAFETY: a string that stays until the next error.
        assert!(!unsafe { CStr::from_ptr(nf_error()) }.is_empty());
    }
}

#[test]
fn statistics_are_available_as_text_and_as_json() {
    let bound = kind("bind:0;limit=64m");
    let object = nf_malloc(bound, 8 * MIB);
    fill(object, 8 * MIB);
    let text = stats_text(bound, NF_TEXT);
    assert!(text.starts_with("bind:0;limit=64m: allocated 8 MiB"), "{text}");
    assert!(text.contains("node 0: 8 MiB"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&stats_text(bound, NF_JSON)).unwrap();
    assert_eq!(json["schema"], "nearfar.alloc/1");
    let about = &json["kinds"][0];
    assert_eq!(about["place"], "bind:0;limit=64m");
    assert_eq!((&about["allocated"], &about["limit"]), (&(8 * MIB).into(), &(64 * MIB).into()));
    assert_eq!(about["resident"]["0"], 8 * MIB);
    assert_eq!(about["fragmentation_percent"], 0);
    let all: serde_json::Value = serde_json::from_str(&stats_text(NF_NONE, NF_JSON)).unwrap();
    assert!(all["kinds"].as_array().unwrap().contains(about));
    // Less room than text: the part that fits, ended by a zero.
    let mut little = [b'x'; 5];
    // SAFETY: as much room as the length passed.
    let length = unsafe { nf_stats_text(bound, NF_TEXT, little.as_mut_ptr().cast(), 5) };
    assert_eq!((length, &little), (text.len(), b"bind\0"));
    for (kind, format) in [(bound, 7), (12345, NF_TEXT)] {
        // SAFETY: no room is needed.
        assert_eq!(unsafe { nf_stats_text(kind, format, null_mut(), 0) }, 0);
        assert_eq!(errno(), libc::EINVAL);
    }
    // SAFETY: allocated above.
    unsafe { nf_free(object) };
}

#[test]
fn unmapped_and_untouched_memory_has_no_residency() {
    assert_eq!(resident(null_mut(), 10 * MIB), 0);
    let mapped = map(NF_DEFAULT, 4 * MIB, libc::MAP_ANONYMOUS);
    assert_eq!(resident(mapped, 4 * MIB), 0);
    fill(mapped, 5);
    assert!(resident(mapped, 4 * MIB) >= 4096);
    unmap(mapped, 4 * MIB);
    // SAFETY: NULL is refused.
    assert_eq!(unsafe { nf_residency(mapped, 1, null_mut(), 1) }, -1);
}
