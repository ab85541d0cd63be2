//! Measures the present load latency of a node: a few dependent loads of lines that are in no cache.
//!
//! The lines of a small region of the node form a chain, each with the number of the next: a linear congruential
//! sequence of full period (D. Knuth, The Art of Computer Programming, volume 2, section 3.2.1.2), so that consecutive
//! ones are far apart. Each measurement continues where the last ended, so its lines were last used long ago; on x86-64
//! they are flushed from the caches as well. One takes some tens of microseconds. It has two halves, of which the
//! faster counts: a thread preempted during one would otherwise report busy memory.
//!
//! The clock may stand still: a CPU of the lab that the host kept waiting is behind the others by up to 10 ms, and is
//! shown their time until it has caught up. A measurement waits for the clock to move, by loads, not by time.
#![expect(unsafe_code, reason = "lines are read at addresses, and flushed")]

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use nearfar_topology::{Nanoseconds, NodeId};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::mempolicy::{Existing, Policy, Prepared};
use crate::sys::clock;

const LINE: usize = 64;
/// Lines of a region, a power of two.
const LINES: u32 = 1 << 17;
/// Loads per measurement, and per half.
const LOADS: u32 = 64;
const HALF: u32 = LOADS / 2;
/// Measurements until a clock that stands still is taken for one that never moves: 20 ms and more.
const TRIES: u32 = 4096;

const LENGTH: usize = LINES as usize * LINE;
/// Bytes between the pages whose nodes are checked.
const STEP: usize = 32 << 10;

/// A region on a node, with a chain of loads through it.
#[derive(Debug)]
pub struct Chase {
    lines: NonNull<c_void>,
    node: NodeId,
    on: Prepared,
    at: AtomicU32,
}

// SAFETY: the region is not bound to a thread, and its contents are only accessed by atomic loads and stores.
unsafe impl Send for Chase {}
// SAFETY: as above.
unsafe impl Sync for Chase {}

const fn after(line: u32) -> u32 {
    line.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f) % LINES
}

impl Chase {
    /// A region on a node; `None` if it has no memory.
    #[must_use]
    pub fn new(node: NodeId) -> Option<Self> {
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: without MAP_FIXED the kernel chooses a free range, so no existing mapping is replaced.
        let lines = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), LENGTH, rights, flags) };
        let on = Policy::Bind([node].into_iter().collect()).prepare();
        let lines = NonNull::new(lines.ok()?)?;
        let chase = Self { lines, node, on, at: AtomicU32::new(0) };
        on.bind(chase.lines.as_ptr().addr(), LENGTH, Existing::Stay).ok()?;
        // SAFETY: advice about huge pages changes which pages hold the contents, never the contents.
        let _ = unsafe { rustix::mm::madvise(chase.lines.as_ptr(), LENGTH, Advice::LinuxHugepage) };
        for line in 0..LINES {
            // The number of the next line, on a line that no other thread accesses yet.
            chase.line(line).store(after(line), Ordering::Relaxed);
        }
        Some(chase)
    }

    /// Migrates parts of the region back to the node that were moved elsewhere, as tiering does with idle memory. Returns
    /// whether there were any.
    pub fn settle(&self) -> bool {
        let begin = self.lines.as_ptr().addr();
        let addresses: Vec<usize> = (begin..begin + LENGTH).step_by(STEP).collect();
        let mut nodes = vec![-1; addresses.len()];
        let is_known = crate::sys::mempolicy::nodes_of_pages(0, &addresses, &mut nodes).is_ok();
        let strayed = |on: &i32| *on >= 0 && *on != i32::from(self.node.0);
        let any = is_known && nodes.iter().any(strayed);
        if any || !is_known {
            let _ = self.on.bind(begin, LENGTH, Existing::Move);
        }
        any
    }

    fn line(&self, line: u32) -> &AtomicU32 {
        let offset = (line % LINES) as usize * LINE;
        // SAFETY: offset < LENGTH, so it is inside the region.
        let at = unsafe { self.lines.byte_add(offset) };
        // SAFETY: mapped as long as `self` lives, and aligned as a line is; a line begins with a number.
        unsafe { at.cast::<AtomicU32>().as_ref() }
    }

    /// Flushes the lines of the next measurement from all caches, where that is supported.
    fn flush(&self, first: u32) {
        #[cfg(target_arch = "x86_64")]
        {
            let mut line = first;
            for _ in 0..LOADS {
                // SAFETY: an address within the region; flushing changes no content.
                unsafe { std::arch::x86_64::_mm_clflush(self.line(line).as_ptr().cast()) };
                line = after(line);
            }
            // SAFETY: no preconditions.
            unsafe { std::arch::x86_64::_mm_mfence() };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = first;
    }

    /// The present latency of a load; 0 if the clock does not move.
    #[must_use]
    pub fn measure(&self) -> Nanoseconds {
        with_moving_clock(|| self.measure_once())
    }

    fn measure_once(&self) -> Nanoseconds {
        let first = self.at.load(Ordering::Relaxed);
        self.flush(first);
        let (between, one) = self.walk(first);
        let (last, other) = self.walk(between);
        // The loops' result is used, so that they are not optimised away.
        self.at.store(last, Ordering::Relaxed);
        Nanoseconds(one.min(other) / u64::from(HALF))
    }

    /// One half of the loads: returns the line after them, and their duration.
    fn walk(&self, first: u32) -> (u32, u64) {
        let begun = clock::monotonic();
        let mut line = first;
        for _ in 0..HALF {
            line = self.line(line).load(Ordering::Relaxed);
        }
        // Waits for the last load, which reading the clock alone would not.
        let last = std::hint::black_box(line);
        (last, clock::monotonic().0.saturating_sub(begun.0))
    }
}

/// Measures until the clock moves, then once more, since it may have begun to move during the last measurement.
fn with_moving_clock(mut measure: impl FnMut() -> Nanoseconds) -> Nanoseconds {
    let load = measure();
    if load.0 > 0 {
        return load;
    }
    for _ in 1..TRIES {
        if measure().0 > 0 {
            return measure();
        }
    }
    load
}

impl Drop for Chase {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping created by `new`; `self` is dropped, and with it the last reference.
        let _ = unsafe { rustix::mm::munmap(self.lines.as_ptr(), LENGTH) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_comes_by_every_line_once() {
        let mut seen = vec![false; LINES as usize];
        let mut line = 0;
        for _ in 0..LINES {
            assert!(!std::mem::replace(&mut seen[line as usize], true));
            line = after(line);
        }
        assert_eq!(line, 0);
    }

    #[test]
    fn a_clock_that_stands_still_for_a_while_does_not_count() {
        let measured = |still: u32| {
            let mut left = still;
            with_moving_clock(|| match left {
                // The clock begins to move in the middle of a measurement.
                0 => Nanoseconds(116),
                1 => {
                    left = 0;
                    Nanoseconds(58)
                }
                _ => {
                    left -= 1;
                    Nanoseconds(0)
                }
            })
        };
        assert_eq!([2, 3, 1000, TRIES].map(measured), [Nanoseconds(116); 4]);
        assert_eq!(
            [TRIES + 1, u32::MAX].map(measured),
            [Nanoseconds(0); 2],
            "a clock that never moves"
        );
        assert_eq!(with_moving_clock(|| Nanoseconds(116)), Nanoseconds(116));
    }

    #[test]
    fn a_load_has_nonzero_latency_and_the_next_measurement_continues() {
        let chase = Chase::new(NodeId(0)).unwrap();
        let first = chase.measure();
        assert!(first.0 > 0);
        let at = chase.at.load(Ordering::Relaxed);
        assert_eq!(at, (0..LOADS).fold(0, |line, _| after(line)));
        let _ = chase.measure();
        assert!(!chase.settle());
        assert_ne!(chase.at.load(Ordering::Relaxed), at);
        assert!(Chase::new(NodeId(1023)).is_none());
    }
}
