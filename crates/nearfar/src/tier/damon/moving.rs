//! Passes that move: what each node gives, where its pages go, and which of its addresses are tried for them.

use std::collections::BTreeMap;

use nearfar_kernel::damon::spec::AddrRange;
use nearfar_kernel::pageflags;
use nearfar_policy::tiering::{Decision, Side};
use nearfar_topology::{Nanoseconds, NodeId};

use super::super::node::{PAGE, scale};
use super::super::schemes::{FORGET, SPLIT, forgetting, only, splitting, way_of};
use super::super::spread;
use super::{Damon, FORGET_FIRST, HEARD, ONCE, RESERVE, SINCE_COUNT, pass_by};

impl Damon<'_> {
    /// Asks how much of each part of near memory can be moved; where the kernel does not tell, all are taken to be alike.
    pub(super) fn learn_movable(&mut self) {
        for (index, _) in self.at_turn().into_iter().filter(|(_, near)| *near) {
            let node = &mut self.nodes[index];
            let arcs: Vec<AddrRange> = node.arcs.iter().map(|arc| node.within(arc)).collect();
            if let Ok(Some(shares)) = pageflags::on_reclaim_lists(self.fs, &arcs) {
                node.learn_movable(&shares);
            }
        }
    }

    /// What near nodes (or else far ones) are to move to the other side, and which way: `(index, way, bytes)`.
    fn moves(&self, sides: &[Side], near: bool, bytes: u64) -> Vec<(usize, usize, u64)> {
        let at_turn = self.at_turn();
        let nears = at_turn.iter().filter(|(_, near)| *near).count();
        let (near_sides, far_sides) = sides.split_at(nears);
        let (from, to, to_sides) = if near {
            (&at_turn[..nears], &at_turn[nears..], far_sides)
        } else {
            (&at_turn[nears..], &at_turn[..nears], near_sides)
        };
        let given = if near {
            spread::demoted(near_sides, bytes)
        } else {
            let used = |(index, _): &(usize, bool)| self.nodes[*index].used();
            spread::share(bytes, &from.iter().map(used).collect::<Vec<_>>())
        };
        let half = u64::from(self.headroom.0) / 2;
        let room = |((index, _), side): (&(usize, bool), &Side)| {
            let total = side.total.0;
            let kept = if near { total / RESERVE } else { scale(total, half, 10_000) };
            (self.nodes[*index].node, side.free.0.saturating_sub(kept))
        };
        let mut rooms: BTreeMap<NodeId, u64> = to.iter().zip(to_sides).map(room).collect();
        let mut moves = Vec::new();
        for ((index, _), bytes) in from.iter().zip(given) {
            let ways = self.nodes[*index].ways.iter().enumerate();
            let (at, ways): (Vec<usize>, Vec<_>) =
                ways.filter(|(_, way)| way.up != near).map(|(at, way)| (at, *way)).unzip();
            let mut room: Vec<u64> =
                ways.iter().map(|way| rooms.get(&way.to).copied().unwrap_or(0)).collect();
            let gets = spread::ways(bytes, &ways, &mut room);
            rooms.extend(ways.iter().zip(&room).map(|(way, room)| (way.to, *room)));
            moves.extend(at.into_iter().zip(gets).map(|(way, bytes)| (*index, way, bytes)));
        }
        moves
    }

    /// Has near nodes demote and far ones promote what is decided, all at about the same time. By age nothing is forgotten:
    /// near nodes move what was unused since the hand came by, far ones what was used since they were counted.
    pub(super) fn shift(&mut self, decision: &Decision) -> anyhow::Result<Nanoseconds> {
        let sides = self.sides_at_turn()?;
        let moves = [decision.promote.0, decision.demote.0];
        let moves = [self.moves(&sides, false, moves[0]), self.moves(&sides, true, moves[1])];
        let mut tried = Vec::new();
        for ((index, near), side) in self.at_turn().into_iter().zip(&sides) {
            let taken = side.total.0.saturating_sub(side.free.0);
            let within = self.where_to_try(index, near, &moves[usize::from(near)], taken, decision);
            tried.push((index, near, within));
        }
        let since_ns = self.since_count();
        let pass = |this: &Self, index: usize, near: bool, within: AddrRange| {
            let node = &this.nodes[index];
            let window = if near { decision.idle } else { decision.promote_window };
            match (decision.by_age, window > ONCE) {
                (true, _) => node.pass_at(ONCE),
                (false, true) => node.pass_at(Nanoseconds(window.0.saturating_sub(since_ns))),
                (false, false) => node.pass(window, FORGET_FIRST, within.len()),
            }
        };
        let demotes = tried.iter().filter(|(_, near, _)| *near);
        let demoted_us = demotes
            .filter_map(|(index, near, tried)| Some(pass(self, *index, *near, hull(tried)?).act_us))
            .max();
        let (mut longest, group) = (0, self.group.clone());
        // Far nodes first: what they go on with takes longer.
        for (index, near, tried) in tried.into_iter().rev() {
            let Some(all) = hull(&tried) else {
                self.wake(index, |_, _| false)?;
                continue;
            };
            let mut pass = pass(self, index, near, all);
            if let Some(then_us) = demoted_us.filter(|_| !near && !decision.by_age) {
                pass = pass.put_off(then_us, decision.promote_window);
            }
            longest = pass.act_us.max(longest);
            self.wake(index, |at, scheme| {
                if at == SPLIT {
                    scheme.filters = splitting(all.start);
                    return true;
                }
                if at == FORGET {
                    scheme.filters = forgetting(all, group.as_ref());
                    scheme.apply_interval_us = pass.forget_us.unwrap_or(pass.act_us);
                    return pass.forget_us.is_some();
                }
                let Some(within) = tried.get(&at) else { return false };
                scheme.filters = only(*within, group.as_ref(), near);
                scheme.apply_interval_us = pass.act_us;
                true
            })?;
        }
        Ok(pass_by(longest))
    }

    /// How long ago pages were counted by the time that a command is heard.
    fn since_count(&self) -> u64 {
        let (told, counted) = self.counted;
        let since = u64::try_from(told.elapsed().as_nanos()).unwrap_or(u64::MAX);
        since.saturating_sub(counted.0).saturating_add(HEARD.0)
    }

    /// The addresses that each scheme of a node is to try.
    fn where_to_try(
        &mut self,
        index: usize,
        near: bool,
        moves: &[(usize, usize, u64)],
        taken: u64,
        decision: &Decision,
    ) -> BTreeMap<usize, AddrRange> {
        // In a shorter window less is found used than was counted.
        let looked = self.looked.0.max(1);
        let window = if decision.by_age { SINCE_COUNT } else { decision.promote_window };
        let found = (window.0.clamp(1, looked), looked);
        let node = &mut self.nodes[index];
        let mut tried = BTreeMap::new();
        for (_, way, bytes) in moves.iter().filter(|(of, ..)| *of == index) {
            let within = match (near, decision.by_age) {
                _ if *bytes < PAGE => None,
                (true, true) => node.next_by_age(*bytes),
                (true, false) => node.next(false, *bytes, taken, (1, 1)),
                (false, _) => node.next(true, *bytes, taken, found),
            };
            tried.extend(within.map(|within| (way_of(node.arcs.len(), *way), within)));
        }
        tried
    }
}

/// From the first address that any is to try to the last.
fn hull(tried: &BTreeMap<usize, AddrRange>) -> Option<AddrRange> {
    let start = tried.values().map(|within| within.start).min()?;
    let end = tried.values().map(|within| within.end).max()?;
    Some(AddrRange { start, end })
}
