//! What a thread keeps: for each kind and class a magazine of free objects, so that most calls touch nothing shared.
//!
//! A thread's record is made by its first call that needs one, is in a list that is never cut, and goes to a thread that
//! begins after it has ended. Reading the list is safe at any time.
//!
//! Rules: magazines are changed by their thread alone, but for two moments: when their kind ends (its users have promised to
//! be gone), and in the child of a fork, where the other threads are not. So that a thread may be stopped anywhere, an object
//! is in its place before the count says so, and the count says less before it is taken out. Counts and slots are atomics so
//! that others may look at them; all are read and written as plain words.
#![expect(unsafe_code, reason = "records that outlive their threads")]

use core::cell::UnsafeCell;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering, compiler_fence};

use crate::classes::{CLASSES, size_of_class};
use crate::kind::{self, Kind};
use crate::space::{Code, KINDS};
use crate::{arena, own, space, tls};

/// Objects a magazine has room for.
const SLOTS: usize = 64;
/// The longest error text kept.
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

/// What stands for the magazines of a kind that a thread has not used: nothing in it and no room.
static NOTHING: Magazines = Magazines { bins: [const { Magazine::nothing() }; CLASSES] };

/// A thread's record.
#[repr(C)]
pub(crate) struct Thread {
    magazines: [AtomicPtr<Magazines>; KINDS],
    next: AtomicPtr<Thread>,
    taken: AtomicBool,
    shard: AtomicU32,
    error: UnsafeCell<[u8; TEXT]>,
}

// SAFETY: the error text is its thread's alone; all else is atomics.
unsafe impl Sync for Thread {}

static THREADS: AtomicPtr<Thread> = AtomicPtr::new(null_mut());
static MADE: AtomicU32 = AtomicU32::new(0);
static EXIT: AtomicU32 = AtomicU32::new(NO_KEY);
const NO_KEY: u32 = u32::MAX;

const fn room_of(class: usize) -> u32 {
    match crate::classes::SIZES[class] {
        0..=1024 => 64,
        1025..=4096 => 16,
        _ => 8,
    }
}

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

    /// Takes an object out.
    #[inline(always)]
    pub(crate) fn pop(&self) -> Option<usize> {
        let count = self.count().checked_sub(1)?;
        self.set_count(count);
        compiler_fence(Ordering::Release);
        // The count is at most as many as there are slots.
        Some(self.slots[count & (SLOTS - 1)].load(Ordering::Relaxed))
    }

    /// Puts an object in, if there is room.
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

    /// Takes half of what it has kept, the oldest, or all; how many.
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
    /// The magazine of a kind and class, below [`KINDS`] and [`CLASSES`]; one without room if the thread has none of that kind.
    #[inline(always)]
    pub(crate) fn magazine(&self, kind: usize, class: usize) -> &Magazine {
        let magazines = self.magazines[kind & (KINDS - 1)].load(Ordering::Relaxed);
        debug_assert!(class < CLASSES);
        // SAFETY: the pointer is that of a thread's magazines, which are never freed, or of nothing.
        let bins = unsafe { &(*magazines).bins };
        // SAFETY: a class.
        unsafe { bins.get_unchecked(class) }
    }

    /// Whether the thread has magazines of a kind.
    pub(crate) fn has(&self, kind: usize) -> bool {
        self.magazines[kind].load(Ordering::Relaxed).cast_const() != &raw const NOTHING
    }

    /// Makes magazines of a kind, if there is memory for them.
    pub(crate) fn ensure(&self, kind: usize) -> bool {
        if self.has(kind) {
            return true;
        }
        let Some(made) = own::zeroed::<Magazines>() else { return false };
        for class in 1..CLASSES {
            // SAFETY: all zeroes are magazines; nobody else knows them yet.
            unsafe { &(*made.as_ptr()).bins[class].room }.store(room_of(class), Ordering::Relaxed);
        }
        self.magazines[kind].store(made.as_ptr(), Ordering::Release);
        true
    }

    /// Which of a kind's arenas it uses.
    pub(crate) fn shard(&self) -> usize {
        self.shard.load(Ordering::Relaxed) as usize
    }
}

/// The calling thread's record, made if it has none. None if there is no memory for it, or no place.
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
    on_exit(thread);
    Some(thread)
}

fn make() -> Option<&'static Thread> {
    let made: NonNull<Thread> = own::zeroed()?;
    // SAFETY: all zeroes is a record, though one whose magazines can't be read; nobody else knows it yet.
    let thread = unsafe { made.as_ref() };
    for magazines in &thread.magazines {
        magazines.store((&raw const NOTHING).cast_mut(), Ordering::Relaxed);
    }
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

/// All records, of threads and of threads that have ended.
pub(crate) fn all() -> impl Iterator<Item = &'static Thread> {
    let follow = |at: *mut Thread| {
        // SAFETY: records are never freed.
        unsafe { at.as_ref() }
    };
    let first = follow(THREADS.load(Ordering::Acquire));
    core::iter::successors(first, move |thread| follow(thread.next.load(Ordering::Acquire)))
}

/// Has the C library call [`ended`] when the thread ends, and sees to forks.
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
            Ok(_) => {
                // SAFETY: a function that may be called in any child.
                unsafe { libc::pthread_atfork(None, None, Some(forked)) };
                made
            }
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
    for index in 1..KINDS {
        if thread.has(index) {
            flush(thread, index);
        }
    }
    tls::set(null_mut());
    thread.taken.store(false, Ordering::Release);
}

/// Gives back all that a thread keeps of a kind: the calling one, or one that is no more. Where it keeps nothing it touches
/// nothing: its magazines may be left from another kind, and the one that has the number now may be ending.
pub(crate) fn flush(thread: &Thread, index: usize) {
    for class in (1..CLASSES).filter(|class| thread.magazine(index, *class).count() > 0) {
        let mut objects = [0; SLOTS];
        let count = thread.magazine(index, class).take_oldest(true, &mut objects);
        // If the kind is gone the objects are gone with it.
        if let Some(kind) = kind::at(index) {
            bring(kind, class, &objects[..count]);
        }
    }
}

/// Makes room in a magazine that is full.
pub(crate) fn make_room(magazine: &Magazine, kind: &Kind, class: usize) {
    let mut objects = [0; SLOTS];
    let count = magazine.take_oldest(false, &mut objects);
    bring(kind, class, &objects[..count]);
}

/// Fills half of an empty magazine, from the depot or else from an arena, if there is memory.
pub(crate) fn refill(magazine: &Magazine, kind: &'static Kind, class: usize, shard: usize) {
    let mut objects = [0; SLOTS];
    let wanted = &mut objects[..(magazine.room() / 2).max(1)];
    let mut count = kind.depots[class].take(wanted);
    if count == 0 {
        count = allocate(kind, class, shard, wanted);
    }
    for object in &objects[..count] {
        if let Some(offset) = space::offset_of(*object) {
            space::set_code(offset, Code::new(kind.index(), class));
        }
        magazine.push(*object);
    }
}

/// Objects from an arena. Those that have gone back to it come first and one by one: a batch would be cut from fresh pages.
fn allocate(kind: &'static Kind, class: usize, shard: usize, into: &mut [usize]) -> usize {
    let Some(arena) = kind.arena(shard) else { return 0 };
    let (size, returned) = (size_of_class(class), &kind.returned[class]);
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

/// Leaves objects in their kind's depot, and gives back to the arena what has no room there.
pub(crate) fn bring(kind: &Kind, class: usize, objects: &[usize]) {
    let depot = &kind.depots[class];
    let brought = depot.bring(class, objects);
    return_all(kind, class, &objects[brought..]);
    let mut surplus = [0; SLOTS];
    let count = depot.surplus(&mut surplus);
    return_all(kind, class, &surplus[..count]);
}

fn return_all(kind: &Kind, class: usize, objects: &[usize]) {
    if objects.is_empty() {
        return;
    }
    kind.returned[class].fetch_add(objects.len(), Ordering::Relaxed);
    for object in objects {
        // SAFETY: it came from an arena by a refill, and was in a magazine: nobody uses it.
        unsafe { arena::give_back(*object) };
    }
    kind.came_back(objects.len() * size_of_class(class));
}

/// Objects of a class that threads keep of a kind, as far as can be told while they run.
pub(crate) fn kept(index: usize, class: usize) -> usize {
    all().map(|thread| thread.magazine(index, class).count()).sum()
}

/// Empties the magazines of a kind in all threads, without giving anything back.
///
/// # Safety
/// No thread uses the kind or anything of it any more.
pub(crate) unsafe fn forget_kind(index: usize) {
    for thread in all().filter(|thread| thread.has(index)) {
        (1..CLASSES).for_each(|class| thread.magazine(index, class).set_count(0));
    }
}

/// In the child of a fork: records of threads that are not here are free, and no depot is locked.
unsafe extern "C" fn forked() {
    let own = tls::get().cast_const();
    for thread in all().filter(|thread| !core::ptr::eq(*thread, own)) {
        thread.taken.store(false, Ordering::Release);
    }
    for kind in kind::all() {
        for depot in &kind.depots {
            // SAFETY: the child has one thread, and it is here.
            unsafe { depot.reset_if_locked() };
        }
    }
}

/// Keeps the text of an error for the calling thread.
pub(crate) fn set_error(text: &str) {
    let Some(thread) = current() else { return };
    let length = text.floor_char_boundary(TEXT - 1);
    // SAFETY: the calling thread's own, and nobody has a reference into it.
    let place = unsafe { &mut *thread.error.get() };
    place[..length].copy_from_slice(&text.as_bytes()[..length]);
    place[length] = 0;
}

/// The calling thread's last error, ended by a zero; it stays until the thread's next error.
pub(crate) fn error() -> *const u8 {
    current().map_or(c"".as_ptr().cast(), |thread| thread.error.get().cast_const().cast())
}
