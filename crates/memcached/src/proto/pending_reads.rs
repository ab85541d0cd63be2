//! Asynchronous reads of the connections of one worker.
//!
//! Each read has a token: the connection's number in the worker, and a number of its own, so that results for a closed
//! connection are not taken for those of its successor.

use core::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};

use nearfar_cache::store::{Fetch, Head, Known, Landed, Meta};

/// Bits of a token for its own number.
const OWN_BITS: u32 = 32;

/// Reads of a worker's connections from the tier below the store's memory.
#[derive(Debug)]
pub struct PendingReads {
    fetch: RefCell<Box<dyn Fetch>>,
    next: Cell<u32>,
    /// Whether reads were requested since completions were last processed.
    is_asked: Cell<bool>,
}

/// The immediate result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The item was appended.
    Yes(Meta),
    /// There is no item.
    No,
    /// The result follows, with this token; the item has at most about this many bytes.
    Later(u64, usize),
}

impl From<Option<Meta>> for Found {
    fn from(meta: Option<Meta>) -> Self {
        meta.map_or(Self::No, Self::Yes)
    }
}

impl PendingReads {
    /// For the thread that has `fetch`.
    #[must_use]
    pub fn new(fetch: Box<dyn Fetch>) -> Self {
        Self { fetch: RefCell::new(fetch), next: Cell::new(0), is_asked: Cell::new(false) }
    }

    /// A read for the connection with this number.
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

    /// Starts requested reads and reports completed ones; does not wait. The callback must not request reads.
    ///
    /// # Errors
    /// The system's; nothing is lost.
    pub fn take(&self, each: &mut Landed<'_>) -> io::Result<()> {
        self.is_asked.set(false);
        self.fetch.borrow_mut().take(each)
    }

    /// Forgets the reads of a closed connection that were not started yet.
    pub fn forget(&self, connection: usize) {
        self.fetch.borrow_mut().forget(&|token| Self::connection(token) == connection);
    }

    /// Whether requested reads are waiting for [`PendingReads::take`] to start them.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.is_asked.get()
    }

    /// Number of requested reads without a result.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.fetch.borrow().under_way()
    }

    /// A descriptor that is readable when a result is available, valid as long as `self`.
    #[must_use]
    pub fn ready(&self) -> RawFd {
        self.fetch.borrow().ready().as_raw_fd()
    }
}
