//! jemalloc's arenas of a kind: the source of the objects in thread caches, and their destination when they are freed.
//!
//! An arena asks its kind for address space through `extent hooks` (`growth` has that one) and never returns it; unused
//! pages in it are discarded after a while (jemalloc's decay). jemalloc's own metadata is not in the kind's memory, which
//! could be slow or full. Source: jemalloc 5.3, doc/jemalloc.xml, `arena.<i>.extent_hooks`, `experimental.batch_alloc`.
#![expect(unsafe_code, reason = "jemalloc's interface is C's")]

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::mem::size_of;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tikv_jemalloc_sys as je;

use crate::line::Line;
use crate::sys;

/// Unused pages are discarded within about this time, while the arena is in use.
const DECAY_MS: isize = 2_000;
/// Most address space an arena requests at once, unless a single object needs more.
const GROWTH: usize = 4 << 20;

/// An arena, by jemalloc's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arena(pub(crate) c_uint);

/// As jemalloc's `arena_config_t`.
#[repr(C)]
struct Config {
    hooks: *const je::extent_hooks_t,
    metadata_use_hooks: bool,
}

/// As jemalloc's `batch_alloc_packet_t`.
#[repr(C)]
struct Batch {
    objects: *mut *mut c_void,
    count: usize,
    size: usize,
    flags: c_int,
}

/// The hooks of every kind, without the one that gives address space.
pub(crate) const HOOKS: je::extent_hooks_t = je::extent_hooks_t {
    alloc: None,
    dalloc: None,
    destroy: None,
    commit: None,
    decommit: None,
    purge_lazy: None,
    purge_forced: Some(on_purge),
    split: Some(on_split),
    merge: Some(on_merge),
};

/// Reads or writes one of jemalloc's settings by name.
fn control<In, Out>(name: &CStr, new: Option<&mut In>, old: Option<&mut Out>) -> bool {
    let mut old_length = size_of::<Out>();
    let length_at = if old.is_some() { &raw mut old_length } else { null_mut() };
    let old = old.map_or(null_mut(), |old| (&raw mut *old).cast());
    let (new, length) =
        new.map_or((null_mut(), 0), |new| ((&raw mut *new).cast(), size_of::<In>()));
    // SAFETY: both values have the length passed, and live until the call returns; jemalloc refuses another length.
    unsafe { je::mallctl(name.as_ptr(), old, length_at, new, length) == 0 }
}

/// Calls `act` with the setting's name `arena.<number>.<what>`, without allocating.
fn with_name<T>(arena: Arena, what: &str, act: impl FnOnce(&CStr) -> T) -> Option<T> {
    use core::fmt::Write as _;
    let mut name = Line::new();
    write!(name, "arena.{}.{what}\0", arena.0).ok()?;
    Some(act(CStr::from_bytes_until_nul(name.text().as_bytes()).ok()?))
}

static AWAKE: AtomicBool = AtomicBool::new(false);
static LATER: AtomicBool = AtomicBool::new(false);

/// Leaves initialisation to jemalloc's first use; the caller ensures that this is before a second thread starts.
pub(crate) fn later() {
    LATER.store(true, Ordering::Relaxed);
}

/// An upper bound of the memory jemalloc maps during initialisation.
const FIRST: usize = 16 << 20;

/// Initialises jemalloc when the library is loaded: a child that is forked while another thread initialises jemalloc
/// would wait for that for ever.
///
/// A library that ensures this itself calls [`later`] before: constructors with a priority run first.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = {
    extern "C" fn at_load() {
        if !LATER.load(Ordering::Relaxed) {
            wake();
        }
    }
    at_load
};

/// Initialises jemalloc, unless that is done; false if there is too little memory, in which case jemalloc would abort.
pub(crate) fn wake() -> bool {
    if AWAKE.load(Ordering::Relaxed) {
        return true;
    }
    let Some(room) = sys::map(FIRST) else { return false };
    sys::unmap_own(room.as_ptr() as usize, FIRST);
    // Any call initialises it.
    control::<c_uint, c_uint>(c"arenas.narenas", None, Some(&mut 0));
    AWAKE.store(true, Ordering::Relaxed);
    true
}

impl Arena {
    /// Creates an arena with these hooks; `None` if jemalloc has no more (it has some four thousand) or there is no
    /// memory.
    ///
    /// # Safety
    /// The hooks are complete, and stay as they are until the program ends.
    pub(crate) unsafe fn create(hooks: *const je::extent_hooks_t) -> Option<Self> {
        if !wake() {
            return None;
        }
        let mut number: c_uint = 0;
        let mut config = Config { hooks, metadata_use_hooks: false };
        let name = c"experimental.arenas_create_ext";
        if !control(name, Some(&mut config), Some(&mut number)) {
            return None;
        }
        let arena = Self(number);
        let set = |what: &str, mut value: isize| {
            with_name(arena, what, |name| control(name, Some(&mut value), None::<&mut isize>))
        };
        // These settings are optional: an arena with the defaults works as well.
        set("dirty_decay_ms", DECAY_MS);
        set("muzzy_decay_ms", 0);
        set("retain_grow_limit", GROWTH.cast_signed());
        Some(arena)
    }

    /// Destroys an arena with all objects allocated from it.
    ///
    /// # Safety
    /// Neither the arena nor any object allocated from it is used any more.
    pub(crate) unsafe fn destroy(self) -> bool {
        with_name(self, "destroy", |name| control(name, None::<&mut c_uint>, None::<&mut c_uint>))
            .unwrap_or(false)
    }

    /// Discards all unused pages.
    pub(crate) fn purge(self) -> bool {
        with_name(self, "purge", |name| control(name, None::<&mut c_uint>, None::<&mut c_uint>))
            .unwrap_or(false)
    }

    fn flags(self) -> c_int {
        je::MALLOCX_ARENA(self.0 as usize) | je::MALLOCX_TCACHE_NONE
    }

    /// Allocates up to `into.len()` objects of `size` bytes; returns the number allocated.
    pub(crate) fn batch(self, size: usize, into: &mut [usize]) -> usize {
        static NAME: AtomicUsize = AtomicUsize::new(0);
        let objects = into.as_mut_ptr().cast();
        let mut batch = Batch { objects, count: into.len(), size, flags: self.flags() };
        let Some(name) = batch_name(&NAME) else { return 0 };
        let (mut count, mut length): (usize, _) = (0, size_of::<usize>());
        // SAFETY: a name of two parts; a packet of the form that jemalloc states, whose array has room for `count` pointers,
        // and a place for the number of those written.
        let status = unsafe {
            je::mallctlbymib(
                name.as_ptr(),
                name.len(),
                (&raw mut count).cast(),
                &raw mut length,
                (&raw mut batch).cast(),
                size_of::<Batch>(),
            )
        };
        if status == 0 { count.min(into.len()) } else { 0 }
    }

    /// Allocates one object.
    pub(crate) fn one(self, size: usize, alignment: usize, zeroed: bool) -> Option<NonNull<u8>> {
        let zero = if zeroed { je::MALLOCX_ZERO } else { 0 };
        let flags = self.flags() | je::MALLOCX_ALIGN(alignment) | zero;
        // SAFETY: the size is not zero (a class has eight bytes at least), the alignment a power of two.
        NonNull::new(unsafe { je::mallocx(size.max(1), flags) }.cast())
    }
}

/// jemalloc's MIB for a name, looked up once and cached.
fn batch_name(known: &AtomicUsize) -> Option<[usize; 2]> {
    const KNOWN: usize = 1 << (usize::BITS - 1);
    let packed = known.load(Ordering::Relaxed);
    if packed & KNOWN != 0 {
        return Some([packed >> 16 & 0xffff, packed & 0xffff]);
    }
    let (mut name, mut length) = ([0; 2], 2);
    let text: *const c_char = c"experimental.batch_alloc".as_ptr();
    // SAFETY: room for two numbers, and their count.
    let status = unsafe { je::mallctlnametomib(text, name.as_mut_ptr(), &raw mut length) };
    if status != 0 || name.iter().any(|part| *part > 0xffff) {
        return None;
    }
    known.store(KNOWN | name[0] << 16 | name[1], Ordering::Relaxed);
    Some(name)
}

/// Frees an object to its arena.
///
/// # Safety
/// It was allocated from an arena and is not used any more.
pub(crate) unsafe fn give_back(object: usize) {
    // SAFETY: the caller's promise.
    unsafe { je::dallocx(object as *mut c_void, je::MALLOCX_TCACHE_NONE) };
}

/// Usable bytes of an object of an arena.
///
/// # Safety
/// It was allocated from an arena and not given back.
pub(crate) unsafe fn size_of_object(object: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe { je::sallocx(object as *const c_void, 0) }
}

/// Resizes an object in place; returns whether it now has `size` bytes.
///
/// # Safety
/// As [`size_of_object`].
pub(crate) unsafe fn resize_in_place(object: usize, size: usize) -> bool {
    // SAFETY: the caller's promise; the size is not zero.
    unsafe { je::xallocx(object as *mut c_void, size, 0, je::MALLOCX_TCACHE_NONE) >= size }
}

unsafe extern "C" fn on_purge(
    _hooks: *mut je::extent_hooks_t,
    at: *mut c_void,
    _size: usize,
    offset: usize,
    length: usize,
    _arena: c_uint,
) -> bool {
    // SAFETY: pages of an extent that jemalloc does not use, on page boundaries.
    unsafe { !sys::discard(at as usize + offset, length) }
}

unsafe extern "C" fn on_split(
    _hooks: *mut je::extent_hooks_t,
    _at: *mut c_void,
    _size: usize,
    _first: usize,
    _second: usize,
    _committed: bool,
    _arena: c_uint,
) -> bool {
    false
}

unsafe extern "C" fn on_merge(
    _hooks: *mut je::extent_hooks_t,
    _first: *mut c_void,
    _first_size: usize,
    _second: *mut c_void,
    _second_size: usize,
    _committed: bool,
    _arena: c_uint,
) -> bool {
    false
}
