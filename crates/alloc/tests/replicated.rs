//! Replicated regions through the C interface and from Rust, on any machine: node 0 is everywhere; tests with several
//! nodes are in the lab.
#![expect(unsafe_code, reason = "a C interface is called")]
#![expect(clippy::unwrap_used, reason = "a test that can't go on should stop")]

use std::ffi::{CStr, CString, c_int};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};

use nearfar_alloc::Replicated;
use nearfar_alloc::ffi::*;

mod child;
use child::holds_in_a_child;

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn message() -> String {
    // SAFETY: a string that stays until the next error.
    unsafe { CStr::from_ptr(nf_error()) }.to_string_lossy().into_owned()
}

fn create(words: &str, size: usize) -> *mut nf_replicated_t {
    let words = CString::new(words).unwrap();
    // SAFETY: a string.
    unsafe { nf_replicated_create(words.as_ptr(), size) }
}

fn write(region: *mut nf_replicated_t, offset: usize, bytes: &[u8]) -> i32 {
    // SAFETY: as many bytes.
    unsafe { nf_replicated_write(region, offset, bytes.as_ptr().cast(), bytes.len()) }
}

fn read(region: *mut nf_replicated_t, offset: usize, into: &mut [u8]) -> i32 {
    // SAFETY: room for as many.
    unsafe { nf_replicated_read(region, offset, into.as_mut_ptr().cast(), into.len()) }
}

fn destroy(region: *mut nf_replicated_t) {
    // SAFETY: tests destroy their own regions, once.
    assert_eq!(unsafe { nf_replicated_destroy(region) }, 0);
}

#[test]
fn writes_are_visible_to_reads_and_after_sync_in_views() {
    let region = create("", 10_000);
    assert!(!region.is_null(), "{}", message());
    // SAFETY: a region.
    assert_eq!(unsafe { nf_replicated_size(region) }, 10_000);
    let mut found = [9; 10_000];
    assert_eq!(read(region, 0, &mut found), 0);
    assert_eq!(found, [0; 10_000]);
    assert_eq!(write(region, 4090, b"across granules"), 0);
    let mut text = [0; 15];
    assert_eq!(read(region, 4090, &mut text), 0);
    assert_eq!(&text, b"across granules");
    // SAFETY: a region.
    assert_eq!(unsafe { nf_replicated_sync(region) }, 0);
    // SAFETY: a region.
    let view = unsafe { nf_replicated_view(region) };
    // SAFETY: valid as long as the region, and no thread writes.
    let view = unsafe { std::slice::from_raw_parts(view.cast::<u8>(), 10_000) };
    assert_eq!(&view[4090..4105], b"across granules");
    assert!(view[4105..].iter().all(|byte| *byte == 0));
    let mut stats = nf_replicated_stats_t::default();
    // SAFETY: a region, and room for figures.
    assert_eq!(unsafe { nf_replicated_stats(region, &raw mut stats) }, 0);
    assert_eq!((stats.writes, stats.settled), (2, 0));
    let mut nodes = [9; 2];
    // SAFETY: room for two.
    assert!(unsafe { nf_replicated_nodes(region, nodes.as_mut_ptr(), 2) } >= 1);
    assert_eq!(nodes[0], 0);
    destroy(region);
}

#[test]
fn access_beyond_the_end_of_a_region_is_rejected() {
    let region = create("0", 5000);
    for (offset, length) in [(0, 5001), (4999, 2), (5001, 0), (usize::MAX, 2), (1, usize::MAX)] {
        // SAFETY: nothing is read beyond the region's end.
        let done = unsafe { nf_replicated_read(region, offset, null_mut(), length) };
        assert_eq!((done, errno()), (-1, libc::EINVAL), "{offset}, {length}");
        // SAFETY: as above.
        let done = unsafe { nf_replicated_write(region, offset, null(), length) };
        assert_eq!((done, errno()), (-1, libc::EINVAL), "{offset}, {length}");
    }
    assert_eq!((read(region, 5000, &mut []), write(region, 5000, &[])), (0, 0));
    assert_eq!((write(region, 4999, &[7]), read(region, 4999, &mut [0])), (0, 0));
    // The words behind the data must not be overwritten.
    assert_eq!(write(region, 0, &[0xff; 5000]), 0);
    let mut all = [0; 5000];
    assert_eq!(read(region, 0, &mut all), 0);
    assert_eq!(all, [0xff; 5000]);
    destroy(region);
}

#[test]
fn regions_that_cannot_be_created_report_the_reason() {
    for (words, size, error, part) in [
        ("", 0, libc::EINVAL, "0 bytes"),
        ("nowhere", 1, libc::EINVAL, "nowhere"),
        ("1000", 1, libc::ENODEV, "1000"),
        ("0;home=1000", 1, libc::EINVAL, "home=1000"),
        ("0;granule=5k", 1, libc::EINVAL, "granule=5k"),
        ("0;colour=red", 1, libc::EINVAL, "colour=red"),
        ("0", 1 << 50, libc::ENOMEM, "node 0 has"),
        ("0", usize::MAX, libc::ENOMEM, "addresses"),
    ] {
        assert!(create(words, size).is_null(), "{words}");
        assert_eq!(errno(), error, "{words}: {}", message());
        assert!(message().contains(part), "{words}: {}", message());
        let refused = Replicated::new(words, size).unwrap_err();
        assert_eq!((refused.errno(), refused.to_string()), (error, message()), "{words}");
    }
    let (nothing, region) = (null_mut(), create("0", 1));
    // SAFETY: NULL is refused, here and below.
    assert_eq!((unsafe { nf_replicated_destroy(nothing) }, errno()), (-1, libc::EINVAL));
    assert_eq!((read(nothing, 0, &mut []), errno()), (-1, libc::EINVAL));
    assert_eq!((write(nothing, 0, &[]), errno()), (-1, libc::EINVAL));
    // SAFETY: as above.
    assert_eq!((unsafe { nf_replicated_sync(nothing) }, errno()), (-1, libc::EINVAL));
    // SAFETY: as above.
    let told = unsafe { nf_replicated_nodes(nothing, null_mut(), 0) };
    assert_eq!((told, errno()), (-1, libc::EINVAL));
    // SAFETY: as above.
    assert_eq!((unsafe { nf_replicated_stats(region, null_mut()) }, errno()), (-1, libc::EINVAL));
    // SAFETY: as above.
    assert!(unsafe { nf_replicated_view(nothing) }.is_null());
    // SAFETY: as above.
    assert_eq!(unsafe { nf_replicated_size(nothing) }, 0);
    destroy(region);
}

/// Runs `act` in a child process, which must exit successfully.
fn in_child(act: impl FnOnce() -> bool) {
    assert!(holds_in_a_child(act));
}

#[test]
fn a_forked_child_shares_the_region_and_destroys_only_its_own_mapping() {
    let region = create("0;quiet=0ms", 100_000);
    assert_eq!(write(region, 0, b"parent"), 0);
    in_child(|| {
        let mut found = [0; 6];
        let is_there = read(region, 0, &mut found) == 0 && found == *b"parent";
        let done = write(region, 50_000, b"child") == 0;
        // SAFETY: the child's own, and not used any more.
        is_there && done && unsafe { nf_replicated_destroy(region) } == 0
    });
    let mut found = [0; 5];
    assert_eq!((read(region, 50_000, &mut found), &found), (0, b"child"));
    destroy(region);
}

#[test]
fn statistics_list_all_regions_during_creation_and_in_a_forked_child() {
    let region = create("0;quiet=1234ms", 1);
    let told = || stats(NF_JSON).contains("\"region\":\"0;quiet=1234ms\"");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                destroy(create("0", 1));
            }
        });
        let here = (0..100).all(|_| told());
        let in_children = (0..100).all(|_| {
            holds_in_a_child(|| {
                let own = create("0", 1);
                !own.is_null() && told()
            })
        });
        done.store(true, Ordering::Relaxed);
        assert!(here && in_children, "here {here}, in children {in_children}");
    });
    destroy(region);
}

#[test]
fn process_resource_limits_cause_errors_instead_of_termination() {
    in_child(|| {
        let limit = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
        // SAFETY: a limit.
        let set = unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) } == 0;
        set && create("0", 2 << 20).is_null() && errno() == libc::EFBIG
    });
    in_child(|| {
        let limit = libc::rlimit { rlim_cur: 1 << 30, rlim_max: 1 << 30 };
        // SAFETY: a limit.
        let set = unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) } == 0;
        set && create("0", 2 << 30).is_null() && errno() == libc::ENOMEM
    });
    in_child(|| {
        let limit = libc::rlimit { rlim_cur: 3, rlim_max: 3 };
        // SAFETY: a limit.
        let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } == 0;
        set && create("0", 1).is_null() && [libc::EMFILE, libc::ENOSYS].contains(&errno())
    });
}

/// The statistics of all kinds and regions.
fn stats(format: c_int) -> String {
    let mut text = vec![0_u8; 1 << 20];
    // SAFETY: as much room as the length passed.
    let length = unsafe { nf_stats_text(NF_NONE, format, text.as_mut_ptr().cast(), text.len()) };
    text.truncate(length);
    String::from_utf8(text).unwrap()
}

fn maps() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("nearfar-replicated")).count()
}

#[test]
fn thousands_of_regions_leave_no_files_or_mappings() {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    let mut held: Vec<_> = (0..2000).map(|size| create("", size + 1)).collect();
    assert!(held.iter().all(|region| !region.is_null()), "{}", message());
    assert!(maps() >= 2000 && open() < before + 100, "no file stays open");
    for (index, region) in held.iter().enumerate() {
        assert_eq!(write(*region, index, &[7]), 0);
    }
    held.drain(..).for_each(destroy);
    for _ in 0..3000 {
        destroy(create("", 10_000));
    }
    assert!(maps() < 100, "{} mappings are left", maps());
}

#[test]
fn statistics_include_replicated_regions() {
    let region = create("0;granule=64k;quiet=2s", 1 << 20);
    assert_eq!(write(region, 0, &[1; 70_000]), 0);
    let json: serde_json::Value = serde_json::from_str(&stats(NF_JSON)).unwrap();
    let regions = json["regions"].as_array().unwrap();
    let own = regions.iter().find(|one| one["region"] == "0;granule=64k;quiet=2s").unwrap();
    assert_eq!((&own["size"], &own["granule"]), (&(1 << 20).into(), &65_536.into()));
    assert_eq!((&own["writes"], &own["nodes"][0]), (&2.into(), &0.into()));
    // Its pages, and one page of words; lives are not part of a copy.
    assert_eq!(own["resident"]["0"], 70_000_u64.next_multiple_of(4096) + 4096);
    let line = "replicated, 0;granule=64k;quiet=2s: 1 MiB, 1 copies; resident node 0: 1 MiB; \
                granules of 65536 bytes: 2 written, 0 collapsed, 0 copied, 0 at home for good\n";
    assert!(stats(NF_TEXT).contains(line), "{}", stats(NF_TEXT));
    destroy(region);
}

#[test]
fn the_rust_type_has_views_that_exclude_writers() {
    let mut region = Replicated::new("0", 9000).unwrap();
    assert_eq!((region.len(), region.nodes()), (9000, vec![0]));
    region.write(8990, &[5; 10]).unwrap();
    let view = region.view();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| assert_eq!(view.bytes()[8989..], [0, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5]));
        }
    });
    let error = region.write(8991, &[5; 10]).unwrap_err();
    assert_eq!(error.to_string(), "10 bytes at 8991: the region ends at 9000");
    assert!(region.read(9001, &mut []).is_err());
    assert_eq!(region.stats().writes, 1);
    region.sync();
}
