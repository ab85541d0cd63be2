//! Replies with gaps, into which results of asynchronous reads are inserted later.
//!
//! A connection continues with reads while some of its own are pending, so that they overlap; before any other request,
//! and before a read of a pending key, it waits until there are no gaps. Replies are sent in the order of requests: all
//! from the first gap on are kept here until the last one is filled. To limit their size, pending bytes are counted as
//! well.

use super::keys::Shows;

/// The content of a gap.
#[derive(Debug)]
pub(super) enum Ask {
    /// An item, as `get` shows it.
    Item(Shows),
    /// mg's reply to these words.
    Meta(Vec<u8>),
}

/// A gap in replies.
#[derive(Debug)]
pub(super) struct Gap {
    pub(super) token: u64,
    /// Its offset: in all replies while requests are executed, in the kept ones afterwards.
    pub(super) at: usize,
    pub(super) key: Vec<u8>,
    pub(super) ask: Ask,
    pub(super) reply: Option<Vec<u8>>,
}

/// Gaps of a connection.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    all: Vec<Gap>,
    /// Replies from the first gap on.
    kept: Vec<u8>,
    /// Number of unfilled gaps.
    pub(super) open: usize,
    /// Maximum pending bytes.
    promised: usize,
    /// Whether the last one may change items: no request starts before it is filled.
    is_last: bool,
}

/// Bytes accounted for a gap besides its content.
const GAP_BYTES: usize = 64;
/// Maximum gaps of a connection at a time.
const DEFERRED_MAX: usize = 256;

impl Deferred {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether a read of this key may start.
    pub(super) fn admits(&self, key: &[u8]) -> bool {
        self.all.is_empty()
            || !self.is_last
                && self.all.len() < DEFERRED_MAX
                && self.all.iter().all(|gap| gap.key != key)
    }

    /// Adds a gap at the end of `out`, for about `bytes` bytes.
    pub(super) fn add(&mut self, gap: Gap, bytes: usize) {
        self.promised += gap.key.len() + bytes + GAP_BYTES;
        self.open += 1;
        self.all.push(gap);
    }

    /// Stops further requests until the last gap is filled.
    pub(super) fn close(&mut self) {
        self.is_last = true;
    }

    /// Whether the last one may change items.
    pub(super) const fn is_closed(&self) -> bool {
        self.is_last
    }

    /// Pending bytes.
    #[inline]
    pub(super) const fn promised(&self) -> usize {
        self.promised
    }

    /// The gap of a token.
    pub(super) fn find(&mut self, token: u64) -> Option<&mut Gap> {
        self.all.iter_mut().find(|gap| gap.token == token && gap.reply.is_none())
    }

    /// Moves the replies from the first gap on out of `out`.
    pub(super) fn keep(&mut self, out: &mut Vec<u8>) {
        let Some(first) = self.all.first().map(|gap| gap.at) else { return };
        self.kept = out.split_off(first);
        self.all.iter_mut().for_each(|gap| gap.at -= first);
    }

    /// Appends the kept replies, with all gaps filled. No gaps are left.
    pub(super) fn put(&mut self, out: &mut Vec<u8>) {
        let Self { all, kept, .. } = core::mem::take(self);
        let mut from = 0;
        for gap in all {
            out.extend_from_slice(&kept[from..gap.at]);
            out.extend_from_slice(&gap.reply.unwrap_or_default());
            from = gap.at;
        }
        out.extend_from_slice(&kept[from..]);
    }

    /// Bytes of memory held.
    pub(super) fn memory(&self) -> usize {
        let held = |gap: &Gap| {
            let words = if let Ask::Meta(words) = &gap.ask { words.capacity() } else { 0 };
            gap.key.capacity() + words + gap.reply.as_ref().map_or(0, Vec::capacity)
        };
        let gaps = self.all.capacity() * size_of::<Gap>();
        self.kept.capacity() + gaps + self.all.iter().map(held).sum::<usize>()
    }
}
