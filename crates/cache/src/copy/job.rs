//! A job: so many bytes from here to there.
//!
//! Rules: whoever makes a [`Job`] promises that its two places are what they are said to be for as long as the job can be
//! used; so all who copy are safe to call, and the promise is made in one place. A job is not `Clone`: parts of one are made
//! only by those who copy, and never overlap.
#![expect(unsafe_code, reason = "a promise is made here that others build on")]

/// Some bytes to be copied.
#[derive(Debug)]
pub struct Job {
    source: *const u8,
    destination: *mut u8,
    length: usize,
    node: Option<u32>,
    /// The destination of the whole job, where this is a part.
    whole: Place,
}

/// A stretch of memory, by its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Where it begins.
    pub address: usize,
    /// Bytes it has.
    pub length: usize,
}

// SAFETY: the promise of `Job::new` holds on whatever thread the job is.
unsafe impl Send for Job {}

impl Job {
    /// A job of `length` bytes.
    ///
    /// # Safety
    /// Until the job is dropped, and after a [`Failure::Unfinished`](super::Failure::Unfinished) until
    /// [`Copier::settled`](super::Copier::settled) names its destination:
    /// - `length` bytes from `source` on are mapped and initialised, and nobody writes them;
    /// - `length` bytes from `destination` on are mapped and may be written, from any thread, and nobody else reads or writes
    ///   them, nor does any other job that exists, unless the two places of this job overlap (then nothing is copied).
    ///
    /// A job that came back as unfinished is not copied again.
    #[must_use]
    pub unsafe fn new(source: *const u8, destination: *mut u8, length: usize) -> Self {
        let whole = Place { address: destination.addr(), length };
        Self { source, destination, length, node: None, whole }
    }

    /// Says which NUMA node the destination is on, for those with a device on each.
    #[must_use]
    pub fn to_node(mut self, node: u32) -> Self {
        self.node = Some(node);
        self
    }

    /// Bytes to be copied.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// The node that the destination is said to be on.
    #[must_use]
    pub fn node(&self) -> Option<u32> {
        self.node
    }

    /// The destination.
    #[must_use]
    pub fn place(&self) -> Place {
        self.whole
    }

    /// Whether source and destination have bytes in common.
    #[must_use]
    pub fn overlaps(&self) -> bool {
        self.length > self.source.addr().abs_diff(self.destination.addr())
    }

    pub(super) fn source(&self) -> *const u8 {
        self.source
    }

    pub(super) fn destination(&self) -> *mut u8 {
        self.destination
    }

    /// `length` bytes of it from byte `from` on, or as many as there are. Nobody copies the same bytes of a job at once.
    pub(super) fn part(&self, from: usize, length: usize) -> Self {
        let from = from.min(self.length);
        Self {
            source: self.source.wrapping_add(from),
            destination: self.destination.wrapping_add(from),
            length: length.min(self.length - from),
            ..*self
        }
    }
}
