//! Carrefour's decision on one page: replicate, interleave, relocate or leave.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

use nearfar_topology::{BasisPoints, NodeId};

use super::{Action, Config, Draw, Gates, Left, WHOLE, Why, share};
use crate::traffic::{PAGE, PIECES, Page, Process, Round, Sampled};

/// Decisions of a round on pages so far.
#[derive(Debug)]
pub(super) struct Pages<'a> {
    config: &'a Config,
    gates: Gates,
    nodes: Vec<Place>,
    /// Salt of the hash that replaces random numbers.
    salt: u64,
    /// Processes that may be replicated; `None` for all.
    pub(super) allowed: Option<BTreeSet<Process>>,
    /// Whether replicas are made this round.
    pub(super) replicas: bool,
    /// The huge page that was split last.
    split: Option<Page>,
    pub(super) actions: Vec<(Action, Why)>,
    pub(super) left: BTreeMap<Left, u64>,
}

/// A node: its share of all accesses, and its free memory.
#[derive(Clone, Copy, Debug)]
struct Place {
    node: NodeId,
    has_memory: bool,
    free: u64,
    share: BasisPoints,
}

impl<'a> Pages<'a> {
    pub(super) fn new(config: &'a Config, round: &Round, gates: Gates, rounds: u64) -> Self {
        let by_node = round.by_node();
        let all = by_node.iter().fold(0_u64, |sum, accesses| sum.saturating_add(*accesses));
        let place = |(memory, accesses): (&crate::traffic::Memory, &u64)| Place {
            node: memory.node,
            has_memory: memory.total.0 > 0,
            free: memory.free.0,
            share: share(*accesses, all),
        };
        let salt = match config.draw {
            Draw::ByPage => 0,
            Draw::Anew { seed } => seed.wrapping_add(rounds.wrapping_mul(2)),
        };
        Self {
            config,
            gates,
            nodes: round.nodes.iter().zip(&by_node).map(place).collect(),
            salt,
            allowed: None,
            replicas: false,
            split: None,
            actions: Vec::new(),
            left: BTreeMap::new(),
        }
    }

    pub(super) fn leave(&mut self, why: Left) {
        *self.left.entry(why).or_default() += 1;
    }

    /// Nodes that pages can be spread over; at least one.
    pub(super) fn nodes_with_memory(&self) -> u64 {
        let with_memory = self.nodes.iter().filter(|place| place.has_memory).count();
        u64::try_from(with_memory.max(1)).unwrap_or(1)
    }

    /// Accesses from the node that holds the page.
    pub(super) fn local(&self, sampled: &Sampled) -> u64 {
        let own = self.nodes.iter().position(|place| place.node == sampled.node);
        own.and_then(|own| sampled.by.get(own)).map_or(0, |samples| u64::from(*samples))
    }

    /// Whether the page is to be replicated, once replicas are made at all.
    pub(super) fn replicates(&self, page: Page, sampled: &Sampled) -> bool {
        let allowed = self.allowed.as_ref().is_none_or(|some| some.contains(&page.process));
        self.gates.replicate && allowed && sampled.lone().is_none() && sampled.writes == 0
    }

    pub(super) fn decide(&mut self, page: Page, sampled: &Sampled) {
        match sampled.lone() {
            Some(cpu) => self.relocate(page, sampled, cpu),
            None if self.replicates(page, sampled) && self.replicas => {
                self.replicate(page, sampled)
            }
            None if self.replicates(page, sampled) && !self.gates.interleave => {
                self.leave(Left::TooFewToReplicate);
            }
            None if self.gates.interleave => self.interleave(page, sampled),
            None => self.leave(Left::SharingOff),
        }
    }

    fn relocate(&mut self, page: Page, sampled: &Sampled, cpu: usize) {
        let config = self.config;
        let samples = sampled.all();
        let least = match self.gates {
            Gates { interleave: true, .. } => config.samples_least_interleaving,
            _ => config.samples_least,
        };
        if self.nodes.get(cpu).is_some_and(|place| place.node == sampled.node) {
            self.leave(Left::Local);
        } else if !self.gates.relocate && !self.gates.interleave {
            self.leave(Left::RelocationOff);
        } else if samples < u64::from(least) {
            self.leave(Left::TooFewSamples);
        } else {
            self.go(page, sampled, (cpu, Why::Lone { samples }));
        }
    }

    fn interleave(&mut self, page: Page, sampled: &Sampled) {
        let own = self.nodes.iter().position(|place| place.node == sampled.node);
        let share = own.map_or(BasisPoints(0), |own| self.nodes[own].share);
        if part(page.hash(self.salt), WHOLE) >= u64::from(share.0) {
            return self.leave(Left::NotDrawn);
        }
        match self.draw(page) {
            None => self.leave(Left::NoRoom),
            Some(to) if Some(to) == own => self.leave(Left::OwnDrawn),
            Some(to) => self.go(page, sampled, (to, Why::Spread { share })),
        }
    }

    /// Draws a node with weight 100 % less its share; `None` if no node has memory.
    fn draw(&self, page: Page) -> Option<usize> {
        let weight = |place: &Place| {
            if place.has_memory { WHOLE.saturating_sub(u64::from(place.share.0)) } else { 0 }
        };
        let all: u64 = self.nodes.iter().map(weight).sum();
        let mut drawn = part(page.hash(self.salt.wrapping_add(1)), all);
        for (index, place) in self.nodes.iter().enumerate() {
            match drawn.checked_sub(weight(place)) {
                Some(rest) => drawn = rest,
                None => return Some(index),
            }
        }
        None
    }

    fn replicate(&mut self, page: Page, sampled: &Sampled) {
        let readers = (0..sampled.by.len()).filter(|cpu| sampled.by[*cpu] > 0);
        let readers: Vec<usize> = readers.filter(|cpu| *cpu < self.nodes.len()).collect();
        let elsewhere = |index: &usize| self.nodes[*index].node != sampled.node;
        let bytes = PAGE * if self.whole(sampled) { PIECES } else { 1 };
        if readers.iter().copied().filter(elsewhere).any(|index| self.nodes[index].free < bytes) {
            return self.leave(Left::NoRoom);
        }
        for index in readers.iter().copied().filter(elsewhere).collect::<Vec<_>>() {
            self.nodes[index].free -= bytes;
        }
        self.split_first(page, sampled);
        let on: Vec<NodeId> = readers.iter().map(|index| self.nodes[*index].node).collect();
        let nodes = on.len();
        self.actions.push((Action::Replicate { page, on }, Why::Read { nodes }));
    }

    /// Moves a page if the destination has free memory.
    fn go(&mut self, page: Page, sampled: &Sampled, (to, why): (usize, Why)) {
        let bytes = PAGE * if self.whole(sampled) { PIECES } else { 1 };
        let Some(place) = self.nodes.get_mut(to).filter(|place| place.free >= bytes) else {
            return self.leave(Left::NoRoom);
        };
        place.free -= bytes;
        let to = place.node;
        if let Some(from) = self.nodes.iter_mut().find(|place| place.node == sampled.node) {
            from.free = from.free.saturating_add(bytes);
        }
        self.split_first(page, sampled);
        self.actions.push((Action::Move { page, to }, why));
    }

    /// Whether a huge page is moved without a split.
    const fn whole(&self, sampled: &Sampled) -> bool {
        sampled.huge && self.config.huge.is_some()
    }

    fn split_first(&mut self, page: Page, sampled: &Sampled) {
        let whole = page.whole();
        if sampled.huge && !self.whole(sampled) && self.split != Some(whole) {
            self.split = Some(whole);
            self.actions.push((Action::Split { page: whole }, Why::ForPieces));
        }
    }

    /// Splits a huge page and spreads its pieces over all nodes in turn.
    pub(super) fn split_and_spread(&mut self, page: Page, sampled: &Sampled, why: Why) {
        self.actions.push((Action::Split { page }, why));
        let with_memory: Vec<usize> =
            (0..self.nodes.len()).filter(|index| self.nodes[*index].has_memory).collect();
        let piece = Sampled { huge: false, by: vec![], ..*sampled };
        for number in 0..PIECES {
            let turn = usize::try_from(number).unwrap_or(0) % with_memory.len().max(1);
            let Some(to) = with_memory.get(turn) else { break };
            if self.nodes[*to].node != sampled.node {
                let page = Page { number: page.number + number, ..page };
                self.go(page, &piece, (*to, why));
            }
        }
    }
}

/// Maps a hash to a number below `of`.
fn part(hash: u64, of: u64) -> u64 {
    u64::try_from((u128::from(hash) * u128::from(of)) >> 64).unwrap_or(0)
}

#[cfg(test)]
mod tests;
