//! Tests of a depot with one thread; `tests/orders.rs` has those with several.
#![expect(unsafe_code, reason = "a depot that nobody else has is as in a child of fork")]

use std::boxed::Box;
use std::vec::Vec;

use crate::classes::{CLASSES, batch_of_class, size_of_class};
use crate::depot::{BATCH, BYTES, Depot, VISITS};
use crate::sync::PLACES;

const SMALL: usize = 5;

fn empty() -> Box<Depot> {
    Box::new(Depot::new())
}

fn taken(depot: &Depot) -> Vec<usize> {
    let mut into = [0; BATCH];
    let count = depot.take(&mut into);
    into[..count].to_vec()
}

#[test]
fn batches_are_taken_once_and_the_last_first() {
    let depot = empty();
    assert_eq!(depot.bring(SMALL, &[1, 2, 3]), 3);
    assert_eq!(depot.bring(SMALL, &[4]), 1);
    assert_eq!(depot.count(), 4);
    assert_eq!([taken(&depot), taken(&depot), taken(&depot)], [[4].as_slice(), &[1, 2, 3], &[]]);
}

#[test]
fn what_a_thread_leaves_at_its_end_is_taken_as_batches() {
    let depot = empty();
    let objects: Vec<_> = (0..2 * BATCH - 1).collect();
    assert_eq!(depot.bring(SMALL, &objects), objects.len());
    assert_eq!([taken(&depot).len(), taken(&depot).len()], [BATCH - 1, BATCH]);
}

#[test]
fn it_holds_so_many_bytes_and_two_batches_at_least() {
    for class in 1..CLASSES {
        let (depot, batch) = (empty(), batch_of_class(class));
        let objects = [7; BATCH];
        let brought: usize = (0..100).map(|_| depot.bring(class, &objects[..batch])).sum();
        assert_eq!(brought, depot.count());
        let bytes = brought * size_of_class(class);
        assert!(bytes <= BYTES && brought <= PLACES * BATCH, "{class}: {brought}");
        assert!(brought >= 2 * batch, "{class}: {brought}");
        assert!(bytes > BYTES / 2 || brought == PLACES * batch, "{class}: {brought}");
    }
}

#[test]
fn what_nobody_needs_is_surplus_after_a_while() {
    let depot = empty();
    depot.bring(SMALL, &[1, 2]);
    let mut visits = 0;
    let surplus = loop {
        depot.bring(SMALL, &[3, 4]);
        visits += 1;
        let mut into = [0; BATCH];
        match depot.surplus(&mut into) {
            0 => assert_eq!(taken(&depot), [3, 4]),
            count => break into[..count].to_vec(),
        }
    };
    assert_eq!((surplus, taken(&depot)), ([1, 2].to_vec(), [3, 4].to_vec()));
    assert!(visits >= VISITS, "{visits}");
}

#[test]
fn a_thread_that_stops_at_a_place_keeps_others_from_that_place_alone() {
    let depot = empty();
    depot.bring(SMALL, &[1]);
    depot.bring(SMALL, &[2]);
    depot.leave_in_the_middle();
    assert_eq!((depot.count(), taken(&depot)), (1, [1].to_vec()));
    assert_eq!(depot.bring(SMALL, &[7; PLACES * BATCH]), (PLACES - 1) * BATCH);
}

#[test]
fn a_child_of_fork_gives_up_the_place_that_a_thread_was_at_and_keeps_the_others() {
    let depot = empty();
    depot.bring(SMALL, &[1]);
    depot.bring(SMALL, &[2]);
    depot.leave_in_the_middle();
    // SAFETY: no other thread has it.
    unsafe { depot.free_places() };
    assert_eq!(depot.count(), 1, "what is whole stays");
    assert_eq!(depot.bring(SMALL, &[7; PLACES * BATCH]), (PLACES - 1) * BATCH);
}
