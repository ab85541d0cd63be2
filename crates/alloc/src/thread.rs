//! A thread's cache: for each kind and class a magazine of free objects, so that most calls touch nothing shared.
//!
//! A thread's record is made by its first call that needs one, is in a list that is never cut, and is reused by a later
//! thread after the first has ended. Reading the list is safe at any time.
//!
//! Rules: only its own thread changes a magazine, with two exceptions: when the kind is destroyed (its users have
//! promised not to use it), and in the child of a fork, where the other threads do not exist. So that a thread may be
//! stopped anywhere, an object is stored before the count includes it, and the count is reduced before the object is
//! taken. Counts and slots are atomics so that other threads may read them; all accesses are relaxed.
#![expect(unsafe_code, reason = "records that outlive their threads")]

use core::cell::UnsafeCell;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering, compiler_fence};

use crate::classes::{CLASSES, batch_of_class, room_of_class, size_of_class};
use crate::depot::BATCH;
use crate::kind::{self, Kind};
use crate::space::{Code, KINDS};
use crate::{arena, own, space, tls};

/// Objects a magazine has room for.
const SLOTS: usize = 2 * BATCH;
/// The longest error message kept.
const TEXT: usize = 512;

/// Free objects of one class of one kind.
#[repr(C)]
pub(crate) struct Magazine {
    count: AtomicU32,
    room: AtomicU32,
    slots: [AtomicUsize; SLOTS],
}

/// A thread's magazines of one kind.
#[repr(C)]
pub(crate) struct Magazines {
    bins: [Magazine; CLASSES],
}

/// Stands for the magazines of a kind that a thread has not used: empty and without room.
static NOTHING: Magazines = Magazines { bins: [const { Magazine::nothing() }; CLASSES] };

/// A thread's record.
#[repr(C)]
pub(crate) struct Thread {
    /// The magazines of each kind, as their distance from [`NOTHING`]: so a zeroed record has none.
    magazines: [AtomicUsize; KINDS],
    next: AtomicPtr<Thread>,
    taken: AtomicBool,
    /// Where [`tls`] has it.
    key: AtomicUsize,
    shard: AtomicU32,
    error: UnsafeCell<[u8; TEXT]>,
}

// SAFETY: the error text is its thread's alone; all else is atomics.
unsafe impl Sync for Thread {}

static THREADS: AtomicPtr<Thread> = AtomicPtr::new(null_mut());
static MADE: AtomicU32 = AtomicU32::new(0);
static EXIT: AtomicU32 = AtomicU32::new(NO_KEY);
const NO_KEY: u32 = u32::MAX;

impl Magazine {
    const fn nothing() -> Self {
        Self {
            count: AtomicU32::new(0),
            room: AtomicU32::new(0),
            slots: [const { AtomicUsize::new(0) }; SLOTS],
        }
    }

    #[inline(always)]
    fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed) as usize
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "at most as many as there are slots")]
    fn set_count(&self, count: usize) {
        self.count.store(count as u32, Ordering::Relaxed);
    }

    /// Takes an object.
    #[inline(always)]
    pub(crate) fn pop(&self) -> Option<usize> {
        let count = self.count().checked_sub(1)?;
        self.set_count(count);
        compiler_fence(Ordering::Release);
        // The count is at most the number of slots.
        Some(self.slots[count & (SLOTS - 1)].load(Ordering::Relaxed))
    }

    /// Puts an object in; false if it is full.
    #[inline(always)]
    pub(crate) fn push(&self, object: usize) -> bool {
        let count = self.count();
        if count >= self.room() {
            return false;
        }
        self.slots[count & (SLOTS - 1)].store(object, Ordering::Relaxed);
        compiler_fence(Ordering::Release);
        self.set_count(count + 1);
        true
    }

    /// Objects it has room for.
    #[inline(always)]
    pub(crate) fn room(&self) -> usize {
        self.room.load(Ordering::Relaxed) as usize
    }

    /// Takes the oldest half of its objects, or all; returns how many.
    fn take_oldest(&self, all: bool, into: &mut [usize; SLOTS]) -> usize {
        let count = self.count();
        let taken = if all { count } else { count.min(self.room() / 2) };
        for (object, slot) in into.iter_mut().zip(&self.slots[..taken]) {
            *object = slot.load(Ordering::Relaxed);
        }
        self.set_count(0);
        compiler_fence(Ordering::Release);
        for at in taken..count {
            self.slots[at - taken].store(self.slots[at].load(Ordering::Relaxed), Ordering::Relaxed);
        }
        compiler_fence(Ordering::Release);
        self.set_count(count - taken);
        taken
    }
}

impl Thread {
    /// The magazine of a kind and class, below [`KINDS`] and [`CLASSES`]; one without room if the thread has none of
    /// that kind.
    #[inline(always)]
    pub(crate) fn magazine(&self, kind: usize, class: usize) -> &Magazine {
        let distance = self.magazines[kind & (KINDS - 1)].load(Ordering::Relaxed);
        let magazines = (&raw const NOTHING).wrapping_byte_add(distance);
        debug_assert!(class < CLASSES);
        // SAFETY: the pointer is to a thread's magazines, which are never freed, or to `NOTHING`.
        let bins = unsafe { &(*magazines).bins };
        // SAFETY: a class.
        unsafe { bins.get_unchecked(class) }
    }

    /// Whether the thread has magazines of a kind.
    pub(crate) fn has(&self, kind: usize) -> bool {
        self.magazines[kind].load(Ordering::Relaxed) != 0
    }

    /// Makes magazines of a kind, if there is memory for them.
    pub(crate) fn ensure(&self, kind: usize) -> bool {
        if self.has(kind) {
            return true;
        }
        let Some(made) = own::zeroed::<Magazines>() else { return false };
        for class in 1..CLASSES {
            // SAFETY: all zeroes are magazines; no other thread knows them yet.
            unsafe { &(*made.as_ptr()).bins[class].room }
                .store(room_of_class(class), Ordering::Relaxed);
        }
        let distance = (made.as_ptr() as usize).wrapping_sub(&raw const NOTHING as usize);
        self.magazines[kind].store(distance, Ordering::Release);
        true
    }

    /// The index of the kind's arena that it uses.
    pub(crate) fn shard(&self) -> usize {
        self.shard.load(Ordering::Relaxed) as usize
    }
}

/// The calling thread's record, made if it has none. `None` if there is no memory or no place for it.
pub(crate) fn current() -> Option<&'static Thread> {
    // SAFETY: records are never freed.
    if let Some(thread) = unsafe { tls::get().as_ref() } {
        return Some(thread);
    }
    let thread = all().find(|thread| {
        let free = thread.taken.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed);
        free.is_ok()
    });
    let thread = thread.or_else(make)?;
    if !tls::set(core::ptr::from_ref(thread).cast_mut()) {
        thread.taken.store(false, Ordering::Release);
        return None;
    }
    thread.key.store(tls::key(), Ordering::Relaxed);
    // SAFETY: the calling thread's own, and there is no reference into it.
    unsafe { (*thread.error.get())[0] = 0 };
    on_exit(thread);
    Some(thread)
}

fn make() -> Option<&'static Thread> {
    let made: NonNull<Thread> = own::zeroed()?;
    // SAFETY: all zeroes is a record.
    let thread = unsafe { made.as_ref() };
    thread.taken.store(true, Ordering::Relaxed);
    thread.shard.store(MADE.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    let mut first = THREADS.load(Ordering::Acquire);
    loop {
        thread.next.store(first, Ordering::Relaxed);
        let shown =
            THREADS.compare_exchange(first, made.as_ptr(), Ordering::AcqRel, Ordering::Acquire);
        match shown {
            Ok(_) => return Some(thread),
            Err(other) => first = other,
        }
    }
}

/// All records, of running and ended threads.
pub(crate) fn all() -> impl Iterator<Item = &'static Thread> {
    let follow = |at: *mut Thread| {
        // SAFETY: records are never freed.
        unsafe { at.as_ref() }
    };
    let first = follow(THREADS.load(Ordering::Acquire));
    core::iter::successors(first, move |thread| follow(thread.next.load(Ordering::Acquire)))
}

/// Registers [`ended`] for the thread's end.
fn on_exit(thread: &'static Thread) {
    let mut key = EXIT.load(Ordering::Acquire);
    if key == NO_KEY {
        let mut made: libc::pthread_key_t = 0;
        // SAFETY: a place for the key, and a function that takes what is set below.
        if unsafe { libc::pthread_key_create(&raw mut made, Some(ended)) } != 0 {
            return;
        }
        let (order, otherwise) = (Ordering::AcqRel, Ordering::Acquire);
        key = match EXIT.compare_exchange(NO_KEY, made, order, otherwise) {
            Ok(_) => made,
            Err(other) => {
                // SAFETY: ours, and no thread has set it.
                unsafe { libc::pthread_key_delete(made) };
                other
            }
        };
    }
    // SAFETY: a key that was made; the record outlives the thread.
    unsafe { libc::pthread_setspecific(key, core::ptr::from_ref(thread).cast()) };
}

unsafe extern "C" fn ended(record: *mut libc::c_void) {
    // SAFETY: set above to a record, and those are never freed.
    let Some(thread) = (unsafe { record.cast::<Thread>().as_ref() }) else { return };
    for index in 0..kind::numbers() {
        if thread.has(index) {
            flush(thread, index);
        }
    }
    tls::set(null_mut());
    thread.taken.store(false, Ordering::Release);
}

/// Returns all objects of a kind from the cache of the calling thread.
fn flush(thread: &Thread, index: usize) {
    // The objects of a destroyed kind are gone with it.
    let Some(kind) = kind::visit(index) else { return };
    for class in (1..CLASSES).filter(|class| thread.magazine(index, *class).count() > 0) {
        let mut objects = [0; SLOTS];
        let count = thread.magazine(index, class).take_oldest(true, &mut objects);
        bring(&kind, class, &objects[..count]);
    }
}

/// Makes room in a full magazine.
pub(crate) fn make_room(magazine: &Magazine, kind: &Kind, class: usize) {
    kind.drop_overdue();
    let mut objects = [0; SLOTS];
    let count = magazine.take_oldest(false, &mut objects);
    bring(kind, class, &objects[..count]);
}

/// Fills half of an empty magazine, from the depot or else from an arena; may leave it empty if there is no memory.
pub(crate) fn refill(magazine: &Magazine, kind: &'static Kind, class: usize, shard: usize) {
    kind.drop_overdue();
    let mut objects = [0; BATCH];
    let is_stocked = kind.stocked.load(Ordering::Relaxed) & 1 << class != 0;
    let mut count = if is_stocked { kind.depots[class].take(&mut objects) } else { 0 };
    if count == 0 {
        count = allocate(kind, class, shard, &mut objects[..batch_of_class(class)]);
    }
    for object in &objects[..count] {
        if let Some(offset) = space::offset_of(*object) {
            space::set_code(offset, Code::new(kind.index(), class));
        }
        magazine.push(*object);
    }
}

/// Takes objects from an arena. Objects returned to it come first and one by one: a batch would be cut from fresh
/// pages.
fn allocate(kind: &'static Kind, class: usize, shard: usize, into: &mut [usize]) -> usize {
    let (size, returned) = (size_of_class(class), &kind.returned[class]);
    let first = kind.first_objects(class, into);
    if first > 0 {
        kind.went_out(first * size);
        return first;
    }
    let Some(arena) = kind.arena(shard) else { return 0 };
    let again = returned.load(Ordering::Relaxed).min(into.len());
    let mut count = 0;
    for place in &mut into[..again] {
        let Some(object) = arena.one(size, 1, false) else { break };
        *place = object.as_ptr() as usize;
        count += 1;
    }
    let less = |all: usize| Some(all.saturating_sub(count));
    let _ = returned.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    if count == 0 {
        count = arena.batch(size, into);
    }
    kind.went_out(count * size);
    count
}

/// Moves objects to their kind's depot, and returns those without room there to the arena.
pub(crate) fn bring(kind: &Kind, class: usize, objects: &[usize]) {
    let depot = &kind.depots[class];
    if kind.stocked.load(Ordering::Relaxed) & 1 << class == 0 {
        kind.stocked.fetch_or(1 << class, Ordering::Relaxed);
    }
    let brought = depot.bring(class, objects);
    return_all(kind, class, &objects[brought..]);
    let mut surplus = [0; BATCH];
    let count = depot.surplus(&mut surplus);
    return_all(kind, class, &surplus[..count]);
}

fn return_all(kind: &Kind, class: usize, objects: &[usize]) {
    if objects.is_empty() {
        return;
    }
    let of_arena = || objects.iter().filter(|object| !kind.nursery.has(**object));
    kind.returned[class].fetch_add(of_arena().count(), Ordering::Relaxed);
    for object in of_arena() {
        // SAFETY: it came from an arena by a refill, and was in a magazine: nothing uses it.
        unsafe { arena::give_back(*object) };
    }
    kind.came_back(objects.len() * size_of_class(class));
}

/// Number of objects of a class of a kind in all threads' caches; approximate while they run.
pub(crate) fn kept(index: usize, class: usize) -> usize {
    all().map(|thread| thread.magazine(index, class).count()).sum()
}

/// Empties the magazines of a kind in all threads, without freeing the objects.
///
/// # Safety
/// No thread uses the kind or anything of it any more.
pub(crate) unsafe fn forget_kind(index: usize) {
    for thread in all().filter(|thread| thread.has(index)) {
        (1..CLASSES).for_each(|class| thread.magazine(index, class).set_count(0));
    }
}

/// Registers the handler for forks when the library is loaded: before any other thread may be in here.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = {
    extern "C" fn at_load() {
        // SAFETY: a function that may be called in any child.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    }
    at_load
};

/// In the child of a fork: frees the records of threads that do not exist here, and the places of depots that those
/// owned. A new thread may have the thread pointer of one of those, and must not find its record.
unsafe extern "C" fn forked() {
    let own = tls::get().cast_const();
    for thread in all().filter(|thread| !core::ptr::eq(*thread, own)) {
        tls::forget(thread.key.load(Ordering::Relaxed), thread);
        thread.taken.store(false, Ordering::Release);
    }
    for kind in kind::made() {
        kind.visitors.forget();
        // SAFETY: the child has one thread, and it is here.
        unsafe { kind.kept.reset_if_locked() };
        for depot in kind.stocked_depots() {
            // SAFETY: the child has one thread, and it is here.
            unsafe { depot.free_places() };
        }
    }
}

/// Saves an error message for the calling thread.
pub(crate) fn set_error(text: &str) {
    let Some(thread) = current() else { return };
    let length = text.floor_char_boundary(TEXT - 1);
    // SAFETY: the calling thread's own, and there is no reference into it.
    let place = unsafe { &mut *thread.error.get() };
    place[..length].copy_from_slice(&text.as_bytes()[..length]);
    place[length] = 0;
}

/// The calling thread's last error message, ended by a zero; valid until the thread's next error.
pub(crate) fn error() -> *const u8 {
    current().map_or(c"".as_ptr().cast(), |thread| thread.error.get().cast_const().cast())
}
