//! The interface between a cache engine and its front ends.
//!
//! It has two main operations. [`Store::get`] reads and never waits for a writer; where items may be on a disk,
//! [`Fetch`] reads without waiting for that either. [`Store::edit`] finds an item, lets the caller decide on a change,
//! and applies it atomically: all of memcached's storage commands (`add`, `cas`, `append`, `incr`, `touch`, the meta
//! commands) are such a decision. Times are seconds of the cache's own clock ([`Store::now`]), which begins at 1 or
//! later; an expiry of 0 means never.

use core::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

pub use nearfar_cache_disk::Meta;

/// A CAS number above all that were given out before this time, in nanoseconds of the Unix clock, at up to sixteen
/// million per second: the first one for a cache whose items survived its predecessor.
#[must_use]
pub const fn cas_at(unix_ns: u64) -> u64 {
    let (second, part) = (unix_ns / 1_000_000_000, unix_ns % 1_000_000_000);
    (second << 24) + (part << 24) / 1_000_000_000
}

/// An item as found by [`Store::edit`].
pub trait Old {
    /// Its metadata.
    fn meta(&self) -> Meta;
    /// Bytes of its value.
    fn len(&self) -> usize;
    /// Whether the value has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Appends its value to `out`.
    fn read(&self, out: &mut Vec<u8>);
}

/// The decision about an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    /// No change.
    Keep,
    /// Keep the value and set the metadata.
    Set(Meta),
    /// Store an item with this metadata; its value is in the decision's buffer.
    Put(Meta),
    /// Remove the item.
    Remove,
}

/// Reasons why an item can't be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The value, or key and value, are larger than the maximum.
    #[error("the item has {bytes} bytes, at most {limit} can be stored")]
    TooLarge {
        /// Bytes of the item.
        bytes: usize,
        /// The maximum bytes of an item.
        limit: usize,
    },
    /// No memory is available, and none could be freed.
    #[error("out of memory storing an item of {bytes} bytes")]
    NoMemory {
        /// Bytes of the item.
        bytes: usize,
    },
}

/// A size class of a cache, over all its tiers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// Bytes of a slot.
    pub slot_bytes: u64,
    /// Slots per slab.
    pub slots_per_slab: u64,
    /// Its slabs.
    pub slabs: u64,
    /// Slots in use.
    pub used: u64,
    /// Items in them; one larger than any slot has several.
    pub items: u64,
    /// Bytes of those items with metadata; estimated from a sample if there are many.
    pub item_bytes: u64,
    /// Items stored,
    pub stored: u64,
    /// evicted for others,
    pub evicted: u64,
    /// of which some were never read,
    pub evicted_unfetched: u64,
    /// and some would have expired later,
    pub evicted_expiring: u64,
    /// or expired;
    pub expired: u64,
    /// those of them removed in the background,
    pub reaped: u64,
    /// and those never read.
    pub unfetched: u64,
}

/// Called with the metadata of an item and the length of its value; may append to the output buffer.
pub type Head<'a> = dyn FnMut(&Meta, usize, &mut Vec<u8>) + 'a;

/// Decides on an item, if there is one; the buffer is for the value of [`Edit::Put`].
pub type Decide<'a> = dyn FnMut(Option<&dyn Old>, &mut Vec<u8>) -> Edit + 'a;

/// The immediate result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// The item was read, as by [`Store::get`].
    Found(Meta),
    /// There is no item.
    Missing,
    /// The result follows later; the item has at most about this many bytes.
    Later(usize),
}

/// Called with the token of a read, and the item's metadata and value, if there is an item.
pub type Landed<'a> = dyn FnMut(u64, Option<(&Meta, &[u8])>) + 'a;

/// Reads of one thread from a store, without waiting for the tier below memory.
pub trait Fetch: Debug + Send {
    /// As [`Store::get`], if the item is in memory. Else its read starts with the next [`Fetch::take`], and completes
    /// when one of those that follow reports `token`; then `out` and `head` are not used.
    fn get(&mut self, token: u64, key: &[u8], out: &mut Vec<u8>, head: &mut Head<'_>) -> Known;

    /// Starts requested reads and reports completed ones; does not wait.
    ///
    /// # Errors
    /// The system's; nothing is lost, and it may be called again.
    fn take(&mut self, each: &mut Landed<'_>) -> io::Result<()>;

    /// Forgets reads that were not started yet, by their tokens.
    fn forget(&mut self, whose: &dyn Fn(u64) -> bool);

    /// Number of reads not completed yet.
    fn under_way(&self) -> usize;

    /// A descriptor that is readable when a read has completed.
    fn ready(&self) -> BorrowedFd<'_>;
}

/// A cache of items by key, used by many threads at once.
pub trait Store: Sync {
    /// The current second of the cache's clock.
    fn now(&self) -> u32;

    /// Sets the clock; the caller does so once per second, tests at will.
    fn set_now(&self, second: u32);

    /// Reads an item. `head` is called with the item's metadata before this read and the length of its value, and may
    /// append to `out`; the value is appended after that. If a writer interferes, `out` is truncated and `head` called
    /// again. Marks a found item as read. `None` if there is no such item, or it has expired.
    fn get(&self, key: &[u8], out: &mut Vec<u8>, head: &mut Head<'_>) -> Option<Meta>;

    /// A reader for a thread that must not wait for the tier below memory; it has up to `depth` outstanding reads
    /// there. `None` if there is no such tier, or the system does not support this: then use [`Store::get`].
    fn fetch(self: Arc<Self>, _depth: usize) -> Option<Box<dyn Fetch>> {
        None
    }

    /// Lets `decide` decide on the item, atomically. It is called with the item, if there is one, and a buffer, empty
    /// or with the contents of `value`, for the value of [`Edit::Put`]. `decide` is called once.
    ///
    /// # Errors
    /// The item is too large, or there is no memory for it. Then the previous item is unchanged.
    fn edit(&self, key: &[u8], value: &mut Vec<u8>, decide: &mut Decide<'_>)
    -> Result<(), Refused>;

    /// Stores an item, replacing any previous one, without a decision and without copying the value first.
    ///
    /// # Errors
    /// The item is too large, or there is no memory for it. Then there is no item under this key, as the previous one
    /// is outdated.
    fn set(&self, key: &[u8], value: &[u8], meta: &Meta) -> Result<(), Refused> {
        let done = self.edit(key, &mut value.to_vec(), &mut |_, _| Edit::Put(*meta));
        if done.is_err() {
            // Removing stores nothing, so it can't be refused.
            let _ = self.edit(key, &mut Vec::new(), &mut |_, _| Edit::Remove);
        }
        done
    }

    /// All items stored before second `at` expire at that time; later ones stay. 0 means now.
    fn flush(&self, at: u32);

    /// Calls `each` with every item's key, metadata and value length, until it returns false. Items that are stored,
    /// removed or moved concurrently may be left out.
    fn each(&self, each: &mut dyn FnMut(&[u8], &Meta, usize) -> bool);

    /// Changes the amount of memory for items, up to the one the cache was created with. Returns whether that is
    /// supported.
    fn resize(&self, bytes: u64) -> bool;

    /// Non-empty size classes, by number, small ones first; none if the cache has no classes.
    fn classes(&self, _each: &mut dyn FnMut(usize, &Class)) {}

    /// The number in [`Self::classes`] of the size class for an item with metadata, by the bytes of its key and value;
    /// 0 if there is none.
    fn class_of(&self, _key: usize, _value: usize) -> usize {
        0
    }

    /// Counters, each with its name, as `stats` prints them.
    fn stats(&self, each: &mut dyn FnMut(&str, u64));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn cas_numbers_of_a_later_open_exceed_all_earlier_ones(
            opened in 0..u64::MAX / 16, after in 1_000..5_000_000_000_u64,
        ) {
            // Sixteen per microsecond.
            prop_assert!(cas_at(opened + after) >= cas_at(opened) + after / 1_000 * 16);
        }
    }
}
