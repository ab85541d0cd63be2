//! What a front end asks of a cache: the door between the engine and whoever speaks a protocol.
//!
//! There are two verbs. [`Store::get`] reads and never waits for a writer; where items may lie on a disk, [`Fetch`] reads without
//! waiting for that either. [`Store::edit`] finds an item, lets the caller
//! decide what becomes of it, and does that before anybody else can: all of memcached's storage commands (`add`, `cas`,
//! `append`, `incr`, `touch`, the meta commands) are such a decision. Times are seconds of the cache's own clock
//! ([`Store::now`]), which begins at 1 or later; 0 as a time of expiry means never.

use core::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A CAS unique above all that were given out before this time, in nanoseconds of the Unix clock, where there are no more than
/// sixteen million in a second: the first one of who opens a cache whose items outlive it.
#[must_use]
pub const fn cas_at(unix_ns: u64) -> u64 {
    let (second, part) = (unix_ns / 1_000_000_000, unix_ns % 1_000_000_000);
    (second << 24) + (part << 24) / 1_000_000_000
}

/// What is kept of an item besides its key and value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// The client's own 32 bits.
    pub flags: u32,
    /// Changes with each change of the item; chosen by the caller of [`Store::edit`].
    pub cas: u64,
    /// The second from which the item is no more; 0 is never.
    pub expires: u32,
    /// The second in which it was read last (or stored, if never).
    pub accessed: u32,
    /// It was read since it was stored.
    pub fetched: bool,
    /// It was marked as outdated, and stays until replaced.
    pub stale: bool,
    /// Somebody was told to make it anew.
    pub won: bool,
}

impl Meta {
    /// Whether the item is no more in second `now`.
    #[must_use]
    pub const fn is_over(&self, now: u32) -> bool {
        self.expires != 0 && self.expires <= now
    }
}

/// An item as [`Store::edit`] found it.
pub trait Old {
    /// What is kept besides the value.
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

/// What becomes of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Nothing changes.
    Keep,
    /// The value stays, what is kept besides it is this.
    Set(Meta),
    /// The item is this, its value what the decision left in the buffer it was given.
    Put(Meta),
    /// It is no more.
    Remove,
}

/// Why an item can't be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The value, or key and value, are larger than an item may be.
    #[error("the item has {bytes} bytes, at most {limit} can be stored")]
    TooLarge {
        /// Bytes of the item.
        bytes: usize,
        /// The most an item may have.
        limit: usize,
    },
    /// There is no memory for it, and none could be freed.
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
    /// Slots of a slab.
    pub slots_per_slab: u64,
    /// Its slabs.
    pub slabs: u64,
    /// Slots in use.
    pub used: u64,
    /// Items in them; one that is larger than any slot has several.
    pub items: u64,
    /// Bytes of those items, what is kept besides keys and values included; from some of them where they are many.
    pub item_bytes: u64,
    /// Items that were stored,
    pub stored: u64,
    /// went for others' sake,
    pub evicted: u64,
    /// or had expired;
    pub expired: u64,
    /// those of them that went in the background,
    pub reaped: u64,
    /// and those that nobody had read.
    pub unfetched: u64,
}

/// Told what is kept of an item and the length of its value; may append to what is read into.
pub type Head<'a> = dyn FnMut(&Meta, usize, &mut Vec<u8>) + 'a;

/// Says what becomes of an item, if there is one; the buffer is for the value of [`Edit::Put`].
pub type Decide<'a> = dyn FnMut(Option<&dyn Old>, &mut Vec<u8>) -> Edit + 'a;

/// What is known of an item at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// It was read, as [`Store::get`] reads it.
    Found(Meta),
    /// There is none.
    Missing,
    /// It is told later whether there is one, of about so many bytes at most.
    Later(usize),
}

/// Is told the token of a read, and the item's value and what is kept besides, if there is an item.
pub type Landed<'a> = dyn FnMut(u64, Option<(&Meta, &[u8])>) + 'a;

/// What one thread has to read from a store without waiting for what lies below memory.
pub trait Fetch: Debug + Send {
    /// As [`Store::get`], where the item is at hand. Else its read begins with the next [`Fetch::take`], and ends with `token` being
    /// told by one of those that follow; then `out` and `head` are not used.
    fn get(&mut self, token: u64, key: &[u8], out: &mut Vec<u8>, head: &mut Head<'_>) -> Known;

    /// Begins what was asked for, and tells what has ended; does not wait.
    ///
    /// # Errors
    /// The system's; nothing is lost, and it may be called again.
    fn take(&mut self, each: &mut Landed<'_>) -> io::Result<()>;

    /// Reads that were asked for and not told yet.
    fn under_way(&self) -> usize;

    /// Readable when there is something to be told.
    fn ready(&self) -> BorrowedFd<'_>;
}

/// A cache of items by key, used by many threads at once.
pub trait Store: Sync {
    /// The second it is by the cache's clock.
    fn now(&self) -> u32;

    /// Sets the clock; the caller does so once a second, and tests as they like.
    fn set_now(&self, second: u32);

    /// Reads an item. `head` is told what was kept of the item before this read and the length of its value, and may append to
    /// `out`; the value is appended after that. `head` may be called again, after `out` was cut back, where a writer came
    /// between. Marks it as read, if it is found. `None` if there is no such item, or it has expired.
    fn get(&self, key: &[u8], out: &mut Vec<u8>, head: &mut Head<'_>) -> Option<Meta>;

    /// For a thread that must not wait for what lies below memory: it reads up to `depth` items there at once. `None` where nothing
    /// lies below, or the system can't do that: then [`Store::get`] is all there is.
    fn fetch(self: Arc<Self>, _depth: usize) -> Option<Box<dyn Fetch>> {
        None
    }

    /// Lets `decide` say what becomes of the item, before anybody else can change it. It is given the item, if there is one,
    /// and a buffer, empty or with what the caller put into `value`, for the value of [`Edit::Put`]. `decide` is called once.
    ///
    /// # Errors
    /// If the item is too large, or there is no memory for it. Then what was there stays as it was.
    fn edit(&self, key: &[u8], value: &mut Vec<u8>, decide: &mut Decide<'_>)
    -> Result<(), Refused>;

    /// Stores an item, whatever was under its key before: what needs no decision, and can take the value from where it is.
    ///
    /// # Errors
    /// If the item is too large, or there is no memory for it. Then there is no item under this key: what was there is outdated.
    fn set(&self, key: &[u8], value: &[u8], meta: &Meta) -> Result<(), Refused> {
        let done = self.edit(key, &mut value.to_vec(), &mut |_, _| Edit::Put(*meta));
        if done.is_err() {
            // Removing stores nothing, and nothing can be refused.
            let _ = self.edit(key, &mut Vec::new(), &mut |_, _| Edit::Remove);
        }
        done
    }

    /// Everything stored before second `at` is no more from then on; what is stored later stays. 0 is now.
    fn flush(&self, at: u32);

    /// Calls `each` with every item's key, what is kept besides, and the length of its value, until it says false. Items that
    /// come, go or move meanwhile may be left out.
    fn each(&self, each: &mut dyn FnMut(&[u8], &Meta, usize) -> bool);

    /// Changes how much memory items may take, up to what the cache was made with. Returns whether that can be done.
    fn resize(&self, bytes: u64) -> bool;

    /// Size classes with anything in them, by number, small ones first; of a cache that has none, none.
    fn classes(&self, _each: &mut dyn FnMut(usize, &Class)) {}

    /// Figures, each with its name, as `stats` prints them.
    fn stats(&self, each: &mut dyn FnMut(&str, u64));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn who_opens_later_begins_above_what_was_given_out(
            opened in 0..u64::MAX / 16, after in 1_000..5_000_000_000_u64,
        ) {
            // Sixteen for each microsecond.
            prop_assert!(cas_at(opened + after) >= cas_at(opened) + after / 1_000 * 16);
        }
    }
}
