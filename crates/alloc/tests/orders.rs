//! Every interleaving of threads in a depot, of threads that claim segments, and of visitors of a kind with its end:
//! loom's atomics replace the language's.
//!
//! The files under test are the library's own; here `crate::sync` is loom. Not here: magazines, which one thread
//! uses, and jemalloc.
#![expect(unsafe_code, reason = "the depot's cell")]

#[path = "../src/claim.rs"]
mod claim;
#[path = "../src/classes.rs"]
mod classes;
#[path = "../src/depot.rs"]
#[expect(dead_code, reason = "what only forks and ends of kinds need")]
mod depot;
#[path = "../src/visitors.rs"]
#[expect(dead_code, reason = "what only forks need")]
mod visitors;

/// Stands for the library's module of this name.
mod sync {
    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

    pub(crate) fn rest(_turn: u32) {
        loom::thread::yield_now();
    }

    pub(crate) const PLACES: usize = 2;
}

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

use depot::{BATCH, Depot, VISITS};
use visitors::Visitors;

/// Threads leave and take four at once, and a depot has two places.
const CLASS: usize = 41;

/// Explores the interleavings with a bounded number of preemptions.
fn every_order(act: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(act);
}

fn taken(depot: &Depot) -> Vec<usize> {
    let mut into = [0; BATCH];
    let count = depot.take(&mut into);
    into[..count].to_vec()
}

/// Brings objects; returns those without room.
fn brought<const COUNT: usize>(depot: &Depot, objects: [usize; COUNT]) -> Vec<usize> {
    objects[depot.bring(CLASS, &objects)..].to_vec()
}

type Act = fn(&Depot) -> Vec<usize>;

/// Runs these actions in parallel on a depot that contains `first`, and checks that each object of 1 to `most`, those
/// and the ones that threads bring, ends up in exactly one place.
fn all_are_kept<const THREADS: usize>(first: &'static [usize], acts: [Act; THREADS], most: usize) {
    every_order(move || {
        let depot = Arc::new(Depot::new());
        assert_eq!(depot.bring(CLASS, first), first.len());
        let start = |act: Act| {
            let depot = Arc::clone(&depot);
            thread::spawn(move || act(&depot))
        };
        let threads = acts.map(start);
        let mut found = threads.map(|thread| thread.join().unwrap_or_default()).concat();
        assert_eq!(found.len() + depot.count(), most, "{found:?}");
        found.extend([taken(&depot), taken(&depot)].concat());
        found.sort_unstable();
        assert!(found.iter().copied().eq(1..=most), "{found:?}");
    });
}

#[test]
fn depot_objects_are_taken_once_and_never_lost() {
    let bring_and_take = |depot: &Depot| [brought(depot, [3, 4]), taken(depot)].concat();
    all_are_kept(&[1, 2], [bring_and_take, taken], 4);
}

#[test]
fn two_threads_cannot_both_fill_the_last_depot_place() {
    let bring = |depot: &Depot| brought(depot, [5, 6]);
    all_are_kept(&[1, 2, 3, 4], [bring, |depot| brought(depot, [7]), taken], 7);
}

#[test]
fn a_surplus_batch_taken_concurrently_goes_to_one_thread() {
    every_order(|| {
        let depot = Arc::new(Depot::new());
        depot.bring(CLASS, &[1, 2]);
        let mut into = [0; BATCH];
        // So that a check is due, and the place has been full since the last one.
        (1..2 * VISITS).for_each(|_| assert_eq!(depot.surplus(&mut into), 0));
        let (one, other) = (Arc::clone(&depot), Arc::clone(&depot));
        let surplus = thread::spawn(move || {
            let mut into = [0; BATCH];
            let count = one.surplus(&mut into);
            into[..count].to_vec()
        });
        let taker = thread::spawn(move || taken(&other));
        let had = [surplus.join().unwrap(), taker.join().unwrap()];
        assert!(had.iter().filter(|had| **had == [1, 2]).count() == 1, "{had:?}");
        assert_eq!((had.concat().len(), depot.count()), (2, 0));
    });
}

#[test]
fn runs_of_entries_are_claimed_completely_and_by_one_thread() {
    every_order(|| {
        let entries: Arc<Vec<_>> = Arc::new((0..3).map(|_| AtomicU32::new(0)).collect());
        let claims = |entries: &Arc<Vec<AtomicU32>>, first: usize, owner: u32| {
            let entries = Arc::clone(entries);
            move || claim::claim(|at| &entries[at], first, 2, |_| owner).is_ok()
        };
        let other = thread::spawn(claims(&entries, 1, 7));
        let mine = thread::spawn(claims(&entries, 0, 5)).join().unwrap();
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
fn a_claimer_sees_the_writes_made_before_the_release() {
    let claims = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = std::sync::Arc::clone(&claims);
    every_order(move || {
        let entry = Arc::new(AtomicU32::new(5));
        let before = Arc::new(loom::cell::UnsafeCell::new(0));
        let (given, left) = (Arc::clone(&entry), Arc::clone(&before));
        let other = thread::spawn(move || {
            // SAFETY: this thread still owns the entry.
            left.with_mut(|left| unsafe { *left = 1 });
            given.store(claim::FREE, Ordering::Release);
        });
        let claimer = thread::spawn(move || {
            let is_ours = claim::claim(|_| &*entry, 0, 1, |_| 7).is_ok();
            if is_ours {
                // SAFETY: the entry is ours; loom fails if the other may be at it.
                assert_eq!(before.with_mut(|before| unsafe { *before }), 1);
            }
            is_ours
        });
        other.join().unwrap();
        if claimer.join().unwrap() {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    assert!(claims.load(Ordering::Relaxed) > 0, "in some order it is given up first");
}

#[test]
fn a_kind_ends_when_its_visitors_are_done() {
    every_order(|| {
        let (exists, visitors) = (Arc::new(AtomicU32::new(1)), Arc::new(Visitors::default()));
        let content = Arc::new(loom::cell::UnsafeCell::new(1));
        let visitor = || {
            let (exists, visitors, content) =
                (Arc::clone(&exists), Arc::clone(&visitors), Arc::clone(&content));
            thread::spawn(move || {
                visitors.enter();
                if exists.load(Ordering::Acquire) == 1 {
                    // SAFETY: loom fails if it is changed meanwhile.
                    assert_eq!(content.with(|content| unsafe { *content }), 1);
                }
                visitors.leave();
            })
        };
        let both = [visitor(), visitor()];
        exists.store(0, Ordering::Release);
        visitors.wait();
        // SAFETY: as above.
        content.with_mut(|content| unsafe { *content = 0 });
        both.into_iter().for_each(|visitor| visitor.join().unwrap());
    });
}
