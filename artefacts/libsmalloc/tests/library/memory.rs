//! Allocation and freeing, shared and static: each test runs a check of `memory.c`.

use std::sync::OnceLock;

use crate::{Link, output, program, ready};

fn check(name: &str) {
    static PROGRAMS: OnceLock<[std::path::PathBuf; 2]> = OnceLock::new();
    let programs = PROGRAMS.get_or_init(|| {
        [("memory-shared", Link::Shared), ("memory-static", Link::Static)]
            .map(|(name, link)| program("memory.c", name, link))
    });
    for program in programs {
        assert_eq!(output(ready(program).arg(name)), format!("{name}: done\n"));
    }
}

#[test]
fn memory_is_of_the_type_or_there_is_none_and_errno_says_why() {
    check("types");
}

#[test]
fn calloc_gives_zeroes_and_refuses_a_product_that_overflows() {
    check("zeroes");
}

#[test]
fn realloc_keeps_the_content_and_with_size_zero_frees() {
    check("realloc-keeps");
}

#[test]
fn realloc_that_fails_leaves_the_old_block_as_it_was() {
    check("realloc-fails");
}

#[test]
fn realloc_stays_in_place_where_there_is_room() {
    check("realloc-in-place");
}

#[test]
fn memalign_aligns_up_to_a_gibibyte_and_refuses_what_is_no_alignment() {
    check("memalign");
}

#[test]
fn every_free_frees_and_no_type_frees_nothing() {
    check("frees");
}

#[test]
fn memory_is_resident_when_touched_and_not_before() {
    check("lazy");
}

#[test]
fn memory_goes_back_and_serves_other_sizes() {
    check("reused");
}

#[test]
fn a_process_without_room_is_told_and_not_ended() {
    check("no-room");
}

#[test]
fn threads_begin_at_once_and_free_what_others_allocated() {
    check("threads");
}

#[test]
fn children_of_a_busy_process_allocate_and_end() {
    check("forks");
}

#[test]
fn a_check_that_is_not_there_is_no_success() {
    let program = program("memory.c", "no-check", Link::Shared);
    assert_eq!(ready(program).arg("nothing").output().unwrap().status.code(), Some(2));
}
