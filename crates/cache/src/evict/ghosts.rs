//! Ghost queue: recently evicted keys, as 16 bits of the hash of each, two bytes per key.
//!
//! A key maps to one cache line of 31 fingerprints that are overwritten in turn, oldest first. About one key in two
//! thousand is a false positive, which costs next to nothing.
#![expect(clippy::cast_possible_truncation, reason = "a part of a hash is what is wanted")]

const LINE: usize = 31;

#[derive(Clone, Debug)]
#[repr(align(64))]
struct Line {
    marks: [u16; LINE],
    next: u16,
}

/// The recently evicted keys.
#[derive(Debug, Default)]
pub(super) struct Ghosts(Vec<Line>);

impl Ghosts {
    /// Makes room for about this many keys.
    pub(super) fn fit(&mut self, keys: usize) {
        let empty = || vec![Line { marks: [0; LINE], next: 0 }];
        super::double_until(&mut self.0, keys.div_ceil(LINE), empty);
    }

    fn line(&mut self, hash: u32) -> Option<(&mut Line, u16)> {
        let spread = u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let at = ((spread >> 32) * self.0.len() as u64) >> 32;
        let mark = (spread as u16).max(1);
        self.0.get_mut(at as usize).map(|line| (line, mark))
    }

    /// Adds a key.
    pub(super) fn put(&mut self, hash: u32) {
        if let Some((line, mark)) = self.line(hash) {
            line.marks[usize::from(line.next)] = mark;
            line.next = (line.next + 1) % LINE as u16;
        }
    }

    /// Removes a key; returns whether it was present.
    pub(super) fn take(&mut self, hash: u32) -> bool {
        let Some((line, mark)) = self.line(hash) else { return false };
        let found = line.marks.iter_mut().find(|there| **there == mark);
        found.is_some_and(|there| core::mem::take(there) != 0)
    }
}
