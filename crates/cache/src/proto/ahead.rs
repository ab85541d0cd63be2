//! Reads that connections of one worker wait for.
//!
//! Each read has a token: the number of the connection among the worker's, and a number of its own, so that what comes for a
//! connection that is no more is told from what comes for the one that has its place.

use core::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};

use crate::store::{Fetch, Head, Known, Landed, Meta};

/// Bits of a token that are a number of its own.
const OWN_BITS: u32 = 32;

/// Reads of a worker's connections from below the store's memory.
#[derive(Debug)]
pub struct Ahead {
    fetch: RefCell<Box<dyn Fetch>>,
    next: Cell<u32>,
    /// Something was asked for since it was last looked what has ended.
    is_asked: Cell<bool>,
}

/// What is known of an item at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It was appended.
    Yes(Meta),
    /// There is none.
    No,
    /// It is told later, with this token; about so many bytes at most.
    Later(u64, usize),
}

impl From<Option<Meta>> for Found {
    fn from(meta: Option<Meta>) -> Self {
        meta.map_or(Self::No, Self::Yes)
    }
}

impl Ahead {
    /// For the thread that has `fetch`.
    #[must_use]
    pub fn new(fetch: Box<dyn Fetch>) -> Self {
        Self { fetch: RefCell::new(fetch), next: Cell::new(0), is_asked: Cell::new(false) }
    }

    /// A read for the connection of this number.
    pub(super) fn get(
        &self,
        connection: u32,
        key: &[u8],
        out: &mut Vec<u8>,
        head: &mut Head<'_>,
    ) -> Found {
        let token = u64::from(connection) << OWN_BITS | u64::from(self.next.get());
        match self.fetch.borrow_mut().get(token, key, out, head) {
            Known::Found(meta) => Found::Yes(meta),
            Known::Missing => Found::No,
            Known::Later(bytes) => {
                self.is_asked.set(true);
                self.next.set(self.next.get().wrapping_add(1));
                Found::Later(token, bytes)
            }
        }
    }

    /// The number of the connection a token was made for.
    #[must_use]
    pub fn connection(token: u64) -> usize {
        usize::try_from(token >> OWN_BITS).unwrap_or(usize::MAX)
    }

    /// Begins what was asked for, and tells what has ended; does not wait. What is told must not be asked for more.
    ///
    /// # Errors
    /// The system's; nothing is lost.
    pub fn take(&self, each: &mut Landed<'_>) -> io::Result<()> {
        self.is_asked.set(false);
        self.fetch.borrow_mut().take(each)
    }

    /// Whether something was asked for that was not begun, and is when [`Ahead::take`] is called.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.is_asked.get()
    }

    /// Reads that were asked for and not told yet.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.fetch.borrow().under_way()
    }

    /// A descriptor that is readable when there is something to be told, as long as this is there.
    #[must_use]
    pub fn ready(&self) -> RawFd {
        self.fetch.borrow().ready().as_raw_fd()
    }
}
