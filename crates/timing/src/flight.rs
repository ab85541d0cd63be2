//! Loads in flight on one vCPU: how long each waits, and how far the CPU runs ahead of them.
//!
//! Approach: execution goes on past a load that misses. Its line is *in flight* until it arrives; the places that the
//! load feeds ([`crate::flow`]) are ready then, and a load with an address that needs one of them is requested only then. The
//! reorder buffer bounds the run ahead: an instruction is not executed while a load older by more than its number of
//! instructions is in flight. Another access to a line in flight waits for the line and requests nothing.
//!
//! Times are picoseconds of modelled time; a time that has passed means "ready". Loads that hit, stores of data that is
//! ready, and blocks that run while nothing is in flight need not be reported here.
//!
//! Limits: stores never wait; data that a store passes on to a later load is found by its address, for 64 addresses.

use crate::flow::{Flow, LOADS, Load, Needs, PLACES, REGISTERS};

/// Loads that may be in flight or wait to be requested, as a load buffer holds them; a power of two.
const LOADS_HELD: usize = 64;
/// Entries of the tables by address; powers of two.
const LINES: usize = 128;
const PASSED_ON: usize = 64;
const SLOTS: usize = 64;
const NOTHING: u64 = u64::MAX;

/// A load that has not retired.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    /// Time spent executing before it, without stalls.
    position_ps: u64,
    arrives_ps: u64,
    node: usize,
}

/// A wait for a load to arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    /// How long.
    pub(crate) ps: u64,
    /// The index of the node that the wait is charged to, or [`NO_NODE`].
    pub(crate) node: usize,
}

/// A line of no node: it came from the last-level cache.
pub(crate) const NO_NODE: usize = usize::MAX;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Flight {
    /// How far execution may be past a load in flight.
    ahead_ps: u64,
    /// When each register is ready, at the end of the present block.
    ready: [u64; REGISTERS],
    /// When each place was ready, at its beginning.
    entry: [u64; PLACES],
    /// When its loads arrive.
    arrives: [u64; LOADS],
    /// Stack slots: number and time.
    slots: [(i64, u64); SLOTS],
    /// RSP, in slots, from an arbitrary origin: at the beginning of the present block, and at its end.
    rsp: (i64, i64),
    held: [Held; LOADS_HELD],
    first: usize,
    count: usize,
    /// Lines in flight, by virtual address.
    lines: [(u64, u64); LINES],
    /// Data passed on by stores: address in words of 8 bytes, and time.
    passed: [(u64, u64); PASSED_ON],
    latest_ps: u64,
    stalled_ps: u64,
}

impl Flight {
    /// Nothing in flight; `ahead_ps` is the time to execute as many instructions as the reorder buffer holds.
    pub(crate) fn new(ahead_ps: u64) -> Self {
        Self {
            ahead_ps,
            ready: [0; REGISTERS],
            entry: [0; PLACES],
            arrives: [0; LOADS],
            slots: [(i64::MIN, 0); SLOTS],
            rsp: (0, 0),
            held: [Held::default(); LOADS_HELD],
            first: 0,
            count: 0,
            lines: [(NOTHING, 0); LINES],
            passed: [(NOTHING, 0); PASSED_ON],
            latest_ps: 0,
            stalled_ps: 0,
        }
    }

    /// Whether anything is in flight.
    #[inline]
    pub(crate) fn any(&self, now_ps: u64) -> bool {
        self.latest_ps > now_ps
    }

    /// A block begins: brings the places up to its end, as far as they do not depend on its own loads.
    pub(crate) fn begin(&mut self, flow: &Flow) {
        self.entry[..REGISTERS].copy_from_slice(&self.ready);
        self.rsp.0 = self.rsp.1;
        for (place, slot) in self.entry[REGISTERS..].iter_mut().zip(&flow.slots) {
            *place = slot_ready(&self.slots, self.rsp.0 + slot);
        }
        self.arrives.fill(0);
        for (place, needs) in &flow.changes {
            let ready = latest(&self.entry, *needs);
            match usize::from(*place).checked_sub(REGISTERS) {
                None => self.ready[usize::from(*place)] = ready,
                Some(slot) => self.set_slot(self.rsp.0 + flow.slots[slot], ready),
            }
        }
        match flow.moved {
            Some(by) => self.rsp.1 = self.rsp.0 + by,
            None => {
                self.slots.fill((i64::MIN, 0));
                self.rsp.1 = 0;
            }
        }
    }

    /// When all of these values are ready.
    #[inline]
    pub(crate) fn ready(&self, needs: Needs) -> u64 {
        latest(&self.entry, needs.places).max(latest(&self.arrives, needs.loads))
    }

    /// The load's value arrives, and the places that it feeds are ready then.
    pub(crate) fn feed(&mut self, flow: &Flow, load: &Load, arrives_ps: u64) {
        let arrives = &mut self.arrives[usize::from(load.number)];
        *arrives = (*arrives).max(arrives_ps);
        let mut feeds = load.feeds;
        while feeds != 0 {
            let place = feeds.trailing_zeros() as usize;
            feeds &= feeds - 1;
            match place.checked_sub(REGISTERS) {
                None => self.ready[place] = self.ready[place].max(arrives_ps),
                Some(slot) => {
                    let number = self.rsp.0 + flow.slots[slot];
                    self.set_slot(number, slot_ready(&self.slots, number).max(arrives_ps));
                }
            }
        }
        self.latest_ps = self.latest_ps.max(arrives_ps);
    }

    fn set_slot(&mut self, number: i64, ready: u64) {
        self.slots[spot(number.cast_unsigned(), SLOTS)] = (number, ready);
    }

    /// A block that began while nothing was in flight has a load.
    pub(crate) fn start(&mut self, flow: &Flow) {
        self.rsp = (0, flow.moved.unwrap_or(0));
    }

    /// A line is in flight until `arrives_ps`; returns the line that it replaces in the table, which
    /// counts as arrived.
    pub(crate) fn add_line(&mut self, line: u64, arrives_ps: u64) -> Option<u64> {
        let entry = &mut self.lines[spot(line, LINES)];
        let before = std::mem::replace(entry, (line, arrives_ps)).0;
        (before != NOTHING && before != line).then_some(before)
    }

    /// When the line arrives or arrived; `None` if it is not known.
    #[inline]
    pub(crate) fn line(&self, line: u64) -> Option<u64> {
        let (held, arrives_ps) = self.lines[spot(line, LINES)];
        (held == line).then_some(arrives_ps)
    }

    pub(crate) fn drop_line(&mut self, line: u64) {
        self.lines[spot(line, LINES)] = (NOTHING, 0);
    }

    pub(crate) fn forget_lines(&mut self) {
        self.lines.fill((NOTHING, 0));
    }

    /// Data is stored that is ready at `ready_ps`.
    #[inline]
    pub(crate) fn pass_on(&mut self, address: u64, now_ps: u64, ready_ps: u64) {
        let entry = &mut self.passed[spot(address >> 3, PASSED_ON)];
        if ready_ps > now_ps {
            *entry = (address >> 3, ready_ps);
        } else if entry.0 == address >> 3 {
            *entry = (NOTHING, 0);
        }
    }

    /// When data that was stored at an address is ready.
    #[inline]
    pub(crate) fn passed_on(&self, address: u64) -> u64 {
        let (held, ready) = self.passed[spot(address >> 3, PASSED_ON)];
        if held == address >> 3 { ready } else { 0 }
    }

    /// A load is in flight; returns the wait for a place in the load buffer.
    pub(crate) fn hold(&mut self, now_ps: u64, arrives_ps: u64, node: usize) -> Option<Wait> {
        let wait = (self.count == LOADS_HELD).then(|| self.release(now_ps)).flatten();
        let at = (self.first + self.count) % LOADS_HELD;
        let now_ps = now_ps + wait.map_or(0, |wait| wait.ps);
        self.held[at] = Held { position_ps: now_ps - self.stalled_ps, arrives_ps, node };
        self.count += 1;
        wait
    }

    /// Waits for the oldest load.
    fn release(&mut self, now_ps: u64) -> Option<Wait> {
        let Held { arrives_ps, node, .. } = self.held[self.first];
        self.first = (self.first + 1) % LOADS_HELD;
        self.count -= 1;
        let ps = arrives_ps.saturating_sub(now_ps);
        self.stalled_ps += ps;
        (ps > 0).then_some(Wait { ps, node })
    }

    /// The next wait because the oldest load is too far behind, or for any load if `all`; `None` once there is none.
    pub(crate) fn retire(&mut self, now_ps: u64, all: bool) -> Option<Wait> {
        let ahead_ps = if all { 0 } else { self.ahead_ps };
        while self.count > 0 {
            let oldest = self.held[self.first];
            let executed_ps = (now_ps - self.stalled_ps).saturating_sub(oldest.position_ps);
            if oldest.arrives_ps > now_ps && executed_ps < ahead_ps {
                return None;
            }
            if let Some(wait) = self.release(now_ps) {
                return Some(wait);
            }
        }
        None
    }

    /// Execution stood still for another reason.
    pub(crate) fn stalled(&mut self, ps: u64) {
        self.stalled_ps += ps;
    }
}

/// When a stack slot is ready.
#[inline]
fn slot_ready(slots: &[(i64, u64); SLOTS], number: i64) -> u64 {
    let (held, ready) = slots[spot(number.cast_unsigned(), SLOTS)];
    if held == number { ready } else { 0 }
}

/// The latest of the times that `bits` selects.
#[inline]
fn latest(times: &[u64; 64], mut bits: u64) -> u64 {
    let mut latest = 0;
    while bits != 0 {
        latest = latest.max(times[bits.trailing_zeros() as usize]);
        bits &= bits - 1;
    }
    latest
}

/// The entry of a key in a table with a power of two of entries.
#[inline]
fn spot(key: u64, entries: usize) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "masked")]
    let at = (key ^ key >> 7) as usize & (entries - 1);
    at
}
