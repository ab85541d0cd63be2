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
fn batches_are_taken_once_in_lifo_order() {
    let depot = empty();
    assert_eq!(depot.bring(SMALL, &[1, 2, 3]), 3);
    assert_eq!(depot.bring(SMALL, &[4]), 1);
    assert_eq!(depot.count(), 4);
    assert_eq!([taken(&depot), taken(&depot), taken(&depot)], [[4].as_slice(), &[1, 2, 3], &[]]);
}

#[test]
fn objects_of_an_exited_thread_are_taken_in_batches() {
    let depot = empty();
    let objects: Vec<_> = (0..2 * BATCH - 1).collect();
    assert_eq!(depot.bring(SMALL, &objects), objects.len());
    assert_eq!([taken(&depot).len(), taken(&depot).len()], [BATCH - 1, BATCH]);
}

#[test]
fn the_depot_is_bounded_in_bytes_and_holds_at_least_two_batches() {
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
fn unused_depot_batches_become_surplus_after_some_visits() {
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
fn a_stalled_thread_blocks_only_the_depot_place_it_holds() {
    let depot = empty();
    depot.bring(SMALL, &[1]);
    depot.bring(SMALL, &[2]);
    depot.leave_in_the_middle();
    assert_eq!((depot.count(), taken(&depot)), (1, [1].to_vec()));
    assert_eq!(depot.bring(SMALL, &[7; PLACES * BATCH]), (PLACES - 1) * BATCH);
}

#[test]
fn a_forked_child_drops_only_the_depot_place_locked_by_another_thread() {
    let depot = empty();
    depot.bring(SMALL, &[1]);
    depot.bring(SMALL, &[2]);
    depot.leave_in_the_middle();
    // SAFETY: no other thread has it.
    unsafe { depot.free_places() };
    assert_eq!(depot.count(), 1, "what is whole stays");
    assert_eq!(depot.bring(SMALL, &[7; PLACES * BATCH]), (PLACES - 1) * BATCH);
}
