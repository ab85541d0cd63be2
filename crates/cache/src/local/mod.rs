//! A cache embedded in a program: with its clock, its movers, and memcached's operations as methods.
//!
//! `nearfar.h` and the Python package forward to [`LocalCache`]. A bare [`Cache`] has a clock set by its caller, and
//! general edits; here the clock runs by itself, and each edit has a name. Items have flags, a CAS number and a time to
//! live, so each takes 24 bytes more than in a bare cache whose items have none. Operations are in `ops.rs`; use after
//! fork in `owner.rs`; settings as text in `settings.rs`.

mod clock;
mod ops;
mod owner;
#[cfg(test)]
mod tests;

pub use ops::{About, Failure, With};

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use crate::config::{self, Config, Making};
use crate::mover::Movers;
use crate::store::Store;
use crate::{Cache, Stats};
use clock::Clock;
use owner::Owner;

/// Reasons why a cache can't be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// An invalid configuration, or unavailable memory or disk.
    #[error("{error}{why}", error = .0, why = because(.0))]
    Cache(#[from] config::Error),
    /// A thread could not be started.
    #[error("{movers} threads that move items can't be started: {source}")]
    Movers {
        /// Requested number of movers.
        movers: usize,
        /// The cause.
        source: io::Error,
    },
    /// No page of memory available.
    #[error("a page of memory can't be had: {0}")]
    Page(io::Error),
}

/// The kernel's error, where the error's own message does not contain it.
fn because(error: &config::Error) -> String {
    match error {
        config::Error::Memory { source, .. } => format!(": {source}"),
        _ => String::new(),
    }
}

/// A running cache in this process. Shared by reference among threads.
///
/// It belongs to the process that opened it: a child of fork has neither its movers nor reliable locks, so all
/// operations fail there ([`Failure::Forked`]), and dropping it frees nothing.
///
/// ```
/// use nearfar_cache::Config;
/// use nearfar_cache::local::{Failure, LocalCache, With};
///
/// let cache = LocalCache::open(&Config::of_bytes(8 << 20), 1)?;
/// cache.set(b"greeting", b"hello", With { flags: 7, ttl: 60 })?;
/// let mut value = Vec::new();
/// let about = cache.get(b"greeting", &mut value)?.expect("it was just stored");
/// assert_eq!((value.as_slice(), about.flags), (&b"hello"[..], 7));
///
/// cache.set(b"visits", b"41", With::default())?;
/// assert_eq!(cache.incr(b"visits", 1)?, 42);
/// assert!(matches!(cache.add(b"visits", b"0", With::default()), Err(Failure::Exists)));
/// cache.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct LocalCache {
    cache: Arc<Cache>,
    movers: Mutex<Option<Movers>>,
    clock: Clock,
    owner: Owner,
    /// The last CAS number given.
    cas: AtomicU64,
    closed: AtomicBool,
}

impl LocalCache {
    /// Opens a cache with `movers` threads that make room in memory in the background; with 0, storing threads make it.
    /// The disk tier, if any, has one more thread. Sets [`Config::making`] and [`crate::DiskTier::clock_zero`]
    /// accordingly.
    ///
    /// # Errors
    /// As [`Cache::new`], or if a thread can't be started.
    pub fn open(config: &Config, movers: usize) -> Result<Self, OpenError> {
        let clock = Clock::start();
        let mut config = config.clone();
        config.making = if movers > 0 { Making::Background } else { Making::Inline };
        let mut cas = 0;
        if let Some(disk) = &mut config.disk {
            disk.clock_zero = clock.unix_zero();
            // Above those of items recovered from disk.
            cas = clock.cas_first();
        }
        let owner = Owner::new().map_err(OpenError::Page)?;
        let cache = Arc::new(Cache::new(&config)?);
        let started = Movers::start(&cache, movers);
        let started = started.map_err(|source| OpenError::Movers { movers, source })?;
        Ok(Self {
            cache,
            movers: Mutex::new(Some(started)),
            clock,
            owner,
            cas: AtomicU64::new(cas),
            closed: AtomicBool::new(false),
        })
    }

    /// Stops the movers, and writes pending items to disk. Later operations fail; running ones complete. Memory is
    /// freed with the last reference. Further calls do nothing. Dropping the cache does the same, without reporting
    /// errors.
    ///
    /// # Errors
    /// Items that could not be written; the cache is closed nevertheless. A child of fork, where it can't be closed.
    pub fn close(&self) -> io::Result<()> {
        if !self.owner.is_here() {
            return Err(io::Error::other(Failure::Forked));
        }
        let mut movers = self.movers.lock().unwrap_or_else(PoisonError::into_inner);
        if self.closed.swap(true, Release) {
            return Ok(());
        }
        drop(movers.take());
        self.cache.close()
    }

    /// Whether it was closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Acquire)
    }

    /// Maximum bytes of key and value of an item together.
    #[must_use]
    pub fn largest(&self) -> usize {
        self.cache.largest()
    }

    /// Counters, by tier and size class.
    ///
    /// # Errors
    /// [`Failure::Closed`], [`Failure::Forked`].
    pub fn counted(&self) -> Result<Stats, Failure> {
        self.ready()?;
        Ok(self.cache.counted())
    }

    /// Counters by name, as in the server's `stats`.
    ///
    /// # Errors
    /// [`Failure::Closed`], [`Failure::Forked`].
    pub fn stats(&self) -> Result<Vec<(String, u64)>, Failure> {
        self.ready()?;
        let mut all = Vec::new();
        self.cache.stats(&mut |name, value| all.push((name.to_owned(), value)));
        Ok(all)
    }

    /// Checks that the cache may be used; sets its clock if a second has passed.
    fn ready(&self) -> Result<u32, Failure> {
        if !self.owner.is_here() {
            return Err(Failure::Forked);
        }
        if self.is_closed() {
            return Err(Failure::Closed);
        }
        let second = self.clock.second();
        if self.cache.now() < second {
            self.cache.set_now(second);
        }
        Ok(second)
    }

    fn next_cas(&self) -> u64 {
        self.cas.fetch_add(1, Relaxed) + 1
    }
}

impl Drop for LocalCache {
    fn drop(&mut self) {
        let movers = self.movers.get_mut().unwrap_or_else(PoisonError::into_inner);
        if self.owner.is_here() {
            drop(movers.take());
        } else {
            // The threads are the parent's, and the pending writes to disk are, too.
            #[expect(clippy::mem_forget, reason = "it is not ours to end")]
            core::mem::forget((movers.take(), Arc::clone(&self.cache)));
        }
    }
}
