//! The choice of the program's heap: the kind that `front` takes memory from. `setup` makes it, `adapt` changes it.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use crate::kind::DEFAULT;

/// The kind that memory comes from.
static HEAP: AtomicU32 = AtomicU32::new(DEFAULT);
/// Objects smaller than this are plain.
static FROM: AtomicUsize = AtomicUsize::new(0);
/// Mappings from this size on are placed.
static MAPPINGS: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Whether limits are raised when all kinds are full.
static RAISES: AtomicBool = AtomicBool::new(false);
/// Whether the program aborts when memory is exhausted.
static ABORTS: AtomicBool = AtomicBool::new(false);

/// The kind for an object of `size` bytes.
#[inline(always)]
pub(crate) fn kind_for(size: usize) -> u32 {
    let heap = HEAP.load(Ordering::Relaxed);
    if heap == DEFAULT || size < FROM.load(Ordering::Relaxed) { DEFAULT } else { heap }
}

/// The configuration of the heap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heap {
    /// The kind that memory comes from.
    pub(crate) kind: u32,
    /// Objects smaller than this are plain.
    pub(crate) from: usize,
    /// Mappings from this size on are placed.
    pub(crate) mappings: Option<usize>,
    /// Whether limits are raised when all kinds are full.
    pub(crate) raises: bool,
    /// Whether the program aborts when memory is exhausted.
    pub(crate) aborts: bool,
}

/// Applies a configuration to all later allocations.
pub(crate) fn set(heap: Heap) {
    FROM.store(heap.from, Ordering::Relaxed);
    MAPPINGS.store(heap.mappings.unwrap_or(usize::MAX), Ordering::Relaxed);
    RAISES.store(heap.raises, Ordering::Relaxed);
    ABORTS.store(heap.aborts, Ordering::Relaxed);
    HEAP.store(heap.kind, Ordering::Release);
}

/// Whether memory comes from a kind.
pub(crate) fn is_placed() -> bool {
    HEAP.load(Ordering::Relaxed) != DEFAULT
}

/// Describes what is placed in a program that has its own malloc, for messages.
pub(crate) fn placed_otherwise() -> std::string::String {
    match MAPPINGS.load(Ordering::Relaxed) {
        usize::MAX => "nor are its mappings (mmap=off)".into(),
        least => std::format!("its anonymous mappings of {least} bytes and more are"),
    }
}

/// Sets the kind that later allocations come from.
pub(crate) fn follow(kind: u32) {
    HEAP.store(kind, Ordering::Relaxed);
}

/// The kind for a mapping of `length` bytes.
pub(crate) fn kind_for_mapping(length: usize) -> u32 {
    let large = length >= MAPPINGS.load(Ordering::Relaxed);
    if large { HEAP.load(Ordering::Relaxed) } else { DEFAULT }
}

/// Whether limits are raised when all kinds are full.
pub(crate) fn raises() -> bool {
    RAISES.load(Ordering::Relaxed)
}

/// Whether the program aborts when memory is exhausted.
pub(crate) fn aborts() -> bool {
    ABORTS.load(Ordering::Relaxed)
}
