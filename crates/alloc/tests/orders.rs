//! Every order in which threads may meet in a depot, and as they claim segments: loom's atomics in place of the language's.
//!
//! The two files are the library's own; here `crate::sync` is loom. Not here: magazines, which one thread uses, and jemalloc.
#![expect(unsafe_code, reason = "the depot's cell")]

#[path = "../src/claim.rs"]
mod claim;
#[path = "../src/classes.rs"]
mod classes;
#[path = "../src/depot.rs"]
#[expect(dead_code, reason = "what only forks and figures need")]
mod depot;

/// What the library's own module of this name gives.
mod sync {
    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::hint::spin_loop;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
}

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

use depot::Depot;

const CLASS: usize = 5;

/// Goes through the orders in which threads give way to each other at most so often.
fn every_order(act: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(act);
}

fn taken(depot: &Depot, most: usize) -> Vec<usize> {
    let mut into = [0; 4];
    let count = depot.take(&mut into[..most]);
    into[..count].to_vec()
}

#[test]
fn what_threads_bring_to_a_depot_is_taken_once_and_none_is_lost() {
    every_order(|| {
        let depot = Arc::new(Depot::new());
        depot.bring(CLASS, &[1, 2]);
        let other = Arc::clone(&depot);
        let thread = thread::spawn(move || {
            let brought = other.bring(CLASS, &[3, 4]);
            (taken(&other, 2), [3, 4][brought..].to_vec())
        });
        let mine = taken(&depot, 2);
        let (theirs, back) = thread.join().unwrap();
        let mut all = [mine, theirs, back, taken(&depot, 4)].concat();
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3, 4]);
    });
}

#[test]
fn runs_of_entries_are_claimed_whole_and_by_one() {
    every_order(|| {
        let entries: Arc<Vec<_>> = Arc::new((0..3).map(|_| AtomicU32::new(0)).collect());
        let claims = |entries: &Arc<Vec<AtomicU32>>, first: usize, owner: u32| {
            let entries = Arc::clone(entries);
            move || claim::claim(|at| &entries[at], first, 2, |_| owner).is_ok()
        };
        let other = thread::spawn(claims(&entries, 1, 7));
        let mine = claims(&entries, 0, 5)();
        let theirs = other.join().unwrap();
        assert!(!(mine && theirs), "both have the one between");
        let found: Vec<_> = entries.iter().map(|entry| entry.load(Ordering::Acquire)).collect();
        let expected = match (mine, theirs) {
            (true, _) => [5, 5, 0],
            (_, true) => [0, 7, 7],
            _ => [0, 0, 0],
        };
        assert_eq!(found, expected, "what could not be had whole is free again");
    });
}

#[test]
fn who_claims_what_another_has_given_up_sees_what_that_did_before() {
    every_order(|| {
        let entry = Arc::new(AtomicU32::new(5));
        let before = Arc::new(loom::cell::UnsafeCell::new(0));
        let (given, left) = (Arc::clone(&entry), Arc::clone(&before));
        let other = thread::spawn(move || {
            // SAFETY: the entry is this thread's still.
            left.with_mut(|left| unsafe { *left = 1 });
            given.store(claim::FREE, Ordering::Release);
        });
        if claim::claim(|_| &*entry, 0, 1, |_| 7).is_ok() {
            // SAFETY: the entry is ours; loom fails if the other may be at it.
            assert_eq!(before.with_mut(|before| unsafe { *before }), 1);
        }
        other.join().unwrap();
    });
}
