//! The measured loads: allocation patterns that run on one or more threads.
#![expect(unsafe_code, reason = "objects are written to")]

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::clock;
use crate::libraries::Calls;

/// Objects alive at a time in `pairs`.
const BATCH: usize = 64;
/// Number of sizes in the repeated sequence, a power of two.
const SIZES: usize = 8192;
/// Capacity of the ring from a thread to the next, in objects; a power of two.
const RING: usize = 1024;

/// Objects alive at a time in `thousand`.
const THOUSAND: usize = 1000;
const PAGE: usize = 4096;

/// A load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    Pairs,
    Mixed,
    Thousand,
    /// One object at a time, of this many MiB, each page written.
    Large(usize),
}

impl Load {
    pub(crate) const ALL: [Self; 6] =
        [Self::Pairs, Self::Mixed, Self::Thousand, Self::Large(4), Self::Large(5), Self::Large(8)];

    /// Thread counts to run the load with. Large objects run with few: they measure the kernel, not contention.
    pub(crate) fn threads(self) -> &'static [usize] {
        if matches!(self, Self::Large(_)) { &[1] } else { &[1, 2, 8] }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pairs => "pairs",
            Self::Mixed => "mixed",
            Self::Thousand => "thousand",
            Self::Large(4) => "large, 4 MiB",
            Self::Large(5) => "large, 5 MiB",
            Self::Large(_) => "large, 8 MiB",
        }
    }
}

impl std::str::FromStr for Load {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|load| load.name() == text);
        found.ok_or_else(|| format!("{text}: no such load"))
    }
}

fn sizes(load: Load) -> Vec<usize> {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        usize::try_from(random >> 33).unwrap_or(0)
    };
    let size = |_| match load {
        Load::Pairs => 16 + next() % 1009,
        // Equal counts for each doubling from 16 bytes to 1 KiB, decreasing counts above.
        Load::Mixed => {
            let doubling = (next() % 64).min(next() % 64) / 6;
            (16 << doubling) + next() % (16 << doubling)
        }
        Load::Thousand => 16,
        Load::Large(mib) => mib << 20,
    };
    (0..SIZES).map(size).collect()
}

/// A ring buffer from one thread to another. Zero marks an empty place.
struct Ring([AtomicUsize; RING]);

/// Nanoseconds per object allocated and freed, averaged over all threads: a thread's run time divided by its
/// operations.
pub(crate) fn nanoseconds(calls: &Calls, load: Load, threads: usize, milliseconds: u64) -> f64 {
    let sizes = sizes(load);
    let rings: Vec<Ring> =
        (0..threads).map(|_| Ring([const { AtomicUsize::new(0) }; RING])).collect();
    let (warm, stop, done) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    let finished = AtomicUsize::new(0);
    let mut elapsed = Duration::ZERO;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (sizes, rings, warm, stop, done) = (&sizes, &rings, &warm, &stop, &done);
            let finished = &finished;
            scope.spawn(move || {
                let mut at = thread * 1237;
                let mut counted = 0;
                let mut count = false;
                while !stop.load(Ordering::Relaxed) {
                    for _ in 0..16 {
                        match load {
                            Load::Pairs => batch(calls, sizes, &mut at),
                            Load::Mixed => {
                                let next = &rings[(thread + 1) % rings.len()];
                                pass(calls, sizes, &mut at, next, &rings[thread]);
                            }
                            Load::Thousand => thousand(calls, sizes[0]),
                            Load::Large(_) => large(calls, sizes[0]),
                        }
                        counted += match load {
                            Load::Pairs | Load::Mixed => BATCH as u64,
                            Load::Thousand => THOUSAND as u64,
                            Load::Large(_) => 1,
                        };
                    }
                    if !count && warm.load(Ordering::Relaxed) {
                        (count, counted) = (true, 0);
                    }
                }
                done.fetch_add(counted, Ordering::Relaxed);
                finished.fetch_add(1, Ordering::Relaxed);
                while finished.load(Ordering::Relaxed) < rings.len() {
                    std::thread::yield_now();
                }
                rings[thread]
                    .0
                    .iter()
                    .for_each(|place| calls.free(place.swap(0, Ordering::AcqRel)));
            });
        }
        clock::sleep(Duration::from_millis(milliseconds / 4));
        warm.store(true, Ordering::Relaxed);
        elapsed = clock::sleep(Duration::from_millis(milliseconds));
        stop.store(true, Ordering::Relaxed);
    });
    elapsed.as_secs_f64() * 1e9 * threads as f64 / done.load(Ordering::Relaxed).max(1) as f64
}

#[inline(never)]
fn batch(calls: &Calls, sizes: &[usize], at: &mut usize) {
    let mut objects = [0; BATCH];
    for object in &mut objects {
        *at = (*at + 1) % SIZES;
        *object = calls.allocate(sizes[*at]);
        touch(*object);
    }
    for object in objects {
        calls.free(black_box(object));
    }
}

#[inline(never)]
fn thousand(calls: &Calls, size: usize) {
    let mut objects = [0; THOUSAND];
    for object in &mut objects {
        *object = calls.allocate(size);
        touch(*object);
    }
    for object in objects {
        calls.free(black_box(object));
    }
}

#[inline(never)]
fn large(calls: &Calls, size: usize) {
    let object = calls.allocate(size);
    (0..size).step_by(PAGE).for_each(|page| touch(object + page));
    calls.free(black_box(object));
}

#[inline(never)]
fn pass(calls: &Calls, sizes: &[usize], at: &mut usize, to: &Ring, from: &Ring) {
    for _ in 0..BATCH {
        *at = (*at + 1) % SIZES;
        let size = sizes[*at];
        let object = calls.allocate(size);
        touch(object);
        // A pseudo-random place of the ring, so that objects are freed in another order than they were allocated.
        let place = at.wrapping_mul(0x9e37_79b9) >> 7 & (RING - 1);
        calls.free(to.0[place].swap(object, Ordering::AcqRel));
        let place = at.wrapping_mul(0x85eb_ca6b) >> 7 & (RING - 1);
        calls.free(from.0[place].swap(0, Ordering::AcqRel));
    }
}

fn touch(object: usize) {
    assert!(object != 0, "out of memory");
    // SAFETY: an object of at least eight bytes that no other thread uses.
    unsafe { (object as *mut u64).write(1) };
}
