//! Pointer chase: each load's address is the value of the load before it, so their latencies add up.
#![expect(
    unsafe_code,
    reason = "follows raw pointers through memory; a bounds check would be timed too"
)]

use std::marker::PhantomData;

use super::Line;
use crate::cycle::{Cycle, LINES_PER_ELEMENT};

/// Loads in the unrolled body, so that the loop's own instructions take a small part of the measured time.
const UNROLL: u64 = 16;

/// The first word of a visited line: a pointer to the next.
#[repr(transparent)]
struct Link(*const Link);

/// A cycle of links through borrowed lines, and the chase's position in it.
#[derive(Debug)]
pub(crate) struct Chase<'a> {
    at: *const Link,
    lines: PhantomData<&'a mut [Line]>,
}

// SAFETY: a `Chase` stands for the exclusive borrow of the lines it points into, and `&mut [Line]` is `Send`.
unsafe impl Send for Chase<'_> {}

impl<'a> Chase<'a> {
    /// Links `lines` into one random cycle, whose segments span `segment_lines` lines. `None` if there are too few
    /// lines for a cycle.
    pub(crate) fn new(lines: &'a mut [Line], segment_lines: usize, seed: u64) -> Option<Self> {
        let elements = lines.len() / LINES_PER_ELEMENT;
        let cycle = Cycle { elements, segment: segment_lines / LINES_PER_ELEMENT, seed };
        let base = lines.as_mut_ptr();
        let link = |element: usize| -> *mut Link {
            assert!(element < elements, "a cycle names only its own elements");
            // SAFETY: element < elements = len / LINES_PER_ELEMENT, so the offset is inside the slice `base` is of.
            unsafe { base.add(element * LINES_PER_ELEMENT) }.cast()
        };
        let mut order = cycle.order();
        let first = link(order.next()?);
        let mut last = first;
        for element in order {
            let next = link(element);
            // SAFETY: `last` points to the first word of a line of the borrowed slice, aligned to 64 and writable.
            unsafe { last.write(Link(next)) };
            last = next;
        }
        // SAFETY: as above.
        unsafe { last.write(Link(first)) };
        Some(Self { at: first, lines: PhantomData })
    }

    /// Makes at least `hops` dependent loads; returns how many.
    pub(crate) fn run(&mut self, hops: u64) -> u64 {
        let rounds = hops.div_ceil(UNROLL);
        let mut at = self.at;
        for _ in 0..rounds {
            for _ in 0..UNROLL {
                // SAFETY: `at` is the first word of a line of the borrowed slice and `new` stored a link there, whose
                // value again is such a word; the borrow is ours alone and still alive.
                at = unsafe { at.read_volatile() }.0;
            }
        }
        self.at = at;
        rounds * UNROLL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chase_returns_to_its_start_only_after_a_full_round() {
        let mut lines = vec![Line::default(); 2 * 64];
        let mut chase = Chase::new(&mut lines, 32, 7).unwrap();
        let start = chase.at;
        for turn in 1..=4u64 {
            assert_eq!(chase.run(16), 16);
            assert_eq!(chase.at == start, turn == 4, "after {} hops", turn * 16);
        }
    }

    #[test]
    fn fewer_than_two_lines_give_no_chase() {
        assert!(Chase::new(&mut [], 8, 1).is_none());
        assert!(Chase::new(&mut [Line::default()], 8, 1).is_none());
    }
}
