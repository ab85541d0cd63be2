//! Replies with gaps: what has to be read from below the store's memory is put in when it has come.
//!
//! A connection goes on with reads while some of its own are under way, so that those are done at once; with anything else, and
//! with a key that is being read, it waits until there are no gaps. Replies go out in the order of requests: all from the first
//! gap on are kept here until the last one is filled. That these don't become too many, bytes that are to come count as well.

use super::keys::Shows;

/// What fills a gap.
#[derive(Debug)]
pub(super) enum Ask {
    /// An item, as `get` shows it.
    Item(Shows),
    /// What mg answers to these words.
    Meta(Vec<u8>),
}

/// A gap in replies.
#[derive(Debug)]
pub(super) struct Gap {
    pub(super) token: u64,
    /// Where it is: in all replies while requests are done, in those kept afterwards.
    pub(super) at: usize,
    pub(super) key: Vec<u8>,
    pub(super) ask: Ask,
    pub(super) reply: Option<Vec<u8>>,
}

/// Gaps of a connection.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    all: Vec<Gap>,
    /// Replies from the first gap on.
    kept: Vec<u8>,
    /// Gaps that are not filled.
    pub(super) open: usize,
    /// Bytes that may come, at most.
    promised: usize,
    /// The last one may change items: nothing is begun before it is filled.
    is_last: bool,
}

/// Counted for a gap besides what may fill it.
const GAP_BYTES: usize = 64;
/// Gaps of a connection at a time.
const GAPS_MAX: usize = 256;

impl Gaps {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether a read of this key may begin.
    pub(super) fn admits(&self, key: &[u8]) -> bool {
        self.all.is_empty()
            || !self.is_last
                && self.all.len() < GAPS_MAX
                && self.all.iter().all(|gap| gap.key != key)
    }

    /// Adds one at the end of `out`, for about so many bytes.
    pub(super) fn add(&mut self, gap: Gap, bytes: usize) {
        self.promised += gap.key.len() + bytes + GAP_BYTES;
        self.open += 1;
        self.all.push(gap);
    }

    /// Says that nothing is to be begun before the last one is filled.
    pub(super) fn close(&mut self) {
        self.is_last = true;
    }

    /// Whether the last one may change items.
    pub(super) const fn is_closed(&self) -> bool {
        self.is_last
    }

    /// Bytes that may come.
    #[inline]
    pub(super) const fn promised(&self) -> usize {
        self.promised
    }

    /// The gap of a token.
    pub(super) fn find(&mut self, token: u64) -> Option<&mut Gap> {
        self.all.iter_mut().find(|gap| gap.token == token && gap.reply.is_none())
    }

    /// Keeps what comes from the first gap on.
    pub(super) fn keep(&mut self, out: &mut Vec<u8>) {
        let Some(first) = self.all.first().map(|gap| gap.at) else { return };
        self.kept = out.split_off(first);
        self.all.iter_mut().for_each(|gap| gap.at -= first);
    }

    /// Appends what was kept, with all gaps filled. There are none then.
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

    /// Bytes that are held.
    pub(super) fn memory(&self) -> usize {
        let filled = |gap: &Gap| gap.key.capacity() + gap.reply.as_ref().map_or(0, Vec::capacity);
        self.kept.capacity() + self.all.iter().map(filled).sum::<usize>()
    }
}
