//! What a depot does for one thread; for several, `tests/orders.rs`.
#![expect(unsafe_code, reason = "a depot that nobody else has is reset")]

use std::boxed::Box;

use crate::classes::size_of_class;
use crate::depot::{BYTES, Depot, ROOM, VISITS};

fn empty() -> Box<Depot> {
    Box::new(Depot::new())
}

#[test]
fn what_is_brought_is_taken_once() {
    let depot = empty();
    assert_eq!(depot.bring(5, &[1, 2, 3, 4]), 4);
    let mut taken = [0; 3];
    assert_eq!((depot.take(&mut taken), taken), (3, [2, 3, 4]));
    assert_eq!((depot.take(&mut taken), taken[0]), (1, 1));
    assert_eq!(depot.take(&mut taken), 0);
}

#[test]
fn it_holds_so_many_bytes_and_two_batches_at_least() {
    let depot = empty();
    let (large, objects) = (41, [7; 4]);
    let brought = (0..20).map(|_| depot.bring(large, &objects)).sum::<usize>();
    assert_eq!(brought, BYTES / size_of_class(large));
    let depot = empty();
    assert_eq!((0..100).map(|_| depot.bring(1, &[7; 32])).sum::<usize>(), ROOM);
}

#[test]
fn what_nobody_needs_is_surplus_after_a_while() {
    let depot = empty();
    depot.bring(5, &[1, 2, 3, 4, 5, 6]);
    let mut into = [0; 8];
    let mut visits = 0;
    let surplus = loop {
        let mut two = [0; 2];
        assert_eq!(depot.take(&mut two), 2);
        depot.bring(5, &two);
        visits += 2;
        match depot.surplus(&mut into) {
            0 => {}
            surplus => break surplus,
        }
    };
    assert_eq!((surplus, &into[..4]), (4, &[1, 2, 3, 4][..]));
    assert!(visits >= VISITS, "{visits}");
    assert_eq!(depot.count(), 2);
}

#[test]
fn a_locked_depot_is_not_waited_for() {
    let depot = empty();
    depot.bring(5, &[1]);
    depot.with(|_| {
        assert_eq!(depot.take(&mut [0; 4]), 0);
        assert_eq!(depot.bring(5, &[2]), 0);
    });
    assert_eq!(depot.count(), 1);
    // SAFETY: nobody else has it.
    unsafe { depot.reset_if_locked() };
    assert_eq!(depot.count(), 1, "what is whole stays");
    depot.with(|_| {
        // SAFETY: who has it looks at nothing in it, as a thread that a child of fork does not have.
        unsafe { depot.reset_if_locked() };
    });
    assert_eq!(depot.count(), 0);
    assert_eq!(depot.bring(5, &[1]), 1);
}
