//! What is measured.
#![expect(unsafe_code, reason = "objects are written to")]

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::clock;
use crate::libraries::Calls;

/// Objects that are alive at a time in `pairs`.
const BATCH: usize = 64;
/// Sizes that are gone through, a power of two.
const SIZES: usize = 8192;
/// Objects on their way from a thread to the next, a power of two.
const RING: usize = 1024;

/// A load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    Pairs,
    Mixed,
}

impl Load {
    pub(crate) const ALL: [Self; 2] = [Self::Pairs, Self::Mixed];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pairs => "pairs",
            Self::Mixed => "mixed",
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
        // As many of each doubling from 16 bytes to 1 KiB, then fewer and fewer.
        Load::Mixed => {
            let doubling = (next() % 64).min(next() % 64) / 6;
            (16 << doubling) + next() % (16 << doubling)
        }
    };
    (0..SIZES).map(size).collect()
}

/// A ring from one thread to another. Zero is an empty place.
struct Ring([AtomicUsize; RING]);

/// Nanoseconds of all threads for an object allocated and freed, the time of a thread divided by what it did.
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
                        }
                        counted += BATCH as u64;
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
fn pass(calls: &Calls, sizes: &[usize], at: &mut usize, to: &Ring, from: &Ring) {
    for _ in 0..BATCH {
        *at = (*at + 1) % SIZES;
        let size = sizes[*at];
        let object = calls.allocate(size);
        touch(object);
        // A place of the ring by chance, so that objects are freed in another order than they are allocated.
        let place = at.wrapping_mul(0x9e37_79b9) >> 7 & (RING - 1);
        calls.free(to.0[place].swap(object, Ordering::AcqRel));
        let place = at.wrapping_mul(0x85eb_ca6b) >> 7 & (RING - 1);
        calls.free(from.0[place].swap(0, Ordering::AcqRel));
    }
}

fn touch(object: usize) {
    assert!(object != 0, "out of memory");
    // SAFETY: an object of eight bytes at least, that nobody else has.
    unsafe { (object as *mut u64).write(1) };
}
