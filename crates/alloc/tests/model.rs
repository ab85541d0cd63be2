//! Random sequences of calls, of several threads at once, against a model of the invariants after each.
//!
//! The model knows the live objects with their address, kind and content; the existing kinds; and the statistics of a
//! kind while no call runs. Threads share all of it, so an object allocated by one is freed, moved and read by others.
//! `NEARFAR_SEQUENCES` is the number of sequences (default 64), for a longer search.
#![expect(unsafe_code, reason = "a C interface is called")]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_void};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use nearfar_alloc::ffi::*;
use proptest::prelude::*;

/// Kinds that can be made, and whether their allocations may fail or come from another kind.
const WORDS: [(&str, May); 11] = [
    ("bind:0", May::Give),
    ("near", May::Give),
    ("interleave:0", May::Give),
    ("weighted:0=3", May::Give),
    ("prefer:0;huge=no", May::Give),
    ("default", May::Give),
    ("0;huge=yes", May::Give),
    ("bind:0;limit=8m", May::Refuse),
    ("default;limit=5m", May::Refuse),
    ("bind:0;limit=8m;spill=interleave:0", May::Spill),
    ("near;limit=1m;spill=default", May::Spill),
];
/// Kinds that can't be made, and the errno.
const WRONG: [(&str, i32); 8] = [
    ("", libc::EINVAL),
    ("nowhere", libc::EINVAL),
    ("bind:1000", libc::ENODEV),
    ("bind:0;limit=", libc::EINVAL),
    ("bind:0;;", libc::EINVAL),
    ("weighted:0=0", libc::EINVAL),
    ("bind:0;spill=bind:1000", libc::ENODEV),
    ("bind:0;limit=1m;limit=1m", libc::EINVAL),
];
/// More than the address space of a program.
const ABSURD: usize = 1 << 47;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum May {
    Give,
    Refuse,
    Spill,
}

/// A call; objects and kinds are chosen by number, modulo those that exist.
#[derive(Clone, Debug)]
enum Call {
    Make { words: usize },
    MakeWrong { words: usize },
    End { kind: usize },
    Storm { count: usize },
    Allocate { kind: usize, how: How, size: usize },
    Placed { size: usize },
    Resize { object: usize, kind: usize, size: usize },
    Free { object: usize },
    Look { object: usize },
    Figures,
}

#[derive(Clone, Debug)]
enum How {
    Plain,
    Zeroed { count: usize },
    Aligned { alignment: usize },
}

/// A live object, and the first byte of its pattern.
#[derive(Debug)]
struct Object {
    at: usize,
    usable: usize,
    kind: nf_kind_t,
    seed: u8,
}

#[derive(Clone, Copy, Debug)]
struct Kind {
    handle: nf_kind_t,
    may: May,
    limit: u64,
}

#[derive(Debug)]
struct World {
    /// Locked for reading by users of kinds and for writing to destroy one, so that no thread uses a kind that is
    /// destroyed.
    kinds: RwLock<Vec<Kind>>,
    objects: Mutex<Vec<Object>>,
    /// Beginnings and ends of live objects.
    ranges: Mutex<BTreeMap<usize, usize>>,
    seed: AtomicU8,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn make(text: &str) -> nf_kind_t {
    let written = CString::new(text).expect("no zero within");
    // SAFETY: a string.
    unsafe { nf_kind_create(written.as_ptr()) }
}

fn usable(at: usize) -> usize {
    // SAFETY: the model passes live objects.
    unsafe { nf_usable_size(at as *const c_void) }
}

/// Bytes of an object that are written and checked: all of a small one; both ends of a large one, and some between.
fn looked_at(length: usize) -> impl Iterator<Item = usize> {
    const END: usize = 4096;
    let sparse = (END..length.saturating_sub(END).max(END)).step_by((length / 64).max(64 << 10));
    (0..length.min(END)).chain(sparse).chain(length.saturating_sub(END).max(END)..length)
}

#[expect(clippy::cast_possible_truncation, reason = "a pattern")]
const fn pattern(seed: u8, at: usize) -> u8 {
    seed ^ (at as u8) ^ ((at >> 8) as u8).wrapping_mul(31)
}

impl Object {
    fn fill(&self) {
        for at in looked_at(self.usable) {
            // SAFETY: within a live object that no other thread has.
            unsafe { (self.at as *mut u8).wrapping_add(at).write(pattern(self.seed, at)) };
        }
    }

    /// Whether the pattern of an object `length` bytes long is in the first `kept` bytes at an address.
    fn is_at(&self, place: usize, kept: usize) -> bool {
        looked_at(self.usable).filter(|at| *at < kept).all(|at| {
            // SAFETY: as for writing.
            unsafe { (place as *const u8).wrapping_add(at).read() == pattern(self.seed, at) }
        })
    }
}

impl World {
    fn new() -> Self {
        let kinds =
            [("bind:0", May::Give), ("bind:0;limit=8m", May::Refuse)].map(|(text, may)| Kind {
                handle: make(text),
                may,
                limit: if may == May::Refuse { 8 << 20 } else { u64::MAX },
            });
        Self {
            kinds: RwLock::new(kinds.to_vec()),
            objects: Mutex::default(),
            ranges: Mutex::default(),
            seed: AtomicU8::new(1),
        }
    }

    /// Calls `act` with a kind that can't be destroyed meanwhile; the last number is the default.
    fn with_kind<T>(&self, number: usize, act: impl FnOnce(Kind) -> T) -> T {
        let kinds = self.kinds.read().unwrap_or_else(PoisonError::into_inner);
        let plain = Kind { handle: NF_DEFAULT, may: May::Give, limit: u64::MAX };
        act(kinds.get(number % (kinds.len() + 1)).copied().unwrap_or(plain))
    }

    fn take(&self, number: usize) -> Option<Object> {
        let mut objects = lock(&self.objects);
        let count = objects.len().max(1);
        (number % count < objects.len()).then(|| objects.swap_remove(number % count))
    }

    /// Records a new object, and checks that it overlaps no other.
    fn begins(&self, memory: *mut c_void, kind: Kind, size: usize) -> Object {
        let (at, found) = (memory as usize, nf_kind_of(memory));
        let usable = usable(at);
        assert!(usable >= size, "{size}: {usable}");
        assert!(found == kind.handle || kind.may == May::Spill, "{kind:?} gave one of {found}");
        let mut ranges = lock(&self.ranges);
        let before = ranges.range(..at + usable).next_back().map(|(from, to)| (*from, *to));
        assert!(before.is_none_or(|(_, to)| to <= at), "{at:#x}, {usable}: {before:x?}");
        ranges.insert(at, at + usable);
        drop(ranges);
        let object =
            Object { at, usable, kind: found, seed: self.seed.fetch_add(1, Ordering::Relaxed) };
        object.fill();
        object
    }

    /// Removes an object from the model: to be called before it is freed.
    fn ends(&self, object: &Object) {
        assert_eq!(lock(&self.ranges).remove(&object.at), Some(object.at + object.usable));
    }

    /// Checks that a kind may refuse a size, and that errno is set.
    fn refused(kind: Kind, size: usize) {
        let error = errno();
        assert!(kind.may == May::Refuse || size >= ABSURD, "{kind:?} refused {size}: {error}");
        assert_eq!(error, libc::ENOMEM, "{kind:?}, {size}");
    }

    fn allocate(&self, kind: Kind, how: &How, size: usize) {
        let (memory, whole) = match how {
            How::Plain => (nf_malloc(kind.handle, size), size),
            How::Zeroed { count } => {
                (nf_calloc(kind.handle, *count, size), count.saturating_mul(size))
            }
            How::Aligned { alignment } => (nf_aligned_alloc(kind.handle, *alignment, size), size),
        };
        let alignment = if let How::Aligned { alignment } = how { *alignment } else { 1 };
        if memory.is_null() && !alignment.is_power_of_two() {
            assert_eq!(errno(), libc::EINVAL);
            return;
        }
        if memory.is_null() {
            return Self::refused(kind, whole.max(alignment));
        }
        assert_eq!(memory as usize % alignment, 0, "{size} at {alignment}");
        if matches!(how, How::Zeroed { .. }) {
            // SAFETY: as many bytes as were requested.
            let zero = |at| unsafe { memory.cast::<u8>().wrapping_add(at).read() == 0 };
            assert!(looked_at(whole).all(zero), "{whole}");
        }
        let object = self.begins(memory, kind, whole);
        lock(&self.objects).push(object);
    }

    fn resize(&self, object: Object, kind: Kind, size: usize) {
        self.ends(&object);
        // SAFETY: a live object that no other thread knows now.
        let moved = unsafe { nf_realloc(kind.handle, object.at as *mut c_void, size) };
        if moved.is_null() {
            Self::refused(kind, size);
            assert!(object.is_at(object.at, object.usable), "it is as it was");
            lock(&self.ranges).insert(object.at, object.at + object.usable);
            lock(&self.objects).push(object);
            return;
        }
        assert!(object.is_at(moved as usize, object.usable.min(size)), "{object:?} to {size}");
        let moved = self.begins(moved, kind, size);
        lock(&self.objects).push(moved);
    }

    fn free(&self, object: &Object) {
        assert!(object.is_at(object.at, object.usable), "{object:?}");
        self.ends(object);
        // SAFETY: a live object that no other thread knows now.
        unsafe { nf_free(object.at as *mut c_void) };
    }

    fn end(&self, number: usize) {
        let mut kinds = self.kinds.write().unwrap_or_else(PoisonError::into_inner);
        if kinds.is_empty() {
            return;
        }
        let number = number % kinds.len();
        let kind = kinds.swap_remove(number);
        let mut objects = lock(&self.objects);
        let (gone, stay) = objects.drain(..).partition::<Vec<_>, _>(|object| {
            // An object that was spilled is of another kind, unless it is plain.
            let is_known = kinds.iter().any(|kind| kind.handle == object.kind);
            object.kind == kind.handle
                || kind.may == May::Spill && object.kind != NF_DEFAULT && !is_known
        });
        *objects = stay;
        for object in &gone {
            assert!(object.is_at(object.at, object.usable), "{object:?}");
            self.ends(object);
        }
        // SAFETY: no thread has the kind or anything of it: all users of kinds wait for the lock that we hold.
        assert_eq!(unsafe { nf_kind_destroy(kind.handle) }, 0);
        // SAFETY: it is no kind any more.
        assert_eq!(unsafe { nf_kind_destroy(kind.handle) }, -1);
        assert_eq!(errno(), libc::EINVAL);
    }

    /// While no call runs, a kind's statistics match its live objects to the byte.
    fn figures(&self) {
        let kinds = self.kinds.write().unwrap_or_else(PoisonError::into_inner);
        for kind in kinds.iter() {
            let mut found = nf_stats_t::default();
            // SAFETY: room for them.
            assert_eq!(unsafe { nf_stats(kind.handle, &raw mut found) }, 0);
            let live = lock(&self.objects)
                .iter()
                .filter(|object| object.kind == kind.handle)
                .map(|object| object.usable as u64)
                .sum::<u64>();
            assert_eq!(found.allocated, live, "{kind:?}: {found:?}");
            assert!(found.set_aside >= found.allocated + found.kept, "{kind:?}: {found:?}");
            assert!(
                found.set_aside <= kind.limit && found.limit == kind.limit,
                "{kind:?}: {found:?}"
            );
        }
    }

    fn call(&self, call: &Call) {
        match *call {
            Call::Make { words } => {
                let (text, may) = WORDS[words % WORDS.len()];
                let mib = |text: &str| text.strip_suffix('m')?.parse::<u64>().ok();
                let limit = text.split(';').find_map(|part| mib(part.strip_prefix("limit=")?));
                let handle = make(text);
                assert_ne!(handle, NF_NONE, "{text}");
                let limit = limit.map_or(u64::MAX, |limit| limit << 20);
                self.kinds.write().unwrap_or_else(PoisonError::into_inner).push(Kind {
                    handle,
                    may,
                    limit,
                });
            }
            Call::MakeWrong { words } => {
                let (text, error) = WRONG[words % WRONG.len()];
                assert_eq!((make(text), errno()), (NF_NONE, error), "{text}");
                // SAFETY: a string that stays until the thread's next error.
                assert!(!unsafe { CStr::from_ptr(nf_error()) }.is_empty());
            }
            Call::End { kind } => self.end(kind),
            Call::Storm { count } => {
                let kinds: Vec<_> = (0..count).map(|_| make("bind:0")).collect();
                for kind in kinds {
                    let memory = nf_malloc(kind, 100);
                    assert_eq!(nf_kind_of(memory), kind);
                    // SAFETY: no other thread knows it.
                    assert_eq!(unsafe { nf_kind_destroy(kind) }, 0);
                }
            }
            Call::Allocate { kind, ref how, size } => {
                self.with_kind(kind, |kind| self.allocate(kind, how, size))
            }
            Call::Placed { size } => {
                // SAFETY: a string.
                let memory = unsafe { nf_malloc_placed(c"weighted:0=1".as_ptr(), size) };
                if memory.is_null() {
                    assert!(size >= ABSURD, "{size}: {}", errno());
                    return;
                }
                let kind = Kind { handle: nf_kind_of(memory), may: May::Give, limit: u64::MAX };
                let object = self.begins(memory, kind, size);
                lock(&self.objects).push(object);
            }
            Call::Resize { object, kind, size } => self.with_kind(kind, |kind| {
                if let Some(object) = self.take(object) {
                    self.resize(object, kind, size);
                }
            }),
            Call::Free { object } => self.with_kind(0, |_| {
                if let Some(object) = self.take(object) {
                    self.free(&object);
                }
            }),
            Call::Look { object } => self.with_kind(0, |_| {
                if let Some(object) = self.take(object) {
                    assert_eq!(usable(object.at), object.usable);
                    assert_eq!(nf_kind_of(object.at as *const c_void), object.kind);
                    assert!(object.is_at(object.at, object.usable), "{object:?}");
                    lock(&self.objects).push(object);
                }
            }),
            Call::Figures => self.figures(),
        }
    }
}

fn sizes() -> impl Strategy<Value = usize> {
    prop_oneof![
        40 => 0..2000_usize,
        20 => 0..70_000_usize,
        10 => 0..(6_usize << 20),
        // Around the limits of the thread cache, of arenas, and of objects with segments of their own.
        6 => (prop::sample::select(&[32_768, 4 << 20, 64 << 20][..]), 0..3_usize).prop_map(|(size, more)| size - 1 + more),
        1 => (60_usize << 20)..(150 << 20),
        2 => (prop::sample::select(&[ABSURD, 1 << 62, usize::MAX >> 1, usize::MAX - 5000][..]), 0..5000_usize)
            .prop_map(|(size, more)| size + more),
    ]
}

fn hows() -> impl Strategy<Value = How> {
    let wrong = prop::sample::select(&[0, 3, 24, usize::MAX][..]);
    let alignment = prop_oneof![
        12 => (0..14_u32).prop_map(|shift| 1 << shift),
        6 => (14..31_u32).prop_map(|shift| 1 << shift),
        1 => Just(1 << 63),
        1 => wrong,
    ];
    prop_oneof![
        4 => Just(How::Plain),
        1 => prop_oneof![0..5_usize, Just(usize::MAX / 2)].prop_map(|count| How::Zeroed { count }),
        2 => alignment.prop_map(|alignment| How::Aligned { alignment }),
    ]
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let any = 0..1000_usize;
    let call = prop_oneof![
        2 => any.clone().prop_map(|words| Call::Make { words }),
        1 => any.clone().prop_map(|words| Call::MakeWrong { words }),
        1 => any.clone().prop_map(|kind| Call::End { kind }),
        1 => (1..40_usize).prop_map(|count| Call::Storm { count }),
        36 => (any.clone(), hows(), sizes()).prop_map(|(kind, how, size)| Call::Allocate { kind, how, size }),
        1 => sizes().prop_map(|size| Call::Placed { size }),
        16 => (any.clone(), any.clone(), sizes()).prop_map(|(object, kind, size)| Call::Resize { object, kind, size }),
        24 => any.clone().prop_map(|object| Call::Free { object }),
        6 => any.prop_map(|object| Call::Look { object }),
        2 => Just(Call::Figures),
    ];
    prop::collection::vec(call, 1..150)
}

fn sequences() -> u32 {
    let told = std::env::var("NEARFAR_SEQUENCES").ok().and_then(|count| count.parse().ok());
    told.unwrap_or(64)
}

/// Counts a running thread; dropping it, also by a panic, decrements the count.
struct Calling<'a>(&'a AtomicUsize);

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// Runs each sequence in a thread of its own, then frees everything. No thread ends before all have done their calls:
/// an ending thread empties its cache, and objects in transit are counted nowhere.
fn run(of_threads: &[Vec<Call>]) {
    let world = World::new();
    let left = AtomicUsize::new(of_threads.len());
    let work = |calls: &[Call]| {
        let calling = Calling(&left);
        calls.iter().for_each(|call| world.call(call));
        drop(calling);
        while left.load(Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = of_threads.iter().map(|calls| scope.spawn(|| work(calls))).collect();
        // A scope waits for the closures, a join for the threads' end.
        threads.into_iter().for_each(|thread| thread.join().expect("a thread that did not fail"));
    });
    world.figures();
    while let Some(object) = world.take(0) {
        world.free(&object);
    }
    world.figures();
    while !world.kinds.read().unwrap_or_else(PoisonError::into_inner).is_empty() {
        world.end(0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: sequences(), max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_calls_matches_the_model(calls in calls()) {
        run(&[calls]);
    }

    #[test]
    fn call_sequences_of_several_threads_match_the_model(calls in prop::collection::vec(calls(), 2..5)) {
        run(&calls);
    }
}
