//! How long a load takes on a node now: a few dependent loads of lines that are in no cache.
//!
//! The lines of a small region of the node are a chain, each with the number of the next: a linear congruential sequence of full
//! period (D. Knuth, The Art of Computer Programming, volume 2, section 3.2.1.2), so that neighbours in it are far apart. Each
//! measurement goes on where the last ended, so its lines were last used long ago; on x86-64 they are flushed from the caches
//! as well. One takes some tens of microseconds. It is made in two halves of which the quicker counts: a thread that loses its CPU in the
//! middle of one would else find memory busy that is not.
#![expect(unsafe_code, reason = "lines are read at addresses, and flushed")]

use core::sync::atomic::{AtomicU32, Ordering};

use nearfar_kernel::mempolicy::{Existing, Policy};
use nearfar_topology::{Nanoseconds, NodeId};

use crate::{haste, sys};

const LINE: usize = 64;
/// Lines of a region, a power of two.
const LINES: u32 = 1 << 17;
/// Loads of a measurement, and of a half of it.
const LOADS: u32 = 64;
const HALF: u32 = LOADS / 2;

/// A region on a node.
#[derive(Debug)]
pub(crate) struct Chase {
    lines: usize,
    at: AtomicU32,
}

const fn after(line: u32) -> u32 {
    line.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f) % LINES
}

impl Chase {
    /// A region on a node; none if there is no memory there.
    pub(crate) fn new(node: NodeId) -> Option<Self> {
        let length = LINES as usize * LINE;
        let lines = sys::map(length)?.as_ptr() as usize;
        let policy = Policy::Bind([node].into_iter().collect()).prepare();
        if policy.bind(lines, length, Existing::Stay).is_err() {
            sys::unmap_own(lines, length);
            return None;
        }
        sys::advise_huge(lines, length, true);
        let chase = Self { lines, at: AtomicU32::new(0) };
        for line in 0..LINES {
            // The number of the next, on a line that nobody else knows.
            chase.line(line).store(after(line), Ordering::Relaxed);
        }
        Some(chase)
    }

    fn line(&self, line: u32) -> &AtomicU32 {
        let at = (self.lines + (line % LINES) as usize * LINE) as *const AtomicU32;
        // SAFETY: within the region, which is never unmapped; a line begins with a number.
        unsafe { &*at }
    }

    /// Takes the lines of the next measurement out of all caches, where that can be done.
    fn flush(&self, first: u32) {
        #[cfg(target_arch = "x86_64")]
        {
            let mut line = first;
            for _ in 0..LOADS {
                // SAFETY: an address within the region; flushing changes no content.
                unsafe { core::arch::x86_64::_mm_clflush(self.line(line).as_ptr().cast()) };
                line = after(line);
            }
            // SAFETY: no preconditions.
            unsafe { core::arch::x86_64::_mm_mfence() };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = first;
    }

    /// What a load takes now.
    pub(crate) fn measure(&self) -> Nanoseconds {
        let first = self.at.load(Ordering::Relaxed);
        self.flush(first);
        let (between, one) = self.walk(first);
        let (last, other) = self.walk(between);
        // What the loops found is used, so it is there.
        self.at.store(last, Ordering::Relaxed);
        Nanoseconds(one.min(other) / u64::from(HALF))
    }

    /// Half of the loads: the line behind them, and what they took.
    fn walk(&self, first: u32) -> (u32, u64) {
        let begun = haste::now_ns();
        let mut line = first;
        for _ in 0..HALF {
            line = self.line(line).load(Ordering::Relaxed);
        }
        // Ends when the last load has, which the clock's reading alone would not wait for.
        (core::hint::black_box(line), haste::now_ns().saturating_sub(begun))
    }
}

impl Drop for Chase {
    fn drop(&mut self) {
        sys::unmap_own(self.lines, LINES as usize * LINE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_comes_by_every_line_once() {
        let mut seen = std::vec![false; LINES as usize];
        let mut line = 0;
        for _ in 0..LINES {
            assert!(!core::mem::replace(&mut seen[line as usize], true));
            line = after(line);
        }
        assert_eq!(line, 0);
    }

    #[test]
    fn a_load_takes_some_time_and_the_next_measurement_goes_on() {
        let chase = Chase::new(NodeId(0)).unwrap();
        let first = chase.measure();
        assert!(first.0 > 0);
        let at = chase.at.load(Ordering::Relaxed);
        assert_eq!(at, (0..LOADS).fold(0, |line, _| after(line)));
        chase.measure();
        assert_ne!(chase.at.load(Ordering::Relaxed), at);
        assert!(Chase::new(NodeId(1023)).is_none());
    }
}
