//! Counters of a worker, by their names in memcached's `stats`.
//!
//! Each worker has its own counters and only it adds to them, so that adding is a load and a store; readers sum over
//! all workers. Counters are never reset: `stats reset` remembers their values at that time ([`super::Service`]).

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// A number that one thread increments and others read.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    #[inline]
    pub(crate) fn add(&self, number: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(number), Relaxed);
    }

    #[inline]
    pub(crate) fn one(&self) {
        self.add(1);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Counters of size classes, in the order of memcached's; the last one is of `stats items`.
pub(crate) const BY_CLASS: [&str; 9] = [
    "get_hits",
    "cmd_set",
    "delete_hits",
    "incr_hits",
    "decr_hits",
    "cas_hits",
    "cas_badval",
    "touch_hits",
    "outofmemory",
];

/// An event of a size class: its place in [`BY_CLASS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    GetHit,
    Set,
    DeleteHit,
    IncrHit,
    DecrHit,
    CasHit,
    CasBadValue,
    TouchHit,
    OutOfMemory,
}

/// Number of size classes that are counted apart. Sizes grow by an eighth, so that it is never reached.
const CLASSES: usize = 192;

/// Counters of each size class.
#[derive(Debug)]
pub(crate) struct ByClass(Box<[[Count; BY_CLASS.len()]]>);

impl Default for ByClass {
    fn default() -> Self {
        Self((0..CLASSES).map(|_| Default::default()).collect())
    }
}

impl ByClass {
    #[inline]
    pub(crate) fn one(&self, class: usize, event: Event) {
        self.0[class.min(CLASSES - 1)][event as usize].one();
    }

    /// The values of a class, in the order of [`BY_CLASS`].
    pub(crate) fn values(&self, class: usize) -> [u64; BY_CLASS.len()] {
        self.0.get(class).map_or([0; BY_CLASS.len()], |counts| counts.each_ref().map(Count::get))
    }

    /// Numbers of classes.
    pub(crate) fn numbers() -> core::ops::Range<usize> {
        0..CLASSES
    }
}

macro_rules! counters {
    ($($name:ident: $what:literal,)*) => {
        /// Counters of one worker.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct Counters {
            pub(crate) by_class: ByClass,
            $(#[doc = $what] pub(crate) $name: Count,)*
        }

        /// Each counter's name and description.
        pub const COUNTED: &[(&str, &str)] = &[$((stringify!($name), $what),)*];

        impl Counters {
            /// The values, in the order of [`COUNTED`].
            pub(crate) fn values(&self) -> [u64; COUNTED.len()] {
                [$(self.$name.get(),)*]
            }
        }
    };
}

counters! {
    cmd_get: "Keys requested by get, gets and mg",
    cmd_set: "Storage commands with a value, stored or not",
    cmd_flush: "flush_all commands",
    cmd_touch: "Keys requested by touch, gat, gats and mg with T",
    cmd_meta: "Meta commands",
    get_hits: "Keys requested and found",
    get_misses: "Keys requested and not found",
    delete_hits: "Items deleted",
    delete_misses: "Deletions that found no item, or another CAS",
    incr_hits: "Increments done",
    incr_misses: "Increments that found no item",
    decr_hits: "Decrements done",
    decr_misses: "Decrements that found no item",
    cas_hits: "Items stored as their CAS was the one given",
    cas_misses: "Stores by CAS that found no item",
    cas_badval: "Stores by CAS that found another",
    touch_hits: "Items given another time of expiry",
    touch_misses: "Touches that found no item",
    store_too_large: "Values refused as they are too large",
    store_no_memory: "Values refused for want of memory",
    idle_kicks: "Connections closed as they were idle",
    slow_kicks: "Connections closed as they took no replies",
    read_buf_oom: "Connections closed as their buffers had no room",
    binary_refused: "Connections closed as they spoke the binary protocol",
    bytes_read: "Bytes read from clients",
    bytes_written: "Bytes written to clients",
    conn_yields: "Times that a connection had to let others go first",
    ssl_handshake_errors: "TLS handshakes that failed",
    ssl_proto_errors: "TLS connections that broke the protocol",
}
