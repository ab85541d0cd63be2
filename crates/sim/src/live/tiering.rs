//! The tiering loop that ships ([`nearfar_control::tiering`]) on a simulated machine of two tiers.
//!
//! # Approach
//! [`Tiering`] is a simulator's controller around control's loop and implements its port, [`TierPages`], as the live system
//! does by DAMON: a scan clears accessed bits and counts them a sampling window later, a migration covers the addresses that
//! [`nearfar_policy::tiering::migration`] selects, idle pages of near ranges before referenced pages of far ones. Each page has
//! a physical address: a slot of its node, given away in ascending order and taken again when it is free.
//!
//! # The accessed bit
//! The simulator counts the lines of each page ([`Readings::accesses`]). A page that was asked for `n` lines on average since
//! its bit was cleared has it set with probability `1 - exp(-n)`. Scans count the expected value; a migrating pass draws. A page
//! of the simulator that stands for many small ones has a bit for each: a pass that finds half of them referenced takes the
//! whole for referenced half of the time.
//!
//! # Limits
//! Address translations that a CPU keeps hide accesses from real accessed bits; here none do. The CPU time of scans is assumed
//! (`SCAN_NS`, `MOVE_NS`) and is not taken from the workload. Between scans the loop demotes (no kernel does it instead).

use std::convert::Infallible;

use nearfar_control::tiering::Loop;
use nearfar_policy::ports::{Count, KeptBy, TierPages};
use nearfar_policy::tiering::migration::{self, Boundary, LastScan};
use nearfar_policy::tiering::segments::{SEGMENTS, TieredNode};
use nearfar_policy::tiering::targets::MigrationTarget;
use nearfar_policy::tiering::{BackgroundMigration, Decision, Goals, Scan, Scanned, TierUsage};
use nearfar_topology::{AddrRange, Bytes, BytesPerSecond, Nanoseconds, NodeId};

use super::number::{real, whole};
use super::{Act, Controller, Readings};
use crate::rng::Rng;

/// CPU time to read and clear an accessed bit. Assumed.
const SCAN_NS: u64 = 40;
/// CPU time to migrate the memory behind one accessed bit, besides copying at 10 bytes a nanosecond. Assumed, near what DAMON's passes
/// take for 4 KiB.
const MOVE_NS: u64 = 5_000;
const COPY_PER_NS: u64 = 10;
const SMALL: u64 = 4 << 10;
const HUGE: u64 = 2 << 20;
/// The near node and the far one.
const NODES: usize = 2;

/// The loop as a controller of a simulated machine.
#[derive(Debug, Default)]
pub struct Tiering {
    at_work: Option<(Loop, Memory)>,
    due: Nanoseconds,
}

impl Controller for Tiering {
    fn tick(&mut self, readings: &Readings<'_>) -> Vec<Act> {
        let (tiering, memory) = self.at_work.get_or_insert_with(|| begin(readings));
        memory.see(readings);
        memory.run_passes();
        if memory.now >= self.due && memory.passes.is_empty() {
            let Ok(wait) = tiering.tick(memory.now, memory);
            self.due = Nanoseconds(memory.now.0.saturating_add(wait.0));
        }
        std::mem::take(&mut memory.acts)
    }

    fn sampling(&self) -> f64 {
        0.0
    }

    fn scans(&self) -> bool {
        true
    }
}

fn begin(readings: &Readings<'_>) -> (Loop, Memory) {
    let mut memory = Memory::new(readings);
    memory.see(readings);
    let (near, far) = memory.both();
    let goals = Goals::with_traffic(BytesPerSecond(whole(readings.rate_gbps * 1e9)));
    (Loop::new(goals, Count { near, far, ..Count::default() }), memory)
}

/// A migrating pass that is due.
#[derive(Clone, Copy, Debug)]
struct Pass {
    at: Nanoseconds,
    near: bool,
    within: AddrRange,
    /// When bits of these addresses are cleared; `None` if they were, or stay as they are.
    clear_at: Option<Nanoseconds>,
}

/// The memory of the machine, as the loop's port.
#[derive(Debug)]
struct Memory {
    now: Nanoseconds,
    page_bytes: u64,
    /// Bytes that have one accessed bit.
    unit: u64,
    nodes: Vec<TieredNode>,
    headroom: nearfar_topology::BasisPoints,
    sides: [TierUsage; NODES],
    /// The page in each slot of each node, and the slot of each page.
    slots: [Vec<Option<u32>>; NODES],
    free: [Vec<u32>; NODES],
    of: Vec<(usize, u32)>,
    /// Lines of each page now, and when its bits were cleared.
    accesses: Vec<f64>,
    cleared: Vec<f64>,
    /// The last scan, and the counts of both nodes since the beginning.
    scan: Scan,
    counts: [Scanned; NODES],
    segments: [[(u64, u64); SEGMENTS]; NODES],
    cpu: Nanoseconds,
    /// Migrated from each node since the last count.
    moved: [u64; NODES],
    passes: Vec<Pass>,
    acts: Vec<Act>,
    rng: Rng,
}

impl Memory {
    fn new(readings: &Readings<'_>) -> Self {
        let page_bytes = readings.page_bytes();
        let node = |id: usize| {
            let other = NodeId(u16::from(id == 0));
            let target = MigrationTarget::new(other, id == 1, 20);
            let span = readings.machine.nodes[id].size.0 / page_bytes * page_bytes;
            let range = AddrRange { start: 0, end: span };
            TieredNode::new(NodeId(u16::from(id == 1)), id, vec![target], &[range])
        };
        let nodes: Vec<TieredNode> = (0..NODES).map(node).collect();
        let slots = [0, 1].map(|id: usize| {
            let slots = usize::try_from(nodes[id].span() / page_bytes).unwrap_or(0);
            vec![None; slots]
        });
        let free = [0, 1].map(|id: usize| (0..).take(slots[id].len()).collect::<Vec<u32>>());
        let mut memory = Self {
            now: Nanoseconds(0),
            page_bytes,
            unit: if readings.has_huge() { HUGE } else { SMALL }.min(page_bytes),
            nodes,
            headroom: Goals::with_traffic(BytesPerSecond(0)).headroom,
            sides: [TierUsage::default(); NODES],
            slots,
            free: free.map(|mut free| {
                free.reverse();
                free
            }),
            of: Vec::new(),
            accesses: vec![0.0; readings.on().len()],
            cleared: vec![0.0; readings.on().len()],
            scan: Scan::default(),
            counts: [Scanned::default(); NODES],
            segments: [[(0, 0); SEGMENTS]; NODES],
            cpu: Nanoseconds(0),
            moved: [0; NODES],
            passes: Vec::new(),
            acts: Vec::new(),
            rng: Rng::new(0x7135),
        };
        memory.of = (0..).zip(readings.on()).map(|(page, on)| memory.settle(page, *on)).collect();
        memory
    }

    /// Puts a page into the next free slot of a node.
    fn settle(&mut self, page: u32, on: u16) -> (usize, u32) {
        let node = usize::from(on).min(NODES - 1);
        let slot = self.free[node].pop().unwrap_or(u32::MAX);
        if let Some(place) = self.slots[node].get_mut(slot as usize) {
            *place = Some(page);
        }
        (node, slot)
    }

    /// Takes over the simulator's state.
    fn see(&mut self, readings: &Readings<'_>) {
        self.now = Nanoseconds(readings.now_ms * 1_000_000);
        self.accesses.clear();
        self.accesses.extend_from_slice(readings.accesses);
        self.accesses.resize(readings.on().len(), 0.0);
        for (page, on) in (0u32..).zip(readings.on()) {
            let (node, slot) = self.of[page as usize];
            if node == usize::from(*on) {
                continue;
            }
            if let Some(place) = self.slots[node].get_mut(slot as usize) {
                *place = None;
                self.free[node].push(slot);
            }
            self.moved[node] += self.page_bytes;
            let cost = self.page_bytes / self.unit * MOVE_NS + self.page_bytes / COPY_PER_NS;
            self.cpu.0 = self.cpu.0.saturating_add(cost);
            self.of[page as usize] = self.settle(page, *on);
            // The new page has not been accessed.
            self.cleared[page as usize] = self.accesses[page as usize];
        }
        self.sides = [0, 1].map(|node: usize| TierUsage {
            total: readings.machine.nodes[node].size,
            free: Bytes(readings.free[node]),
        });
    }

    const fn both(&self) -> (TierUsage, TierUsage) {
        (self.sides[0], self.sides[1])
    }

    /// The slots of a node that lie within a range.
    fn within(&self, range: AddrRange, node: usize) -> std::ops::Range<usize> {
        let slot = |address: u64| usize::try_from(address / self.page_bytes).unwrap_or(usize::MAX);
        let last = self.slots[node].len();
        slot(range.start).min(last)..slot(range.end.next_multiple_of(self.page_bytes)).min(last)
    }

    /// The slots of a node that begin within a range: neighbouring ranges have none in common.
    fn beginning(&self, range: AddrRange, node: usize) -> std::ops::Range<usize> {
        let start = range.start.next_multiple_of(self.page_bytes);
        self.within(AddrRange { start, ..range }, node)
    }

    /// The probability that a page's accessed bit is set.
    fn referenced(&self, page: u32) -> f64 {
        let lines = self.accesses[page as usize] - self.cleared[page as usize];
        let pieces = real(self.page_bytes / self.unit);
        1.0 - (-lines.max(0.0) / pieces).exp()
    }

    /// Clears the bits of a range.
    fn clear(&mut self, range: AddrRange, node: usize) {
        let slots = self.within(range, node);
        for page in self.slots[node][slots.clone()].iter().flatten() {
            self.cleared[*page as usize] = self.accesses[*page as usize];
        }
        self.pay(slots.len());
    }

    /// Adds the CPU time of a pass over this number of slots.
    fn pay(&mut self, slots: usize) {
        let bits = slots as u64 * (self.page_bytes / self.unit);
        self.cpu.0 = self.cpu.0.saturating_add(bits * SCAN_NS);
    }

    /// The addresses of a node that a scan covers.
    fn scanned(&self, node: usize, look: Scan) -> Option<AddrRange> {
        let all = AddrRange { start: 0, end: self.nodes[node].span() };
        if node == 0 && look.by_age { self.nodes[0].covered() } else { Some(all) }
    }

    /// Counts referenced pages of a node, segment by segment, and clears their bits.
    fn count_node(&mut self, node: usize, within: AddrRange) {
        let is_whole = within.len() == self.nodes[node].span();
        let segments: Vec<AddrRange> = self.nodes[node].addresses().collect();
        let (mut at, mut used) = (0, 0);
        for (index, segment) in segments.into_iter().enumerate() {
            let both = AddrRange {
                start: segment.start.max(within.start),
                end: segment.end.min(within.end),
            };
            if both.is_empty() {
                continue;
            }
            let pages = self.slots[node][self.beginning(both, node)].iter().flatten();
            let found = pages.clone().map(|page| self.referenced(*page) * real(self.page_bytes));
            let (found, taken) = (whole(found.sum()), pages.count() as u64 * self.page_bytes);
            (at, used) = (at + taken, used + found);
            if is_whole {
                let (tried, sum) = &mut self.segments[node][index];
                (*tried, *sum) = (*tried + both.len(), *sum + found);
                let (tried, sum) = (*tried, *sum);
                self.nodes[node].segments_mut()[index].count(tried, sum);
            }
        }
        self.clear(within, node);
        let sums = &mut self.counts[node];
        (sums.at.0, sums.used.0) = (sums.at.0 + at, sums.used.0 + used);
    }

    /// Runs the passes that are due, in their order.
    fn run_passes(&mut self) {
        let mut passes = std::mem::take(&mut self.passes);
        for pass in &mut passes {
            if pass.clear_at.is_some_and(|at| at <= self.now) {
                pass.clear_at = None;
                self.clear(pass.within, usize::from(!pass.near));
            }
        }
        let (due, later) = passes.into_iter().partition(|pass: &Pass| pass.at <= self.now);
        self.passes = later;
        due.into_iter().for_each(|pass| self.migrate_within(pass));
    }

    /// Migrates the idle pages of a near range, or the referenced ones of a far one. Reading a bit clears it.
    fn migrate_within(&mut self, pass: Pass) {
        let node = usize::from(!pass.near);
        let slots = self.within(pass.within, node);
        let pages: Vec<u32> = self.slots[node][slots.clone()].iter().flatten().copied().collect();
        let to = u16::from(pass.near);
        for page in pages {
            let is_referenced = self.rng.unit() < self.referenced(page);
            self.cleared[page as usize] = self.accesses[page as usize];
            if is_referenced != pass.near {
                self.acts.push(Act::Move { page, to });
            }
        }
        self.pay(slots.len());
    }
}

impl TierPages for Memory {
    type Error = Infallible;

    fn clear_accessed(&mut self, look: Scan) -> Result<Nanoseconds, Infallible> {
        self.scan = look;
        for node in 0..NODES {
            if let Some(within) = self.scanned(node, look) {
                self.clear(within, node);
            }
        }
        Ok(look.window)
    }

    fn scan(&mut self, look: Scan) -> Result<Nanoseconds, Infallible> {
        for node in 0..NODES {
            if let Some(within) = self.scanned(node, look) {
                self.count_node(node, within);
            }
        }
        Ok(Nanoseconds(0))
    }

    fn migrate(&mut self, decision: &Decision) -> Result<Nanoseconds, Infallible> {
        let (near, far) = ([(0, self.sides[0])], [(1, self.sides[1])]);
        let boundary = Boundary { near: &near, far: &far, headroom: self.headroom };
        let demoted = boundary.demotions(&self.nodes, decision.demote.0);
        let promoted = boundary.promotions(&self.nodes, decision.promote.0, &demoted);
        let after = |time: Nanoseconds, by: Nanoseconds| Nanoseconds(time.0.saturating_add(by.0));
        let last = LastScan { window: self.scan.window, until_promotion: self.scan.window };
        let demotes_at = if decision.by_age { self.now } else { after(self.now, decision.idle) };
        let clear = |at| (!decision.by_age).then_some(at);
        let mut last_at = self.now;
        for (node, those) in [demoted, promoted].into_iter().enumerate() {
            let side = self.sides[node];
            let is_near = node == 0;
            let of = &mut self.nodes[node];
            let within = migration::ranges(of, (is_near, side), those.into_iter(), decision, last);
            let (clear_at, at) = if is_near {
                (self.now, demotes_at)
            } else {
                (demotes_at, after(demotes_at, decision.promote_window))
            };
            for within in within.into_values() {
                last_at = last_at.max(at);
                self.passes.push(Pass { at, near: is_near, within, clear_at: clear(clear_at) });
            }
        }
        self.run_passes();
        Ok(Nanoseconds(last_at.0 - self.now.0))
    }

    fn idle(&mut self, _: &BackgroundMigration) -> Result<KeptBy, Infallible> {
        Ok(KeptBy::Loop)
    }

    fn sides(&mut self) -> Result<(TierUsage, TierUsage), Infallible> {
        Ok(self.both())
    }

    fn count(&mut self) -> Result<Count, Infallible> {
        for node in 0..NODES {
            let moved = std::mem::take(&mut self.moved[node]);
            self.counts[node].moved.0 += moved;
            self.nodes[node].learn_outcome(moved);
        }
        let (near, far) = self.both();
        let [near_scan, far_scan] = self.counts;
        Ok(Count { near, far, near_scan, far_scan, cpu: self.cpu, ..Count::default() })
    }
}

#[cfg(test)]
mod tests;
