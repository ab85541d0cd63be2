//! Ranges of physical or virtual addresses.

/// Addresses from `start` (inclusive) to `end` (exclusive), in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddrRange {
    /// First address.
    pub start: u64,
    /// First address after the range.
    pub end: u64,
}

impl AddrRange {
    /// Length in bytes; 0 where `end` is not above `start`.
    #[must_use]
    pub const fn len(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether it has none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }
}
