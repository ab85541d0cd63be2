//! Migrating passes: the bytes that each node gives, their targets, and the addresses that each pass covers.

use std::collections::BTreeMap;

use nearfar_kernel::damon::spec::AddrRange;
use nearfar_kernel::pageflags;
use nearfar_policy::tiering::migration::{self, Boundary, LastScan};
use nearfar_policy::tiering::{Decision, TierUsage};
use nearfar_topology::Nanoseconds;

use super::super::passes::Pass;
use super::super::schemes::{FORGET, SPLIT, forgetting, only, splitting, way_of};
use super::{DamonMigrator, FORGET_FIRST, HEARD, ONCE, SINCE_COUNT, pass_by};

/// A node, whether it is near, and the addresses that each of its schemes covers.
type Tries = (usize, bool, BTreeMap<usize, AddrRange>);
/// Time from one command to the next on slow kernels (6.12).
const COMMAND_US: u64 = 100_000;

impl DamonMigrator<'_> {
    /// Reads the share of each segment of near memory that can be migrated. Without it, all segments count as alike.
    pub(super) fn learn_movable(&mut self) {
        for (index, _) in self.at_turn().into_iter().filter(|(_, near)| *near) {
            let node = &mut self.nodes[index];
            let arcs: Vec<AddrRange> = node.addresses().collect();
            if let Ok(Some(shares)) = pageflags::on_reclaim_lists(self.fs, &arcs) {
                node.learn_movable(&shares);
            }
        }
    }

    /// Makes near nodes demote and far ones promote as decided, into the memory that demotion has just freed. By age
    /// no bits are cleared: near nodes demote pages idle since the hand passed, far ones promote pages referenced
    /// since they were counted.
    pub(super) fn shift(&mut self, decision: &Decision) -> anyhow::Result<Nanoseconds> {
        let sides = self.sides_at_turn()?;
        let at_turn = self.at_turn();
        let of = |is_near: bool| -> Vec<(usize, TierUsage)> {
            let both = at_turn.iter().zip(&sides).filter(|((_, near), _)| *near == is_near);
            both.map(|((index, _), side)| (*index, *side)).collect()
        };
        let (near, far) = (of(true), of(false));
        let boundary = Boundary { near: &near, far: &far, headroom: self.headroom };
        let demoted = boundary.demotions(&self.nodes, decision.demote.0);
        let promoted = boundary.promotions(&self.nodes, decision.promote.0, &demoted);
        let last = LastScan { window: self.looked, until_promotion: SINCE_COUNT };
        let mut tried: Vec<Tries> = Vec::new();
        for ((index, near), side) in at_turn.iter().copied().zip(&sides) {
            let those = if near { &demoted } else { &promoted };
            let those = those.iter().filter(|one| one.node == index).copied();
            let node = &mut self.nodes[index];
            let within = migration::ranges(node, (near, *side), those, decision, last);
            let by_scheme = within.into_iter().map(|(target, within)| (way_of(target), within));
            tried.push((index, near, by_scheme.collect()));
        }
        let passes = self.passes(&tried, decision);
        let (mut longest, group) = (0, self.group.clone());
        // Near nodes first, as they are ordered: commands take time, and demotion must precede promotion.
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

    /// The pass of each node, if it has one: far ones after near ones.
    fn passes(&self, tried: &[Tries], decision: &Decision) -> Vec<Option<Pass>> {
        let since_ns = self.since_count();
        let pass = |(index, near, tries): &Tries| {
            let (timing, within) = (&self.kdamonds[*index].timing, hull(tries)?);
            let span = self.nodes[*index].span();
            let window = if *near { decision.idle } else { decision.promote_window };
            Some(match (decision.by_age, window > ONCE) {
                (true, _) => timing.pass_at(ONCE),
                (false, true) => timing.pass_at(Nanoseconds(window.0.saturating_sub(since_ns))),
                (false, false) => timing.pass(window, FORGET_FIRST, (within.len(), span)),
            })
        };
        let mut passes: Vec<Option<Pass>> = tried.iter().map(pass).collect();
        let takes_us = |(index, near, tries): &Tries| {
            let within = hull(tries).filter(|_| *near)?;
            let span = self.nodes[*index].span();
            let timing = &self.kdamonds[*index].timing;
            Some(timing.takes_us((within.len(), span), decision.demote.0))
        };
        let Some(takes_us) = tried.iter().filter_map(takes_us).max() else { return passes };
        // Demotion is not due again before promotion is over and all kdamonds have received the next command.
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

    /// Nanoseconds from the last count until a command given now takes effect.
    fn since_count(&self) -> u64 {
        let (told, counted) = self.counted;
        let since = u64::try_from(told.elapsed().as_nanos()).unwrap_or(u64::MAX);
        since.saturating_sub(counted.0).saturating_add(HEARD.0)
    }
}

/// From the first address of all schemes to the last.
fn hull(tried: &BTreeMap<usize, AddrRange>) -> Option<AddrRange> {
    let start = tried.values().map(|within| within.start).min()?;
    let end = tried.values().map(|within| within.end).max()?;
    Some(AddrRange { start, end })
}
