//! Passes that move: what each node gives, where its pages go, and which of its addresses are tried for them.

use std::collections::BTreeMap;

use nearfar_kernel::damon::spec::AddrRange;
use nearfar_kernel::pageflags;
use nearfar_policy::tiering::{Decision, Side};
use nearfar_topology::{Nanoseconds, NodeId};

use super::super::node::{Kind, PAGE, Pass, scale};
use super::super::schemes::{FORGET, SPLIT, forgetting, only, splitting, way_of};
use super::super::spread;
use super::{Damon, FORGET_FIRST, HEARD, ONCE, RESERVE, SINCE_COUNT, pass_by};

/// From which node, which of its ways, and how many bytes.
type Move = (usize, usize, u64);
/// A node, whether it is near, and the addresses that each of its schemes is to try.
type Tries = (usize, bool, BTreeMap<usize, AddrRange>);
/// From one command to the next, on kernels that take long (6.12).
const COMMAND_US: u64 = 100_000;

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

    /// What near nodes (or else far ones) are to move to the other side, and which way: `(index, way, bytes)`. There is room
    /// in what is free on the other side, and in what these moves make there first.
    fn moves(&self, sides: &[Side], near: bool, bytes: u64, make_room: &[Move]) -> Vec<Move> {
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
            let made = make_room.iter().filter(|(of, ..)| of == index).map(|(.., bytes)| bytes);
            let free = made.fold(side.free.0, |free, bytes| free.saturating_add(*bytes));
            (self.nodes[*index].node, free.saturating_sub(kept))
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

    /// Has near nodes demote and far ones promote what is decided, into the room that demotion has just made. By age nothing
    /// is forgotten: near nodes move what was unused since the hand came by, far ones what was used since they were counted.
    pub(super) fn shift(&mut self, decision: &Decision) -> anyhow::Result<Nanoseconds> {
        let sides = self.sides_at_turn()?;
        let demoted = self.moves(&sides, true, decision.demote.0, &[]);
        let promoted = self.moves(&sides, false, decision.promote.0, &demoted);
        let mut tried: Vec<Tries> = Vec::new();
        for ((index, near), side) in self.at_turn().into_iter().zip(&sides) {
            let moves = if near { &demoted } else { &promoted };
            let within = self.where_to_try((index, near), *side, moves, decision);
            tried.push((index, near, within));
        }
        let passes = self.passes(&tried, decision);
        let (mut longest, group) = (0, self.group.clone());
        // Near nodes first, as they are ordered: commands take their time, and demotion is to come before promotion.
        for ((index, near, tried), pass) in tried.into_iter().zip(passes) {
            let Some((all, pass)) = hull(&tried).zip(pass) else {
                self.wake(index, |_, _| false)?;
                continue;
            };
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

    /// When each node is to move, if it is: far ones after near ones.
    fn passes(&self, tried: &[Tries], decision: &Decision) -> Vec<Option<Pass>> {
        let since_ns = self.since_count();
        let pass = |(index, near, tries): &Tries| {
            let (node, within) = (&self.nodes[*index], hull(tries)?);
            let window = if *near { decision.idle } else { decision.promote_window };
            Some(match (decision.by_age, window > ONCE) {
                (true, _) => node.pass_at(ONCE),
                (false, true) => node.pass_at(Nanoseconds(window.0.saturating_sub(since_ns))),
                (false, false) => node.pass(window, FORGET_FIRST, within.len()),
            })
        };
        let mut passes: Vec<Option<Pass>> = tried.iter().map(pass).collect();
        let takes_us = |(index, near, tries): &Tries| {
            let within = hull(tries).filter(|_| *near)?;
            Some(self.nodes[*index].takes_us(within.len(), decision.demote.0))
        };
        let Some(takes_us) = tried.iter().filter_map(takes_us).max() else { return passes };
        // Demotion is not there again before promotion is over and all have heard that it is.
        let commands_us = COMMAND_US * u64::try_from(tried.len() + 2).unwrap_or(u64::MAX);
        let least_us = (takes_us / 2 * 3).saturating_add(commands_us);
        let (mut demoted_us, by_age) = (0, decision.by_age);
        for (pass, (_, near, _)) in passes.iter_mut().zip(tried) {
            let (then_us, window) = if *near {
                (least_us, decision.idle)
            } else {
                (demoted_us + takes_us, decision.promote_window)
            };
            *pass = pass.map(|pass| pass.put_off(then_us, window, by_age));
            if let Some(pass) = pass.filter(|_| *near) {
                demoted_us = demoted_us.max(pass.act_us);
            }
        }
        passes
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
        (index, near): (usize, bool),
        side: Side,
        moves: &[Move],
        decision: &Decision,
    ) -> BTreeMap<usize, AddrRange> {
        let taken = side.total.0.saturating_sub(side.free.0);
        // In a shorter window less is found used than was counted; not in proportion, as what is used often still is.
        let looked = self.looked.0.max(1);
        let (kind, found) = if decision.by_age {
            (Kind::UpByAge, SINCE_COUNT.0.min(looked))
        } else {
            (Kind::Up, u64::midpoint(decision.promote_window.0.min(looked), looked))
        };
        let node = &mut self.nodes[index];
        let mut tried = BTreeMap::new();
        for (_, way, bytes) in moves.iter().filter(|(of, ..)| *of == index) {
            let within = match (near, decision.by_age) {
                _ if *bytes < PAGE => None,
                (true, true) => node.next_by_age(*bytes),
                (true, false) => node.next(Kind::Down, *bytes, taken, (1, 1)),
                (false, _) => node.next(kind, *bytes, taken, (found, looked)),
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
