//! Every interleaving of readers and writers of a replicated region's granule: loom's atomics replace the language's.
//!
//! The file under test is the library's own; here `crate::sync` is loom. Memory is two words per copy, read and written
//! as bytes are in the library, one after the other and without ordering. Not here: the placement of copies, and
//! regions of several granules (`replicated.rs`).

#[path = "../src/granule.rs"]
mod granule;

/// Stands for the library's module of this name.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};

    /// Lets the other thread run.
    pub(crate) fn pause(_: u32) {
        loom::thread::yield_now();
    }
}

use std::sync::atomic::AtomicBool;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use granule::{HOME, Quiet, Rule, Words};

/// Copies are made as soon as possible.
const EAGER: Rule = Rule { quiet_ms: 0, collapses_most: 100 };

/// A granule of two words with copies.
struct Granule<const COPIES: usize> {
    versions: [AtomicU64; COPIES],
    life: AtomicU64,
    memory: [[AtomicU64; 2]; COPIES],
}

impl<const COPIES: usize> Words for Granule<COPIES> {
    fn copies(&self) -> usize {
        COPIES
    }

    fn version(&self, copy: usize) -> &AtomicU64 {
        &self.versions[copy]
    }

    fn life(&self) -> &AtomicU64 {
        &self.life
    }
}

impl<const COPIES: usize> Granule<COPIES> {
    fn new() -> Arc<Self> {
        let zero = || AtomicU64::new(0);
        Arc::new(Self {
            versions: std::array::from_fn(|_| zero()),
            life: zero(),
            memory: std::array::from_fn(|_| [zero(), zero()]),
        })
    }

    fn write(&self, value: u64) -> granule::Wrote {
        granule::write(self, 0, &EAGER, || {
            self.memory[HOME].iter().for_each(|word| word.store(value, Ordering::Relaxed));
        })
    }

    fn bring(&self, copy: usize) {
        for (from, to) in self.memory[HOME].iter().zip(&self.memory[copy]) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Reads the value from a copy or from home, and checks that it is consistent.
    fn read(&self, copy: usize, rule: &Rule) -> u64 {
        let mut taken = [0; 2];
        let get = |from: usize| {
            taken = [0, 1].map(|word: usize| self.memory[from][word].load(Ordering::Relaxed));
        };
        let bring = |to| self.bring(to);
        granule::read(self, copy, get, Quiet { now_ms: || 0, rule, bring });
        assert_eq!(taken[0], taken[1], "torn");
        taken[0]
    }

    fn sync(&self) -> u64 {
        granule::sync(self, &EAGER, |copy| self.bring(copy))
    }
}

/// Explores the interleavings with at most `gives_way` preemptions.
fn every_order(gives_way: usize, act: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(gives_way);
    model.check(act);
}

#[test]
fn a_reader_sees_untorn_values_in_order_on_any_node() {
    every_order(3, || {
        let granule = Granule::<2>::new();
        granule.write(1);
        granule.sync();
        let other = Arc::clone(&granule);
        let writer = thread::spawn(move || {
            other.write(2);
        });
        // Alternates between nodes.
        let seen = [1, HOME, 1].map(|copy| granule.read(copy, &EAGER));
        assert!(seen[0] >= 1 && seen.is_sorted(), "{seen:?}");
        writer.join().unwrap();
        assert_eq!(granule.read(1, &EAGER), 2);
    });
}

#[test]
fn a_copy_made_during_writes_matches_the_home_granule() {
    every_order(2, || {
        let granule = Granule::<2>::new();
        granule.write(1);
        let (reader, writer) = (Arc::clone(&granule), Arc::clone(&granule));
        // Two readers may make the copy while a writer writes.
        let reader = thread::spawn(move || reader.read(1, &EAGER));
        let writer = thread::spawn(move || {
            writer.write(2);
        });
        let seen = granule.read(1, &EAGER);
        assert!((1..=2).contains(&seen) && (1..=2).contains(&reader.join().unwrap()));
        writer.join().unwrap();
        assert_eq!(granule.read(1, &EAGER), 2);
    });
}

#[test]
fn writers_are_serialised_and_no_write_is_lost() {
    every_order(3, || {
        let granule = Granule::<2>::new();
        let other = Arc::clone(&granule);
        let add = |granule: &Granule<2>| {
            granule::write(granule, 0, &EAGER, || {
                for word in &granule.memory[HOME] {
                    word.store(word.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                }
            });
        };
        let writer = thread::spawn(move || add(&other));
        add(&granule);
        let seen = granule.read(1, &EAGER);
        assert!(seen >= 1, "what it has written itself");
        writer.join().unwrap();
        assert_eq!(granule.read(1, &EAGER), 2);
    });
}

#[test]
fn sync_updates_every_copy_with_earlier_writes() {
    every_order(2, || {
        let granule = Granule::<3>::new();
        granule.write(1);
        let (reader, other) = (Arc::clone(&granule), Arc::clone(&granule));
        let reader = thread::spawn(move || reader.read(1, &EAGER));
        let other = thread::spawn(move || other.sync());
        granule.sync();
        for copy in &granule.memory {
            assert!(
                copy.iter().all(|word| word.load(Ordering::Relaxed) == 1),
                "looked at directly"
            );
        }
        assert_eq!(reader.join().unwrap(), 1);
        other.join().unwrap();
    });
}

#[test]
fn a_value_seen_by_one_reader_is_visible_to_the_reader_it_notifies() {
    let heard_of_the_last = std::sync::Arc::new(AtomicBool::new(false));
    let found = std::sync::Arc::clone(&heard_of_the_last);
    every_order(2, move || {
        let granule = Granule::<3>::new();
        granule.write(1);
        granule.sync();
        let (writer, teller) = (Arc::clone(&granule), Arc::clone(&granule));
        let told = Arc::new(AtomicU64::new(0));
        let tells = Arc::clone(&told);
        let writer = thread::spawn(move || {
            writer.write(2);
        });
        let teller = thread::spawn(move || tells.store(teller.read(1, &EAGER), Ordering::Release));
        let heard = told.load(Ordering::Acquire);
        assert!(granule.read(2, &EAGER) >= heard);
        found.fetch_or(heard == 2, Ordering::Relaxed);
        writer.join().unwrap();
        teller.join().unwrap();
    });
    assert!(
        heard_of_the_last.load(Ordering::Relaxed),
        "in some order it is told of the last value"
    );
}

#[test]
fn copies_return_after_a_quiet_time_until_the_collapse_limit() {
    loom::model(|| {
        let granule = Granule::<2>::new();
        let rule = Rule { quiet_ms: 10, collapses_most: 2 };
        let write = |now_ms| granule::write(&*granule, now_ms, &rule, || {});
        let made = |now_ms: fn() -> u64| {
            let quiet = Quiet { now_ms, rule: &rule, bring: |copy| granule.bring(copy) };
            granule::read(&*granule, 1, |_| {}, quiet)
        };
        let wrote = write(100);
        assert!(!wrote.is_collapse, "there was no copy");
        assert!(!made(|| 109), "too early");
        assert!(made(|| 110) && !made(|| 110), "it is made once");
        let wrote = write(120);
        assert_eq!((wrote.is_collapse, wrote.is_settled), (true, false));
        let wrote = write(121);
        assert!(!wrote.is_collapse, "once for all writes until copies are made");
        assert!(made(|| 131));
        let wrote = write(140);
        assert_eq!((wrote.is_collapse, wrote.is_settled), (true, true));
        assert!(!made(|| 10_000), "never again");
        // Direct views still get a copy, and readers use home.
        let bring = |copy| granule.bring(copy);
        assert_eq!(granule::sync(&*granule, &rule, bring), 1);
        assert_eq!(granule::sync(&*granule, &rule, bring), 0);
        let mut from = 9;
        let quiet = Quiet { now_ms: || 10_000, rule: &rule, bring };
        granule::read(&*granule, 1, |copy| from = copy, quiet);
        assert_eq!(from, HOME);
    });
}
