//! Visitors of a kind: threads that look at it without being its users, and for which it stays until they are done.
//!
//! The users of a kind promise that they are done with it before they destroy it. That does not include a thread that
//! ends and returns what its cache has of every kind (a thread has often been joined, by Rust's scopes at least, before
//! it has ended), nor one that lists all kinds. They visit the kind, and its destruction waits for the visitors.
//!
//! A visitor is counted before it looks whether the kind exists, and the destroyer says that the kind no longer exists
//! before it looks at the count; with a fence in between on both sides, at least one of the two sees the other.

use crate::sync::{self, AtomicU32, Ordering, fence};

/// The number of visitors of a kind. Zero is none.
#[derive(Debug, Default)]
pub(crate) struct Visitors(AtomicU32);

impl Visitors {
    /// Counts a visitor, who then looks whether the kind exists.
    pub(crate) fn enter(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Ends a visit.
    pub(crate) fn leave(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// Waits for all to leave. The kind no longer exists for new ones.
    pub(crate) fn wait(&self) {
        fence(Ordering::SeqCst);
        let mut turn = 0;
        while self.0.load(Ordering::Acquire) > 0 {
            // A visit that adds up the pages of a large kind takes a while.
            sync::rest(turn);
            turn = turn.saturating_add(1);
        }
    }

    /// In the child of a fork, where the other threads do not exist: there are no visitors.
    pub(crate) fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
