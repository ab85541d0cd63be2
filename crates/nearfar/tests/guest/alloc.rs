//! The allocator on machines with near and far memory: the kernel reports every page of a kind on the kind's nodes.
#![expect(unsafe_code, reason = "a C interface is called")]

use std::ffi::{CString, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;

use nearfar_alloc::ffi::*;

use crate::NEARFAR;
use crate::inside::{HOLD, held, held_by, libraries, write_weight};

const MIB: usize = 1 << 20;

fn kind(text: &str) -> nf_kind_t {
    let written = CString::new(text).unwrap();
    // SAFETY: a string.
    let kind = unsafe { nf_kind_create(written.as_ptr()) };
    assert_ne!(kind, NF_NONE, "{text}");
    kind
}

fn fill(object: *mut c_void, size: usize) {
    assert!(!object.is_null(), "{size}: {}", std::io::Error::last_os_error());
    // SAFETY: an object of that size, just allocated.
    unsafe { object.cast::<u8>().write_bytes(1, size) };
}

/// Of more objects than this some are asked about: each is a call to the kernel.
const ASKED_MOST: usize = 8000;

/// Objects of a kind, `bytes` of them in all, written to.
fn objects(kind: nf_kind_t, bytes: usize, size: usize) -> Vec<*mut c_void> {
    let object = |_| {
        let object = nf_malloc(kind, size);
        fill(object, size);
        object
    };
    (0..bytes.div_ceil(size)).map(object).collect()
}

fn free(objects: Vec<*mut c_void>) {
    for object in objects {
        // SAFETY: each was allocated, and is freed once.
        unsafe { nf_free(object) };
    }
}

/// KiB on nodes 0, 1 and 2 of these objects.
fn on_nodes(objects: &[*mut c_void], size: usize) -> [u64; 3] {
    let mut bytes = [0; 3];
    let asked = || objects.iter().step_by(objects.len().div_ceil(ASKED_MOST).max(1));
    for object in asked() {
        // SAFETY: room for three nodes.
        assert_eq!(unsafe { nf_residency(*object, size, bytes.as_mut_ptr(), 3) }, 0);
    }
    let all: u64 = bytes.iter().sum();
    assert_eq!(all, (asked().count() * size) as u64, "not all is resident: {bytes:?}");
    bytes.map(|bytes| bytes >> 10)
}

pub(crate) fn objects_of_a_kind_are_on_its_nodes_only() {
    for (text, node) in [("far", 1), ("near", 0), ("cxl", 1), ("bind:1", 1), ("dram", 0), ("0", 0)]
    {
        let kind = kind(text);
        for size in [100, 5000, 64 << 10, 3 * MIB, 40 * MIB] {
            // Fewer of the small ones: an emulated CPU takes long to allocate and fill them.
            let objects = objects(kind, (20_000 * size).min(40 * MIB), size);
            let found = on_nodes(&objects, size);
            let elsewhere: u64 =
                (0..3).filter(|other| *other != node).map(|other| found[other]).sum();
            assert_eq!(elsewhere, 0, "{text}, objects of {size}: {found:?} KiB");
            free(objects);
        }
        // SAFETY: nothing of it is used any more.
        assert_eq!(unsafe { nf_kind_destroy(kind) }, 0);
    }
}

/// Per cent on node 0, times ten.
fn near_share(found: [u64; 3]) -> u64 {
    found[0] * 1000 / found.iter().sum::<u64>()
}

pub(crate) fn weights_of_a_kind_override_the_machines() {
    write_weight("node0", "1").unwrap();
    write_weight("node1", "1").unwrap();
    for (text, share) in
        [("weighted:0=3,1=1", 750), ("weighted:0=1,1=4", 200), ("weighted:0=2,1=2", 500)]
    {
        let kind = kind(text);
        for size in [1000, 64 << 10, MIB, 8 * MIB, 256 * MIB] {
            let objects = objects(kind, (80_000 * size).min(256 * MIB), size);
            let found = near_share(on_nodes(&objects, size));
            assert!(found.abs_diff(share) <= 30, "{text}, objects of {size}: {found} of 1000 near");
            free(objects);
        }
    }
    // The machine's weights, where a kind has none of its own; the kernel counts a huge page as one.
    write_weight("node0", "4").unwrap();
    let objects = objects(kind("weighted:all"), 256 * MIB, 32 * MIB);
    let found = near_share(on_nodes(&objects, 32 * MIB));
    assert!(found.abs_diff(800) <= 30, "{found} of 1000 near");
    free(objects);
}

pub(crate) fn a_single_object_may_have_its_own_weights() {
    for (text, share) in
        [("weighted:0=3,1=1", 750), ("weighted:0=1,1=7", 125), ("far", 0), ("interleave:all", 500)]
    {
        for size in [MIB, 48 * MIB, 200 * MIB] {
            let written = CString::new(text).unwrap();
            // SAFETY: a string.
            let object = unsafe { nf_malloc_placed(written.as_ptr(), size) };
            fill(object, size);
            let found = near_share(on_nodes(&[object], size));
            assert!(found.abs_diff(share) <= 30, "{text}, {size} bytes: {found} of 1000 near");
            free(vec![object]);
        }
    }
}

pub(crate) fn objects_beyond_a_kinds_capacity_are_on_its_spill_nodes() {
    let kind = kind("far;limit=64m;spill=near");
    let objects = objects(kind, 128 * MIB, 4 * MIB);
    let found = on_nodes(&objects, 4 * MIB);
    assert_eq!([found[0] >> 10, found[1] >> 10], [64, 64]);
    free(objects);
}

pub(crate) fn an_unmodified_programs_heap_is_on_the_requested_nodes() {
    for (heap, node) in [("far", 1), ("near", 0), ("cxl;limit=1g", 1), ("heap=far from=1m", 1)] {
        let found = held(&["--heap", heap]);
        // Its code and libraries are where the page cache has them.
        assert!(found[node] >= 64 && found[1 - node] < 32, "{heap}: {found:?} MiB");
    }
    let found = held(&["--heap", "weighted:0=1,1=3"]);
    assert!((46..=56).contains(&found[1]), "{found:?} MiB");
    // Settings of SMDK.
    let [both, last] = ["normal_size:32,maxmemory_policy:remain", "normal_size:1024"];
    for (conf, node) in [("priority:exmem", 1), (both, 1), (last, 0)] {
        let mut holder = Command::new(std::env::current_exe().unwrap());
        holder.env(HOLD, "input").env("CXLMALLOC_CONF", conf);
        holder.env("LD_PRELOAD", libraries().join("libnearfar_preload.so"));
        let found = held_by(&mut holder);
        assert!(found[node] >= 64 && found[1 - node] < 32, "{conf}: {found:?} MiB");
    }
}

/// Compiles a C program of an artefact's tests here, against the output of `make library`.
pub(crate) fn compiled(source: &str, include: &str, link: &[&str]) -> PathBuf {
    let artefacts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../artefacts");
    let program = PathBuf::from("/tmp").join(Path::new(source).file_stem().unwrap());
    let mut compile = Command::new("cc");
    compile
        .arg("-o")
        .arg(&program)
        .arg(artefacts.join(source))
        .arg("-I")
        .arg(artefacts.join(include));
    compile.arg("-L").arg(libraries()).args(link);
    compile.arg(format!("-Wl,-rpath,{}", libraries().display()));
    let output = compile.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    program
}

pub(crate) fn programs_for_hmsdk_and_smdk_get_memory_on_the_requested_nodes() {
    let nodes =
        compiled("libsmalloc/tests/nodes.c", "libsmalloc/include", &["-lsmalloc", "-lnearfar"]);
    let output = Command::new(&nodes).args(["0", "1"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    // The wrong way round it says so: the check can fail.
    let output = Command::new(&nodes).args(["1", "0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    // The used memory of a far node grows by the amount that hmalloc has allocated, under hmctl.
    let program = compiled("libhmalloc/tests/library/far.c", "libhmalloc/include", &["-lhmalloc"]);
    let hmctl = Path::new(NEARFAR).with_file_name("hmctl");
    for (options, expected) in [
        (["-m", "1"], "0 64"),
        (["-m", "near"], "64 0"),
        (["-P", "near"], "64 0"),
        (["-p", "cxl"], "0 64"),
    ] {
        let output = Command::new(&hmctl).args(options).arg(&program).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), expected, "{options:?}");
    }
}
