//! Loads that overlap: the machine's accesses as loads in flight of a vCPU ([`crate::flight`]).

use super::{Access, Kind, Machine, Vcpu};
use crate::cache::LINE_SHIFT;
use crate::flight::{NO_NODE, Wait};
use crate::flow::{Flow, Reference};

/// The instruction that makes an access.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// Its block.
    pub flow: &'a Flow,
    /// Its place among the block's instructions.
    pub at: usize,
}

impl<'a> Origin<'a> {
    fn reference(&self) -> Option<&'a Reference> {
        self.flow.references.get(self.at)
    }
}

impl Vcpu {
    /// Whether loads are in flight, so that blocks have to be passed to [`Machine::begin`].
    #[inline]
    #[must_use]
    pub fn is_ahead(&self, now_ps: u64) -> bool {
        self.flight.any(now_ps)
    }

    /// Forgets all lines, because translations have changed.
    pub fn forget_translations(&mut self) {
        self.first_level.clear();
        self.flight.forget_lines();
    }

    /// When the line of `address` arrives, if it is in flight.
    #[inline]
    pub(crate) fn line_in_flight(&self, address: u64, now_ps: u64) -> Option<u64> {
        self.flight.line(address >> LINE_SHIFT).filter(|arrives_ps| *arrives_ps > now_ps)
    }

    /// Whether the line of `address` was in flight and has arrived, or was in the first-level cache; it is there now.
    #[inline]
    pub(crate) fn has_arrived(&mut self, address: u64, store: bool) -> bool {
        let arrived = self.flight.line(address >> LINE_SHIFT).is_some();
        if arrived {
            self.flight.drop_line(address >> LINE_SHIFT);
        }
        if arrived || self.first_level.can_load(address) {
            self.first_level.fill(address, store);
            return true;
        }
        false
    }

    /// The line of `address` is in flight until it arrives.
    pub(crate) fn expect_line(&mut self, address: u64, arrives_ps: u64) {
        if let Some(line) = self.flight.add_line(address >> LINE_SHIFT, arrives_ps) {
            self.first_level.fill(line << LINE_SHIFT, false);
        }
    }

    /// When the address of a load or a store is ready, at the earliest now.
    #[inline]
    pub(crate) fn ready(&self, now_ps: u64, store: bool, origin: Option<Origin<'_>>) -> u64 {
        let reference = origin.and_then(|origin| origin.reference());
        let needs = reference.and_then(|reference| match store {
            true => Some(reference.stored_at),
            false => Some(reference.load?.needs),
        });
        needs.map_or(0, |needs| self.flight.ready(needs)).max(now_ps)
    }

    /// A store of `origin` to `address` passes its data on.
    #[inline]
    pub fn pass_on(&mut self, now_ps: u64, address: u64, origin: Origin<'_>) {
        if let Some(reference) = origin.reference() {
            let ready_ps = self.flight.ready(reference.stored);
            self.flight.pass_on(address, now_ps, ready_ps);
        }
    }

    /// A load of `origin` from `address` hits the first-level cache: it may still wait for data that a store passes on.
    #[inline]
    pub fn take_over(&mut self, now_ps: u64, address: u64, origin: Origin<'_>) {
        let ready_ps = self.flight.passed_on(address);
        if ready_ps > now_ps
            && let Some(load) = origin.reference().and_then(|reference| reference.load)
        {
            self.flight.feed(origin.flow, &load, ready_ps);
        }
    }
}

impl Machine {
    /// A block begins while loads are in flight; returns the stall, in picoseconds, for those that execution must not
    /// pass.
    pub fn begin(&self, vcpu: &mut Vcpu, now_ps: u64, flow: &Flow) -> u64 {
        let mut stall_ps = 0;
        while let Some(wait) = vcpu.flight.retire(now_ps + stall_ps, flow.waits) {
            self.charge(vcpu, wait);
            stall_ps += wait.ps;
        }
        vcpu.flight.begin(flow);
        stall_ps
    }

    /// The stall of an access to a line that is in flight or in the first-level cache already; `None` if it is in
    /// neither.
    #[inline]
    pub(crate) fn present(
        &self,
        vcpu: &mut Vcpu,
        now_ps: u64,
        access: Access,
        origin: Option<Origin<'_>>,
    ) -> Option<u64> {
        let store = access.kind == Kind::Store;
        let (cache, line) = (&self.caches[vcpu.cpu_node], access.physical_address >> LINE_SHIFT);
        if let Some(arrives_ps) = vcpu.line_in_flight(access.virtual_address, now_ps) {
            if store {
                cache.touch(line, true);
                return Some(0);
            }
            return Some(self.load_arrives(vcpu, now_ps, (arrives_ps, NO_NODE), origin));
        }
        // A store to a line that was present but clean does not wait.
        vcpu.has_arrived(access.virtual_address, store).then(|| {
            cache.touch(line, store);
            0
        })
    }

    /// A load's line arrives; returns the stall.
    pub(crate) fn load_arrives(
        &self,
        vcpu: &mut Vcpu,
        now_ps: u64,
        (arrives_ps, node): (u64, usize),
        origin: Option<Origin<'_>>,
    ) -> u64 {
        let load = origin.and_then(|origin| Some((origin.flow, origin.reference()?.load?)));
        let Some((flow, load)) = load else {
            return self.stall(vcpu, arrives_ps - now_ps, node);
        };
        if !vcpu.flight.any(now_ps) {
            vcpu.flight.start(flow);
        }
        vcpu.flight.feed(flow, &load, arrives_ps);
        let wait = vcpu.flight.hold(now_ps, arrives_ps, node);
        wait.map_or(0, |wait| {
            self.charge(vcpu, wait);
            wait.ps
        })
    }

    /// Execution stalls, for a line of a node.
    pub(crate) fn stall(&self, vcpu: &mut Vcpu, ps: u64, node: usize) -> u64 {
        vcpu.flight.stalled(ps);
        self.charge(vcpu, Wait { ps, node });
        ps
    }

    fn charge(&self, vcpu: &Vcpu, wait: Wait) {
        let counts = &self.counts[vcpu.index];
        counts.stall_ps.add(wait.ps);
        if wait.node != NO_NODE {
            counts.nodes[wait.node].stall_ps.add(wait.ps);
        }
    }
}
