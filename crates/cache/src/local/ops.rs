//! Operations of a program on items: memcached's, each a decision over [`Store::edit`].
//!
//! Times to live are seconds from now, 0 for no expiry, up to the rest of the cache's clock (136 years). Numbers are
//! decimal text, as in memcached; increments wrap around, decrements stop at 0.

use rustix::io::Errno;

use super::LocalCache;
use crate::item::KEY_MAX;
use crate::store::{Edit, Meta, Old, Refused, Store};

/// Bytes of the longest number, with trailing spaces.
const DIGITS_MAX: usize = 20;

/// Metadata to store with an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct With {
    /// The caller's own 32 bits.
    pub flags: u32,
    /// Seconds until it expires; 0: never.
    pub ttl: u32,
}

/// Metadata of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About {
    /// Bytes of its value.
    pub length: usize,
    /// The caller's own 32 bits.
    pub flags: u32,
    /// Seconds until it expires; 0: never.
    pub ttl: u32,
    /// Different after each change of the item, and never 0.
    pub cas: u64,
}

/// Reasons why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// There is no such item.
    #[error("there is no item under this key")]
    Absent,
    /// There is an item; or, where a CAS number was given, it has another one.
    #[error("there is an item under this key, or another than was read")]
    Exists,
    /// A key of invalid length.
    #[error("a key of {0} bytes: it has 1 to {KEY_MAX}")]
    Key(usize),
    /// The item's value is not a number.
    #[error("the value is not a number: counters are decimal text of at most 20 digits")]
    NoNumber,
    /// The item is too large, or there is no memory for it.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The cache was closed.
    #[error("the cache is closed; open another")]
    Closed,
    /// This is a child of the process that opened it.
    #[error(
        "the cache belongs to the process that opened it, and this is a child of fork: open another here"
    )]
    Forked,
}

impl Failure {
    /// The corresponding errno.
    #[must_use]
    pub const fn errno(self) -> i32 {
        let errno = match self {
            Self::Absent => Errno::NOENT,
            Self::Exists => Errno::EXIST,
            Self::Key(_) => Errno::INVAL,
            Self::NoNumber => Errno::DOM,
            Self::Refused(Refused::TooLarge { .. }) => Errno::MSGSIZE,
            Self::Refused(Refused::NoMemory { .. }) => Errno::NOMEM,
            Self::Closed => Errno::BADF,
            Self::Forked => Errno::PERM,
        };
        errno.raw_os_error()
    }
}

/// The second in which an item with this time to live expires.
const fn expires(ttl: u32, now: u32) -> u32 {
    if ttl == 0 { 0 } else { now.saturating_add(ttl) }
}

impl LocalCache {
    /// As [`Self::ready`], with a check of the key.
    #[inline]
    fn ready_for(&self, key: &[u8]) -> Result<u32, Failure> {
        let now = self.ready()?;
        if key.is_empty() || key.len() > KEY_MAX { Err(Failure::Key(key.len())) } else { Ok(now) }
    }

    fn meta(&self, with: With, now: u32) -> Meta {
        let cas = self.next_cas();
        Meta {
            flags: with.flags,
            cas,
            expires: expires(with.ttl, now),
            accessed: now,
            ..Meta::default()
        }
    }

    /// Appends an item's value to `out` and returns its metadata; `None` if there is no item.
    ///
    /// # Errors
    /// [`Failure::Key`], [`Failure::Closed`], [`Failure::Forked`].
    #[inline]
    pub fn get(&self, key: &[u8], out: &mut Vec<u8>) -> Result<Option<About>, Failure> {
        let now = self.ready_for(key)?;
        let start = out.len();
        let found = self.cache.read(key, out, &mut |_, _, _| ());
        Ok(found.map(|meta| About {
            length: out.len() - start,
            flags: meta.flags,
            ttl: if meta.expires == 0 { 0 } else { meta.expires.saturating_sub(now).max(1) },
            cas: meta.cas,
        }))
    }

    /// Whether there is such an item. It does not count as read.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn has(&self, key: &[u8]) -> Result<bool, Failure> {
        let mut found = false;
        self.edit(key, &mut Vec::new(), |old, _| {
            found = old.is_some();
            Ok(Edit::Keep)
        })?;
        Ok(found)
    }

    /// Edits an item as `decide` decides; changes nothing if it fails.
    fn edit<D>(&self, key: &[u8], value: &mut Vec<u8>, mut decide: D) -> Result<(), Failure>
    where
        D: FnMut(Option<&dyn Old>, &mut Vec<u8>) -> Result<Edit, Failure>,
    {
        self.ready_for(key)?;
        let mut said = Ok(());
        self.cache.edit(key, value, &mut |old, value| {
            decide(old, value).unwrap_or_else(|failure| {
                said = Err(failure);
                Edit::Keep
            })
        })?;
        said
    }

    /// Stores an item, replacing any previous one. Returns its CAS number.
    ///
    /// # Errors
    /// As [`Self::get`], and [`Failure::Refused`]: then there is no item under this key any more.
    pub fn set(&self, key: &[u8], value: &[u8], with: With) -> Result<u64, Failure> {
        let now = self.ready_for(key)?;
        let meta = self.meta(with, now);
        Store::set(&*self.cache, key, value, &meta)?;
        Ok(meta.cas)
    }

    fn put_if<D>(&self, key: &[u8], value: &[u8], with: With, may: D) -> Result<u64, Failure>
    where
        D: Fn(Option<&dyn Old>) -> Result<(), Failure>,
    {
        let meta = self.meta(with, self.ready_for(key)?);
        self.edit(key, &mut value.to_vec(), |old, _| may(old).map(|()| Edit::Put(meta)))?;
        Ok(meta.cas)
    }

    /// Stores an item if there is none.
    ///
    /// # Errors
    /// [`Failure::Exists`], and as [`Self::get`], and [`Failure::Refused`].
    pub fn add(&self, key: &[u8], value: &[u8], with: With) -> Result<u64, Failure> {
        let none = |old: Option<&dyn Old>| old.map_or(Ok(()), |_| Err(Failure::Exists));
        self.put_if(key, value, with, none)
    }

    /// Stores an item if there is one.
    ///
    /// # Errors
    /// [`Failure::Absent`], and as [`Self::get`], and [`Failure::Refused`]: then the previous item stays.
    pub fn replace(&self, key: &[u8], value: &[u8], with: With) -> Result<u64, Failure> {
        self.put_if(key, value, with, |old| old.map(|_| ()).ok_or(Failure::Absent))
    }

    /// Stores an item if the present one still has this CAS number.
    ///
    /// # Errors
    /// [`Failure::Absent`], [`Failure::Exists`] if it has another, and as [`Self::replace`].
    pub fn cas(&self, key: &[u8], value: &[u8], with: With, cas: u64) -> Result<u64, Failure> {
        self.put_if(key, value, with, |old| {
            let same = old.ok_or(Failure::Absent)?.meta().cas == cas;
            if same { Ok(()) } else { Err(Failure::Exists) }
        })
    }

    fn extend(&self, key: &[u8], more: &[u8], behind: Side) -> Result<u64, Failure> {
        let (now, cas) = (self.ready_for(key)?, self.next_cas());
        self.edit(key, &mut more.to_vec(), |old, value| {
            let old = old.ok_or(Failure::Absent)?;
            let (bytes, limit) = (key.len() + old.len() + value.len(), self.largest());
            if bytes > limit {
                return Err(Refused::TooLarge { bytes, limit }.into());
            }
            old.read(value);
            if behind == Side::Behind {
                value.rotate_left(more.len());
            }
            Ok(Edit::Put(Meta { cas, accessed: now, ..old.meta() }))
        })?;
        Ok(cas)
    }

    /// Appends bytes to an item's value; flags and time to live stay.
    ///
    /// # Errors
    /// As [`Self::replace`].
    pub fn append(&self, key: &[u8], more: &[u8]) -> Result<u64, Failure> {
        self.extend(key, more, Side::Behind)
    }

    /// Prepends bytes to an item's value; flags and time to live stay.
    ///
    /// # Errors
    /// As [`Self::append`].
    pub fn prepend(&self, key: &[u8], more: &[u8]) -> Result<u64, Failure> {
        self.extend(key, more, Side::Before)
    }

    fn count(&self, key: &[u8], to: impl Fn(u64) -> u64) -> Result<u64, Failure> {
        let (now, cas) = (self.ready_for(key)?, self.next_cas());
        let mut sum = 0;
        self.edit(key, &mut Vec::new(), |old, value| {
            let old = old.ok_or(Failure::Absent)?;
            if old.len() > DIGITS_MAX {
                return Err(Failure::NoNumber);
            }
            old.read(value);
            sum = to(number(value.trim_ascii()).ok_or(Failure::NoNumber)?);
            value.clear();
            value.extend_from_slice(sum.to_string().as_bytes());
            Ok(Edit::Put(Meta { cas, accessed: now, ..old.meta() }))
        })?;
        Ok(sum)
    }

    /// Adds to an item that is a number; returns the sum.
    ///
    /// # Errors
    /// [`Failure::NoNumber`], and as [`Self::replace`].
    pub fn incr(&self, key: &[u8], by: u64) -> Result<u64, Failure> {
        self.count(key, |number| number.wrapping_add(by))
    }

    /// Subtracts from an item that is a number, down to 0; returns the result.
    ///
    /// # Errors
    /// As [`Self::incr`].
    pub fn decr(&self, key: &[u8], by: u64) -> Result<u64, Failure> {
        self.count(key, |number| number.saturating_sub(by))
    }

    /// Sets an item's time to live; false if there is no item.
    ///
    /// # Errors
    /// As [`Self::replace`]: an item on disk has to be rewritten.
    pub fn touch(&self, key: &[u8], ttl: u32) -> Result<bool, Failure> {
        let now = self.ready_for(key)?;
        let mut found = false;
        self.edit(key, &mut Vec::new(), |old, _| {
            let Some(old) = old else { return Ok(Edit::Keep) };
            found = true;
            Ok(Edit::Set(Meta { expires: expires(ttl, now), accessed: now, ..old.meta() }))
        })?;
        Ok(found)
    }

    /// Removes an item; false if there was none.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn delete(&self, key: &[u8]) -> Result<bool, Failure> {
        self.ready_for(key)?;
        Ok(self.cache.delete(key))
    }

    /// Removes all items.
    ///
    /// # Errors
    /// [`Failure::Closed`], [`Failure::Forked`].
    pub fn flush(&self) -> Result<(), Failure> {
        self.ready()?;
        self.cache.flush(0);
        Ok(())
    }
}

/// The end of a value to which bytes are added.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Before,
    Behind,
}

/// Parses digits only: no sign.
fn number(text: &[u8]) -> Option<u64> {
    let digits = text.iter().all(u8::is_ascii_digit);
    core::str::from_utf8(text).ok().filter(|_| digits)?.parse().ok()
}
