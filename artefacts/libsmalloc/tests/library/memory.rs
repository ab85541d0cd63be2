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
fn allocation_uses_the_type_or_fails_with_errno() {
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
fn realloc_resizes_in_place_where_possible() {
    check("realloc-in-place");
}

#[test]
fn memalign_aligns_up_to_a_gibibyte_and_rejects_invalid_alignments() {
    check("memalign");
}

#[test]
fn every_free_function_frees_and_an_invalid_type_frees_nothing() {
    check("frees");
}

#[test]
fn memory_is_resident_when_touched_and_not_before() {
    check("lazy");
}

#[test]
fn freed_memory_is_reused_for_other_sizes_and_returned_to_the_system() {
    check("reused");
}

#[test]
fn allocation_beyond_the_data_limit_fails_without_ending_the_process() {
    check("no-room");
}

#[test]
fn threads_start_concurrently_and_free_each_others_memory() {
    check("threads");
}

#[test]
fn children_of_a_busy_process_allocate_and_end() {
    check("forks");
}

#[test]
fn an_unknown_check_name_fails() {
    let program = program("memory.c", "no-check", Link::Shared);
    assert_eq!(ready(program).arg("nothing").output().unwrap().status.code(), Some(2));
}
