//! Metadata of items, in memory as on disk.

/// Metadata of an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// The client's own 32 bits.
    pub flags: u32,
    /// Different after each change of the item; chosen by the caller that changes it.
    pub cas: u64,
    /// The second from which the item is expired; 0: never.
    pub expires: u32,
    /// The second of the last read (or of the store, if never read).
    pub accessed: u32,
    /// Whether it was read since it was stored.
    pub fetched: bool,
    /// Whether it was marked as outdated; it stays until replaced.
    pub stale: bool,
    /// Whether a client has the duty to recreate it.
    pub won: bool,
}

impl Meta {
    /// Whether the item is expired in second `now`.
    #[must_use]
    #[inline]
    pub const fn is_over(&self, now: u32) -> bool {
        self.expires != 0 && self.expires <= now
    }
}
