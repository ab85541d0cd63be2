//! Passes that move: what each node gives, where its pages go, and which of its addresses are tried for them.

use std::collections::BTreeMap;

use nearfar_kernel::damon::spec::AddrRange;
use nearfar_kernel::pageflags;
use nearfar_policy::tiering::Side;
use nearfar_topology::{Nanoseconds, NodeId};

use super::super::node::{PAGE, scale};
use super::super::schemes::{FORGET, SPLIT, forgetting, only, splitting, way_of};
use super::super::spread;
use super::{Damon, FORGET_FIRST, ONCE, RESERVE, SINCE_COUNT, pass_by};

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

    /// Has near nodes (or else far ones) move so much of what was unused (or used) in such a window, and those of the other
    /// side sleep. By age nothing is forgotten: near nodes move what was unused since the hand came by, far ones what was used
    /// since they were counted.
    pub(super) fn shift(
        &mut self,
        near: bool,
        bytes: u64,
        window: Nanoseconds,
        by_age: bool,
    ) -> anyhow::Result<Nanoseconds> {
        let (sides, group) = (self.sides_at_turn()?, self.group.clone());
        let moves = self.moves(&sides, near, bytes);
        let mut longest = 0;
        // Far nodes first: what they go on with takes longer.
        for ((index, is_near), side) in self.at_turn().into_iter().zip(&sides).rev() {
            if near != is_near {
                self.wake(index, |_, _| false)?;
                continue;
            }
            let taken = side.total.0.saturating_sub(side.free.0);
            // In a shorter window less is found used than was counted.
            let looked = self.looked.0.max(1);
            let shorter = if by_age { SINCE_COUNT } else { window }.0.clamp(1, looked);
            let node = &mut self.nodes[index];
            let mut tried = BTreeMap::new();
            for (_, way, bytes) in moves.iter().filter(|(of, ..)| *of == index) {
                let within = match (near, by_age) {
                    _ if *bytes < PAGE => None,
                    (true, true) => node.next_by_age(*bytes),
                    (true, false) => node.next(false, *bytes, taken, (1, 1)),
                    (false, _) => node.next(true, *bytes, taken, (shorter, looked)),
                };
                tried.extend(within.map(|within| (way_of(node.arcs.len(), *way), within)));
            }
            let start = tried.values().map(|within| within.start).min().unwrap_or(0);
            let end = tried.values().map(|within| within.end).max().unwrap_or(0);
            let all = AddrRange { start, end };
            let pass = match by_age {
                true => node.pass_at(ONCE),
                false => node.pass(window, FORGET_FIRST, all.len()),
            };
            longest = pass.act_us.max(longest);
            self.wake(index, |at, scheme| {
                if at == SPLIT {
                    scheme.filters = splitting(start);
                    return !tried.is_empty();
                }
                if at == FORGET && !tried.is_empty() {
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
}
