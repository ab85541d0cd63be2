//! A thread's cache: fills its magazines and empties them, from and to the depots and arenas of kinds.
//!
//! Also registers the handlers of a thread's end (its objects go back) and of a fork's child. The magazines themselves
//! are in `record`.
#![expect(unsafe_code, reason = "the C library and jemalloc are called")]

use core::sync::atomic::{AtomicU32, Ordering};

use crate::classes::{CLASSES, batch_of_class, size_of_class};
use crate::depot::BATCH;
use crate::kind::{self, Kind};
use crate::record::{self, Magazine, SLOTS, Thread};
use crate::space::{self, Code};
use crate::{arena, nursery, sys};

static EXIT: AtomicU32 = AtomicU32::new(NO_KEY);
const NO_KEY: u32 = u32::MAX;

/// The calling thread's record, made if it has none. `None` if there is no memory or no place for it.
pub(crate) fn current() -> Option<&'static Thread> {
    record::get().or_else(|| record::begin().inspect(|thread| on_exit(thread)))
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
    thread.end();
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
    let extend = || kind.extend(nursery::BYTES, sys::PAGE);
    let first = kind.nursery.take(class, into, extend);
    if first > 0 {
        kind.counts.went_out(first * size);
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
    kind.counts.went_out(count * size);
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
/// owned.
unsafe extern "C" fn forked() {
    record::forget_others();
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
    if let Some(thread) = current() {
        // SAFETY: the calling thread's.
        unsafe { thread.set_error(text) };
    }
}

/// The calling thread's last error message, ended by a zero; valid until the thread's next error.
pub(crate) fn error() -> *const u8 {
    current().map_or(c"".as_ptr().cast(), Thread::error)
}
