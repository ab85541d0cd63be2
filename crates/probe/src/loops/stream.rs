//! Streams: read lines in order, or modify them in place, each exactly once a pass.
#![expect(
    unsafe_code,
    reason = "volatile loads and stores, so that each line is touched exactly once"
)]

use std::ptr;

use super::Line;

/// Lines in the unrolled body.
pub(crate) const UNROLL: usize = 8;

/// Loads one word of each line; ignores lines beyond a multiple of eight.
#[inline]
pub(crate) fn read(lines: &[Line]) -> u64 {
    let mut sums = [0u64; UNROLL];
    for group in lines.as_chunks::<UNROLL>().0 {
        // By index: where an iterator is not inlined, it costs several times as much as the loads.
        for at in 0..UNROLL {
            // SAFETY: a reference to an initialised word is valid for an aligned read.
            let word = unsafe { ptr::read_volatile(&raw const group[at].0[0]) };
            sums[at] = sums[at].wrapping_add(word);
        }
    }
    sums.iter().fold(0, |all, sum| all.wrapping_add(*sum))
}

/// Loads and stores one word of each line: for the memory one read and, later, one write-back. Ignores lines beyond a
/// multiple of eight.
#[inline]
pub(crate) fn modify(lines: &mut [Line]) {
    for group in lines.as_chunks_mut::<UNROLL>().0 {
        for line in group {
            let word = &raw mut line.0[0];
            // SAFETY: `word` comes from a live exclusive reference: initialised, aligned, readable.
            let value = unsafe { ptr::read_volatile(word) };
            // SAFETY: as above, and writable.
            unsafe { ptr::write_volatile(word, value.wrapping_add(1)) };
        }
    }
}

/// Busy-waits without touching memory: a chain of multiplications that no compiler shortens.
#[inline]
pub(crate) fn spin(turns: u64) {
    let mut value = turns;
    for turn in 0..turns {
        value = value.wrapping_mul(0x5851_f42d_4c95_7f2d) ^ turn;
    }
    std::hint::black_box(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modifying_adds_one_to_the_first_word_of_each_line_and_reading_sums_them() {
        let mut lines = vec![Line::default(); 24];
        modify(&mut lines);
        modify(&mut lines);
        assert_eq!(read(&lines), 48);
        assert!(lines.iter().all(|line| line.0 == [2, 0, 0, 0, 0, 0, 0, 0]));
    }

    #[test]
    fn lines_beyond_the_last_full_group_are_not_accessed() {
        let mut lines = vec![Line::default(); 13];
        modify(&mut lines);
        assert_eq!(read(&lines), 8);
        assert_eq!(lines[8].0[0], 0);
    }
}
